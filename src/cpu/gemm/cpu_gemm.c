/* Chooses the implementation of a matrix product: the first one that accepts the op. */
#include "cpu/gemm/cpu_gemm.h"

#include "cpu/gemm/gemm_impl.h"

static const agi_gemm_impl *const impls[] = {
#if defined(__x86_64__)
    &agi_gemm_amx,
#endif
    &agi_gemm_vec_f32,
    &agi_gemm_vec_f64,
};

enum { N_IMPLS = sizeof impls / sizeof impls[0] };

/* The last one accepts what the others do not. */
static const agi_gemm_table *table_for(const ag_plan *plan, const agi_gemm_op *op)
{
    int i = 0;
    while (i < N_IMPLS - 1 && !impls[i]->accepts(plan, op)) {
        i++;
    }
    return &impls[i]->table;
}

static size_t scratch(const ag_plan *plan)
{
    size_t largest = 0;
    for (int i = 0; i < N_IMPLS; i++) {
        const size_t bytes = impls[i]->table.scratch(plan);
        largest = bytes > largest ? bytes : largest;
    }
    return largest;
}

static void split(const ag_plan *plan, const agi_gemm_op *op, int64_t n_tiles, agi_gemm_tile *tile)
{
    table_for(plan, op)->split(plan, op, n_tiles, tile);
}

static void run(const ag_plan *plan, const agi_gemm_op *op, const agi_gemm_tile *tile, void *memory)
{
    table_for(plan, op)->run(plan, op, tile, memory);
}

const agi_gemm_table agi_cpu_gemm = {.scratch = scratch, .split = split, .run = run};
