/* Prefetching: memory that a thread will read soon, and that another thread may just have written, is brought
 * into the core's caches while the thread computes something else. Only a few cache lines at a time: a core
 * can have few outstanding misses, and too many prefetches delay the loads of the computation. */
#ifndef AGI_PREFETCH_H
#define AGI_PREFETCH_H

#include <stdint.h>

#include "core/arena.h"

/* Prefetches one cache line into the L1 cache. */
static inline __attribute__((always_inline)) void agi_prefetch_l1(uintptr_t at)
{
    __builtin_prefetch((const void *)at, 0, 3);
}

/* Prefetches one cache line into the L2 cache. */
static inline __attribute__((always_inline)) void agi_prefetch_l2(uintptr_t at)
{
    __builtin_prefetch((const void *)at, 0, 2);
}

/* Prefetches one cache line for writing. Processors without AVX2 may lack prefetchw: for them the compiler chooses
 * the instruction. */
static inline __attribute__((always_inline)) void agi_prefetch_write(uintptr_t at)
{
#if defined(__AVX2__)
    __asm__ volatile("prefetchw %0" : : "m"(*(const char *)at));
#else
    __builtin_prefetch((const void *)at, 1, 3);
#endif
}

/* Prefetches a whole range into the L2 cache. */
static inline void agi_prefetch(const void *p, int64_t bytes)
{
    for (int64_t at = 0; at < bytes; at += AGI_CACHE_LINE) {
        agi_prefetch_l2((uintptr_t)p + (uintptr_t)at);
    }
}

/* Addresses at .. end - 1. */
typedef struct {
    uintptr_t at, end;
} agi_range;

enum { AGI_MAX_RANGES = 8 };

/* Ranges to prefetch, in this order; those before `first` are done. */
typedef struct {
    int first, n;
    agi_range ranges[AGI_MAX_RANGES];
} agi_prefetch_list;

/* Removes the next `bytes` bytes from the list and returns their address, for a caller that prefetches them
 * line by line; 0 if the list is empty. They may run past the end of their range, as a prefetch of any
 * address is harmless. */
static inline uintptr_t agi_prefetch_step(agi_prefetch_list *list, int64_t bytes)
{
    while (list->first < list->n && list->ranges[list->first].at >= list->ranges[list->first].end) {
        list->first++;
    }
    if (list->first == list->n) {
        return 0;
    }
    agi_range *range = &list->ranges[list->first];
    const uintptr_t at = range->at;
    range->at += (uintptr_t)bytes;
    return at;
}

enum { AGI_MAX_PREFETCH_ARRAYS = 4 };

/* Rows of several arrays to prefetch, in this order: rows[i] rows of bytes[i] bytes, stride[i] bytes apart.
 * Arrays before `first` are done. A struct of arrays: each field is loaded with the width it was stored with. An array
 * of structs would be copied by vector stores, and loading single fields of it would miss store forwarding and stall
 * behind the pending stores of AMX tiles. */
typedef struct {
    int first, n;
    int64_t rows_per_step;
    uintptr_t at[AGI_MAX_PREFETCH_ARRAYS];
    int64_t stride[AGI_MAX_PREFETCH_ARRAYS], bytes[AGI_MAX_PREFETCH_ARRAYS], rows[AGI_MAX_PREFETCH_ARRAYS];
} agi_prefetch_rows;

/* Adds an array; does nothing if p is NULL or rows is 0. */
void agi_prefetch_rows_add(agi_prefetch_rows *x, const void *p, int64_t stride, int64_t bytes, int64_t rows);

/* Call once, after the last array was added: sets rows_per_step so that about `steps` calls of agi_prefetch_rows_step
 * prefetch all rows. A call does not go on from one array to the next, so each further array may take one more. */
void agi_prefetch_rows_begin(agi_prefetch_rows *x, int64_t steps);

/* Prefetches the rows of one step, except for up to max_bytes at their start (of the first row only, if the rows are
 * not contiguous). Returns that range, for the caller to prefetch line by line among its own instructions; it is empty
 * if all rows are done. */
agi_range agi_prefetch_rows_step(agi_prefetch_rows *x, int64_t max_bytes);

#endif
