/* The implementations of matrix products that cpu_gemm.c chooses from, op by op. */
#ifndef AGI_CPU_GEMM_IMPL_H
#define AGI_CPU_GEMM_IMPL_H

#include "gemm/gemm.h"

typedef struct {
    /* Can it compute this op of this plan? */
    bool (*accepts)(const ag_plan *plan, const agi_gemm_op *op);

    /* Its scratch is 0 if it accepts no op of the plan. */
    agi_gemm_table table;
} agi_gemm_impl;

extern const agi_gemm_impl agi_gemm_vec_f32, agi_gemm_vec_f64;
extern const agi_gemm_impl agi_gemm_amx; /* compiled for x86-64 only */

#endif
