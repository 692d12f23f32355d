/* The order of vjp's and vjp_jvp's work: see backward.h. */
#include "cpu/amx/amx_backward.h"
#include "cpu/drivers/small.h"

#include <string.h>

/* ---- Workspace ---- */

/* rows: 0 where the AMX unit has its own. */
static void lay_out_tile(agi_query_tile *t, agi_arena *arena, int64_t rows, int64_t Dk_pad, int64_t Dv_pad,
                         int64_t tangents)
{
    t->QT = agi_take_reals(arena, rows * Dk_pad);
    t->dOT = agi_take_reals(arena, rows * Dv_pad);
    t->tQT = agi_take_reals(arena, tangents * rows * Dk_pad);
    t->tdOT = agi_take_reals(arena, tangents * rows * Dv_pad);
    t->rows[0] = agi_take_reals(arena, rows * Dk_pad);
    t->rows[1] = agi_take_reals(arena, rows * Dv_pad);
    t->rows[2] = agi_take_reals(arena, tangents * rows * Dk_pad);
    t->rows[3] = agi_take_reals(arena, tangents * rows * Dv_pad);
    t->high = agi_take_reals(arena, TILE_ROWS);
    t->low = agi_take_reals(arena, TILE_ROWS);
    t->D = agi_take_reals(arena, TILE_ROWS);
    t->mu = agi_take_reals(arena, TILE_ROWS);
    t->tD = agi_take_reals(arena, TILE_ROWS);
    t->Ps = agi_take(arena, TILE_ROWS, sizeof(double));
    t->dead = agi_take(arena, TILE_ROWS, 1);
}

/* Numbers of a query in the sums of dQ, and queries of a head there. On the AMX unit dQ is transposed, in whole
 * tiles. */
static int64_t dq_width(const ag_plan *plan, const agi_kernels *k, agi_map map)
{
    return agi_on_amx(plan, map) ? agi_amx_tall(plan->p.dim_qk) : agi_round_up(plan->p.dim_qk, k->lanes);
}

static int64_t dq_rows(const ag_plan *plan, agi_map map)
{
    return agi_on_amx(plan, map) ? agi_round_up(plan->p.q_len, TILE_ROWS) : plan->p.q_len;
}

/* Numbers of the sums of a chain's dQ. */
static int64_t dq_numbers(const ag_plan *plan, const agi_kernels *k, agi_map map)
{
    return agi_saturated(agi_group_of(&plan->p), dq_rows(plan, map), dq_width(plan, k, map), 1);
}

static void lay_out_scratch(agi_backward_scratch *s, agi_arena *arena, const ag_plan *plan,
                            const agi_kernels *k, agi_map map)
{
    const ag_problem *p = &plan->p;
    const agi_schedule x = agi_schedule_of(plan, map);
    const int64_t Dk_pad = agi_round_up(p->dim_qk, k->lanes), Dv_pad = agi_round_up(p->dim_v, k->lanes);
    const int64_t tangents = map == AGI_VJP_JVP, amx = agi_on_amx(plan, map);
    const int64_t tile = amx ? GROUP_KEYS * PANEL : x.block * TILE_LD, block = amx ? 0 : x.block;
    const int64_t softcap = p->softcap > 0, whole = x.parts == 1;
    const int64_t rows = agi_saturated(agi_group_of(p), p->q_len, 1, 1);
    const int64_t features =
        agi_has(p, AG_BIAS | AG_MASK | AG_TABLE | AG_ALIBI | AG_SLOPES) || softcap || p->scale <= 0;
    lay_out_tile(&s->tile, arena, amx ? 0 : TILE_ROWS, Dk_pad, Dv_pad, tangents);
    s->P = agi_take_reals(arena, !amx * tile);
    s->U = agi_take_reals(arena, !amx * tangents * tile);
    s->dS = agi_take_reals(arena, !amx * tile);
    s->tdS = agi_take_reals(arena, !amx * tangents * tile);
    s->X = agi_take_reals(arena, features * tile);
    s->tX = agi_take_reals(arena, features * tangents * tile);
    s->F = agi_take_reals(arena, softcap * tile);
    s->G = agi_take_reals(arena, softcap * tangents * tile);
    s->M = agi_take_reals(arena, (p->dropout > 0) * tile);
    s->K = agi_take_reals(arena, block * Dk_pad);
    s->V = agi_take_reals(arena, block * Dv_pad);
    s->tK = agi_take_reals(arena, tangents * block * Dk_pad);
    s->tV = agi_take_reals(arena, tangents * block * Dv_pad);
    s->clean = agi_take_reals(arena, features * block * Dk_pad);
    s->tclean = agi_take_reals(arena, features * tangents * block * Dk_pad);
    s->unseen = agi_take(arena, x.block, 1);
    s->unseen_panel = agi_take(arena, x.block, 1);
    s->dK = agi_take_reals(arena, whole * x.span * Dk_pad);
    s->dV = agi_take_reals(arena, whole * x.span * Dv_pad);
    s->dQ = agi_take_reals(arena, x.n_spans == 1 ? TILE_ROWS * dq_width(plan, k, map)
                                                 : whole * dq_numbers(plan, k, map));
    s->products = agi_take_reals(arena, whole * (x.n_spans > 1) * agi_saturated(rows, 2, 1, 1));
    s->row[0] = agi_take_reals(arena, SOME_ROWS * Dv_pad);
    s->row[1] = agi_take_reals(arena, tangents * SOME_ROWS * Dv_pad);
    if (AGI_HAS_AMX) {
        agi_amx_backward_lay_out(&s->amx, arena, plan, map);
    }
}

void agi_backward_lay_out(agi_backward_layout *y, agi_arena *arena, const ag_plan *plan, const agi_kernels *k,
                          agi_map map)
{
    const ag_problem *p = &plan->p;
    const agi_schedule x = agi_schedule_of(plan, map);
    const int64_t Dk_pad = agi_round_up(p->dim_qk, k->lanes), Dv_pad = agi_round_up(p->dim_v, k->lanes);
    const int64_t split = x.parts > 1, bias = agi_has(p, AG_BIAS), full = bias && agi_bias_is_full(p);
    y->dK = agi_take_reals(arena, split * agi_saturated(x.chains, x.parts, x.span, Dk_pad));
    y->dV = agi_take_reals(arena, split * agi_saturated(x.chains, x.parts, x.span, Dv_pad));
    const int64_t kept = split * (x.n_spans > 1);
    y->dQ = agi_take_reals(arena, kept * agi_saturated(x.chains, dq_numbers(plan, k, map), 1, 1));
    y->products = agi_take_reals(arena, kept * agi_saturated(x.chains, agi_group_of(p), p->q_len, 2));
    y->bias_full = agi_take_reals(arena, (bias && agi_bias_needs_copy(p)) * agi_count(p->bias_size));
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

/* ---- One tile of queries against one span of keys ---- */

static void run_blocks(const agi_backward_job *w, agi_backward_scratch *s, const agi_head *x,
                       const agi_sums *sums, int64_t span0, int64_t from, int64_t to, real *dK, real *dV)
{
    const ag_args *a = &x->call->a;
    const int64_t block = w->schedule.block;
    for (int64_t j0 = from / block * block; j0 < to; j0 += block) {
        agi_key_tile keys = {.j0 = agi_max(j0, from)};
        keys.nj = agi_trim_hidden(x, s->tile.i0, s->tile.ni, &keys.j0, agi_min(j0 + block, to));
        if (keys.nj == 0) {
            continue;
        }
        keys.dK = dK + (keys.j0 - span0) * x->Dk_pad;
        keys.dV = dV + (keys.j0 - span0) * x->Dv_pad;
        if (AGI_HAS_AMX && x->amx != NULL) {
            agi_amx_backward_block(s, x, sums, &keys);
            continue;
        }
        keys.K = agi_key_rows(x, &a->k, x->Dk, keys.j0, keys.nj, s->K);
        keys.V = agi_key_rows(x, &a->v, x->Dv, keys.j0, keys.nj, s->V);
        if (w->tangents) {
            keys.tK = agi_key_rows(x, &a->tk, x->Dk, keys.j0, keys.nj, s->tK);
            keys.tV = agi_key_rows(x, &a->tv, x->Dv, keys.j0, keys.nj, s->tV);
            agi_vjp_jvp_tile(s, x, sums, &s->tile, &keys);
        } else {
            agi_vjp_tile(s, x, sums, &s->tile, &keys);
        }
    }
}

static void run_on_amx(const agi_backward_job *w, agi_backward_scratch *s, const agi_head *x,
                       const agi_sums *sums, int64_t span0, int64_t from, int64_t to, real *dK, real *dV)
{
    amx_config before;
    x->amx->begin(&before);
    agi_amx_begin_tile(s, x, from, to, s->tile.i0 + w->schedule.parts * TILE_ROWS);
    run_blocks(w, s, x, sums, span0, from, to, dK, dV);
    x->amx->end(&before);
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
static void put_queries(const agi_backward_job *w, agi_backward_scratch *s, const agi_head *x, int64_t i0,
                        int64_t ni)
{
    const ag_problem *p = &x->call->plan->p;
    const agi_slice dq = agi_query_slice(x, w->dq, p->grad_dtype, x->Dk);
    const bool accumulate = (x->call->a.accumulate & w->acc_dq) != 0;
    if (AGI_HAS_AMX && x->amx != NULL) {
        agi_amx_put_queries(s, x, dq, i0, ni, accumulate);
    } else {
        agi_put_rows(x->k, dq, i0, ni, accumulate, p->scale, s->tile.dQ, x->Dk_pad);
    }
}

/* ---- One pass of one part of a chain ---- */

typedef struct {
    int64_t chain, part, b, hk, span;
} where;

static where locate(const agi_backward_job *w, int64_t chain, int64_t part, int64_t pass)
{
    const agi_schedule *x = &w->schedule;
    const int64_t items_hk = w->call->plan->p.kv_heads / x->join_hk;
    const int64_t group = pass / x->n_spans;
    return (where){chain, part, chain / items_hk * x->join_b + group / x->join_hk,
                   chain % items_hk * x->join_hk + group % x->join_hk, pass % x->n_spans};
}

/* The sums of a head that live from span to span, where there are several: dQ, and D and tD. */
typedef struct {
    real *dQ, *products;
} kept_sums;

/* dQ[Nq][Dk_pad], or, on the AMX unit, in tiles by columns. */
static kept_sums sums_of_head(const agi_backward_job *w, const agi_backward_scratch *s, const where *at,
                              const agi_head *x)
{
    const ag_problem *p = &w->call->plan->p;
    const int64_t group = agi_group_of(p), g = x->h % group, Nq = p->q_len;
    const int64_t n = w->schedule.parts == 1 ? g : at->chain * group + g;
    const bool own = w->schedule.parts == 1;
    if (w->schedule.n_spans == 1) {
        return (kept_sums){NULL, NULL};
    }
    const int64_t head = dq_rows(w->call->plan, w->call->map) * dq_width(w->call->plan, w->k, w->call->map);
    return (kept_sums){(own ? s->dQ : w->y.dQ) + n * head, (own ? s->products : w->y.products) + n * 2 * Nq};
}

/* The sums of a part's keys: rows from .. to - 1 of the span have been begun, at zero. */
typedef struct {
    real *dK, *dV;
    int64_t from, to;
} key_sums;

typedef struct {
    int64_t from, to;
} key_range;

/* Rows of the sums that belong to keys from .. to - 1 of a span: on the AMX unit of whole groups. */
static key_range rows_of_keys(const agi_head *x, int64_t from, int64_t to)
{
    if (AGI_HAS_AMX && x->amx != NULL) {
        return (key_range){from / GROUP_KEYS * GROUP_KEYS, agi_round_up(to, GROUP_KEYS)};
    }
    return (key_range){from, to};
}

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
static void run_tile(const agi_backward_job *w, agi_backward_scratch *s, const where *at, const agi_head *x,
                     int64_t i0, real *products, key_sums *keys)
{
    const int64_t span = w->schedule.span, span0 = at->span * span;
    const bool sink = w->dsink->data != NULL;
    int64_t from, to;
    agi_key_range(x, i0, agi_min(TILE_ROWS, x->seq.n_q - i0), &from, &to);
    const int64_t first = sink ? 0 : from / span;
    from = agi_max(from, span0);
    to = agi_min(to, span0 + span);
    if (from < to || (sink && at->span == 0)) {
        agi_load_tile(s, x, i0, products, at->span == first);
    }
    if (sink && at->span == 0) {
        w->y.sink[(at->b * w->call->plan->p.heads + x->h) * w->schedule.parts + at->part] +=
            sink_gradient(x, &s->tile, w->tangents);
    }
    if (from < to) {
        const key_range rows = rows_of_keys(x, from - span0, to - span0);
        agi_sums sums;
        agi_begin_sums(w, at->part, x, &sums);
        begin_keys(keys, rows.from, rows.to, x->Dk_pad, x->Dv_pad);
        if (AGI_HAS_AMX && x->amx != NULL) {
            run_on_amx(w, s, x, &sums, span0, from, to, keys->dK, keys->dV);
        } else {
            run_blocks(w, s, x, &sums, span0, from, to, keys->dK, keys->dV);
        }
    }
}

static void run_head(const agi_backward_job *w, agi_backward_scratch *s, const where *at, int64_t h,
                     key_sums *keys)
{
    const ag_problem *p = &w->call->plan->p;
    const agi_schedule *schedule = &w->schedule;
    agi_head x;
    agi_head_begin(&x, w->call, w->k, at->b, h);
    const kept_sums kept = sums_of_head(w, s, at, &x);
    const int64_t width = dq_width(w->call->plan, w->k, w->call->map);
    for (int64_t i0 = at->part * TILE_ROWS; i0 < x.seq.n_q; i0 += schedule->parts * TILE_ROWS) {
        const int64_t ni = agi_min(TILE_ROWS, x.seq.n_q - i0);
        s->tile.dQ = kept.dQ == NULL ? s->dQ : kept.dQ + i0 * width;
        if (at->span == 0) {
            memset(s->tile.dQ, 0, (size_t)((x.amx == NULL ? ni : TILE_ROWS) * width) * sizeof(real));
        }
        run_tile(w, s, at, &x, i0, kept.products, keys);
        if (at->span == schedule->n_spans - 1) {
            put_queries(w, s, &x, i0, ni);
        }
    }
    if (at->span == 0 && at->part == 0 && !agi_has(p, AG_PACKED)) { /* rows behind the sequence's end */
        agi_put_rows(w->k, agi_query_slice(&x, w->dq, p->grad_dtype, x.Dk), x.seq.n_q, p->q_len - x.seq.n_q,
                     (w->call->a.accumulate & w->acc_dq) != 0, 1, NULL, 0);
    }
}

/* Rows [from, to) of the span to the caller's arrays; those behind the sequence's end are zero. */
static void put_keys(const agi_backward_job *w, const agi_backward_scratch *s, const where *at, int64_t from,
                     int64_t to, const real *dK, const real *dV)
{
    const ag_problem *p = &w->call->plan->p;
    agi_head x;
    agi_head_begin(&x, w->call, w->k, at->b, at->hk * agi_group_of(p));
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
        if (AGI_HAS_AMX && x.amx != NULL) {
            agi_amx_put_keys(s, &x, slices[o], row0, n, accumulate[o], factor[o], rows[o], ld[o]);
        } else {
            agi_put_rows(w->k, slices[o], row0, n, accumulate[o], factor[o], rows[o], ld[o]);
        }
        agi_put_rows(w->k, slices[o], row0 + n, all - n, accumulate[o], 1, NULL, 0);
    }
}

/* The rows of the span's keys that some tile of the part sees, counted from the span's first. A window leaves most of
 * them to other parts. */
static void keys_of_part(const agi_backward_job *w, const where *at, int64_t *from, int64_t *to)
{
    const int64_t span = w->schedule.span, span0 = at->span * span;
    agi_head x;
    agi_head_begin(&x, w->call, w->k, at->b, at->hk * agi_group_of(&w->call->plan->p));
    *from = span;
    *to = 0;
    for (int64_t i0 = at->part * TILE_ROWS; i0 < x.seq.n_q; i0 += w->schedule.parts * TILE_ROWS) {
        int64_t first, end;
        agi_key_range(&x, i0, agi_min(TILE_ROWS, x.seq.n_q - i0), &first, &end);
        first = agi_max(first - span0, 0);
        end = agi_min(end - span0, span);
        if (first < end) {
            const key_range rows = rows_of_keys(&x, first, end);
            *from = agi_min(*from, rows.from);
            *to = agi_max(*to, rows.to);
        }
    }
}

/* The head by itself, if it is a small one; else false. */
static bool run_small(const agi_backward_job *w, agi_backward_scratch *s, const where *at)
{
    agi_head x;
    agi_head_begin(&x, w->call, w->k, at->b, at->hk);
    return agi_small_head(&x) && agi_small_vjp(s, &x);
}

static void run_pass(const agi_backward_job *w, agi_backward_scratch *s, const where *at)
{
    const ag_problem *p = &w->call->plan->p;
    const agi_schedule *schedule = &w->schedule;
    const int64_t Dk_pad = agi_round_up(p->dim_qk, w->k->lanes), Dv_pad = agi_round_up(p->dim_v, w->k->lanes);
    const int64_t mine = (at->chain * schedule->parts + at->part) * schedule->span;
    real *dK = schedule->parts == 1 ? s->dK : w->y.dK + mine * Dk_pad;
    real *dV = schedule->parts == 1 ? s->dV : w->y.dV + mine * Dv_pad;
    key_sums sums = {.dK = dK, .dV = dV};
    if (w->small && run_small(w, s, at)) {
        return;
    }
    if (AGI_HAS_AMX) {
        agi_amx_begin_pass(s, at->span * schedule->span);
    }
    for (int64_t h = at->hk * agi_group_of(p); h < (at->hk + 1) * agi_group_of(p); h++) {
        run_head(w, s, at, h, &sums);
    }
    if (at->part == 0) { /* the place of the sum of all parts */
        begin_keys(&sums, 0, schedule->span, Dk_pad, Dv_pad);
    }
    if (schedule->parts == 1) {
        put_keys(w, s, at, 0, schedule->span, dK, dV);
    }
}

/* ---- Work items ---- */

static void run_chain(void *arg, int64_t item, int64_t slot)
{
    const agi_backward_job *w = arg;
    for (int64_t pass = 0; pass < w->schedule.passes; pass++) {
        const where at = locate(w, item, 0, pass);
        run_pass(w, &w->y.scratch[slot], &at);
    }
}

static void run_part(void *arg, int64_t item, int64_t slot)
{
    const agi_backward_job *w = arg;
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
    const agi_backward_job *w = arg;
    const agi_schedule *schedule = &w->schedule;
    const ag_problem *p = &w->call->plan->p;
    const int64_t chunks = (schedule->span + REDUCE_ROWS - 1) / REDUCE_ROWS;
    where at = locate(w, item / chunks, 0, w->pass);
    const int64_t from = item % chunks * REDUCE_ROWS, to = agi_min(from + REDUCE_ROWS, schedule->span);
    const int64_t Dk_pad = agi_round_up(p->dim_qk, w->k->lanes), Dv_pad = agi_round_up(p->dim_v, w->k->lanes);
    const int64_t first = at.chain * schedule->parts * schedule->span;
    real *dK = w->y.dK + first * Dk_pad, *dV = w->y.dV + first * Dv_pad;
    for (at.part = 1; at.part < schedule->parts; at.part++) {
        const int64_t other = at.part * schedule->span;
        int64_t j, end;
        keys_of_part(w, &at, &j, &end);
        j = agi_max(j, from);
        const int64_t n = agi_max(0, agi_min(end, to) - j);
        add_rows(dK + j * Dk_pad, dK + (other + j) * Dk_pad, n * Dk_pad);
        add_rows(dV + j * Dv_pad, dV + (other + j) * Dv_pad, n * Dv_pad);
    }
    put_keys(w, &w->y.scratch[slot], &at, from, to, dK + from * Dk_pad, dV + from * Dv_pad);
}

static ag_status run_in_parts(agi_backward_job *w, const ag_exec *exec)
{
    const agi_schedule *schedule = &w->schedule;
    const int64_t chunks = (schedule->span + REDUCE_ROWS - 1) / REDUCE_ROWS;
    ag_status status = AG_OK;
    for (w->pass = 0; w->pass < schedule->passes && status == AG_OK; w->pass++) {
        status = agi_parallel_for(w->call->plan, exec, schedule->chains * schedule->parts, run_part, w);
        if (status == AG_OK) {
            status = agi_parallel_for(w->call->plan, exec, schedule->chains * chunks, reduce_keys, w);
        }
    }
    return status;
}

/* ---- The whole ---- */

static void name_outputs(agi_backward_job *w)
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
    agi_backward_job w = {.call = call, .k = k, .schedule = agi_schedule_of(call->plan, call->map)};
    w.tangents = call->map == AGI_VJP_JVP;
    w.small = w.schedule.parts == 1 && w.schedule.n_spans == 1 && agi_small_call(call, k);
    name_outputs(&w);
    agi_backward_lay_out(&w.y, &arena, call->plan, k, call->map);
    agi_clear_sums(&w);
    const ag_status status = w.schedule.parts > 1
                                 ? run_in_parts(&w, exec)
                                 : agi_parallel_for(call->plan, exec, w.schedule.chains, run_chain, &w);
    if (status == AG_OK) {
        agi_put_sums(&w);
    }
    return status;
}
