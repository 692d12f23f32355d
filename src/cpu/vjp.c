/* vjp, one tile: S^T, P, dP^T, dS and the three gradients. A score tile is T[key][query]. */
#include "backward.h"

void agi_vjp_tile(agi_backward_scratch *s, const agi_head *x, const agi_sums *sums, agi_query_tile *tile,
                  const agi_key_tile *keys)
{
    const agi_kernels *k = x->k;
    const ag_args *a = &x->call->a;
    const bool dropout = x->call->plan->p.dropout > 0;
    for (int64_t q = 0; q * PANEL < tile->ni; q++) {
        const agi_patch patch = agi_patch_of(x, tile, keys, q);
        const int64_t at = patch.at;
        agi_clear_around(s->P, &patch, keys->nj);
        agi_clear_around(s->dS, &patch, keys->nj);
        agi_patch_weights(s, x, tile, keys, &patch);
        if (patch.nj == 0) {
            continue;
        }

        /* dP^T = V dO^T, dS = P o (dP o M - D) */
        k->product(patch.nj, patch.W, x->Dv, keys->V.p + patch.from * keys->V.ld, keys->V.ld, 1,
                   tile->dOT + q * x->Dv * PANEL, PANEL, s->dS + at, TILE_LD, false);
        k->score_gradients(s->dS + at, s->P + at, dropout ? s->M + at : NULL, TILE_LD, patch.nj, patch.W,
                           tile->D + patch.i0);

        /* dB = dS, dZ = dS o phi'(Z), R = P o M */
        agi_add_sums(x, sums, tile->i0 + patch.i0, patch.ni, keys->j0 + patch.from, patch.nj, s->dS + at,
                     TILE_LD);
        if (x->softcap > 0) {
            k->softcap_gradients(s->dS + at, NULL, s->F + at, NULL, TILE_LD, patch.nj, patch.W);
        }
        if (dropout) {
            k->multiply(s->P + at, s->M + at, TILE_LD, patch.nj, patch.W);
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
        agi_add_query_gradient(x, tile, keys, s->dS, agi_seen_rows(s, x, keys->K, keys->nj, s->clean),
                               x->Dk_pad, tile->dQ);
    }
}
