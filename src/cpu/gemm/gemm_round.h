/* Rows of sums on their way out: rounded once, to nearest even. */
#ifndef AGI_CPU_MATMUL_ROUND_H
#define AGI_CPU_MATMUL_ROUND_H

#include "core/number.h"
#include "cpu/real.h"

#define agi_round_row REAL_NAME(agi_round_row)

/* Elements first .. first + n - 1 of c become, or with add are increased by, sum[0 .. n - 1]. */
void agi_round_row(ag_dtype dtype, void *c, int64_t first, const real *sum, int64_t n, bool add);

#endif
