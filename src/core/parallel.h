/* Parallel loops over work items, by the caller's parallel loop (ag_exec) or by the library's threads. */
#ifndef AGI_PARALLEL_H
#define AGI_PARALLEL_H

#include "core/exec.h"

typedef void (*agi_work)(void *arg, int64_t item, int64_t scratch_index);

/* The work of a loop: n_items calls of run(arg, item, scratch_index). `cost` is that of all items together, about, in
 * multiply-adds of one thread's vector unit; it says how many tasks are worth their start. */
typedef struct {
    int64_t n_items;
    double cost;
    agi_work run;
    void *arg;
} agi_loop;

/* Runs the loop's function once for each item from 0 to n_items - 1, in at most plan->threads tasks. What an item
 * computes must not depend on the task that runs it; the shape of the problem alone determines the items. Each task has
 * a queue with its share of the items, so that it finds in its cache what it wrote in the loop before; when its queue
 * is empty, it takes items from the other queues. scratch_index, below plan->threads, identifies the task: no two items
 * at the same time get the same one. Fails if exec's loop did not run all items, or if its poll cancelled the call. */
ag_status agi_parallel_for(const ag_plan *plan, agi_exec *exec, const agi_loop *loop);

/* The first item in the share of task number `task` of n tasks. */
static inline int64_t agi_share(int64_t n_items, int64_t task, int64_t n)
{
    return n_items / n * task + n_items % n * task / n;
}

#endif
