/* One tile of a matrix product of bfloat16 on the AMX unit: A where it stands, where the unit can read it there, B
 * packed; sums in float32, block by block, rounded once. Where one operand of a product is float32, it is the sum of
 * three bfloat16, 8 bits of its 24 each, and takes three steps. Compiled for AVX-512 and AMX, and reached only where
 * the processor has both. */
#include <string.h>

#include "cpu/gemm/cpu_gemm.h"
#include "cpu/gemm/gemm_amx_block_tmpl.c"
#include "cpu/gemm/gemm_amx_pack.h"
#include "cpu/gemm/gemm_round.h"
#include "cpu/drivers/tile.h"
#include "cpu/vec/kernels/vec.h"

/* A step is AMX_DEPTH terms of a sum. STEPS: as many of them as are added before C is visited. B_SIZE: numbers of B
 * that are packed at once and stay in the cache of a core. C_SIZE: of C, where it is visited more than once. */
enum { STEPS = 64, STEPS_TURNED = 16, B_SIZE = 576 * 1024, C_SIZE = 256 * 1024, COLS = 1024 };

/* Steps whose operands stay in the first cache while they pass it. A longer sum runs forward and backward by
 * turns, from one panel to the next, to find in that cache what it left there. */
enum { SHORT = 8 };

/* Numbers of a product that stay in the cache of a core by themselves. */
enum { NEAR = 512 * 1024 };

typedef struct {
    uint16_t b[B_SIZE];           /* [panel][step that has its own][2][AMX_AB] */
    uint16_t a[STEPS * STRIP_AB]; /* [step][3][AMX_AB] */
    float c[C_SIZE];
    float out[STRIP * PANEL_COLS];
    float bias[COLS];
    agi_amx_places strip[STEPS];
} scratch;

/* Which terms of which product each step is. Where one operand has parts, the other's tiles may be those of the step
 * before. */
typedef struct {
    const agi_product *p;
    agi_amx_terms terms;
    bool same_a, same_b;
    int64_t own; /* number of its tiles of B */
} step;

typedef struct {
    const agi_matmul_op *op;
    const agi_matmul_tile *at;
    int64_t strip;               /* rows of a strip, STRIP at most */
    bool far;                    /* does the product exceed the cache of a core? */
    const agi_product *constant; /* one that adds the same row to all rows that count; or NULL */
    int64_t n_own;               /* steps that have tiles of B of their own */
    int64_t n_steps, limit;      /* of this piece of the sum, and of a piece */
    bool first, last;            /* is it the sum's first, or last, piece? */
    step steps[STEPS];
    scratch *s;
} job;

/* ---- Packing ---- */

/* Of the strip at row i, high. */
static int64_t tiles_of(const job *x, int64_t i)
{
    return (agi_clip(x->at->m - i, x->strip) + AMX_ROWS - 1) / AMX_ROWS;
}

/* Panel q of B, one step of it. */
static void pack_pair(const job *x, const step *t, int64_t q)
{
    const agi_matrix *b = &t->p->b;
    const int64_t j = x->at->j0 + q * PANEL_COLS;
    uint16_t *to = x->s->b + (q * x->n_own + t->own) * 2 * AMX_AB;
    if (!t->same_b) {
        agi_amx_pack(to, b, !b->transposed, b->transposed, j, x->op->n, &t->terms);
        agi_amx_pack(to + AMX_AB, b, !b->transposed, b->transposed, j + AMX_LANES, x->op->n, &t->terms);
    }
}

/* Where B is far: along its stored rows, which the processor foresees. */
static void pack_b(const job *x)
{
    const int64_t panels = (x->at->n + PANEL_COLS - 1) / PANEL_COLS;
    const bool by_steps = x->far && x->n_steps > 0 && !x->steps[0].p->b.transposed;
    for (int64_t n = 0; n < x->n_steps && by_steps; n++) {
        for (int64_t q = 0; q < panels; q++) {
            pack_pair(x, &x->steps[n], q);
        }
    }
    for (int64_t q = 0; q < panels && !by_steps; q++) {
        for (int64_t n = 0; n < x->n_steps; n++) {
            pack_pair(x, &x->steps[n], q);
        }
    }
}

/* May the unit read `rows` rows from i on, and the step's terms, where they are? */
static bool a_in_place(const agi_matrix *a, int64_t i, int64_t rows, const step *t)
{
    bool all = a->dtype == AG_BF16 && !a->transposed && t->terms.k == AMX_DEPTH && i + rows <= a->rows;
    for (int64_t r = 0; r < rows && all && a->lengths != NULL; r++) {
        all = agi_row_counts(a, i + r);
    }
    return all;
}

/* A strip, from row i on, as the steps find it. The result: is a part of it where it stood? */
static bool get_strip(const job *x, int64_t i, int64_t tiles)
{
    bool in_place = false;
    for (int64_t n = 0; n < x->n_steps; n++) {
        const step *t = &x->steps[n];
        const agi_matrix *a = &t->p->a;
        uint16_t *to = x->s->a + n * STRIP_AB;
        agi_amx_places *at = &x->s->strip[n];
        if (t->same_a) {
            *at = at[-1];
        } else if (a_in_place(a, i, tiles * AMX_ROWS, t)) {
            *at = (agi_amx_places){.a = (const uint16_t *)a->data + i * a->row_stride + t->terms.k0,
                                   .tile = AMX_ROWS * a->row_stride,
                                   .stride = 2 * a->row_stride};
            in_place = true;
        } else {
            for (int64_t r = 0; r < tiles; r++) {
                agi_amx_pack(to + r * AMX_AB, a, a->transposed, a->transposed, i + r * AMX_ROWS, x->op->m,
                             &t->terms);
            }
            *at = (agi_amx_places){.a = to, .tile = AMX_AB, .stride = 64};
        }
        at->b = t->own * 2 * AMX_AB;
    }
    return in_place;
}

/* The strip is now where agi_amx_multiply() kept it. */
static void use_kept(const job *x)
{
    for (int64_t n = 0; n < x->n_steps; n++) {
        x->s->strip[n].a = x->s->a + n * STRIP_AB;
        x->s->strip[n].tile = AMX_AB;
        x->s->strip[n].stride = 64;
    }
}

/* From the first step's tiles of A to the second's, in numbers. */
static int64_t next_of(const job *x)
{
    const agi_amx_places *at = x->s->strip;
    return x->n_steps < 2 ? 0 : ((intptr_t)at[1].a - (intptr_t)at[0].a) / 2;
}

/* Is it as far from each step to the next? */
static bool is_even(const job *x)
{
    const agi_amx_places *at = x->s->strip;
    bool even = x->n_steps > 0 && x->n_own == x->n_steps;
    for (int64_t n = 1; n < x->n_steps && even; n++) {
        even = (intptr_t)at[n].a - (intptr_t)at[n - 1].a == 2 * next_of(x) && at[n].stride == at[0].stride;
    }
    return even;
}

/* ---- The way out ---- */

/* The row that is added to all. */
static void get_bias(const job *x)
{
    memset(x->s->bias, 0, (size_t)agi_round_up(x->at->n, PANEL_COLS) * sizeof x->s->bias[0]);
    if (x->constant == NULL) {
        return;
    }
    const agi_matrix *a = &x->constant->a, *b = &x->constant->b;
    const double factor = agi_load(a->dtype, a->data, 0);
    const int64_t stride = b->transposed ? b->row_stride : b->col_stride;
    for (int64_t j = 0; j < x->at->n; j++) {
        x->s->bias[j] = (float)(factor * agi_load(b->dtype, b->data, (x->at->j0 + j) * stride));
    }
}

/* One row, whatever there is to be done with it. */
static void put_row(const job *x, const agi_amx_block *b, int64_t r, int64_t n)
{
    const agi_matmul_op *op = x->op;
    const int64_t row = x->at->i0 + b->i + r;
    float *sums = b->c + r * b->ldc;
    for (int64_t j = 0; j < n && x->constant != NULL && agi_row_counts(&x->constant->a, row); j++) {
        sums[j] += x->s->bias[b->j + j];
    }
    agi_round_row(op->dtype, op->c, row * op->n + x->at->j0 + b->j, sums, n, op->accumulate);
}

/* Whole rows of a block to bfloat16. */
INLINE void put_bf16(const job *x, const agi_amx_block *b, int64_t rows, bool biased)
{
    const vec low = v_load(x->s->bias + b->j), high = v_load(x->s->bias + b->j + LANES);
    uint16_t *to = (uint16_t *)x->op->c + (x->at->i0 + b->i) * x->op->n + x->at->j0 + b->j;
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

static void put_block(const job *x, const agi_amx_block *b)
{
    const int64_t rows = agi_clip(x->at->m - b->i, x->strip);
    const bool all_rows = x->constant == NULL || x->constant->a.lengths == NULL;
    if (x->op->dtype != AG_BF16 || x->op->accumulate || !all_rows || b->j + PANEL_COLS > x->at->n) {
        for (int64_t r = 0; r < rows; r++) {
            put_row(x, b, r, agi_clip(x->at->n - b->j, PANEL_COLS));
        }
    } else if (x->constant == NULL) {
        put_bf16(x, b, rows, false);
    } else {
        put_bf16(x, b, rows, true);
    }
}

/* A share of the strip at row i of the tile, for the panel at column j. */
static void ask_next_strip(const job *x, int64_t i, int64_t j, agi_amx_goal *to)
{
    const agi_matrix *a = &x->steps[0].p->a;
    const int64_t share = (STRIP * PANEL_COLS + x->at->n - 1) / x->at->n, row = j / PANEL_COLS * share;
    if (a->dtype == AG_BF16 && !a->transposed) {
        to->a_stride = 2 * a->row_stride;
        to->a =
            (uintptr_t)a->data + (uintptr_t)((x->at->i0 + i + row) * to->a_stride + 2 * x->steps[0].terms.k0);
        to->a_rows = agi_clip(STRIP - row, share);
    }
}

/* The block at row i, column j. keep: of the strip's first panel. */
static void run_block(const job *x, int64_t i, int64_t j, bool even, bool keep)
{
    const agi_matmul_op *op = x->op;
    const agi_matmul_tile *at = x->at;
    const bool whole = x->first && x->last;
    const int64_t width = agi_round_up(at->n, PANEL_COLS), tiles = tiles_of(x, i);
    const agi_amx_block b = {i, j, tiles, whole ? PANEL_COLS : width,
                             whole ? x->s->out : x->s->c + i * width + j};
    agi_amx_pass over = {.at = x->s->strip,
                         .b = x->s->b + j * x->n_own * AMX_DEPTH,
                         .n_steps = x->n_steps,
                         .even = even,
                         .next = next_of(x),
                         .back = x->n_steps > SHORT && (at->j0 + j) / PANEL_COLS % 2 != 0,
                         .keep = keep ? x->s->a : NULL};
    if (x->far && x->last) {
        const int64_t size = (int64_t)ag_dtype_size(op->dtype);
        over.to.c = (uintptr_t)op->c + (uintptr_t)(((at->i0 + i) * op->n + at->j0 + j) * size);
        over.to.c_stride = op->n * size;
        over.to.c_steps = tiles * AMX_ROWS / 2;
    }
    if (x->far && x->n_steps > SHORT && i + x->strip < at->m) {
        ask_next_strip(x, i + x->strip, j, &over.to);
    }
    agi_amx_multiply(&over, &b, !x->first);
    if (x->last) {
        put_block(x, &b);
    }
}

/* ---- The tile ---- */

/* Panels from which on a strip that stood in place is read from a copy: its rows may lie so that few of them fit
 * in the first cache together. */
enum { MANY = 4 };

static void run_strip(const job *x, int64_t i)
{
    const int64_t tiles = tiles_of(x, i);
    const bool in_place = get_strip(x, x->at->i0 + i, tiles);
    const bool keep = in_place && tiles == 3 && x->n_steps > SHORT && x->at->n > MANY * PANEL_COLS;
    bool even = is_even(x);
    for (int64_t j = 0; j < x->at->n; j += PANEL_COLS) {
        run_block(x, i, j, even, keep && j == 0);
        if (keep && j == 0) {
            use_kept(x);
            even = is_even(x);
        }
    }
}

static void run_piece(job *x)
{
    pack_b(x);
    for (int64_t i = 0; i < x->at->m; i += x->strip) {
        run_strip(x, i);
    }
    x->n_steps = x->n_own = 0;
    x->first = false;
}

/* The same row times a number for every row: a bias. */
static bool is_constant(const agi_product *p)
{
    return agi_depth(p) == 1 && !p->a.transposed && p->a.row_stride == 0 && p->b.lengths == NULL;
}

/* Steps of a piece: turning A takes long, so that many columns of B should share it. */
static int64_t steps_of(const agi_matmul_op *op)
{
    bool turned = false;
    for (int p = 0; p < op->n_products; p++) {
        turned |= op->products[p].a.transposed;
    }
    return turned ? STEPS_TURNED : STEPS;
}

static bool is_far(const agi_matmul_op *op)
{
    int64_t numbers = op->m * op->n;
    for (int p = 0; p < op->n_products; p++) {
        numbers += agi_depth(&op->products[p]) * (op->m + op->n);
    }
    return numbers > NEAR;
}

static int parts_of(const agi_product *p)
{
    return p->a.dtype == AG_F32 || p->b.dtype == AG_F32 ? AMX_PARTS : 1;
}

static void add_steps(job *x, const agi_product *p)
{
    for (int64_t k0 = 0; k0 < agi_depth(p); k0 += AMX_DEPTH) {
        for (int part = parts_of(p) - 1; part >= 0; part--) { /* small ones first */
            if (x->n_steps == x->limit) {
                run_piece(x);
            }
            const bool more = x->n_steps > 0 && part < parts_of(p) - 1;
            const bool same_a = more && p->a.dtype == AG_BF16, same_b = more && p->b.dtype == AG_BF16;
            x->n_own += !same_b;
            x->steps[x->n_steps++] =
                (step){p, {k0, agi_clip(agi_depth(p) - k0, AMX_DEPTH), part}, same_a, same_b, x->n_own - 1};
        }
    }
}

/* The product that is a bias: sums begin with it. NULL: none. */
static const agi_product *constant_of(const agi_matmul_op *op)
{
    const agi_product *found = NULL;
    for (int p = 0; p < op->n_products; p++) {
        found = is_constant(&op->products[p]) ? &op->products[p] : found;
    }
    return found;
}

void agi_product_run_amx(const agi_matmul_op *op, const agi_matmul_tile *at, void *memory)
{
    job x = {.op = op, .at = at, .s = memory, .first = true, .far = is_far(op), .limit = steps_of(op)};
    x.strip =
        at->m == STRIP + AMX_ROWS ? 2 * AMX_ROWS : STRIP; /* two of two tiles: better than three and one */
    amx_config before;
    x.constant = constant_of(op);
    get_bias(&x);
    amx_begin(&before);
    for (int p = 0; p < op->n_products; p++) {
        if (&op->products[p] != x.constant) {
            add_steps(&x, &op->products[p]);
        }
    }
    x.last = true;
    run_piece(&x);
    amx_end(&before);
}

size_t agi_product_scratch_amx(void)
{
    return sizeof(scratch);
}

/* The unit reads rows as they are; one operand may be made of parts. */
static bool readable(const agi_product *p)
{
    const bool a32 = p->a.dtype == AG_F32, b32 = p->b.dtype == AG_F32;
    return (a32 || p->a.dtype == AG_BF16) && (b32 || p->b.dtype == AG_BF16) && !(a32 && b32) &&
           p->a.col_stride == 1 && p->b.col_stride == 1;
}

bool agi_product_on_amx(const agi_matmul_op *op)
{
    bool all = op->dtype == AG_BF16 || op->dtype == AG_F32;
    for (int p = 0; p < op->n_products && all; p++) {
        all = readable(&op->products[p]);
    }
    return all;
}

/* Fewer rows are shared among threads more evenly without a thought for strips. */
enum { FEW_ROWS = 16 * STRIP };

void agi_product_cut_amx(const agi_matmul_op *op, int64_t tiles, agi_matmul_tile *at)
{
    const agi_product *const constant = constant_of(op);
    const int64_t limit = steps_of(op);
    int64_t all = 0;
    for (int p = 0; p < op->n_products; p++) {
        const int64_t depth = &op->products[p] == constant ? 0 : agi_depth(&op->products[p]);
        all += (depth + AMX_DEPTH - 1) / AMX_DEPTH * parts_of(&op->products[p]);
    }
    const int64_t steps = agi_max(1, agi_min(limit, all));
    const int64_t cols = agi_min(COLS, B_SIZE / (steps * AMX_DEPTH) / PANEL_COLS * PANEL_COLS);
    agi_cut_limits limits = {op->m, op->m < FEW_ROWS ? 2 * AMX_ROWS : STRIP, cols, PANEL_COLS};
    if (all > limit) {
        limits.rows = C_SIZE / limits.cols / STRIP * STRIP;
    }
    agi_cut_evenly(op, tiles, &limits, at);
}
