/* The shift of the online softmax: 2^(x - m), with m the maximum so far, or near it. For files of kernels. */
#ifndef AGI_CPU_ONLINE_H
#define AGI_CPU_ONLINE_H

#include "cpu/vec/kernels/vec.h"

/* The sums so far are multiplied only when the maximum grew by more than this. */
#define LAZY 8

/* m where it is a number, else 0, so that 2^(x - m) of a lane that has seen nothing is 0, not NaN. */
INLINE vec v_shift(vec m)
{
    return v_select(v_less(v_set1((real)-INFINITY), m), m, v_set1(0));
}

/* The new m of a lane, given the maximum of its column. A lane that is NaN becomes NaN. */
INLINE vec v_grow(vec m, vec highest)
{
    const vmask keep = v_less(highest, v_add(m, v_set1(LAZY)));
    const vmask nothing = v_less(highest, v_set1(-REAL_MAX));
    return v_select(keep, m, v_select(nothing, m, highest));
}

/* Moves a vector of m by the maxima of its columns. *factor is what the sums so far are worth now; the result,
 * whether that is not 1 for a lane that had seen something; *grown, the lanes whose m is new. */
INLINE bool v_move_shift(vec highest, real *m, vec *shift, vec *factor, vmask *grown)
{
    const vec nothing = v_set1((real)-INFINITY), before = v_load(m), after = v_grow(before, highest);
    *grown = v_less(before, after);
    *shift = v_shift(after);
    *factor = v_select(*grown, v_exp2(v_sub(before, *shift)), v_set1(1));
    v_store(m, after);
    return v_any(v_less(nothing, v_select(*grown, before, nothing)));
}

#endif
