/* The product of forward and jvp that gives scores. */
#include "cpu/vec/vec.h"

/* A single vector of queries does too little with a row to hide its latency: rows of V are prefetched here, before
 * their product, and those of K a block ahead. */
void REAL(agi_row_product)(const agi_row_scratch *s, const agi_head *x, const agi_row_panel *panel,
                           const agi_key_block *keys, int64_t from, int64_t nj)
{
    const agi_vec_row_scratch *v = s->own;
    const agi_vec_panel *own = &v->panel[panel->q];
    const agi_rows K = {keys->K.p + from * keys->K.ld, keys->K.ld};
    const bool near = panel->W == x->k->lanes;
    const int64_t step = near ? 16 : nj;
    for (int64_t j = 0; j < nj; j += step) {
        const int64_t n = agi_min(step, nj - j);
        for (int64_t r = from + j; near && r < from + j + n; r++) {
            agi_prefetch(keys->V.p + r * keys->V.ld, x->Dv * (int64_t)sizeof(real));
            if (r + ROW_KEYS < keys->ahead) {
                agi_prefetch(keys->K.p + (r + ROW_KEYS) * keys->K.ld, x->Dk * (int64_t)sizeof(real));
            }
        }
        REAL(agi_score_product)
        (x, (agi_rows){K.p + j * K.ld, K.ld}, n, x->Dk, own->QT, own->Q, panel->ni, v->T + j * ROW_LD, ROW_LD,
         false);
    }
}
