/* Lays out a workspace: a backend takes its buffers from it one after another. If base is NULL, this is a dry
 * run that only adds up the sizes. */
#ifndef AGI_ARENA_H
#define AGI_ARENA_H

#include <stddef.h>
#include <stdint.h>

#define AGI_CACHE_LINE 64

typedef struct {
    char *base;  /* NULL: a dry run */
    size_t used; /* SIZE_MAX: more than a size_t can hold */
} agi_arena;

/* Begins an arena in the caller's memory, which may have any alignment; NULL begins a dry run. */
agi_arena agi_arena_begin(void *memory);

/* Takes memory for count elements of `size` bytes, aligned to a cache line. Returns NULL in a dry run. */
void *agi_take(agi_arena *arena, int64_t count, size_t size);

/* Memory with a copy of an object; NULL in a dry run. */
void *agi_take_copy(agi_arena *arena, const void *object, size_t size);

/* Number of bytes that the caller must provide for the same calls of agi_take, wherever its memory begins. */
size_t agi_arena_bytes(const agi_arena *arena);

#endif
