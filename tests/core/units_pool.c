/* The thread pool: if several threads call at once, fewer of its own threads run; a caller that waits polls; every
 * task of many short jobs runs once. May include private headers. */
#define _POSIX_C_SOURCE 200809L
#include "test.h"

#include "core/backend.h"
#include "core/pool.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <time.h>

enum { CALLERS = 2 };

static void wait_a_millisecond(void)
{
    const struct timespec step = {0, 1000000};
    nanosleep(&step, NULL);
}

/* Waits for ten seconds at most. */
static bool becomes_true(const atomic_bool *flag)
{
    for (int n = 0; n < 10000 && !*flag; n++) {
        wait_a_millisecond();
    }
    return *flag;
}

/* ---- A caller of two tasks, each of which waits until it may end ----------------------------------- */

typedef struct {
    pthread_t thread;
    atomic_bool begun[2], may_end[2];
} caller;

static void two_tasks(void *arg, int64_t index)
{
    caller *c = arg;
    c->begun[index] = true;
    CHECK(becomes_true(&c->may_end[index]), "task %d was never allowed to end", (int)index);
}

static void *call(void *arg)
{
    agi_pool_run(2, two_tasks, arg, NULL);
    return NULL;
}

static void start(caller *c)
{
    test_need(pthread_create(&c->thread, NULL, call, c) == 0, "a thread");
}

/* The pool's one thread is in a task of the first caller. The others call, and stay in their first tasks; the thread
 * comes free, and must leave their second ones alone as long as all three are at work. */
static void threads_leave_room_for_callers(void)
{
    static caller first, others[CALLERS];
    agi_pool_acquire(2);
    start(&first);
    CHECK(becomes_true(&first.begun[0]) && becomes_true(&first.begun[1]), "the pool's thread took no task");
    for (int c = 0; c < CALLERS; c++) {
        start(&others[c]);
        CHECK(becomes_true(&others[c].begun[0]), "caller %d did not begin", c);
    }
    first.may_end[1] = true;
    for (int n = 0; n < 50; n++) {
        wait_a_millisecond();
    }
    for (int c = 0; c < CALLERS; c++) {
        CHECK(!others[c].begun[1],
              "the pool's thread took caller %d's task although three callers were at work", c);
    }

    /* The first and one more leave: now the thread helps the last. */
    first.may_end[0] = others[0].may_end[0] = others[0].may_end[1] = true;
    pthread_join(first.thread, NULL);
    pthread_join(others[0].thread, NULL);
    CHECK(becomes_true(&others[1].begun[1]), "nobody helped the last caller");
    others[1].may_end[0] = others[1].may_end[1] = true;
    pthread_join(others[1].thread, NULL);
    agi_pool_release();
}

/* ---- Many short jobs ------------------------------------------------------------------------------ */

enum { TASKS = 7, JOBS = 3000, SHORT_CALLERS = 3 };

static void count_task(void *arg, int64_t index)
{
    atomic_int *runs = arg;
    runs[index]++;
}

/* Between some jobs the pool's threads fall asleep, between others they still spin. */
static void *call_often(void *arg)
{
    (void)arg;
    for (int n = 0; n < test_count(JOBS); n++) {
        atomic_int runs[TASKS] = {0};
        agi_pool_run(TASKS, count_task, runs, NULL);
        for (int t = 0; t < TASKS; t++) {
            CHECK_INT(runs[t], 1);
        }
        if (n % 32 == 0) {
            wait_a_millisecond();
        }
    }
    return NULL;
}

static void every_task_runs_once(void)
{
    pthread_t threads[SHORT_CALLERS];
    agi_pool_acquire(TASKS);
    call_often(NULL);
    for (int n = 0; n < SHORT_CALLERS; n++) {
        test_need(pthread_create(&threads[n], NULL, call_often, NULL) == 0, "a thread");
    }
    for (int n = 0; n < SHORT_CALLERS; n++) {
        pthread_join(threads[n], NULL);
    }
    agi_pool_release();
}

/* ---- A caller that waits for the other task, which ends after some polls ---------------------------- */

enum { POLLS = 5 };

typedef struct {
    pthread_t caller;
    atomic_bool other_began;
    atomic_int polls;
} waiting;

static int32_t count_poll(void *ctx)
{
    waiting *w = ctx;
    CHECK(pthread_equal(pthread_self(), w->caller), "a poll on another thread");
    w->polls++;
    return 0;
}

/* The pool's thread waits for polls; the caller's task ends as soon as the other one has begun. */
static void wait_or_poll(void *arg, int64_t index)
{
    waiting *w = arg;
    (void)index;
    if (pthread_equal(pthread_self(), w->caller)) {
        CHECK(becomes_true(&w->other_began), "the pool's thread took no task");
        return;
    }
    w->other_began = true;
    for (int n = 0; n < 10000 && w->polls < POLLS; n++) {
        wait_a_millisecond();
    }
}

static void a_waiting_caller_polls(void)
{
    static waiting w;
    const ag_plan plan = {.backend = agi_specification, .threads = 2};
    agi_exec exec;
    ag_exec given = AG_EXEC_INIT;
    w.caller = pthread_self();
    given.ctx = &w;
    given.poll = count_poll;
    CHECK_OK(agi_exec_begin(&exec, &plan, &given));
    agi_pool_acquire(2);
    agi_pool_run(2, wait_or_poll, &w, &exec);
    agi_pool_release();
    CHECK(w.polls >= POLLS, "%d polls", (int)w.polls);
}

int main(void)
{
    threads_leave_room_for_callers();
    a_waiting_caller_polls();
    every_task_runs_once();
    return test_summary();
}
