/* vjp_jvp, one tile: vjp's formulas and their tangents. A score tile is T[key][query]. */
#include "cpu/vec/vec.h"

/* T = keys queries^T, or T += if add. `panels` are the same queries, transposed. An absent operand (p NULL) counts as
 * zero. */
static void add_scores(const agi_head *x, const agi_patch *patch, agi_rows keys, int64_t D,
                       const real *panels, agi_rows queries, real *T, bool add)
{
    if (keys.p != NULL && queries.p != NULL) {
        REAL(agi_patch_product)(x, patch, keys, D, panels, queries, T, add);
    } else if (!add) {
        x->k->product(patch->nj, patch->W, 0, T, 0, 1, panels, PANEL, T + patch->at, patch->ld,
                      false); /* zero: a product of no terms */
    }
}

/* One chunk: in the end P holds R = P o M, the weights after dropout, U holds tR, dS holds dZ, the gradient before
 * softcap and bias, tdS holds tdZ. */
static void run_chunk(agi_backward_scratch *s, const agi_head *x, const agi_sums *sums,
                      const agi_backward_key_block *keys, const agi_key_rows *rows, const agi_patch *c)
{
    const agi_vec_backward_scratch *v = s->own;
    const agi_score_tiles *t = &v->scores;
    add_scores(x, c, rows->K, x->Dk, v->QT, v->Q, t->P, false);
    REAL(agi_patch_weights)(s, x, keys, c, t);

    /* tQ K^T + Q tK^T */
    add_scores(x, c, rows->K, x->Dk, v->tQT, v->tQ, t->U, false);
    add_scores(x, c, rows->tK, x->Dk, v->QT, v->Q, t->U, true);

    /* dP = dO V^T, tdP = dO tV^T + tdO V^T */
    add_scores(x, c, rows->V, x->Dv, v->dOT, v->dO, t->dS, false);
    add_scores(x, c, rows->tV, x->Dv, v->dOT, v->dO, t->tdS, false);
    add_scores(x, c, rows->V, x->Dv, v->tdOT, v->tdO, t->tdS, true);
    REAL(agi_vjp_jvp_patch)(s, x, sums, keys, c, t);
}

static void run_patches(agi_backward_scratch *s, const agi_head *x, const agi_sums *sums,
                        const agi_backward_key_block *keys, const agi_key_rows *rows)
{
    const agi_vec_backward_scratch *v = s->own;
    const agi_query_tile *tile = &s->tile;
    real *const tiles[] = {v->scores.P, v->scores.U, v->scores.dS, v->scores.tdS};
    for (int64_t panel = 0; panel * PANEL < tile->ni; panel++) {
        const agi_patch patch = REAL(agi_patch_of)(x, tile, keys, panel);
        for (int t = 0; t < 4; t++) {
            REAL(agi_clear_around)(tiles[t], &patch, keys->nj);
        }
        for (agi_patch c = REAL(agi_next_chunk)(&patch, NULL); c.nj > 0;
             c = REAL(agi_next_chunk)(&patch, &c)) {
            run_chunk(s, x, sums, keys, rows, &c);
        }
        if (x->has.pair_mask) {
            REAL(agi_note_masked_keys)(s, &patch, keys->nj);
        }
    }
}

void REAL(agi_vjp_jvp_tile)(agi_backward_scratch *s, const agi_head *x, const agi_sums *sums,
                            const agi_backward_key_block *keys, const agi_key_rows *rows)
{
    const ag_args *a = &x->call->a;
    const agi_query_tile *tile = &s->tile;
    const agi_vec_backward_scratch *v = s->own;
    const agi_score_tiles *t = &v->scores;
    run_patches(s, x, sums, keys, rows);

    /* tdV = tR^T dO + R^T tdO */
    if (a->tdv.data != NULL) {
        REAL(agi_add_key_gradient)(x, tile, keys, t->U, v->dO, x->Dv_pad, keys->dV);
        if (a->td_o.data != NULL) {
            REAL(agi_add_key_gradient)(x, tile, keys, t->P, v->tdO, x->Dv_pad, keys->dV);
        }
    }
    /* tdK = tdZ^T Q + dZ^T tQ */
    if (a->tdk.data != NULL) {
        REAL(agi_add_key_gradient)(x, tile, keys, t->tdS, v->Q, x->Dk_pad, keys->dK);
        if (a->tq.data != NULL) {
            REAL(agi_add_key_gradient)(x, tile, keys, t->dS, v->tQ, x->Dk_pad, keys->dK);
        }
    }
    /* tdQ = tdZ K + dZ tK */
    if (a->tdq.data != NULL) {
        REAL(agi_add_query_gradient)
        (x, tile, keys, t->tdS, REAL(agi_visible_rows)(s, x, rows->K, keys->nj, v->zeroed), x->Dk_pad,
         tile->dQ);
        if (a->tk.data != NULL) {
            REAL(agi_add_query_gradient)
            (x, tile, keys, t->dS, REAL(agi_visible_rows)(s, x, rows->tK, keys->nj, v->t_zeroed), x->Dk_pad,
             tile->dQ);
        }
    }
}
