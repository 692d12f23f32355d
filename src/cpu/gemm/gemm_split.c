/* Splitting C into tiles: see gemm_split.h. */
#include "cpu/gemm/gemm_split.h"

static int64_t div_up(int64_t n, int64_t size)
{
    return (n + size - 1) / size;
}

static int64_t round_up(int64_t n, int64_t step)
{
    return div_up(n, step) * step;
}

/* The cost of a split of C into tile_rows rows and tile_cols columns of tiles: each column reads all of A, each row all
 * of B. An element of A costs 1, because another thread has just written it, and it comes from that thread's cache; an
 * element of B costs 1 too, because packing it takes about as long. A transposed A is fetched and packed: 2. */
static int64_t cost_of(const agi_gemm_op *op, int64_t tile_rows, int64_t tile_cols)
{
    const int64_t a = op->n_products > 0 && op->products[0].a.transposed ? 2 : 1;
    return tile_cols * op->m * a + tile_rows * op->n;
}

void agi_split_evenly(const agi_gemm_op *op, int64_t n_tiles, const agi_tile_limits *limits,
                      agi_gemm_tile *tile)
{
    const int64_t min_rows = div_up(op->m, limits->max_m), min_cols = div_up(op->n, limits->max_n);
    const int64_t max_rows = div_up(op->m, limits->m_step), max_cols = div_up(op->n, limits->n_step);
    int64_t best_rows = max_rows, best_cols = max_cols; /* rows and columns of tiles */
    for (int64_t cols = min_cols; cols <= max_cols && cols < min_cols + n_tiles; cols++) {
        int64_t rows = div_up(n_tiles, cols) < min_rows ? min_rows : div_up(n_tiles, cols);
        rows = rows > max_rows ? max_rows : rows;
        const bool enough = rows * cols >= n_tiles || cols == max_cols;
        if (enough && cost_of(op, rows, cols) < cost_of(op, best_rows, best_cols)) {
            best_rows = rows;
            best_cols = cols;
        }
    }
    tile->m = round_up(div_up(op->m, best_rows), limits->m_step);
    tile->n = round_up(div_up(op->n, best_cols), limits->n_step);
}
