/* What forward and jvp do to scores, in every implementation: see rows.h. */
#include "cpu/drivers/rows.h"

bool REAL(agi_clip_keys)(const agi_head *x, int64_t i0, int64_t ni, int64_t j0, int64_t nj, int64_t *from,
                         int64_t *n)
{
    int64_t to;
    agi_keys_of(REAL(agi_band_at)(x, i0, j0), 0, ni, nj, from, &to);
    *from += j0;
    *n = REAL(agi_trim_masked)(x, i0, ni, from, to + j0);
    *from -= j0;
    return *n > 0;
}

bool REAL(agi_row_scores)(agi_row_scratch *s, const agi_head *x, const agi_row_panel *panel, real *T,
                          int64_t ld, int64_t j0, int64_t nj)
{
    const agi_band band = REAL(agi_band_at)(x, panel->i0, j0);
    const bool tangents = x->call->map == AGI_JVP;
    bool masked_keys = false;
    if (!x->has.plain) {
        masked_keys = REAL(agi_additive)(x, panel->i0, panel->ni, j0, nj, s->X, tangents ? s->tX : NULL, ld,
                                         s->masked_keys);
        x->k->scores(T, s->X, tangents ? s->F : NULL, NULL, ld, nj, panel->W, x->score_scale, x->softcap);
    }
    if (!agi_inside(band, panel->ni, nj)) {
        x->k->mask_band(T, ld, nj, panel->W, band.low, band.high);
    }
    return masked_keys;
}
