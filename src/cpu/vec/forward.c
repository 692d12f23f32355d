/* Forward, one panel against one block of keys: O += 2^(c S - m) V, with the running maximum m and the sum l of each
 * query. O is divided by l in the end. */
#include "cpu/vec/vec.h"

/* Rescales the partial sums after the running maximum grew. */
static void rescale(const agi_head *x, agi_row_panel *panel, const real *alpha)
{
    for (int64_t i = 0; i < panel->ni; i++) {
        if (alpha[i] != 1) {
            real *O = panel->O + i * x->Dv_pad;
            agi_scale_row(x->k, O, x->Dv_pad, (double)alpha[i]);
        }
    }
}

void REAL(agi_forward_panel)(agi_row_scratch *s, const agi_head *x, agi_row_panel *panel,
                             const agi_row_key_block *keys)
{
    const agi_kernels *k = x->k;
    const agi_vec_row_scratch *v = s->own;
    int64_t from, nj;
    if (!REAL(agi_clip_keys)(x, panel->i0, panel->ni, keys->j0, keys->nj, &from, &nj)) {
        return;
    }

    /* S^T = K Q^T */
    REAL(agi_panel_scores)(s, x, panel, keys, from, nj);
    const bool masked_keys = REAL(agi_row_scores)(s, x, panel, v->T, ROW_LD, keys->j0 + from, nj);
    if (k->softmax(v->T, ROW_LD, nj, panel->W, x->c, panel->m, panel->l, s->alpha)) {
        rescale(x, panel, s->alpha);
    }

    /* R = P o M */
    if (x->has.dropout) {
        REAL(agi_dropout_tile)(x, panel->i0, panel->W, keys->j0 + from, nj, s->M, ROW_LD);
        k->multiply(v->T, s->M, ROW_LD, nj, panel->W);
    }

    /* O += R V */
    agi_rows V = {keys->V.p + from * keys->V.ld, keys->V.ld};
    V = masked_keys ? REAL(agi_zero_masked_rows)(V, nj, x->Dv_pad, s->masked_keys, v->zeroed) : V;
    k->product(panel->ni, x->Dv_pad, nj, v->T, 1, ROW_LD, V.p, V.ld, panel->O, x->Dv_pad, true);
}
