/* A program of the last release: compiled against the header of that release (a frozen copy, see freeze.sh),
 * linked to the current shared library. It uses every struct of the interface once and checks numbers that
 * must never change. */
#include "frozen/attngrad-0.1.0.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static int passed, failed;

static void check(int holds, const char *what)
{
    if (holds) {
        passed++;
    } else {
        failed++;
        printf("%s: %s\n", what, ag_last_message());
    }
}

static void near(double got, double wanted, const char *what)
{
    int holds = fabs(got - wanted) <= 1e-14;
    check(holds, what);
    if (!holds)
        printf("%s is %.17g instead of %.17g\n", what, got, wanted);
}

/* One query, two keys of equal score, values 3 and 5: P = (1/2, 1/2), O = 4, L = 1 + log 2. With dO = 1:
 * dV = P, dS = P o (dP - D) = (-1/2, 1/2). With tK = (1, -1) and q = 1 times scale 1: tS = (1, -1). */
static const double q[1] = {1.0}, k[2] = {1.0, 1.0}, v[2] = {3.0, 5.0};
static const double d_o[1] = {1.0}, tk[2] = {1.0, -1.0};

static void check_maps(const ag_plan *plan, const ag_exec *exec, void *workspace, size_t bytes)
{
    double o[1], lse[1], dk[2], dv[2], to[1], mu[1], tdk[2];
    ag_args args = {.struct_size = sizeof(ag_args)};
    args.q = ag_bhnd(q, 1, 1, 1);
    args.k = ag_bhnd(k, 1, 2, 1);
    args.v = ag_bhnd(v, 1, 2, 1);
    args.o = ag_bhnd(o, 1, 1, 1);
    args.lse = ag_bhnd(lse, 1, 1, 1);
    args.d_o = ag_bhnd(d_o, 1, 1, 1);
    args.dk = ag_bhnd(dk, 1, 2, 1);
    args.dv = ag_bhnd(dv, 1, 2, 1);
    args.tk = ag_bhnd(tk, 1, 2, 1);
    args.to = ag_bhnd(to, 1, 1, 1);
    args.mu = ag_bhnd(mu, 1, 1, 1);
    args.tdk = ag_bhnd(tdk, 1, 2, 1);
    check(ag_forward(plan, &args, exec, workspace, bytes) == AG_OK, "ag_forward");
    near(o[0], 4.0, "o");
    near(lse[0], 1.0 + log(2.0), "lse");
    check(ag_vjp(plan, &args, exec, workspace, bytes) == AG_OK, "ag_vjp");
    near(dk[0], -0.5, "dk");
    near(dv[1], 0.5, "dv");
    check(ag_jvp(plan, &args, exec, workspace, bytes) == AG_OK, "ag_jvp");
    near(to[0], -1.0, "to");
    near(mu[0], 0.0, "mu");
    check(ag_vjp_jvp(plan, &args, exec, workspace, bytes) == AG_OK, "ag_vjp_jvp");
    near(tdk[0], 0.0, "tdk");
}

static void check_merge(const ag_plan *plan)
{
    const double o1[1] = {3.0}, o2[1] = {5.0}, lse1[1] = {0.0};
    double o[1], lse[1];
    ag_merge_args merge = {.struct_size = sizeof(ag_merge_args)};
    merge.o1 = ag_bhnd(o1, 1, 1, 1);
    merge.o2 = ag_bhnd(o2, 1, 1, 1);
    merge.lse1 = merge.lse2 = ag_bhnd(lse1, 1, 1, 1);
    merge.o = ag_bhnd(o, 1, 1, 1);
    merge.lse = ag_bhnd(lse, 1, 1, 1);
    check(ag_merge(plan, &merge, NULL) == AG_OK, "ag_merge");
    near(o[0], 4.0, "merged o");
    near(lse[0], log(2.0), "merged lse");
}

static void check_trace(const ag_plan *plan, void *workspace, size_t bytes)
{
    double o[1] = {0.0}, P[2], J[4];
    ag_args args = {.struct_size = sizeof(ag_args)};
    ag_trace_args trace = {.struct_size = sizeof(ag_trace_args)};
    args.q = ag_bhnd(q, 1, 1, 1);
    args.k = ag_bhnd(k, 1, 2, 1);
    args.v = ag_bhnd(v, 1, 2, 1);
    args.o = ag_bhnd(o, 1, 1, 1);
    trace.P = P;
    trace.J = J;
    check(ag_trace(plan, AG_MAP_FORWARD, &args, &trace, workspace, bytes) == AG_OK, "ag_trace");
    near(P[1], 0.5, "P");
    near(J[1], -0.25, "J");
}

static void in_turn(void *ctx, int64_t n_tasks, ag_task task, void *arg)
{
    (void)ctx;
    for (int64_t index = 0; index < n_tasks; index++)
        task(arg, index);
}

int main(void)
{
    ag_plan *plan = NULL;
    ag_problem problem = AG_PROBLEM_INIT;
    ag_options options = AG_OPTIONS_INIT;
    ag_exec exec = AG_EXEC_INIT;
    ag_info info = {.struct_size = sizeof(ag_info)};
    size_t bytes = 0;
    void *workspace;

    problem.dtype = AG_F64;
    problem.batch = problem.heads = problem.q_len = problem.dim_qk = 1;
    problem.kv_len = 2;
    options.backend = AG_BACKEND_REFERENCE;
    exec.run = in_turn;
    check(ag_info_get(&info) == AG_OK, "ag_info_get");
    check(ag_plan_create(&plan, &problem, &options) == AG_OK, "ag_plan_create");
    check(ag_plan_workspace(plan, AG_MAP_FORWARD | AG_MAP_VJP | AG_MAP_JVP | AG_MAP_VJP_JVP, &bytes) == AG_OK,
          "ag_plan_workspace");
    workspace = malloc(bytes + 1);
    check(workspace != NULL, "malloc");
    if (failed == 0) {
        check_maps(plan, NULL, workspace, bytes);
        check_maps(plan, &exec, workspace, bytes);
        check_merge(plan);
        check_trace(plan, workspace, bytes);
    }
    free(workspace);
    ag_plan_destroy(plan);
    printf("header %d.%d.%d, library %s: %d checks passed, %d failed\n", AG_VERSION_MAJOR, AG_VERSION_MINOR,
           AG_VERSION_PATCH, ag_version_string(), passed, failed);
    return failed != 0;
}
