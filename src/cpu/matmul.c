/* The table of matrix products: which unit, which real. */
#include "matmul.h"

static bool on_amx(const ag_plan *plan, const agi_matmul_op *op)
{
#if defined(__x86_64__)
    return plan->isa == AG_ISA_AMX && agi_product_on_amx(op);
#else
    (void)plan, (void)op;
    return false;
#endif
}

static size_t scratch(const ag_plan *plan)
{
    const size_t bytes = plan->p.dtype == AG_F64 ? agi_product_scratch_f64() : agi_product_scratch_f32();
#if defined(__x86_64__)
    if (plan->isa == AG_ISA_AMX && agi_product_scratch_amx() > bytes) {
        return agi_product_scratch_amx();
    }
#endif
    return bytes;
}

static void cut(const ag_plan *plan, const agi_matmul_op *op, double work, agi_matmul_tile *at)
{
    if (on_amx(plan, op)) {
#if defined(__x86_64__)
        agi_product_cut_amx(op, work, at);
#endif
    } else if (op->dtype == AG_F64) {
        agi_product_cut_f64(plan, op, work, at);
    } else {
        agi_product_cut_f32(plan, op, work, at);
    }
}

static void run(const ag_plan *plan, const agi_matmul_op *op, const agi_matmul_tile *at, void *memory)
{
    if (on_amx(plan, op)) {
#if defined(__x86_64__)
        agi_product_run_amx(op, at, memory);
#endif
    } else if (op->dtype == AG_F64) {
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
