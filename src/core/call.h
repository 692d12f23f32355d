/* One call of a map, checked: the arguments as the library keeps them, and what a backend asks about
 * them: the shape and dtype of each tensor, the rows of each sequence, who does which work. */
#ifndef AGI_CALL_H
#define AGI_CALL_H

#include <stdatomic.h>

#include "core/plan.h"

typedef struct {
    const ag_plan *plan;
    agi_map map;
    ag_args a; /* complete: fields that the caller's struct lacks are zero */
} agi_call;

/* Checks everything about a call before anything is written. A trace needs no outputs. */
typedef enum { AGI_RUN, AGI_TRACE } agi_purpose;
ag_status agi_call_check(agi_call *call, const ag_plan *plan, agi_map map, agi_purpose purpose,
                         const ag_args *args, const void *workspace, size_t bytes);
ag_status agi_merge_check(ag_merge_args *checked, const ag_plan *plan, const ag_merge_args *args);
ag_status agi_exec_check(ag_exec *checked, const ag_exec *exec);

/* What a tensor's axes are. */
typedef enum {
    AGI_SHAPE_Q, /* also its tangent and gradient, and so on */
    AGI_SHAPE_K,
    AGI_SHAPE_V,
    AGI_SHAPE_O,
    AGI_SHAPE_ROW, /* lse, mu and their cotangents */
    AGI_SHAPE_BIAS,
    AGI_SHAPE_MASK,
    AGI_SHAPE_TABLE,
    AGI_SHAPE_SINK
} agi_shape;

void agi_shape_of(const ag_problem *p, agi_shape shape, int64_t size[4]);

/* One sequence of the batch, packed or padded. */
typedef struct {
    int64_t b;        /* its number in this call */
    int64_t view;     /* its index on the batch axis of q, k, v, o, lse */
    int64_t q0, k0;   /* its first rows there */
    int64_t n_q, n_k; /* its lengths */
    int64_t shift;    /* query i stands at p_i = i + shift; key j at g_j = j + k_offset */
} agi_sequence;

void agi_sequence_of(agi_sequence *s, const agi_call *call, int64_t b);

/* Work items 0 .. n_items - 1, fixed by the shape. As many tasks as the plan has threads draw them: each from its own
 * share first, so that it finds in its cache what it wrote in the step before, then from those of the others. slot
 * names the task's scratch. Fails where exec's loop left items undone. */
typedef void (*agi_work)(void *arg, int64_t item, int64_t slot);
ag_status agi_run_items(const ag_plan *plan, const ag_exec *exec, int64_t n_items, agi_work work, void *arg);

/* Where the share of task number `task` of n begins. */
static inline int64_t agi_share(int64_t n_items, int64_t task, int64_t n)
{
    return n_items / n * task + n_items % n * task / n;
}

#endif
