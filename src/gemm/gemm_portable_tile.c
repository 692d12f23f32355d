/* One tile of a product in portable C, compiled twice, with real = float and real = double. Blocks of A and B are
 * packed into panels of reals, whatever their dtype, strides and transposition, so that one micro-kernel serves all;
 * its inner loops have constant bounds, so that a compiler can vectorise them. */
#include <string.h>

#include "core/number.h"
#include "core/real.h"
#include "gemm/gemm_portable.h"

enum { TILE_M = AGI_PORTABLE_M, TILE_N = AGI_PORTABLE_N, TILE_K = 256 };

/* The micro-kernel computes MR rows by NR columns of C: 32 bytes per row. */
enum { MR = 4, NR = 32 / sizeof(real) };

typedef struct {
    real a[TILE_M * TILE_K];
    real b[TILE_K * TILE_N];
    real c[TILE_M * TILE_N];
    real row[TILE_K]; /* a row of a stored matrix, converted to reals */
} scratch;

/* A block of an operand to pack: rows mn0 .. mn0 + mn - 1 of A (or columns of B), terms k0 .. k0 + k - 1. It
 * is packed into panels that are `width` rows (or columns) wide. */
typedef struct {
    int64_t width, mn0, mn, k0, k;
} block;

/* ---- Packing ---- */

/* Loads elements first .. first + n - 1 of a stored row; zeros if the row is padding. */
static void load_row(real *to, const agi_matrix *matrix, int64_t row, int64_t first, int64_t n)
{
    const int64_t start = row * matrix->row_stride + first * matrix->col_stride;
    const bool valid = agi_row_is_valid(matrix, row);
    for (int64_t i = 0; i < n; i++) {
        to[i] = valid ? (real)agi_load(matrix->dtype, matrix->data, start + i * matrix->col_stride) : 0;
    }
}

/* Packs a stored row that has one term of all rows of A (or columns of B): it becomes row k of every panel. */
static void scatter_to_panels(real *to, const real *row, const block *at, int64_t k)
{
    for (int64_t mn = 0; mn < at->mn; mn += at->width) {
        const int64_t n = at->mn - mn < at->width ? at->mn - mn : at->width;
        memcpy(to + mn * at->k + k * at->width, row + mn, (size_t)n * sizeof *to);
    }
}

/* Packs a stored row that has all terms of one row of A (or column of B): it becomes column mn of one panel. */
static void scatter_to_column(real *to, const real *row, const block *at, int64_t mn)
{
    real *const first = to + mn / at->width * at->width * at->k + mn % at->width;
    for (int64_t k = 0; k < at->k; k++) {
        first[k * at->width] = row[k];
    }
}

/* Packs a block into panels [k][width], the last one padded with zeros. by_k: a stored row has one term of
 * all rows of A or columns of B (A is transposed, or B is not), else all terms of one of them. */
static void pack(scratch *s, real *to, const agi_matrix *matrix, bool by_k, const block *at)
{
    memset(to, 0, (size_t)((at->mn + at->width - 1) / at->width * at->width * at->k) * sizeof *to);
    for (int64_t k = 0; k < at->k && by_k; k++) {
        load_row(s->row, matrix, at->k0 + k, at->mn0, at->mn);
        scatter_to_panels(to, s->row, at, k);
    }
    for (int64_t mn = 0; mn < at->mn && !by_k; mn++) {
        load_row(s->row, matrix, at->mn0 + mn, at->k0, at->k);
        scatter_to_column(to, s->row, at, mn);
    }
}

/* ---- The product ---- */

/* Adds the product of a panel [k][MR] of A and a panel [k][NR] of B to c. The sum starts from zero, so that the error
 * of a long sum grows with the number of blocks, not of terms. */
static void multiply_panels(int64_t k, const real *restrict a, const real *restrict b, real *restrict c)
{
    real sum[MR][NR] = {{0}};
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

static void add_product(scratch *s, const agi_product *p, const agi_gemm_tile *tile)
{
    const int64_t K = agi_depth(p);
    for (int64_t k0 = 0; k0 < K && !agi_cancelled(tile->exec); k0 += TILE_K) {
        const int64_t k = K - k0 < TILE_K ? K - k0 : TILE_K;
        const block in_a = {MR, tile->i0, tile->m, k0, k}, in_b = {NR, tile->j0, tile->n, k0, k};
        pack(s, s->a, &p->a, p->a.transposed, &in_a);
        pack(s, s->b, &p->b, !p->b.transposed, &in_b);
        for (int64_t j = 0; j < tile->n; j += NR) {
            for (int64_t i = 0; i < tile->m; i += MR) {
                multiply_panels(k, s->a + i * k, s->b + j * k, s->c + i * TILE_N + j);
            }
        }
    }
}

void REAL(agi_gemm_portable_run)(const agi_gemm_op *op, const agi_gemm_tile *tile, void *memory)
{
    scratch *s = memory;
    memset(s->c, 0, sizeof s->c);
    for (int p = 0; p < op->n_products; p++) {
        add_product(s, &op->products[p], tile);
    }
    for (int64_t i = 0; i < tile->m; i++) {
        for (int64_t j = 0; j < tile->n; j++) {
            const int64_t index = (tile->i0 + i) * op->n + tile->j0 + j;
            const double before = op->accumulate ? agi_load(op->dtype, op->c, index) : 0;
            agi_store(op->dtype, op->c, index, before + (double)s->c[i * TILE_N + j]);
        }
    }
}

size_t REAL(agi_gemm_portable_scratch)(void)
{
    return sizeof(scratch);
}
