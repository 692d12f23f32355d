/* Stores rows of sums to C, rounded once, to nearest even. */
#ifndef AGI_CPU_GEMM_ROUND_H
#define AGI_CPU_GEMM_ROUND_H

#include <stdbool.h>

#include "core/number.h"
#include "core/real.h"

/* Sets elements first .. first + n - 1 of c to sum[0 .. n - 1], or adds these to them if `add` is true. */
void REAL(agi_round_row)(ag_dtype dtype, void *c, int64_t first, const real *sum, int64_t n, bool add);

#endif
