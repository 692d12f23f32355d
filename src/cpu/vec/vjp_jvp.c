/* vjp_jvp, one tile: the vjp's lines and their tangents. A score tile is T[key][query]. */
#include "cpu/drivers/backward.h"

/* T = or += A B^T, transposed. Absent operands are zero. */
static void add_scores(const agi_head *x, const agi_patch *patch, agi_rows keys, int64_t D,
                       const real *panels, agi_rows queries, real *T, bool add)
{
    if (keys.p != NULL && queries.p != NULL) {
        agi_patch_product(x, patch, keys, D, panels, queries, T, add);
    } else if (!add) {
        x->k->product(patch->nj, patch->W, 0, T, 0, 1, panels, PANEL, T + patch->at, patch->ld, false);
    }
}

void agi_vjp_jvp_patch(agi_backward_scratch *s, const agi_head *x, const agi_sums *sums,
                       const agi_query_tile *tile, const agi_key_tile *keys, const agi_patch *patch)
{
    const agi_kernels *k = x->k;
    const int64_t at = patch->at, i = patch->i0, ld = patch->ld, nj = patch->nj, W = patch->W;
    const bool softcap = x->softcap > 0;

    /* tZ = scale (tQ K^T + Q tK^T), tS = tZ o phi'(Z) + tB */
    k->score_tangents(s->U + at, softcap ? s->F + at : NULL, softcap ? s->G + at : NULL,
                      x->plain ? NULL : s->tX + at, ld, nj, W, x->scale);
    k->score_gradient_tangents(s->P + at, s->U + at, s->dS + at, s->tdS + at,
                               x->call->plan->p.dropout > 0 ? s->M + at : NULL, ld, nj, W, tile->mu + i,
                               tile->D + i, tile->tD + i);
    agi_add_sums(x, sums, tile->i0 + i, patch->ni, keys->j0 + patch->from, nj, s->tdS + at, ld);
    if (softcap) {
        k->softcap_gradients(s->dS + at, s->tdS + at, s->F + at, s->G + at, ld, nj, W);
    }
}

/* One piece: P becomes R, U becomes tR, dS becomes dZ, tdS becomes tdZ. */
static void run_chunk(agi_backward_scratch *s, const agi_head *x, const agi_sums *sums,
                      const agi_query_tile *tile, const agi_key_tile *keys, const agi_patch *c)
{
    add_scores(x, c, keys->K, x->Dk, tile->QT, tile->Q, s->P, false);
    agi_patch_weights(s, x, tile, keys, c);

    /* tQ K^T + Q tK^T */
    add_scores(x, c, keys->K, x->Dk, tile->tQT, tile->tQ, s->U, false);
    add_scores(x, c, keys->tK, x->Dk, tile->QT, tile->Q, s->U, true);

    /* dP = dO V^T, tdP = dO tV^T + tdO V^T */
    add_scores(x, c, keys->V, x->Dv, tile->dOT, tile->dO, s->dS, false);
    add_scores(x, c, keys->tV, x->Dv, tile->dOT, tile->dO, s->tdS, false);
    add_scores(x, c, keys->V, x->Dv, tile->tdOT, tile->tdO, s->tdS, true);
    agi_vjp_jvp_patch(s, x, sums, tile, keys, c);
}

void agi_vjp_jvp_tile(agi_backward_scratch *s, const agi_head *x, const agi_sums *sums, agi_query_tile *tile,
                      const agi_key_tile *keys)
{
    const ag_args *a = &x->call->a;
    real *const tiles[] = {s->P, s->U, s->dS, s->tdS};
    for (int64_t q = 0; q * PANEL < tile->ni; q++) {
        const agi_patch patch = agi_patch_of(x, tile, keys, q);
        for (int t = 0; t < 4; t++) {
            agi_clear_around(tiles[t], &patch, keys->nj);
        }
        for (agi_patch c = agi_next_chunk(&patch, NULL); c.nj > 0; c = agi_next_chunk(&patch, &c)) {
            run_chunk(s, x, sums, tile, keys, &c);
        }
        if (x->hides) {
            agi_note_unseen(s, &patch, keys->nj);
        }
    }

    /* tdV = tR^T dO + R^T tdO */
    if (a->tdv.data != NULL) {
        agi_add_key_gradient(x, tile, keys, s->U, tile->dO, x->Dv_pad, keys->dV);
        if (a->td_o.data != NULL) {
            agi_add_key_gradient(x, tile, keys, s->P, tile->tdO, x->Dv_pad, keys->dV);
        }
    }
    /* tdK = tdZ^T Q + dZ^T tQ */
    if (a->tdk.data != NULL) {
        agi_add_key_gradient(x, tile, keys, s->tdS, tile->Q, x->Dk_pad, keys->dK);
        if (a->tq.data != NULL) {
            agi_add_key_gradient(x, tile, keys, s->dS, tile->tQ, x->Dk_pad, keys->dK);
        }
    }
    /* tdQ = tdZ K + dZ tK */
    if (a->tdq.data != NULL) {
        agi_add_query_gradient(x, tile, keys, s->tdS, agi_seen_rows(s, x, keys->K, keys->nj, s->clean),
                               x->Dk_pad, tile->dQ);
        if (a->tk.data != NULL) {
            agi_add_query_gradient(x, tile, keys, s->dS, agi_seen_rows(s, x, keys->tK, keys->nj, s->tclean),
                                   x->Dk_pad, tile->dQ);
        }
    }
}
