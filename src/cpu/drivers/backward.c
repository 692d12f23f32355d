/* The order of vjp's and vjp_jvp's work: see backward.h. */
#include "cpu/drivers/backward.h"

#include <string.h>

/* ---- Workspace ---- */

static void lay_out_tile(agi_query_tile *t, agi_arena *arena)
{
    t->L_high = agi_take_reals(arena, TILE_ROWS);
    t->L_low = agi_take_reals(arena, TILE_ROWS);
    t->D = agi_take_reals(arena, TILE_ROWS);
    t->mu = agi_take_reals(arena, TILE_ROWS);
    t->tD = agi_take_reals(arena, TILE_ROWS);
    t->Ps = agi_take(arena, TILE_ROWS, sizeof(double));
    t->sees_no_key = agi_take(arena, TILE_ROWS, 1);
}

void REAL(agi_lay_out_features)(agi_backward_scratch *s, agi_arena *arena, const ag_plan *plan, agi_map map,
                                int64_t elements)
{
    const agi_features *has = &agi_cpu_plan_of(plan)->features;
    const int64_t tangents = map == AGI_VJP_JVP;
    s->X = agi_take_reals(arena, !has->plain * elements);
    s->tX = agi_take_reals(arena, !has->plain * tangents * elements);
    s->F = agi_take_reals(arena, has->softcap * elements);
    s->G = agi_take_reals(arena, has->softcap * tangents * elements);
    s->M = agi_take_reals(arena, has->dropout * elements);
}

/* How many elements the sums of dQ of one reduction group have. */
static int64_t dq_elements(const ag_plan *plan, const agi_backward_schedule *schedule)
{
    return agi_saturating_product(agi_heads_per_kv(&plan->p), schedule->dq_rows, schedule->dq_width, 1);
}

static void lay_out_scratch(agi_backward_scratch *s, agi_arena *arena, const ag_plan *plan, agi_map map)
{
    const agi_cpu_plan *cpu = agi_cpu_plan_of(plan);
    const agi_backward_schedule *schedule = &cpu->backward[map];
    const int64_t unsplit = schedule->q_splits == 1, many_spans = schedule->n_spans > 1;
    const int64_t rows = agi_saturating_product(agi_heads_per_kv(&plan->p), plan->p.q_len, 1, 1);
    lay_out_tile(&s->tile, arena);
    s->masked_keys = agi_take(arena, schedule->block, 1);
    s->panel_masked_keys = agi_take(arena, schedule->block, 1);
    s->dK = agi_take_reals(arena, unsplit * schedule->span * cpu->Dk_pad);
    s->dV = agi_take_reals(arena, unsplit * schedule->span * cpu->Dv_pad);
    s->dQ = agi_take_reals(arena, many_spans ? unsplit * dq_elements(plan, schedule)
                                             : TILE_ROWS * schedule->dq_width);
    s->deltas = agi_take_reals(arena, unsplit * many_spans * agi_saturating_product(rows, 2, 1, 1));
    cpu->backward_ops->lay_out(s, arena, plan, map);
}

void REAL(agi_backward_lay_out)(agi_backward_layout *y, agi_arena *arena, const ag_plan *plan, agi_map map)
{
    const ag_problem *p = &plan->p;
    const agi_cpu_plan *cpu = agi_cpu_plan_of(plan);
    const agi_backward_schedule *schedule = &cpu->backward[map];
    const int64_t split = schedule->q_splits > 1, split_and_spans = split * (schedule->n_spans > 1);
    const int64_t bias = agi_has(p, AG_BIAS), full = bias && REAL(agi_bias_is_full)(p);
    y->dK = agi_take_reals(arena, split * agi_saturating_product(schedule->groups, schedule->q_splits,
                                                                 schedule->span, cpu->Dk_pad));
    y->dV = agi_take_reals(arena, split * agi_saturating_product(schedule->groups, schedule->q_splits,
                                                                 schedule->span, cpu->Dv_pad));
    y->dQ = agi_take_reals(
        arena, split_and_spans * agi_saturating_product(schedule->groups, dq_elements(plan, schedule), 1, 1));
    y->deltas = agi_take_reals(
        arena, split_and_spans * agi_saturating_product(schedule->groups, agi_heads_per_kv(p), p->q_len, 2));
    y->bias_full = agi_take_reals(arena, (bias && REAL(agi_bias_needs_copy)(p)) * agi_count(p->bias_size));
    y->bias_broadcast = agi_take(
        arena, (bias && !full) * agi_saturating_product(schedule->q_splits, agi_count(p->bias_size), 1, 1),
        sizeof(double));
    y->table = agi_take(arena,
                        agi_has(p, AG_TABLE) *
                            agi_saturating_product(p->heads, schedule->q_splits, p->table_buckets, 1),
                        sizeof(double));
    y->sink = agi_take(
        arena, agi_has(p, AG_SINK) * agi_saturating_product(p->batch, p->heads, schedule->q_splits, 1),
        sizeof(double));
    y->scratch = agi_take(arena, plan->threads, sizeof *y->scratch);
    for (int64_t slot = 0; slot < plan->threads; slot++) {
        agi_backward_scratch dry;
        lay_out_scratch(y->scratch == NULL ? &dry : &y->scratch[slot], arena, plan, map);
    }
}

/* ---- One tile of queries against one span of keys ---- */

static void run_blocks(const agi_backward_job *w, agi_backward_scratch *s, const agi_head *x,
                       const agi_sums *sums, int64_t span0, int64_t from, int64_t to, real *dK, real *dV)
{
    const agi_backward_ops *ops = w->cpu->backward_ops;
    const int64_t block = w->schedule->block;
    ops->begin_tile(s, x, from, to, s->tile.i0 + w->schedule->q_splits * TILE_ROWS);
    for (int64_t j0 = from / block * block; j0 < to && !agi_cancelled(x->call->exec); j0 += block) {
        agi_backward_key_block keys = {.j0 = agi_max(j0, from)};
        keys.nj = REAL(agi_trim_masked)(x, s->tile.i0, s->tile.ni, &keys.j0, agi_min(j0 + block, to));
        if (keys.nj > 0) {
            keys.dK = dK + (keys.j0 - span0) * x->Dk_pad;
            keys.dV = dV + (keys.j0 - span0) * x->Dv_pad;
            ops->block(s, x, sums, &keys);
        }
    }
    if (ops->end_tile != NULL) {
        ops->end_tile(s);
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

/* ---- One pass of one split of a reduction group ---- */

/* One pass: span of keys `span` of kv head hk of sequence b, which belong to the group. */
typedef struct {
    int64_t group, split, b, hk, span;
} pass_position;

static pass_position locate(const agi_backward_job *w, int64_t group, int64_t split, int64_t pass)
{
    const agi_backward_schedule *schedule = w->schedule;
    /* Groups are counted with the kv heads innermost; so are the members of a group, each with n_spans passes. */
    const int64_t groups_hk = w->call->plan->p.kv_heads / schedule->group_hk;
    const int64_t member = pass / schedule->n_spans;
    return (pass_position){group, split, group / groups_hk * schedule->group_b + member / schedule->group_hk,
                           group % groups_hk * schedule->group_hk + member % schedule->group_hk,
                           pass % schedule->n_spans};
}

/* What is kept of a head from one span of keys to the next, if there are several: the sums of dQ, and the row
 * statistics D and tD. */
typedef struct {
    real *dQ, *deltas;
} span_sums;

static span_sums sums_of_head(const agi_backward_job *w, const agi_backward_scratch *s,
                              const pass_position *at, const agi_head *x)
{
    const agi_backward_schedule *schedule = w->schedule;
    const ag_problem *p = &w->call->plan->p;
    const bool unsplit = schedule->q_splits == 1;
    const int64_t heads = agi_heads_per_kv(p), head = (unsplit ? 0 : at->group * heads) + x->h % heads;
    if (schedule->n_spans == 1) {
        return (span_sums){NULL, NULL};
    }
    return (span_sums){(unsplit ? s->dQ : w->shared.dQ) + head * schedule->dq_rows * schedule->dq_width,
                       (unsplit ? s->deltas : w->shared.deltas) + head * 2 * p->q_len};
}

/* The sums of dK and dV of one pass and one split. Rows from .. to - 1 of the span are in use; the others are not
 * zeroed yet. dK is to be multiplied by scale. */
typedef struct {
    real *dK, *dV;
    int64_t from, to;
    double scale;
} key_sums;

typedef struct {
    int64_t from, to;
} key_range;

/* Keys from .. to - 1 of a span, widened to multiples of the ops' key_step. */
static key_range rows_of_keys(const agi_backward_ops *ops, int64_t from, int64_t to)
{
    return (key_range){from / ops->key_step * ops->key_step, agi_round_up(to, ops->key_step)};
}

static void clear_rows(real *rows, int64_t from, int64_t to, int64_t width)
{
    if (from < to) {
        memset(rows + from * width, 0, (size_t)((to - from) * width) * sizeof(real));
    }
}

/* Brings rows from .. to - 1, and those between them and the rows in use, into use: zeroed just before they are
 * needed, so that they are in the cache. */
static void begin_keys(key_sums *s, int64_t from, int64_t to, int64_t Dk_pad, int64_t Dv_pad)
{
    const bool unused = s->from == s->to;
    const int64_t used_from = unused ? to : s->from, used_to = unused ? to : s->to;
    clear_rows(s->dK, from, used_from, Dk_pad);
    clear_rows(s->dV, from, used_from, Dv_pad);
    clear_rows(s->dK, used_to, to, Dk_pad);
    clear_rows(s->dV, used_to, to, Dv_pad);
    s->from = agi_min(from, used_from);
    s->to = agi_max(to, used_to);
}

/* dK is stored as scale times the sum of dZ^T Q over the heads that share its keys. If the next head has another
 * scale (none of them 0), the sum so far is converted to it. */
static void set_scale(key_sums *s, double scale, int64_t Dk_pad)
{
    if (s->from < s->to && scale != s->scale) {
        for (int64_t e = s->from * Dk_pad; e < s->to * Dk_pad; e++) {
            s->dK[e] = (real)((double)s->dK[e] * s->scale / scale);
        }
    }
    s->scale = scale;
}

/* One tile of queries against the keys of the span. Nothing is loaded if the tile sees none of them. */
static void run_tile(const agi_backward_job *w, agi_backward_scratch *s, const pass_position *at,
                     const agi_head *x, int64_t i0, real *deltas, key_sums *keys)
{
    const int64_t span = w->schedule->span, span0 = at->span * span;
    const bool sink = w->dsink->data != NULL;
    int64_t from, to;
    REAL(agi_key_range)(x, i0, agi_min(TILE_ROWS, x->seq.n_q - i0), &from, &to);
    const int64_t first_span = sink ? 0 : from / span;
    from = agi_max(from, span0);
    to = agi_min(to, span0 + span);
    if (from < to || (sink && at->span == 0)) {
        REAL(agi_load_tile)(s, x, i0, deltas, at->span == first_span);
    }
    if (sink && at->span == 0) {
        w->shared.sink[(at->b * w->call->plan->p.heads + x->h) * w->schedule->q_splits + at->split] +=
            sink_gradient(x, &s->tile, w->tangents);
    }
    if (from < to) {
        const key_range rows = rows_of_keys(w->cpu->backward_ops, from - span0, to - span0);
        agi_sums sums;
        REAL(agi_begin_sums)(w, at->split, x, &sums);
        begin_keys(keys, rows.from, rows.to, x->Dk_pad, x->Dv_pad);
        run_blocks(w, s, x, &sums, span0, from, to, keys->dK, keys->dV);
    }
}

/* All tiles of a head. dQ is rounded to its dtype once, after the last span. */
static void run_head(const agi_backward_job *w, agi_backward_scratch *s, const pass_position *at,
                     const agi_head *x, key_sums *keys)
{
    const ag_problem *p = &w->call->plan->p;
    const agi_backward_schedule *schedule = w->schedule;
    const agi_backward_ops *ops = w->cpu->backward_ops;
    const span_sums kept = sums_of_head(w, s, at, x);
    const agi_slice dq = agi_query_slice(x, w->dq, p->grad_dtype, x->Dk);
    const bool accumulate = (w->call->a.accumulate & w->acc_dq) != 0;
    for (int64_t i0 = at->split * TILE_ROWS; i0 < x->seq.n_q && !agi_cancelled(x->call->exec);
         i0 += schedule->q_splits * TILE_ROWS) {
        const int64_t ni = agi_min(TILE_ROWS, x->seq.n_q - i0), rows = agi_round_up(ni, ops->dq_row_step);
        s->tile.dQ = kept.dQ == NULL ? s->dQ : kept.dQ + i0 * schedule->dq_width;
        if (at->span == 0) {
            memset(s->tile.dQ, 0, (size_t)(rows * schedule->dq_width) * sizeof(real));
        }
        run_tile(w, s, at, x, i0, kept.deltas, keys);
        if (at->span == schedule->n_spans - 1) {
            ops->store_dq(s, x, dq, i0, ni, accumulate);
        }
    }
    if (at->span == 0 && at->split == 0 &&
        !agi_has(p, AG_PACKED)) { /* padding rows after the end of the sequence */
        agi_store_rows(x->k, dq, x->seq.n_q, p->q_len - x->seq.n_q, accumulate, 1, NULL, 0);
    }
}

/* Stores rows from .. to - 1 of the span's sums in the caller's dK and dV; padding rows after the end of the sequence
 * become zero. dK is multiplied by the scale of the last head that was added: see set_scale. */
static void store_keys(const agi_backward_job *w, const agi_backward_scratch *s, const pass_position *at,
                       int64_t from, int64_t to, const real *dK, const real *dV)
{
    const ag_problem *p = &w->call->plan->p;
    agi_head x;
    REAL(agi_head_begin)(&x, w->call, at->b, (at->hk + 1) * agi_heads_per_kv(p) - 1);
    const int64_t row0 = at->span * w->schedule->span + from;
    const int64_t end = agi_has(p, AG_PACKED) ? x.seq.n_k : p->kv_len;
    const int64_t n = agi_max(0, agi_min(row0 + to - from, x.seq.n_k) - row0);
    const int64_t n_padded = agi_max(n, agi_min(row0 + to - from, end) - row0);
    agi_slice slices[2] = {agi_key_slice(&x, w->dk, x.Dk), agi_key_slice(&x, w->dv, x.Dv)};
    const bool accumulate[2] = {(w->call->a.accumulate & w->acc_dk) != 0,
                                (w->call->a.accumulate & w->acc_dv) != 0};
    const real *rows[2] = {dK, dV};
    const int64_t ld[2] = {x.Dk_pad, x.Dv_pad};
    const double factor[2] = {x.scale, 1};
    for (int o = 0; o < 2; o++) {
        slices[o].dtype = p->grad_dtype;
        w->cpu->backward_ops->store_dkv(s, &x, slices[o], row0, n, accumulate[o], factor[o], rows[o], ld[o]);
        agi_store_rows(x.k, slices[o], row0 + n, n_padded - n, accumulate[o], 1, NULL, 0);
    }
}

/* The keys of the span that some tile of this split sees, counted from the span's first. With a window, a split
 * sees few of them. */
static void keys_of_split(const agi_backward_job *w, const pass_position *at, int64_t *from, int64_t *to)
{
    const int64_t span = w->schedule->span, span0 = at->span * span;
    agi_head x;
    REAL(agi_head_begin)(&x, w->call, at->b, at->hk * agi_heads_per_kv(&w->call->plan->p));
    *from = span;
    *to = 0;
    for (int64_t i0 = at->split * TILE_ROWS; i0 < x.seq.n_q; i0 += w->schedule->q_splits * TILE_ROWS) {
        int64_t first, end;
        REAL(agi_key_range)(&x, i0, agi_min(TILE_ROWS, x.seq.n_q - i0), &first, &end);
        first = agi_max(first - span0, 0);
        end = agi_min(end - span0, span);
        if (first < end) {
            const key_range rows = rows_of_keys(w->cpu->backward_ops, first, end);
            *from = agi_min(*from, rows.from);
            *to = agi_max(*to, rows.to);
        }
    }
}

static void run_pass(const agi_backward_job *w, agi_backward_scratch *s, const pass_position *at)
{
    const ag_problem *p = &w->call->plan->p;
    const agi_backward_schedule *schedule = w->schedule;
    const agi_backward_ops *ops = w->cpu->backward_ops;
    const int64_t Dk_pad = w->cpu->Dk_pad, Dv_pad = w->cpu->Dv_pad;
    const int64_t first_row = (at->group * schedule->q_splits + at->split) * schedule->span;
    key_sums sums = {.dK = schedule->q_splits == 1 ? s->dK : w->shared.dK + first_row * Dk_pad,
                     .dV = schedule->q_splits == 1 ? s->dV : w->shared.dV + first_row * Dv_pad};
    if (ops->begin_pass != NULL) {
        ops->begin_pass(s, at->span * schedule->span);
    }
    for (int64_t h = at->hk * agi_heads_per_kv(p); h < (at->hk + 1) * agi_heads_per_kv(p); h++) {
        agi_head x;
        REAL(agi_head_begin)(&x, w->call, at->b, h);
        if (w->small && ops->small_head(s, &x)) {
            return; /* small heads do not share keys with others */
        }
        set_scale(&sums, x.scale, Dk_pad);
        run_head(w, s, at, &x, &sums);
    }
    if (at->split == 0) { /* the other splits are added to the sums of the first, so these need every row */
        begin_keys(&sums, 0, schedule->span, Dk_pad, Dv_pad);
    }
    if (schedule->q_splits == 1) {
        store_keys(w, s, at, 0, schedule->span, sums.dK, sums.dV);
    }
}

/* ---- Work items ---- */

static void run_group(void *arg, int64_t item, int64_t slot)
{
    const agi_backward_job *w = arg;
    for (int64_t pass = 0; pass < w->schedule->passes && !agi_cancelled(w->call->exec); pass++) {
        const pass_position at = locate(w, item, 0, pass);
        run_pass(w, &w->shared.scratch[slot], &at);
    }
}

static void run_split(void *arg, int64_t item, int64_t slot)
{
    const agi_backward_job *w = arg;
    const pass_position at = locate(w, item / w->schedule->q_splits, item % w->schedule->q_splits, w->pass);
    run_pass(w, &w->shared.scratch[slot], &at);
}

static void add_rows(real *to, const real *from, int64_t n)
{
    for (int64_t e = 0; e < n; e++) {
        to[e] += from[e];
    }
}

enum { REDUCE_ROWS = 64 }; /* keys of a work item */

/* Adds the sums of all splits, in order, to those of the first, for REDUCE_ROWS keys; then stores them. */
static void reduce_keys(void *arg, int64_t item, int64_t slot)
{
    const agi_backward_job *w = arg;
    const agi_backward_schedule *schedule = w->schedule;
    const int64_t chunks = (schedule->span + REDUCE_ROWS - 1) / REDUCE_ROWS;
    pass_position at = locate(w, item / chunks, 0, w->pass);
    const int64_t from = item % chunks * REDUCE_ROWS, to = agi_min(from + REDUCE_ROWS, schedule->span);
    const int64_t Dk_pad = w->cpu->Dk_pad, Dv_pad = w->cpu->Dv_pad;
    const int64_t first = at.group * schedule->q_splits * schedule->span;
    real *dK = w->shared.dK + first * Dk_pad, *dV = w->shared.dV + first * Dv_pad;
    for (at.split = 1; at.split < schedule->q_splits; at.split++) {
        const int64_t other = at.split * schedule->span;
        int64_t j, end;
        keys_of_split(w, &at, &j, &end);
        j = agi_max(j, from);
        const int64_t n = agi_max(0, agi_min(end, to) - j);
        add_rows(dK + j * Dk_pad, dK + (other + j) * Dk_pad, n * Dk_pad);
        add_rows(dV + j * Dv_pad, dV + (other + j) * Dv_pad, n * Dv_pad);
    }
    store_keys(w, &w->shared.scratch[slot], &at, from, to, dK + from * Dk_pad, dV + from * Dv_pad);
}

static ag_status run_splits(agi_backward_job *w)
{
    const agi_backward_schedule *schedule = w->schedule;
    const agi_call *call = w->call;
    const int64_t chunks = (schedule->span + REDUCE_ROWS - 1) / REDUCE_ROWS;
    const int64_t splits = schedule->groups * schedule->q_splits;
    const double added = (double)(splits * schedule->span * (w->cpu->Dk_pad + w->cpu->Dv_pad));
    const agi_loop pass = {splits, w->cpu->cost[call->map] / (double)schedule->passes, run_split, w};
    const agi_loop sums = {schedule->groups * chunks, 4 * added, reduce_keys, w}; /* read from other caches */
    ag_status status = AG_OK;
    for (w->pass = 0; w->pass < schedule->passes && status == AG_OK; w->pass++) {
        status = agi_parallel_for(call->plan, call->exec, &pass);
        if (status == AG_OK) {
            status = agi_parallel_for(call->plan, call->exec, &sums);
        }
    }
    return status;
}

/* ---- The whole map ---- */

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

ag_status REAL(agi_backward_run)(const agi_call *call, void *memory)
{
    const agi_cpu_plan *cpu = agi_cpu_plan_of(call->plan);
    const agi_backward_schedule *schedule = &cpu->backward[call->map];
    const agi_backward_ops *ops = cpu->backward_ops;
    agi_arena arena = agi_arena_begin(memory);
    agi_backward_job w = {.call = call, .cpu = cpu, .schedule = schedule};
    w.tangents = call->map == AGI_VJP_JVP;
    w.small =
        schedule->q_splits == 1 && schedule->n_spans == 1 && ops->small_call != NULL && ops->small_call(call);
    name_outputs(&w);
    REAL(agi_backward_lay_out)(&w.shared, &arena, call->plan, call->map);
    REAL(agi_clear_sums)(&w);
    const agi_loop groups = {schedule->groups, cpu->cost[call->map], run_group, &w};
    const ag_status status =
        schedule->q_splits > 1 ? run_splits(&w) : agi_parallel_for(call->plan, call->exec, &groups);
    if (status == AG_OK) {
        REAL(agi_store_sums)(&w);
    }
    return status;
}
