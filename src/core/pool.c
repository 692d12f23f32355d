/* The thread pool. One mutex guards everything: a task is a share of a whole map, so the cost of the mutex is
 * negligible. A job lives on the stack of the call that submitted it; every free thread takes the next task of the
 * first job that has one left. The caller works too, so a job ends even if no thread could be started, and
 * calls from within tasks cannot deadlock.
 *
 * A thread without work spins for a short while before it sleeps, as the next step of a map often follows at
 * once and waking a thread costs more than a small step. At most (number of CPUs - 1) of the pool's threads spin.
 *
 * If several threads of the program call at the same time, each works on its own job, and that many fewer of
 * the pool's threads take tasks: one takes a task only while callers and busy threads together are no more than the
 * pool has threads.
 *
 * A generation is one set of threads: threads of an older generation exit. fork() runs with the mutex held, and
 * the child begins a new generation with no threads and no jobs; its first call starts new threads. */
#define _POSIX_C_SOURCE 200809L
#include "core/pool.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <time.h>

#include "core/cpu_info.h"

/* How long a thread spins for work, or a caller for the end of its job, before it sleeps. */
#define SPIN_NS 30000

typedef struct job {
    int64_t n_tasks, next_task;
    _Atomic int64_t done;
    ag_task task;
    void *arg;
    struct job *next;
} job;

static struct {
    pthread_mutex_t mutex;
    pthread_cond_t work; /* a job was added, or the generation is over */
    pthread_cond_t done; /* the last task of a job ended */
    job *jobs;
    _Atomic uint64_t epoch;     /* number of signals of `work` */
    int spinners, max_spinners; /* threads that spin for work now, and their limit */
    int callers, busy;          /* calls in progress; pool threads that run a task */
    uintptr_t generation;
    int64_t plans;
    int n_threads;
    pthread_t threads[AGI_MAX_THREADS - 1];
} pool = {
    .mutex = PTHREAD_MUTEX_INITIALIZER, .work = PTHREAD_COND_INITIALIZER, .done = PTHREAD_COND_INITIALIZER};

/* The first job with a task left. NULL if there is none, or if callers and busy threads have reached their limit. */
static job *job_for_a_thread(void)
{
    job *j = pool.callers + pool.busy <= pool.n_threads ? pool.jobs : NULL;
    while (j != NULL && j->next_task == j->n_tasks) {
        j = j->next;
    }
    return j;
}

/* The mutex must be held. */
static void wake_threads(void)
{
    pool.epoch++;
    pthread_cond_broadcast(&pool.work);
}

/* The mutex must be held; it is released while the task runs. */
static void run_one_task(job *j)
{
    const int64_t index = j->next_task++;
    pthread_mutex_unlock(&pool.mutex);
    j->task(j->arg, index);
    pthread_mutex_lock(&pool.mutex);
    if (++j->done == j->n_tasks) {
        pthread_cond_broadcast(&pool.done);
    }
}

static int64_t nanoseconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void pause_briefly(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Spins until the epoch changes. Returns false if it did not change, or if max_spinners threads spin already. The
 * mutex must be held; it is released meanwhile. */
static bool spin_for_work(void)
{
    const uint64_t old = pool.epoch;
    if (pool.spinners >= pool.max_spinners) {
        return false;
    }
    pool.spinners++;
    pthread_mutex_unlock(&pool.mutex);
    const int64_t end = nanoseconds() + SPIN_NS;
    while (pool.epoch == old && nanoseconds() < end) {
        pause_briefly();
    }
    pthread_mutex_lock(&pool.mutex);
    pool.spinners--;
    return pool.epoch != old;
}

/* The mutex must be held; it is released meanwhile. */
static void wait_for_job(const job *j)
{
    if (j->done < j->n_tasks && pool.max_spinners > 0) {
        pthread_mutex_unlock(&pool.mutex);
        const int64_t end = nanoseconds() + SPIN_NS;
        while (j->done < j->n_tasks && nanoseconds() < end) {
            pause_briefly();
        }
        pthread_mutex_lock(&pool.mutex);
    }
    while (j->done < j->n_tasks) {
        pthread_cond_wait(&pool.done, &pool.mutex);
    }
}

/* The thread gets its generation as an argument: by the time it first runs, that generation may be over. */
static void *worker(void *generation)
{
    pthread_mutex_lock(&pool.mutex);
    while ((uintptr_t)generation == pool.generation) {
        job *j = job_for_a_thread();
        if (j != NULL) {
            pool.busy++;
            run_one_task(j);
            pool.busy--;
        } else if (!spin_for_work()) {
            pthread_cond_wait(&pool.work, &pool.mutex);
        }
    }
    pthread_mutex_unlock(&pool.mutex);
    return NULL;
}

/* The mutex must be held. */
static void start_threads(int64_t wanted)
{
    sigset_t all_signals, old_mask;
    void *generation = (void *)pool.generation;
    if (wanted > AGI_MAX_THREADS - 1) {
        wanted = AGI_MAX_THREADS - 1;
    }
    if (pool.n_threads >= wanted) {
        return;
    }
    sigfillset(&all_signals); /* signals are left to the program's own threads */
    pthread_sigmask(SIG_SETMASK, &all_signals, &old_mask);
    while (pool.n_threads < wanted &&
           pthread_create(&pool.threads[pool.n_threads], NULL, worker, generation) == 0) {
        pool.n_threads++;
    }
    pthread_sigmask(SIG_SETMASK, &old_mask, NULL);
}

static void before_fork(void)
{
    pthread_mutex_lock(&pool.mutex);
}

static void after_fork_in_parent(void)
{
    pthread_mutex_unlock(&pool.mutex);
}

static void after_fork_in_child(void)
{
    pool.generation++;
    pool.n_threads = 0;
    pool.jobs = NULL;
    pool.spinners = pool.callers = pool.busy = 0;
    pthread_cond_init(&pool.work, NULL);
    pthread_cond_init(&pool.done, NULL);
    pthread_mutex_unlock(&pool.mutex);
}

static void register_fork_handlers(void)
{
    pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
}

void agi_pool_acquire(int threads)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, register_fork_handlers);
    pthread_mutex_lock(&pool.mutex);
    pool.plans++;
    pool.max_spinners = agi_usable_cpus() - 1;
    start_threads(threads - 1);
    pthread_mutex_unlock(&pool.mutex);
}

void agi_pool_release(void)
{
    pthread_t leaving[AGI_MAX_THREADS - 1];
    int n_leaving = 0;
    pthread_mutex_lock(&pool.mutex);
    if (--pool.plans == 0) {
        for (; n_leaving < pool.n_threads; n_leaving++) {
            leaving[n_leaving] = pool.threads[n_leaving];
        }
        pool.n_threads = 0;
        pool.generation++;
        wake_threads();
    }
    pthread_mutex_unlock(&pool.mutex);
    while (n_leaving > 0) {
        pthread_join(leaving[--n_leaving], NULL);
    }
}

static void append(job *j)
{
    job **end = &pool.jobs;
    while (*end != NULL) {
        end = &(*end)->next;
    }
    *end = j;
}

static void unlink_job(job *j)
{
    job **at = &pool.jobs;
    while (*at != j) {
        at = &(*at)->next;
    }
    *at = j->next;
}

void agi_pool_run(int64_t n_tasks, ag_task task, void *arg)
{
    if (n_tasks == 1) {
        task(arg, 0);
        return;
    }
    job j = {n_tasks, 0, 0, task, arg, NULL};
    pthread_mutex_lock(&pool.mutex);
    start_threads(n_tasks - 1);
    pool.callers++;
    append(&j);
    wake_threads();
    while (j.next_task < j.n_tasks) {
        run_one_task(&j);
    }
    wait_for_job(&j);
    unlink_job(&j);
    pool.callers--;
    if (pool.jobs != NULL) { /* one more pool thread may now take tasks of the other callers */
        wake_threads();
    }
    pthread_mutex_unlock(&pool.mutex);
}
