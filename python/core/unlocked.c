/* Running a map without the interpreter's lock, interrupted by a signal whose handler raises an exception, such as
 * Ctrl-C. The library polls on the thread that called it; the lock is taken only there, only on the main thread, which
 * is the one that runs Python's signal handlers, and only every POLL_NS, so that a short call never takes it. */
#define _GNU_SOURCE /* syscall */
#include "core.h"

#include <stdint.h>
#include <time.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

#define POLL_NS 40000000

static int64_t nanoseconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Elsewhere every thread asks the interpreter, which does nothing on those that are not the main one. */
static int is_main_thread(void)
{
#if defined(__linux__)
    return syscall(SYS_gettid) == (long)getpid();
#else
    return 1;
#endif
}

static int32_t check_signals(void *ctx)
{
    core_unlocked *call = ctx;
    if (call->next_check == 0) { /* the call begins */
        call->next_check = nanoseconds() + POLL_NS;
        return 0;
    }
    if (nanoseconds() < call->next_check) {
        return 0;
    }
    if (!is_main_thread()) {
        call->next_check = INT64_MAX;
        return 0;
    }
    PyEval_RestoreThread(call->thread_state);
    const int raised = PyErr_CheckSignals();
    call->thread_state = PyEval_SaveThread();
    call->next_check = nanoseconds() + POLL_NS;
    return raised != 0;
}

const ag_exec *core_unlock(core_unlocked *call)
{
    const ag_exec exec = {
        .struct_size = sizeof exec, .ctx = call, .run = core_openmp_take(), .poll = check_signals};
    call->exec = exec;
    call->next_check = 0;
    call->thread_state = PyEval_SaveThread();
    return &call->exec;
}

PyObject *core_lock(core_unlocked *call, ag_status status)
{
    if (call->exec.run != NULL) {
        core_openmp_leave();
    }
    PyEval_RestoreThread(call->thread_state);
    if (status == AG_CANCELLED) {
        return NULL; /* with the exception of the handler */
    }
    return status == AG_OK ? Py_NewRef(Py_None) : core_fail(status);
}
