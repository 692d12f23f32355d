/* The shift of tS in a jvp that is given o and lse: tS of each query at one of the keys that it sees. */
#include "cpu/drivers/given.h"

#include <math.h>
#include <string.h>

enum { MAX_TRIES = 8 }; /* keys that are tried: mask or bias may hide them from a query */

/* tS of the panel's queries at key j, in U, and the scores in T: -infinity if the key is masked. */
static void scores_at(agi_given_scratch *s, const agi_head *x, const agi_given_panel *panel, int64_t j,
                      real *T, real *U)
{
    const ag_args *a = &x->call->a;
    const agi_rows K = REAL(agi_convert_rows)(x->k, agi_key_slice(x, &a->k, x->Dk), j, 1, NULL, s->K);
    double dots[PANEL];
    memset(T, 0, PANEL * sizeof *T);
    memset(U, 0, PANEL * sizeof *U);
    x->k->dots(dots, s->Q, x->Dk_pad, K.p, 0, panel->ni, x->Dk);
    for (int64_t r = 0; r < panel->ni; r++) {
        T[r] = (real)dots[r];
    }
    for (int n = 0; n < 2; n++) { /* tQ K^T, Q tK^T */
        const ag_tensor *t = n == 0 ? &a->tq : &a->tk;
        if (t->data == NULL) {
            continue;
        }
        if (n == 1) {
            REAL(agi_convert_rows)(x->k, agi_key_slice(x, t, x->Dk), j, 1, NULL, s->tK);
        }
        x->k->dots(dots, n == 0 ? s->tQ : s->Q, x->Dk_pad, n == 0 ? s->K : s->tK, 0, panel->ni, x->Dk);
        for (int64_t r = 0; r < panel->ni; r++) {
            U[r] = (real)((double)U[r] + dots[r]);
        }
    }
    if (!x->has.plain) {
        REAL(agi_additive)(x, panel->i0, panel->ni, j, 1, s->X, s->tX, PANEL, s->masked_keys);
        x->k->scores(T, s->X, x->has.softcap ? s->F : NULL, NULL, PANEL, 1, panel->W, x->score_scale,
                     x->softcap);
    }
    x->k->score_tangents(U, x->has.softcap ? s->F : NULL, NULL, x->has.plain ? NULL : s->tX, PANEL, 1,
                         panel->W, x->score_scale);
}

static void load_rows(agi_given_scratch *s, const agi_head *x, const agi_given_panel *panel)
{
    const ag_args *a = &x->call->a;
    const ag_dtype dtype = x->call->plan->p.dtype;
    REAL(agi_convert_rows)
    (x->k, agi_query_slice(x, &a->q, dtype, x->Dk), panel->i0, panel->ni, NULL, s->Q);
    if (a->tq.data != NULL) {
        REAL(agi_convert_rows)
        (x->k, agi_query_slice(x, &a->tq, dtype, x->Dk), panel->i0, panel->ni, NULL, s->tQ);
    }
}

void REAL(agi_given_shift)(agi_given_scratch *s, const agi_head *x, const agi_given_panel *panel)
{
    real T[PANEL], U[PANEL];
    bool found[PANEL] = {false};
    int64_t first, first_end, last, last_end, missing = panel->ni;
    /* The keys that all queries of the panel see, by band and lengths: from `last` to first_end - 1. */
    REAL(agi_key_range)(x, panel->i0, 1, &first, &first_end);
    REAL(agi_key_range)(x, panel->i0 + panel->ni - 1, 1, &last, &last_end);
    last = agi_max(last, first);
    if (last >= first_end) {
        return;
    }
    load_rows(s, x, panel);
    for (int64_t n = 0; n < MAX_TRIES && missing > 0; n++) {
        const int64_t j = first_end - 1 - (first_end - 1 - last) * n / MAX_TRIES;
        scores_at(s, x, panel, j, T, U);
        for (int64_t r = 0; r < panel->ni; r++) {
            if (!found[r] && T[r] != (real)-INFINITY) {
                found[r] = true;
                missing--;
                panel->mu[r] = isfinite(U[r]) ? U[r] : 0;
            }
        }
    }
}
