/* The table of matrix products: which unit, which real. */
#include "cpu/gemm/cpu_gemm.h"

static int64_t pieces(int64_t n, int64_t size)
{
    return (n + size - 1) / size;
}

/* Each column of tiles reads all of A, each row of them all of B. A stored across is packed, unless small. So may be B,
 * but rows of A lie in the cache of the thread that has written them, and fetching them from there costs as much. */
static int64_t cost_of(const agi_matmul_op *op, int64_t down, int64_t across)
{
    const int64_t a = op->n_products > 0 && op->products[0].a.transposed ? 2 : 1;
    return across * op->m * a + down * op->n;
}

void agi_cut_evenly(const agi_matmul_op *op, int64_t tiles, const agi_cut_limits *limits, agi_matmul_tile *at)
{
    const int64_t least_down = pieces(op->m, limits->rows), least_across = pieces(op->n, limits->cols);
    const int64_t most_down = pieces(op->m, limits->row_step), most_across = pieces(op->n, limits->col_step);
    int64_t down = most_down, across = most_across;
    for (int64_t x = least_across; x <= most_across && x < least_across + tiles; x++) {
        int64_t y = pieces(tiles, x) < least_down ? least_down : pieces(tiles, x);
        y = y > most_down ? most_down : y;
        if ((x * y >= tiles || x == most_across) && cost_of(op, y, x) < cost_of(op, down, across)) {
            down = y;
            across = x;
        }
    }
    at->m = pieces(pieces(op->m, down), limits->row_step) * limits->row_step;
    at->n = pieces(pieces(op->n, across), limits->col_step) * limits->col_step;
}

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

static void cut(const ag_plan *plan, const agi_matmul_op *op, int64_t tiles, agi_matmul_tile *at)
{
    if (on_amx(plan, op)) {
#if defined(__x86_64__)
        agi_product_cut_amx(op, tiles, at);
#endif
    } else if (op->dtype == AG_F64) {
        agi_product_cut_f64(plan, op, tiles, at);
    } else {
        agi_product_cut_f32(plan, op, tiles, at);
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
