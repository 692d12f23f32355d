/* The weights of one group of keys for one panel: from the scores S^T to P^T in VNNI pairs of keys, and in
 * jvp to its tangent. The AMX kernels have a path for plain scores; features and dropout are applied by the
 * vector kernels. */
#include "cpu/amx/amx_rows.h"

#include <math.h>
#include <string.h>

static void mask_rows(float *T, int64_t from, int64_t to)
{
    for (int64_t n = from * PANEL; n < to * PANEL; n++) {
        T[n] = -INFINITY;
    }
}

/* Are scores plain, without dropout, and does nothing but the band mask keys of the group for the panel? */
static bool only_band_masks(const agi_head *x, const agi_row_panel *panel, agi_band band,
                            const agi_amx_key_group *group)
{
    int64_t from, to;
    agi_keys_of(band, 0, panel->ni, GROUP_KEYS, &from, &to);
    return x->has.plain && !x->has.dropout && group->from == from && group->to == to;
}

/* Marks the group's keys from .. to - 1 as visible, the others as not. */
static void mark_visible_keys(const agi_amx_row_scratch *s, const agi_amx_key_group *group)
{
    uint8_t *const visible = s->visible + group->slot * GROUP_KEYS;
    memset(visible, 1, GROUP_KEYS);
    memset(visible, 0, (size_t)group->from);
    memset(visible + group->to, 0, (size_t)(GROUP_KEYS - group->to));
}

/* Applies features to the visible keys. The others get score -infinity, and their rows of V will be zeroed,
 * as they may be NaN. */
static void group_features(agi_row_scratch *s, const agi_head *x, const agi_row_panel *panel, int64_t j0,
                           const agi_amx_key_group *group)
{
    agi_amx_row_scratch *const own = s->own;
    const int64_t n = group->to - group->from, row = group->from * PANEL;
    uint8_t *const visible = own->visible + group->slot * GROUP_KEYS;
    const bool masked_keys =
        REAL(agi_row_scores)(s, x, panel, group->T + row, PANEL, j0 + group->g * GROUP_KEYS + group->from, n);
    mask_rows(group->T, 0, group->from);
    mask_rows(group->T, group->to, GROUP_KEYS);
    memset(visible, 0, GROUP_KEYS);
    for (int64_t j = 0; j < n; j++) {
        visible[group->from + j] = !masked_keys || !s->masked_keys[j];
    }
}

/* The excess of the rounded weights so far, after m grew. */
static void rescale_excess(const agi_amx_panel *amx_panel, int64_t lanes, const float *alpha,
                           const float *delta, bool rescaled)
{
    for (int64_t i = 0; i < lanes && rescaled; i++) {
        if (delta != NULL) {
            amx_panel->t_excess[i] = alpha[i] * (amx_panel->t_excess[i] + delta[i] * amx_panel->excess[i]);
        }
        amx_panel->excess[i] *= alpha[i];
    }
}

/* jvp: weights and their tangents, rounded, of a group with features, or one that moves the running maximum. */
static bool tangents_with_features(agi_row_scratch *s, const agi_head *x, agi_row_panel *panel,
                                   const agi_amx_panel *amx_panel, int64_t j0, const agi_amx_key_group *group)
{
    agi_amx_row_scratch *const own = s->own;
    const int64_t W = agi_amx_lanes(panel), to = group->slot * GROUP_KEYS * PANEL, row = group->from * PANEL;
    x->k->score_tangents(group->U + row, x->has.softcap ? s->F : NULL, NULL, x->has.plain ? NULL : s->tX,
                         PANEL, group->to - group->from, panel->W, x->score_scale);
    const bool rescaled = x->k->softmax_tangent(group->T, group->U, PANEL, GROUP_KEYS, W, x->c, panel->m,
                                                panel->l, panel->r, panel->a, s->alpha, s->delta);
    if (x->has.dropout) {
        REAL(agi_dropout_tile)(x, panel->i0, W, j0 + group->g * GROUP_KEYS, GROUP_KEYS, s->M, PANEL);
        x->k->multiply(group->T, s->M, PANEL, GROUP_KEYS, W);
        x->k->multiply(group->U, s->M, PANEL, GROUP_KEYS, W);
    }
    rescale_excess(amx_panel, W, s->alpha, s->delta, rescaled);
    agi_amx_table.round_weights(own->P + to, group->T, W, amx_panel->excess);
    agi_amx_table.round_weights(own->tP + to, group->U, W, amx_panel->t_excess);
    return rescaled;
}

/* forward: the weights stay in group->T, too, in float32. */
static bool weights_by_vectors(agi_row_scratch *s, const agi_head *x, agi_row_panel *panel,
                               const agi_amx_panel *amx_panel, int64_t j0, const agi_amx_key_group *group)
{
    agi_amx_row_scratch *const own = s->own;
    const int64_t W = agi_amx_lanes(panel);
    const bool rescaled = x->k->softmax(group->T, PANEL, GROUP_KEYS, W, x->c, panel->m, panel->l, s->alpha);
    if (x->has.dropout) {
        REAL(agi_dropout_tile)(x, panel->i0, W, j0 + group->g * GROUP_KEYS, GROUP_KEYS, s->M, PANEL);
        x->k->multiply(group->T, s->M, PANEL, GROUP_KEYS, W);
    }
    rescale_excess(amx_panel, W, s->alpha, NULL, rescaled);
    agi_amx_table.round_weights(own->P + group->slot * GROUP_KEYS * PANEL, group->T, W, amx_panel->excess);
    return rescaled;
}

/* Weights of a full panel with nothing but the band on its scores, rounded by the kernel that computes them;
 * the products of the next group are interleaved. Returns false, and adds nothing to the sums, if the
 * running maximum must grow. */
static bool plain_weights(agi_row_scratch *s, const agi_head *x, agi_row_panel *panel,
                          const agi_amx_panel *amx_panel, agi_band band, const agi_amx_key_group *group,
                          const amx_queue *next)
{
    agi_amx_row_scratch *const own = s->own;
    const int64_t to = group->slot * GROUP_KEYS * PANEL;
    uint16_t *const P = own->P + to;
    if (x->call->map == AGI_FORWARD) {
        return agi_amx_table.weights(P, group->T, x->c, band.low, band.high, panel->m, panel->l,
                                     amx_panel->excess, next);
    }
    return agi_amx_table.softmax_tangent(P, own->tP + to, group->T, group->U, x->c, x->score_scale, panel->m,
                                         panel->l, amx_panel->excess, panel->r, panel->a, amx_panel->t_excess,
                                         next);
}

/* Weights of any group. whole: no features, and all queries see all its keys. Returns whether the sums so far must
 * be rescaled. */
static bool other_weights(agi_row_scratch *s, const agi_head *x, agi_row_panel *panel,
                          const agi_amx_panel *amx_panel, const agi_amx_row_keys *keys,
                          const agi_amx_key_group *group, bool whole)
{
    agi_amx_row_scratch *const own = s->own;
    const bool forward = x->call->map == AGI_FORWARD;
    if (!whole || !forward) {
        group_features(s, x, panel, keys->j0, group);
    }
    if (!forward) {
        return tangents_with_features(s, x, panel, amx_panel, keys->j0, group);
    }
    if (x->has.dropout || amx_panel->few_keys) {
        return weights_by_vectors(s, x, panel, amx_panel, keys->j0, group);
    }
    return agi_amx_table.softmax(own->P + group->slot * GROUP_KEYS * PANEL, group->T, agi_amx_lanes(panel),
                                 x->c, panel->m, panel->l, amx_panel->excess, s->alpha);
}

bool agi_amx_whole_group_weights(agi_row_scratch *s, const agi_head *x, agi_row_panel *panel,
                                 const agi_amx_panel *amx_panel, const agi_amx_row_keys *keys,
                                 const agi_amx_key_group *group, const amx_queue *next)
{
    static const agi_band everything = {INT64_MIN / 4, INT64_MAX / 4};
    return !plain_weights(s, x, panel, amx_panel, everything, group, next) &&
           other_weights(s, x, panel, amx_panel, keys, group, true);
}

bool agi_amx_group_weights(agi_row_scratch *s, const agi_head *x, agi_row_panel *panel,
                           const agi_amx_panel *amx_panel, const agi_amx_row_keys *keys,
                           const agi_amx_key_group *group, const amx_queue *next)
{
    agi_amx_row_scratch *const own = s->own;
    const agi_band band = REAL(agi_band_at)(x, panel->i0, keys->j0 + group->g * GROUP_KEYS);
    const bool inside = agi_inside(band, panel->ni, GROUP_KEYS),
               plain = only_band_masks(x, panel, band, group),
               by_vectors = amx_panel->few_keys || agi_amx_lanes(panel) < PANEL;
    mark_visible_keys(own, group);
    if (plain && !by_vectors && (inside || x->call->map == AGI_FORWARD)) {
        if (plain_weights(s, x, panel, amx_panel, band, group, next)) {
            return false;
        }
    } else {
        agi_amx_table.score_blocks(next);
    }
    return other_weights(s, x, panel, amx_panel, keys, group, plain && inside);
}
