/* malloc, or the end of the command. */
#include "alloc.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

void *alloc_or_exit(int64_t count, size_t size)
{
    const size_t n = count > 0 ? (size_t)count : 1; /* an empty array has an address too */
    void *memory = n <= SIZE_MAX / size ? malloc(n * size) : NULL;
    if (memory == NULL) {
        fprintf(stderr, "attngrad: no memory for an array of %.0f MiB\ntry a smaller problem\n",
                ceil((double)n * (double)size / 0x1p20));
        exit(2);
    }
    return memory;
}
