/* One tile of a product in portable C, for float32 and float64: the parts of agi_gemm_portable. */
#ifndef AGI_GEMM_PORTABLE_H
#define AGI_GEMM_PORTABLE_H

#include "gemm/gemm.h"

/* Size of a tile of C. */
enum { AGI_PORTABLE_M = 64, AGI_PORTABLE_N = 128 };

size_t agi_gemm_portable_scratch_f32(void);
size_t agi_gemm_portable_scratch_f64(void);

void agi_gemm_portable_run_f32(const agi_gemm_op *op, const agi_gemm_tile *tile, void *scratch);
void agi_gemm_portable_run_f64(const agi_gemm_op *op, const agi_gemm_tile *tile, void *scratch);

#endif
