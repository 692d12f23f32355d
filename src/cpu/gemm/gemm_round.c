/* Rounding of rows: see gemm_round.h. Compiled twice, with real = float and real = double. Its loops have no branches,
 * so that compilers vectorise them. */
#include "cpu/gemm/gemm_round.h"

/* Added in float64, so that the sum is rounded once. */
static void add_row(ag_dtype dtype, void *c, int64_t first, const real *sum, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        agi_store(dtype, c, first + i, agi_load(dtype, c, first + i) + (double)sum[i]);
    }
}

void REAL(agi_round_row)(ag_dtype dtype, void *c, int64_t first, const real *sum, int64_t n, bool add)
{
    if (dtype == REAL_DTYPE) { /* this sum is rounded once too */
        real *to = (real *)c + first;
        for (int64_t i = 0; i < n; i++) {
            to[i] = add ? to[i] + sum[i] : sum[i];
        }
        return;
    }
    if (add) {
        add_row(dtype, c, first, sum, n);
        return;
    }
#ifndef AGI_REAL64
    uint16_t *to = (uint16_t *)c + first;
    for (int64_t i = 0; i < n && dtype == AG_BF16; i++) {
        to[i] = agi_to_bf16(sum[i]);
    }
    for (int64_t i = 0; i < n && dtype == AG_F16; i++) {
        to[i] = agi_to_f16(sum[i]);
    }
#endif
}
