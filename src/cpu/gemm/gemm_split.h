/* How C is split into tiles. */
#ifndef AGI_CPU_GEMM_SPLIT_H
#define AGI_CPU_GEMM_SPLIT_H

#include "gemm/gemm.h"

/* A tile has at most max_m rows and max_n columns; multiples of m_step and n_step are computed best. */
typedef struct {
    int64_t max_m, m_step, max_n, n_step;
} agi_tile_limits;

/* Splits C into n_tiles tiles or a few more, such that little of A and B is read and packed more than once: sets m and
 * n of the tile. */
void agi_split_evenly(const agi_gemm_op *op, int64_t n_tiles, const agi_tile_limits *limits,
                      agi_gemm_tile *tile);

#endif
