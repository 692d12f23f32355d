/* One tile of a matrix product by the vector kernels, compiled twice, with real = float and real = double. An operand
 * is read in place if the kernel can read it there, else packed, B into panels [k][PANEL]. C is summed in place if
 * possible, else in scratch and then rounded once. */
#include <string.h>

#include "core/number.h"
#include "cpu/drivers/tile.h"
#include "cpu/gemm/gemm_impl.h"
#include "cpu/gemm/gemm_round.h"
#include "cpu/gemm/gemm_split.h"

/* B_SIZE: reals of B that are packed at once; they stay in the L2 cache while all rows of A are
 * multiplied. C_SIZE: reals of C that are summed in scratch. */
enum { B_SIZE = 768 * 1024 / sizeof(real), C_SIZE = 512 * 1024 / sizeof(real) };

/* Max terms that are summed in registers before C is read and written. Fewer if A is transposed: B is then packed for
 * more columns at once, which share the packing of A. */
enum { MAX_K = 1024, MAX_K_TRANSPOSED = 384 };

/* Rows of A per block; more if a panel of B has at most L1_BYTES bytes and stays in the L1 cache. */
enum { ROWS = 48, ROWS_TRANSPOSED = 96, ROWS_L1 = 336, L1_BYTES = 32 * 1024 };

/* Max bytes of an operand that is read in place though consecutive terms are far apart. */
enum { MAX_STRIDED_BYTES = 192 * 1024 };

typedef struct {
    real b[B_SIZE];
    real a[MAX_K * ROWS];
    real c[C_SIZE];
    uint8_t skip[MAX_K];
} scratch;

/* Where the kernel reads an operand: element (row, column) is p[row * row_stride + column * col_stride]. */
typedef struct {
    const real *p;
    int64_t row_stride, col_stride;
} operand;

/* What is being added to the tile: terms k0 .. k0 + k - 1 of product p. */
typedef struct {
    const agi_kernels *kernels;
    const agi_product *p;
    const agi_gemm_tile *tile;
    int64_t k0, k;
    scratch *s;
} term_block;

/* ---- Operands ---- */

/* Returns an array with skip[i] != 0 if stored row first + i is padding; NULL if none of the n rows is. */
static const uint8_t *skipped_rows(scratch *s, const agi_matrix *x, int64_t first, int64_t n)
{
    uint8_t any = 0;
    for (int64_t i = 0; i < n && x->lengths != NULL; i++) {
        s->skip[i] = !agi_row_is_valid(x, first + i);
        any |= s->skip[i];
    }
    return any ? s->skip : NULL;
}

/* Returns columns col .. col + cols - 1 of a stored matrix as a slice, for the functions of tile.h. The slice
 * refers to *t. */
static agi_slice slice_of(const agi_matrix *x, int64_t col, int64_t cols, ag_tensor *t)
{
    t->data = (void *)((uintptr_t)x->data + (uintptr_t)(col * x->col_stride) * ag_dtype_size(x->dtype));
    t->strides[2] = x->row_stride;
    t->strides[3] = x->col_stride;
    return (agi_slice){t, x->dtype, 0, 0, 0, cols};
}

/* Copies n rows of `cols` reals; row r begins at to + r * ld. */
static void copy_rows(real *to, int64_t ld, const real *from, int64_t stride, int64_t n, int64_t cols)
{
    for (int64_t r = 0; r < n; r++) {
        memcpy(to + r * ld, from + r * stride, (size_t)cols * sizeof(real));
    }
}

/* Packs rows row .. row + n - 1, columns col .. col + cols - 1 of a stored matrix into dense rows of whole vectors.
 * Returns their width. */
static int64_t pack_rows(const term_block *x, const agi_matrix *m, int64_t row, int64_t n, int64_t col,
                         int64_t cols, real *to)
{
    ag_tensor t = {.data = NULL};
    const int64_t width = agi_round_up(cols, x->kernels->lanes);
    const uint8_t *skip = skipped_rows(x->s, m, row, n);
    if (m->dtype == REAL_DTYPE && m->col_stride == 1 && skip == NULL && width == cols) {
        copy_rows(to, width, (const real *)m->data + row * m->row_stride + col, m->row_stride, n, cols);
    } else {
        agi_load_rows(x->kernels, slice_of(m, col, cols, &t), row, n, skip, to);
    }
    return width;
}

/* Are `rows` rows small enough to be read in place, column by column? */
static bool is_small(const agi_matrix *m, int64_t rows)
{
    return m->row_stride * rows <= MAX_STRIDED_BYTES / (int64_t)sizeof(real);
}

/* Returns rows i .. i + m - 1 of A, in place or packed. */
static operand rows_of_a(const term_block *x, int64_t i, int64_t m)
{
    const agi_matrix *a = &x->p->a;
    const int64_t row = a->transposed ? x->k0 : i, n = a->transposed ? x->k : m;
    const int64_t col = a->transposed ? i : x->k0, cols = a->transposed ? m : x->k;
    const bool in_place = a->dtype == REAL_DTYPE && (!a->transposed || is_small(a, n));
    if (in_place && skipped_rows(x->s, a, row, n) == NULL) {
        const real *p = (const real *)a->data + row * a->row_stride + col * a->col_stride;
        return a->transposed ? (operand){p, a->col_stride, a->row_stride}
                             : (operand){p, a->row_stride, a->col_stride};
    }
    const int64_t width = pack_rows(x, a, row, n, col, cols, x->s->a);
    return a->transposed ? (operand){x->s->a, 1, width} : (operand){x->s->a, width, 1};
}

static bool b_in_place(const term_block *x)
{
    const agi_matrix *b = &x->p->b;
    return b->dtype == REAL_DTYPE && !b->transposed && b->col_stride == 1 &&
           x->tile->n % x->kernels->lanes == 0 && is_small(b, x->k) &&
           skipped_rows(x->s, b, x->k0, x->k) == NULL;
}

/* Packs columns j .. j + n - 1 of B; j counts columns of C. */
static void pack_panel(const term_block *x, int64_t j, int64_t n, real *to)
{
    const agi_matrix *b = &x->p->b;
    ag_tensor t = {.data = NULL};
    if (b->transposed) {
        const uint8_t *skip = skipped_rows(x->s, b, j, n);
        REAL(agi_load_panel)(x->kernels, slice_of(b, x->k0, x->k, &t), j, n, skip, to);
        return;
    }
    pack_rows(x, b, x->k0, x->k, j, n, to);
}

/* Packs all panels of B for this tile, unless B can be read in place. Returns whether it packed them. */
static bool pack_b(const term_block *x)
{
    if (b_in_place(x)) {
        return false;
    }
    for (int64_t j = 0; j < x->tile->n; j += PANEL) {
        pack_panel(x, x->tile->j0 + j, agi_min(PANEL, x->tile->n - j), x->s->b + j * x->k);
    }
    return true;
}

/* Returns columns j .. j + n - 1 of the tile's part of B; n is a multiple of the vector length. */
static operand panel_of_b(const term_block *x, bool packed, int64_t j, int64_t n)
{
    const agi_matrix *b = &x->p->b;
    if (packed) {
        return (operand){x->s->b + j * x->k, b->transposed ? PANEL : n, 1};
    }
    return (operand){(const real *)b->data + x->k0 * b->row_stride + x->tile->j0 + j, b->row_stride, 1};
}

/* ---- The tile ---- */

/* Rows of A per block. If a panel of B fits in the L1 cache, many rows are multiplied by one panel after
 * another. Else few rows of A stay in that cache, and all panels are read once per block. */
static int64_t rows_per_block(const term_block *x)
{
    if (x->k * PANEL * (int64_t)sizeof(real) <= L1_BYTES) {
        return ROWS_L1;
    }
    return x->p->a.transposed ? ROWS_TRANSPOSED : ROWS;
}

/* c = or += the product of these terms. */
static void add_terms(const term_block *x, real *c, int64_t ldc, bool add)
{
    const agi_gemm_tile *tile = x->tile;
    const bool packed = pack_b(x);
    const int64_t rows = rows_per_block(x);
    for (int64_t i = 0; i < tile->m && !agi_cancelled(tile->exec); i += rows) {
        const int64_t m = agi_min(rows, tile->m - i);
        const operand a = rows_of_a(x, tile->i0 + i, m);
        for (int64_t j = 0; j < tile->n; j += PANEL) {
            const int64_t n = agi_round_up(agi_min(PANEL, tile->n - j), x->kernels->lanes);
            const operand b = panel_of_b(x, packed, j, n);
            x->kernels->product_prefetch(m, n, x->k, a.p, a.row_stride, a.col_stride, b.p, b.row_stride,
                                         c + i * ldc + j, ldc, add, tile->prefetch);
        }
    }
}

/* Terms of a product that are added at once: blocks of nearly equal size, determined by the shapes alone. */
static int64_t block_depth(const agi_product *p)
{
    const int64_t K = agi_depth(p), limit = p->a.transposed ? MAX_K_TRANSPOSED : MAX_K;
    const int64_t blocks = (K + limit - 1) / limit;
    return blocks == 0 ? 0 : (K + blocks - 1) / blocks;
}

static void add_products(term_block *x, const agi_gemm_op *op, real *c, int64_t ldc)
{
    bool add = false;
    for (int p = 0; p < op->n_products; p++) {
        x->p = &op->products[p];
        const int64_t K = agi_depth(x->p), step = block_depth(x->p);
        for (x->k0 = 0; x->k0 < K; x->k0 += step) {
            x->k = agi_min(step, K - x->k0);
            add_terms(x, c, ldc, add);
            add = true;
        }
    }
    for (int64_t i = 0; i < x->tile->m && !add; i++) {
        memset(c + i * ldc, 0, (size_t)x->tile->n * sizeof *c);
    }
}

static void store_tile(const agi_gemm_op *op, const agi_gemm_tile *tile, const real *c, int64_t ldc)
{
    for (int64_t i = 0; i < tile->m; i++) {
        const int64_t first = (tile->i0 + i) * op->n + tile->j0;
        REAL(agi_round_row)(op->dtype, op->c, first, c + i * ldc, tile->n, op->accumulate);
    }
}

/* Can the sums be accumulated in C itself? */
static bool c_in_place(const ag_plan *plan, const agi_gemm_op *op)
{
    return op->dtype == REAL_DTYPE && !op->accumulate && op->n % REAL(agi_kernels_of)(plan)->lanes == 0;
}

/* ---- The table ---- */

static void run(const ag_plan *plan, const agi_gemm_op *op, const agi_gemm_tile *tile, void *memory)
{
    term_block x = {.kernels = REAL(agi_kernels_of)(plan), .tile = tile, .s = memory};
    if (c_in_place(plan, op)) {
        add_products(&x, op, (real *)op->c + tile->i0 * op->n + tile->j0, op->n);
    } else {
        const int64_t ldc = agi_round_up(tile->n, PANEL);
        add_products(&x, op, x.s->c, ldc);
        store_tile(op, tile, x.s->c, ldc);
    }
}

static void split(const ag_plan *plan, const agi_gemm_op *op, int64_t n_tiles, agi_gemm_tile *tile)
{
    int64_t k = 1;
    for (int p = 0; p < op->n_products; p++) {
        k = agi_max(k, block_depth(&op->products[p]));
    }
    agi_tile_limits limits = {op->m, 4, agi_min(16, B_SIZE / k / PANEL) * PANEL, PANEL};
    if (!c_in_place(plan, op)) {
        limits.max_m = C_SIZE / limits.max_n / 4 * 4;
    }
    agi_split_evenly(op, n_tiles, &limits, tile);
}

static bool is_of_this_real(ag_dtype dtype)
{
    return (dtype == AG_F64) == (REAL_DTYPE == AG_F64);
}

static size_t scratch_bytes(const ag_plan *plan)
{
    return is_of_this_real(plan->p.dtype) ? sizeof(scratch) : 0;
}

static bool accepts(const ag_plan *plan, const agi_gemm_op *op)
{
    (void)plan;
    return is_of_this_real(op->dtype);
}

const agi_gemm_impl REAL(agi_gemm_vec) = {
    .accepts = accepts,
    .table = {.scratch = scratch_bytes, .split = split, .run = run},
};
