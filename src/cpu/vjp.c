/* vjp, one tile: S^T, P, dP^T, dS and the three gradients. A score tile is T[key][query]. */
#include "backward.h"

/* One piece: P becomes R = P o M, dS becomes dZ. */
static void chunk_gradients(agi_backward_scratch *s, const agi_head *x, const agi_sums *sums,
                            const agi_query_tile *tile, const agi_key_tile *keys, const agi_patch *c)
{
    const agi_kernels *k = x->k;
    const bool dropout = x->call->plan->p.dropout > 0;
    const int64_t at = c->at;

    /* dP^T = V dO^T, dS = P o (dP o M - D) */
    k->product(c->nj, c->W, x->Dv, keys->V.p + c->from * keys->V.ld, keys->V.ld, 1,
               tile->dOT + c->q * x->Dv * PANEL, PANEL, s->dS + at, TILE_LD, false);
    k->score_gradients(s->dS + at, s->P + at, dropout ? s->M + at : NULL, TILE_LD, c->nj, c->W,
                       tile->D + c->i0);

    /* dB = dS, dZ = dS o phi'(Z) */
    agi_add_sums(x, sums, tile->i0 + c->i0, c->ni, keys->j0 + c->from, c->nj, s->dS + at, TILE_LD);
    if (x->softcap > 0) {
        k->softcap_gradients(s->dS + at, NULL, s->F + at, NULL, TILE_LD, c->nj, c->W);
    }
    if (dropout) {
        k->multiply(s->P + at, s->M + at, TILE_LD, c->nj, c->W);
    }
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
            agi_patch_weights(s, x, tile, keys, &c);
            chunk_gradients(s, x, sums, tile, keys, &c);
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
