/* vjp, one tile: S^T, P, dP^T, dS and the three gradients. A score tile is T[key][query]. */
#include "cpu/drivers/backward.h"

void agi_vjp_patch(agi_backward_scratch *s, const agi_head *x, const agi_sums *sums,
                   const agi_query_tile *tile, const agi_key_tile *keys, const agi_patch *patch)
{
    const agi_kernels *k = x->k;
    const bool dropout = x->call->plan->p.dropout > 0;
    const int64_t at = patch->at, ld = patch->ld, nj = patch->nj, W = patch->W;

    /* dS = P o (dP o M - D) */
    k->score_gradients(s->dS + at, s->P + at, dropout ? s->M + at : NULL, ld, nj, W, tile->D + patch->i0);

    /* dB = dS, dZ = dS o phi'(Z) */
    agi_add_sums(x, sums, tile->i0 + patch->i0, patch->ni, keys->j0 + patch->from, nj, s->dS + at, ld);
    if (x->softcap > 0) {
        k->softcap_gradients(s->dS + at, NULL, s->F + at, NULL, ld, nj, W);
    }
    if (dropout) {
        k->multiply(s->P + at, s->M + at, ld, nj, W);
    }
}

/* One piece: P becomes R = P o M, dS becomes dZ. */
static void run_chunk(agi_backward_scratch *s, const agi_head *x, const agi_sums *sums,
                      const agi_query_tile *tile, const agi_key_tile *keys, const agi_patch *c)
{
    /* S^T = K Q^T */
    agi_patch_product(x, c, keys->K, x->Dk, tile->QT, tile->Q, s->P, false);
    agi_patch_weights(s, x, tile, keys, c);
    /* dP^T = V dO^T */
    agi_patch_product(x, c, keys->V, x->Dv, tile->dOT, tile->dO, s->dS, false);
    agi_vjp_patch(s, x, sums, tile, keys, c);
}

void agi_vjp_tile(agi_backward_scratch *s, const agi_head *x, const agi_sums *sums, agi_query_tile *tile,
                  const agi_key_tile *keys)
{
    const ag_args *a = &x->call->a;
    for (int64_t q = 0; q * PANEL < tile->ni; q++) {
        const agi_patch patch = agi_patch_of(x, tile, keys, q);
        agi_clear_around(s->P, &patch, keys->nj);
        agi_clear_around(s->dS, &patch, keys->nj);
        for (agi_patch c = agi_next_chunk(&patch, NULL); c.nj > 0; c = agi_next_chunk(&patch, &c)) {
            run_chunk(s, x, sums, tile, keys, &c);
        }
        if (x->hides) {
            agi_note_unseen(s, &patch, keys->nj);
        }
    }

    /* dV = R^T dO, dK = dZ^T Q, dQ = dZ K; the scale is applied where they are stored */
    if (a->dv.data != NULL) {
        agi_add_key_gradient(x, tile, keys, s->P, tile->dO, x->Dv_pad, keys->dV);
    }
    if (a->dk.data != NULL) {
        agi_add_key_gradient(x, tile, keys, s->dS, tile->Q, x->Dk_pad, keys->dK);
    }
    if (a->dq.data != NULL) {
        const agi_rows K = agi_seen_rows(s, x, keys->K, keys->nj, s->clean);
        agi_add_query_gradient(x, tile, keys, s->dS, K, x->Dk_pad, tile->dQ);
    }
}
