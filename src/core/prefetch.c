/* Prefetches rows of several arrays, a few per step: see prefetch.h. */
#include "core/prefetch.h"

#include <stdbool.h>
#include <stddef.h>

void agi_prefetch_rows_add(agi_prefetch_rows *x, const void *p, int64_t stride, int64_t bytes, int64_t rows)
{
    if (p != NULL && rows > 0) {
        x->at[x->n] = (uintptr_t)p;
        x->stride[x->n] = stride;
        x->bytes[x->n] = bytes;
        x->rows[x->n] = rows;
        x->n++;
    }
}

void agi_prefetch_rows_begin(agi_prefetch_rows *x, int64_t steps)
{
    int64_t rows = 0;
    for (int i = x->first; i < x->n; i++) {
        rows += x->rows[i];
    }
    x->rows_per_step = (rows + steps - 1) / steps;
}

agi_range agi_prefetch_rows_step(agi_prefetch_rows *x, int64_t max_bytes)
{
    const int i = x->first;
    if (i == x->n) {
        return (agi_range){0, 0};
    }
    const int64_t rows = x->rows[i] < x->rows_per_step ? x->rows[i] : x->rows_per_step;
    const int64_t stride = x->stride[i], bytes = x->bytes[i];
    const bool dense = stride == bytes;
    const int64_t range = dense ? rows * bytes : bytes; /* contiguous bytes at the start of the rows */
    const int64_t for_caller = range < max_bytes ? range : max_bytes;
    const uintptr_t at = x->at[i];
    if (dense) {
        agi_prefetch((const void *)(at + (uintptr_t)for_caller), range - for_caller);
    }
    for (int64_t r = 1; r < rows && !dense; r++) {
        agi_prefetch((const void *)(at + (uintptr_t)(r * stride)), bytes);
    }
    x->at[i] += (uintptr_t)(rows * stride);
    x->rows[i] -= rows;
    x->first += x->rows[i] == 0;
    return (agi_range){at, at + (uintptr_t)for_caller};
}
