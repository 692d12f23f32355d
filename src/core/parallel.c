/* The parallel loop: see parallel.h. */
#include "core/parallel.h"

#include <stdatomic.h>

#include "core/arena.h"
#include "core/pool.h"
#include "core/status.h"

/* If there are more tasks than this, several share a queue. */
enum { MAX_QUEUES = 64 };

/* One task's share of the items, in a separate cache line. Other tasks take from it only after their own
 * queues are empty. */
typedef struct {
    _Alignas(AGI_CACHE_LINE) _Atomic int64_t next;
    int64_t end;
} queue;

typedef struct {
    queue queues[MAX_QUEUES];
    int64_t n_queues;
    agi_work work;
    void *arg;
} loop_state;

static void take_items(void *arg, int64_t index)
{
    loop_state *loop = arg;
    for (int64_t q = 0; q < loop->n_queues; q++) {
        queue *from = &loop->queues[(index + q) % loop->n_queues];
        int64_t item = atomic_fetch_add_explicit(&from->next, 1, memory_order_relaxed);
        while (item < from->end) {
            loop->work(loop->arg, item, index);
            item = atomic_fetch_add_explicit(&from->next, 1, memory_order_relaxed);
        }
    }
}

ag_status agi_parallel_for(const ag_plan *plan, const ag_exec *exec, int64_t n_items, agi_work work,
                           void *arg)
{
    const int64_t n_tasks = n_items < plan->threads ? n_items : plan->threads;
    loop_state loop;
    loop.n_queues = n_tasks < MAX_QUEUES ? n_tasks : MAX_QUEUES;
    loop.work = work;
    loop.arg = arg;
    for (int64_t q = 0; q < loop.n_queues; q++) {
        atomic_init(&loop.queues[q].next, agi_share(n_items, q, loop.n_queues));
        loop.queues[q].end = agi_share(n_items, q + 1, loop.n_queues);
    }
    if (exec->run == NULL) {
        agi_pool_run(n_tasks, take_items, &loop);
    } else if (n_tasks > 0) {
        exec->run(exec->ctx, n_tasks, take_items, &loop);
    }
    /* Every task runs until all queues are empty, so if one task ran, all items are done. */
    for (int64_t q = 0; q < loop.n_queues; q++) {
        if (atomic_load(&loop.queues[q].next) < loop.queues[q].end) {
            return agi_fail_field(AG_INVALID_ARGUMENT, "exec.run",
                                  "exec: run returned, but ran none of its %lld tasks", (long long)n_tasks);
        }
    }
    return AG_OK;
}
