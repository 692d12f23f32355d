/* Checking ag_exec, and polling: see exec.h. */
#define _GNU_SOURCE /* CLOCK_MONOTONIC_COARSE */
#include "core/exec.h"

#include <time.h>

#include "core/backend.h"
#include "core/status.h"
#include "core/structs.h"

static ag_status check(const ag_exec *exec, const ag_plan *plan)
{
    if (exec->reserved != 0) {
        return agi_fail_field(AG_INVALID_ARGUMENT, "exec.reserved", "exec: reserved is %lu: must be zero",
                              (unsigned long)exec->reserved);
    }
    if (exec->stream != NULL && !agi_on_device(plan->backend)) {
        return agi_fail_field(AG_UNSUPPORTED, "exec.stream",
                              "exec: stream is given, but the %s backend has no streams",
                              plan->backend->name);
    }
    if ((exec->run != NULL || exec->poll != NULL) && agi_on_device(plan->backend)) {
        const char *name = exec->run != NULL ? "run" : "poll";
        return agi_fail_field(AG_UNSUPPORTED, exec->run != NULL ? "exec.run" : "exec.poll",
                              "exec: %s is given, but the %s backend runs on a device, not on threads", name,
                              plan->backend->name);
    }
    return AG_OK;
}

ag_status agi_exec_begin(agi_exec *exec, const ag_plan *plan, const ag_exec *given)
{
    exec->given = (ag_exec)AG_EXEC_INIT;
    exec->caller = pthread_self();
    exec->next_poll = 0;
    atomic_init(&exec->cancelled, false);
    if (given == NULL) {
        return AG_OK;
    }
    const ag_status status =
        agi_read_struct(&exec->given, sizeof exec->given, given, "exec", AG_INVALID_ARGUMENT);
    return status == AG_OK ? check(&exec->given, plan) : status;
}

ag_status agi_exec_status(agi_exec *exec, ag_status status)
{
    return atomic_load_explicit(&exec->cancelled, memory_order_relaxed)
               ? agi_fail(AG_CANCELLED, "cancelled: exec.poll returned non-zero")
               : status;
}

/* A clock that is cheap to read and counts in steps of 1 to 10 ms, if there is one. */
static int64_t nanoseconds(void)
{
#if defined(CLOCK_MONOTONIC_COARSE)
    const clockid_t id = CLOCK_MONOTONIC_COARSE;
#else
    const clockid_t id = CLOCK_MONOTONIC;
#endif
    struct timespec t;
    clock_gettime(id, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

bool agi_poll(agi_exec *exec)
{
    if (atomic_load_explicit(&exec->cancelled, memory_order_relaxed)) {
        return true;
    }
    if (!pthread_equal(pthread_self(), exec->caller) || nanoseconds() < exec->next_poll) {
        return false;
    }
    const bool cancel = exec->given.poll(exec->given.ctx) != 0;
    exec->next_poll = nanoseconds() + AGI_POLL_NS;
    if (cancel) {
        atomic_store_explicit(&exec->cancelled, true, memory_order_relaxed);
    }
    return cancel;
}
