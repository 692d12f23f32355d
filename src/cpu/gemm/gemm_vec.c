/* One tile of a matrix product over the tile kernels: C in place where it is of this real, else in scratch and
 * rounded once; A in place where the kernel can read it; B in panels of PANEL columns, [depth][PANEL]; both in
 * place where they are so small that their rows stay in the cache. Compiled for each real. */
#include <string.h>

#include "core/number.h"
#include "cpu/gemm/cpu_gemm.h"
#include "cpu/gemm/gemm_round.h"
#include "cpu/drivers/tile.h"

/* Reals of B that a tile has packed at once, which stay in the cache of a core while all rows of A go by; of C,
 * where it is not in place. */
enum { B_SIZE = 768 * 1024 / sizeof(real), C_SIZE = 512 * 1024 / sizeof(real) };

/* Terms of a sum between which C is not touched, at most; A stored across has fewer, as more columns of B then pay
 * for copying it. Rows of A at once; where a panel of B has no more bytes than NEAR, more of them. */
enum { DEPTH = 1024, DEPTH_ACROSS = 384, ROWS = 48, ROWS_ACROSS = 96, ROWS_NEAR = 336, NEAR = 32 * 1024 };

typedef struct {
    real b[B_SIZE];
    real a[DEPTH * ROWS];
    real c[C_SIZE];
    uint8_t skip[DEPTH];
} scratch;

/* Where the kernel reads an operand: element (row, column) at p[row * rows + column * cols]. */
typedef struct {
    const real *p;
    int64_t rows, cols;
} operand;

/* What is being added: terms k0 .. k0 + k - 1 of one product, for this tile. */
typedef struct {
    const agi_kernels *kernels;
    const agi_product *p;
    const agi_matmul_tile *at;
    int64_t k0, k;
    scratch *s;
} part;

/* ---- Operands ---- */

/* skip[i]: stored row first + i does not count. NULL where all n do. */
static const uint8_t *skipped(scratch *s, const agi_matrix *x, int64_t first, int64_t n)
{
    uint8_t any = 0;
    for (int64_t i = 0; i < n && x->lengths != NULL; i++) {
        s->skip[i] = !agi_row_counts(x, first + i);
        any |= s->skip[i];
    }
    return any ? s->skip : NULL;
}

/* A block of the stored matrix as tile.h takes it; from the column on, so many of them. */
static agi_slice slice_of(const agi_matrix *x, int64_t col, int64_t cols, ag_tensor *t)
{
    t->data = (void *)((uintptr_t)x->data + (uintptr_t)(col * x->col_stride) * ag_dtype_size(x->dtype));
    t->strides[2] = x->row_stride;
    t->strides[3] = x->col_stride;
    return (agi_slice){t, x->dtype, 0, 0, 0, cols};
}

/* n rows of `cols` reals, one after another, ld apart in the copy; cols is the whole width but in the last panel. */
static void copy_rows(real *to, int64_t ld, const real *from, int64_t stride, int64_t n, int64_t cols)
{
    for (int64_t r = 0; r < n; r++) {
        memcpy(to + r * ld, from + r * stride, (size_t)cols * sizeof(real));
    }
}

/* Rows row .. row + n - 1, columns col .. col + cols - 1 of a stored matrix, one after another in `to`, whole
 * vectors wide; that width is the result. */
static int64_t pack_rows(const part *x, const agi_matrix *m, int64_t row, int64_t n, int64_t col,
                         int64_t cols, real *to)
{
    ag_tensor t = {.data = NULL};
    const int64_t width = agi_round_up(cols, x->kernels->lanes);
    const uint8_t *skip = skipped(x->s, m, row, n);
    if (m->dtype == REAL_DTYPE && m->col_stride == 1 && skip == NULL && width == cols) {
        copy_rows(to, width, (const real *)m->data + row * m->row_stride + col, m->row_stride, n, cols);
    } else {
        agi_get_rows(x->kernels, slice_of(m, col, cols, &t), row, n, skip, to);
    }
    return width;
}

/* Bytes of an operand that may stay where they are, though its terms lie far from each other. */
enum { SMALL = 192 * 1024 };

static bool small(const agi_matrix *m, int64_t rows)
{
    return m->row_stride * rows <= SMALL / (int64_t)sizeof(real);
}

/* Rows i .. i + m - 1 of A. */
static operand rows_of_a(const part *x, int64_t i, int64_t m)
{
    const agi_matrix *a = &x->p->a;
    const int64_t row = a->transposed ? x->k0 : i, n = a->transposed ? x->k : m;
    const int64_t col = a->transposed ? i : x->k0, cols = a->transposed ? m : x->k;
    const bool near = !a->transposed || small(a, n);
    if (a->dtype == REAL_DTYPE && near && skipped(x->s, a, row, n) == NULL) {
        const real *p = (const real *)a->data + row * a->row_stride + col * a->col_stride;
        return a->transposed ? (operand){p, a->col_stride, a->row_stride}
                             : (operand){p, a->row_stride, a->col_stride};
    }
    const int64_t width = pack_rows(x, a, row, n, col, cols, x->s->a);
    return a->transposed ? (operand){x->s->a, 1, width} : (operand){x->s->a, width, 1};
}

static bool b_in_place(const part *x)
{
    const agi_matrix *b = &x->p->b;
    return b->dtype == REAL_DTYPE && !b->transposed && b->col_stride == 1 &&
           x->at->n % x->kernels->lanes == 0 && small(b, x->k) && skipped(x->s, b, x->k0, x->k) == NULL;
}

/* B's panel of columns j .. j + n - 1, counted in C. */
static void pack_panel(const part *x, int64_t j, int64_t n, real *to)
{
    const agi_matrix *b = &x->p->b;
    ag_tensor t = {.data = NULL};
    if (b->transposed) {
        agi_get_panel(x->kernels, slice_of(b, x->k0, x->k, &t), j, n, skipped(x->s, b, j, n), to);
        return;
    }
    pack_rows(x, b, x->k0, x->k, j, n, to);
}

/* ---- The tile ---- */

/* Where a panel of B stays in the first cache, as many rows as there is place for pass by it; else some rows stay
 * there while the panels pass by. */
static int64_t rows_at_once(const part *x)
{
    if (x->k * PANEL * (int64_t)sizeof(real) <= NEAR) {
        return ROWS_NEAR;
    }
    return x->p->a.transposed ? ROWS_ACROSS : ROWS;
}

/* c += or = this part's product. */
static void add_part(const part *x, real *c, int64_t ldc, bool add)
{
    const agi_matmul_tile *at = x->at;
    const bool in_place = b_in_place(x);
    for (int64_t j = 0; j < at->n && !in_place; j += PANEL) {
        pack_panel(x, at->j0 + j, agi_min(PANEL, at->n - j), x->s->b + j * x->k);
    }
    const int64_t lanes = x->kernels->lanes, rows = rows_at_once(x);
    for (int64_t i = 0; i < at->m; i += rows) {
        const int64_t m = agi_min(rows, at->m - i);
        const operand a = rows_of_a(x, at->i0 + i, m);
        for (int64_t j = 0; j < at->n; j += PANEL) {
            const int64_t n = agi_round_up(agi_min(PANEL, at->n - j), lanes);
            const real *b = in_place ? (const real *)x->p->b.data + x->k0 * x->p->b.row_stride + at->j0 + j
                                     : x->s->b + j * x->k;
            const int64_t ldb = in_place ? x->p->b.row_stride : x->p->b.transposed ? PANEL : n;
            x->kernels->product_ahead(m, n, x->k, a.p, a.rows, a.cols, b, ldb, c + i * ldc + j, ldc, add,
                                      at->ahead);
        }
    }
}

/* How many terms of a product are added at once: pieces as even as can be. A function of the shapes alone. */
static int64_t piece_of(const agi_product *p)
{
    const int64_t K = agi_depth(p), limit = p->a.transposed ? DEPTH_ACROSS : DEPTH;
    const int64_t pieces = (K + limit - 1) / limit;
    return pieces == 0 ? 0 : (K + pieces - 1) / pieces;
}

static void add_all(part *x, const agi_matmul_op *op, real *c, int64_t ldc)
{
    bool add = false;
    for (int p = 0; p < op->n_products; p++) {
        x->p = &op->products[p];
        const int64_t K = agi_depth(x->p), piece = piece_of(x->p);
        for (x->k0 = 0; x->k0 < K; x->k0 += piece) {
            x->k = agi_min(piece, K - x->k0);
            add_part(x, c, ldc, add);
            add = true;
        }
    }
    for (int64_t i = 0; i < x->at->m && !add; i++) {
        memset(c + i * ldc, 0, (size_t)x->at->n * sizeof *c);
    }
}

static void put_tile(const agi_matmul_op *op, const agi_matmul_tile *at, const real *c, int64_t ldc)
{
    for (int64_t i = 0; i < at->m; i++) {
        agi_round_row(op->dtype, op->c, (at->i0 + i) * op->n + at->j0, c + i * ldc, at->n, op->accumulate);
    }
}

/* May C be where the sums grow? */
static bool c_in_place(const agi_matmul_op *op, int64_t lanes)
{
    return op->dtype == REAL_DTYPE && !op->accumulate && op->n % lanes == 0;
}

void REAL_NAME(agi_product_run)(const ag_plan *plan, const agi_matmul_op *op, const agi_matmul_tile *at,
                                void *memory)
{
    part x = {.kernels = agi_kernels_of(plan), .at = at, .s = memory};
    if (c_in_place(op, x.kernels->lanes)) {
        add_all(&x, op, (real *)op->c + at->i0 * op->n + at->j0, op->n);
    } else {
        const int64_t ldc = agi_round_up(at->n, PANEL);
        add_all(&x, op, x.s->c, ldc);
        put_tile(op, at, x.s->c, ldc);
    }
}

size_t REAL_NAME(agi_product_scratch)(void)
{
    return sizeof(scratch);
}

void REAL_NAME(agi_product_cut)(const ag_plan *plan, const agi_matmul_op *op, int64_t tiles,
                                agi_matmul_tile *at)
{
    int64_t piece = 1;
    for (int p = 0; p < op->n_products; p++) {
        piece = agi_max(piece, piece_of(&op->products[p]));
    }
    agi_cut_limits limits = {op->m, 4, agi_min(16, B_SIZE / piece / PANEL) * PANEL, PANEL};
    if (!c_in_place(op, agi_kernels_of(plan)->lanes)) {
        limits.rows = C_SIZE / limits.cols / 4 * 4;
    }
    agi_cut_evenly(op, tiles, &limits, at);
}
