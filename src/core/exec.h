/* How one call runs: the caller's ag_exec, checked, and whether its poll has cancelled the call. */
#ifndef AGI_EXEC_H
#define AGI_EXEC_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "core/plan.h"

/* Time between two calls of poll, in nanoseconds. The interface promises 50 ms; the rest is for the steps of work that
 * lie between two calls of agi_cancelled. */
#define AGI_POLL_NS 10000000

typedef struct {
    ag_exec given;     /* a copy; fields that the caller's struct lacks are zero */
    pthread_t caller;  /* the thread that called the map: the only one that polls */
    int64_t next_poll; /* time of the next poll; used by that thread only */
    atomic_bool cancelled;
} agi_exec;

/* Checks given, which may be NULL, and begins a call on this thread. */
ag_status agi_exec_begin(agi_exec *exec, const ag_plan *plan, const ag_exec *given);

/* AG_CANCELLED, with its message, if the call has been cancelled; else `status`. */
ag_status agi_exec_status(agi_exec *exec, ag_status status);

/* Polls if this is the calling thread and it is time to. Returns whether the call has been cancelled. */
bool agi_poll(agi_exec *exec);

/* Has the call been cancelled? Every loop of a map asks this after each few milliseconds of work at most, on every
 * thread, and ends if so: what it leaves in outputs and workspace does not matter then. It costs a few nanoseconds.
 * exec NULL: a call that cannot be cancelled, such as a trace. */
static inline bool agi_cancelled(agi_exec *exec)
{
    return exec != NULL && exec->given.poll != NULL && agi_poll(exec);
}

#endif
