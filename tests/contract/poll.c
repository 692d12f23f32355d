/* ag_exec.poll: called on the thread that called the map, often enough; non-zero cancels the call, after which the same
 * plan and workspace give the right bits. Also run under ThreadSanitizer. */
#define _POSIX_C_SOURCE 200809L

#include "layer/nn.h"
#include "outputs.h"

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
enum { INSTRUMENTED = 1 };
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer) || __has_feature(address_sanitizer)
enum { INSTRUMENTED = 1 };
#else
enum { INSTRUMENTED = 0 };
#endif
#else
enum { INSTRUMENTED = 0 };
#endif

static const double max_gap = 0.050; /* seconds between two polls, as the header says */

static ag_options with_threads(int32_t threads)
{
    ag_options options = AG_OPTIONS_INIT;
    options.threads = threads;
    return options;
}

/* ---- A poll that counts, measures, and cancels after some calls ---------------------------------- */

typedef struct {
    pthread_t caller;
    int64_t calls, elsewhere; /* polls; those of them on another thread */
    int64_t cancel_at;        /* the poll that cancels; 0: none */
    double last, largest;     /* the caller's processor time: of the last poll; largest difference of two */
} watch;

/* Processor time of this thread: other programs that use the processor do not count. */
static double thread_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void measure_gap(watch *w)
{
    const double now = thread_seconds();
    w->largest = now - w->last > w->largest ? now - w->last : w->largest;
    w->last = now;
}

static int32_t count(void *ctx)
{
    watch *w = ctx;
    w->elsewhere += !pthread_equal(pthread_self(), w->caller);
    measure_gap(w);
    return ++w->calls == w->cancel_at;
}

static ag_exec watched(watch *w, int64_t cancel_at)
{
    ag_exec exec = AG_EXEC_INIT;
    *w = (watch){.caller = pthread_self(), .cancel_at = cancel_at, .last = thread_seconds()};
    exec.ctx = w;
    exec.poll = count;
    return exec;
}

/* ---- Gaps ---------------------------------------------------------------------------------------- */

static const struct {
    int length; /* a quarter of it under a sanitizer, which makes everything slower */
    const char *words;
    ag_backend backend;
} long_problems[] = {
    {4096, "h1 d128 f64", AG_BACKEND_CPU},                /* few heads: splits of keys and queries */
    {2048, "h8 d64 f32 causal", AG_BACKEND_CPU},          /* many: a head is one work item of vjp */
    {4096, "h2 d64 bf16", AG_BACKEND_CPU},                /* AMX, if there is one */
    {4096, "h4 d128 f32", AG_BACKEND_CPU},                /* few long heads: chains of spans */
    {3000, "h2 d16 bf16 bias=11qk sink", AG_BACKEND_CPU}, /* a gradient of the bias that is a sum */
    {1200, "h1 d64 f64 bias", AG_BACKEND_REFERENCE},      /* one work item */
};

/* A map on arrays, or of a layer. */
typedef struct {
    struct arrays *x; /* NULL: the layer's map */
    nn_model *layer;
    const char *text;
    int32_t threads;
} subject;

static ag_status call_subject(const subject *of, int map, const ag_exec *exec)
{
    return of->x == NULL
               ? nn_run_with(of->layer, map_bit[map], exec)
               : call_map(map, of->x->plan, &of->x->args, exec, of->x->workspace, of->x->workspace_bytes);
}

/* Was it cancelled if and only if it polled max_polls times, on its own thread, and often enough? */
static void check_watch(const watch *w, ag_status status, int64_t max_polls, const subject *of,
                        const char *map)
{
    CHECK(status == (w->calls == max_polls ? AG_CANCELLED : AG_OK), "'%s' %s: %s after %d polls", of->text,
          map, ag_status_string(status), (int)w->calls);
    CHECK(w->calls >= 1 && w->elsewhere == 0, "'%s' %s: %d polls, %d on other threads", of->text, map,
          (int)w->calls, (int)w->elsewhere);
    if (!INSTRUMENTED) {
        CHECK(w->largest <= max_gap, "'%s' %s, %d threads: %.0f ms between two polls", of->text, map,
              (int)of->threads, 1e3 * w->largest);
    }
}

/* On a virtual machine, a thread's processor time may include time that the host took away: a gap may be long by
 * chance, but a piece of work that does not poll is long in every attempt. */
static void watch_call(const subject *of, int map, int64_t max_polls)
{
    enum { ATTEMPTS = 4 };
    char name[32];
    watch w;
    ag_status status;
    int attempt = 0;
    snprintf(name, sizeof name, "%s%s", map_name[map], of->x == NULL ? " of the layer" : "");
    do {
        const ag_exec exec = watched(&w, max_polls);
        status = call_subject(of, map, &exec);
        measure_gap(&w);
        if (w.largest > max_gap && !INSTRUMENTED) {
            printf("'%s' %s, %d threads: %.0f ms between two polls in attempt %d\n", of->text, name,
                   (int)of->threads, 1e3 * w.largest, attempt);
        }
    } while (w.largest > max_gap && !INSTRUMENTED && ++attempt < ATTEMPTS);
    check_watch(&w, status, max_polls, of, name);
}

static void long_maps_poll(void)
{
    const int64_t max_polls = INSTRUMENTED ? 5 : 20;
    if (INSTRUMENTED) {
        printf("the time between two polls is not checked: the sanitizer makes everything slower\n");
    }
    for (size_t n = 0; n < sizeof long_problems / sizeof long_problems[0]; n++) {
        const int length = long_problems[n].length / (INSTRUMENTED ? 4 : 1);
        char text[128];
        snprintf(text, sizeof text, "q%d k%d %s", length, length, long_problems[n].words);
        for (int32_t threads = 1; threads <= 2; threads++) {
            struct arrays x;
            ag_options options = with_threads(threads);
            options.backend = long_problems[n].backend;
            make_arrays(&x, text, &options, 201);
            const subject of = {&x, NULL, text, threads};
            for (int map = 0; map < MAPS; map++) {
                watch_call(&of, map, max_polls);
            }
            agc_arrays_destroy(&x);
        }
    }
}

typedef struct {
    double begin, last; /* wall-clock seconds: of the call, of its last poll */
    int64_t calls;
} wall_watch;

static double wall_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int32_t cancel_after_a_second(void *ctx)
{
    wall_watch *w = ctx;
    w->last = wall_seconds();
    w->calls++;
    return w->last - w->begin > 1;
}

/* A parallel loop of two tasks, one on a thread of its own, as OpenMP's is. */
struct second_task {
    ag_task task;
    void *arg;
};

static void *run_second_task(void *arg)
{
    const struct second_task *second = arg;
    second->task(second->arg, 1);
    return NULL;
}

static void run_on_two_threads(void *ctx, int64_t n_tasks, ag_task task, void *arg)
{
    struct second_task second = {task, arg};
    pthread_t thread;
    (void)ctx;
    test_need(n_tasks <= 2, "at most two tasks");
    if (n_tasks == 2) {
        test_need(pthread_create(&thread, NULL, run_second_task, &second) == 0, "no thread");
    }
    task(arg, 0);
    if (n_tasks == 2) {
        pthread_join(thread, NULL);
    }
}

/* Two threads, a long and a short sequence, each one work item: in one of the two orders the caller has the short one
 * and waits for the other thread, of the library's pool or of the caller's own loop. It must poll while it waits; by
 * the wall clock ten times less often than the header says, as other programs use the processor too. */
static void waiting_callers_poll(int longer, int own_loop)
{
    int64_t lengths[2] = {1, 1};
    struct arrays x;
    ag_options options = with_threads(2);
    options.backend = AG_BACKEND_REFERENCE;
    lengths[longer] = 1500;
    make_arrays(&x, "b2 h1 q1500 k1500 d128 f64", &options, 213);
    x.args.q_lengths = lengths;
    wall_watch w = {.begin = wall_seconds()};
    ag_exec exec = AG_EXEC_INIT;
    exec.ctx = &w;
    exec.poll = cancel_after_a_second;
    exec.run = own_loop ? run_on_two_threads : NULL;
    CHECK_STATUS(ag_vjp_jvp(x.plan, &x.args, &exec, x.workspace, x.workspace_bytes), AG_CANCELLED);
    CHECK(w.calls >= 2, "%d polls in more than a second", (int)w.calls);
    if (!INSTRUMENTED) {
        CHECK((double)w.calls >= (w.last - w.begin) / (10 * max_gap), "%d polls in %.1f s", (int)w.calls,
              w.last - w.begin);
    }
    agc_arrays_destroy(&x);
}

/* Layers whose time is mostly that of their matrix products, one of which takes more than max_gap. */
static void long_layers_poll(void)
{
    const int64_t max_polls = INSTRUMENTED ? 5 : 1000;
    static const nn_config configs[] = {
        {.text = "b4 h8 q500 k500 d128 f64", .flags = AG_LAYER_SELF, .d_model = 1024},
        {.text = "b2 h8 q1500 k1500 d128 bf16", .flags = AG_LAYER_SELF, .d_model = 1024},
    };
    for (int n = 0; n < 2; n++) {
        for (int32_t threads = 1; threads <= 2; threads++) {
            nn_model m;
            nn_make(&m, &configs[n], threads, 211);
            const subject of = {NULL, &m, configs[n].text, threads};
            for (int map = 0; map < MAPS; map++) {
                watch_call(&of, map, max_polls);
            }
            nn_free(&m);
        }
    }
}

/* ---- Cancelling ---------------------------------------------------------------------------------- */

typedef struct {
    const char *text;
    ag_backend backend;
    uint32_t flags; /* of the plan */
} problem;

static const problem problems[] = {
    {"h1 q700 k2100 d64 f32 causal", AG_BACKEND_CPU, 0},
    {"h6 q600 k600 d64 bf16 causal", AG_BACKEND_CPU, 0},
    {"h2 kv1 q400 k300 d256 f32 bias=11qk sink", AG_BACKEND_CPU, 0},
    {"h3 q400 k900 d256 f32 causal sink", AG_BACKEND_CPU, AG_INVARIANT}, /* chains of spans */
    {"b2 h2 kv1 q385 k600 d256 bf16 bias=bhqk", AG_BACKEND_CPU, AG_INVARIANT},
    {EVERY_FEATURE "f32", AG_BACKEND_CPU, 0},
    {EVERY_FEATURE_PACKED "f16 aux=f32", AG_BACKEND_CPU, 0},
    {EVERY_FEATURE "f32", AG_BACKEND_REFERENCE, 0},
    {"h3 q200 k300 d32 f64", AG_BACKEND_REFERENCE, 0},
};

static void run_in_order(void *ctx, int64_t n_tasks, ag_task task, void *arg)
{
    (void)ctx;
    for (int64_t n = 0; n < n_tasks; n++) {
        task(arg, n);
    }
}

/* The call is cancelled at its first poll, before it has written anything, or at a later one if it is long enough. */
static void cancel(struct arrays *x, int map, int64_t cancel_at, int own_loop, const char *text)
{
    watch w;
    ag_exec exec = watched(&w, cancel_at);
    exec.run = own_loop ? run_in_order : NULL;
    const ag_status status = call_map(map, x->plan, &x->args, &exec, x->workspace, x->workspace_bytes);
    CHECK(w.calls <= cancel_at, "'%s' %s: %d polls after the one that cancelled", text, map_name[map],
          (int)(w.calls - cancel_at));
    CHECK(status == (w.calls == cancel_at ? AG_CANCELLED : AG_OK), "'%s' %s: %s after %d polls", text,
          map_name[map], ag_status_string(status), (int)w.calls);
    if (cancel_at == 1) {
        CHECK(status == AG_CANCELLED && strstr(ag_last_message(), "poll") != NULL, "'%s' %s: %s", text,
              map_name[map], ag_last_message());
    }
}

static void after_cancelling(const problem *p, int32_t threads)
{
    const char *text = p->text;
    struct arrays wanted, x;
    ag_options options = with_threads(threads);
    options.backend = p->backend;
    options.flags = p->flags;
    make_arrays(&wanted, text, &options, 203);
    make_arrays(&x, text, &options, 203);
    CHECK_OK(agc_arrays_run_along_s(&wanted));
    CHECK_OK(agc_arrays_run_along_s(&x));
    for (int map = 0; map < MAPS; map++) {
        CHECK_OK(agc_arrays_run(&wanted, map_bit[map]));
        for (int n = 0; n < 4; n++) {
            cancel(&x, map, 1 + n / 2 * 2, n % 2, text);
            CHECK_OK(call_map(map, x.plan, &x.args, NULL, x.workspace, x.workspace_bytes));
            same_outputs(&x, &wanted, map_bit[map], text);
        }
    }
    agc_arrays_destroy(&x);
    agc_arrays_destroy(&wanted);
}

static void cancelled_calls(void)
{
    for (size_t n = 0; n < sizeof problems / sizeof problems[0]; n++) {
        if (!(problems[n].flags & AG_INVARIANT)) { /* one thread never waits in a chain */
            after_cancelling(&problems[n], 1);
        }
        after_cancelling(&problems[n], 3);
    }
}

static void merges(void)
{
    struct arrays x;
    watch w;
    make_arrays(&x, "h2 q9 k8 d4 f32", NULL, 205);
    CHECK_OK(agc_arrays_run(&x, AG_MAP_FORWARD));
    const ag_merge_args args = {.struct_size = sizeof args,
                                .o1 = x.args.o,
                                .lse1 = x.args.lse,
                                .o2 = x.args.d_o,
                                .lse2 = x.args.d_lse,
                                .o = x.args.to,
                                .lse = x.args.mu};
    ag_exec exec = watched(&w, 1);
    CHECK_STATUS(ag_merge(x.plan, &args, &exec), AG_CANCELLED);
    CHECK_INT(w.calls, 1);
    exec = watched(&w, 0);
    CHECK_OK(ag_merge(x.plan, &args, &exec));
    CHECK(w.calls >= 1, "a merge did not poll");
    agc_arrays_destroy(&x);
}

/* ---- The fields ---------------------------------------------------------------------------------- */

static int some_stream;

static void stream_is_refused(ag_backend backend)
{
    struct arrays x;
    ag_options options = with_threads(1);
    ag_exec exec = AG_EXEC_INIT;
    options.backend = backend;
    exec.stream = &some_stream;
    make_arrays(&x, "q9 k8 d4 f32", &options, 207);
    CHECK_OK(agc_arrays_run_all(&x));
    for (int map = 0; map < MAPS; map++) {
        CHECK_STATUS(call_map(map, x.plan, &x.args, &exec, x.workspace, x.workspace_bytes), AG_UNSUPPORTED);
        CHECK(strcmp(ag_last_field(), "exec.stream") == 0, "the message '%s' is not about exec.stream",
              ag_last_message());
    }
    agc_arrays_destroy(&x);
}

/* What lies after the struct of an older caller is not read. */
static void older_callers_do_not_poll(void)
{
    struct arrays x;
    watch w;
    ag_exec exec = watched(&w, 1);
    exec.struct_size = offsetof(ag_exec, poll);
    exec.stream = &some_stream;
    make_arrays(&x, "q9 k8 d4 f32", NULL, 209);
    CHECK_OK(ag_forward(x.plan, &x.args, &exec, x.workspace, x.workspace_bytes));
    CHECK_INT(w.calls, 0);
    agc_arrays_destroy(&x);
}

int main(void)
{
    long_maps_poll();
    for (int n = 0; n < 4; n++) {
        waiting_callers_poll(n % 2, n / 2);
    }
    long_layers_poll();
    cancelled_calls();
    merges();
    stream_is_refused(AG_BACKEND_CPU);
    stream_is_refused(AG_BACKEND_REFERENCE);
    older_callers_do_not_poll();
    return test_summary();
}
