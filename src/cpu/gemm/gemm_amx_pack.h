/* AMX tiles packed from the rows of a matrix of bfloat16 or float32. */
#ifndef AGI_CPU_GEMM_AMX_PACK_H
#define AGI_CPU_GEMM_AMX_PACK_H

#include "gemm/gemm.h"

/* A float32 is the exact sum of three bfloat16, 8 of its 24 mantissa bits each. Component 0 is the largest. */
enum { AMX_COMPONENTS = 3 };

/* Terms k0 .. k0 + k - 1 of a sum, at most AMX_DEPTH; component: which component of a float32 operand. */
typedef struct {
    int64_t k0, k;
    int component;
} agi_amx_terms;

/* n, limited to 0 .. max. */
static inline int64_t agi_clamp(int64_t n, int64_t max)
{
    return n < 0 ? 0 : n < max ? n : max;
}

/* Packs one tile: the terms t of 16 rows of A (or columns of B), from row (or column) mn to at most end - 1.
 * Padding is zero. by_k: a stored row has one term of all rows (or columns), else all terms of one. transpose:
 * AMX reads rows (or columns) and terms in the other order than they are stored. */
void agi_amx_pack(uint16_t *tile, const agi_matrix *x, bool by_k, bool transpose, int64_t mn, int64_t end,
                  const agi_amx_terms *t);

#endif
