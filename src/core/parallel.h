/* Parallel loops over work items, on the caller's loop or on the library's threads. */
#ifndef AGI_PARALLEL_H
#define AGI_PARALLEL_H

#include "core/plan.h"

/* Runs work(arg, item, scratch_index) once for each item from 0 to n_items - 1, in as many tasks as the plan has
 * threads. What an item computes must not depend on the task: the items are fixed by the shape of the problem. Each
 * task has a queue with its share of them, so that it finds in its cache what it wrote in the step before, and takes
 * from the other queues when its own is empty. scratch_index numbers the task, below plan->threads: no two calls that
 * run at the same time have the same. Fails if exec's loop left items undone. */
typedef void (*agi_work)(void *arg, int64_t item, int64_t scratch_index);
ag_status agi_parallel_for(const ag_plan *plan, const ag_exec *exec, int64_t n_items, agi_work work,
                           void *arg);

/* The first item of the share of task number `task` of n. */
static inline int64_t agi_share(int64_t n_items, int64_t task, int64_t n)
{
    return n_items / n * task + n_items % n * task / n;
}

#endif
