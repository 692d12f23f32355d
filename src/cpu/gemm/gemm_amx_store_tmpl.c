/* Stores a block of sums to C: adds the bias, accumulates, rounds. A part of gemm_amx.c. */
#ifndef AGI_CPU_GEMM_AMX_STORE_TMPL
#define AGI_CPU_GEMM_AMX_STORE_TMPL

#include <string.h>

#include "core/number.h"
#include "cpu/drivers/tile.h"
#include "cpu/gemm/gemm_amx_block_tmpl.c"
#include "cpu/gemm/gemm_amx_pack.h"
#include "cpu/gemm/gemm_round.h"

/* Where the blocks of a tile go. */
typedef struct {
    const agi_gemm_op *op;
    const agi_gemm_tile *tile;
    const agi_product *bias; /* the product that adds one row to all rows but padding; or NULL */
    float *bias_row;         /* that row, padded to whole panels; zero without a bias */
} output;

/* Does this product add the same row to all rows? */
static bool is_bias(const agi_product *p)
{
    return agi_depth(p) == 1 && !p->a.transposed && p->a.row_stride == 0 && p->b.lengths == NULL;
}

/* The op's product that is a bias; or NULL. */
static const agi_product *find_bias(const agi_gemm_op *op)
{
    const agi_product *found = NULL;
    for (int p = 0; p < op->n_products; p++) {
        found = is_bias(&op->products[p]) ? &op->products[p] : found;
    }
    return found;
}

static void compute_bias_row(const output *x)
{
    const int64_t n = x->tile->n;
    memset(x->bias_row, 0, (size_t)agi_round_up(n, PANEL_COLS) * sizeof x->bias_row[0]);
    if (x->bias == NULL) {
        return;
    }
    const agi_matrix *a = &x->bias->a, *b = &x->bias->b;
    const double factor = agi_load(a->dtype, a->data, 0);
    const int64_t stride = b->transposed ? b->row_stride : b->col_stride;
    for (int64_t j = 0; j < n; j++) {
        x->bias_row[j] = (float)(factor * agi_load(b->dtype, b->data, (x->tile->j0 + j) * stride));
    }
}

/* Stores n sums of row r of a block: any dtype, accumulated or not. */
static void store_row(const output *x, const c_block *b, int64_t r, int64_t n)
{
    const agi_gemm_op *op = x->op;
    const int64_t row = x->tile->i0 + b->i + r;
    float *sums = b->c + r * b->ldc;
    for (int64_t j = 0; j < n && x->bias != NULL && agi_row_is_valid(&x->bias->a, row); j++) {
        sums[j] += x->bias_row[b->j + j];
    }
    REAL(agi_round_row)(op->dtype, op->c, row * op->n + x->tile->j0 + b->j, sums, n, op->accumulate);
}

/* Stores whole rows of a block to bfloat16. */
INLINE void store_bf16(const output *x, const c_block *b, int64_t rows, bool biased)
{
    const vec low = v_load(x->bias_row + b->j), high = v_load(x->bias_row + b->j + LANES);
    uint16_t *to = (uint16_t *)x->op->c + (x->tile->i0 + b->i) * x->op->n + x->tile->j0 + b->j;
    for (int64_t r = 0; r < rows; r++) {
        vec first = v_load(b->c + r * b->ldc), second = v_load(b->c + r * b->ldc + LANES);
        if (biased) {
            first = v_add(first, low);
            second = v_add(second, high);
        }
        _mm512_storeu_si512(to, (__m512i)_mm512_cvtne2ps_pbh(second, first));
        to += x->op->n;
    }
}

static void store_block(const output *x, const c_block *b, int64_t rows)
{
    const bool same_bias = x->bias == NULL || x->bias->a.lengths == NULL; /* for all rows */
    if (x->op->dtype != AG_BF16 || x->op->accumulate || !same_bias || b->j + PANEL_COLS > x->tile->n) {
        for (int64_t r = 0; r < rows; r++) {
            store_row(x, b, r, agi_clamp(x->tile->n - b->j, PANEL_COLS));
        }
    } else if (x->bias == NULL) {
        store_bf16(x, b, rows, false);
    } else {
        store_bf16(x, b, rows, true);
    }
}

#endif
