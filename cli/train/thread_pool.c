/* The crew of model_threads.h: threads that sleep until there is a loop, and then draw its indices. */
#define _XOPEN_SOURCE 700
#include "thread_pool.h"

#include "check/arrays.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>

struct crew {
    pthread_mutex_t mutex;
    pthread_cond_t work, done;
    pthread_t *threads;
    int64_t n_threads;
    bool leaving;

    ag_task task;
    void *arg;
    int64_t n, next, finished; /* of the loop that runs; n = 0: none */
};

/* Does one index, if there is one; the mutex is held at the beginning and at the end. */
static bool work_once(struct crew *crew)
{
    if (crew->next == crew->n) {
        return false;
    }
    const int64_t index = crew->next++;
    pthread_mutex_unlock(&crew->mutex);
    crew->task(crew->arg, index);
    pthread_mutex_lock(&crew->mutex);
    if (++crew->finished == crew->n) {
        pthread_cond_signal(&crew->done);
    }
    return true;
}

static void *live(void *arg)
{
    struct crew *crew = arg;
    pthread_mutex_lock(&crew->mutex);
    while (!crew->leaving) {
        if (!work_once(crew)) {
            pthread_cond_wait(&crew->work, &crew->mutex);
        }
    }
    pthread_mutex_unlock(&crew->mutex);
    return NULL;
}

struct crew *crew_create(int64_t threads)
{
    struct crew *crew = arrays_alloc(1, sizeof *crew);
    *crew = (struct crew){.n_threads = 0};
    crew->threads = arrays_alloc(threads, sizeof *crew->threads);
    pthread_mutex_init(&crew->mutex, NULL);
    pthread_cond_init(&crew->work, NULL);
    pthread_cond_init(&crew->done, NULL);
    while (crew->n_threads < threads - 1 &&
           pthread_create(&crew->threads[crew->n_threads], NULL, live, crew) == 0) {
        crew->n_threads++;
    }
    return crew;
}

void crew_destroy(struct crew *crew)
{
    if (crew == NULL) {
        return;
    }
    pthread_mutex_lock(&crew->mutex);
    crew->leaving = true;
    pthread_cond_broadcast(&crew->work);
    pthread_mutex_unlock(&crew->mutex);
    for (int64_t t = 0; t < crew->n_threads; t++) {
        pthread_join(crew->threads[t], NULL);
    }
    pthread_cond_destroy(&crew->done);
    pthread_cond_destroy(&crew->work);
    pthread_mutex_destroy(&crew->mutex);
    free(crew->threads);
    free(crew);
}

void crew_run(void *ctx, int64_t n, ag_task task, void *arg)
{
    struct crew *crew = ctx;
    if (n <= 1 || crew->n_threads == 0) {
        for (int64_t index = 0; index < n; index++) {
            task(arg, index);
        }
        return;
    }
    pthread_mutex_lock(&crew->mutex);
    crew->task = task;
    crew->arg = arg;
    crew->n = n;
    crew->next = crew->finished = 0;
    pthread_cond_broadcast(&crew->work);
    while (work_once(crew)) {
    }
    while (crew->finished < crew->n) {
        pthread_cond_wait(&crew->done, &crew->mutex);
    }
    crew->n = crew->next = 0;
    pthread_mutex_unlock(&crew->mutex);
}
