/* Checks that no array which a step writes shares memory with another array of its list. It allocates
 * nothing: it sorts one chunk of the arrays after another on the stack and looks up all other arrays in it. */
#include "nn/layer.h"
#include "core/status.h"

enum { COPY = 3, GRAD = 4, ROLES = 5, CHUNK = 256 };

static const char *const role_names[ROLES] = {"value", "state1", "state2", "copy", "grad"};

/* The memory of an array of the list: role index % ROLES of parameter index / ROLES. */
typedef struct {
    uintptr_t begin, end;
    int64_t index;
} extent;

/* Fills in x. Returns false if the step does not use this array or if it is empty. */
static bool extent_of(const ag_param *list, int states, int64_t index, extent *x)
{
    const ag_param *p = &list[index / ROLES];
    const int role = (int)(index % ROLES);
    const void *const data[ROLES] = {p->value, states > 0 ? p->state1 : NULL, states > 1 ? p->state2 : NULL,
                                     p->copy, p->grad};
    const ag_dtype dtype = role == GRAD ? p->grad_dtype : role == COPY ? p->copy_dtype : p->dtype;
    x->begin = (uintptr_t)data[role];
    x->end = x->begin + (uintptr_t)p->count * ag_dtype_size(dtype);
    x->index = index;
    return data[role] != NULL && p->count > 0;
}

static ag_status overlap(const char *call, const extent *a, const extent *b)
{
    const int64_t first = a->index < b->index ? a->index : b->index, second = a->index + b->index - first;
    const char *const role = role_names[second % ROLES];
    agi_fail_field(AG_INVALID_ARGUMENT, role, "%s: %s of parameter %lld overlaps %s of parameter %lld", call,
                   role, (long long)(second / ROLES), role_names[first % ROLES], (long long)(first / ROLES));
    return agi_fail_within(AG_INVALID_ARGUMENT, "list");
}

/* Inserts x into the sorted chunk[n], which has no overlaps. Searches from the end, as most lists are in order of their
 * addresses. */
static ag_status insert(const char *call, extent *chunk, int64_t n, extent x)
{
    int64_t at = n;
    while (at > 0 && chunk[at - 1].begin > x.begin) {
        at--;
    }
    if (at > 0 && chunk[at - 1].end > x.begin) {
        return overlap(call, &chunk[at - 1], &x);
    }
    if (at < n && chunk[at].begin < x.end) {
        return overlap(call, &chunk[at], &x);
    }
    for (int64_t i = n; i > at; i--) {
        chunk[i] = chunk[i - 1];
    }
    chunk[at] = x;
    return AG_OK;
}

/* Fails if x overlaps an array of the sorted chunk[n]. */
static ag_status look_up(const char *call, const extent *chunk, int64_t n, const extent *x)
{
    int64_t low = 0, high = n; /* finds the first array that ends after x begins */
    while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        if (chunk[middle].end > x->begin) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    return low < n && chunk[low].begin < x->end ? overlap(call, &chunk[low], x) : AG_OK;
}

/* Gradients are only read: they may share memory with each other. */
ag_status agi_check_overlaps(const char *call, const ag_param *list, int64_t n, int states)
{
    ag_status status = AG_OK;
    for (int64_t next = 0; next < n * ROLES && status == AG_OK;) {
        extent chunk[CHUNK], x;
        int64_t count = 0;
        const int64_t first = next;
        for (; next < n * ROLES && count < CHUNK && status == AG_OK; next++) {
            if (next % ROLES != GRAD && extent_of(list, states, next, &x)) {
                status = insert(call, chunk, count++, x);
            }
        }
        for (int64_t i = 0; i < n * ROLES && status == AG_OK; i++) {
            const bool other = i % ROLES == GRAD || i < first || i >= next;
            if (other && extent_of(list, states, i, &x)) {
                status = look_up(call, chunk, count, &x);
            }
        }
    }
    return status;
}
