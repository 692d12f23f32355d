/* The patches of a block: one stripe of queries and one group of keys at a time, from the scores in float32
 * to R and dZ, and in vjp_jvp their tangents, rounded to bfloat16 into the tiles of the block. */
#include "cpu/amx/amx_backward.h"

#include <string.h>

/* ---- A patch ---- */

static void queue_block(amx_queue *to, const agi_patch *c, const amx_operand *keys,
                        const amx_operand *queries, int64_t depth, float *T)
{
    agi_amx_queue_block(to, keys, c->from / GROUP_KEYS * GROUP_KEYS, queries, c->i0, depth, T);
}

/* Queues the products of a patch: S^T = K Q^T and dP^T = V dO^T; in vjp_jvp also tQ K^T + Q tK^T and
 * dO tV^T + tdO V^T, whose absent terms are zero. */
static void queue_patch(amx_queue *to, const agi_backward_scratch *s, const agi_head *x, const agi_patch *c,
                        const agi_amx_backward_keys *keys, float *const T[2])
{
    agi_amx_backward_scratch *const m = s->own;
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
    agi_amx_backward_scratch *const m = s->own;
    zero_outside(T, c);
    agi_amx_table.round_to_rows(m->rounded[rows] + rows_offset(c), ROUNDED_STRIDE, T, c->W);
    if (pairs >= 0) {
        agi_amx_table.round_to_vnni(m->dz_vnni[pairs] + vnni_offset(c), T, c->W);
    }
}

/* Is the patch whole, with nothing but the band on its scores? */
static bool is_plain(const agi_head *x, const agi_patch *c)
{
    return x->has.plain && !x->has.dropout && c->nj == GROUP_KEYS && c->ni == STRIPE;
}

/* Zeroes what the band masks in n_rows tiles of rounded rows and n_pairs tiles of VNNI pairs. */
static void mask_patch(const agi_backward_scratch *s, const agi_head *x, const agi_backward_key_block *keys,
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

static void plain_gradients(const agi_backward_scratch *s, const agi_head *x,
                            const agi_backward_key_block *keys, const agi_patch *c, const agi_score_tiles *t)
{
    agi_amx_backward_scratch *const m = s->own;
    uint16_t *const rows[2] = {m->rounded[R_] + rows_offset(c), m->rounded[DZ_] + rows_offset(c)};
    uint16_t *const pairs = m->dz_vnni[0] + vnni_offset(c);
    agi_amx_table.gradients(rows[0], rows[1], ROUNDED_STRIDE, pairs, t->P, t->dS, x->c,
                            s->tile.L_high + c->i0, s->tile.D + c->i0);
    mask_patch(s, x, keys, c, rows, 2, &pairs, 1);
}

static void vjp_patch(agi_backward_scratch *s, const agi_head *x, const agi_sums *sums,
                      const agi_backward_key_block *keys, const agi_patch *c, const agi_score_tiles *t,
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

static void plain_tangents(const agi_backward_scratch *s, const agi_head *x,
                           const agi_backward_key_block *keys, const agi_patch *c, const agi_score_tiles *t,
                           const amx_queue *next)
{
    agi_amx_backward_scratch *const m = s->own;
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
                                    q->L_high + c->i0, q->mu + c->i0, q->D + c->i0, q->tD + c->i0, next);
    mask_patch(s, x, keys, c, rows, 4, pairs, 2);
}

static void vjp_jvp_patch(agi_backward_scratch *s, const agi_head *x, const agi_sums *sums,
                          const agi_backward_key_block *keys, const agi_patch *c, const agi_score_tiles *t,
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

/* ---- All patches of a block ---- */

/* The stripe that starts at query i0 of the tile, and the keys of the block that it sees. */
static agi_patch stripe_of(const agi_head *x, const agi_query_tile *tile, const agi_backward_key_block *keys,
                           int64_t i0)
{
    agi_patch stripe = {.index = i0 / PANEL, .i0 = i0, .W = STRIPE, .ld = PANEL};
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

static bool next_patch(const agi_backward_scratch *s, const agi_head *x, const agi_backward_key_block *keys,
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
                      const agi_backward_key_block *keys, const agi_patch *c, float *const T[2],
                      const amx_queue *next)
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
void agi_amx_run_patches(agi_backward_scratch *s, const agi_head *x, const agi_sums *sums,
                         const agi_amx_backward_keys *operands, const agi_backward_key_block *keys)
{
    agi_amx_backward_scratch *const m = s->own;
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
