/* Allocates memory, and lists what a guarded call holds. A failed allocation leaves the call by longjmp; so
 * nothing in src/check may hold anything but memory of agc_arrays_alloc and plans. */
#include "check/memory.h"

#include <setjmp.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

struct held {
    void *object;
    bool is_plan;
};

/* The state of a guarded call. */
struct guard {
    jmp_buf no_memory;
    struct held *held;
    size_t count, capacity;
};

/* Not on the stack: local variables that changed are indeterminate after longjmp. */
static _Thread_local struct guard guard;
static _Thread_local struct guard *current; /* &guard, or NULL outside guarded calls */
static _Thread_local int64_t allocations_left = -1;

void agc_memory_fail_after(int64_t allocations)
{
    allocations_left = allocations;
}

static bool is_made_to_fail(void)
{
    return current != NULL && allocations_left >= 0 && allocations_left-- == 0;
}

static void release(struct held h)
{
    if (h.is_plan) {
        ag_plan_destroy(h.object);
    } else {
        free(h.object);
    }
}

/* Adds an object to the list; if the list cannot grow, the object is released and the call ends. */
static void hold(struct held h)
{
    struct guard *g = current;
    if (g == NULL) {
        return;
    }
    if (g->count == g->capacity) {
        size_t capacity = g->capacity > 0 ? 2 * g->capacity : 64;
        struct held *longer = is_made_to_fail() ? NULL : realloc(g->held, capacity * sizeof *longer);
        if (longer == NULL) {
            release(h);
            longjmp(g->no_memory, 1);
        }
        g->held = longer;
        g->capacity = capacity;
    }
    g->held[g->count++] = h;
}

/* The newest objects are freed first as a rule, so the search begins at the end. */
static void drop(const void *object)
{
    struct guard *g = current;
    for (size_t n = g != NULL && object != NULL ? g->count : 0; n-- > 0;) {
        if (g->held[n].object == object) {
            g->held[n] = g->held[--g->count];
            return;
        }
    }
}

void *agc_arrays_alloc(int64_t count, size_t size)
{
    void *memory = NULL;
    size_t n = count > 0 ? (size_t)count : 1; /* an empty tensor has an address too */
    if (n <= SIZE_MAX / size && !is_made_to_fail()) {
        memory = malloc(n * size);
    }
    if (memory == NULL && current != NULL) {
        longjmp(current->no_memory, 1);
    }
    if (memory == NULL) {
        fprintf(stderr, "attngrad: no memory for %lld numbers of %zu bytes\ntry a smaller problem\n",
                (long long)count, size);
        exit(2);
    }
    hold((struct held){memory, false});
    return memory;
}

void agc_arrays_free(void *memory)
{
    drop(memory);
    free(memory);
}

void agc_memory_hold_plan(ag_plan *plan)
{
    hold((struct held){plan, true});
}

void agc_memory_drop_plan(ag_plan *plan)
{
    drop(plan);
}

ag_status agc_memory_guarded(ag_status (*f)(void *arg), void *arg)
{
    volatile ag_status status = AG_NO_MEMORY;
    current = &guard;
    if (setjmp(guard.no_memory) == 0) {
        status = f(arg);
    }
    current = NULL;
    for (size_t n = guard.count; n-- > 0;) { /* after a normal return the list is empty */
        release(guard.held[n]);
    }
    free(guard.held);
    guard.held = NULL;
    guard.count = guard.capacity = 0;
    return status;
}
