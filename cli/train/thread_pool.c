/* The pool of thread_pool.h: threads that sleep until there is a parallel loop, then take its indices one by one. */
#define _XOPEN_SOURCE 700
#include "thread_pool.h"

#include "alloc.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>

struct thread_pool {
    pthread_mutex_t mutex;
    pthread_cond_t work, done;
    pthread_t *threads;
    int64_t n_threads;
    bool leaving;

    ag_task task;
    void *arg;
    int64_t n, next, finished; /* of the current loop; n = 0: there is none */
};

/* Runs one index, if there is one left. The mutex must be held; it is released while the task runs. */
static bool run_one_index(struct thread_pool *pool)
{
    if (pool->next == pool->n) {
        return false;
    }
    const int64_t index = pool->next++;
    pthread_mutex_unlock(&pool->mutex);
    pool->task(pool->arg, index);
    pthread_mutex_lock(&pool->mutex);
    if (++pool->finished == pool->n) {
        pthread_cond_signal(&pool->done);
    }
    return true;
}

static void *run_worker(void *arg)
{
    struct thread_pool *pool = arg;
    pthread_mutex_lock(&pool->mutex);
    while (!pool->leaving) {
        if (!run_one_index(pool)) {
            pthread_cond_wait(&pool->work, &pool->mutex);
        }
    }
    pthread_mutex_unlock(&pool->mutex);
    return NULL;
}

struct thread_pool *pool_create(int64_t threads)
{
    struct thread_pool *pool = alloc_or_exit("the thread pool", 1, sizeof *pool);
    *pool = (struct thread_pool){.n_threads = 0};
    pool->threads = alloc_or_exit("the thread pool", threads, sizeof *pool->threads);
    pthread_mutex_init(&pool->mutex, NULL);
    pthread_cond_init(&pool->work, NULL);
    pthread_cond_init(&pool->done, NULL);
    while (pool->n_threads < threads - 1 &&
           pthread_create(&pool->threads[pool->n_threads], NULL, run_worker, pool) == 0) {
        pool->n_threads++;
    }
    return pool;
}

void pool_destroy(struct thread_pool *pool)
{
    if (pool == NULL) {
        return;
    }
    pthread_mutex_lock(&pool->mutex);
    pool->leaving = true;
    pthread_cond_broadcast(&pool->work);
    pthread_mutex_unlock(&pool->mutex);
    for (int64_t t = 0; t < pool->n_threads; t++) {
        pthread_join(pool->threads[t], NULL);
    }
    pthread_cond_destroy(&pool->done);
    pthread_cond_destroy(&pool->work);
    pthread_mutex_destroy(&pool->mutex);
    free(pool->threads);
    free(pool);
}

void pool_run(void *ctx, int64_t n, ag_task task, void *arg)
{
    struct thread_pool *pool = ctx;
    if (n <= 1 || pool->n_threads == 0) {
        for (int64_t index = 0; index < n; index++) {
            task(arg, index);
        }
        return;
    }
    pthread_mutex_lock(&pool->mutex);
    pool->task = task;
    pool->arg = arg;
    pool->n = n;
    pool->next = pool->finished = 0;
    pthread_cond_broadcast(&pool->work);
    while (run_one_index(pool)) {
    }
    while (pool->finished < pool->n) {
        pthread_cond_wait(&pool->done, &pool->mutex);
    }
    pool->n = pool->next = 0;
    pthread_mutex_unlock(&pool->mutex);
}
