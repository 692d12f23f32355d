/* One tile of a matrix product of bfloat16 on the AMX unit: 3 x 2 of its tiles of C at once, A where it stands,
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
enum { STEPS = 64, STEPS_TURNED = 16, B_SIZE = 576 * 1024, C_SIZE = 256 * 1024, COLS = 1024 };

/* A strip is the rows of A that are multiplied at once, a panel the columns of B. The more of the unit's tiles are
 * sums, the fewer operands they need each: what is read from a core's second cache limits the speed. */
enum { STRIP = 3 * AMX_ROWS, PANEL_COLS = 2 * AMX_LANES, STRIP_AB = 3 * AMX_AB };

/* Steps whose operands stay in the first cache while they pass it. A longer sum runs forward and backward by
 * turns, from one panel to the next, to find in that cache what it left there. */
enum { SHORT = 8 };

/* Numbers of a product that stay in the cache of a core by themselves. */
enum { NEAR = 512 * 1024 };

/* Where one step finds its tiles: those of A lie `tile` numbers apart, their rows stride bytes; two of a panel of
 * B. */
typedef struct {
    const uint16_t *a;
    int64_t tile, stride, b;
} places;

typedef struct {
    uint16_t b[B_SIZE];           /* [panel][step that has its own][2][AMX_AB] */
    uint16_t a[STEPS * STRIP_AB]; /* [step][3][AMX_AB] */
    float c[C_SIZE];
    float out[STRIP * PANEL_COLS];
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

/* A strip by a panel of C, at row i and column j of the tile; `tiles` of the unit's tiles high. */
typedef struct {
    int64_t i, j, tiles, ldc;
    float *c;
} block;

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

/* Of the strip at row i, high. */
static int64_t tiles_of(const job *x, int64_t i)
{
    return (clip(x->at->m - i, x->strip) + AMX_ROWS - 1) / AMX_ROWS;
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
    const int64_t j = x->at->j0 + q * PANEL_COLS;
    uint16_t *to = x->s->b + (q * x->n_own + t->own) * 2 * AMX_AB;
    if (!t->same_b) {
        pack(to, b, !b->transposed, b->transposed, j, x->op->n, t);
        pack(to + AMX_AB, b, !b->transposed, b->transposed, j + AMX_LANES, x->op->n, t);
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
    bool all = a->dtype == AG_BF16 && !a->transposed && t->k == AMX_DEPTH && i + rows <= a->rows;
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
        places *at = &x->s->strip[n];
        if (t->same_a) {
            *at = at[-1];
        } else if (a_in_place(a, i, tiles * AMX_ROWS, t)) {
            *at = (places){.a = (const uint16_t *)a->data + i * a->row_stride + t->k0,
                           .tile = AMX_ROWS * a->row_stride,
                           .stride = 2 * a->row_stride};
            in_place = true;
        } else {
            for (int64_t r = 0; r < tiles; r++) {
                pack(to + r * AMX_AB, a, a->transposed, a->transposed, i + r * AMX_ROWS, x->op->m, t);
            }
            *at = (places){.a = to, .tile = AMX_AB, .stride = 64};
        }
        at->b = t->own * 2 * AMX_AB;
    }
    return in_place;
}

/* The strip is now where multiply() kept it. */
static void use_kept(const job *x)
{
    for (int64_t n = 0; n < x->n_steps; n++) {
        x->s->strip[n].a = x->s->a + n * STRIP_AB;
        x->s->strip[n].tile = AMX_AB;
        x->s->strip[n].stride = 64;
    }
}

/* ---- The product ---- */

/* What will be needed, and is asked for while the unit is busy, a little a step: more at once would keep its own
 * loads waiting. Rows of C, two a step; some rows of the next strip, where it stands, a step of each. */
typedef struct {
    uintptr_t c, a; /* 0: nothing is asked for */
    int64_t c_stride, a_stride, a_rows;
} goal;

INLINE void ask(const goal *to, int64_t n)
{
    for (int64_t r = 2 * n; r < 2 * n + 2 && r < STRIP && to->c != 0; r++) {
        _mm_prefetch((const char *)(to->c + (uintptr_t)(r * to->c_stride)), _MM_HINT_T0);
    }
    for (int64_t r = 0; r < to->a_rows; r++) {
        _mm_prefetch((const char *)(to->a + (uintptr_t)(r * to->a_stride + 64 * n)), _MM_HINT_T1);
    }
}

/* What one panel is multiplied from, in which order. */
typedef struct {
    const places *at;
    const uint16_t *b;
    int64_t n_steps;
    bool back;      /* from the last step to the first */
    uint16_t *keep; /* where the strip's tiles are kept as they pass; or NULL */
    goal to;
} pass;

/* One step. There are tiles for no more than one operand of each kind: A's are loaded once, B's, which lie together,
 * for every one of A's, first and second by turns. */
INLINE void multiply_step(const places *at, const uint16_t *b, int tiles, uint16_t *keep)
{
    AMX_LOAD(7, at->a, at->stride);
    AMX_LOAD(6, b, 64);
    AMX_ADD_PRODUCT(0, 7, 6);
    AMX_LOAD(6, b + AMX_AB, 64);
    AMX_ADD_PRODUCT(1, 7, 6);
    if (keep != NULL) {
        AMX_STORE(7, keep, 64);
    }
    if (tiles > 1) {
        AMX_LOAD(7, at->a + at->tile, at->stride);
        AMX_ADD_PRODUCT(3, 7, 6);
        AMX_LOAD(6, b, 64);
        AMX_ADD_PRODUCT(2, 7, 6);
        if (keep != NULL) {
            AMX_STORE(7, keep + AMX_AB, 64);
        }
    }
    if (tiles > 2) {
        AMX_LOAD(7, at->a + 2 * at->tile, at->stride);
        AMX_ADD_PRODUCT(4, 7, 6);
        AMX_LOAD(6, b + AMX_AB, 64);
        AMX_ADD_PRODUCT(5, 7, 6);
        if (keep != NULL) {
            AMX_STORE(7, keep + 2 * AMX_AB, 64);
        }
    }
}

INLINE void multiply_steps(const pass *x, int tiles, bool keep)
{
    for (int64_t n = 0; n < x->n_steps; n++) {
        const int64_t own = x->back ? x->n_steps - 1 - n : n;
        ask(&x->to, n);
        multiply_step(&x->at[own], x->b + x->at[own].b, tiles, keep ? x->keep + own * STRIP_AB : NULL);
    }
}

static void begin_sums(const block *c, bool add)
{
    const int64_t stride = 4 * c->ldc, tile = AMX_ROWS * c->ldc;
    AMX_ZERO(0);
    AMX_ZERO(1);
    AMX_ZERO(2);
    AMX_ZERO(3);
    AMX_ZERO(4);
    AMX_ZERO(5);
    if (add) {
        AMX_LOAD(0, c->c, stride);
        AMX_LOAD(1, c->c + AMX_LANES, stride);
    }
    if (add && c->tiles > 1) {
        AMX_LOAD(2, c->c + tile, stride);
        AMX_LOAD(3, c->c + tile + AMX_LANES, stride);
    }
    if (add && c->tiles > 2) {
        AMX_LOAD(4, c->c + 2 * tile, stride);
        AMX_LOAD(5, c->c + 2 * tile + AMX_LANES, stride);
    }
}

static void end_sums(const block *c)
{
    const int64_t stride = 4 * c->ldc, tile = AMX_ROWS * c->ldc;
    AMX_STORE(0, c->c, stride);
    AMX_STORE(1, c->c + AMX_LANES, stride);
    if (c->tiles > 1) {
        AMX_STORE(2, c->c + tile, stride);
        AMX_STORE(3, c->c + tile + AMX_LANES, stride);
    }
    if (c->tiles > 2) {
        AMX_STORE(4, c->c + 2 * tile, stride);
        AMX_STORE(5, c->c + 2 * tile + AMX_LANES, stride);
    }
}

/* The block = or += the sum over the steps. */
static void multiply(const pass *x, const block *c, bool add)
{
    begin_sums(c, add);
    if (c->tiles == 3 && x->keep != NULL) {
        multiply_steps(x, 3, true);
    } else if (c->tiles == 3) {
        multiply_steps(x, 3, false);
    } else if (c->tiles == 2) {
        multiply_steps(x, 2, false);
    } else {
        multiply_steps(x, 1, false);
    }
    end_sums(c);
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

/* Whole rows of a block to bfloat16. */
INLINE void put_bf16(const job *x, const block *b, int64_t rows, bool biased)
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

static void put_block(const job *x, const block *b)
{
    const int64_t rows = clip(x->at->m - b->i, x->strip);
    const bool all_rows = x->constant == NULL || x->constant->a.lengths == NULL;
    if (x->op->dtype != AG_BF16 || x->op->accumulate || !all_rows || b->j + PANEL_COLS > x->at->n) {
        for (int64_t r = 0; r < rows; r++) {
            put_row(x, b, r, clip(x->at->n - b->j, PANEL_COLS));
        }
    } else if (x->constant == NULL) {
        put_bf16(x, b, rows, false);
    } else {
        put_bf16(x, b, rows, true);
    }
}

/* A share of the strip at row i of the tile, for the panel at column j. */
static void ask_next_strip(const job *x, int64_t i, int64_t j, goal *to)
{
    const agi_matrix *a = &x->steps[0].p->a;
    const int64_t share = (STRIP * PANEL_COLS + x->at->n - 1) / x->at->n, row = j / PANEL_COLS * share;
    if (a->dtype == AG_BF16 && !a->transposed) {
        to->a_stride = 2 * a->row_stride;
        to->a = (uintptr_t)a->data + (uintptr_t)((x->at->i0 + i + row) * to->a_stride + 2 * x->steps[0].k0);
        to->a_rows = clip(STRIP - row, share);
    }
}

/* The block at row i, column j. keep: of the strip's first panel. */
static void run_block(const job *x, int64_t i, int64_t j, bool keep)
{
    const agi_matmul_op *op = x->op;
    const agi_matmul_tile *at = x->at;
    const bool whole = x->first && x->last;
    const int64_t width = agi_round_up(at->n, PANEL_COLS), tiles = tiles_of(x, i);
    const block b = {i, j, tiles, whole ? PANEL_COLS : width, whole ? x->s->out : x->s->c + i * width + j};
    pass over = {.at = x->s->strip,
                 .b = x->s->b + j * x->n_own * AMX_DEPTH,
                 .n_steps = x->n_steps,
                 .back = x->n_steps > SHORT && (at->j0 + j) / PANEL_COLS % 2 != 0,
                 .keep = keep ? x->s->a : NULL};
    if (x->far && x->last) {
        const int64_t size = (int64_t)ag_dtype_size(op->dtype);
        over.to.c = (uintptr_t)op->c + (uintptr_t)(((at->i0 + i) * op->n + at->j0 + j) * size);
        over.to.c_stride = op->n * size;
    }
    if (x->far && x->n_steps > SHORT && i + x->strip < at->m) {
        ask_next_strip(x, i + x->strip, j, &over.to);
    }
    multiply(&over, &b, !x->first);
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
    for (int64_t j = 0; j < x->at->n; j += PANEL_COLS) {
        run_block(x, i, j, keep && j == 0);
        if (keep && j == 0) {
            use_kept(x);
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
    x.strip =
        at->m == STRIP + AMX_ROWS ? 2 * AMX_ROWS : STRIP; /* two of two tiles: better than three and one */
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
    const int64_t limit = steps_of(op);
    int64_t all = 0;
    for (int p = 0; p < op->n_products; p++) {
        const int64_t depth = is_constant(&op->products[p]) ? 0 : agi_depth(&op->products[p]);
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
