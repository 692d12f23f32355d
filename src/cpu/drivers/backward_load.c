/* Loading a tile of queries: its rows, its panels, its statistics. */
#include <math.h>
#include <string.h>

#include "cpu/amx/amx_backward.h"

/* Asked only of rows whose L is the sink's logit: they see no key, or none that counts. */
static bool sees_a_key(const agi_head *x, int64_t i)
{
    int64_t from, to;
    agi_key_range(x, i, 1, &from, &to);
    return from < to && !agi_all_hidden(x, i, 1, from, to - from);
}

/* L and mu of row r of the tile. A query without an output (L = -infinity, or the sink's logit and no key
 * seen) has weights 0: L counts as infinite. */
static void load_statistics(const agi_head *x, agi_query_tile *t, int64_t r)
{
    const ag_args *a = &x->call->a;
    const int64_t i = t->i0 + r;
    const double L = agi_get_stat(x, &a->lse, i);
    t->dead[r] = L == -INFINITY || (L == x->sink && !sees_a_key(x, i));
    agi_split_log(t->dead[r] ? INFINITY : L, &t->high[r], &t->low[r]);
    t->mu[r] = x->call->map == AGI_VJP_JVP ? (real)agi_get_stat(x, &a->mu, i) : 0;
    t->Ps[r] = x->sink == -INFINITY ? 0 : exp(x->sink - L);
}

static agi_rows output_rows(const agi_head *x, const ag_tensor *t, int64_t i, int64_t n, real *scratch)
{
    return agi_get_rows(x->k, agi_query_slice(x, t, x->call->plan->p.out_dtype, x->Dv), i, n, NULL, scratch);
}

/* D = rowsum(dO o O) - dL and tD = rowsum(tO o dO + O o tdO) - tdL of rows r0 .. r0 + n - 1 of the tile. */
static void row_products(agi_backward_scratch *s, const agi_head *x, agi_query_tile *t, int64_t r0, int64_t n)
{
    const ag_args *a = &x->call->a;
    const bool tangents = x->call->map == AGI_VJP_JVP, amx = AGI_HAS_AMX && x->amx != NULL;
    double D[SOME_ROWS] = {0}, tD[SOME_ROWS] = {0}, more[SOME_ROWS] = {0};
    if (AGI_HAS_AMX && amx) {
        agi_amx_row_products(s, x, t->i0 + r0, n, D, tD);
    } else {
        const agi_rows O = output_rows(x, &a->o, t->i0 + r0, n, s->row[0]);
        const real *dO = t->dO.p + r0 * t->dO.ld;
        x->k->dots(D, dO, t->dO.ld, O.p, O.ld, n, x->Dv);
        if (tangents) {
            const agi_rows tO = output_rows(x, &a->to, t->i0 + r0, n, s->row[1]);
            x->k->dots(tD, dO, t->dO.ld, tO.p, tO.ld, n, x->Dv);
        }
        if (tangents && a->td_o.data != NULL) {
            x->k->dots(more, t->tdO.p + r0 * t->tdO.ld, t->tdO.ld, O.p, O.ld, n, x->Dv);
        }
    }
    for (int64_t r = 0; r < n; r++) {
        const int64_t i = t->i0 + r0 + r;
        const bool dead = t->dead[r0 + r];
        t->D[r0 + r] = (real)((dead ? 0 : D[r]) - agi_get_stat(x, &a->d_lse, i));
        t->tD[r0 + r] = tangents ? (real)((dead ? 0 : tD[r] + more[r]) - agi_get_stat(x, &a->td_lse, i)) : 0;
    }
}

/* They take as long as a few keys, so that the first span that loads a tile keeps them for the others. */
static void load_products(agi_backward_scratch *s, const agi_head *x, agi_query_tile *t, real *kept,
                          bool first)
{
    const size_t size = (size_t)t->ni * sizeof(real);
    const int64_t Nq = x->call->plan->p.q_len;
    if (kept != NULL && !first) {
        memcpy(t->D, kept + t->i0, size);
        memcpy(t->tD, kept + Nq + t->i0, size);
        return;
    }
    for (int64_t r = 0; r < t->ni; r += SOME_ROWS) {
        row_products(s, x, t, r, agi_min(SOME_ROWS, t->ni - r));
    }
    if (kept != NULL) {
        memcpy(kept + t->i0, t->D, size);
        memcpy(kept + Nq + t->i0, t->tD, size);
    }
}

static agi_rows query_rows(const agi_head *x, const agi_query_tile *t, const ag_tensor *from, ag_dtype dtype,
                           int64_t D, const uint8_t *skip, real *scratch)
{
    const agi_rows absent = {NULL, 0};
    const agi_slice slice = agi_query_slice(x, from, dtype, D);
    return from->data == NULL ? absent : agi_near_rows(x, slice, t->i0, t->ni, skip, scratch);
}

static void query_panels(const agi_head *x, const agi_query_tile *t, agi_rows rows, int64_t D, real *panels)
{
    for (int64_t i = 0; i < t->ni && rows.p != NULL && !x->few; i += PANEL) {
        x->k->transpose(panels + i * D, rows.p + i * rows.ld, rows.ld, agi_min(PANEL, t->ni - i), D);
    }
}

/* Rows of Q, dO and their tangents; those of queries without an output count as zero. */
static void load_rows(const agi_head *x, agi_query_tile *t, const uint8_t *skip)
{
    const ag_args *a = &x->call->a;
    const ag_problem *p = &x->call->plan->p;
    const bool tangents = x->call->map == AGI_VJP_JVP;
    t->Q = query_rows(x, t, &a->q, p->dtype, x->Dk, skip, t->rows[0]);
    t->dO = query_rows(x, t, &a->d_o, p->out_dtype, x->Dv, skip, t->rows[1]);
    if (tangents) {
        t->tQ = query_rows(x, t, &a->tq, p->dtype, x->Dk, skip, t->rows[2]);
        t->tdO = query_rows(x, t, &a->td_o, p->out_dtype, x->Dv, skip, t->rows[3]);
    }
}

void agi_load_tile(agi_backward_scratch *s, const agi_head *x, int64_t i0, real *kept, bool first)
{
    agi_query_tile *t = &s->tile;
    t->i0 = i0;
    t->ni = agi_min(TILE_ROWS, x->seq.n_q - i0);
    const bool rows = x->amx == NULL; /* else it has operands of its own */
    if (rows) {
        load_rows(x, t, NULL);
    }
    for (int64_t r = 0; r < t->ni; r++) {
        load_statistics(x, t, r);
    }
    load_products(s, x, t, kept, first);
    for (int64_t r = t->ni; r < agi_round_up(t->ni, rows ? x->k->lanes : PANEL);
         r++) { /* lanes behind the last query weigh nothing */
        t->high[r] = (real)INFINITY;
        t->low[r] = t->D[r] = t->mu[r] = t->tD[r] = 0;
    }
    if (!rows) {
        return;
    }
    if (memchr(t->dead, 1, (size_t)t->ni) != NULL) {
        load_rows(x, t, t->dead);
    }
    query_panels(x, t, t->Q, x->Dk, t->QT);
    query_panels(x, t, t->dO, x->Dv, t->dOT);
    if (x->call->map == AGI_VJP_JVP) {
        query_panels(x, t, t->tQ, x->Dk, t->tQT);
        query_panels(x, t, t->tdO, x->Dv, t->tdOT);
    }
}
