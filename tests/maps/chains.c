/* vjp and vjp_jvp of heads whose spans of keys run at the same time and add to dQ one after another; a thread's memory
 * for dQ serves one head after another. The same bits for every number of threads and every parallel loop, with and
 * without AG_INVARIANT, whose spans are shorter, so that the results differ by rounding; and no thread that waits for
 * ever if the call is cancelled. tests/kernels/work_items.c holds that such problems are run in this way. */
#define _POSIX_C_SOURCE 200809L

#include "outputs.h"

#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <unistd.h>

enum { BACKWARD = AG_MAP_VJP | AG_MAP_VJP_JVP, TASKS = 5, LOOPS = 3, SECONDS = 600 };

static const struct {
    const char *text;
    double limit; /* of the difference to AG_INVARIANT, in norms */
} problems[] = {
    {"b4 h4 packed=5000,6000 q2000 k2100 d170 f32 window=300,50", 1e-5},
    {"h18 q1700 k1900 d170 bf16 causal align=bottom-right window=200,0", 1e-2},
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

static void forget_outputs(struct arrays *x, uint32_t maps)
{
    for (enum tensor t = 0; t < T_COUNT; t++) {
        if (is_output(x, t, maps)) {
            memset(x->data[t], 0xff, tensor_bytes(x, t)); /* NaN in every dtype */
        }
    }
}

/* A map on arrays of x by a plan with other options. */
static ag_status run_by(struct arrays *x, int map, const ag_options *options, const ag_exec *exec)
{
    ag_plan *plan = NULL;
    size_t bytes = 0;
    CHECK_OK(ag_plan_create(&plan, x->p, options));
    CHECK_OK(ag_plan_workspace(plan, map_bit[map], &bytes));
    void *workspace = test_alloc((int64_t)bytes + 1, 1);
    forget_outputs(x, map_bit[map]);
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

/* If AG_TEST_COUNT is set, not with one thread, which takes no other way through the code. */
static void other_threads(struct arrays *x, void *kept[T_COUNT], const char *text)
{
    static const int32_t numbers[] = {16, 1};
    for (int n = 0; n < (test_count(1000) < 1000 ? 1 : 2); n++) {
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

static void run_invariant(struct arrays *x, int32_t threads)
{
    ag_options options = with_threads(threads);
    options.flags = AG_INVARIANT;
    CHECK_OK(run_by(x, 1, &options, NULL));
    CHECK_OK(run_by(x, 3, &options, NULL));
}

static void other_cut(struct arrays *x, void *kept[T_COUNT], const char *text, double limit)
{
    void *invariant[T_COUNT];
    run_invariant(x, 1);
    for (enum tensor t = 0; t < T_COUNT; t++) {
        if (is_output(x, t, BACKWARD)) {
            const double d = difference(x, t, kept[t]);
            CHECK(d <= limit, "'%s': %s differs by %g", text, agc_tensor_info[t].name, d);
        }
    }
    keep_outputs(x, invariant);
    run_invariant(x, 16);
    same_as_kept(x, BACKWARD, invariant, text);
    free_outputs(invariant);
}

/* ---- Parallel loops of the caller ---- */

/* The tasks of a loop, in an order in which several threads take them. */
struct task_list {
    ag_task task;
    void *arg;
    int64_t order[TASKS];
    int64_t n_tasks;
    atomic_int next;
};

static void *take_tasks(void *arg)
{
    struct task_list *list = arg;
    for (int64_t n = atomic_fetch_add(&list->next, 1); n < list->n_tasks;
         n = atomic_fetch_add(&list->next, 1)) {
        list->task(list->arg, list->order[n]);
    }
    return NULL;
}

static void shuffle(struct task_list *list)
{
    static uint32_t state = 12345;
    for (int64_t n = list->n_tasks - 1; n > 0; n--) {
        state = state * 1664525 + 1013904223;
        const int64_t m = (state >> 16) % (n + 1), moved = list->order[n];
        list->order[n] = list->order[m];
        list->order[m] = moved;
    }
}

/* Tasks in a random order, on the thread that calls the map and on n_threads more. */
static void run_shuffled(int64_t n_threads, int64_t n_tasks, ag_task task, void *arg)
{
    struct task_list list = {.task = task, .arg = arg, .n_tasks = n_tasks};
    pthread_t threads[TASKS];
    test_need(n_tasks <= TASKS, "more tasks than the plan has threads");
    for (int64_t n = 0; n < n_tasks; n++) {
        list.order[n] = n;
    }
    shuffle(&list);
    for (int64_t n = 0; n < n_threads; n++) {
        test_need(pthread_create(&threads[n], NULL, take_tasks, &list) == 0, "a thread");
    }
    take_tasks(&list);
    for (int64_t n = 0; n < n_threads; n++) {
        pthread_join(threads[n], NULL);
    }
}

static void a_thread_per_task(void *ctx, int64_t n_tasks, ag_task task, void *arg)
{
    (void)ctx;
    run_shuffled(n_tasks - 1, n_tasks, task, arg);
}

static void two_threads(void *ctx, int64_t n_tasks, ag_task task, void *arg)
{
    (void)ctx;
    run_shuffled(1, n_tasks, task, arg);
}

/* One thread runs all tasks, the last one first. */
static void backwards(void *ctx, int64_t n_tasks, ag_task task, void *arg)
{
    (void)ctx;
    for (int64_t n = n_tasks - 1; n >= 0; n--) {
        task(arg, n);
    }
}

static void other_loops(struct arrays *x, void *kept[T_COUNT], const char *text, int n_loops)
{
    static void (*const loops[LOOPS])(void *, int64_t, ag_task, void *) = {backwards, two_threads,
                                                                           a_thread_per_task};
    const ag_options options = with_threads(TASKS);
    for (int n = 0; n < n_loops; n++) {
        ag_exec exec = AG_EXEC_INIT;
        exec.run = loops[n];
        CHECK_OK(run_by(x, 1, &options, &exec));
        CHECK_OK(run_by(x, 3, &options, &exec));
        same_as_kept(x, BACKWARD, kept, text);
    }
}

/* ---- Polls of the caller ---- */

static int cancel_later(void *ctx)
{
    int *polls = ctx;
    return --*polls < 0;
}

/* Calls that are cancelled at their first, second and third poll (if there are so many), with the pool and with a loop
 * of the caller's own; then one that is not. All have the same workspace, full of NaN before the first call. */
static void cancelled(struct arrays *x, int map, void *kept[T_COUNT], const char *text)
{
    memset(x->workspace, 0xff, x->workspace_bytes);
    for (int n = 0; n < 6; n++) {
        int polls = n / 2;
        ag_exec exec = AG_EXEC_INIT;
        exec.poll = cancel_later;
        exec.ctx = &polls;
        exec.run = n % 2 == 0 ? NULL : two_threads;
        const ag_status status = call_map(map, x->plan, &x->args, &exec, x->workspace, x->workspace_bytes);
        CHECK(status == (polls < 0 || n < 2 ? AG_CANCELLED : AG_OK),
              "'%s' %s, to be cancelled at poll %d: %s", text, map_name[map], 1 + n / 2,
              ag_status_string(status));
    }
    CHECK_OK(agc_arrays_run(x, map_bit[map]));
    same_as_kept(x, map_bit[map], kept, text);
}

static void check(const char *text, double limit, int n_loops)
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
    other_loops(&x, kept, text, n_loops);
    cancelled(&x, 1, kept, text);
    cancelled(&x, 3, kept, text);
    free_outputs(kept);
    agc_arrays_destroy(&x);
}

int main(void)
{
    const int all = (int)(sizeof problems / sizeof problems[0]);
    const int count = test_count(1000), n_problems = count == 1000 ? all : count >= 500 ? 2 : 1;
    if (n_problems < all) {
        printf("chains: %d of %d problems, AG_TEST_COUNT asks for little\n", n_problems, all);
    }
    signal(SIGALRM, hang);
    for (int n = 0; n < n_problems; n++) {
        alarm(SECONDS);
        check(problems[n].text, problems[n].limit, n == 0 ? LOOPS : 1);
    }
    return test_summary();
}
