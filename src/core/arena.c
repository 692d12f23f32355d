/* Taking aligned buffers from the caller's workspace. */
#include "core/arena.h"

#include <string.h>

agi_arena agi_arena_begin(void *memory)
{
    const uintptr_t mask = AGI_CACHE_LINE - 1;
    char *base = memory;
    if (base != NULL) {
        base += (AGI_CACHE_LINE - ((uintptr_t)memory & mask)) & mask;
    }
    return (agi_arena){base, 0};
}

void *agi_take(agi_arena *arena, int64_t count, size_t size)
{
    const size_t limit = (size_t)PTRDIFF_MAX - 2 * AGI_CACHE_LINE;
    if (arena->used > limit || (size != 0 && (uint64_t)count > (limit - arena->used) / size)) {
        arena->used = SIZE_MAX;
        return NULL;
    }
    void *memory = arena->base == NULL ? NULL : arena->base + arena->used;
    const size_t bytes = (size_t)count * size;
    arena->used += (bytes + AGI_CACHE_LINE - 1) / AGI_CACHE_LINE * AGI_CACHE_LINE;
    return memory;
}

void *agi_take_copy(agi_arena *arena, const void *object, size_t size)
{
    void *copy = agi_take(arena, 1, size);
    return copy == NULL ? NULL : memcpy(copy, object, size);
}

size_t agi_arena_bytes(const agi_arena *arena)
{
    return arena->used == SIZE_MAX ? SIZE_MAX : arena->used + AGI_CACHE_LINE - 1;
}
