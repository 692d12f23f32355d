/* The default parallel loop: a small pool of POSIX threads, shared by all plans and calls. */
#ifndef AGI_POOL_H
#define AGI_POOL_H

#include <stdint.h>

#include "core/exec.h"

#define AGI_MAX_THREADS 1024

/* Called when a plan that may use `threads` threads is created and when a plan is destroyed. The first plan
 * starts the pool, the last one ends it. */
void agi_pool_acquire(int threads);
void agi_pool_release(void);

/* Runs task(arg, index) for index 0 .. n_tasks - 1 on the pool's threads and the calling thread. Returns when
 * all are done. If a thread could not be started, the others, at least the calling one, do its work. While the calling
 * thread waits for others it polls, if exec has a poll; exec may be NULL. */
void agi_pool_run(int64_t n_tasks, ag_task task, void *arg, agi_exec *exec);

#endif
