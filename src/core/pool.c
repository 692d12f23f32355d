/* The thread pool. One mutex guards everything: a task is a share of a whole map, so the cost of the mutex is
 * negligible, and nobody holds it for longer than it takes to sleep and wake up, so a thread that needs it spins for a
 * moment first. A job lives on the stack of the call that submitted it; every free thread takes the next task of the
 * first job that has one left. The caller works too, so a job ends even if no thread could be started, and calls from
 * within tasks cannot deadlock.  Only as many threads are woken as there are tasks for. The caller wakes two at most,
 * and each thread that takes a task two more, so that a short call does not spend its time on waking others.  A thread
 * that has just worked spins for a short while before it sleeps, as the next step of a map, or the next call, often
 * follows at once and waking a thread takes longer than a small step. It does so only while callers, busy and spinning
 * threads together are no more than the CPUs. One that found nothing to do sleeps at once.  If several threads of the
 * program call at the same time, each works on its own job, and that many fewer of the pool's threads take tasks: one
 * takes a task only while callers and busy threads together are no more than the pool has threads.  A generation is one
 * set of threads: threads of an older generation exit. fork() runs with the mutex held, and the child begins a new
 * generation with no threads and no jobs; its first call starts new threads. */
#define _POSIX_C_SOURCE 200809L
#include "core/pool.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <time.h>

#include "core/pause.h"

#include "core/cpu_info.h"

/* How long a thread spins for work, or a caller for the end of its job, before it sleeps. */
#define SPIN_NS 50000

enum {
    LOCK_SPINS = 100, /* tries to lock the mutex before the thread sleeps on it */
    WAKE_WIDTH = 2    /* max threads that one thread wakes */
};

typedef struct job {
    int64_t n_tasks, next_task;
    _Atomic int64_t done;
    ag_task task;
    void *arg;
    int64_t to_wake; /* threads to wake for it, by those who take its tasks */
    struct job *next;
} job;

static struct {
    pthread_mutex_t mutex;
    pthread_cond_t work; /* a job was added, or the generation is over */
    pthread_cond_t done; /* the last task of a job ended */
    job *jobs;
    _Atomic uint64_t epoch;  /* number of times that there was new work */
    int cpus;                /* that this process may use */
    int spinners;            /* threads that spin for work */
    int sleepers, signalled; /* threads that wait for `work`, and signals that have not woken one yet */
    int callers, busy;       /* calls in progress; pool threads that run a task */
    uintptr_t generation;
    int64_t plans;
    int n_threads;
    pthread_t threads[AGI_MAX_THREADS - 1];
} pool = {
    .mutex = PTHREAD_MUTEX_INITIALIZER, .work = PTHREAD_COND_INITIALIZER, .done = PTHREAD_COND_INITIALIZER};

static int64_t nanoseconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void lock_pool(void)
{
    for (int n = 0; n < LOCK_SPINS; n++) {
        if (pthread_mutex_trylock(&pool.mutex) == 0) {
            return;
        }
        agi_pause();
    }
    pthread_mutex_lock(&pool.mutex);
}

static void unlock_pool(void)
{
    pthread_mutex_unlock(&pool.mutex);
}

/* The first job with a task left. NULL if there is none, or if callers and busy threads have reached their limit. */
static job *job_for_a_thread(void)
{
    job *j = pool.callers + pool.busy <= pool.n_threads ? pool.jobs : NULL;
    while (j != NULL && j->next_task == j->n_tasks) {
        j = j->next;
    }
    return j;
}

/* ---- Waking threads ---- */

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Announces work for `wanted` threads. Those that spin notice it by themselves; returns how many more to wake. The
 * mutex must be held. */
static int64_t announce_work(int64_t wanted)
{
    const int64_t sleeping = pool.sleepers - pool.signalled, missing = wanted - pool.spinners;
    pool.epoch++;
    return missing > 0 ? smaller(missing, sleeping) : 0;
}

/* Reserves the signals that this thread may send of `*wanted`; returns their number. The mutex must be held. */
static int64_t reserve_signals(int64_t *wanted)
{
    const int64_t n = smaller(smaller(*wanted, WAKE_WIDTH), pool.sleepers - pool.signalled);
    *wanted -= n;
    pool.signalled += (int)n;
    return n;
}

static void send_signals(int64_t n)
{
    for (; n > 0; n--) {
        pthread_cond_signal(&pool.work);
    }
}

/* ---- Tasks ---- */

/* The mutex must be held; it is released while the task runs. */
static void run_one_task(job *j)
{
    const int64_t index = j->next_task++, n_signals = reserve_signals(&j->to_wake);
    unlock_pool();
    send_signals(n_signals);
    j->task(j->arg, index);
    lock_pool();
    if (++j->done == j->n_tasks) {
        pthread_cond_broadcast(&pool.done);
    }
}

/* Spins until there is new work. Returns false if there is none, or if as many threads are awake as there are CPUs. The
 * mutex must be held; it is released meanwhile. */
static bool spin_for_work(void)
{
    const uint64_t old = pool.epoch;
    if (pool.callers + pool.busy + pool.spinners >= pool.cpus) {
        return false;
    }
    pool.spinners++;
    unlock_pool();
    const int64_t end = nanoseconds() + SPIN_NS;
    while (pool.epoch == old && nanoseconds() < end) {
        agi_pause();
    }
    lock_pool();
    pool.spinners--;
    return pool.epoch != old;
}

/* The mutex must be held; it is released meanwhile. */
static void sleep_until_work(void)
{
    pool.sleepers++;
    pthread_cond_wait(&pool.work, &pool.mutex);
    pool.sleepers--;
    if (pool.signalled > 0) {
        pool.signalled--;
    }
}

/* ---- The calling thread ---- */

/* Sleeps until a job of somebody has ended or it is time to poll, then polls. The mutex must be held; it is released
 * meanwhile. */
static void sleep_and_poll(agi_exec *exec)
{
    const int64_t end = nanoseconds() + AGI_POLL_NS;
    const struct timespec until = {(time_t)(end / 1000000000), (long)(end % 1000000000)};
    pthread_cond_timedwait(&pool.done, &pool.mutex, &until);
    unlock_pool();
    agi_cancelled(exec);
    lock_pool();
}

/* The mutex must be held; it is released meanwhile. */
static void wait_for_job(const job *j, agi_exec *exec)
{
    const bool polls = exec != NULL && exec->given.poll != NULL;
    if (j->done < j->n_tasks && pool.callers + pool.busy + pool.spinners <= pool.cpus) {
        unlock_pool();
        const int64_t end = nanoseconds() + SPIN_NS;
        while (j->done < j->n_tasks && nanoseconds() < end) {
            agi_pause();
        }
        lock_pool();
    }
    while (j->done < j->n_tasks) {
        if (polls) {
            sleep_and_poll(exec);
        } else {
            pthread_cond_wait(&pool.done, &pool.mutex);
        }
    }
}

/* ---- Threads ---- */

/* The thread gets its generation as an argument: by the time it first runs, that generation may be over. */
static void *worker(void *generation)
{
    bool worked = false; /* since it last spun or slept */
    lock_pool();
    while ((uintptr_t)generation == pool.generation) {
        job *j = job_for_a_thread();
        if (j != NULL) {
            pool.busy++;
            run_one_task(j);
            pool.busy--;
            worked = true;
        } else {
            if (!worked || !spin_for_work()) {
                sleep_until_work();
            }
            worked = false;
        }
    }
    unlock_pool();
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

/* Conditions that measure time by the clock of nanoseconds(). */
static void init_conditions(void)
{
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&pool.work, &attributes);
    pthread_cond_init(&pool.done, &attributes);
    pthread_condattr_destroy(&attributes);
}

static void before_fork(void)
{
    lock_pool();
}

static void after_fork_in_parent(void)
{
    unlock_pool();
}

static void after_fork_in_child(void)
{
    pool.generation++;
    pool.n_threads = 0;
    pool.jobs = NULL;
    pool.spinners = pool.sleepers = pool.signalled = pool.callers = pool.busy = 0;
    init_conditions();
    unlock_pool();
}

static void begin(void)
{
    init_conditions();
    pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
}

void agi_pool_acquire(int threads)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, begin);
    lock_pool();
    pool.plans++;
    pool.cpus = agi_usable_cpus();
    start_threads(threads - 1);
    unlock_pool();
}

void agi_pool_release(void)
{
    pthread_t leaving[AGI_MAX_THREADS - 1];
    int n_leaving = 0;
    lock_pool();
    if (--pool.plans == 0) {
        for (; n_leaving < pool.n_threads; n_leaving++) {
            leaving[n_leaving] = pool.threads[n_leaving];
        }
        pool.n_threads = 0;
        pool.generation++;
        pool.epoch++;
        pthread_cond_broadcast(&pool.work);
    }
    unlock_pool();
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

/* Another caller has left: one more pool thread may take tasks of those that remain. The mutex must be held. */
static void help_other_jobs(void)
{
    int64_t to_wake = pool.jobs == NULL ? 0 : announce_work(1);
    send_signals(reserve_signals(&to_wake));
}

void agi_pool_run(int64_t n_tasks, ag_task task, void *arg, agi_exec *exec)
{
    if (n_tasks <= 1) {
        if (n_tasks == 1) {
            task(arg, 0);
        }
        return;
    }
    job j = {n_tasks, 0, 0, task, arg, 0, NULL};
    lock_pool();
    start_threads(n_tasks - 1);
    pool.callers++;
    append(&j);
    j.to_wake = announce_work(n_tasks - 1);
    while (j.next_task < j.n_tasks) {
        run_one_task(&j);
    }
    wait_for_job(&j, exec);
    unlink_job(&j);
    pool.callers--;
    help_other_jobs();
    unlock_pool();
}
