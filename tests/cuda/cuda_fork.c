/* Processes that fork makes: a child of a process that has used the driver cannot use it, and is told so, while its
 * plans for the host go on; a child of one that has not can. Runs on the fake driver and on a GPU. */
#define _POSIX_C_SOURCE 200809L /* fork */
#include <sys/wait.h>
#include <unistd.h>

#include "fake.h"
#include "outputs.h"

#define PROBLEM "b2 h2 q8 k8 d16 f32"

/* Runs the checks in a child; its failures are this process's. */
static void in_child(void (*check)(void *ctx), void *ctx, const char *what)
{
    int status = 0;
    fflush(stdout);
    const pid_t child = fork();
    test_need(child >= 0, "fork");
    if (child == 0) {
        atomic_store(&test_failed, 0);
        check(ctx);
        fflush(stdout);
        _exit(atomic_load(&test_failed) != 0);
    }
    test_need(waitpid(child, &status, 0) == child, "waitpid");
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "%s: failed, or ended by signal %d", what,
          WIFSIGNALED(status) ? WTERMSIG(status) : 0);
}

static void says_forked(ag_status status, const char *what)
{
    CHECK(status == AG_DEVICE && strstr(ag_last_message(), "was forked from one that had used") != NULL,
          "%s: %s, '%s'", what, ag_status_string(status), ag_last_message());
}

static ag_status make_with_isa(ag_plan **plan, ag_isa isa)
{
    ag_problem p = AG_PROBLEM_INIT;
    ag_options options = AG_OPTIONS_INIT;
    options.backend = AG_BACKEND_CUDA;
    options.isa = isa;
    CHECK_OK(ag_problem_parse(PROBLEM, &p));
    return ag_plan_create(plan, &p, &options);
}

/* ---- What children do ---- */

static void uses_driver(void *ctx)
{
    struct arrays x;
    ag_options options = AG_OPTIONS_INIT;
    (void)ctx;
    options.backend = AG_BACKEND_CUDA;
    make_arrays(&x, PROBLEM, &options, 1);
    CHECK_OK(agc_arrays_run_all(&x));
    agc_arrays_destroy(&x);
}

static void runs_on_host(void)
{
    struct arrays x;
    ag_options options = AG_OPTIONS_INIT;
    options.backend = AG_BACKEND_CPU;
    make_arrays(&x, PROBLEM, &options, 1);
    CHECK_OK(agc_arrays_run_all(&x));
    agc_arrays_destroy(&x);
}

static void is_refused_plans(void *ctx)
{
    ag_plan *plan = NULL;
    ag_info info = {.struct_size = sizeof info};
    (void)ctx;
    says_forked(make_cuda_plan(&plan, PROBLEM, 0), "a plan");
    says_forked(make_cuda_plan(&plan, PROBLEM, 1), "a plan for device 0");
    says_forked(make_with_isa(&plan, AG_ISA_SM80), "a plan for the table sm80");
    CHECK(plan == NULL, "a plan in a child");
    CHECK_OK(ag_info_get(&info));
    CHECK(info.devices[0] == '\0', "devices is '%s' in a child", info.devices);
    runs_on_host();
}

/* The parent's plan and memory. */
struct staged {
    struct arrays x;
    struct agc_stage stage;
    ag_args args;
    void *workspace;
    ag_plan *with_tables;
};

static void is_refused_calls(void *ctx)
{
    struct staged *s = ctx;
    ag_exec exec = AG_EXEC_INIT;
    ag_merge_args m = {.struct_size = sizeof m, .o1 = s->args.o, .o2 = s->args.o, .o = s->args.to};
    m.lse1 = m.lse2 = s->args.lse;
    m.lse = s->args.mu;
    for (int map = 0; map < MAPS; map++) {
        says_forked(call_map(map, s->x.plan, &s->args, &exec, s->workspace, s->x.workspace_bytes),
                    map_name[map]);
    }
    says_forked(ag_merge(s->x.plan, &m, &exec), "merge");
    ag_plan_destroy(s->with_tables);
    is_refused_plans(NULL);
    struct fake_driver *fake = fake_if_open();
    const int asked = fake == NULL ? 0 : atomic_load(&fake->asked_after_fork);
    CHECK(asked == 0, "a child asked the driver %d times", asked);
}

/* Another library has used the driver, this one has not: the driver's own answer. */
static void forks_after_init(void *ctx)
{
    int (*init)(unsigned);
    (void)ctx;
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    void *address = library == NULL ? NULL : dlsym(library, "cuInit");
    test_need(address != NULL, "no driver with cuInit");
    memcpy(&init, &address, sizeof init);
    CHECK_INT(init(0), 0);
    in_child(is_refused_plans, NULL, "a child of a process in which another library has used the driver");
    uses_driver(NULL);
}

int main(void)
{
    struct staged s;
    in_child(uses_driver, NULL, "a child of a process that has not used the driver");
    in_child(forks_after_init, NULL, "a process in which another library uses the driver");
    runs_on_host();
    in_child(uses_driver, NULL, "a child of a process with a plan for the host");

    ag_options options = AG_OPTIONS_INIT;
    options.backend = AG_BACKEND_CUDA;
    make_arrays(&s.x, PROBLEM, &options, 1);
    CHECK_OK(agc_arrays_run_all(&s.x));
    CHECK_OK(make_cuda_plan(&s.with_tables, "q8 d16 f32 alibi", 0));
    s.args = s.x.args;
    CHECK_OK(agc_stage_map(&s.stage, s.x.plan, AG_MAP_JVP, &s.args, &s.workspace, s.x.workspace_bytes));
    in_child(is_refused_calls, &s, "a child of a process that has used the driver");
    CHECK_OK(agc_stage_end(&s.stage, AG_OK));
    CHECK_OK(agc_arrays_run_all(&s.x));
    agc_arrays_destroy(&s.x);
    ag_plan_destroy(s.with_tables);
    return test_summary();
}
