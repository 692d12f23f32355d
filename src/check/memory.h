/* Memory of the check engine. The code of the checks never looks at a failed allocation: inside memory_guarded it ends
 * the guarded call, and what that call holds is freed; outside, in the command and in tests, it ends the program. */
#ifndef ATTNGRAD_CHECK_MEMORY_H
#define ATTNGRAD_CHECK_MEMORY_H

#include <attngrad.h>

/* Memory that is there. Outside a guarded call: prints one line and exits with 2 if there is none; to be freed by
 * free() or by arrays_free. */
void *arrays_alloc(int64_t count, size_t size);

/* Frees memory of arrays_alloc, in a guarded call too; NULL is allowed. */
void arrays_free(void *memory);

/* A plan that the guarded call holds from now on, or no longer; nothing outside one. */
void memory_hold_plan(ag_plan *plan);
void memory_drop_plan(ag_plan *plan);

/* Runs f(arg) and returns its status. If an allocation fails on this thread, the rest of f is left out, everything that
 * f had allocated is freed, and the status is AG_NO_MEMORY. Does not nest. */
ag_status memory_guarded(ag_status (*f)(void *arg), void *arg);

/* For tests, on this thread: so many allocations inside guarded calls succeed, the next one fails, once; -1: none. */
void memory_fail_after(int64_t allocations);

#endif
