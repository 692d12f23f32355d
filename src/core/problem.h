/* A problem as the library keeps it: every default filled in, every field checked. */
#ifndef AGI_PROBLEM_H
#define AGI_PROBLEM_H

#include <stdbool.h>

#include "attngrad.h"

/* Copies *given, fills in the defaults and checks everything but the arrays, which the text form does not hold. */
ag_status agi_problem_complete(ag_problem *complete, const ag_problem *given);

/* Checks the arrays of a problem whose defaults are filled in: buckets and alibi_slopes. */
ag_status agi_problem_check_arrays(const ag_problem *p);

/* Returns a * b * c * d, or INT64_MAX if that overflows, for non-negative factors. */
int64_t agi_saturating_product(int64_t a, int64_t b, int64_t c, int64_t d);

/* Returns whether a * b * c * d <= limit, for non-negative factors, without overflow. */
bool agi_product_fits(int64_t a, int64_t b, int64_t c, int64_t d, int64_t limit);

/* Every flag that a problem may have. */
#define AGI_ALL_FLAGS                                                                                        \
    (AG_CAUSAL | AG_WINDOW | AG_SCALE | AG_SINK | AG_BIAS | AG_MASK | AG_TABLE | AG_ALIBI | AG_SLOPES |      \
     AG_PACKED)

static inline bool agi_has(const ag_problem *p, uint32_t flag)
{
    return (p->flags & flag) != 0;
}

/* Number of elements of an array whose four axes have these sizes. */
static inline int64_t agi_count(const int64_t size[4])
{
    return size[0] * size[1] * size[2] * size[3];
}

/* No offset or length exceeds this, and no window 8 times this, so that sums of a few of them cannot overflow. */
#define AGI_MAX_POSITION (INT64_C(1) << 59)

#endif
