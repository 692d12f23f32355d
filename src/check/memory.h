/* Memory of the check engine: malloc with a message if there is none. Who frees what, always by free():
 *   - what a struct arrays points to belongs to it: agc_arrays_destroy frees it;
 *   - what a function allocates for its own use it frees before it returns, also if it fails;
 *   - the result of agc_arrays_read_new belongs to the caller.
 * A failed allocation travels up as AG_NO_MEMORY, like every other failure. */
#ifndef ATTNGRAD_CHECK_MEMORY_H
#define ATTNGRAD_CHECK_MEMORY_H

#include <stddef.h>
#include <stdint.h>

/* Allocates count elements of `size` bytes each; an array of no elements has an address too. Returns NULL if there is
 * no memory, or if the array is larger than the memory of the machine; ag_check_last_message() then names it by
 * `what`. */
void *agc_alloc(const char *what, int64_t count, size_t size);

double *agc_alloc_zeros(const char *what, int64_t count);

double agc_machine_memory(void); /* bytes; infinity if the system does not say */

/* For tests, on this thread: this many allocations succeed, and the next one fails, once; -1: none fails. */
void agc_memory_fail_after(int64_t allocations);

#endif
