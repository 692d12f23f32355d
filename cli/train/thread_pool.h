/* The threads of the model: one pool runs both the loops of the model itself and, as ag_exec.run, the maps of its
 * layers. */
#ifndef ATTNGRAD_CLI_THREAD_POOL_H
#define ATTNGRAD_CLI_THREAD_POOL_H

#include <attngrad.h>

struct thread_pool;

/* Starts threads - 1 threads in addition to the caller. A thread that cannot be started is left out. */
struct thread_pool *pool_create(int64_t threads);
void pool_destroy(struct thread_pool *pool); /* NULL is allowed */

/* Runs task(arg, index) for each index below n; returns when all are done. Has the form of ag_exec.run: ctx
 * is the pool. */
void pool_run(void *ctx, int64_t n, ag_task task, void *arg);

#endif
