/* Matrix products as work items: the tiles of all products of a list. Knows no kernel. */
#include "matmul.h"

#include "backend.h"

/* Tiles for each thread, so that threads end at about the same time. */
enum { TILES_A_THREAD = 2 };

typedef struct {
    const ag_plan *plan;
    const agi_matmul_table *table;
    const agi_matmul_op *ops;
    int n_ops;
    const agi_matmul_space *space;
    agi_matmul_tile size[AGI_MAX_OPS]; /* of a whole tile of each op */
    int64_t across[AGI_MAX_OPS];       /* tiles beside each other */
    int64_t tiles[AGI_MAX_OPS];        /* of each op */
    int64_t items;                     /* tiles of all ops */
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

/* Bytes that are asked for ahead, at most: they shall stay in a core's cache until they are used. */
enum { AHEAD_BYTES = 768 * 1024 };

static void add_range(agi_ahead *ahead, const agi_matrix *m)
{
    const int64_t bytes = m->rows * m->row_stride * (int64_t)ag_dtype_size(m->dtype);
    const uintptr_t at = (uintptr_t)m->data;
    bool wanted = ahead->n < AGI_MAX_RANGES && m->col_stride == 1 && bytes > 0;
    int64_t sum = bytes;
    for (int i = 0; i < ahead->n; i++) {
        wanted &= ahead->ranges[i].at != at;
        sum += (int64_t)(ahead->ranges[i].end - ahead->ranges[i].at);
    }
    if (wanted && sum <= AHEAD_BYTES) {
        ahead->ranges[ahead->n++] = (agi_range){at, at + (uintptr_t)bytes};
    }
}

/* While a thread has the first op's rows to do, which it has had in the step before: what the sums over all rows read
 * after it, most of which others have written. */
static void gather_ahead(const job *x, agi_ahead *ahead)
{
    ahead->first = ahead->n = 0;
    for (int o = 1; o < x->n_ops; o++) {
        for (int p = 0; p < x->ops[o].n_products; p++) {
            const agi_product *product = &x->ops[o].products[p];
            if (product->a.transposed) {
                add_range(ahead, &product->b);
                add_range(ahead, &product->a);
            }
        }
    }
}

static void run_tile(const job *x, int o, int64_t place, int64_t slot)
{
    const agi_matmul_op *op = &x->ops[o];
    const agi_matmul_tile *size = &x->size[o];
    agi_matmul_tile at = {.i0 = place / x->across[o] * size->m, .j0 = place % x->across[o] * size->n};
    at.m = op->m - at.i0 < size->m ? op->m - at.i0 : size->m;
    at.n = op->n - at.j0 < size->n ? op->n - at.j0 : size->n;
    agi_ahead ahead;
    if (o == 0 && x->plan->threads > 1) {
        gather_ahead(x, &ahead);
        at.ahead = ahead.n > 0 ? &ahead : NULL;
    }
    x->table->run(x->plan, op, &at, x->space->scratch + (size_t)slot * x->space->slot_bytes);
}

/* Items before those of a thread. Each has its share of every op, and not some of the ops: the same rows of all of
 * them, which it also has in the steps before and after. */
static int64_t items_before(const job *x, int64_t thread)
{
    int64_t n = 0;
    for (int o = 0; o < x->n_ops; o++) {
        n += agi_share(x->tiles[o], thread, x->plan->threads);
    }
    return n;
}

static void run_item(void *arg, int64_t item, int64_t slot)
{
    const job *x = arg;
    const int64_t threads = x->plan->threads;
    int64_t thread = item * threads / x->items; /* or a later one, where shares are uneven */
    while (item >= items_before(x, thread + 1)) {
        thread++;
    }
    item -= items_before(x, thread);
    for (int o = 0; o < x->n_ops; o++) {
        const int64_t first = agi_share(x->tiles[o], thread, threads);
        const int64_t n = agi_share(x->tiles[o], thread + 1, threads) - first;
        if (item < n) {
            run_tile(x, o, first + item, slot);
            return;
        }
        item -= n;
    }
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
    for (int o = 0; o < n_ops; o++) {
        work += work_of(&ops[o]);
    }
    for (int o = 0; o < n_ops; o++) {
        if (ops[o].m > 0 && ops[o].n > 0) {
            const int64_t a_thread = (int64_t)(TILES_A_THREAD * work_of(&ops[o]) / work + 0.5);
            const int64_t wanted = plan->threads == 1 ? 1 : plan->threads * (a_thread > 1 ? a_thread : 1);
            x.table->cut(plan, &ops[o], wanted, &x.size[o]);
            x.across[o] = pieces(ops[o].n, x.size[o].n);
            x.tiles[o] = pieces(ops[o].m, x.size[o].m) * x.across[o];
            x.items += x.tiles[o];
        }
    }
    return agi_parallel_for(plan, exec, x.items, run_item, &x);
}
