/* What the threads of one map do: attngrad_busy PROBLEM MAP THREADS [CALLS]. A parallel loop of its own times the
 * tasks, and the linker puts a function that measures time around agi_wait_a_turn, by which a thread waits for what
 * another one computes. The rest of a task is work; in the rest of the loop the thread has nothing to do. Not part of
 * the command. */
#define _POSIX_C_SOURCE 200809L /* clock_gettime */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bench_time.h"

#include <attngrad_check.h>

enum { MAX_THREADS = 256 };

/* Seconds that a thread of the loop has been in its tasks, and has waited there. */
struct record {
    double in_task, waiting;
};

struct loop {
    int64_t threads;
    double seconds; /* of all loops */
    struct record records[MAX_THREADS];
};

static double now_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* ---- Waiting ---- */

static _Thread_local struct record *mine;

void __real_agi_wait_a_turn(int64_t n);
void __wrap_agi_wait_a_turn(int64_t n);

void __wrap_agi_wait_a_turn(int64_t n)
{
    const double begin = now_seconds();
    __real_agi_wait_a_turn(n);
    if (mine != NULL) {
        mine->waiting += now_seconds() - begin;
    }
}

/* ---- The parallel loop: a thread per task ---- */

struct task {
    ag_task run;
    void *arg;
    int64_t index;
    struct record *record;
};

static void *run_task(void *arg)
{
    const struct task *t = arg;
    const double begin = now_seconds();
    mine = t->record;
    t->run(t->arg, t->index);
    mine = NULL;
    t->record->in_task += now_seconds() - begin;
    return NULL;
}

static void run_loop(void *ctx, int64_t n_tasks, ag_task run, void *arg)
{
    struct loop *loop = ctx;
    struct task tasks[MAX_THREADS];
    pthread_t threads[MAX_THREADS];
    const double begin = now_seconds();
    tasks[0] = (struct task){run, arg, 0, &loop->records[0]};
    for (int64_t n = 1; n < n_tasks; n++) {
        tasks[n] = (struct task){run, arg, n, &loop->records[n]};
        if (pthread_create(&threads[n], NULL, run_task, &tasks[n]) != 0) {
            fprintf(stderr, "attngrad_busy: no thread number %lld\n", (long long)n);
            exit(EXIT_FAILURE);
        }
    }
    run_task(&tasks[0]);
    for (int64_t n = 1; n < n_tasks; n++) {
        pthread_join(threads[n], NULL);
    }
    loop->seconds += now_seconds() - begin;
}

/* ---- The program ---- */

static void print_shares(const char *label, double busy, double waiting, double seconds)
{
    printf("%-7s %6.1f %9.1f %6.1f\n", label, 100 * busy / seconds, 100 * waiting / seconds,
           100 * (1 - (busy + waiting) / seconds));
}

static void print_loop(const struct loop *loop, int64_t calls)
{
    double busy = 0, waiting = 0;
    printf("%.2f ms per call in parallel loops; shares of it in percent\n",
           1e3 * loop->seconds / (double)calls);
    printf("%-7s %6s %9s %6s\n", "thread", "busy", "waiting", "idle");
    for (int64_t n = 0; n < loop->threads; n++) {
        const struct record *r = &loop->records[n];
        char label[24];
        snprintf(label, sizeof label, "%lld", (long long)n);
        print_shares(label, r->in_task - r->waiting, r->waiting, loop->seconds);
        busy += r->in_task - r->waiting;
        waiting += r->waiting;
    }
    print_shares("all", busy, waiting, loop->seconds * (double)loop->threads);
}

static ag_status run_calls(struct arrays *x, const struct bench_map *map, struct loop *loop, int64_t calls)
{
    ag_exec exec = AG_EXEC_INIT;
    struct bench b;
    ag_status status = bench_begin(&b, x, map->bit, false);
    exec.run = run_loop;
    exec.ctx = loop;
    for (int64_t n = 0; n <= calls && status == AG_OK; n++) {
        status = map->run(x->plan, &x->args, &exec, x->workspace, x->workspace_bytes);
        if (n == 0) { /* the first call touches the memory */
            *loop = (struct loop){.threads = loop->threads};
        }
    }
    return status;
}

static const struct bench_map *find_map(const char *name)
{
    for (int n = 0; n < BENCH_MAPS; n++) {
        if (strcmp(name, bench_maps[n].name) == 0) {
            return &bench_maps[n];
        }
    }
    return NULL;
}

static int measure(const char *text, const struct bench_map *map, int64_t threads, int64_t calls)
{
    ag_problem problem = AG_PROBLEM_INIT;
    ag_options options = AG_OPTIONS_INIT;
    struct loop loop = {.threads = threads};
    struct arrays x;
    options.backend = AG_BACKEND_CPU;
    options.threads = (int32_t)threads;
    if (ag_problem_parse(text, &problem) != AG_OK || agc_arrays_create(&x, &problem, &options, 1) != AG_OK) {
        fprintf(stderr, "attngrad_busy: %s\n", ag_check_last_message());
        return EXIT_FAILURE;
    }
    const ag_status status = run_calls(&x, map, &loop, calls);
    printf("%s %s, %s\n", text, map->name, ag_plan_describe(x.plan));
    agc_arrays_destroy(&x);
    if (status != AG_OK || !(loop.seconds > 0)) {
        fprintf(stderr, "attngrad_busy: %s\n",
                status == AG_OK ? "no parallel loop was run" : ag_last_message());
        return EXIT_FAILURE;
    }
    print_loop(&loop, calls);
    return EXIT_SUCCESS;
}

int main(int argc, char **argv)
{
    const struct bench_map *map = argc >= 4 ? find_map(argv[2]) : NULL;
    const long threads = argc >= 4 ? strtol(argv[3], NULL, 10) : 0,
               calls = argc > 4 ? strtol(argv[4], NULL, 10) : 5;
    if (map == NULL || argc > 5 || threads < 1 || threads > MAX_THREADS || calls < 1) {
        fprintf(stderr, "usage: attngrad_busy PROBLEM forward|vjp|jvp|vjp_jvp|jvp_jvp THREADS [CALLS]\n");
        return 2;
    }
    return measure(argv[1], map, threads, calls);
}
