/* Matrix products as work items: the tiles of all products of a list. Knows no kernel. */
#include "matmul.h"

#include "backend.h"

/* Tiles for each thread, so that threads end at about the same time. */
enum { TILES_A_THREAD = 3 };

typedef struct {
    const ag_plan *plan;
    const agi_matmul_table *table;
    const agi_matmul_op *ops;
    int n_ops;
    const agi_matmul_space *space;
    agi_matmul_tile size[AGI_MAX_OPS]; /* of a whole tile of each op */
    int64_t across[AGI_MAX_OPS];       /* tiles beside each other */
    int64_t end[AGI_MAX_OPS];          /* number behind the last item of each op */
} job;

const agi_matmul_table *agi_matmul_of(const ag_plan *plan)
{
    return plan->backend->matmul == NULL ? &agi_matmul_portable : plan->backend->matmul(plan);
}

void agi_matmul_lay_out(agi_matmul_space *space, agi_arena *arena, const ag_plan *plan)
{
    const size_t bytes = agi_matmul_of(plan)->scratch(plan);
    space->slot_bytes = (bytes + AGI_CACHE_LINE - 1) / AGI_CACHE_LINE * AGI_CACHE_LINE;
    space->scratch = agi_take(arena, plan->threads, space->slot_bytes);
}

static int64_t pieces(int64_t n, int64_t size)
{
    return (n + size - 1) / size;
}

static void run_item(void *arg, int64_t item, int64_t slot)
{
    const job *x = arg;
    int o = 0;
    while (item >= x->end[o]) {
        o++;
    }
    const agi_matmul_op *op = &x->ops[o];
    const agi_matmul_tile *size = &x->size[o];
    const int64_t place = o == 0 ? item : item - x->end[o - 1];
    agi_matmul_tile at = {.i0 = place / x->across[o] * size->m, .j0 = place % x->across[o] * size->n};
    at.m = op->m - at.i0 < size->m ? op->m - at.i0 : size->m;
    at.n = op->n - at.j0 < size->n ? op->n - at.j0 : size->n;
    x->table->run(x->plan, op, &at, x->space->scratch + (size_t)slot * x->space->slot_bytes);
}

/* Multiplications of an op; at least one for each element of C, so that an empty sum is work too. */
static double work_of(const agi_matmul_op *op)
{
    double depth = 1;
    for (int p = 0; p < op->n_products; p++) {
        depth += (double)agi_depth(&op->products[p]);
    }
    return depth * (double)op->m * (double)op->n;
}

ag_status agi_matmul(const agi_matmul_op *ops, int n_ops, const ag_plan *plan, const ag_exec *exec,
                     const agi_matmul_space *space)
{
    job x = {.plan = plan, .table = agi_matmul_of(plan), .ops = ops, .n_ops = n_ops, .space = space};
    double work = 0;
    int64_t items = 0;
    for (int o = 0; o < n_ops; o++) {
        work += work_of(&ops[o]);
    }
    const double share = plan->threads == 1 ? work : work / (TILES_A_THREAD * (double)plan->threads);
    for (int o = 0; o < n_ops; o++) {
        if (ops[o].m > 0 && ops[o].n > 0) {
            x.table->cut(plan, &ops[o], 1 + (int64_t)(0.9 * work_of(&ops[o]) / share), &x.size[o]);
            x.across[o] = pieces(ops[o].n, x.size[o].n);
            items += pieces(ops[o].m, x.size[o].m) * x.across[o];
        }
        x.end[o] = items;
    }
    return agi_run_items(plan, exec, items, run_item, &x);
}
