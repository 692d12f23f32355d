/* The backward ops on AMX: a tile of queries against a block of keys. Scores are computed in float32, for one stripe of
 * queries and one group of keys (a patch) at a time; what they become is rounded to bfloat16 into tiles of the whole
 * block, and the gradients are products of these:
 *
 *     dV += R^T dO, dK += dZ^T Q      A: R^T and dZ^T by rows of keys     B: dO and Q in split16 VNNI pairs of queries
 *     dQ^T += K^T dZ^T                A: K transposed                     B: dZ^T in VNNI pairs of keys
 *
 * amx_kernels.h explains the formats. */
#include <string.h>

#include "cpu/amx/amx_operands.h"
#include "cpu/amx/amx_ops.h"

/* One thread's scratch. Arrays of four are of Q, dO, tQ, tdO. */
typedef struct {
    amx_operand queries_vnni[4], queries_split16[4]; /* B operands of the tile's queries */
    uint16_t *vnni_tiles[2], *split16_tiles[4]; /* their memory; vnni_tiles: of tQ and Q, of tdO and dO */
    uint16_t *key_rows[2],
        *transposed[2];      /* A operands of the span's keys: [K | tK], [V | tV] by rows; K, tK transposed */
    int64_t span0, from, to; /* the span's first key; keys from .. to - 1 after it are loaded */
    uint16_t *zeroed;        /* K or tK of a block, transposed, with masked keys zero */
    uint16_t *rounded[4];    /* A operands R, dZ, tR, tdZ of the block */
    uint16_t
        *dz_vnni[2]; /* B operands [block / 32][TILE_ROWS / 16] tiles: dZ in vjp, tdZ and dZ in vjp_jvp */
    agi_prefetch_rows ahead; /* rows of the next tile of queries */
    real *T[2][2];           /* score tiles of two patches: [0] S and dP side by side, [1] tS and tdP */
    real *dQ;                /* [TILE_ROWS][Dk_pad]: dQ of a tile, by rows */
    real *key_rows_chunk;    /* [AMX_ROWS][D]: rows of dK or dV */
    uint16_t *rows;
    amx_config before; /* the thread's tile configuration, which is restored at the end of a tile */
} amx_scratch;

enum { Q_, DO_, TQ_, TDO_ };
enum { K_, V_ };

/* Queries of a stripe: two vectors, so that all score tiles of a patch stay in the L1 cache. Two score tiles
 * share PANEL lanes, side by side. */
enum { STRIPE = AMX_DEPTH };

/* ---- Workspace ---- */

static void lay_out(agi_backward_scratch *s, agi_arena *arena, const ag_plan *plan, agi_map map)
{
    const int64_t tangents = map == AGI_VJP_JVP;
    const int64_t Dk = agi_round_up(plan->p.dim_qk, AMX_DEPTH), Dv = agi_round_up(plan->p.dim_v, AMX_DEPTH);
    const agi_backward_schedule *schedule = &agi_cpu_plan_of(plan)->backward[map];
    const int64_t block = agi_round_up(schedule->block, GROUP_KEYS);
    const int64_t span = agi_round_up(schedule->span, GROUP_KEYS);
    amx_scratch dry, *m = agi_take(arena, 1, sizeof *m);
    s->own = m;
    m = m == NULL ? &dry : m;
    REAL(agi_lay_out_features)(s, arena, plan, map, GROUP_KEYS * PANEL);
    for (int t = 0; t < 4; t++) {
        const int64_t there = t < 2 ? 1 : tangents, D = t % 2 ? Dv : Dk;
        m->split16_tiles[t] = agi_take16(arena, there * TILE_ROWS * D);
        m->rounded[t] = agi_take16(arena, there * block * TILE_ROWS);
    }
    for (int t = 0; t < 2; t++) {
        const int64_t there = t == 0 ? 1 : tangents, D = t == 0 ? Dk : Dv;
        m->vnni_tiles[t] = agi_take16(arena, (1 + tangents) * TILE_ROWS * D);
        m->key_rows[t] = agi_take16(arena, (1 + tangents) * span * D);
        m->transposed[t] = agi_take16(arena, there * span * Dk);
        m->dz_vnni[t] = agi_take16(arena, there * block * TILE_ROWS);
        for (int n = 0; n < 2; n++) {
            m->T[n][t] = agi_take_reals(arena, there * GROUP_KEYS * PANEL);
        }
    }
    m->zeroed = agi_take16(arena, block * Dk);
    m->dQ = agi_take_reals(arena, TILE_ROWS * Dk);
    m->key_rows_chunk = agi_take_reals(arena, AMX_ROWS * agi_max(Dk, Dv));
    m->rows = agi_take16(arena, agi_max(TILE_ROWS, GROUP_KEYS) * agi_max(Dk, Dv));
}

/* ---- The keys of a span ---- */

typedef struct {
    amx_operand rows[2];       /* [K | tK], [V | tV]: without the tangent, if it is absent */
    amx_operand transposed[2]; /* K, tK; p is NULL if dQ does not need it */
} key_operands;

/* tK or tV; an absent tensor in vjp. */
static const ag_tensor *key_tangent(const agi_head *x, int t)
{
    static const ag_tensor none = {NULL, {0}};
    const ag_args *a = &x->call->a;
    return x->call->map != AGI_VJP_JVP ? &none : t == K_ ? &a->tk : &a->tv;
}

static bool is_transposed(const agi_head *x, int t)
{
    const ag_args *a = &x->call->a;
    const bool tangents = x->call->map == AGI_VJP_JVP;
    return (tangents ? a->tdq : a->dq).data != NULL && (t == 0 || key_tangent(x, K_)->data != NULL);
}

/* Makes the operands of keys first .. end - 1 of the span, whole groups. */
static void load_keys(const amx_scratch *s, const agi_head *x, int64_t first, int64_t end)
{
    const ag_args *a = &x->call->a;
    const ag_tensor *const own[2] = {&a->k, &a->v}, *const transposed[2] = {&a->k, &a->tk};
    const int64_t j0 = s->span0 + first, n = agi_max(0, agi_min(s->span0 + end, x->seq.n_k) - j0);
    for (int t = 0; t < 2 && first < end; t++) {
        const int64_t D = t == K_ ? x->Dk : x->Dv;
        const int64_t width = agi_round_up(D, AMX_DEPTH) * (key_tangent(x, t)->data == NULL ? 1 : 2);
        agi_amx_copy_keys(x, own[t], key_tangent(x, t), D, j0, n, s->key_rows[t] + first * width);
        if (is_transposed(x, t)) {
            agi_amx_key_columns(x, transposed[t], x->Dk, j0, n, s->transposed[t] + first * x->Dk_pad,
                                s->rows);
        }
    }
}

static void begin_pass(agi_backward_scratch *s, int64_t span0)
{
    amx_scratch *const m = s->own;
    m->span0 = span0;
    m->from = m->to = 0;
}

/* Sees to it that keys from .. to - 1 are loaded. Loaded keys are one range: keys between it and the new ones
 * are loaded too. */
static void require_keys(amx_scratch *s, const agi_head *x, int64_t from, int64_t to)
{
    const int64_t first = (from - s->span0) / GROUP_KEYS * GROUP_KEYS,
                  end = agi_round_up(to - s->span0, GROUP_KEYS);
    if (s->from == s->to) {
        s->from = s->to = first;
    }
    load_keys(s, x, first, s->from);
    load_keys(s, x, s->to, end);
    s->from = agi_min(first, s->from);
    s->to = agi_max(end, s->to);
}

/* The operands of the block of keys that starts at j0. */
static key_operands operands_of(const amx_scratch *s, const agi_head *x, int64_t j0)
{
    const int64_t first = j0 - s->span0;
    key_operands keys = {.rows = {{0}}};
    for (int t = 0; t < 2; t++) {
        const int64_t D = t == K_ ? x->Dk : x->Dv;
        const int64_t width = agi_round_up(D, AMX_DEPTH) * (key_tangent(x, t)->data == NULL ? 1 : 2);
        keys.rows[t] = (amx_operand){s->key_rows[t] + first * width, AMX_ROWS * width, AMX_DEPTH, width};
        if (is_transposed(x, t)) {
            keys.transposed[t] = (amx_operand){s->transposed[t] + first * x->Dk_pad, AMX_AB,
                                               x->Dk_pad * GROUP_KEYS, GROUP_KEYS};
        }
    }
    return keys;
}

/* K transposed, or a copy with the keys that no query of the tile sees zero: their dZ is 0, but 0 times NaN is
 * NaN. */
static amx_operand visible_keys(const agi_backward_scratch *s, const agi_head *x, amx_operand K,
                                const agi_key_tile *keys)
{
    amx_scratch *const m = s->own;
    int64_t from, to;
    REAL(agi_key_range)(x, s->tile.i0, s->tile.ni, &from, &to);
    const int64_t n = agi_round_up(keys->nj, GROUP_KEYS);
    const int64_t end = keys->j0 + keys->nj; /* rows after the last key of the sequence are zeros already */
    const bool inside = keys->j0 >= from && end <= to && (keys->nj == n || end == x->seq.n_k);
    if (inside && (!x->has.pair_mask || memchr(s->masked_keys, 1, (size_t)keys->nj) == NULL)) {
        return K;
    }
    for (int64_t j = 0; j < n; j += GROUP_KEYS) {
        uint8_t visible[GROUP_KEYS];
        for (int64_t r = 0; r < GROUP_KEYS; r++) {
            const int64_t key = keys->j0 + j + r;
            visible[r] =
                key >= from && key < to && j + r < keys->nj && !(x->has.pair_mask && s->masked_keys[j + r]);
        }
        agi_amx_table.zero_masked_keys(m->zeroed + j * x->Dk_pad, K.p + j * x->Dk_pad, x->Dk_pad / AMX_ROWS,
                                       visible);
    }
    K.p = m->zeroed;
    return K;
}

/* ---- A tile of queries ---- */

/* Makes both B operands of Q, dO, tQ or tdO. The VNNI tiles of a tensor and of its tangent alternate, 16 queries
 * each, so that [tQ | Q] is one operand. */
static void load_queries(amx_scratch *s, const agi_head *x, const agi_query_tile *t, int which,
                         const ag_tensor *from, ag_dtype dtype, int64_t D)
{
    const int64_t rows = agi_round_up(t->ni, AMX_DEPTH), own = AMX_LANES * agi_round_up(D, AMX_DEPTH);
    const bool tangents = x->call->map == AGI_VJP_JVP, tangent = which >= TQ_;
    const int64_t query_stride = tangents ? 2 * own : own, offset = tangents && !tangent ? own : 0;
    const uint8_t *const skip = memchr(t->no_output, 1, (size_t)t->ni) == NULL ? NULL : t->no_output;
    const agi_slice slice = agi_query_slice(x, from, dtype, D);
    s->queries_vnni[which] = (amx_operand){s->vnni_tiles[which % 2], query_stride, AMX_AB, 0};
    if (from->data != NULL) {
        s->queries_vnni[which] = agi_amx_query_columns(
            slice, t->i0, t->ni, rows, skip, s->vnni_tiles[which % 2] + offset, query_stride, s->rows);
        s->queries_split16[which] =
            agi_amx_query_rows(slice, t->i0, t->ni, rows, skip, s->split16_tiles[which], s->rows);
    }
}

/* Plans the prefetch of the next tile's rows of Q and dO, and in the first pass of O, during the patches of keys
 * from .. to - 1. Rows of tangents are not prefetched. */
static void begin_prefetch(agi_backward_scratch *s, const agi_head *x, int64_t from, int64_t to,
                           int64_t after)
{
    amx_scratch *const m = s->own;
    const ag_args *a = &x->call->a;
    const ag_problem *p = &x->call->plan->p;
    const int64_t n = agi_min(TILE_ROWS, x->seq.n_q - after);
    const int64_t patches = ((to - from) / GROUP_KEYS + 1) * (TILE_ROWS / STRIPE);
    m->ahead = (agi_prefetch_rows){.n = 0};
    agi_amx_prefetch_rows(&m->ahead, agi_query_slice(x, &a->q, p->dtype, x->Dk), after, n);
    agi_amx_prefetch_rows(&m->ahead, agi_query_slice(x, &a->d_o, p->out_dtype, x->Dv), after, n);
    if (m->span0 == 0) {
        agi_amx_prefetch_rows(&m->ahead, agi_query_slice(x, &a->o, p->out_dtype, x->Dv), after, n);
    }
    agi_prefetch_rows_begin(&m->ahead, patches);
}

static void begin_tile(agi_backward_scratch *s, const agi_head *x, int64_t from, int64_t to, int64_t next)
{
    amx_scratch *const m = s->own;
    const ag_args *a = &x->call->a;
    const ag_problem *p = &x->call->plan->p;
    agi_amx_table.begin(&m->before);
    begin_prefetch(s, x, from, to, next);
    require_keys(m, x, from, to);
    load_queries(m, x, &s->tile, Q_, &a->q, p->dtype, x->Dk);
    load_queries(m, x, &s->tile, DO_, &a->d_o, p->out_dtype, x->Dv);
    if (x->call->map == AGI_VJP_JVP) {
        load_queries(m, x, &s->tile, TQ_, &a->tq, p->dtype, x->Dk);
        load_queries(m, x, &s->tile, TDO_, &a->td_o, p->out_dtype, x->Dv);
    }
}

static void store_dq(agi_backward_scratch *s, const agi_head *x, agi_slice dq, int64_t i0, int64_t ni,
                     bool accumulate)
{
    amx_scratch *const m = s->own;
    const double scale = x->scale;
    if (dq.t->data != NULL && dq.dtype == AG_BF16 && !accumulate) {
        agi_amx_store_transposed(dq, i0, ni, s->tile.dQ, &scale, 0, m->rows);
    } else if (dq.t->data != NULL) {
        agi_amx_table.transpose_sums(m->dQ, x->Dk_pad, s->tile.dQ, agi_amx_col_stride(x->Dk), x->Dk_pad,
                                     agi_round_up(ni, AMX_ROWS));
        agi_store_rows(x->k, dq, i0, ni, accumulate, scale, m->dQ, x->Dk_pad);
    }
}

static void store_dkv(const agi_backward_scratch *s, const agi_head *x, agi_slice to, int64_t first,
                      int64_t n, bool accumulate, double factor, const real *sums, int64_t width)
{
    amx_scratch *const m = s->own;
    const size_t query_stride = AMX_LANES * sizeof *sums;
    if (to.t->data != NULL && to.dtype == AG_BF16 && !accumulate) {
        agi_amx_store_rows(to, first, n, sums, factor, m->rows);
        return;
    }
    for (int64_t j = 0; j < n && to.t->data != NULL; j += AMX_ROWS) {
        for (int64_t at = 0; at < AMX_ROWS * width; at += AMX_LANES) { /* one row of a tile */
            const int64_t tile = at / AMX_C, row = at % AMX_C / AMX_LANES;
            memcpy(m->key_rows_chunk + row * width + tile * AMX_LANES, sums + j * width + at, query_stride);
        }
        agi_store_rows(x->k, to, first + j, agi_min(AMX_ROWS, n - j), accumulate, factor, m->key_rows_chunk,
                       width);
    }
}

/* Rows i .. i + n - 1 of dO, O, tdO or tO: in place if their channels are adjacent, else copied to the scratch. */
static agi_rows16 output_rows(const agi_head *x, const ag_tensor *t, int64_t i, int64_t n, uint16_t *scratch)
{
    const agi_slice slice = agi_query_slice(x, t, x->call->plan->p.out_dtype, x->Dv);
    if (t->strides[3] == 1) {
        return (agi_rows16){(const uint16_t *)t->data + agi_row_at(slice, i), t->strides[2]};
    }
    return agi_load_rows16(slice, i, n, n, x->Dv, NULL, scratch);
}

/* sums[r] += rowsum(A o B) of rows i .. i + n - 1 */
static void add_row_products(const agi_backward_scratch *s, const agi_head *x, const ag_tensor *A,
                             const ag_tensor *B, int64_t i, int64_t n, double *sums)
{
    amx_scratch *const m = s->own;
    const agi_rows16 a = output_rows(x, A, i, n, m->rows);
    const agi_rows16 b = output_rows(x, B, i, n, m->rows + n * x->Dv);
    float products[ROW_CHUNK];
    agi_amx_table.dots(products, a.p, a.ld, b.p, b.ld, n, x->Dv);
    for (int64_t r = 0; r < n; r++) {
        sums[r] += (double)products[r];
    }
}

static void row_dots(const agi_backward_scratch *s, const agi_head *x, int64_t r, int64_t n, double *D,
                     double *tD)
{
    const ag_args *a = &x->call->a;
    const int64_t i = s->tile.i0 + r;
    add_row_products(s, x, &a->d_o, &a->o, i, n, D);
    if (x->call->map == AGI_VJP_JVP) {
        add_row_products(s, x, &a->d_o, &a->to, i, n, tD);
        if (a->td_o.data != NULL) {
            add_row_products(s, x, &a->td_o, &a->o, i, n, tD);
        }
    }
}

/* ---- A patch: one stripe of queries, one group of keys ---- */

static void queue_block(amx_queue *to, const agi_patch *c, const amx_operand *keys,
                        const amx_operand *queries, int64_t depth, float *T)
{
    agi_amx_queue_block(to, keys, c->from / GROUP_KEYS * GROUP_KEYS, queries, c->i0, depth, T);
}

/* Queues the products of a patch: S^T = K Q^T and dP^T = V dO^T; in vjp_jvp also tQ K^T + Q tK^T and dO tV^T +
 * tdO V^T, whose absent terms are zero. */
static void queue_patch(amx_queue *to, const agi_backward_scratch *s, const agi_head *x, const agi_patch *c,
                        const key_operands *keys, float *const T[2])
{
    amx_scratch *const m = s->own;
    const ag_args *a = &x->call->a;
    const ag_tensor *const of_keys[2] = {&a->tk, &a->tv}, *const of_queries[2] = {&a->tq, &a->td_o};
    to->n = 0;
    for (int t = K_; t <= V_; t++) {
        const int64_t D = t == K_ ? x->Dk : x->Dv;
        queue_block(to, c, &keys->rows[t], &m->queries_vnni[t], agi_round_up(D, AMX_DEPTH) / AMX_DEPTH,
                    T[0] + t * STRIPE);
        if (x->call->map == AGI_VJP_JVP) {
            const agi_amx_sum sum =
                agi_amx_tangent_sum(keys->rows[t], of_keys[t]->data != NULL,
                                    (amx_operand){m->vnni_tiles[t], m->queries_vnni[t].stride_mn, AMX_AB, 0},
                                    of_queries[t]->data != NULL, D);
            queue_block(to, c, &sum.rows, &sum.columns, sum.depth, T[1] + t * STRIPE);
        }
    }
}

/* Zeroes the scores outside the patch's keys and queries: they may be NaN. */
static void zero_outside(float *T, const agi_patch *c)
{
    const int64_t from = c->from % GROUP_KEYS, to = from + c->nj;
    for (int64_t j = 0; j < GROUP_KEYS; j++) {
        const int64_t seen = j < from || j >= to ? 0 : c->ni;
        memset(T + j * PANEL + seen, 0, (size_t)(STRIPE - seen) * sizeof *T);
    }
}

/* Tiles of rounded rows: [key / 16][query / 32]; numbers per 16 keys. */
enum { ROUNDED_STRIDE = TILE_ROWS / AMX_DEPTH * AMX_AB };

/* Offset of a patch in the tiles of rows, and in those of VNNI pairs. */
static int64_t rows_offset(const agi_patch *c)
{
    return c->from / GROUP_KEYS * (GROUP_KEYS / AMX_ROWS) * ROUNDED_STRIDE + c->i0 * AMX_ROWS;
}

static int64_t vnni_offset(const agi_patch *c)
{
    return c->from / GROUP_KEYS * GROUP_KEYS * TILE_ROWS + c->i0 * GROUP_KEYS;
}

/* Rounds a score tile into rounded[rows] and, if pairs >= 0, into dz_vnni[pairs]. */
static void round_patch(const agi_backward_scratch *s, const agi_patch *c, float *T, int rows, int pairs)
{
    amx_scratch *const m = s->own;
    zero_outside(T, c);
    agi_amx_table.round_to_rows(m->rounded[rows] + rows_offset(c), ROUNDED_STRIDE, T, c->W);
    if (pairs >= 0) {
        agi_amx_table.round_to_vnni(m->dz_vnni[pairs] + vnni_offset(c), T, c->W);
    }
}

enum { R_, DZ_, TR_, TDZ_ };

/* Is the patch whole, with nothing but the band on its scores? */
static bool is_plain(const agi_head *x, const agi_patch *c)
{
    return x->has.plain && !x->has.dropout && c->nj == GROUP_KEYS && c->ni == STRIPE;
}

/* Zeroes what the band masks in n_rows tiles of rounded rows and n_pairs tiles of VNNI pairs. */
static void mask_patch(const agi_backward_scratch *s, const agi_head *x, const agi_key_tile *keys,
                       const agi_patch *c, uint16_t *const *rows, int n_rows, uint16_t *const *pairs,
                       int n_pairs)
{
    const agi_band band = REAL(agi_band_at)(x, s->tile.i0 + c->i0, keys->j0 + c->from);
    if (agi_inside(band, c->ni, c->nj)) {
        return;
    }
    for (int n = 0; n < n_rows; n++) {
        agi_amx_table.mask_band_rows(rows[n], ROUNDED_STRIDE, band.low, band.high);
    }
    for (int n = 0; n < n_pairs; n++) {
        agi_amx_table.mask_band_vnni(pairs[n], band.low, band.high);
    }
}

static void plain_gradients(const agi_backward_scratch *s, const agi_head *x, const agi_key_tile *keys,
                            const agi_patch *c, const agi_score_tiles *t)
{
    amx_scratch *const m = s->own;
    uint16_t *const rows[2] = {m->rounded[R_] + rows_offset(c), m->rounded[DZ_] + rows_offset(c)};
    uint16_t *const pairs = m->dz_vnni[0] + vnni_offset(c);
    agi_amx_table.gradients(rows[0], rows[1], ROUNDED_STRIDE, pairs, t->P, t->dS, x->c, s->tile.high + c->i0,
                            s->tile.D + c->i0);
    mask_patch(s, x, keys, c, rows, 2, &pairs, 1);
}

static void vjp_patch(agi_backward_scratch *s, const agi_head *x, const agi_sums *sums,
                      const agi_key_tile *keys, const agi_patch *c, const agi_score_tiles *t,
                      const amx_queue *next)
{
    agi_amx_table.score_blocks(next);
    if (is_plain(x, c)) {
        plain_gradients(s, x, keys, c, t);
        return;
    }
    REAL(agi_patch_weights)(s, x, keys, c, t);
    REAL(agi_vjp_patch)(s, x, sums, keys, c, t);
    round_patch(s, c, t->P, R_, -1);
    round_patch(s, c, t->dS, DZ_, 0);
}

static void plain_tangents(const agi_backward_scratch *s, const agi_head *x, const agi_key_tile *keys,
                           const agi_patch *c, const agi_score_tiles *t, const amx_queue *next)
{
    amx_scratch *const m = s->own;
    const agi_query_tile *q = &s->tile;
    const float *const scores[4] = {t->P, t->dS, t->U, t->tdS};
    uint16_t *rows[4], *pairs[2];
    for (int n = 0; n < 4; n++) {
        rows[n] = m->rounded[n] + rows_offset(c);
    }
    for (int n = 0; n < 2; n++) {
        pairs[n] = m->dz_vnni[n] + vnni_offset(c);
    }
    agi_amx_table.gradient_tangents(rows, ROUNDED_STRIDE, pairs, scores, x->c, x->score_scale,
                                    q->high + c->i0, q->mu + c->i0, q->D + c->i0, q->tD + c->i0, next);
    mask_patch(s, x, keys, c, rows, 4, pairs, 2);
}

static void vjp_jvp_patch(agi_backward_scratch *s, const agi_head *x, const agi_sums *sums,
                          const agi_key_tile *keys, const agi_patch *c, const agi_score_tiles *t,
                          const amx_queue *next)
{
    if (is_plain(x, c)) {
        plain_tangents(s, x, keys, c, t, next);
        return;
    }
    agi_amx_table.score_blocks(next);
    REAL(agi_patch_weights)(s, x, keys, c, t);
    REAL(agi_vjp_jvp_patch)(s, x, sums, keys, c, t);
    round_patch(s, c, t->P, R_, -1);
    round_patch(s, c, t->U, TR_, -1);
    round_patch(s, c, t->dS, DZ_, 1);
    round_patch(s, c, t->tdS, TDZ_, 0);
}

/* The stripe that starts at query i0 of the tile, and the keys of the block that it sees. */
static agi_patch stripe_of(const agi_head *x, const agi_query_tile *tile, const agi_key_tile *keys,
                           int64_t i0)
{
    agi_patch stripe = {.q = i0 / PANEL, .i0 = i0, .W = STRIPE, .ld = PANEL};
    int64_t to;
    stripe.ni = agi_min(STRIPE, tile->ni - i0);
    agi_keys_of(REAL(agi_band_at)(x, tile->i0, keys->j0), i0, i0 + stripe.ni, keys->nj, &stripe.from, &to);
    stripe.nj = agi_max(0, to - stripe.from);
    return stripe;
}

/* Walks over the patches of a block, stripe by stripe. */
typedef struct {
    agi_patch stripe;
    int64_t g; /* the stripe's next group of keys */
} patch_walk;

static bool next_patch(const agi_backward_scratch *s, const agi_head *x, const agi_key_tile *keys,
                       patch_walk *walk, agi_patch *c)
{
    agi_patch *const stripe = &walk->stripe;
    while (stripe->nj == 0 || walk->g * GROUP_KEYS >= stripe->from + stripe->nj) {
        if (stripe->i0 + STRIPE >= s->tile.ni) {
            return false;
        }
        *stripe = stripe_of(x, &s->tile, keys, stripe->i0 + STRIPE);
        walk->g = stripe->from / GROUP_KEYS;
    }
    *c = *stripe;
    c->from = agi_max(stripe->from, walk->g * GROUP_KEYS);
    walk->g++;
    c->nj = agi_min(stripe->from + stripe->nj, walk->g * GROUP_KEYS) - c->from;
    c->at = c->from % GROUP_KEYS * PANEL;
    return true;
}

static void run_patch(agi_backward_scratch *s, const agi_head *x, const agi_sums *sums,
                      const agi_key_tile *keys, const agi_patch *c, float *const T[2], const amx_queue *next)
{
    const agi_score_tiles scores = {.P = T[0], .U = T[1], .dS = T[0] + STRIPE, .tdS = T[1] + STRIPE};
    if (x->call->map == AGI_VJP_JVP) {
        vjp_jvp_patch(s, x, sums, keys, c, &scores, next);
    } else {
        vjp_patch(s, x, sums, keys, c, &scores, next);
    }
    for (int64_t j = c->from; j < c->from + c->nj && x->has.pair_mask; j++) {
        s->masked_keys[j] &= s->panel_masked_keys[j];
    }
}

/* The products of the next patch are interleaved with the vector work of this one. */
static void run_patches(agi_backward_scratch *s, const agi_head *x, const agi_sums *sums,
                        const key_operands *operands, const agi_key_tile *keys)
{
    amx_scratch *const m = s->own;
    patch_walk walk = {.stripe = {.i0 = -STRIPE}};
    agi_patch patch[2];
    amx_queue next = {.n = 0};
    bool there = next_patch(s, x, keys, &walk, &patch[0]);
    if (there) {
        queue_patch(&next, s, x, &patch[0], operands, m->T[0]);
        agi_amx_table.score_blocks(&next);
    }
    for (int now = 0; there; now = !now) {
        there = next_patch(s, x, keys, &walk, &patch[!now]);
        next.n = 0;
        if (there) {
            queue_patch(&next, s, x, &patch[!now], operands, m->T[!now]);
        }
        agi_amx_prefetch_step(&m->ahead, &next);
        run_patch(s, x, sums, keys, &patch[now], m->T[now], &next);
    }
}

/* ---- Gradients ---- */

/* Rows j .. j + n - 1 of dK += T^T B over queries from .. to - 1, widened to whole tiles. Nothing is added to
 * the rows after the last: their T is zero. */
static void add_key_rows(const uint16_t *T, amx_operand B, int64_t j, int64_t n, int64_t from, int64_t to,
                         int64_t width, float *dK)
{
    const int64_t first = from / AMX_DEPTH, depth = (to + AMX_DEPTH - 1) / AMX_DEPTH - first;
    const amx_operand A = {T + j / AMX_ROWS * ROUNDED_STRIDE + first * AMX_AB, ROUNDED_STRIDE, AMX_AB,
                           AMX_DEPTH};
    B.p += first * B.stride_k;
    const amx_sums C = amx_sums_by_rows(dK + j * width, width);
    agi_amx_table.product((n + AMX_ROWS - 1) / AMX_ROWS, width / AMX_LANES, depth, &A, &B, &C, true);
}

/* If the band crosses the tile, group by group, without the queries that see nothing of a group. */
static void add_key_gradient(const agi_backward_scratch *s, const agi_head *x, const agi_key_tile *keys,
                             const uint16_t *T, amx_operand B, int64_t width, float *dK)
{
    const agi_band band = REAL(agi_band_at)(x, s->tile.i0, keys->j0);
    const int64_t strip = agi_inside(band, s->tile.ni, keys->nj) ? keys->nj : GROUP_KEYS;
    for (int64_t j = 0; j < keys->nj; j += strip) {
        const int64_t n = agi_min(strip, keys->nj - j);
        int64_t from, to;
        agi_queries_of(band, j, j + n, s->tile.ni, &from, &to);
        if (from < to) {
            add_key_rows(T, B, j, n, from, to, width, dK);
        }
    }
}

static void add_query_gradient(const agi_backward_scratch *s, const agi_head *x, const agi_key_tile *keys,
                               const uint16_t *T, amx_operand A)
{
    const agi_band band = REAL(agi_band_at)(x, s->tile.i0, keys->j0);
    const int64_t ni = s->tile.ni, strip = agi_inside(band, ni, keys->nj) ? ni : AMX_DEPTH;
    const int64_t col_stride = agi_amx_col_stride(x->Dk);
    for (int64_t i = 0; i < ni; i += strip) {
        const int64_t n = agi_min(strip, ni - i);
        int64_t from, to;
        agi_keys_of(band, i, i + n, keys->nj, &from, &to);
        if (from < to) {
            const int64_t first = from / GROUP_KEYS, depth = (to + GROUP_KEYS - 1) / GROUP_KEYS - first;
            const int64_t group = TILE_ROWS * GROUP_KEYS;
            const amx_operand B = {T + first * group + i * GROUP_KEYS, AMX_AB, group, 0};
            const amx_operand K = {A.p + first * A.stride_k, A.stride_mn, A.stride_k, A.ld};
            const amx_sums C = amx_sums_by_columns(s->tile.dQ + i * col_stride, col_stride);
            agi_amx_table.product(x->Dk_pad / AMX_ROWS, (n + AMX_LANES - 1) / AMX_LANES, depth, &K, &B, &C,
                                  true);
        }
    }
}

/* dV = R^T dO, dK = dZ^T Q; tdV = tR^T dO + R^T tdO, tdK = tdZ^T Q + dZ^T tQ */
static void add_key_gradients(const agi_backward_scratch *s, const agi_head *x, const agi_key_tile *keys)
{
    amx_scratch *const m = s->own;
    const ag_args *a = &x->call->a;
    const bool tangents = x->call->map == AGI_VJP_JVP;
    if ((tangents ? a->tdv : a->dv).data != NULL) {
        add_key_gradient(s, x, keys, m->rounded[tangents ? TR_ : R_], m->queries_split16[DO_], x->Dv_pad,
                         keys->dV);
        if (tangents && a->td_o.data != NULL) {
            add_key_gradient(s, x, keys, m->rounded[R_], m->queries_split16[TDO_], x->Dv_pad, keys->dV);
        }
    }
    if ((tangents ? a->tdk : a->dk).data != NULL) {
        add_key_gradient(s, x, keys, m->rounded[tangents ? TDZ_ : DZ_], m->queries_split16[Q_], x->Dk_pad,
                         keys->dK);
        if (tangents && a->tq.data != NULL) {
            add_key_gradient(s, x, keys, m->rounded[DZ_], m->queries_split16[TQ_], x->Dk_pad, keys->dK);
        }
    }
}

/* dQ = dZ K; tdQ = tdZ K + dZ tK */
static void add_query_gradients(const agi_backward_scratch *s, const agi_head *x,
                                const key_operands *operands, const agi_key_tile *keys)
{
    amx_scratch *const m = s->own;
    for (int t = 0; t < 2; t++) {
        if (operands->transposed[t].p != NULL) {
            const amx_operand K = visible_keys(s, x, operands->transposed[t], keys);
            add_query_gradient(s, x, keys, m->dz_vnni[t], K);
        }
    }
}

/* Moves the start of the block back to the first key of its group. The keys before the given ones are masked. */
static agi_key_tile widen_to_groups(const amx_scratch *s, const agi_head *x, const agi_key_tile *keys)
{
    const int64_t before = (keys->j0 - s->span0) % GROUP_KEYS;
    agi_key_tile whole = {.j0 = keys->j0 - before, .nj = keys->nj + before};
    whole.dK = keys->dK - before * x->Dk_pad;
    whole.dV = keys->dV - before * x->Dv_pad;
    return whole;
}

static void block(agi_backward_scratch *s, const agi_head *x, const agi_sums *sums, const agi_key_tile *given)
{
    amx_scratch *const m = s->own;
    const agi_key_tile keys = widen_to_groups(m, x, given);
    const key_operands operands = operands_of(m, x, keys.j0);
    memset(s->masked_keys, 1, (size_t)keys.nj);
    run_patches(s, x, sums, &operands, &keys);
    add_key_gradients(s, x, &keys);
    add_query_gradients(s, x, &operands, &keys);
}

static void end_tile(agi_backward_scratch *s)
{
    const amx_scratch *const m = s->own;
    agi_amx_table.end(&m->before);
}

const agi_backward_ops agi_amx_backward_ops = {
    .block_step = GROUP_KEYS,
    .key_step = GROUP_KEYS,
    .query_step = PANEL,
    .dq_row_step = TILE_ROWS,
    .dq_channel_step = AMX_DEPTH,
    .lay_out = lay_out,
    .begin_pass = begin_pass,
    .row_dots = row_dots,
    .begin_tile = begin_tile,
    .block = block,
    .end_tile = end_tile,
    .store_dq = store_dq,
    .store_dkv = store_dkv,
};
