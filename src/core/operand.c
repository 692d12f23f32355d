/* The checks of tensors: see operand.h. */
#include "core/operand.h"

#include "core/problem.h"

static ag_status check_pointer(const agi_operand *x, agi_fail_function fail)
{
    if (x->t->data == NULL) {
        return x->required && agi_count(x->size) > 0
                   ? fail(AG_INVALID_ARGUMENT, x->name, "%s is NULL", x->name)
                   : AG_OK;
    }
    if ((uintptr_t)x->t->data % x->bytes != 0) {
        return fail(AG_INVALID_ARGUMENT, x->name, "%s is %p: not aligned to its elements of %zu bytes",
                    x->name, x->t->data, x->bytes);
    }
    return AG_OK;
}

/* The distance in bytes from the first to the last element, along each axis and along all of them together,
 * must fit an int64_t. */
static ag_status check_extent(const agi_operand *x, agi_fail_function fail)
{
    uint64_t room = (uint64_t)INT64_MAX / x->bytes;
    for (int axis = 0; axis < 4; axis++) {
        const int64_t stride = x->t->strides[axis];
        const uint64_t distance = stride < 0 ? 0 - (uint64_t)stride : (uint64_t)stride;
        const uint64_t last = x->size[axis] > 1 ? (uint64_t)(x->size[axis] - 1) : 0;
        uint64_t all;
        if (__builtin_mul_overflow(distance, last, &all) || all > room) {
            return fail(AG_INVALID_ARGUMENT, x->name,
                        "strides[%d] of %s is %lld: overflows over %lld elements", axis, x->name,
                        (long long)stride, (long long)x->size[axis]);
        }
        room -= all;
    }
    return AG_OK;
}

typedef struct {
    int64_t stride, size; /* stride: its absolute value */
} axis_layout;

/* Puts an axis at its place among n that are sorted by stride. */
static void insert_by_stride(axis_layout axes[4], int n, axis_layout axis)
{
    for (; n > 0 && axes[n - 1].stride > axis.stride; n--) {
        axes[n] = axes[n - 1];
    }
    axes[n] = axis;
}

/* No two elements of an output may overlap. Checked by a sufficient condition: with the axes sorted by
 * stride, each stride exceeds the extent of all smaller ones. */
static ag_status check_no_overlap(const agi_operand *x, agi_fail_function fail)
{
    axis_layout axes[4];
    int64_t extent = 0;
    for (int axis = 0; axis < 4; axis++) {
        const int64_t stride = x->t->strides[axis];
        const int64_t distance = x->size[axis] > 1 ? (stride < 0 ? -stride : stride) : 0;
        insert_by_stride(axes, axis, (axis_layout){distance, x->size[axis]});
    }
    for (int axis = 0; axis < 4; axis++) {
        if (axes[axis].size > 1 && axes[axis].stride <= extent) {
            return fail(AG_INVALID_ARGUMENT, x->name, "a stride of %s is %lld: its elements overlap", x->name,
                        (long long)axes[axis].stride);
        }
        extent += axes[axis].stride * (axes[axis].size - 1);
    }
    return AG_OK;
}

static ag_status check_operand(const agi_operand *x, agi_fail_function fail)
{
    ag_status status = check_pointer(x, fail);
    if (status != AG_OK || x->t->data == NULL || agi_count(x->size) == 0) {
        return status;
    }
    status = check_extent(x, fail);
    return status == AG_OK && x->output ? check_no_overlap(x, fail) : status;
}

/* Sets the interval of a checked operand. */
static void set_interval(agi_operand *x)
{
    const int64_t count = agi_count(x->size);
    x->begin = x->end = 0;
    x->contiguous = false;
    if (x->t->data == NULL || count == 0) {
        return;
    }
    int64_t below = 0, above = 0; /* the elements before and after the one at data */
    for (int axis = 0; axis < 4; axis++) {
        const int64_t stride = x->size[axis] > 1 ? x->t->strides[axis] : 0;
        *(stride < 0 ? &below : &above) += stride * (x->size[axis] - 1);
    }
    x->begin = (uintptr_t)x->t->data + (uintptr_t)below * x->bytes; /* below is negative: wraps back */
    x->end = (uintptr_t)x->t->data + ((uintptr_t)above + 1) * x->bytes;
    x->contiguous = above - below == count - 1;
}

static bool meet(const agi_operand *a, uintptr_t begin, uintptr_t end)
{
    return a->begin < end && begin < a->end;
}

static bool share_memory(const agi_operand *a, const agi_operand *b)
{
    return meet(a, b->begin, b->end) && (a->t->data == b->t->data || (a->contiguous && b->contiguous));
}

static ag_status check_outputs_apart(const agi_operand *x, int n,
                                     bool (*allowed)(const agi_operand *a, const agi_operand *b),
                                     agi_fail_function fail)
{
    for (int i = 0; i < n; i++) {
        for (int j = 0; j < n && x[i].output; j++) {
            if (i == j || !share_memory(&x[i], &x[j]) || (allowed != NULL && allowed(&x[i], &x[j]))) {
                continue;
            }
            return fail(AG_INVALID_ARGUMENT, x[i].name, "output %s at %p overlaps %s %s at %p", x[i].name,
                        x[i].t->data, x[j].output ? "output" : "input", x[j].name, x[j].t->data);
        }
    }
    return AG_OK;
}

ag_status agi_check_operands(agi_operand *x, int n,
                             bool (*allowed)(const agi_operand *a, const agi_operand *b),
                             agi_fail_function fail)
{
    for (int i = 0; i < n; i++) {
        const ag_status status = check_operand(&x[i], fail);
        if (status != AG_OK) {
            return status;
        }
        set_interval(&x[i]);
    }
    return check_outputs_apart(x, n, allowed, fail);
}

ag_status agi_check_workspace_apart(const agi_operand *x, int n, const void *workspace, size_t bytes,
                                    agi_fail_function fail)
{
    const uintptr_t begin = (uintptr_t)workspace;
    const uintptr_t end = bytes > UINTPTR_MAX - begin ? UINTPTR_MAX : begin + bytes;
    for (int i = 0; i < n; i++) {
        if (meet(&x[i], begin, end)) {
            return fail(AG_INVALID_ARGUMENT, x[i].name, "%s at %p overlaps the workspace at %p of %zu bytes",
                        x[i].name, x[i].t->data, workspace, bytes);
        }
    }
    return AG_OK;
}
