/* The layer's matrix products: see core/matmul.h. */
#ifndef AGI_CPU_MATMUL_H
#define AGI_CPU_MATMUL_H

#include "../core/matmul.h"

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

#endif
