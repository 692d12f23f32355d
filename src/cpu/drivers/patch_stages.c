/* What vjp and vjp_jvp do to the scores of a patch after the products, in every implementation: see backward.h. A score
 * tile is T[key][query]. */
#include "cpu/drivers/backward.h"

void REAL(agi_patch_weights)(const agi_backward_scratch *s, const agi_head *x,
                             const agi_backward_key_block *keys, const agi_patch *patch,
                             const agi_score_tiles *t)
{
    const agi_query_tile *tile = &s->tile;
    const agi_kernels *k = x->k;
    const int64_t i0 = tile->i0 + patch->i0, j0 = keys->j0 + patch->from, at = patch->at, ld = patch->ld;
    const agi_band band = REAL(agi_band_at)(x, i0, j0);
    const bool tangents = x->call->map == AGI_VJP_JVP;
    if (!x->has.plain) {
        REAL(agi_additive)
        (x, i0, patch->ni, j0, patch->nj, s->X + at, tangents ? s->tX + at : NULL, ld,
         s->panel_masked_keys + patch->from);
        k->scores(t->P + at, s->X + at, x->has.softcap ? s->F + at : NULL,
                  tangents && x->has.softcap ? s->G + at : NULL, ld, patch->nj, patch->W, x->score_scale,
                  x->softcap);
    }
    if (!agi_inside(band, patch->ni, patch->nj)) {
        k->mask_band(t->P + at, ld, patch->nj, patch->W, band.low, band.high);
    }
    k->weights(t->P + at, ld, patch->nj, patch->W, x->c, tile->L_high + patch->i0, tile->L_low + patch->i0);
    if (x->has.dropout) {
        REAL(agi_dropout_tile)(x, i0, patch->W, j0, patch->nj, s->M + at, ld);
    }
}

void REAL(agi_vjp_patch)(const agi_backward_scratch *s, const agi_head *x, const agi_sums *sums,
                         const agi_backward_key_block *keys, const agi_patch *patch, const agi_score_tiles *t)
{
    const agi_query_tile *tile = &s->tile;
    const agi_kernels *k = x->k;
    const bool dropout = x->has.dropout;
    const int64_t at = patch->at, ld = patch->ld, nj = patch->nj, W = patch->W;

    /* dS = P o (dP o M - D) */
    k->score_gradients(t->dS + at, t->P + at, dropout ? s->M + at : NULL, ld, nj, W, tile->D + patch->i0);

    /* dB = dS, dZ = dS o phi'(Z) */
    REAL(agi_add_sums)(x, sums, tile->i0 + patch->i0, patch->ni, keys->j0 + patch->from, nj, t->dS + at, ld);
    if (x->has.softcap) {
        k->softcap_gradients(t->dS + at, NULL, s->F + at, NULL, ld, nj, W);
    }
    if (dropout) {
        k->multiply(t->P + at, s->M + at, ld, nj, W);
    }
}

void REAL(agi_vjp_jvp_patch)(const agi_backward_scratch *s, const agi_head *x, const agi_sums *sums,
                             const agi_backward_key_block *keys, const agi_patch *patch,
                             const agi_score_tiles *t)
{
    const agi_query_tile *tile = &s->tile;
    const agi_kernels *k = x->k;
    const int64_t at = patch->at, i = patch->i0, ld = patch->ld, nj = patch->nj, W = patch->W;
    const bool softcap = x->has.softcap;

    /* tZ = scale (tQ K^T + Q tK^T), tS = tZ o phi'(Z) + tB */
    k->score_tangents(t->U + at, softcap ? s->F + at : NULL, softcap ? s->G + at : NULL,
                      x->has.plain ? NULL : s->tX + at, ld, nj, W, x->score_scale);
    k->score_gradient_tangents(t->P + at, t->U + at, t->dS + at, t->tdS + at,
                               x->has.dropout ? s->M + at : NULL, ld, nj, W, tile->mu + i, tile->D + i,
                               tile->tD + i);
    REAL(agi_add_sums)(x, sums, tile->i0 + i, patch->ni, keys->j0 + patch->from, nj, t->tdS + at, ld);
    if (softcap) {
        k->softcap_gradients(t->dS + at, t->tdS + at, s->F + at, s->G + at, ld, nj, W);
    }
}
