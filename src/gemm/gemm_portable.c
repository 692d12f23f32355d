/* The portable implementation of matrix products: its table, which chooses between float32 and float64. */
#include "gemm/gemm_portable.h"

static size_t scratch(const ag_plan *plan)
{
    return plan->p.dtype == AG_F64 ? agi_gemm_portable_scratch_f64() : agi_gemm_portable_scratch_f32();
}

static void split(const ag_plan *plan, const agi_gemm_op *op, int64_t n_tiles, agi_gemm_tile *tile)
{
    (void)plan, (void)op, (void)n_tiles;
    tile->m = AGI_PORTABLE_M;
    tile->n = AGI_PORTABLE_N;
}

static void run(const ag_plan *plan, const agi_gemm_op *op, const agi_gemm_tile *tile, void *memory)
{
    (void)plan;
    if (op->dtype == AG_F64) {
        agi_gemm_portable_run_f64(op, tile, memory);
    } else {
        agi_gemm_portable_run_f32(op, tile, memory);
    }
}

const agi_gemm_table agi_gemm_portable = {.scratch = scratch, .split = split, .run = run};
