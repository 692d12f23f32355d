/* Heads whose queries and keys are no more than a cache line's numbers: forward and vjp without blocks, spans and tiles,
 * whose keeping takes longer than such a head's arithmetic. The kernels are the table's own, in the order in which
 * the loops call them, so that the bits are the same. Compiled for each real. */
#ifndef AGI_CPU_SMALL_H
#define AGI_CPU_SMALL_H

#include "cpu/drivers/backward.h"
#include "cpu/drivers/rows.h"

/* Are the call's heads small, if they are short? Nothing but the scale on the scores, every row whole vectors of reals
 * where it lies, gradients of one head each. */
bool agi_small_call(const agi_call *call, const agi_kernels *k);

/* Is this one, with all of its rows? */
bool agi_small_head(const agi_head *x);

void agi_small_forward(const agi_row_scratch *s, const agi_head *x);

/* False, and nothing done: a query has no output, which the loops know to handle. */
bool agi_small_vjp(agi_backward_scratch *s, const agi_head *x);

#endif
