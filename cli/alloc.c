/* malloc, or the end of the command. */
#include "alloc.h"

#include "check/memory.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

void *alloc_or_exit(const char *what, int64_t count, size_t size)
{
    const size_t n = count > 0 ? (size_t)count : 1; /* an empty array has an address too */
    const double bytes = (double)n * (double)size;
    /* malloc may give more than the machine has: the process is then killed when it writes to it. */
    void *memory = n <= SIZE_MAX / size && bytes <= agc_machine_memory() ? malloc(n * size) : NULL;
    if (memory == NULL) {
        fprintf(stderr, "attngrad: no memory for %s: %.0f MiB\ntry a smaller problem\n", what,
                ceil(bytes / 0x1p20));
        exit(2);
    }
    return memory;
}
