/* The parallel loop on XLA's own threads. The handler itself may run on one of them, and so may other handlers: nobody
 * may wait for a task that has not begun. So all threads draw indices from one counter, the caller first, and the
 * caller waits only for what others have begun. */
#include "xla.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

typedef struct {
    atomic_llong next, done;
    atomic_int holders; /* the last one frees it: a task that XLA starts late finds nothing to do */
    int64_t n;
    ag_task task;
    void *arg;
    pthread_mutex_t lock;
    pthread_cond_t all_done;
} loop;

static void draw(loop *l)
{
    for (int64_t i = atomic_fetch_add(&l->next, 1); i < l->n; i = atomic_fetch_add(&l->next, 1)) {
        l->task(l->arg, i);
        if (atomic_fetch_add(&l->done, 1) + 1 == l->n) {
            pthread_mutex_lock(&l->lock);
            pthread_cond_broadcast(&l->all_done);
            pthread_mutex_unlock(&l->lock);
        }
    }
}

static void let_go(loop *l)
{
    if (atomic_fetch_sub(&l->holders, 1) == 1) {
        pthread_cond_destroy(&l->all_done);
        pthread_mutex_destroy(&l->lock);
        free(l);
    }
}

static void help(void *data)
{
    draw(data);
    let_go(data);
}

/* Returns 0 if XLA has no threads for it. */
static int schedule(const xf_frame *frame, loop *l)
{
    xf_schedule_args args = {sizeof args, NULL, frame->ctx, help, l};
    xf_error *error = frame->api->schedule(&args);
    if (error != NULL) {
        xf_error_destroy_args destroy = {sizeof destroy, NULL, error};
        frame->api->error_destroy(&destroy);
    }
    return error == NULL;
}

static loop *new_loop(int64_t n, ag_task task, void *arg)
{
    loop *l = malloc(sizeof *l);
    if (l != NULL) {
        atomic_init(&l->next, 0);
        atomic_init(&l->done, 0);
        atomic_init(&l->holders, 1);
        l->n = n;
        l->task = task;
        l->arg = arg;
        pthread_mutex_init(&l->lock, NULL);
        pthread_cond_init(&l->all_done, NULL);
    }
    return l;
}

void core_xla_run_tasks(void *frame, int64_t n_tasks, ag_task task, void *arg)
{
    loop *l = n_tasks > 1 ? new_loop(n_tasks, task, arg) : NULL;
    if (l == NULL) {
        for (int64_t i = 0; i < n_tasks; i++) {
            task(arg, i);
        }
        return;
    }
    for (int64_t i = 1; i < n_tasks; i++) {
        atomic_fetch_add(&l->holders, 1);
        if (!schedule(frame, l)) {
            atomic_fetch_sub(&l->holders, 1);
            break;
        }
    }
    draw(l);
    pthread_mutex_lock(&l->lock);
    while (atomic_load(&l->done) < l->n) {
        pthread_cond_wait(&l->all_done, &l->lock);
    }
    pthread_mutex_unlock(&l->lock);
    let_go(l);
}
