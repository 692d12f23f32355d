/* The order of vjp's and vjp_jvp's work: see backward.h. */
#include "backward.h"

#include <math.h>
#include <string.h>

#include "../core/number.h"

/* One call: what its items are given. */
typedef struct {
    const agi_call *call;
    const agi_kernels *k;
    agi_schedule schedule;
    agi_backward_layout y;
    int64_t pass;
    bool tangents;
    /* The map's own outputs, under vjp's names. */
    const ag_tensor *dq, *dk, *dv, *dbias, *dtable, *dsink;
    uint32_t acc_dq, acc_dk, acc_dv, acc_dbias, acc_dtable, acc_dsink;
} job;

static int64_t group_of(const ag_problem *p)
{
    return p->heads / p->kv_heads;
}

/* ---- Workspace ---- */

static void lay_out_tile(agi_query_tile *t, agi_arena *arena, int64_t Dk_pad, int64_t Dv_pad,
                         int64_t tangents)
{
    t->QT = agi_take_reals(arena, TILE_ROWS * Dk_pad);
    t->dOT = agi_take_reals(arena, TILE_ROWS * Dv_pad);
    t->tQT = agi_take_reals(arena, tangents * TILE_ROWS * Dk_pad);
    t->tdOT = agi_take_reals(arena, tangents * TILE_ROWS * Dv_pad);
    t->rows[0] = agi_take_reals(arena, TILE_ROWS * Dk_pad);
    t->rows[1] = agi_take_reals(arena, TILE_ROWS * Dv_pad);
    t->rows[2] = agi_take_reals(arena, tangents * TILE_ROWS * Dk_pad);
    t->rows[3] = agi_take_reals(arena, tangents * TILE_ROWS * Dv_pad);
    t->high = agi_take_reals(arena, TILE_ROWS);
    t->low = agi_take_reals(arena, TILE_ROWS);
    t->D = agi_take_reals(arena, TILE_ROWS);
    t->mu = agi_take_reals(arena, TILE_ROWS);
    t->tD = agi_take_reals(arena, TILE_ROWS);
    t->Ps = agi_take(arena, TILE_ROWS, sizeof(double));
    t->dead = agi_take(arena, TILE_ROWS, 1);
}

static void lay_out_scratch(agi_backward_scratch *s, agi_arena *arena, const ag_plan *plan,
                            const agi_kernels *k, agi_map map)
{
    const ag_problem *p = &plan->p;
    const agi_schedule x = agi_schedule_of(plan, map);
    const int64_t Dk_pad = agi_round_up(p->dim_qk, k->lanes), Dv_pad = agi_round_up(p->dim_v, k->lanes);
    const int64_t tangents = map == AGI_VJP_JVP, tile = x.block * TILE_LD;
    const int64_t softcap = p->softcap > 0, whole = x.parts == 1;
    const int64_t rows = agi_saturated(group_of(p), p->q_len, 1, 1);
    const int64_t features =
        agi_has(p, AG_BIAS | AG_MASK | AG_TABLE | AG_ALIBI | AG_SLOPES) || softcap || p->scale <= 0;
    lay_out_tile(&s->tile, arena, Dk_pad, Dv_pad, tangents);
    s->P = agi_take_reals(arena, tile);
    s->U = agi_take_reals(arena, tangents * tile);
    s->dS = agi_take_reals(arena, tile);
    s->tdS = agi_take_reals(arena, tangents * tile);
    s->X = agi_take_reals(arena, features * tile);
    s->tX = agi_take_reals(arena, features * tangents * tile);
    s->F = agi_take_reals(arena, softcap * tile);
    s->G = agi_take_reals(arena, softcap * tangents * tile);
    s->M = agi_take_reals(arena, (p->dropout > 0) * tile);
    s->K = agi_take_reals(arena, x.block * Dk_pad);
    s->V = agi_take_reals(arena, x.block * Dv_pad);
    s->tK = agi_take_reals(arena, tangents * x.block * Dk_pad);
    s->tV = agi_take_reals(arena, tangents * x.block * Dv_pad);
    s->clean = agi_take_reals(arena, features * x.block * Dk_pad);
    s->tclean = agi_take_reals(arena, features * tangents * x.block * Dk_pad);
    s->unseen = agi_take(arena, x.block, 1);
    s->unseen_panel = agi_take(arena, x.block, 1);
    s->dK = agi_take_reals(arena, whole * x.span * Dk_pad);
    s->dV = agi_take_reals(arena, whole * x.span * Dv_pad);
    s->dQ = agi_take_reals(arena,
                           x.n_spans == 1 ? TILE_ROWS * Dk_pad : whole * agi_saturated(rows, Dk_pad, 1, 1));
    s->products = agi_take_reals(arena, whole * (x.n_spans > 1) * agi_saturated(rows, 2, 1, 1));
    s->row[0] = agi_take_reals(arena, Dv_pad);
    s->row[1] = agi_take_reals(arena, Dv_pad);
}

/* Has the bias an element for each pair of a head? */
static bool bias_is_full(const ag_problem *p)
{
    return p->bias_size[2] == p->q_len && p->bias_size[3] == p->kv_len;
}

/* Then its gradient is summed in the caller's array, unless that would round each sum. */
static bool bias_needs_copy(const ag_problem *p)
{
    const bool sum = (p->bias_size[0] == 1 && p->batch > 1) || (p->bias_size[1] == 1 && p->heads > 1);
    return bias_is_full(p) && sum && p->aux_dtype != REAL_DTYPE;
}

void agi_backward_lay_out(agi_backward_layout *y, agi_arena *arena, const ag_plan *plan, const agi_kernels *k,
                          agi_map map)
{
    const ag_problem *p = &plan->p;
    const agi_schedule x = agi_schedule_of(plan, map);
    const int64_t Dk_pad = agi_round_up(p->dim_qk, k->lanes), Dv_pad = agi_round_up(p->dim_v, k->lanes);
    const int64_t split = x.parts > 1, bias = agi_has(p, AG_BIAS), full = bias && bias_is_full(p);
    y->counter = agi_take(arena, 1, sizeof *y->counter);
    y->dK = agi_take_reals(arena, split * agi_saturated(x.chains, x.parts, x.span, Dk_pad));
    y->dV = agi_take_reals(arena, split * agi_saturated(x.chains, x.parts, x.span, Dv_pad));
    const int64_t rows = split * (x.n_spans > 1) * agi_saturated(x.chains, group_of(p), p->q_len, 1);
    y->dQ = agi_take_reals(arena, agi_saturated(rows, Dk_pad, 1, 1));
    y->products = agi_take_reals(arena, agi_saturated(rows, 2, 1, 1));
    y->bias_full = agi_take_reals(arena, (bias && bias_needs_copy(p)) * agi_count(p->bias_size));
    y->bias_small = agi_take(arena, (bias && !full) * agi_saturated(x.parts, agi_count(p->bias_size), 1, 1),
                             sizeof(double));
    y->table = agi_take(arena, agi_has(p, AG_TABLE) * agi_saturated(p->heads, x.parts, p->table_buckets, 1),
                        sizeof(double));
    y->sink =
        agi_take(arena, agi_has(p, AG_SINK) * agi_saturated(p->batch, p->heads, x.parts, 1), sizeof(double));
    y->scratch = agi_take(arena, plan->threads, sizeof *y->scratch);
    for (int64_t slot = 0; slot < plan->threads; slot++) {
        agi_backward_scratch dry;
        lay_out_scratch(y->scratch == NULL ? &dry : &y->scratch[slot], arena, plan, k, map);
    }
}

/* ---- Loading a tile of queries ---- */

static const real *one_row(const agi_head *x, const ag_tensor *t, int64_t i, real *scratch)
{
    const agi_slice slice = agi_query_slice(x, t, x->call->plan->p.out_dtype, x->Dv);
    return agi_get_rows(slice, i, 1, x->k->lanes, NULL, scratch).p;
}

/* Asked only of rows whose L is the sink's logit: they see no key, or none that counts. */
static bool sees_a_key(agi_backward_scratch *s, const agi_head *x, int64_t i)
{
    int64_t from, to;
    agi_key_range(x, i, 1, &from, &to);
    bool sees = from < to && !x->hides;
    for (int64_t j = from; j < to && !sees; j++) {
        agi_additive(x, i, 1, j, 1, s->X, NULL, TILE_LD, s->unseen);
        sees = !s->unseen[0];
    }
    return sees;
}

/* L and mu of row r of the tile. A query without an output (L = -infinity, or the sink's logit and no key
 * seen) has weights 0: L counts as infinite. */
static void load_statistics(agi_backward_scratch *s, const agi_head *x, agi_query_tile *t, int64_t r)
{
    const ag_args *a = &x->call->a;
    const int64_t i = t->i0 + r;
    const double L = agi_get_stat(x, &a->lse, i), L2 = L * LOG2_E;
    t->dead[r] = L == -INFINITY || (L == x->sink && !sees_a_key(s, x, i));
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
    if (!t->dead[r]) {
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

static void load_tile(agi_backward_scratch *s, const agi_head *x, int64_t i0, real *kept, bool first)
{
    agi_query_tile *t = &s->tile;
    const ag_args *a = &x->call->a;
    const ag_problem *p = &x->call->plan->p;
    t->i0 = i0;
    t->ni = agi_min(TILE_ROWS, x->seq.n_q - i0);
    load_rows(x, t, NULL);
    for (int64_t r = 0; r < t->ni; r++) {
        load_statistics(s, x, t, r);
    }
    load_products(s, x, t, kept, first);
    for (int64_t r = t->ni; r < TILE_ROWS; r++) { /* lanes behind the last query weigh nothing */
        t->high[r] = (real)INFINITY;
        t->low[r] = t->D[r] = t->mu[r] = t->tD[r] = 0;
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

/* ---- One tile of queries against one span of keys ---- */

static void run_blocks(const job *w, agi_backward_scratch *s, const agi_head *x, const agi_sums *sums,
                       int64_t span0, int64_t from, int64_t to, real *dK, real *dV)
{
    const ag_args *a = &x->call->a;
    const int64_t block = w->schedule.block;
    for (int64_t j0 = from / block * block; j0 < to; j0 += block) {
        agi_key_tile keys = {.j0 = agi_max(j0, from)};
        keys.nj = agi_min(j0 + block, to) - keys.j0;
        keys.K = agi_key_rows(x, &a->k, x->Dk, keys.j0, keys.nj, s->K);
        keys.V = agi_key_rows(x, &a->v, x->Dv, keys.j0, keys.nj, s->V);
        keys.dK = dK + (keys.j0 - span0) * x->Dk_pad;
        keys.dV = dV + (keys.j0 - span0) * x->Dv_pad;
        if (w->tangents) {
            keys.tK = agi_key_rows(x, &a->tk, x->Dk, keys.j0, keys.nj, s->tK);
            keys.tV = agi_key_rows(x, &a->tv, x->Dv, keys.j0, keys.nj, s->tV);
            agi_vjp_jvp_tile(s, x, sums, &s->tile, &keys);
        } else {
            agi_vjp_tile(s, x, sums, &s->tile, &keys);
        }
    }
}

/* ds = - sum Ps D; tds = - sum ( Ps (ts - mu) D + Ps tD ) */
static double sink_gradient(const agi_head *x, const agi_query_tile *t, bool tangents)
{
    double sum = 0;
    for (int64_t r = 0; r < t->ni; r++) {
        const double D = (double)t->D[r];
        sum -= tangents ? t->Ps[r] * ((x->tsink - (double)t->mu[r]) * D + (double)t->tD[r]) : t->Ps[r] * D;
    }
    return sum;
}

/* Rounded once, after the last span. */
static void put_queries(const job *w, const agi_head *x, int64_t i0, int64_t ni, const real *dQ)
{
    const ag_problem *p = &x->call->plan->p;
    agi_put_rows(x->k, agi_query_slice(x, w->dq, p->grad_dtype, x->Dk), i0, ni,
                 (x->call->a.accumulate & w->acc_dq) != 0, p->scale, dQ, x->Dk_pad);
}

/* ---- One pass of one part of a chain ---- */

typedef struct {
    int64_t chain, part, b, hk, span;
} where;

static where locate(const job *w, int64_t chain, int64_t part, int64_t pass)
{
    const agi_schedule *x = &w->schedule;
    const int64_t items_hk = w->call->plan->p.kv_heads / x->join_hk;
    const int64_t group = pass / x->n_spans;
    return (where){chain, part, chain / items_hk * x->join_b + group / x->join_hk,
                   chain % items_hk * x->join_hk + group % x->join_hk, pass % x->n_spans};
}

/* The sums of a head that live from span to span, where there are several: dQ[Nq][Dk_pad], and D and tD. */
typedef struct {
    real *dQ, *products;
} kept_sums;

static kept_sums sums_of_head(const job *w, const agi_backward_scratch *s, const where *at, const agi_head *x)
{
    const ag_problem *p = &w->call->plan->p;
    const int64_t group = group_of(p), g = x->h % group, Nq = p->q_len;
    const int64_t n = w->schedule.parts == 1 ? g : at->chain * group + g;
    const bool own = w->schedule.parts == 1;
    if (w->schedule.n_spans == 1) {
        return (kept_sums){NULL, NULL};
    }
    return (kept_sums){(own ? s->dQ : w->y.dQ) + n * Nq * x->Dk_pad,
                       (own ? s->products : w->y.products) + n * 2 * Nq};
}

static void begin_sums(const job *w, const where *at, const agi_head *x, agi_sums *sums)
{
    const ag_problem *p = &w->call->plan->p;
    const int64_t *size = p->bias_size;
    int64_t dense[4] = {size[1] * size[2] * size[3], size[2] * size[3], size[3], 1};
    memset(sums, 0, sizeof *sums);
    if (w->dbias->data != NULL) {
        const bool full = bias_is_full(p), copy = full && bias_needs_copy(p);
        sums->full = !full ? NULL : copy ? (void *)w->y.bias_full : w->dbias->data;
        sums->dtype = copy ? REAL_DTYPE : p->aux_dtype;
        sums->small = full ? NULL : w->y.bias_small + at->part * agi_count(size);
        for (int axis = 0; axis < 4; axis++) {
            sums->strides[axis] = size[axis] == 1 ? 0 : full && !copy ? w->dbias->strides[axis] : dense[axis];
        }
    }
    if (w->dtable->data != NULL) {
        sums->table = w->y.table + (x->h * w->schedule.parts + at->part) * p->table_buckets;
    }
}

/* The sums of a part's keys: rows from .. to - 1 of the span have been begun, at zero. */
typedef struct {
    real *dK, *dV;
    int64_t from, to;
} key_sums;

static void clear_rows(real *rows, int64_t from, int64_t to, int64_t width)
{
    if (from < to) {
        memset(rows + from * width, 0, (size_t)((to - from) * width) * sizeof(real));
    }
}

/* Begins rows from .. to - 1, and those between them and what was begun before: when they are about to be
 * used, so that they are near. */
static void begin_keys(key_sums *s, int64_t from, int64_t to, int64_t Dk_pad, int64_t Dv_pad)
{
    const bool none = s->from == s->to;
    const int64_t low = none ? to : s->from, high = none ? to : s->to;
    clear_rows(s->dK, from, low, Dk_pad);
    clear_rows(s->dV, from, low, Dv_pad);
    clear_rows(s->dK, high, to, Dk_pad);
    clear_rows(s->dV, high, to, Dv_pad);
    s->from = agi_min(from, low);
    s->to = agi_max(to, high);
}

/* One tile of queries against the span's keys; nothing is loaded where it sees none of them. */
static void run_tile(const job *w, agi_backward_scratch *s, const where *at, const agi_head *x, int64_t i0,
                     real *products, key_sums *keys)
{
    const int64_t span = w->schedule.span, span0 = at->span * span;
    const bool sink = w->dsink->data != NULL;
    int64_t from, to;
    agi_key_range(x, i0, agi_min(TILE_ROWS, x->seq.n_q - i0), &from, &to);
    const int64_t first = sink ? 0 : from / span;
    from = agi_max(from, span0);
    to = agi_min(to, span0 + span);
    if (from < to || (sink && at->span == 0)) {
        load_tile(s, x, i0, products, at->span == first);
    }
    if (sink && at->span == 0) {
        w->y.sink[(at->b * w->call->plan->p.heads + x->h) * w->schedule.parts + at->part] +=
            sink_gradient(x, &s->tile, w->tangents);
    }
    if (from < to) {
        agi_sums sums;
        begin_sums(w, at, x, &sums);
        begin_keys(keys, from - span0, to - span0, x->Dk_pad, x->Dv_pad);
        run_blocks(w, s, x, &sums, span0, from, to, keys->dK, keys->dV);
    }
}

static void run_head(const job *w, agi_backward_scratch *s, const where *at, int64_t h, key_sums *keys)
{
    const ag_problem *p = &w->call->plan->p;
    const agi_schedule *schedule = &w->schedule;
    agi_head x;
    agi_head_begin(&x, w->call, w->k, at->b, h);
    const kept_sums kept = sums_of_head(w, s, at, &x);
    for (int64_t i0 = at->part * TILE_ROWS; i0 < x.seq.n_q; i0 += schedule->parts * TILE_ROWS) {
        const int64_t ni = agi_min(TILE_ROWS, x.seq.n_q - i0);
        s->tile.dQ = kept.dQ == NULL ? s->dQ : kept.dQ + i0 * x.Dk_pad;
        if (at->span == 0) {
            memset(s->tile.dQ, 0, (size_t)(ni * x.Dk_pad) * sizeof(real));
        }
        run_tile(w, s, at, &x, i0, kept.products, keys);
        if (at->span == schedule->n_spans - 1) {
            put_queries(w, &x, i0, ni, s->tile.dQ);
        }
    }
    if (at->span == 0 && at->part == 0 && !agi_has(p, AG_PACKED)) { /* rows behind the sequence's end */
        agi_put_rows(w->k, agi_query_slice(&x, w->dq, p->grad_dtype, x.Dk), x.seq.n_q, p->q_len - x.seq.n_q,
                     (w->call->a.accumulate & w->acc_dq) != 0, 1, NULL, 0);
    }
}

/* Rows [from, to) of the span to the caller's arrays; those behind the sequence's end are zero. */
static void put_keys(const job *w, const where *at, int64_t from, int64_t to, const real *dK, const real *dV)
{
    const ag_problem *p = &w->call->plan->p;
    agi_head x;
    agi_head_begin(&x, w->call, w->k, at->b, at->hk * group_of(p));
    const int64_t row0 = at->span * w->schedule.span + from;
    const int64_t end = agi_has(p, AG_PACKED) ? x.seq.n_k : p->kv_len;
    const int64_t n = agi_max(0, agi_min(row0 + to - from, x.seq.n_k) - row0);
    const int64_t all = agi_max(n, agi_min(row0 + to - from, end) - row0);
    agi_slice slices[2] = {agi_key_slice(&x, w->dk, x.Dk), agi_key_slice(&x, w->dv, x.Dv)};
    const bool accumulate[2] = {(w->call->a.accumulate & w->acc_dk) != 0,
                                (w->call->a.accumulate & w->acc_dv) != 0};
    const real *rows[2] = {dK, dV};
    const int64_t ld[2] = {x.Dk_pad, x.Dv_pad};
    const double factor[2] = {p->scale, 1};
    for (int o = 0; o < 2; o++) {
        slices[o].dtype = p->grad_dtype;
        agi_put_rows(w->k, slices[o], row0, n, accumulate[o], factor[o], rows[o], ld[o]);
        agi_put_rows(w->k, slices[o], row0 + n, all - n, accumulate[o], 1, NULL, 0);
    }
}

/* The span's keys that some tile of the part sees, counted from the span's first. A window leaves most of
 * them to other parts. */
static void keys_of_part(const job *w, const where *at, int64_t *from, int64_t *to)
{
    const int64_t span = w->schedule.span, span0 = at->span * span;
    agi_head x;
    agi_head_begin(&x, w->call, w->k, at->b, at->hk * group_of(&w->call->plan->p));
    *from = span;
    *to = 0;
    for (int64_t i0 = at->part * TILE_ROWS; i0 < x.seq.n_q; i0 += w->schedule.parts * TILE_ROWS) {
        int64_t first, end;
        agi_key_range(&x, i0, agi_min(TILE_ROWS, x.seq.n_q - i0), &first, &end);
        first = agi_max(first - span0, 0);
        end = agi_min(end - span0, span);
        if (first < end) {
            *from = agi_min(*from, first);
            *to = agi_max(*to, end);
        }
    }
}

static void run_pass(const job *w, agi_backward_scratch *s, const where *at)
{
    const ag_problem *p = &w->call->plan->p;
    const agi_schedule *schedule = &w->schedule;
    const int64_t Dk_pad = agi_round_up(p->dim_qk, w->k->lanes), Dv_pad = agi_round_up(p->dim_v, w->k->lanes);
    const int64_t mine = (at->chain * schedule->parts + at->part) * schedule->span;
    real *dK = schedule->parts == 1 ? s->dK : w->y.dK + mine * Dk_pad;
    real *dV = schedule->parts == 1 ? s->dV : w->y.dV + mine * Dv_pad;
    key_sums sums = {.dK = dK, .dV = dV};
    for (int64_t h = at->hk * group_of(p); h < (at->hk + 1) * group_of(p); h++) {
        run_head(w, s, at, h, &sums);
    }
    if (at->part == 0) { /* the place of the sum of all parts */
        begin_keys(&sums, 0, schedule->span, Dk_pad, Dv_pad);
    }
    if (schedule->parts == 1) {
        put_keys(w, at, 0, schedule->span, dK, dV);
    }
}

/* ---- Work items ---- */

static void run_chain(void *arg, int64_t item, int64_t slot)
{
    const job *w = arg;
    for (int64_t pass = 0; pass < w->schedule.passes; pass++) {
        const where at = locate(w, item, 0, pass);
        run_pass(w, &w->y.scratch[slot], &at);
    }
}

static void run_part(void *arg, int64_t item, int64_t slot)
{
    const job *w = arg;
    const where at = locate(w, item / w->schedule.parts, item % w->schedule.parts, w->pass);
    run_pass(w, &w->y.scratch[slot], &at);
}

static void add_rows(real *to, const real *from, int64_t n)
{
    for (int64_t e = 0; e < n; e++) {
        to[e] += from[e];
    }
}

enum { REDUCE_ROWS = 64 };

/* The parts' sums of some rows, added up in order, in the place of the first part. */
static void reduce_keys(void *arg, int64_t item, int64_t slot)
{
    const job *w = arg;
    const agi_schedule *schedule = &w->schedule;
    const ag_problem *p = &w->call->plan->p;
    const int64_t chunks = (schedule->span + REDUCE_ROWS - 1) / REDUCE_ROWS;
    where at = locate(w, item / chunks, 0, w->pass);
    const int64_t from = item % chunks * REDUCE_ROWS, to = agi_min(from + REDUCE_ROWS, schedule->span);
    const int64_t Dk_pad = agi_round_up(p->dim_qk, w->k->lanes), Dv_pad = agi_round_up(p->dim_v, w->k->lanes);
    const int64_t first = at.chain * schedule->parts * schedule->span;
    real *dK = w->y.dK + first * Dk_pad, *dV = w->y.dV + first * Dv_pad;
    (void)slot;
    for (at.part = 1; at.part < schedule->parts; at.part++) {
        const int64_t other = at.part * schedule->span;
        int64_t j, end;
        keys_of_part(w, &at, &j, &end);
        j = agi_max(j, from);
        const int64_t n = agi_max(0, agi_min(end, to) - j);
        add_rows(dK + j * Dk_pad, dK + (other + j) * Dk_pad, n * Dk_pad);
        add_rows(dV + j * Dv_pad, dV + (other + j) * Dv_pad, n * Dv_pad);
    }
    put_keys(w, &at, from, to, dK + from * Dk_pad, dV + from * Dv_pad);
}

static ag_status run_in_parts(job *w, const ag_exec *exec)
{
    const agi_schedule *schedule = &w->schedule;
    const int64_t chunks = (schedule->span + REDUCE_ROWS - 1) / REDUCE_ROWS;
    ag_status status = AG_OK;
    for (w->pass = 0; w->pass < schedule->passes && status == AG_OK; w->pass++) {
        status =
            agi_run_items(w->call->plan, exec, w->y.counter, schedule->chains * schedule->parts, run_part, w);
        if (status == AG_OK) {
            status =
                agi_run_items(w->call->plan, exec, w->y.counter, schedule->chains * chunks, reduce_keys, w);
        }
    }
    return status;
}

/* ---- Sums over sequences and heads: bias, table, sink ---- */

/* The place of element e, counted densely, of a view. */
static int64_t place(const ag_tensor *t, const int64_t size[4], int64_t e)
{
    int64_t at = 0;
    for (int axis = 3; axis >= 0; axis--) {
        at += size[axis] == 1 ? 0 : e % size[axis] * t->strides[axis];
        e /= size[axis];
    }
    return at;
}

static void put(const ag_tensor *t, ag_dtype dtype, int64_t at, bool accumulate, double value)
{
    agi_store(dtype, t->data, at, accumulate ? agi_load(dtype, t->data, at) + value : value);
}

static void clear(void *sum, int64_t n, size_t size)
{
    memset(sum, 0, (size_t)n * size);
}

static void clear_sums(const job *w)
{
    const ag_problem *p = &w->call->plan->p;
    const int64_t parts = w->schedule.parts, n = agi_count(p->bias_size);
    if (w->dtable->data != NULL) {
        clear(w->y.table, p->heads * parts * p->table_buckets, sizeof(double));
    }
    if (w->dsink->data != NULL) {
        clear(w->y.sink, p->batch * p->heads * parts, sizeof(double));
    }
    if (w->dbias->data == NULL) {
        return;
    }
    if (!bias_is_full(p)) {
        clear(w->y.bias_small, parts * n, sizeof(double));
    } else if (bias_needs_copy(p)) {
        clear(w->y.bias_full, n, sizeof(real));
    } else if (!(w->call->a.accumulate & w->acc_dbias)) {
        for (int64_t e = 0; e < n; e++) {
            put(w->dbias, p->aux_dtype, place(w->dbias, p->bias_size, e), false, 0);
        }
    }
}

/* The sum of `count` numbers, `step` apart. */
static double strided_sum(const double *x, int64_t count, int64_t step)
{
    double sum = 0;
    for (int64_t i = 0; i < count; i++) {
        sum += x[i * step];
    }
    return sum;
}

static void put_bias(const job *w)
{
    const ag_problem *p = &w->call->plan->p;
    const int64_t n = agi_count(p->bias_size);
    const bool accumulate = (w->call->a.accumulate & w->acc_dbias) != 0, full = bias_is_full(p);
    for (int64_t e = 0; e < n && (!full || bias_needs_copy(p)); e++) {
        const double sum =
            full ? (double)w->y.bias_full[e] : strided_sum(w->y.bias_small + e, w->schedule.parts, n);
        put(w->dbias, p->aux_dtype, place(w->dbias, p->bias_size, e), accumulate, sum);
    }
}

static void put_table(const job *w)
{
    const ag_problem *p = &w->call->plan->p;
    const int64_t size[4] = {1, p->table_heads, 1, p->table_buckets}, nb = p->table_buckets;
    const int64_t count = p->table_heads == 1 ? p->heads * w->schedule.parts : w->schedule.parts;
    const bool accumulate = (w->call->a.accumulate & w->acc_dtable) != 0;
    for (int64_t e = 0; e < p->table_heads * nb; e++) {
        const double *first = w->y.table + e / nb * w->schedule.parts * nb + e % nb;
        put(w->dtable, p->aux_dtype, place(w->dtable, size, e), accumulate, strided_sum(first, count, nb));
    }
}

static void put_sink(const job *w)
{
    const ag_problem *p = &w->call->plan->p;
    const int64_t size[4] = {1, p->heads, 1, 1}, parts = w->schedule.parts;
    const bool accumulate = (w->call->a.accumulate & w->acc_dsink) != 0;
    for (int64_t h = 0; h < p->heads; h++) {
        double sum = 0;
        for (int64_t b = 0; b < p->batch; b++) {
            sum += strided_sum(w->y.sink + (b * p->heads + h) * parts, parts, 1);
        }
        put(w->dsink, p->aux_dtype, place(w->dsink, size, h), accumulate, sum);
    }
}

static void put_sums(const job *w)
{
    if (w->dbias->data != NULL) {
        put_bias(w);
    }
    if (w->dtable->data != NULL) {
        put_table(w);
    }
    if (w->dsink->data != NULL) {
        put_sink(w);
    }
}

/* ---- The whole ---- */

static void name_outputs(job *w)
{
    const ag_args *a = &w->call->a;
    const bool t = w->tangents;
    w->dq = t ? &a->tdq : &a->dq;
    w->dk = t ? &a->tdk : &a->dk;
    w->dv = t ? &a->tdv : &a->dv;
    w->dbias = t ? &a->tdbias : &a->dbias;
    w->dtable = t ? &a->tdtable : &a->dtable;
    w->dsink = t ? &a->tdsink : &a->dsink;
    w->acc_dq = t ? AG_ACC_TDQ : AG_ACC_DQ;
    w->acc_dk = t ? AG_ACC_TDK : AG_ACC_DK;
    w->acc_dv = t ? AG_ACC_TDV : AG_ACC_DV;
    w->acc_dbias = t ? AG_ACC_TDBIAS : AG_ACC_DBIAS;
    w->acc_dtable = t ? AG_ACC_TDTABLE : AG_ACC_DTABLE;
    w->acc_dsink = t ? AG_ACC_TDSINK : AG_ACC_DSINK;
}

ag_status agi_backward_run(const agi_call *call, const agi_kernels *k, const ag_exec *exec, void *memory)
{
    agi_arena arena = agi_arena_begin(memory);
    job w = {.call = call, .k = k, .schedule = agi_schedule_of(call->plan, call->map)};
    w.tangents = call->map == AGI_VJP_JVP;
    name_outputs(&w);
    agi_backward_lay_out(&w.y, &arena, call->plan, k, call->map);
    clear_sums(&w);
    const ag_status status =
        w.schedule.parts > 1 ? run_in_parts(&w, exec)
                             : agi_run_items(call->plan, exec, w.y.counter, w.schedule.chains, run_chain, &w);
    if (status == AG_OK) {
        put_sums(&w);
    }
    return status;
}
