/* The scores of forward and jvp: the product K Q^T. */
#include "cpu/vec/vec.h"

/* If the panel is a single vector of queries, the work on a row is too short to hide the latency of loading
 * it. So rows of V are prefetched here, before they are multiplied, and rows of K one block ahead. */
void REAL(agi_panel_scores)(const agi_row_scratch *s, const agi_head *x, const agi_row_panel *panel,
                            const agi_row_key_block *keys, int64_t from, int64_t nj)
{
    const agi_vec_row_scratch *v = s->own;
    const agi_vec_panel *queries = &v->panel[panel->index];
    const agi_rows K = {keys->K.p + from * keys->K.ld, keys->K.ld};
    const bool single = panel->W == x->k->lanes;
    const int64_t step = single ? 16 : nj; /* keys between two rounds of prefetching */
    for (int64_t j = 0; j < nj; j += step) {
        const int64_t n = agi_min(step, nj - j);
        for (int64_t r = from + j; single && r < from + j + n; r++) {
            agi_prefetch(keys->V.p + r * keys->V.ld, x->Dv * (int64_t)sizeof(real));
            if (r + ROW_KEYS < keys->rows_ahead) {
                agi_prefetch(keys->K.p + (r + ROW_KEYS) * keys->K.ld, x->Dk * (int64_t)sizeof(real));
            }
        }
        REAL(agi_score_product)
        (x, (agi_rows){K.p + j * K.ld, K.ld}, n, x->Dk, queries->QT, queries->Q, panel->ni, v->T + j * ROW_LD,
         ROW_LD, false);
    }
}
