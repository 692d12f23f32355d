/* Threads: every number of them and every kind of parallel loop give the same bits; eight threads use one
 * plan at once; plans are made and destroyed while others run; the message of one thread is not seen by
 * another. Also run under ThreadSanitizer. A call that hangs is ended by an alarm. */
#define _POSIX_C_SOURCE 200809L

#include "outputs.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

enum { CALLERS = 8, SECONDS = 600 };

static const char *const problems[] = {
    "b2 h3 q9 k8 d4 f64",
    "b2 h4 kv1 q9 k8 d5 dv3 f32 causal sink bias=11qk table=3,shared",
    "b3 h4 kv2 q9 k8 d5 dv3 bf16 grad=f32 window=4,2 softcap=2 dropout=0.3 bias=1h11 mask=b11k alibi",
    EVERY_FEATURE "f32",
    EVERY_FEATURE_PACKED "f16 aux=f32",
    "b1 h1 q1 k1 d1 f64",
};
enum { PROBLEMS = sizeof problems / sizeof problems[0] };

/* Problems of several tiles, spans and splits, in every dtype: work that several threads share. */
static const char *const large[] = {
    "h1 q700 k300 d64 f32 causal",
    "h1 q210 k330 d40 bf16 causal",
    "h6 q1100 k600 d24 bf16 causal",
    "h2 kv1 q400 k300 d256 f32 bias=11qk sink",
    "b2 h2 q250 k300 d256 bf16 out=f32",
    "h2 q300 k400 d64 f16 causal",
    "h1 q500 k900 d40 f64 window=70,200 table=9 dropout=0.1",
    "h2 q3 k5000 d24 f32 causal align=bottom-right sink",
};
enum { LARGE = sizeof large / sizeof large[0] };

/* With AG_INVARIANT, vjp and vjp_jvp of these run as chains of spans: tests/kernels/work_items.c holds it. */
static const char *const chains[] = {
    "h2 kv1 q200 k400 d256 bf16 bias=bhqk", /* small enough for sanitizers */
    "h3 q400 k900 d256 f32 causal sink",
    "b2 h2 kv1 q385 k600 d256 bf16 bias=bhqk",
};
enum { CHAINS = sizeof chains / sizeof chains[0] };

/* For the reference, whose threads share heads and sequences. */
static const char *const many_heads[] = {
    "b2 h6 kv3 q70 k90 d24 f32 causal bias=11qk sink table=9,shared",
    "b3 h4 q60 k50 d16 bf16 grad=f32 window=20,9 dropout=0.1",
};
enum { MANY_HEADS = sizeof many_heads / sizeof many_heads[0] };

static void hang(int signal_number)
{
    static const char text[] = "a call hangs\n";
    (void)signal_number;
    (void)!write(1, text, sizeof text - 1);
    _exit(1);
}

static ag_options with_threads(int32_t threads)
{
    ag_options options = AG_OPTIONS_INIT;
    options.threads = threads;
    return options;
}

static void start(pthread_t *thread, void *(*function)(void *), void *arg)
{
    test_need(pthread_create(thread, NULL, function, arg) == 0, "a thread");
}

/* ---- Numbers of threads ------------------------------------------------------------------------- */

/* The same bits with one thread and with each of the other numbers, in two runs of the same plan. */
static void same_with_threads(const char *text, uint32_t flags, const int32_t *numbers, int n_numbers)
{
    struct arrays one;
    for (int n = 0; n < 1 + n_numbers; n++) {
        struct arrays x;
        char label[256];
        ag_options options = with_threads(n == 0 ? 1 : numbers[n - 1]);
        options.flags = flags;
        snprintf(label, sizeof label, "'%s' with %d threads", text, (int)options.threads);
        make_arrays(&x, text, &options, 101);
        CHECK_OK(agc_arrays_add_low_halves(&x));
        CHECK_OK(agc_arrays_run_all(&x));
        if (n == 0) {
            one = x;
            continue;
        }
        same_outputs(&x, &one, ALL_MAPS, label);
        CHECK_OK(agc_arrays_run_all(&x)); /* a second run of the same plan */
        same_outputs(&x, &one, ALL_MAPS, label);
        agc_arrays_destroy(&x);
    }
    agc_arrays_destroy(&one);
}

static void any_number_of_threads(void)
{
    static const int32_t numbers[] = {2, 3, 8, 64};
    const char *const *more = test_on_reference() ? many_heads : large;
    const int all = test_on_reference() ? MANY_HEADS : LARGE, count = test_count(1000);
    const int n_more = count == 1000 ? all : count >= 500 ? 2 : 0;
    if (n_more < all) {
        printf("large problems: %d of %d, AG_TEST_COUNT asks for little\n", n_more, all);
    }
    for (int n = 0; n < PROBLEMS; n++) {
        same_with_threads(problems[n], 0, numbers, 4);
    }
    for (int n = 0; n < n_more; n++) {
        same_with_threads(more[n], 0, numbers, 3);
    }
}

/* ---- Other parallel loops ----------------------------------------------------------------------- */

static void run_forward(void *ctx, int64_t n_tasks, ag_task task, void *arg)
{
    *(int64_t *)ctx = n_tasks > *(int64_t *)ctx ? n_tasks : *(int64_t *)ctx;
    for (int64_t n = 0; n < n_tasks; n++) {
        task(arg, n);
    }
}

static void run_in_reverse(void *ctx, int64_t n_tasks, ag_task task, void *arg)
{
    *(int64_t *)ctx = n_tasks > *(int64_t *)ctx ? n_tasks : *(int64_t *)ctx;
    for (int64_t n = n_tasks; n-- > 0;) {
        task(arg, n);
    }
}

struct one_task {
    ag_task task;
    void *arg;
    int64_t index;
};

static void *run_one(void *arg)
{
    const struct one_task *t = arg;
    t->task(t->arg, t->index);
    return NULL;
}

static void run_each_on_its_thread(void *ctx, int64_t n_tasks, ag_task task, void *arg)
{
    pthread_t threads[64];
    struct one_task tasks[64];
    *(int64_t *)ctx = n_tasks > *(int64_t *)ctx ? n_tasks : *(int64_t *)ctx;
    for (int64_t n = 0; n < n_tasks && n < 64; n++) {
        tasks[n] = (struct one_task){task, arg, n};
        start(&threads[n], run_one, &tasks[n]);
    }
    for (int64_t n = 0; n < n_tasks && n < 64; n++) {
        pthread_join(threads[n], NULL);
    }
}

static void run_nothing(void *ctx, int64_t n_tasks, ag_task task, void *arg)
{
    (void)n_tasks;
    (void)task;
    (void)arg;
    ++*(int64_t *)ctx;
}

static void same_with_loops(const char *text, uint32_t flags)
{
    static void (*const loops[])(void *, int64_t, ag_task, void *) = {run_forward, run_in_reverse,
                                                                      run_each_on_its_thread};
    struct arrays wanted, x;
    ag_options options = with_threads(5);
    options.flags = flags;
    make_arrays(&wanted, text, &options, 103);
    make_arrays(&x, text, &options, 103);
    CHECK_OK(agc_arrays_run_along_s(&x));
    CHECK_OK(agc_arrays_run_all(&wanted));
    for (int l = 0; l < 3; l++) {
        int64_t max_tasks = 0;
        char label[256];
        const ag_exec exec = {.struct_size = sizeof exec, .ctx = &max_tasks, .run = loops[l]};
        snprintf(label, sizeof label, "'%s' with loop %d", text, l);
        for (int map = 0; map < MAPS; map++) {
            CHECK_OK(call_map(map, x.plan, &x.args, &exec, x.workspace, x.workspace_bytes));
        }
        same_outputs(&x, &wanted, ALL_MAPS, label);
        CHECK(max_tasks >= 1 && max_tasks <= 5, "%s: %d tasks for 5 threads", label, (int)max_tasks);
    }
    agc_arrays_destroy(&x);
    agc_arrays_destroy(&wanted);
}

static void other_loops(void)
{
    for (int n = 0; n < PROBLEMS; n++) {
        same_with_loops(problems[n], 0);
    }
}

/* A loop that does not run its tasks is an error, not garbage given as a result. */
static void a_loop_that_does_nothing(void)
{
    struct arrays x;
    int64_t calls = 0;
    const ag_options options = with_threads(4);
    const ag_exec exec = {.struct_size = sizeof exec, .ctx = &calls, .run = run_nothing};
    make_arrays(&x, problems[0], &options, 105);
    CHECK_OK(agc_arrays_run_all(&x));
    for (int map = 0; map < MAPS; map++) {
        const int64_t before = calls;
        const ag_status status = call_map(map, x.plan, &x.args, &exec, x.workspace, x.workspace_bytes);
        CHECK(status != AG_OK && calls > before, "%s with a loop that does nothing: %s after %d calls",
              map_name[map], ag_status_string(status), (int)(calls - before));
        CHECK(strcmp(ag_last_field(), "exec.run") == 0, "the message '%s' is not about exec.run",
              ag_last_message());
    }
    ag_exec reserved = exec;
    reserved.reserved = 1;
    CHECK_STATUS(ag_forward(x.plan, &x.args, &reserved, x.workspace, x.workspace_bytes), AG_INVALID_ARGUMENT);
    agc_arrays_destroy(&x);
}

/* ---- Chains of spans ---------------------------------------------------------------------------- */

static void chains_of_spans(void)
{
    static const int32_t many[] = {8};
    if (test_on_reference()) {
        printf("no chains of spans: the reference has none\n");
        return;
    }
    if (test_is_slow()) { /* the same portable code runs them on every processor */
        printf("no chains of spans: AG_TEST_COUNT asks for little\n");
        return;
    }
    const int n_chains = test_count(1000) == 1000 ? CHAINS : 1;
    if (n_chains < CHAINS) {
        printf("chains of spans: %d of %d, AG_TEST_COUNT asks for little\n", n_chains, (int)CHAINS);
    }
    for (int n = 0; n < n_chains; n++) {
        same_with_threads(chains[n], AG_INVARIANT, many, 1);
        same_with_loops(chains[n], AG_INVARIANT);
    }
}

/* ---- Many callers ------------------------------------------------------------------------------- */

struct caller {
    const struct arrays *shared; /* its plan is used, its outputs are the expected ones */
    struct arrays own;
    pthread_t thread;
};

static void *call_often(void *arg)
{
    struct caller *c = arg;
    const int calls = test_is_slow() ? 2 : 10;
    for (int n = 0; n < calls; n++) {
        for (int map = 0; map < MAPS; map++) {
            CHECK_OK(
                call_map(map, c->shared->plan, &c->own.args, NULL, c->own.workspace, c->own.workspace_bytes));
        }
        same_outputs(&c->own, c->shared, ALL_MAPS, "one plan, eight callers");
    }
    return NULL;
}

static void eight_callers(const char *text)
{
    static struct caller callers[CALLERS];
    struct arrays x;
    const ag_options options = with_threads(3);
    make_arrays(&x, text, &options, 107);
    CHECK_OK(agc_arrays_run_all(&x));
    for (int c = 0; c < CALLERS; c++) {
        callers[c].shared = &x;
        make_arrays(&callers[c].own, text, &options, 107);
        CHECK_OK(agc_arrays_run_along_s(&callers[c].own));
    }
    for (int c = 0; c < CALLERS; c++) {
        start(&callers[c].thread, call_often, &callers[c]);
    }
    for (int c = 0; c < CALLERS; c++) {
        pthread_join(callers[c].thread, NULL);
        agc_arrays_destroy(&callers[c].own);
    }
    agc_arrays_destroy(&x);
}

static void one_plan_eight_callers(void)
{
    for (int n = 0; n < PROBLEMS; n++) {
        eight_callers(problems[n]);
    }
    eight_callers("h4 q100 k120 d40 f32"); /* enough work for three threads */
}

/* ---- Plans that come and go --------------------------------------------------------------------- */

/* The pool of threads ends with the last plan, perhaps before its threads have even begun. */
static void plans_without_a_call(void)
{
    for (int n = 0; n < test_count(3000); n++) {
        ag_problem p = AG_PROBLEM_INIT;
        ag_plan *plan = NULL;
        const ag_options options = with_threads(2 + n % 7);
        CHECK_OK(ag_problem_parse("q2 d2 f32", &p));
        CHECK_OK(ag_plan_create(&plan, &p, &options));
        ag_plan_destroy(plan);
    }
}

static void *plan_after_plan(void *arg)
{
    const struct arrays *wanted = arg;
    for (int n = 0; n < test_count(100); n++) {
        struct arrays x;
        const ag_options options = with_threads(1 + n % 5);
        make_arrays(&x, problems[1], &options, 109);
        CHECK_OK(agc_arrays_run_all(&x));
        same_outputs(&x, wanted, ALL_MAPS, "plans that come and go");
        agc_arrays_destroy(&x);
    }
    return NULL;
}

static void plans_at_once(void)
{
    struct arrays wanted;
    pthread_t threads[4];
    const ag_options options = with_threads(1);
    make_arrays(&wanted, problems[1], &options, 109);
    CHECK_OK(agc_arrays_run_all(&wanted));
    ag_plan_destroy(wanted.plan); /* so that the threads below also end the pool between them */
    wanted.plan = NULL;
    wanted.p = NULL;
    for (int n = 0; n < 4; n++) {
        start(&threads[n], plan_after_plan, &wanted);
    }
    for (int n = 0; n < 4; n++) {
        pthread_join(threads[n], NULL);
    }
    agc_arrays_destroy(&wanted);
}

/* ---- Messages ----------------------------------------------------------------------------------- */

static void *fail_often(void *arg)
{
    const int mine = *(const int *)arg;
    char word[16], text[64];
    snprintf(word, sizeof word, "wrong%d", mine);
    snprintf(text, sizeof text, "q1 d1 f32 %s", word);
    for (int n = 0; n < test_count(1000); n++) {
        ag_problem p = AG_PROBLEM_INIT;
        CHECK_STATUS(ag_problem_parse(text, &p), AG_INVALID_PROBLEM);
        CHECK(strstr(ag_last_message(), word) != NULL, "thread %d reads '%s'", mine, ag_last_message());
    }
    return NULL;
}

static void messages_are_each_threads_own(void)
{
    pthread_t threads[4];
    int numbers[4] = {0, 1, 2, 3};
    for (int n = 0; n < 4; n++) {
        start(&threads[n], fail_often, &numbers[n]);
    }
    for (int n = 0; n < 4; n++) {
        pthread_join(threads[n], NULL);
    }
}

int main(void)
{
    static void (*const steps[])(void) = {
        plans_without_a_call, any_number_of_threads,  other_loops,   a_loop_that_does_nothing,
        chains_of_spans,      one_plan_eight_callers, plans_at_once, messages_are_each_threads_own};
    signal(SIGALRM, hang);
    for (size_t n = 0; n < sizeof steps / sizeof steps[0]; n++) {
        alarm(SECONDS);
        steps[n]();
    }
    return test_summary();
}
