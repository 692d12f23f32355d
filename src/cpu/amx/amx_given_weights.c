/* The weights of one group of keys for one stripe of queries: from the scores to VNNI pairs of keys. The AMX kernels
 * have a path for plain scores; for all others, the vector kernels apply features and dropout. */
#include <string.h>

#include "cpu/amx/amx_given.h"

/* The score tiles that become the weights, in their order. */
static void weight_tiles(const agi_amx_given_form *form, float *const T[N_TILES], float *tile[MAX_VALUES])
{
    tile[0] = form->second ? T[Z_TILE] : T[U_TILE];
    tile[1] = form->one_direction ? T[U_TILE] : form->second ? T[Y_TILE] : T[P_TILE];
    tile[2] = T[U_TILE];
}

/* ---- Plain scores ---- */

static bool is_plain(const agi_head *x, const agi_amx_given_stripe *stripe, const agi_amx_given_group *group)
{
    return x->has.plain && !x->has.dropout && !stripe->few_keys && stripe->lanes.ni == STRIPE &&
           group->from == 0 && group->to == GROUP_KEYS &&
           agi_inside(REAL(agi_band_at)(x, stripe->lanes.i0, group->j0 + group->g * GROUP_KEYS), STRIPE,
                      GROUP_KEYS);
}

static void plain_weights(const agi_amx_given_scratch *own, const agi_head *x,
                          const agi_amx_given_stripe *stripe, const agi_amx_given_group *group,
                          const amx_queue *next)
{
    const agi_given_panel *const lanes = &stripe->lanes;
    const bool one_direction = own->form.one_direction;
    const float *const scores[N_TILES] = {group->T[P_TILE], group->T[U_TILE],
                                          group->T[one_direction ? U_TILE : Y_TILE], group->T[Z_TILE]};
    uint16_t *vnni[MAX_VALUES];
    for (int64_t n = 0; n < MAX_VALUES; n++) {
        vnni[n] = n < own->form.n_weights ? agi_amx_weights_at(own, own->weights, group->slot, n) : NULL;
    }
    if (own->form.second) {
        agi_amx_table.second_tangents(vnni, scores, x->c, x->score_scale,
                                      one_direction ? 2 * x->score_scale : x->score_scale, lanes->L_high,
                                      lanes->mu, lanes->smu, lanes->sum, lanes->excess, next);
    } else {
        float *const sums[2] = {lanes->sum, stripe->P_sum};
        agi_amx_table.given_tangents(vnni, scores, x->c, x->score_scale, lanes->L_high, lanes->mu, sums,
                                     stripe->excess, next);
    }
}

/* ---- All others ---- */

/* Zeroes the rows from .. to - 1 of a tile. */
static void zero_rows(float *T, int64_t from, int64_t to)
{
    for (int64_t j = from; j < to; j++) {
        memset(T + j * PANEL, 0, STRIPE * sizeof *T);
    }
}

static void mark_visible(const agi_given_scratch *s, const agi_amx_given_group *group, bool masked_keys)
{
    const agi_amx_given_scratch *const own = s->own;
    uint8_t *const visible = own->visible + group->slot * GROUP_KEYS;
    memset(visible, 0, GROUP_KEYS);
    for (int64_t j = group->from; j < group->to; j++) {
        visible[j] = !masked_keys || !s->masked_keys[j - group->from];
    }
}

/* jvp: P, after dropout. */
static void add_P_sum(const agi_amx_given_stripe *stripe, const float *P)
{
    for (int64_t j = 0; j < GROUP_KEYS; j++) {
        for (int64_t i = 0; i < STRIPE; i++) {
            stripe->P_sum[i] += P[j * PANEL + i];
        }
    }
}

/* From scores to weights in float32, in place; keys that are not visible get weight 0. */
static void weights_by_vectors(agi_given_scratch *s, const agi_head *x, const agi_amx_given_stripe *stripe,
                               const agi_amx_given_group *group)
{
    const agi_amx_given_scratch *const own = s->own;
    const agi_amx_given_form *const form = &own->form;
    const int64_t at = group->from * PANEL, n = group->to - group->from;
    float *const *const T = group->T;
    const agi_given_tiles tiles = {T[P_TILE] + at, T[U_TILE] + at, T[Y_TILE] + at, T[Z_TILE] + at};
    const double one = 1;
    if (form->one_direction) {
        x->k->store_rows(tiles.Y, PANEL, tiles.U, PANEL, n, STRIPE, &one, 0, false);
    }
    mark_visible(s, group,
                 REAL(agi_given_stages)(s, x, &stripe->lanes, &tiles, PANEL,
                                        group->j0 + group->g * GROUP_KEYS + group->from, n,
                                        form->one_direction ? 2 : 1));
    if (form->one_direction) {
        x->k->store_rows(tiles.U, PANEL, tiles.Y, PANEL, n, STRIPE, &one, 0, true);
    }
}

static void round_tiles(const agi_amx_given_scratch *own, const agi_amx_given_stripe *stripe,
                        const agi_amx_given_group *group)
{
    float *tile[MAX_VALUES];
    weight_tiles(&own->form, group->T, tile);
    for (int64_t n = 0; n < own->form.n_weights; n++) {
        zero_rows(tile[n], 0, group->from);
        zero_rows(tile[n], group->to, GROUP_KEYS);
        agi_amx_table.round_weights(agi_amx_weights_at(own, own->weights, group->slot, n), tile[n], STRIPE,
                                    stripe->excess[n]);
    }
    if (!own->form.second) {
        add_P_sum(stripe, group->T[P_TILE]);
    }
}

bool agi_amx_given_weights(agi_given_scratch *s, const agi_head *x, const agi_amx_given_stripe *stripe,
                           const agi_amx_given_group *group, const amx_queue *next)
{
    const agi_amx_given_scratch *const own = s->own;
    if (is_plain(x, stripe, group)) {
        plain_weights(own, x, stripe, group, next);
        return false;
    }
    agi_amx_table.score_blocks(next);
    weights_by_vectors(s, x, stripe, group);
    round_tiles(own, stripe, group);
    return memchr(own->visible + group->slot * GROUP_KEYS, 0, GROUP_KEYS) != NULL;
}

void agi_amx_given_rest(const agi_amx_given_scratch *s, const agi_amx_given_stripe *stripe,
                        const agi_amx_given_group *group)
{
    float *tile[MAX_VALUES];
    weight_tiles(&s->form, group->T, tile);
    for (int64_t n = 0; n < s->form.n_weights; n++) {
        agi_amx_round_rest(agi_amx_weights_at(s, s->rest, 0, n), tile[n], STRIPE, stripe->excess[n]);
    }
}
