/* The patches of a block: one stripe of queries and one group of keys at a time, from the scores in float32
 * to R and dZ, and in vjp_jvp their tangents, rounded to bfloat16 in the arrays of the block. */
#include "cpu/amx/amx_backward.h"

#include <string.h>

/* ---- A patch ---- */

static void queue_block(amx_queue *to, const agi_patch *patch, const amx_operand *keys,
                        const amx_operand *queries, int64_t depth, float *T)
{
    agi_amx_queue_block(to, keys, patch->from / GROUP_KEYS * GROUP_KEYS, queries, patch->i0, depth, T);
}

/* Queues the products of a patch: S^T = K Q^T and dP^T = V dO^T; in vjp_jvp also tQ K^T + Q tK^T and
 * dO tV^T + tdO V^T, whose absent terms are zero. */
static void queue_patch(amx_queue *to, const agi_backward_scratch *s, const agi_head *x,
                        const agi_patch *patch, const agi_amx_backward_keys *keys, float *const T[2])
{
    agi_amx_backward_scratch *const own = s->own;
    const ag_args *a = &x->call->a;
    const ag_tensor *const of_keys[2] = {&a->tk, &a->tv}, *const of_queries[2] = {&a->tq, &a->td_o};
    to->n = 0;
    for (int t = K_; t <= V_; t++) {
        const int64_t D = t == K_ ? x->Dk : x->Dv;
        queue_block(to, patch, &keys->rows[t], &own->queries_vnni[t], agi_round_up(D, AMX_DEPTH) / AMX_DEPTH,
                    T[0] + t * STRIPE);
        if (x->call->map == AGI_VJP_JVP) {
            const agi_amx_tangent_product product = agi_amx_make_tangent_product(
                keys->rows[t], of_keys[t]->data != NULL,
                (amx_operand){own->vnni_tiles[t], own->queries_vnni[t].stride_mn, AMX_AB, 0},
                of_queries[t]->data != NULL, D);
            queue_block(to, patch, &product.rows, &product.columns, product.depth, T[1] + t * STRIPE);
        }
    }
}

/* Zeroes the scores outside the patch's keys and queries: they may be NaN. */
static void zero_outside(float *T, const agi_patch *patch)
{
    const int64_t from = patch->from % GROUP_KEYS, to = from + patch->nj;
    for (int64_t j = 0; j < GROUP_KEYS; j++) {
        const int64_t seen = j < from || j >= to ? 0 : patch->ni;
        memset(T + j * PANEL + seen, 0, (size_t)(STRIPE - seen) * sizeof *T);
    }
}

/* Offset of a patch in `rounded`, and in `dz_vnni`. */
static int64_t rows_offset(const agi_patch *patch)
{
    return patch->from / GROUP_KEYS * (GROUP_KEYS / AMX_ROWS) * ROUNDED_STRIDE + patch->i0 * AMX_ROWS;
}

static int64_t vnni_offset(const agi_patch *patch)
{
    return patch->from / GROUP_KEYS * GROUP_KEYS * TILE_ROWS + patch->i0 * GROUP_KEYS;
}

/* Rounds a score tile into rounded[rows] and, if pairs >= 0, into dz_vnni[pairs]. */
static void round_patch(const agi_backward_scratch *s, const agi_patch *patch, float *T, int rows, int pairs)
{
    agi_amx_backward_scratch *const own = s->own;
    zero_outside(T, patch);
    agi_amx_table.round_to_rows(own->rounded[rows] + rows_offset(patch), ROUNDED_STRIDE, T, patch->W);
    if (pairs >= 0) {
        agi_amx_table.round_to_vnni(own->dz_vnni[pairs] + vnni_offset(patch), T, patch->W);
    }
}

/* Is the patch whole, with nothing but the band on its scores, and many keys for each query? */
static bool is_plain(const agi_head *x, const agi_patch *patch, bool few_keys)
{
    return !few_keys && x->has.plain && !x->has.dropout && patch->nj == GROUP_KEYS && patch->ni == STRIPE;
}

/* Zeroes what the band masks in n_rows tiles of rounded rows and n_pairs tiles of VNNI pairs. */
static void mask_patch(const agi_backward_scratch *s, const agi_head *x, const agi_backward_key_block *keys,
                       const agi_patch *patch, uint16_t *const *rows, int n_rows, uint16_t *const *pairs,
                       int n_pairs)
{
    const agi_band band = REAL(agi_band_at)(x, s->tile.i0 + patch->i0, keys->j0 + patch->from);
    if (agi_inside(band, patch->ni, patch->nj)) {
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
                            const agi_backward_key_block *keys, const agi_patch *patch,
                            const agi_score_tiles *t)
{
    agi_amx_backward_scratch *const own = s->own;
    uint16_t *const rows[2] = {own->rounded[R_] + rows_offset(patch), own->rounded[DZ_] + rows_offset(patch)};
    uint16_t *const pairs = own->dz_vnni[0] + vnni_offset(patch);
    agi_amx_table.gradients(rows[0], rows[1], ROUNDED_STRIDE, pairs, t->P, t->dS, x->c,
                            s->tile.L_high + patch->i0, s->tile.D + patch->i0);
    mask_patch(s, x, keys, patch, rows, 2, &pairs, 1);
}

static void vjp_patch(agi_backward_scratch *s, const agi_head *x, const agi_sums *sums,
                      const agi_backward_key_block *keys, const agi_patch *patch, const agi_score_tiles *t,
                      bool few_keys, const amx_queue *next)
{
    agi_amx_table.score_blocks(next);
    if (is_plain(x, patch, few_keys)) {
        plain_gradients(s, x, keys, patch, t);
        return;
    }
    REAL(agi_patch_weights)(s, x, keys, patch, t);
    REAL(agi_vjp_patch)(s, x, sums, keys, patch, t);
    round_patch(s, patch, t->P, R_, -1);
    round_patch(s, patch, t->dS, DZ_, 0);
}

static void plain_tangents(const agi_backward_scratch *s, const agi_head *x,
                           const agi_backward_key_block *keys, const agi_patch *patch,
                           const agi_score_tiles *t, const amx_queue *next)
{
    agi_amx_backward_scratch *const own = s->own;
    const agi_query_tile *q = &s->tile;
    const float *const scores[4] = {t->P, t->dS, t->U, t->tdS};
    uint16_t *rows[4], *pairs[2];
    for (int n = 0; n < 4; n++) {
        rows[n] = own->rounded[n] + rows_offset(patch);
    }
    for (int n = 0; n < 2; n++) {
        pairs[n] = own->dz_vnni[n] + vnni_offset(patch);
    }
    agi_amx_table.gradient_tangents(rows, ROUNDED_STRIDE, pairs, scores, x->c, x->score_scale,
                                    q->L_high + patch->i0, q->mu + patch->i0, q->D + patch->i0,
                                    q->tD + patch->i0, next);
    mask_patch(s, x, keys, patch, rows, 4, pairs, 2);
}

static void vjp_jvp_patch(agi_backward_scratch *s, const agi_head *x, const agi_sums *sums,
                          const agi_backward_key_block *keys, const agi_patch *patch,
                          const agi_score_tiles *t, bool few_keys, const amx_queue *next)
{
    if (is_plain(x, patch, few_keys)) {
        plain_tangents(s, x, keys, patch, t, next);
        return;
    }
    agi_amx_table.score_blocks(next);
    REAL(agi_patch_weights)(s, x, keys, patch, t);
    REAL(agi_vjp_jvp_patch)(s, x, sums, keys, patch, t);
    round_patch(s, patch, t->P, R_, -1);
    round_patch(s, patch, t->U, TR_, -1);
    round_patch(s, patch, t->dS, DZ_, 1);
    round_patch(s, patch, t->tdS, TDZ_, 0);
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
                       patch_walk *walk, agi_patch *patch)
{
    agi_patch *const stripe = &walk->stripe;
    while (stripe->nj == 0 || walk->g * GROUP_KEYS >= stripe->from + stripe->nj) {
        if (stripe->i0 + STRIPE >= s->tile.ni) {
            return false;
        }
        *stripe = stripe_of(x, &s->tile, keys, stripe->i0 + STRIPE);
        walk->g = stripe->from / GROUP_KEYS;
    }
    *patch = *stripe;
    patch->from = agi_max(stripe->from, walk->g * GROUP_KEYS);
    walk->g++;
    patch->nj = agi_min(stripe->from + stripe->nj, walk->g * GROUP_KEYS) - patch->from;
    patch->at = patch->from % GROUP_KEYS * PANEL;
    return true;
}

static void run_patch(agi_backward_scratch *s, const agi_head *x, const agi_sums *sums,
                      const agi_backward_key_block *keys, const agi_amx_backward_keys *operands,
                      const agi_patch *patch, float *const T[2], const amx_queue *next)
{
    const bool few_keys = agi_amx_sees_few_keys(s, x, patch);
    const agi_score_tiles scores = {.P = T[0], .U = T[1], .dS = T[0] + STRIPE, .tdS = T[1] + STRIPE};
    if (x->call->map == AGI_VJP_JVP) {
        vjp_jvp_patch(s, x, sums, keys, patch, &scores, few_keys, next);
    } else {
        vjp_patch(s, x, sums, keys, patch, &scores, few_keys, next);
    }
    if (few_keys) {
        agi_amx_add_rest_of_patch(s, x, keys, operands, patch, &scores);
    }
    for (int64_t j = patch->from; j < patch->from + patch->nj && x->has.pair_mask; j++) {
        s->masked_keys[j] &= s->panel_masked_keys[j];
    }
}

/* The products of the next patch are queued before the work on this one, which interleaves them in vjp_jvp. */
void agi_amx_run_patches(agi_backward_scratch *s, const agi_head *x, const agi_sums *sums,
                         const agi_amx_backward_keys *operands, const agi_backward_key_block *keys)
{
    agi_amx_backward_scratch *const own = s->own;
    patch_walk walk = {.stripe = {.i0 = -STRIPE}}; /* before the first stripe */
    agi_patch patch[2];
    amx_queue next = {.n = 0};
    bool found = next_patch(s, x, keys, &walk, &patch[0]);
    if (found) {
        queue_patch(&next, s, x, &patch[0], operands, own->T[0]);
        agi_amx_table.score_blocks(&next);
    }
    for (int current = 0; found; current = !current) {
        found = next_patch(s, x, keys, &walk, &patch[!current]);
        next.n = 0;
        if (found) {
            queue_patch(&next, s, x, &patch[!current], operands, own->T[!current]);
        }
        agi_amx_prefetch_step(&own->prefetch, &next);
        run_patch(s, x, sums, keys, operands, &patch[current], own->T[current], &next);
    }
}
