/* The table of matrix products: which real. */
#include "matmul.h"

static size_t scratch(const ag_plan *plan)
{
    return plan->p.dtype == AG_F64 ? agi_product_scratch_f64() : agi_product_scratch_f32();
}

static void cut(const ag_plan *plan, const agi_matmul_op *op, double work, agi_matmul_tile *at)
{
    if (op->dtype == AG_F64) {
        agi_product_cut_f64(plan, op, work, at);
    } else {
        agi_product_cut_f32(plan, op, work, at);
    }
}

static void run(const ag_plan *plan, const agi_matmul_op *op, const agi_matmul_tile *at, void *memory)
{
    if (op->dtype == AG_F64) {
        agi_product_run_f64(plan, op, at, memory);
    } else {
        agi_product_run_f32(plan, op, at, memory);
    }
}

const agi_matmul_table *agi_cpu_matmul(const ag_plan *plan)
{
    static const agi_matmul_table table = {.scratch = scratch, .cut = cut, .run = run};
    (void)plan;
    return &table;
}
