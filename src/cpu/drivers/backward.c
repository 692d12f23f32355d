/* The order of vjp's and vjp_jvp's work: see backward.h. */
#include "cpu/drivers/backward.h"

#include <string.h>

#include "core/pause.h"

enum { REDUCE_ROWS = 64 }; /* keys of a work item that adds up splits */

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

/* Do several threads sum dK and dV of a span, each of them for a split of the queries? */
static bool splits_are_shared(const agi_backward_schedule *schedule)
{
    return schedule->shared && !schedule->chained && schedule->max.q_splits > 1;
}

static void lay_out_scratch(agi_backward_scratch *s, agi_arena *arena, const ag_plan *plan, agi_map map)
{
    const agi_cpu_plan *cpu = agi_cpu_plan_of(plan);
    const agi_backward_schedule *schedule = &cpu->backward[map];
    const agi_backward_cut *max = &schedule->max;
    const int64_t alone = !schedule->shared, many_spans = max->n_spans > 1, many_splits = max->q_splits > 1;
    const int64_t own_keys = !splits_are_shared(schedule);
    const int64_t rows = agi_saturating_product(agi_heads_per_kv(&plan->p), plan->p.q_len, 1, 1);
    const int64_t tile = TILE_ROWS * schedule->dq_width;
    lay_out_tile(&s->tile, arena);
    s->masked_keys = agi_take(arena, max->block, 1);
    s->panel_masked_keys = agi_take(arena, max->block, 1);
    s->dK = agi_take_reals(arena, own_keys * max->span * cpu->Dk_pad);
    s->dV = agi_take_reals(arena, own_keys * max->span * cpu->Dv_pad);
    s->split_dK = agi_take_reals(arena, (own_keys && many_splits) * max->span * cpu->Dk_pad);
    s->split_dV = agi_take_reals(arena, (own_keys && many_splits) * max->span * cpu->Dv_pad);
    s->dQ = agi_take_reals(arena, many_spans ? alone * dq_elements(plan, schedule) : tile);
    s->deltas = agi_take_reals(arena, alone * many_spans * agi_saturating_product(rows, 2, 1, 1));
    cpu->backward_ops->lay_out(s, arena, plan, map);
}

/* Tiles of queries of all groups. */
static int64_t chain_tiles(const ag_problem *p, int64_t groups)
{
    return agi_saturating_product(groups, agi_heads_per_kv(p), (p->q_len + TILE_ROWS - 1) / TILE_ROWS, 1);
}

/* What the splits of all groups share. */
static void lay_out_splits(agi_backward_layout *y, agi_arena *arena, const ag_plan *plan, agi_map map)
{
    const agi_cpu_plan *cpu = agi_cpu_plan_of(plan);
    const agi_backward_schedule *schedule = &cpu->backward[map];
    const agi_backward_cut *max = &schedule->max;
    const int64_t keys = splits_are_shared(schedule), dq = schedule->shared && max->n_spans > 1;
    const int64_t chains = REAL(agi_chains_of)(plan, schedule);
    const int64_t at_once = schedule->chained ? chains : schedule->groups; /* groups that have sums */
    const int64_t sums = agi_saturating_product(schedule->groups, max->q_splits, max->key_splits, max->span);
    y->dK = agi_take_reals(arena, keys * agi_saturating_product(sums, cpu->Dk_pad, 1, 1));
    y->dV = agi_take_reals(arena, keys * agi_saturating_product(sums, cpu->Dv_pad, 1, 1));
    y->dQ = agi_take_reals(
        arena, dq * agi_saturating_product(at_once, max->key_splits, dq_elements(plan, schedule), 1));
    y->deltas = agi_take_reals(
        arena, dq * agi_saturating_product(at_once, agi_heads_per_kv(&plan->p), plan->p.q_len, 2));
    y->spans_done =
        agi_take(arena, schedule->chained * chain_tiles(&plan->p, schedule->groups), sizeof(atomic_int));
    y->chains = agi_take(arena, chains, sizeof *y->chains);
    y->group_before = agi_take(arena, schedule->chained * schedule->groups, sizeof *y->group_before);
}

void REAL(agi_backward_lay_out)(agi_backward_layout *y, agi_arena *arena, const ag_plan *plan, agi_map map)
{
    const ag_problem *p = &plan->p;
    const int64_t parts = agi_cpu_plan_of(plan)->backward[map].parts;
    const int64_t bias = agi_has(p, AG_BIAS), full = bias && REAL(agi_bias_is_full)(p);
    lay_out_splits(y, arena, plan, map);
    y->bias_full = agi_take_reals(arena, (bias && REAL(agi_bias_needs_copy)(p)) * agi_count(p->bias_size));
    y->bias_broadcast =
        agi_take(arena, (bias && !full) * agi_saturating_product(parts, agi_count(p->bias_size), 1, 1),
                 sizeof(double));
    y->table =
        agi_take(arena, agi_has(p, AG_TABLE) * agi_saturating_product(p->heads, parts, p->table_buckets, 1),
                 sizeof(double));
    y->sink = agi_take(arena, agi_has(p, AG_SINK) * agi_saturating_product(p->batch, p->heads, parts, 1),
                       sizeof(double));
    y->scratch = agi_take(arena, plan->threads, sizeof *y->scratch);
    for (int64_t slot = 0; slot < plan->threads; slot++) {
        agi_backward_scratch dry;
        lay_out_scratch(y->scratch == NULL ? &dry : &y->scratch[slot], arena, plan, map);
    }
}

/* ---- One tile of queries against one span of keys ---- */

static void run_blocks(const agi_backward_cut *cut, agi_backward_scratch *s, const agi_head *x,
                       const agi_sums *sums, int64_t span0, int64_t from, int64_t to, real *dK, real *dV)
{
    const int64_t block = cut->block;
    for (int64_t j0 = from / block * block; j0 < to && !agi_cancelled(x->call->exec); j0 += block) {
        agi_backward_key_block keys = {.j0 = agi_max(j0, from)};
        keys.nj = REAL(agi_trim_masked)(x, s->tile.i0, s->tile.ni, &keys.j0, agi_min(j0 + block, to));
        if (keys.nj > 0) {
            keys.dK = dK + (keys.j0 - span0) * x->Dk_pad;
            keys.dV = dV + (keys.j0 - span0) * x->Dv_pad;
            x->cpu->backward_ops->block(s, x, sums, &keys);
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

/* ---- One part of a pass of a reduction group ---- */

/* A pass: key_splits spans of keys, from `first_span` on, of kv head hk of sequence b, which belong to the group. Its
 * parts: span first_span + k with the tiles of one split of the queries. */
typedef struct {
    int64_t group, b, hk, first_span;
    agi_backward_cut cut; /* of the sequence */
    int64_t k, split;
    int64_t chain; /* that the group is at, if chained */
} pass_position;

static agi_backward_cut cut_of(const agi_backward_job *w, int64_t b)
{
    agi_sequence seq;
    if (!(w->call->plan->flags & AG_INVARIANT)) {
        return w->schedule->max;
    }
    agi_sequence_of(&seq, w->call, b);
    return REAL(agi_invariant_cut)(w->cpu, &w->call->plan->p, w->call->map, seq.n_q, seq.n_k);
}

static pass_position locate(const agi_backward_job *w, int64_t group, int64_t pass)
{
    const agi_backward_schedule *schedule = w->schedule;
    /* Groups are counted with the kv heads innermost; so are the members of a group, each with several passes. */
    const int64_t groups_hk = w->call->plan->p.kv_heads / schedule->group_hk;
    const int64_t member = pass / schedule->member_passes;
    pass_position at = {.group = group,
                        .b = group / groups_hk * schedule->group_b + member / schedule->group_hk,
                        .hk = group % groups_hk * schedule->group_hk + member % schedule->group_hk};
    at.cut = cut_of(w, at.b);
    at.first_span = pass % schedule->member_passes * at.cut.key_splits;
    return at;
}

/* Goes to part number `part` of the pass: spans innermost, as they differ in length if causal, and each thread should
 * have long and short ones. False if the sequence has no such part. */
static bool select_part(pass_position *at, int64_t part)
{
    at->k = part % at->cut.key_splits;
    at->split = part / at->cut.key_splits;
    return at->split < at->cut.q_splits && at->first_span + at->k < at->cut.n_spans;
}

/* The number of the part among those that sum separately. */
static int64_t part_of(const agi_backward_job *w, const pass_position *at)
{
    return w->schedule->parts > 1 ? at->split * at->cut.key_splits + at->k : 0;
}

static int64_t first_key(const pass_position *at)
{
    return (at->first_span + at->k) * at->cut.span;
}

static bool is_first_span(const pass_position *at)
{
    return at->first_span + at->k == 0;
}

static bool is_last_span(const pass_position *at)
{
    return at->first_span + at->k == at->cut.n_spans - 1;
}

/* The keys of the span that the tile at query i0 sees, as keys of the sequence; false if there are none. */
static bool keys_of_tile(const pass_position *at, const agi_head *x, int64_t i0, int64_t *from, int64_t *to)
{
    REAL(agi_key_range)(x, i0, agi_min(TILE_ROWS, x->seq.n_q - i0), from, to);
    *from = agi_max(*from, first_key(at));
    *to = agi_min(*to, first_key(at) + at->cut.span);
    return *from < *to;
}

/* What is kept of a head from one span of keys to the next, if there are several: the sums of dQ, and the row
 * statistics D and tD. If a pass has several spans, which run at the same time, each has sums of dQ of its own. */
typedef struct {
    real *dQ, *deltas;
} span_sums;

static span_sums sums_of_head(const agi_backward_job *w, const agi_backward_scratch *s,
                              const pass_position *at, const agi_head *x)
{
    const agi_backward_schedule *schedule = w->schedule;
    const int64_t heads = agi_heads_per_kv(&w->call->plan->p), head = x->h % heads,
                  Nq = w->call->plan->p.q_len;
    const int64_t size = schedule->dq_rows * schedule->dq_width;
    if (schedule->max.n_spans == 1) {
        return (span_sums){NULL, NULL};
    }
    if (!schedule->shared) {
        return (span_sums){s->dQ + head * size, s->deltas + head * 2 * Nq};
    }
    const int64_t group = schedule->chained ? at->chain : at->group;
    const int64_t set = group * schedule->max.key_splits + at->k;
    return (span_sums){w->shared.dQ + (set * heads + head) * size,
                       w->shared.deltas + (group * heads + head) * 2 * Nq};
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

/* How a tile gets D and tD: the first span that it sees computes and keeps them, later ones read them. Those that may
 * run at the same time as the first compute them too. */
static void load_tile(agi_backward_scratch *s, const agi_head *x, const pass_position *at, int64_t i0,
                      int64_t first_span, real *deltas)
{
    const bool first = at->first_span + at->k == first_span;
    const bool unknown = !first && at->cut.key_splits > 1 && first_span >= at->first_span;
    REAL(agi_load_tile)(s, x, i0, unknown ? NULL : deltas, first);
}

/* The first query of the tile of the split that is run first; n_q or more if the split has no tile. */
static int64_t first_tile(const agi_backward_job *w, const pass_position *at, const agi_head *x)
{
    const int64_t step = at->cut.q_splits * TILE_ROWS, i0 = at->split * TILE_ROWS;
    return w->schedule->backwards && i0 < x->seq.n_q ? i0 + (x->seq.n_q - 1 - i0) / step * step : i0;
}

/* That of the tile that is run after the one at query i0; n_q or more if that is the last. */
static int64_t next_tile(const agi_backward_job *w, const pass_position *at, const agi_head *x, int64_t i0)
{
    const int64_t step = at->cut.q_splits * TILE_ROWS;
    if (!w->schedule->backwards) {
        return i0 + step;
    }
    return i0 < step ? x->seq.n_q : i0 - step;
}

/* One tile of queries against the keys of the span. Nothing is loaded if the tile sees none of them. */
static void run_tile(const agi_backward_job *w, agi_backward_scratch *s, const pass_position *at,
                     const agi_head *x, int64_t i0, real *deltas, key_sums *keys)
{
    const agi_backward_ops *ops = w->cpu->backward_ops;
    const int64_t span0 = first_key(at), part = part_of(w, at);
    const bool sink = w->dsink->data != NULL;
    int64_t first, end, from, to;
    REAL(agi_key_range)(x, i0, agi_min(TILE_ROWS, x->seq.n_q - i0), &first, &end);
    const bool sees = keys_of_tile(at, x, i0, &from, &to);
    if (sees || (sink && is_first_span(at))) {
        load_tile(s, x, at, i0, sink ? 0 : first / at->cut.span, deltas);
    }
    if (sink && is_first_span(at)) {
        w->shared.sink[(at->b * w->call->plan->p.heads + x->h) * w->schedule->parts + part] +=
            sink_gradient(x, &s->tile, w->tangents);
    }
    if (sees) {
        const key_range rows = rows_of_keys(ops, from - span0, to - span0);
        agi_sums sums;
        REAL(agi_begin_sums)(w, part, x, &sums);
        begin_keys(keys, rows.from, rows.to, x->Dk_pad, x->Dv_pad);
        ops->begin_tile(s, x, from, to, next_tile(w, at, x, i0));
        run_blocks(&at->cut, s, x, &sums, span0, from, to, keys->dK, keys->dV);
        if (ops->end_tile != NULL) {
            ops->end_tile(s);
        }
    }
}

static void add_rows(real *to, const real *from, int64_t n)
{
    for (int64_t e = 0; e < n; e++) {
        to[e] += from[e];
    }
}

/* The elements of the sums of dQ of the tile at query i0. */
static int64_t dq_of_tile(const agi_backward_job *w, const agi_head *x, int64_t i0)
{
    const int64_t ni = agi_min(TILE_ROWS, x->seq.n_q - i0);
    return agi_round_up(ni, w->cpu->backward_ops->dq_row_step) * w->schedule->dq_width;
}

static void store_dq(const agi_backward_job *w, agi_backward_scratch *s, const agi_head *x, int64_t i0,
                     real *dQ)
{
    const agi_slice dq = agi_query_slice(x, w->dq, w->call->plan->p.grad_dtype, x->Dk);
    s->tile.dQ = dQ;
    w->cpu->backward_ops->store_dq(s, x, dq, i0, agi_min(TILE_ROWS, x->seq.n_q - i0),
                                   (w->call->a.accumulate & w->acc_dq) != 0);
}

/* A tile and its dQ. If a pass has several spans, they sum it apart, and reduce_dq adds the sums in order of the spans.
 * dQ is rounded to its dtype once, after the last span. */
static void run_tile_and_dq(const agi_backward_job *w, agi_backward_scratch *s, const pass_position *at,
                            const agi_head *x, int64_t i0, key_sums *keys)
{
    const span_sums kept = sums_of_head(w, s, at, x);
    int64_t from, to;
    s->tile.dQ = kept.dQ == NULL ? s->dQ : kept.dQ + i0 * w->schedule->dq_width;
    if (at->k > 0 ? keys_of_tile(at, x, i0, &from, &to) : is_first_span(at)) {
        memset(s->tile.dQ, 0, (size_t)dq_of_tile(w, x, i0) * sizeof(real));
    }
    run_tile(w, s, at, x, i0, kept.deltas, keys);
    if (is_last_span(at) && at->cut.key_splits == 1) {
        store_dq(w, s, x, i0, s->tile.dQ);
    }
}

/* ---- A chain: the spans of a head at the same time, each with all tiles of queries ---- */

/* The spans that take part in dQ of a tile: those of the keys that it sees; of a tile that sees none, and for the
 * sink, also the first. */
typedef struct {
    int64_t first, last;
} span_range;

static span_range spans_of_tile(const agi_backward_job *w, const pass_position *at, const agi_head *x,
                                int64_t i0)
{
    int64_t from, to;
    REAL(agi_key_range)(x, i0, agi_min(TILE_ROWS, x->seq.n_q - i0), &from, &to);
    if (from >= to) {
        return (span_range){0, 0};
    }
    return (span_range){w->dsink->data != NULL ? 0 : from / at->cut.span, (to - 1) / at->cut.span};
}

/* How many spans of a group are done with a tile of its head number h, counted from the first span. After the last one
 * that takes part in the tile, it is the number of all spans. */
static atomic_int *spans_done(const agi_backward_job *w, int64_t group, int64_t h, int64_t i0)
{
    const ag_problem *p = &w->call->plan->p;
    const int64_t heads = agi_heads_per_kv(p), tiles = (p->q_len + TILE_ROWS - 1) / TILE_ROWS;
    return w->shared.spans_done + (group * heads + h % heads) * tiles + i0 / TILE_ROWS;
}

/* Waits until n spans are done with a tile; false if the call is cancelled meanwhile. */
static bool wait_for_spans(atomic_int *done, int64_t n, agi_exec *exec)
{
    for (int64_t turns = 0; atomic_load_explicit(done, memory_order_acquire) < n; turns++) {
        if (agi_cancelled(exec)) {
            return false;
        }
        agi_wait_a_turn(turns);
    }
    return true;
}

/* Waits until the chain's memory for a tile is free: the groups before must be done with it. A group waits for those
 * before it in the same way, but only if its sequence has the tile. */
static bool wait_for_groups(const agi_backward_job *w, const pass_position *at, const agi_head *x, int64_t i0)
{
    for (int64_t g = w->shared.group_before[at->group]; g >= 0; g = w->shared.group_before[g]) {
        const pass_position before = locate(w, g, 0);
        agi_sequence seq;
        agi_sequence_of(&seq, w->call, before.b);
        if (i0 < seq.n_q) {
            return wait_for_spans(spans_done(w, g, x->h, i0), before.cut.n_spans, x->call->exec);
        }
    }
    return true;
}

/* A tile of one span of a chain: dQ is added to what the spans before it have summed; the last one stores it. */
static void run_chained_tile(const agi_backward_job *w, agi_backward_scratch *s, const pass_position *at,
                             const agi_head *x, int64_t i0, key_sums *keys)
{
    const span_range spans = spans_of_tile(w, at, x, i0);
    const span_sums kept = sums_of_head(w, s, at, x);
    atomic_int *const done = spans_done(w, at->group, x->h, i0);
    const int64_t span = at->first_span;
    if (span < spans.first || span > spans.last ||
        !(span == spans.first ? wait_for_groups(w, at, x, i0) : wait_for_spans(done, span, x->call->exec))) {
        return;
    }
    s->tile.dQ = kept.dQ + i0 * w->schedule->dq_width;
    if (span == spans.first) {
        memset(s->tile.dQ, 0, (size_t)dq_of_tile(w, x, i0) * sizeof(real));
    }
    run_tile(w, s, at, x, i0, kept.deltas, keys);
    if (span == spans.last) {
        store_dq(w, s, x, i0, s->tile.dQ);
    }
    atomic_store_explicit(done, (int)(span == spans.last ? at->cut.n_spans : span + 1), memory_order_release);
}

/* ---- One part ---- */

/* The split's tiles of a head. Those of chains from the last to the first: if causal, all spans see the last one, so
 * that they follow each other at a distance of one tile. */
static void run_head(const agi_backward_job *w, agi_backward_scratch *s, const pass_position *at,
                     const agi_head *x, key_sums *keys)
{
    for (int64_t i0 = first_tile(w, at, x); i0 < x->seq.n_q && !agi_cancelled(x->call->exec);
         i0 = next_tile(w, at, x, i0)) {
        (w->schedule->chained ? run_chained_tile : run_tile_and_dq)(w, s, at, x, i0, keys);
    }
}

/* Rows of dQ after the end of the sequence become zero. */
static void clear_padding(const agi_backward_job *w, const agi_head *x)
{
    const ag_problem *p = &w->call->plan->p;
    if (!agi_has(p, AG_PACKED)) {
        agi_store_rows(x->k, agi_query_slice(x, w->dq, p->grad_dtype, x->Dk), x->seq.n_q,
                       p->q_len - x->seq.n_q, (w->call->a.accumulate & w->acc_dq) != 0, 1, NULL, 0);
    }
}

/* Stores rows from .. to - 1 of the span's sums in the caller's dK and dV; after the last key of the sequence padding
 * rows become zero. dK is multiplied by the scale of the last head that was added: see set_scale. */
static void store_keys(const agi_backward_job *w, const agi_backward_scratch *s, const pass_position *at,
                       int64_t from, int64_t to, const real *dK, const real *dV)
{
    const ag_problem *p = &w->call->plan->p;
    agi_head x;
    REAL(agi_head_begin)(&x, w->call, at->b, (at->hk + 1) * agi_heads_per_kv(p) - 1);
    const int64_t row0 = first_key(at) + from;
    const int64_t n = agi_max(0, agi_min(row0 + to - from, x.seq.n_k) - row0);
    const bool padding = is_last_span(at) && to == at->cut.span && !agi_has(p, AG_PACKED);
    agi_slice slices[2] = {agi_key_slice(&x, w->dk, x.Dk), agi_key_slice(&x, w->dv, x.Dv)};
    const bool accumulate[2] = {(w->call->a.accumulate & w->acc_dk) != 0,
                                (w->call->a.accumulate & w->acc_dv) != 0};
    const real *rows[2] = {dK, dV};
    const int64_t ld[2] = {x.Dk_pad, x.Dv_pad};
    const double factor[2] = {x.scale, 1};
    for (int o = 0; o < 2; o++) {
        slices[o].dtype = p->grad_dtype;
        w->cpu->backward_ops->store_dkv(s, &x, slices[o], row0, n, accumulate[o], factor[o], rows[o], ld[o]);
        if (padding) {
            agi_store_rows(x.k, slices[o], x.seq.n_k, p->kv_len - x.seq.n_k, accumulate[o], 1, NULL, 0);
        }
    }
}

/* The keys of the span that some tile of this split sees, counted from the span's first. With a window, a split
 * sees few of them. */
static void keys_of_split(const agi_backward_job *w, const pass_position *at, int64_t *from, int64_t *to)
{
    agi_head x;
    REAL(agi_head_begin)(&x, w->call, at->b, at->hk * agi_heads_per_kv(&w->call->plan->p));
    *from = at->cut.span;
    *to = 0;
    for (int64_t i0 = at->split * TILE_ROWS; i0 < x.seq.n_q; i0 += at->cut.q_splits * TILE_ROWS) {
        int64_t first, end;
        if (keys_of_tile(at, &x, i0, &first, &end)) {
            const key_range rows =
                rows_of_keys(w->cpu->backward_ops, first - first_key(at), end - first_key(at));
            *from = agi_min(*from, rows.from);
            *to = agi_max(*to, rows.to);
        }
    }
}

/* Where a part sums dK and dV. */
static key_sums sums_of_keys(const agi_backward_job *w, const agi_backward_scratch *s,
                             const pass_position *at)
{
    const agi_backward_schedule *schedule = w->schedule;
    if (splits_are_shared(schedule)) {
        const int64_t set = at->group * schedule->max.q_splits + at->split;
        const int64_t row = (set * schedule->max.key_splits + at->k) * schedule->max.span;
        return (key_sums){.dK = w->shared.dK + row * w->cpu->Dk_pad,
                          .dV = w->shared.dV + row * w->cpu->Dv_pad};
    }
    return at->split == 0 ? (key_sums){.dK = s->dK, .dV = s->dV}
                          : (key_sums){.dK = s->split_dK, .dV = s->split_dV};
}

/* Runs a part; returns where its sums of dK and dV are. Split 0 has sums for all rows of the span, as those of the
 * other splits are added to them. */
static key_sums run_part(const agi_backward_job *w, agi_backward_scratch *s, const pass_position *at)
{
    const ag_problem *p = &w->call->plan->p;
    const agi_backward_ops *ops = w->cpu->backward_ops;
    const int64_t Dk_pad = w->cpu->Dk_pad, Dv_pad = w->cpu->Dv_pad;
    key_sums sums = sums_of_keys(w, s, at);
    if (ops->begin_pass != NULL) {
        ops->begin_pass(s, first_key(at));
    }
    for (int64_t h = at->hk * agi_heads_per_kv(p); h < (at->hk + 1) * agi_heads_per_kv(p); h++) {
        agi_head x;
        REAL(agi_head_begin)(&x, w->call, at->b, h);
        set_scale(&sums, x.scale, Dk_pad);
        run_head(w, s, at, &x, &sums);
        if (is_first_span(at) && at->split == 0) {
            clear_padding(w, &x);
        }
    }
    if (at->split == 0) {
        begin_keys(&sums, 0, at->cut.span, Dk_pad, Dv_pad);
    }
    return sums;
}

/* ---- Work items ---- */

/* Runs a pass of one span, its splits one after another. None if the sequence has fewer passes than the longest. */
static void run_pass(const agi_backward_job *w, agi_backward_scratch *s, pass_position *at)
{
    const int64_t Dk_pad = w->cpu->Dk_pad, Dv_pad = w->cpu->Dv_pad;
    agi_head x;
    if (w->small) { /* small heads do not share keys with others */
        REAL(agi_head_begin)(&x, w->call, at->b, at->hk);
        if (w->cpu->backward_ops->small_head(s, &x)) {
            return;
        }
    }
    if (at->first_span >= at->cut.n_spans) {
        return;
    }
    for (at->split = 0; at->split < at->cut.q_splits; at->split++) {
        const key_sums sums = run_part(w, s, at);
        if (at->split > 0 && sums.from < sums.to) {
            add_rows(s->dK + sums.from * Dk_pad, sums.dK + sums.from * Dk_pad,
                     (sums.to - sums.from) * Dk_pad);
            add_rows(s->dV + sums.from * Dv_pad, sums.dV + sums.from * Dv_pad,
                     (sums.to - sums.from) * Dv_pad);
        }
    }
    store_keys(w, s, at, 0, at->cut.span, s->dK, s->dV);
}

static void run_group(void *arg, int64_t group, int64_t slot)
{
    const agi_backward_job *w = arg;
    for (int64_t pass = 0; pass < w->schedule->passes && !agi_cancelled(w->call->exec); pass++) {
        pass_position at = locate(w, group, pass);
        run_pass(w, &w->shared.scratch[slot], &at);
    }
}

static void run_shared_part(void *arg, int64_t item, int64_t slot)
{
    const agi_backward_job *w = arg;
    agi_backward_scratch *s = &w->shared.scratch[slot];
    const int64_t parts = w->schedule->parts;
    pass_position at = locate(w, item / parts, w->pass);
    if (select_part(&at, item % parts)) {
        const key_sums sums = run_part(w, s, &at);
        if (!splits_are_shared(w->schedule)) {
            store_keys(w, s, &at, 0, at.cut.span, sums.dK, sums.dV);
        }
    }
}

/* Adds the sums of all splits, in order, to those of the first, for REDUCE_ROWS keys of span k; then stores them. */
static void reduce_keys(const agi_backward_job *w, const agi_backward_scratch *s, pass_position *at,
                        int64_t chunk)
{
    const int64_t Dk_pad = w->cpu->Dk_pad, Dv_pad = w->cpu->Dv_pad;
    const int64_t from = chunk * REDUCE_ROWS, to = agi_min(from + REDUCE_ROWS, at->cut.span);
    if (from >= to || first_key(at) >= at->cut.n_spans * at->cut.span) {
        return;
    }
    at->split = 0;
    const key_sums sums = sums_of_keys(w, s, at);
    for (at->split = 1; at->split < at->cut.q_splits; at->split++) {
        const key_sums other = sums_of_keys(w, s, at);
        int64_t j, end;
        keys_of_split(w, at, &j, &end);
        j = agi_max(j, from);
        const int64_t n = agi_max(0, agi_min(end, to) - j);
        add_rows(sums.dK + j * Dk_pad, other.dK + j * Dk_pad, n * Dk_pad);
        add_rows(sums.dV + j * Dv_pad, other.dV + j * Dv_pad, n * Dv_pad);
    }
    store_keys(w, s, at, from, to, sums.dK + from * Dk_pad, sums.dV + from * Dv_pad);
}

/* Adds the sums of dQ of the pass's spans, in order, to those of its first, for the tile at query i0 of a head; after
 * the last span stores them. */
static void reduce_dq(const agi_backward_job *w, agi_backward_scratch *s, pass_position *at, int64_t head,
                      int64_t i0)
{
    agi_head x;
    REAL(agi_head_begin)(&x, w->call, at->b, at->hk * agi_heads_per_kv(&w->call->plan->p) + head);
    if (i0 >= x.seq.n_q) {
        return;
    }
    const int64_t at_row = i0 * w->schedule->dq_width, last = at->cut.n_spans - 1 - at->first_span;
    at->k = 0;
    real *const dQ = sums_of_head(w, s, at, &x).dQ + at_row;
    for (at->k = 1; at->k < at->cut.key_splits && at->k <= last; at->k++) {
        int64_t from, to;
        if (keys_of_tile(at, &x, i0, &from, &to)) {
            add_rows(dQ, sums_of_head(w, s, at, &x).dQ + at_row, dq_of_tile(w, &x, i0));
        }
    }
    if (last < at->cut.key_splits) {
        store_dq(w, s, &x, i0, dQ);
    }
}

/* The work items that add up what has run of one pass of one group: chunks of keys, then tiles of dQ. */
typedef struct {
    int64_t chunks, key_items, tiles, items;
} reduction;

static reduction reduction_of(const agi_backward_job *w)
{
    const agi_backward_cut *max = &w->schedule->max;
    const ag_problem *p = &w->call->plan->p;
    reduction r = {.chunks = (max->span + REDUCE_ROWS - 1) / REDUCE_ROWS,
                   .tiles = (p->q_len + TILE_ROWS - 1) / TILE_ROWS};
    r.key_items = max->q_splits > 1 ? max->key_splits * r.chunks : 0;
    r.items = r.key_items + (max->key_splits > 1 ? agi_heads_per_kv(p) * r.tiles : 0);
    return r;
}

static void reduce(void *arg, int64_t item, int64_t slot)
{
    const agi_backward_job *w = arg;
    agi_backward_scratch *s = &w->shared.scratch[slot];
    const reduction r = reduction_of(w);
    pass_position at = locate(w, item / r.items, w->pass);
    const int64_t n = item % r.items;
    if (n < r.key_items) {
        at.k = n / r.chunks;
        reduce_keys(w, s, &at, n % r.chunks);
    } else {
        reduce_dq(w, s, &at, (n - r.key_items) / r.tiles, (n - r.key_items) % r.tiles * TILE_ROWS);
    }
}

/* An item is any span of a chain, not a given one. */
static void run_next_span(void *arg, int64_t item, int64_t slot)
{
    agi_backward_job *w = arg;
    agi_backward_scratch *s = &w->shared.scratch[slot];
    const agi_chain_span next = REAL(agi_begin_span)(w, s);
    pass_position at = locate(w, next.group, next.span);
    at.chain = next.chain;
    (void)item;
    run_pass(w, s, &at);
}

static ag_status run_chains(agi_backward_job *w)
{
    const agi_backward_schedule *schedule = w->schedule;
    const agi_call *call = w->call;
    const agi_loop spans = {schedule->groups * schedule->passes, w->cpu->cost[call->map], run_next_span, w};
    for (int64_t n = 0; n < chain_tiles(&call->plan->p, schedule->groups); n++) {
        atomic_init(&w->shared.spans_done[n], 0);
    }
    REAL(agi_begin_chains)(w);
    return agi_parallel_for(call->plan, call->exec, &spans);
}

static ag_status run_shared(agi_backward_job *w)
{
    const agi_backward_schedule *schedule = w->schedule;
    const agi_call *call = w->call;
    const int64_t parts = schedule->groups * schedule->parts;
    const double added = (double)(parts * schedule->max.span * (w->cpu->Dk_pad + w->cpu->Dv_pad));
    const agi_loop pass = {parts, w->cpu->cost[call->map] / (double)schedule->passes, run_shared_part, w};
    const agi_loop sums = {schedule->groups * reduction_of(w).items, 4 * added, reduce,
                           w}; /* read from other caches */
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
    agi_backward_job w = {
        .call = call, .cpu = cpu, .schedule = schedule, .chains_mutex = PTHREAD_MUTEX_INITIALIZER};
    w.tangents = call->map == AGI_VJP_JVP;
    w.small =
        !schedule->shared && schedule->max.n_spans == 1 && ops->small_call != NULL && ops->small_call(call);
    name_outputs(&w);
    REAL(agi_backward_lay_out)(&w.shared, &arena, call->plan, call->map);
    REAL(agi_clear_sums)(&w);
    const agi_loop groups = {schedule->groups, cpu->cost[call->map], run_group, &w};
    const ag_status status = schedule->chained  ? run_chains(&w)
                             : schedule->shared ? run_shared(&w)
                                                : agi_parallel_for(call->plan, call->exec, &groups);
    if (status == AG_OK) {
        REAL(agi_store_sums)(&w);
    }
    return status;
}
