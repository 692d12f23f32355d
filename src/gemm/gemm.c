/* Runs a list of matrix products as work items: each item is one tile of one op. Knows no implementation but
 * the portable one. */
#include "gemm/gemm.h"

#include "core/backend.h"

/* Tiles per thread: more than one, so that all threads end at about the same time. */
enum { TILES_PER_THREAD = 2 };

typedef struct {
    const ag_plan *plan;
    const agi_gemm_table *table;
    const agi_gemm_op *ops;
    int n_ops;
    const agi_gemm_space *space;
    agi_exec *exec;
    /* per op */
    agi_gemm_tile size[AGI_MAX_OPS]; /* m and n of a whole tile */
    int64_t tile_cols[AGI_MAX_OPS];  /* tiles per row of tiles */
    int64_t n_tiles[AGI_MAX_OPS];
    int64_t n_items; /* tiles of all ops */
} gemm_job;

static const agi_gemm_table *table_of(const ag_plan *plan)
{
    return plan->backend->gemm == NULL ? &agi_gemm_portable : plan->backend->gemm;
}

void agi_gemm_lay_out(agi_gemm_space *space, agi_arena *arena, const ag_plan *plan)
{
    const size_t bytes = table_of(plan)->scratch(plan);
    space->bytes_per_thread = (bytes + AGI_CACHE_LINE - 1) / AGI_CACHE_LINE * AGI_CACHE_LINE;
    space->scratch = agi_take(arena, plan->threads, space->bytes_per_thread);
}

static int64_t div_up(int64_t n, int64_t size)
{
    return (n + size - 1) / size;
}

/* ---- Prefetching ---- */

/* Bytes to prefetch per tile, at most: they have to stay in a core's cache until they are used. */
enum { MAX_PREFETCH_BYTES = 768 * 1024 };

static void add_matrix(agi_prefetch_list *list, const agi_matrix *m)
{
    const int64_t bytes = m->rows * m->row_stride * (int64_t)ag_dtype_size(m->dtype);
    const uintptr_t at = (uintptr_t)m->data;
    bool wanted = list->n < AGI_MAX_RANGES && m->col_stride == 1 && bytes > 0;
    int64_t sum = bytes;
    for (int i = 0; i < list->n; i++) {
        wanted &= list->ranges[i].at != at;
        sum += (int64_t)(list->ranges[i].end - list->ranges[i].at);
    }
    if (wanted && sum <= MAX_PREFETCH_BYTES) {
        list->ranges[list->n++] = (agi_range){at, at + (uintptr_t)bytes};
    }
}

/* Lists the operands of the later ops that sum over all rows (their A is transposed): other threads have
 * written most of these rows. They are prefetched during the first op, whose own rows are still in the
 * thread's cache from the list of ops before. */
static void list_later_operands(const gemm_job *job, agi_prefetch_list *list)
{
    list->first = list->n = 0;
    for (int o = 1; o < job->n_ops; o++) {
        for (int p = 0; p < job->ops[o].n_products; p++) {
            const agi_product *product = &job->ops[o].products[p];
            if (product->a.transposed) {
                add_matrix(list, &product->b);
                add_matrix(list, &product->a);
            }
        }
    }
}

/* ---- Items ---- */

/* Runs tile number `index` of op o; tiles are counted row by row. */
static void run_tile(const gemm_job *job, int o, int64_t index, int64_t thread)
{
    const agi_gemm_op *op = &job->ops[o];
    const agi_gemm_tile *size = &job->size[o];
    agi_gemm_tile tile = {.i0 = index / job->tile_cols[o] * size->m,
                          .j0 = index % job->tile_cols[o] * size->n,
                          .exec = job->exec};
    tile.m = op->m - tile.i0 < size->m ? op->m - tile.i0 : size->m;
    tile.n = op->n - tile.j0 < size->n ? op->n - tile.j0 : size->n;
    agi_prefetch_list list;
    if (o == 0 && job->plan->threads > 1) {
        list_later_operands(job, &list);
        tile.prefetch = list.n > 0 ? &list : NULL;
    }
    job->table->run(job->plan, op, &tile,
                    job->space->scratch + (size_t)thread * job->space->bytes_per_thread);
}

/* The first item of a thread's share. A share has tiles of every op, not all tiles of some ops: a thread then
 * computes the same rows in all ops, and in the lists before and after, and finds them in its cache. */
static int64_t first_item(const gemm_job *job, int64_t share)
{
    int64_t n = 0;
    for (int o = 0; o < job->n_ops; o++) {
        n += agi_share(job->n_tiles[o], share, job->plan->threads);
    }
    return n;
}

static void run_item(void *arg, int64_t item, int64_t thread)
{
    const gemm_job *job = arg;
    const int64_t n_shares = job->plan->threads;
    /* A first guess: the item is in this share or, if shares are uneven, in a later one. */
    int64_t share = item * n_shares / job->n_items;
    while (item >= first_item(job, share + 1)) {
        share++;
    }
    item -= first_item(job, share);
    for (int o = 0; o < job->n_ops; o++) {
        const int64_t first = agi_share(job->n_tiles[o], share, n_shares);
        const int64_t n = agi_share(job->n_tiles[o], share + 1, n_shares) - first;
        if (item < n) {
            run_tile(job, o, first + item, thread);
            return;
        }
        item -= n;
    }
}

/* ---- The list ---- */

/* Number of multiplications of an op, plus one per element of C for the store. */
static double work_of(const agi_gemm_op *op)
{
    double depth = 1;
    for (int p = 0; p < op->n_products; p++) {
        depth += (double)agi_depth(&op->products[p]);
    }
    return depth * (double)op->m * (double)op->n;
}

/* Splits C of op o into tiles; `work` is the work of all ops. */
static void split_op(gemm_job *job, int o, double work)
{
    const agi_gemm_op *op = &job->ops[o];
    const int64_t threads = job->plan->threads;
    if (op->m > 0 && op->n > 0) {
        const int64_t per_thread = (int64_t)(TILES_PER_THREAD * work_of(op) / work + 0.5);
        const int64_t wanted = threads == 1 ? 1 : threads * (per_thread > 1 ? per_thread : 1);
        job->table->split(job->plan, op, wanted, &job->size[o]);
        job->tile_cols[o] = div_up(op->n, job->size[o].n);
        job->n_tiles[o] = div_up(op->m, job->size[o].m) * job->tile_cols[o];
        job->n_items += job->n_tiles[o];
    }
}

ag_status agi_gemm(const agi_gemm_op *ops, int n_ops, const ag_plan *plan, agi_exec *exec,
                   const agi_gemm_space *space)
{
    gemm_job job = {.plan = plan, .table = table_of(plan), .ops = ops, .n_ops = n_ops, .space = space};
    job.exec = exec;
    double work = 0;
    for (int o = 0; o < n_ops; o++) {
        work += work_of(&ops[o]);
    }
    for (int o = 0; o < n_ops; o++) {
        split_op(&job, o, work);
    }
    const agi_loop tiles = {job.n_items, work, run_item, &job};
    return agi_parallel_for(plan, exec, &tiles);
}
