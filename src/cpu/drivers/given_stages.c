/* What jvp_jvp, and jvp that is given o and lse, do to scores, in every implementation: see given.h. */
#include "cpu/drivers/given.h"

#include <string.h>

static bool same_tensor(const ag_tensor *a, const ag_tensor *b)
{
    return a->data == b->data && (a->data == NULL || memcmp(a->strides, b->strides, sizeof a->strides) == 0);
}

bool REAL(agi_same_direction)(const agi_call *call)
{
    const ag_args *a = &call->a;
    if (call->plan->flags & AG_INVARIANT) {
        return false;
    }
    return same_tensor(&a->tq, &a->sq) && same_tensor(&a->tk, &a->sk) && same_tensor(&a->tv, &a->sv);
}

/* Q K^T becomes P. Fills the tiles of the features: X what is added to the scores, tX and sX its tangents, F and G the
 * softcap's first and second derivative, M the dropout factors. */
static bool weights(agi_given_scratch *s, const agi_head *x, const agi_given_panel *panel, real *P,
                    int64_t ld, int64_t j0, int64_t nj)
{
    const bool second = x->call->map == AGI_JVP_JVP;
    const agi_band band = REAL(agi_band_at)(x, panel->i0, j0);
    bool masked_keys = false;
    if (!x->has.plain) {
        masked_keys = REAL(agi_additive)(x, panel->i0, panel->ni, j0, nj, s->X, s->tX, ld, s->masked_keys);
        x->k->scores(P, s->X, x->has.softcap ? s->F : NULL, second && x->has.softcap ? s->G : NULL, ld, nj,
                     panel->W, x->score_scale, x->softcap);
        if (second) {
            REAL(agi_additive_tangent)
            (x, &x->call->a.sbias, &x->call->a.stable, panel->i0, panel->ni, j0, nj, s->sX, ld);
        }
    }
    if (!agi_inside(band, panel->ni, nj)) {
        x->k->mask_band(P, ld, nj, panel->W, band.low, band.high);
    }
    x->k->weights(P, ld, nj, panel->W, x->c, panel->L_high, panel->L_low);
    if (x->has.dropout) {
        REAL(agi_dropout_tile)(x, panel->i0, panel->W, j0, nj, s->M, ld);
    }
    return masked_keys;
}

static void drop(const agi_given_scratch *s, const agi_head *x, real *T, int64_t ld, int64_t nj, int64_t W)
{
    if (x->has.dropout) {
        x->k->multiply(T, s->M, ld, nj, W);
    }
}

bool REAL(agi_given_stages)(agi_given_scratch *s, const agi_head *x, const agi_given_panel *panel,
                            const agi_given_tiles *t, int64_t ld, int64_t j0, int64_t nj, real z_factor)
{
    const agi_kernels *k = x->k;
    const int64_t W = panel->W;
    const bool second = x->call->map == AGI_JVP_JVP;
    const real scale = x->score_scale, *const F = x->has.softcap ? s->F : NULL;
    real *const G = second && x->has.softcap ? s->G : NULL;
    const bool masked_keys = weights(s, x, panel, t->P, ld, j0, nj);
    k->score_tangents(t->U, F, G, x->has.plain ? NULL : s->tX, ld, nj, W, scale);
    if (!second) {
        k->tangent_weights(t->P, t->U, ld, nj, W, panel->mu, panel->sum);
        drop(s, x, t->P, ld, nj, W);
        drop(s, x, t->U, ld, nj, W);
        return masked_keys;
    }
    k->second_score_tangents(t->Z, F, G, t->Y, ld, nj, W, scale, z_factor);
    k->score_tangents(t->Y, F, NULL, x->has.plain ? NULL : s->sX, ld, nj, W, scale);
    k->second_weights(t->P, t->U, t->Y, t->Z, ld, nj, W, panel->mu, panel->smu, panel->sum);
    drop(s, x, t->U, ld, nj, W);
    drop(s, x, t->Y, ld, nj, W);
    drop(s, x, t->Z, ld, nj, W);
    return masked_keys;
}
