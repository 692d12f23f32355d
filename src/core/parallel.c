/* The parallel loop: see parallel.h. */
#include "core/parallel.h"

#include <stdatomic.h>

#include "core/arena.h"
#include "core/pause.h"
#include "core/pool.h"
#include "core/status.h"

/* If there are more tasks than this, several share a queue. */
enum { MAX_QUEUES = 64 };

/* Min cost of a task: some ten microseconds of work, what it costs to hand a task to a thread that is awake. */
static const double min_task_cost = 1 << 20;

/* Cost of an item beside the work that its function says it has. */
static const double item_cost = 1 << 14;

/* One task's share of the items, in a separate cache line. Other tasks take from it only after their own
 * queues are empty. */
typedef struct {
    _Alignas(AGI_CACHE_LINE) _Atomic int64_t next;
    int64_t end;
} queue;

typedef struct {
    queue queues[MAX_QUEUES];
    int64_t n_queues;
    const agi_loop *loop;
    agi_exec *exec;
    _Atomic int64_t tasks_running; /* by the caller's loop */
} loop_state;

/* The next item of a queue; its end or more if it is empty. */
static int64_t next_item(queue *from)
{
    const int64_t next = atomic_load_explicit(&from->next, memory_order_relaxed);
    return next < from->end ? atomic_fetch_add_explicit(&from->next, 1, memory_order_relaxed) : next;
}

static void take_items(void *arg, int64_t index)
{
    loop_state *state = arg;
    const agi_loop *loop = state->loop;
    for (int64_t q = 0; q < state->n_queues; q++) {
        queue *from = &state->queues[(index + q) % state->n_queues];
        int64_t item = next_item(from);
        while (item < from->end) {
            if (agi_cancelled(state->exec)) {
                return;
            }
            loop->run(loop->arg, item, index);
            item = next_item(from);
        }
    }
}

/* Waits until no other task is running, and polls; at once if this is not the thread that called the map. */
static void poll_for_others(loop_state *state)
{
    if (state->exec->given.poll == NULL || !pthread_equal(pthread_self(), state->exec->caller)) {
        return;
    }
    for (int64_t turns = 0;
         atomic_load_explicit(&state->tasks_running, memory_order_relaxed) > 1 && !agi_cancelled(state->exec);
         turns++) {
        agi_wait_a_turn(turns);
    }
}

/* A task of the caller's loop. Nobody polls after the calling thread has left its last task: so it stays in it as long
 * as others have items that they have begun. */
static void run_task(void *arg, int64_t index)
{
    loop_state *state = arg;
    atomic_fetch_add_explicit(&state->tasks_running, 1, memory_order_relaxed);
    take_items(state, index);
    poll_for_others(state);
    atomic_fetch_sub_explicit(&state->tasks_running, 1, memory_order_relaxed);
}

/* The number of tasks follows the work. No bit depends on it. */
static int64_t count_tasks(const ag_plan *plan, const agi_loop *loop)
{
    const int64_t max = loop->n_items < plan->threads ? loop->n_items : plan->threads;
    const double worth = (loop->cost + item_cost * (double)loop->n_items) / min_task_cost;
    return worth >= (double)max ? max : worth > 1 ? (int64_t)worth : max > 0;
}

/* Every task runs until all queues are empty, so if one task ran, all items are done. */
static ag_status check_done(const loop_state *state, int64_t n_tasks)
{
    for (int64_t q = 0; q < state->n_queues; q++) {
        if (atomic_load(&state->queues[q].next) < state->queues[q].end) {
            return agi_fail_field(AG_INVALID_ARGUMENT, "exec.run",
                                  "exec: run returned, but ran none of its %lld tasks", (long long)n_tasks);
        }
    }
    return AG_OK;
}

ag_status agi_parallel_for(const ag_plan *plan, agi_exec *exec, const agi_loop *loop)
{
    const int64_t n_tasks = count_tasks(plan, loop);
    loop_state state;
    state.n_queues = n_tasks < MAX_QUEUES ? n_tasks : MAX_QUEUES;
    state.loop = loop;
    state.exec = exec;
    atomic_init(&state.tasks_running, 0);
    for (int64_t q = 0; q < state.n_queues; q++) {
        atomic_init(&state.queues[q].next, agi_share(loop->n_items, q, state.n_queues));
        state.queues[q].end = agi_share(loop->n_items, q + 1, state.n_queues);
    }
    if (agi_cancelled(exec)) {
        return agi_exec_status(exec, AG_OK);
    }
    if (exec->given.run == NULL) {
        agi_pool_run(n_tasks, take_items, &state, exec);
    } else if (n_tasks > 0) {
        exec->given.run(exec->given.ctx, n_tasks, run_task, &state);
    }
    const ag_status status = agi_exec_status(exec, AG_OK);
    return status == AG_OK ? check_done(&state, n_tasks) : status;
}
