/* One tile of a product, for one kind of accumulator: matmul_portable.c includes this file twice, with REAL
 * float and double, NR columns in a panel of B, and NAME(x) the name of x for that kind. There is no include
 * guard for that reason. */

/* The scratch of one thread: packed panels of A and B, the tile of C, one line of a matrix. */
typedef struct {
    REAL a[TILE_M * TILE_K];
    REAL b[TILE_K * TILE_N];
    REAL c[TILE_M * TILE_N];
    REAL line[TILE_K];
} NAME(tile);

/* Elements first .. first + n - 1 of a stored row, zeros where the row does not count. */
static void NAME(load_line)(REAL *line, const agi_matrix *x, int64_t row, int64_t first, int64_t n)
{
    const int64_t start = row * x->row_stride + first * x->col_stride;
    const bool counts = agi_row_counts(x, row);
    for (int64_t i = 0; i < n; i++) {
        line[i] = counts ? (REAL)agi_load(x->dtype, x->data, start + i * x->col_stride) : 0;
    }
}

/* One stored row of `lines` elements becomes step d of every panel. */
static void NAME(scatter_across)(REAL *to, const REAL *row, int64_t width, int64_t lines, int64_t d,
                                 int64_t depth)
{
    for (int64_t line = 0; line < lines; line += width) {
        const int64_t n = lines - line < width ? lines - line : width;
        memcpy(to + line * depth + d * width, row + line, (size_t)n * sizeof *to);
    }
}

/* One stored row becomes one line of a panel. */
static void NAME(scatter_along)(REAL *to, const REAL *row, int64_t width, int64_t line, int64_t depth)
{
    REAL *const first = to + line / width * width * depth + line % width;
    for (int64_t d = 0; d < depth; d++) {
        first[d * width] = row[d];
    }
}

/* Packs into panels of `width` lines, [depth][width] each, the last one filled up with zeros. The lines of
 * A are rows of the product, those of B are columns; across: a line lies across the stored rows. */
static void NAME(pack)(NAME(tile) * t, REAL *to, const agi_matrix *x, bool across, const block *at)
{
    memset(to, 0, (size_t)((at->lines + at->width - 1) / at->width * at->width * at->depth) * sizeof *to);
    for (int64_t d = 0; d < at->depth && across; d++) {
        NAME(load_line)(t->line, x, at->depth0 + d, at->line0, at->lines);
        NAME(scatter_across)(to, t->line, at->width, at->lines, d, at->depth);
    }
    for (int64_t line = 0; line < at->lines && !across; line++) {
        NAME(load_line)(t->line, x, at->line0 + line, at->depth0, at->depth);
        NAME(scatter_along)(to, t->line, at->width, line, at->depth);
    }
}

/* Adds the product of a panel [k][MR] of A and one [k][NR] of B to c. It starts from zero, so that the error
 * of a long sum grows with the number of blocks, not of terms. */
static void NAME(kernel)(int64_t k, const REAL *restrict a, const REAL *restrict b, REAL *restrict c)
{
    REAL sum[MR][NR] = {{0}};
    for (int64_t l = 0; l < k; l++) {
        for (int i = 0; i < MR; i++) {
            for (int j = 0; j < NR; j++) {
                sum[i][j] += a[l * MR + i] * b[l * NR + j];
            }
        }
    }
    for (int i = 0; i < MR; i++) {
        for (int j = 0; j < NR; j++) {
            c[i * TILE_N + j] += sum[i][j];
        }
    }
}

static void NAME(add_product)(NAME(tile) * t, const agi_product *p, const agi_matmul_tile *at)
{
    const int64_t K = agi_depth(p);
    for (int64_t k0 = 0; k0 < K; k0 += TILE_K) {
        const int64_t k = K - k0 < TILE_K ? K - k0 : TILE_K;
        const block in_a = {MR, at->i0, at->m, k0, k}, in_b = {NR, at->j0, at->n, k0, k};
        NAME(pack)(t, t->a, &p->a, p->a.transposed, &in_a);
        NAME(pack)(t, t->b, &p->b, !p->b.transposed, &in_b);
        for (int64_t j = 0; j < at->n; j += NR) {
            for (int64_t i = 0; i < at->m; i += MR) {
                NAME(kernel)(k, t->a + i * k, t->b + j * k, t->c + i * TILE_N + j);
            }
        }
    }
}

static void NAME(run_tile)(const agi_matmul_op *op, const agi_matmul_tile *at, NAME(tile) * t)
{
    memset(t->c, 0, sizeof t->c);
    for (int p = 0; p < op->n_products; p++) {
        NAME(add_product)(t, &op->products[p], at);
    }
    for (int64_t i = 0; i < at->m; i++) {
        for (int64_t j = 0; j < at->n; j++) {
            const int64_t index = (at->i0 + i) * op->n + at->j0 + j;
            const double held = op->accumulate ? agi_load(op->dtype, op->c, index) : 0;
            agi_store(op->dtype, op->c, index, held + (double)t->c[i * TILE_N + j]);
        }
    }
}
