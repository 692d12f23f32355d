/* The default parallel loop: a small pool of POSIX threads, shared by all plans and calls. */
#ifndef AGI_POOL_H
#define AGI_POOL_H

#include <stdint.h>

#include "attngrad.h"

#define AGI_MAX_THREADS 1024

/* At the creation and the end of a plan that may use `threads` threads. The first plan starts the pool, the
 * last one ends it. */
void agi_pool_acquire(int threads);
void agi_pool_release(void);

/* Runs task(arg, index) for index 0 .. n_tasks - 1 on the pool's threads and the caller's, and
 * returns when all are done. A thread that could not be started is no error: the others, at least
 * the caller, do its work. */
void agi_pool_run(int64_t n_tasks, ag_task task, void *arg);

#endif
