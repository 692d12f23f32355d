/* Loading a tile of queries: its rows, its panels, its statistics. */
#include <math.h>
#include <string.h>

#include "amx_backward.h"

static const real *one_row(const agi_head *x, const ag_tensor *t, int64_t i, real *scratch)
{
    const agi_slice slice = agi_query_slice(x, t, x->call->plan->p.out_dtype, x->Dv);
    return agi_get_rows(slice, i, 1, x->k->lanes, NULL, scratch).p;
}

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
    const double L = agi_get_stat(x, &a->lse, i), L2 = L * LOG2_E;
    t->dead[r] = L == -INFINITY || (L == x->sink && !sees_a_key(x, i));
    t->high[r] = t->dead[r] ? (real)INFINITY : (real)L2;
    t->low[r] = t->dead[r] ? 0 : (real)(L2 - (double)(real)L2);
    t->mu[r] = x->call->map == AGI_VJP_JVP ? (real)agi_get_stat(x, &a->mu, i) : 0;
    t->Ps[r] = x->sink == -INFINITY ? 0 : exp(x->sink - L);
}

/* D = rowsum(dO o O) - dL and tD = rowsum(tO o dO + O o tdO) - tdL of row r of the tile. */
static void row_products(agi_backward_scratch *s, const agi_head *x, agi_query_tile *t, int64_t r)
{
    const ag_args *a = &x->call->a;
    const int64_t i = t->i0 + r;
    const bool tangents = x->call->map == AGI_VJP_JVP;
    double D = -agi_get_stat(x, &a->d_lse, i), tD = tangents ? -agi_get_stat(x, &a->td_lse, i) : 0;
    if (AGI_HAS_AMX && x->amx != NULL && !t->dead[r]) {
        double own, tangent;
        agi_amx_row_products(s, x, i, &own, &tangent);
        D += own;
        tD += tangent;
    } else if (!t->dead[r]) {
        const real *O = one_row(x, &a->o, i, s->row[0]), *dO = t->dO.p + r * t->dO.ld;
        D += x->k->dot(dO, O, x->Dv);
        if (tangents) {
            tD += x->k->dot(dO, one_row(x, &a->to, i, s->row[1]), x->Dv);
            tD += a->td_o.data == NULL ? 0 : x->k->dot(t->tdO.p + r * t->tdO.ld, O, x->Dv);
        }
    }
    t->D[r] = (real)D;
    t->tD[r] = (real)tD;
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
    for (int64_t r = 0; r < t->ni; r++) {
        row_products(s, x, t, r);
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
    return from->data == NULL ? absent : agi_get_rows(slice, t->i0, t->ni, x->k->lanes, skip, scratch);
}

static void query_panels(const agi_head *x, const agi_query_tile *t, const ag_tensor *from, ag_dtype dtype,
                         int64_t D, real *panels)
{
    const agi_slice slice = agi_query_slice(x, from, dtype, D);
    for (int64_t i = 0; i < t->ni && from->data != NULL; i += PANEL) {
        agi_get_panel(x->k, slice, t->i0 + i, agi_min(PANEL, t->ni - i), t->dead + i, panels + i * D);
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
    const ag_args *a = &x->call->a;
    const ag_problem *p = &x->call->plan->p;
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
    for (int64_t r = t->ni; r < TILE_ROWS; r++) { /* lanes behind the last query weigh nothing */
        t->high[r] = (real)INFINITY;
        t->low[r] = t->D[r] = t->mu[r] = t->tD[r] = 0;
    }
    if (!rows) {
        return;
    }
    if (memchr(t->dead, 1, (size_t)t->ni) != NULL) {
        load_rows(x, t, t->dead);
    }
    query_panels(x, t, &a->q, p->dtype, x->Dk, t->QT);
    query_panels(x, t, &a->d_o, p->out_dtype, x->Dv, t->dOT);
    if (x->call->map == AGI_VJP_JVP) {
        query_panels(x, t, &a->tq, p->dtype, x->Dk, t->tQT);
        query_panels(x, t, &a->td_o, p->out_dtype, x->Dv, t->tdOT);
    }
}
