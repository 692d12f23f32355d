/* Loading a tile of queries and its statistics. */
#include <math.h>
#include <string.h>

#include "cpu/drivers/backward.h"

/* L and mu of row r of the tile. A query that sees no key (L is -infinity, or the sink's logit) must get weights 0: its
 * L is taken as +infinity. Its mu is the sink's tangent, whatever the caller's array holds. */
static void load_statistics(const agi_head *x, agi_query_tile *t, int64_t r)
{
    const ag_args *a = &x->call->a;
    const int64_t i = t->i0 + r;
    const double L = agi_load_stat(x, &a->lse, i);
    t->sees_no_key[r] = REAL(agi_sees_no_key)(x, i, L);
    agi_split_log(t->sees_no_key[r] ? INFINITY : L, &t->L_high[r], &t->L_low[r]);
    t->mu[r] = x->call->map != AGI_VJP_JVP ? 0
               : t->sees_no_key[r]         ? (real)x->tsink
                                           : (real)agi_load_stat(x, &a->mu, i);
    t->Ps[r] = x->sink == -INFINITY ? 0 : exp(x->sink - L);
}

/* D = rowsum(dO o O) - dL and tD = rowsum(tO o dO + O o tdO) - tdL of rows r0 .. r0 + n - 1 of the tile. */
static void compute_deltas(agi_backward_scratch *s, const agi_head *x, agi_query_tile *t, int64_t r0,
                           int64_t n)
{
    const ag_args *a = &x->call->a;
    const bool tangents = x->call->map == AGI_VJP_JVP;
    double D[ROW_CHUNK] = {0}, tD[ROW_CHUNK] = {0};
    x->cpu->backward_ops->row_dots(s, x, r0, n, D, tD);
    for (int64_t r = 0; r < n; r++) {
        const int64_t i = t->i0 + r0 + r;
        const bool sees_no_key = t->sees_no_key[r0 + r];
        t->D[r0 + r] = (real)((sees_no_key ? 0 : D[r]) - agi_load_stat(x, &a->d_lse, i));
        t->tD[r0 + r] = tangents ? (real)((sees_no_key ? 0 : tD[r]) - agi_load_stat(x, &a->td_lse, i)) : 0;
    }
}

/* D and tD cost as much as a few keys: the first span that loads a tile computes them, the others read them. */
static void load_deltas(agi_backward_scratch *s, const agi_head *x, agi_query_tile *t, real *deltas,
                        bool first)
{
    const size_t size = (size_t)t->ni * sizeof(real);
    const int64_t Nq = x->call->plan->p.q_len;
    if (deltas != NULL && !first) {
        memcpy(t->D, deltas + t->i0, size);
        memcpy(t->tD, deltas + Nq + t->i0, size);
        return;
    }
    for (int64_t r = 0; r < t->ni; r += ROW_CHUNK) {
        compute_deltas(s, x, t, r, agi_min(ROW_CHUNK, t->ni - r));
    }
    if (deltas != NULL) {
        memcpy(deltas + t->i0, t->D, size);
        memcpy(deltas + Nq + t->i0, t->tD, size);
    }
}

void REAL(agi_load_tile)(agi_backward_scratch *s, const agi_head *x, int64_t i0, real *deltas, bool first)
{
    const agi_backward_ops *ops = x->cpu->backward_ops;
    const int64_t step = ops->query_step == 0 ? x->k->lanes : ops->query_step;
    agi_query_tile *t = &s->tile;
    t->i0 = i0;
    t->ni = agi_min(TILE_ROWS, x->seq.n_q - i0);
    if (ops->load_rows != NULL) {
        ops->load_rows(s, x);
    }
    for (int64_t r = 0; r < t->ni; r++) {
        load_statistics(x, t, r);
    }
    load_deltas(s, x, t, deltas, first);
    for (int64_t r = t->ni; r < agi_round_up(t->ni, step);
         r++) { /* weights 0 in the lanes after the last query */
        t->L_high[r] = (real)INFINITY;
        t->L_low[r] = t->D[r] = t->mu[r] = t->tD[r] = 0;
    }
}
