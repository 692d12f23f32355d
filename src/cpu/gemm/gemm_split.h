/* How C is split into tiles. */
#ifndef AGI_CPU_GEMM_SPLIT_H
#define AGI_CPU_GEMM_SPLIT_H

#include "gemm/gemm.h"

/* A tile has at most max_m rows and max_n columns. Except at the edges of C its sizes are multiples of
 * m_step and n_step. */
typedef struct {
    int64_t max_m, m_step, max_n, n_step;
} agi_tile_limits;

/* Sets tile->m and tile->n such that C has about n_tiles tiles (fewer if C is small or the steps are coarse, more if
 * the limits demand it), and little of A and B is read and packed more than once. */
void agi_split_evenly(const agi_gemm_op *op, int64_t n_tiles, const agi_tile_limits *limits,
                      agi_gemm_tile *tile);

#endif
