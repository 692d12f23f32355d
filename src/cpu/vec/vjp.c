/* vjp, one tile: S^T, P, dP^T, dS and the three gradients. A score tile is T[key][query]. */
#include "cpu/vec/vec.h"

/* One chunk. The tile P holds S^T, then P, and in the end R = P o M (M: the dropout factors); the tile dS holds dP^T,
 * then dS, and in the end dZ. */
static void run_chunk(agi_backward_scratch *s, const agi_head *x, const agi_sums *sums,
                      const agi_backward_key_block *keys, const agi_key_rows *rows, const agi_patch *c)
{
    const agi_vec_backward_scratch *v = s->own;
    /* S^T = K Q^T */
    REAL(agi_patch_product)(x, c, rows->K, x->Dk, v->QT, v->Q, v->scores.P, false);
    REAL(agi_patch_weights)(s, x, keys, c, &v->scores);
    /* dP^T = V dO^T */
    REAL(agi_patch_product)(x, c, rows->V, x->Dv, v->dOT, v->dO, v->scores.dS, false);
    REAL(agi_vjp_patch)(s, x, sums, keys, c, &v->scores);
}

void REAL(agi_vjp_tile)(agi_backward_scratch *s, const agi_head *x, const agi_sums *sums,
                        const agi_backward_key_block *keys, const agi_key_rows *rows)
{
    const ag_args *a = &x->call->a;
    const agi_query_tile *tile = &s->tile;
    const agi_vec_backward_scratch *v = s->own;
    const agi_score_tiles *t = &v->scores;
    for (int64_t panel = 0; panel * PANEL < tile->ni; panel++) {
        const agi_patch patch = REAL(agi_patch_of)(x, tile, keys, panel);
        REAL(agi_clear_around)(t->P, &patch, keys->nj);
        REAL(agi_clear_around)(t->dS, &patch, keys->nj);
        for (agi_patch c = REAL(agi_next_chunk)(&patch, NULL); c.nj > 0;
             c = REAL(agi_next_chunk)(&patch, &c)) {
            run_chunk(s, x, sums, keys, rows, &c);
        }
        if (x->has.pair_mask) {
            REAL(agi_note_masked_keys)(s, &patch, keys->nj);
        }
    }

    /* dV = R^T dO, dK = dZ^T Q, dQ = dZ K; dK and dQ get their scale when they are stored */
    if (a->dv.data != NULL) {
        REAL(agi_add_key_gradient)(x, tile, keys, t->P, v->dO, x->Dv_pad, keys->dV);
    }
    if (a->dk.data != NULL) {
        REAL(agi_add_key_gradient)(x, tile, keys, t->dS, v->Q, x->Dk_pad, keys->dK);
    }
    if (a->dq.data != NULL) {
        const agi_rows K = REAL(agi_visible_rows)(s, x, rows->K, keys->nj, v->zeroed);
        REAL(agi_add_query_gradient)(x, tile, keys, t->dS, K, x->Dk_pad, tile->dQ);
    }
}
