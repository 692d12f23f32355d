/* The layout of a workspace. A backend takes its buffers one after another; without memory (base NULL) this is
 * a dry run, and the sum of what was taken is the size that the workspace needs. */
#ifndef AGI_ARENA_H
#define AGI_ARENA_H

#include <stddef.h>
#include <stdint.h>

#define AGI_CACHE_LINE 64

typedef struct {
    char *base;  /* NULL: a dry run */
    size_t used; /* SIZE_MAX: more than a size_t can hold */
} agi_arena;

/* Over the caller's memory, of any alignment. */
agi_arena agi_arena_begin(void *memory);

/* count elements of `size` bytes, aligned to a cache line; NULL in a dry run. */
void *agi_take(agi_arena *arena, int64_t count, size_t size);

/* What the caller must give so that the same takes fit: with the slack that alignment may cost. */
size_t agi_arena_bytes(const agi_arena *arena);

#endif
