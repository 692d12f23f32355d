/* The layer's matrix products: see core/matmul.h. */
#ifndef AGI_CPU_MATMUL_H
#define AGI_CPU_MATMUL_H

#include "../core/matmul.h"

/* n cut into the fewest pieces of at most `limit`, as even as can be, each but the last a multiple of step. */
static inline int64_t agi_even(int64_t n, int64_t limit, int64_t step)
{
    const int64_t pieces = (n + limit - 1) / limit;
    return ((n + pieces - 1) / pieces + step - 1) / step * step;
}

const agi_matmul_table *agi_cpu_matmul(const ag_plan *plan);

/* The table's entries for each real. */
size_t agi_product_scratch_f32(void);
size_t agi_product_scratch_f64(void);
void agi_product_cut_f32(const ag_plan *plan, const agi_matmul_op *op, double work, agi_matmul_tile *at);
void agi_product_cut_f64(const ag_plan *plan, const agi_matmul_op *op, double work, agi_matmul_tile *at);
void agi_product_run_f32(const ag_plan *plan, const agi_matmul_op *op, const agi_matmul_tile *at,
                         void *scratch);
void agi_product_run_f64(const ag_plan *plan, const agi_matmul_op *op, const agi_matmul_tile *at,
                         void *scratch);

#if defined(__x86_64__)
/* The same for the products that the AMX unit can compute. */
bool agi_product_on_amx(const agi_matmul_op *op);
size_t agi_product_scratch_amx(void);
void agi_product_cut_amx(const agi_matmul_op *op, double work, agi_matmul_tile *at);
void agi_product_run_amx(const agi_matmul_op *op, const agi_matmul_tile *at, void *scratch);
#endif

#endif
