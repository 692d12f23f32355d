/* Memory of the check engine. The code of the checks never handles a failed allocation: inside agc_memory_guarded
 * the failure ends the guarded call and frees what that call holds; outside, in the command and in tests, it
 * ends the program. */
#ifndef ATTNGRAD_CHECK_MEMORY_H
#define ATTNGRAD_CHECK_MEMORY_H

#include <attngrad.h>

/* Allocates memory; never returns NULL. If there is none outside a guarded call, prints one line and exits
 * with 2. To be freed by free() or by agc_arrays_free. */
void *agc_arrays_alloc(int64_t count, size_t size);

/* Frees memory of agc_arrays_alloc, in a guarded call too; NULL is allowed. */
void agc_arrays_free(void *memory);

/* The guarded call holds the plan from now on, or no longer; they do nothing outside a guarded call. */
void agc_memory_hold_plan(ag_plan *plan);
void agc_memory_drop_plan(ag_plan *plan);

/* Runs f(arg) and returns its status. If an allocation fails on this thread, the rest of f is left out, everything that
 * f had allocated is freed, and the status is AG_NO_MEMORY. Does not nest. */
ag_status agc_memory_guarded(ag_status (*f)(void *arg), void *arg);

/* For tests, on this thread: this many allocations inside guarded calls succeed, and the next one fails,
 * once; -1: none fails. */
void agc_memory_fail_after(int64_t allocations);

#endif
