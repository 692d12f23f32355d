/* The allocations of memory.h. */
#define _DEFAULT_SOURCE /* _SC_PHYS_PAGES */
#include "check/memory.h"

#include "check/message.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <unistd.h>

static _Thread_local int64_t allocations_left = -1;

void agc_memory_fail_after(int64_t allocations)
{
    allocations_left = allocations;
}

static bool is_made_to_fail(void)
{
    return allocations_left >= 0 && allocations_left-- == 0;
}

double agc_machine_memory(void)
{
    const long pages = sysconf(_SC_PHYS_PAGES), size = sysconf(_SC_PAGESIZE);
    return pages > 0 && size > 0 ? (double)pages * (double)size : INFINITY;
}

/* malloc of an array that is larger than the machine's memory may succeed: the process is then killed when it
 * writes to it. The system is not asked about small arrays, to save the time. */
static bool fits_machine(double bytes)
{
    return bytes <= 0x1p24 || bytes <= agc_machine_memory();
}

void *agc_alloc(const char *what, int64_t count, size_t size)
{
    const size_t n = count > 0 ? (size_t)count : 1;
    const double bytes = (double)n * (double)size;
    void *memory = NULL;
    if (n <= SIZE_MAX / size && fits_machine(bytes) && !is_made_to_fail()) {
        memory = malloc(n * size);
    }
    if (memory == NULL) {
        agc_fail(AG_NO_MEMORY, "", "no memory for %s: %.0f MiB", what, ceil(bytes / 0x1p20));
    }
    return memory;
}

double *agc_alloc_zeros(const char *what, int64_t count)
{
    double *values = agc_alloc(what, count, sizeof *values);
    for (int64_t n = 0; values != NULL && n < count; n++) {
        values[n] = 0;
    }
    return values;
}
