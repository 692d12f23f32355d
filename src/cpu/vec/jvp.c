/* jvp, one panel against one block of keys: in addition to forward's sums l and O, a += p (tS - r) and tO += p ((tS -
 * r) V + tV). The shift r is tS at the maximum of the query's scores, so that no digits cancel. */
#include "cpu/vec/vec.h"

/* Rescales the sums after the running maximum m grew. r changed with m, so also tO += (r_old - r_new) O. */
static void rescale(const agi_head *x, agi_row_panel *panel, const real *alpha, const real *delta)
{
    for (int64_t i = 0; i < panel->ni; i++) {
        if (alpha[i] != 1 || delta[i] != 0) {
            real *O = panel->O + i * x->Dv_pad, *tO = panel->tO + i * x->Dv_pad;
            agi_scale_row(x->k, O, x->Dv_pad, (double)alpha[i]);
            agi_scale_row(x->k, tO, x->Dv_pad, (double)alpha[i]);
            agi_add_scaled_row(x->k, tO, O, x->Dv_pad, (double)delta[i]);
        }
    }
}

/* U = tQ K^T + Q tK^T, transposed. Absent tangents are zero. */
static void tangent_products(const agi_row_scratch *s, const agi_head *x, const agi_row_panel *panel,
                             const agi_row_key_block *keys, int64_t from, int64_t nj)
{
    const agi_vec_row_scratch *v = s->own;
    const agi_vec_panel *queries = &v->panel[panel->index];
    const agi_rows K = {keys->K.p + from * keys->K.ld, keys->K.ld}, tK = keys->tK;
    if (x->call->a.tq.data != NULL) {
        REAL(agi_score_product)(x, K, nj, x->Dk, queries->tQT, queries->tQ, panel->ni, v->U, ROW_LD, false);
    } else {
        x->k->product(nj, panel->W, 0, K.p, K.ld, 1, queries->tQT, PANEL, v->U, ROW_LD,
                      false); /* zero: a product of no terms */
    }
    if (tK.p != NULL) {
        REAL(agi_score_product)
        (x, (agi_rows){tK.p + from * tK.ld, tK.ld}, nj, x->Dk, queries->QT, queries->Q, panel->ni, v->U,
         ROW_LD, true);
    }
}

void REAL(agi_jvp_panel)(agi_row_scratch *s, const agi_head *x, agi_row_panel *panel,
                         const agi_row_key_block *keys)
{
    const agi_kernels *k = x->k;
    const agi_vec_row_scratch *v = s->own;
    int64_t from, nj;
    if (!REAL(agi_clip_keys)(x, panel->i0, panel->ni, keys->j0, keys->nj, &from, &nj)) {
        return;
    }

    /* S^T = K Q^T, and tS^T */
    REAL(agi_panel_scores)(s, x, panel, keys, from, nj);
    tangent_products(s, x, panel, keys, from, nj);
    const bool masked_keys = REAL(agi_row_scores)(s, x, panel, v->T, ROW_LD, keys->j0 + from, nj);
    k->score_tangents(v->U, x->has.softcap ? s->F : NULL, NULL, x->has.plain ? NULL : s->tX, ROW_LD, nj,
                      panel->W, x->score_scale);
    if (k->softmax_tangent(v->T, v->U, ROW_LD, nj, panel->W, x->c, panel->m, panel->l, panel->r, panel->a,
                           s->alpha, s->delta)) {
        rescale(x, panel, s->alpha, s->delta);
    }
    if (x->has.dropout) {
        REAL(agi_dropout_tile)(x, panel->i0, panel->W, keys->j0 + from, nj, s->M, ROW_LD);
        k->multiply(v->T, s->M, ROW_LD, nj, panel->W);
        k->multiply(v->U, s->M, ROW_LD, nj, panel->W);
    }

    /* O += R V, tO += (tS - r) R V + R tV */
    agi_rows V = {keys->V.p + from * keys->V.ld, keys->V.ld};
    V = masked_keys ? REAL(agi_zero_masked_rows)(V, nj, x->Dv_pad, s->masked_keys, v->zeroed) : V;
    k->product(panel->ni, x->Dv_pad, nj, v->T, 1, ROW_LD, V.p, V.ld, panel->O, x->Dv_pad, true);
    k->product(panel->ni, x->Dv_pad, nj, v->U, 1, ROW_LD, V.p, V.ld, panel->tO, x->Dv_pad, true);
    if (keys->tV.p != NULL) {
        agi_rows tV = {keys->tV.p + from * keys->tV.ld, keys->tV.ld};
        tV = masked_keys ? REAL(agi_zero_masked_rows)(tV, nj, x->Dv_pad, s->masked_keys, v->zeroed) : tV;
        k->product(panel->ni, x->Dv_pad, nj, v->T, 1, ROW_LD, tV.p, tV.ld, panel->tO, x->Dv_pad, true);
    }
}
