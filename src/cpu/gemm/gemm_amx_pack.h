/* Tiles of the AMX unit from the rows of a matrix of bfloat16 or float32. */
#ifndef AGI_CPU_MATMUL_AMX_PACK_H
#define AGI_CPU_MATMUL_AMX_PACK_H

#include "core/matmul.h"

/* Parts of a float32, each a bfloat16. */
enum { AMX_PARTS = 3 };

/* Terms k0 .. k0 + k - 1 of a sum, AMX_DEPTH at most; of float32, which part. */
typedef struct {
    int64_t k0, k;
    int part;
} agi_amx_terms;

static inline int64_t agi_clip(int64_t n, int64_t most)
{
    return n < 0 ? 0 : n < most ? n : most;
}

/* One tile of either operand: lines (rows of A, columns of B) from `line` on, but none from `end` on, by terms; what is
 * not there or does not count is zero. across: the stored rows are terms. turned: lines and terms are stored the
 * other way round than the unit reads them. */
void agi_amx_pack(uint16_t *tile, const agi_matrix *x, bool across, bool turned, int64_t line, int64_t end,
                  const agi_amx_terms *t);

#endif
