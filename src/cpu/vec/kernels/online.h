/* The shift m of the online softmax, for the kernels: weights are 2^(x - m). m follows the running maximum of x, but
 * may lag behind it by up to MIN_GROWTH. */
#ifndef AGI_CPU_ONLINE_H
#define AGI_CPU_ONLINE_H

#include "cpu/vec/kernels/vec.h"

/* m moves, and sums are rescaled, only if the maximum exceeds it by at least this: until then weights grow to at most
 * 2^8. */
#define MIN_GROWTH 8

/* m, or 0 for a lane that has seen no key yet (m = -infinity), so that its 2^(x - m) is 0, not NaN. */
INLINE vec v_shift(vec m)
{
    return v_select(v_less(v_set1((real)-INFINITY), m), m, v_set1(0));
}

/* The new m of a lane, given the maximum of its new x. A NaN maximum becomes m. */
INLINE vec v_grow(vec m, vec highest)
{
    const vmask keep = v_less(highest, v_add(m, v_set1(MIN_GROWTH)));
    const vmask no_key = v_less(highest, v_set1(-REAL_MAX));
    return v_select(keep, m, v_select(no_key, m, highest));
}

/* Moves a vector of m, given the maxima of the new x. *factor: by what the partial sums are to be rescaled; *grown: the
 * lanes whose m moved. Returns whether a lane that had seen a key is to be rescaled. */
INLINE bool v_move_shift(vec highest, real *m, vec *shift, vec *factor, vmask *grown)
{
    const vec no_key = v_set1((real)-INFINITY), before = v_load(m), after = v_grow(before, highest);
    *grown = v_less(before, after);
    *shift = v_shift(after);
    *factor = v_select(*grown, v_exp2(v_sub(before, *shift)), v_set1(1));
    v_store(m, after);
    return v_any(v_less(no_key, v_select(*grown, before, no_key)));
}

#endif
