/* One tile of a product, for one kind of accumulator: matmul.c includes this file twice, with REAL float
 * and double and NAME(x) the name of x for that kind. There is no include guard for that reason. */

/* The scratch of one thread: packed panels of A and B, the tile of C, one line of a matrix. */
typedef struct {
    REAL a[AGI_TILE_M * AGI_TILE_K];
    REAL b[AGI_TILE_K * AGI_TILE_N];
    REAL c[AGI_TILE_M * AGI_TILE_N];
    REAL line[AGI_TILE_K];
} NAME(tile);

/* Elements first .. first + n - 1 of a stored row, zeros where the row does not count. */
static void NAME(load_line)(REAL *line, NAME(load_function) load, const agi_matrix *x, int64_t row,
                            int64_t first, int64_t n)
{
    if (x->lengths != NULL && row % x->group >= x->lengths[row / x->group]) {
        memset(line, 0, (size_t)n * sizeof *line);
        return;
    }
    const char *from = x->data;
    const int64_t start = row * x->row_stride + first * x->col_stride;
    load(line, x->dtype, from + start * (int64_t)ag_dtype_size(x->dtype), x->col_stride, n);
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
static void NAME(pack)(NAME(tile) * t, REAL *to, NAME(load_function) load, const agi_matrix *x, bool across,
                       const block *at)
{
    memset(to, 0, (size_t)((at->lines + at->width - 1) / at->width * at->width * at->depth) * sizeof *to);
    for (int64_t d = 0; d < at->depth && across; d++) {
        NAME(load_line)(t->line, load, x, at->depth0 + d, at->line0, at->lines);
        NAME(scatter_across)(to, t->line, at->width, at->lines, d, at->depth);
    }
    for (int64_t line = 0; line < at->lines && !across; line++) {
        NAME(load_line)(t->line, load, x, at->line0 + line, at->depth0, at->depth);
        NAME(scatter_along)(to, t->line, at->width, line, at->depth);
    }
}

static void NAME(add_product)(NAME(tile) * t, const agi_matmul_table *table, const agi_product *p,
                              const span *at)
{
    const int64_t K = p->a.transposed ? p->a.rows : p->a.cols;
    const int64_t mr = table->NAME(mr), nr = table->NAME(nr);
    for (int64_t k0 = 0; k0 < K; k0 += AGI_TILE_K) {
        const int64_t k = K - k0 < AGI_TILE_K ? K - k0 : AGI_TILE_K;
        const block in_a = {mr, at->i0, at->m, k0, k}, in_b = {nr, at->j0, at->n, k0, k};
        NAME(pack)(t, t->a, table->NAME(load), &p->a, p->a.transposed, &in_a);
        NAME(pack)(t, t->b, table->NAME(load), &p->b, !p->b.transposed, &in_b);
        for (int64_t j = 0; j < at->n; j += nr) {
            for (int64_t i = 0; i < at->m; i += mr) {
                table->NAME(kernel)(k, t->a + i * k, t->b + j * k, t->c + i * AGI_TILE_N + j, AGI_TILE_N);
            }
        }
    }
}

static void NAME(run_tile)(const job *x, const span *at, int64_t slot)
{
    NAME(tile) *t = (NAME(tile) *)(void *)(x->space->scratch + (size_t)slot * x->space->slot_bytes);
    memset(t->c, 0, sizeof t->c);
    for (int p = 0; p < x->op->n_products; p++) {
        NAME(add_product)(t, x->table, &x->op->products[p], at);
    }
    for (int64_t i = 0; i < at->m; i++) {
        for (int64_t j = 0; j < at->n; j++) {
            const int64_t index = (at->i0 + i) * x->op->n + at->j0 + j;
            const double held = x->op->accumulate ? agi_load(x->op->dtype, x->op->c, index) : 0;
            agi_store(x->op->dtype, x->op->c, index, held + (double)t->c[i * AGI_TILE_N + j]);
        }
    }
}
