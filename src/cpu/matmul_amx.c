/* One tile of a matrix product of bfloat16 on the AMX unit: 2 x 2 of its tiles of C at once, A where it stands,
 * where the unit can read it there, B in tiles of pairs; sums in float32, rounded once. Where one operand of a
 * product is float32, it is the sum of three bfloat16, 8 bits of its 24 each, and takes three steps. Compiled for
 * AVX-512 and AMX, and reached only where the processor has both. */
#include <string.h>

#include "amx.h"
#include "matmul.h"
#include "matmul_round.h"
#include "tile.h"
#include "vec.h"

/* A step is AMX_DEPTH terms of a sum. STEPS: as many of them as are added before C is visited. B_SIZE: numbers of B
 * that are packed at once and stay in the cache of a core. C_SIZE: of C, where it is visited more than once. */
enum {
    STEPS = 64,
    STEPS_TURNED = 16,
    B_SIZE = 512 * 1024,
    C_SIZE = 256 * 1024,
    BLOCK = 2 * AMX_ROWS,
    COLS = 1024
};

/* Numbers of a product that stay in the cache of a core by themselves. */
enum { NEAR = 512 * 1024 };

/* Where one step finds its tiles: two of A, whose rows lie stride bytes apart; two of a panel of B. */
typedef struct {
    const uint16_t *upper, *lower;
    int64_t stride, b;
} places;

typedef struct {
    uint16_t b[B_SIZE];             /* [panel][step that has its own][2][AMX_AB] */
    uint16_t a[STEPS * 2 * AMX_AB]; /* [step][2][AMX_AB] */
    float c[C_SIZE];
    float out[2][BLOCK * BLOCK];
    float bias[COLS];
    places strip[STEPS];
} scratch;

/* Which terms of which product each step is, and which of the PARTS of a float32 operand. The other operand's tiles
 * may be those of the step before. */
enum { PARTS = 3 };
typedef struct {
    const agi_product *p;
    int64_t k0, k;
    int part;
    bool same_a, same_b;
    int64_t own; /* number of its tiles of B */
} step;

/* 32 x 32 of C, at row i and column j of the tile, that are summed up. */
typedef struct {
    int64_t i, j, ldc;
    float *c; /* NULL: nothing */
} block;

typedef struct {
    const agi_matmul_op *op;
    const agi_matmul_tile *at;
    bool far;                    /* does the product exceed the cache of a core? */
    block waiting;               /* for its way out, while the unit is busy with the next one */
    const agi_product *constant; /* one that adds the same row to all rows that count; or NULL */
    int64_t n_own;               /* steps that have tiles of B of their own */
    int64_t n_steps, limit;      /* of this piece of the sum, and of a piece */
    bool first, last;            /* is it the sum's first, or last, piece? */
    step steps[STEPS];
    scratch *s;
} job;

/* ---- Packing ---- */

static int64_t size_of(const agi_matrix *x)
{
    return x->dtype == AG_F32 ? 4 : 2;
}

/* Elements col .. of a stored row, NULL where it does not count or is not there. */
static const void *row_at(const agi_matrix *x, int64_t row, int64_t end, int64_t col)
{
    return row < end && agi_row_counts(x, row)
               ? (const char *)x->data + (row * x->row_stride + col) * size_of(x)
               : NULL;
}

/* The first of 16 or 32 numbers, zeros behind them. */
INLINE __m512i load_32(const uint16_t *p, __mmask32 which)
{
    return p == NULL ? _mm512_setzero_si512() : _mm512_maskz_loadu_epi16(which, p);
}

INLINE __m512i load_16(const uint16_t *p, __mmask16 which)
{
    return _mm512_cvtepu16_epi32(p == NULL ? _mm256_setzero_si256() : _mm256_maskz_loadu_epi16(which, p));
}

/* One part of 16 float32, in the upper halves: the first 8 bits of what the parts before leave. Exact; infinity is
 * its own first part, with zeros behind it. */
INLINE __m512i load_part(const void *p, __mmask16 which, int part)
{
    const __m512i upper = _mm512_set1_epi32((int)0xffff0000);
    vec x = p == NULL ? v_set1(0) : _mm512_maskz_loadu_ps(which, p);
    for (int i = 0; i < part; i++) {
        const vec cut = _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(x), upper));
        x = _mm512_maskz_sub_ps((__mmask16)~_mm512_fpclass_ps_mask(x, 0x18), x, cut);
    }
    return _mm512_and_si512(_mm512_castps_si512(x), upper);
}

static int64_t clip(int64_t n, int64_t most)
{
    return n < 0 ? 0 : n < most ? n : most;
}

/* Sixteen lines (rows of A, columns of B) from `line` on by the step's 32 terms. Where the stored rows are lines:
 * a line in each vector. Where they are terms: a pair of terms in each, 16 lines wide. */
INLINE void get_lines(vec *z, const agi_matrix *x, bool across, int64_t line, int64_t end, const step *t)
{
    const int64_t behind = t->k0 + t->k;
    if (!across) {
        const __mmask32 terms = (__mmask32)(((uint64_t)1 << t->k) - 1);
        UNROLL for (int r = 0; r < AMX_ROWS; r++)
        {
            z[r] = _mm512_castsi512_ps(load_32(row_at(x, line + r, end, t->k0), terms));
        }
        return;
    }
    const __mmask16 lines = (__mmask16)((1u << clip(end - line, AMX_ROWS)) - 1);
    UNROLL for (int r = 0; r < AMX_ROWS; r++)
    {
        const __m512i even = load_16(row_at(x, t->k0 + 2 * r, behind, line), lines);
        const __m512i odd = load_16(row_at(x, t->k0 + 2 * r + 1, behind, line), lines);
        z[r] = _mm512_castsi512_ps(_mm512_or_si512(even, _mm512_slli_epi32(odd, 16)));
    }
}

/* The same of a part of float32. */
INLINE void get_part(vec *z, const agi_matrix *x, bool across, int64_t line, int64_t end, const step *t)
{
    const __m512i joined = _mm512_set_epi16(63, 61, 59, 57, 55, 53, 51, 49, 47, 45, 43, 41, 39, 37, 35, 33,
                                            31, 29, 27, 25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1);
    const int64_t first = across ? clip(end - line, AMX_ROWS) : clip(t->k, AMX_ROWS);
    const __mmask16 low = (__mmask16)((1u << first) - 1);
    const __mmask16 high = (__mmask16)((1u << clip(t->k - AMX_ROWS, AMX_ROWS)) - 1);
    for (int r = 0; r < AMX_ROWS; r++) {
        if (across) {
            const void *even = row_at(x, t->k0 + 2 * r, t->k0 + t->k, line);
            const void *odd = row_at(x, t->k0 + 2 * r + 1, t->k0 + t->k, line);
            z[r] = _mm512_castsi512_ps(_mm512_or_si512(_mm512_srli_epi32(load_part(even, low, t->part), 16),
                                                       load_part(odd, low, t->part)));
        } else {
            const float *row = row_at(x, line + r, end, t->k0);
            const __m512i a = load_part(row, low, t->part);
            const __m512i b = load_part(row == NULL || high == 0 ? NULL : row + AMX_ROWS, high, t->part);
            z[r] = _mm512_castsi512_ps(_mm512_permutex2var_epi16(a, joined, b));
        }
    }
}

/* The same where all of it is there. */
INLINE void get_whole(vec *z, const agi_matrix *x, bool across, int64_t line, const step *t)
{
    const uint16_t *p =
        (const uint16_t *)x->data + (across ? t->k0 * x->row_stride + line : line * x->row_stride + t->k0);
    UNROLL for (int r = 0; r < AMX_ROWS; r++)
    {
        if (across) {
            const __m512i even = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)p));
            const __m512i odd = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)(p + x->row_stride)));
            z[r] = _mm512_castsi512_ps(_mm512_or_si512(even, _mm512_slli_epi32(odd, 16)));
            p += 2 * x->row_stride;
        } else {
            z[r] = _mm512_loadu_ps(p);
            p += x->row_stride;
        }
    }
}

/* One tile of either operand: turned where lines and terms are stored the other way round. */
static void pack(uint16_t *tile, const agi_matrix *x, bool across, bool turned, int64_t line, int64_t end,
                 const step *t)
{
    vec z[AMX_ROWS];
    if (x->dtype == AG_F32) {
        get_part(z, x, across, line, end, t);
    } else if (x->lengths == NULL && t->k == AMX_DEPTH && line + AMX_ROWS <= end) {
        get_whole(z, x, across, line, t);
    } else {
        get_lines(z, x, across, line, end, t);
    }
    if (turned) {
        v_transpose(z);
    }
    for (int r = 0; r < AMX_ROWS; r++) {
        _mm512_storeu_ps(tile + 32 * r, z[r]);
    }
}

/* Panel q of B, one step of it. */
static void pack_pair(const job *x, const step *t, int64_t q)
{
    const agi_matrix *b = &t->p->b;
    const int64_t j = x->at->j0 + q * BLOCK;
    uint16_t *to = x->s->b + (q * x->n_own + t->own) * 2 * AMX_AB;
    if (!t->same_b) {
        pack(to, b, !b->transposed, b->transposed, j, x->op->n, t);
        pack(to + AMX_AB, b, !b->transposed, b->transposed, j + AMX_LANES, x->op->n, t);
    }
}

/* Where B is far: along its stored rows, which the processor foresees. */
static void pack_b(const job *x)
{
    const int64_t panels = (x->at->n + BLOCK - 1) / BLOCK;
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

/* May the unit read 32 rows from i on, and the step's terms, where they are? */
static bool a_in_place(const agi_matrix *a, int64_t i, const step *t)
{
    bool all = a->dtype == AG_BF16 && !a->transposed && t->k == AMX_DEPTH && i + BLOCK <= a->rows;
    for (int64_t r = 0; r < BLOCK && all && a->lengths != NULL; r++) {
        all = agi_row_counts(a, i + r);
    }
    return all;
}

static void get_strip(const job *x, int64_t i)
{
    uint16_t *to = x->s->a;
    for (int64_t n = 0; n < x->n_steps; n++) {
        const step *t = &x->steps[n];
        const agi_matrix *a = &t->p->a;
        const int64_t b = t->own * 2 * AMX_AB;
        if (t->same_a) {
            x->s->strip[n] = x->s->strip[n - 1];
            x->s->strip[n].b = b;
            continue;
        }
        if (a_in_place(a, i, t)) {
            const uint16_t *p = (const uint16_t *)a->data + i * a->row_stride + t->k0;
            x->s->strip[n] = (places){p, p + AMX_ROWS * a->row_stride, 2 * a->row_stride, b};
            continue;
        }
        pack(to, a, a->transposed, a->transposed, i, x->op->m, t);
        pack(to + AMX_AB, a, a->transposed, a->transposed, i + AMX_ROWS, x->op->m, t);
        x->s->strip[n] = (places){to, to + AMX_AB, 64, b};
        to += 2 * AMX_AB;
    }
}

/* ---- The product ---- */

/* Where a block goes, whose lines are asked for while the unit is busy, two a step: more at once would keep its own
 * loads waiting. */
typedef struct {
    uintptr_t c; /* 0: nothing is asked for */
    int64_t stride;
} goal;

INLINE void ask(const goal *to, int64_t n)
{
    for (int64_t r = 2 * n; r < 2 * n + 2 && r < BLOCK && to->c != 0; r++) {
        _mm_prefetch((const char *)(to->c + (uintptr_t)(r * to->stride)), _MM_HINT_T0);
    }
}

/* c[32][32], its rows ldc apart: = or += the sum over the steps. */
static void multiply(const places *at, const uint16_t *b, int64_t n_steps, float *c, int64_t ldc, bool add,
                     const goal *to)
{
    float *const below = c + AMX_ROWS * ldc;
    if (add) {
        AMX_LOAD(0, c, 4 * ldc);
        AMX_LOAD(1, c + AMX_LANES, 4 * ldc);
        AMX_LOAD(2, below, 4 * ldc);
        AMX_LOAD(3, below + AMX_LANES, 4 * ldc);
    } else {
        AMX_ZERO(0);
        AMX_ZERO(1);
        AMX_ZERO(2);
        AMX_ZERO(3);
    }
    for (int64_t n = 0; n < n_steps; n++) {
        ask(to, n);
        AMX_LOAD(4, at[n].upper, at[n].stride);
        AMX_LOAD(6, b + at[n].b, 64);
        AMX_ADD_PRODUCT(0, 4, 6);
        AMX_LOAD(7, b + at[n].b + AMX_AB, 64);
        AMX_ADD_PRODUCT(1, 4, 7);
        AMX_LOAD(5, at[n].lower, at[n].stride);
        AMX_ADD_PRODUCT(2, 5, 6);
        AMX_ADD_PRODUCT(3, 5, 7);
    }
    AMX_STORE(0, c, 4 * ldc);
    AMX_STORE(1, c + AMX_LANES, 4 * ldc);
    AMX_STORE(2, below, 4 * ldc);
    AMX_STORE(3, below + AMX_LANES, 4 * ldc);
}

/* ---- The way out ---- */

/* The row that is added to all. */
static void get_bias(const job *x)
{
    memset(x->s->bias, 0, (size_t)agi_round_up(x->at->n, BLOCK) * sizeof x->s->bias[0]);
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
static void put_row(const job *x, const block *b, int64_t r, int64_t n)
{
    const agi_matmul_op *op = x->op;
    const int64_t row = x->at->i0 + b->i + r;
    float *sums = b->c + r * b->ldc;
    for (int64_t j = 0; j < n && x->constant != NULL && agi_row_counts(&x->constant->a, row); j++) {
        sums[j] += x->s->bias[b->j + j];
    }
    agi_round_row(op->dtype, op->c, row * op->n + x->at->j0 + b->j, sums, n, op->accumulate);
}

/* All of a block to bfloat16; bias may be zeros. */
static void put_bf16(const job *x, const block *b, const float *bias)
{
    const vec low = v_load(bias), high = v_load(bias + LANES);
    uint16_t *to = (uint16_t *)x->op->c + (x->at->i0 + b->i) * x->op->n + x->at->j0 + b->j;
    for (int r = 0; r < BLOCK; r++) {
        const vec first = v_add(v_load(b->c + r * b->ldc), low);
        const vec second = v_add(v_load(b->c + r * b->ldc + LANES), high);
        _mm512_storeu_si512(to, (__m512i)_mm512_cvtne2ps_pbh(second, first));
        to += x->op->n;
    }
}

static void put_waiting(job *x)
{
    const block *b = &x->waiting;
    const bool all_rows = x->constant == NULL || x->constant->a.lengths == NULL;
    if (b->c == NULL) {
        return;
    }
    if (x->op->dtype == AG_BF16 && !x->op->accumulate && all_rows && b->i + BLOCK <= x->at->m &&
        b->j + BLOCK <= x->at->n) {
        put_bf16(x, b, x->s->bias + b->j);
    } else {
        for (int64_t r = 0; r < clip(x->at->m - b->i, BLOCK); r++) {
            put_row(x, b, r, clip(x->at->n - b->j, BLOCK));
        }
    }
    x->waiting.c = NULL;
}

static void run_block(job *x, int64_t i, int64_t j)
{
    const agi_matmul_op *op = x->op;
    const agi_matmul_tile *at = x->at;
    const bool whole = x->first && x->last;
    const int64_t width = agi_round_up(at->n, BLOCK);
    block b = {i, j, whole ? BLOCK : width, whole ? x->s->out[0] : x->s->c + i * width + j};
    if (x->waiting.c == x->s->out[0]) {
        b.c = x->s->out[1];
    }
    goal to = {.c = 0};
    if (x->far && x->last) {
        const int64_t size = (int64_t)ag_dtype_size(op->dtype);
        to.c = (uintptr_t)op->c + (uintptr_t)(((at->i0 + i) * op->n + at->j0 + j) * size);
        to.stride = op->n * size;
    }
    multiply(x->s->strip, x->s->b + j * x->n_own * AMX_DEPTH, x->n_steps, b.c, b.ldc, !x->first, &to);
    put_waiting(x);
    if (x->last) {
        x->waiting = b;
    }
}

/* ---- The tile ---- */

static void run_piece(job *x)
{
    pack_b(x);
    for (int64_t i = 0; i < x->at->m; i += BLOCK) {
        get_strip(x, x->at->i0 + i);
        for (int64_t j = 0; j < x->at->n; j += BLOCK) {
            run_block(x, i, j);
        }
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
    return p->a.dtype == AG_F32 || p->b.dtype == AG_F32 ? PARTS : 1;
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
                (step){p, k0, clip(agi_depth(p) - k0, AMX_DEPTH), part, same_a, same_b, x->n_own - 1};
        }
    }
}

void agi_product_run_amx(const agi_matmul_op *op, const agi_matmul_tile *at, void *memory)
{
    job x = {.op = op, .at = at, .s = memory, .first = true, .far = is_far(op), .limit = steps_of(op)};
    amx_config before;
    for (int p = 0; p < op->n_products; p++) {
        if (is_constant(&op->products[p])) {
            x.constant = &op->products[p];
        }
    }
    get_bias(&x);
    amx_begin(&before);
    for (int p = 0; p < op->n_products; p++) {
        if (&op->products[p] != x.constant) {
            add_steps(&x, &op->products[p]);
        }
    }
    x.last = true;
    run_piece(&x);
    put_waiting(&x);
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

void agi_product_cut_amx(const agi_matmul_op *op, int64_t tiles, agi_matmul_tile *at)
{
    const int64_t limit = steps_of(op);
    int64_t all = 0;
    for (int p = 0; p < op->n_products; p++) {
        const int64_t depth = is_constant(&op->products[p]) ? 0 : agi_depth(&op->products[p]);
        all += (depth + AMX_DEPTH - 1) / AMX_DEPTH * parts_of(&op->products[p]);
    }
    const int64_t steps = agi_max(1, agi_min(limit, all));
    agi_cut_limits limits = {op->m, BLOCK, agi_min(COLS, B_SIZE / (steps * AMX_DEPTH) / BLOCK * BLOCK),
                             BLOCK};
    if (all > limit) {
        limits.rows = C_SIZE / limits.cols / BLOCK * BLOCK;
    }
    agi_cut_evenly(op, tiles, &limits, at);
}
