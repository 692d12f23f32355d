/* A checked call of a map: its arguments as the library keeps them, and where each sequence begins in the tensors. */
#ifndef AGI_CALL_H
#define AGI_CALL_H

#include "core/parallel.h"
#include "core/tensors.h"

typedef struct {
    const ag_plan *plan;
    agi_map map;
    ag_args a;      /* a copy; fields that the caller's struct lacks are zero */
    agi_exec *exec; /* set after the check, by who runs the map; NULL: a trace */
} agi_call;

/* Is it a jvp that reads o and lse instead of writing them? */
static inline bool agi_given_o(const agi_call *call)
{
    return call->map == AGI_JVP && (call->a.flags & AG_GIVEN_O) != 0;
}

/* Checks everything about a call before anything is written. With AGI_TRACE, outputs may be absent. */
typedef enum { AGI_RUN, AGI_TRACE } agi_purpose;
ag_status agi_call_check(agi_call *call, const ag_plan *plan, agi_map map, agi_purpose purpose,
                         const ag_args *args, const void *workspace, size_t bytes);
ag_status agi_merge_check(ag_merge_args *checked, const ag_plan *plan, const ag_merge_args *args);

/* One sequence of the batch, packed or padded. */
typedef struct {
    int64_t b;        /* its index in this call */
    int64_t view;     /* its index on the batch axis of q, k, v, o, lse */
    int64_t q0, k0;   /* its first rows in those tensors */
    int64_t n_q, n_k; /* its lengths */
    int64_t shift;    /* query i has position p_i = i + shift */
    int64_t k_shift;  /* key j has position g_j = j + k_shift */
} agi_sequence;

void agi_sequence_of(agi_sequence *s, const agi_call *call, int64_t b);

#endif
