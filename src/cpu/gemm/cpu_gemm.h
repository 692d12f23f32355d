/* The layer's matrix products: see core/matmul.h. */
#ifndef AGI_CPU_MATMUL_H
#define AGI_CPU_MATMUL_H

#include "core/matmul.h"

/* How a product may be cut: the size of a tile, at most, and steps that it should be a multiple of. */
typedef struct {
    int64_t rows, row_step, cols, col_step;
} agi_cut_limits;

/* Cuts C into about `tiles` or more, such that little is read and packed more than once. */
void agi_cut_evenly(const agi_matmul_op *op, int64_t tiles, const agi_cut_limits *limits,
                    agi_matmul_tile *at);

const agi_matmul_table *agi_cpu_matmul(const ag_plan *plan);

/* The table's entries for each real. */
size_t agi_product_scratch_f32(void);
size_t agi_product_scratch_f64(void);
void agi_product_cut_f32(const ag_plan *plan, const agi_matmul_op *op, int64_t tiles, agi_matmul_tile *at);
void agi_product_cut_f64(const ag_plan *plan, const agi_matmul_op *op, int64_t tiles, agi_matmul_tile *at);
void agi_product_run_f32(const ag_plan *plan, const agi_matmul_op *op, const agi_matmul_tile *at,
                         void *scratch);
void agi_product_run_f64(const ag_plan *plan, const agi_matmul_op *op, const agi_matmul_tile *at,
                         void *scratch);

#if defined(__x86_64__)
/* The same for the products that the AMX unit can compute. */
bool agi_product_on_amx(const agi_matmul_op *op);
size_t agi_product_scratch_amx(void);
void agi_product_cut_amx(const agi_matmul_op *op, int64_t tiles, agi_matmul_tile *at);
void agi_product_run_amx(const agi_matmul_op *op, const agi_matmul_tile *at, void *scratch);
#endif

#endif
