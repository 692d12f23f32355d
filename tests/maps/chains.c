/* vjp and vjp_jvp of few long heads, whose spans of keys run at the same time and add to dQ one after another: the same
 * bits for every number of threads and every parallel loop, the results of AG_INVARIANT, which cuts the work in another
 * way, and no thread that waits for ever if the call is cancelled. tests/kernels/work_items.c holds that such problems
 * are run in this way. */
#define _POSIX_C_SOURCE 200809L

#include "outputs.h"

#include <math.h>
#include <signal.h>
#include <unistd.h>

enum { BACKWARD = AG_MAP_VJP | AG_MAP_VJP_JVP, SECONDS = 600 };

static const struct {
    const char *text;
    double limit; /* of the difference to AG_INVARIANT, in norms */
} problems[] = {
    {"h4 q6200 k6200 d170 f32 window=500,0 sink", 1e-5},
    {"h8 kv4 q6200 k6100 d170 bf16 causal window=400,0 softcap=5", 1e-2},
    {"b2 h2 packed=5000,6300 q4200 k4300 d256 f64 causal align=bottom-right dropout=0.1 alibi", 1e-13},
    {"b2 h2 q6200 k6300 d170 f16 out=f32 window=300,20 mask=b11k", 1e-3},
};

static void hang(int signal_number)
{
    static const char text[] = "a call hangs\n";
    (void)signal_number;
    (void)!write(1, text, sizeof text - 1);
    _exit(1);
}

/* A map on arrays of x by a plan with other options. */
static ag_status run_by(struct arrays *x, int map, const ag_options *options, const ag_exec *exec)
{
    ag_plan *plan = NULL;
    size_t bytes = 0;
    CHECK_OK(ag_plan_create(&plan, x->p, options));
    CHECK_OK(ag_plan_workspace(plan, map_bit[map], &bytes));
    void *workspace = test_alloc((int64_t)bytes + 1, 1);
    const ag_status status = call_map(map, plan, &x->args, exec, workspace, bytes);
    free(workspace);
    ag_plan_destroy(plan);
    return status;
}

static ag_options with_threads(int32_t threads)
{
    ag_options options = AG_OPTIONS_INIT;
    options.backend = AG_BACKEND_CPU;
    options.threads = threads;
    return options;
}

static void same_as_kept(const struct arrays *x, uint32_t maps, void *kept[T_COUNT], const char *label)
{
    for (enum tensor t = 0; t < T_COUNT; t++) {
        if (is_output(x, t, maps)) {
            same_tensor(x, t, x->data[t], kept[t], label);
        }
    }
}

static void other_threads(struct arrays *x, void *kept[T_COUNT], const char *text)
{
    static const int32_t numbers[] = {1, 16};
    for (int n = 0; n < 2; n++) {
        const ag_options options = with_threads(numbers[n]);
        CHECK_OK(run_by(x, 1, &options, NULL));
        CHECK_OK(run_by(x, 3, &options, NULL));
        same_as_kept(x, BACKWARD, kept, text);
    }
}

/* The norm of the difference over that of the tensor. */
static double difference(const struct arrays *x, enum tensor t, const void *kept)
{
    const size_t size = element_size(x, t);
    double error = 0, norm = 0;
    for (int64_t n = 0; n < x->count[t]; n++) {
        const double a = element_value(x, t, (const char *)x->data[t] + (size_t)n * size);
        const double b = element_value(x, t, (const char *)kept + (size_t)n * size);
        error += (a - b) * (a - b);
        norm += b * b;
    }
    return sqrt(error / norm);
}

static void other_cut(struct arrays *x, void *kept[T_COUNT], const char *text, double limit)
{
    ag_options options = with_threads(2);
    options.flags = AG_INVARIANT;
    CHECK_OK(run_by(x, 1, &options, NULL));
    CHECK_OK(run_by(x, 3, &options, NULL));
    for (enum tensor t = 0; t < T_COUNT; t++) {
        if (is_output(x, t, BACKWARD)) {
            const double d = difference(x, t, kept[t]);
            CHECK(d <= limit, "'%s': %s differs by %g", text, agc_tensor_info[t].name, d);
        }
    }
}

/* ---- Parallel loops and polls of the caller ---- */

/* One thread runs all tasks, the last one first. */
static void backwards(void *ctx, int64_t n_tasks, ag_task task, void *arg)
{
    (void)ctx;
    for (int64_t n = n_tasks - 1; n >= 0; n--) {
        task(arg, n);
    }
}

static int cancel_later(void *ctx)
{
    int *polls = ctx;
    return --*polls < 0;
}

/* A vjp that is cancelled at some poll, then one by the caller's loop. */
static void cancelled(struct arrays *x, void *kept[T_COUNT], const char *text)
{
    const ag_options options = with_threads(3);
    int polls = 2;
    ag_exec exec = AG_EXEC_INIT;
    exec.poll = cancel_later;
    exec.ctx = &polls;
    CHECK_STATUS(run_by(x, 1, &options, &exec), AG_CANCELLED);
    exec = (ag_exec)AG_EXEC_INIT;
    exec.run = backwards;
    CHECK_OK(run_by(x, 1, &options, &exec));
    same_as_kept(x, AG_MAP_VJP, kept, text);
}

static void check(const char *text, double limit)
{
    struct arrays x;
    void *kept[T_COUNT];
    const ag_options options = with_threads(3);
    make_arrays(&x, text, &options, 5);
    for (int n = 0; n < 4; n++) {
        static const uint32_t maps[] = {AG_MAP_FORWARD, AG_MAP_JVP, AG_MAP_VJP, AG_MAP_VJP_JVP};
        CHECK_OK(agc_arrays_run(&x, maps[n]));
    }
    keep_outputs(&x, kept);
    other_threads(&x, kept, text);
    other_cut(&x, kept, text, limit);
    cancelled(&x, kept, text);
    free_outputs(kept);
    agc_arrays_destroy(&x);
}

int main(void)
{
    const int n_problems = test_count(1000) < 500 ? 1 : 4;
    if (n_problems < 4) {
        printf("chains: the first problem only, AG_TEST_COUNT asks for little\n");
    }
    signal(SIGALRM, hang);
    alarm(SECONDS);
    for (int n = 0; n < n_problems; n++) {
        check(problems[n].text, problems[n].limit);
    }
    return test_summary();
}
