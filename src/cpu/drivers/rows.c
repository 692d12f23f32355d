/* The order of forward's and jvp's work: blocks of queries, each against the blocks of keys that it sees. */
#include "cpu/drivers/rows.h"

#include <math.h>

/* ---- Workspace ---- */

static void lay_out_scratch(agi_row_scratch *s, agi_arena *arena, const ag_plan *plan, agi_map map)
{
    const agi_cpu_plan *cpu = agi_cpu_plan_of(plan);
    const int64_t tangents = map == AGI_JVP, panels = cpu->rows.rows / PANEL;
    for (int64_t n = 0; n < panels; n++) {
        agi_row_panel *panel = &s->panel[n];
        panel->O = agi_take_reals(arena, PANEL * cpu->Dv_pad);
        panel->tO = agi_take_reals(arena, tangents * PANEL * cpu->Dv_pad);
        panel->m = agi_take_reals(arena, PANEL);
        panel->l = agi_take_reals(arena, PANEL);
        panel->r = agi_take_reals(arena, PANEL);
        panel->a = agi_take_reals(arena, PANEL);
    }
    s->X = agi_take_reals(arena, ROW_KEYS * ROW_LD);
    s->tX = agi_take_reals(arena, tangents * ROW_KEYS * ROW_LD);
    s->F = agi_take_reals(arena, tangents * ROW_KEYS * ROW_LD);
    s->M = agi_take_reals(arena, ROW_KEYS * ROW_LD);
    s->alpha = agi_take_reals(arena, PANEL);
    s->delta = agi_take_reals(arena, PANEL);
    s->masked_keys = agi_take(arena, ROW_KEYS, 1);
    cpu->row_ops->lay_out(s, arena, plan, map);
}

void REAL(agi_row_lay_out)(agi_row_job *w, agi_arena *arena, const ag_plan *plan, agi_map map)
{
    w->states = agi_take_reals(arena, REAL(agi_row_state_size)(plan, map));
    w->scratch = agi_take(arena, plan->threads, sizeof *w->scratch);
    for (int64_t slot = 0; slot < plan->threads; slot++) {
        agi_row_scratch dry;
        lay_out_scratch(w->scratch == NULL ? &dry : &w->scratch[slot], arena, plan, map);
    }
}

/* ---- A block of queries ---- */

static void begin_statistics(agi_row_panel *panel, const agi_head *x)
{
    const int64_t step = x->cpu->row_ops->query_step;
    const int64_t lanes = step == 0 ? panel->W : agi_round_up(panel->ni, step);
    const double max = (double)REAL_MAX, sink = fmax(-max, fmin(max, x->sink * LOG2_E));
    for (int64_t i = 0; i < lanes; i++) {
        panel->m[i] = x->sink == -INFINITY ? (real)-INFINITY : (real)sink;
        panel->l[i] = 0; /* the sink's term is added at the end: small weights would be lost in a large one */
        panel->r[i] = (real)x->tsink;
        panel->a[i] = 0;
    }
}

/* With the sink's term w = 2^(log2(e) s - m), the sums O and tO become the results O / (l + w) and (tO - (mu - r) O) /
 * (l + w), where mu = r + (a + w (ts - r)) / (l + w); L = ln 2 (m + log2(l + w)). If l + w = 0, the row sees no key. */
typedef struct {
    double w, sum, log2_sum; /* w, l + w, log2(l + w) */
} row_sum;

/* The sink's term w. If no key was seen, any positive value works. Else m >= log2(e) sink up to rounding; the exponent
 * is clamped, as the rounding error of a huge sink can overflow exp2. */
static double sink_term(const agi_head *x, const agi_row_panel *panel, int64_t i)
{
    if (x->sink == -INFINITY) {
        return 0;
    }
    return panel->l[i] == 0 ? 1 : exp2(fmin(x->sink * LOG2_E - (double)panel->m[i], 1000));
}

/* Stores L and mu of row i, subtracts (mu - r) O from tO, returns 1 / (l + w). */
static double finish_statistics(const agi_head *x, agi_row_panel *panel, int64_t i, row_sum s)
{
    const ag_args *a = &x->call->a;
    const double m = (double)panel->m[i], r = (double)panel->r[i];
    const double inverse = s.sum == 0 ? 0 : 1 / s.sum;
    if (x->call->map == AGI_JVP) {
        const double shift = ((double)panel->a[i] + (s.w == 0 ? 0 : s.w * (x->tsink - r))) * inverse;
        agi_add_scaled_row(x->k, panel->tO + i * x->Dv_pad, panel->O + i * x->Dv_pad, x->Dv, -shift);
        agi_store_stat(x, &a->mu, (a->accumulate & AG_ACC_MU) != 0, panel->i0 + i,
                       inverse == 0 ? 0 : r + shift);
    }
    agi_store_stat(x, &a->lse, (a->accumulate & AG_ACC_LSE) != 0, panel->i0 + i,
                   panel->l[i] == 0 ? x->sink : (m + s.log2_sum) * LN_2);
    return inverse;
}

void REAL(agi_row_store_panel)(const agi_row_job *w, const agi_row_scratch *s, const agi_head *x,
                               const agi_row_panel *panel, const double *factor)
{
    const ag_args *a = &x->call->a;
    const ag_dtype dtype = x->call->plan->p.out_dtype;
    (void)w, (void)s;
    if (x->call->map == AGI_JVP) {
        REAL(agi_scale_and_store_rows)
        (x->k, agi_query_slice(x, &a->to, dtype, x->Dv), panel->i0, panel->ni,
         (a->accumulate & AG_ACC_TO) != 0, factor, 1, panel->tO, x->Dv_pad);
        REAL(agi_store_low_rows)
        (x->k, agi_query_slice(x, &a->to_low, dtype, x->Dv), panel->i0, panel->ni, factor, panel->tO,
         x->Dv_pad);
    }
    REAL(agi_scale_and_store_rows)
    (x->k, agi_query_slice(x, &a->o, dtype, x->Dv), panel->i0, panel->ni, (a->accumulate & AG_ACC_O) != 0,
     factor, 1, panel->O, x->Dv_pad);
    REAL(agi_store_low_rows)
    (x->k, agi_query_slice(x, &a->o_low, dtype, x->Dv), panel->i0, panel->ni, factor, panel->O, x->Dv_pad);
}

static void finish_panel(const agi_row_job *w, const agi_row_scratch *s, const agi_head *x,
                         agi_row_panel *panel)
{
    double term[PANEL], sum[PANEL], log2_sum[PANEL], inverse[PANEL];
    for (int64_t i = 0; i < panel->ni; i++) {
        term[i] = sink_term(x, panel, i);
        sum[i] = (double)panel->l[i] + term[i];
    }
    x->k->log2_array(log2_sum, sum, panel->ni);
    for (int64_t i = 0; i < panel->ni; i++) {
        inverse[i] = finish_statistics(x, panel, i, (row_sum){term[i], sum[i], log2_sum[i]});
    }
    w->cpu->row_ops->store(w, s, x, panel, inverse);
}

/* Zeros, or what accumulating them gives, in rows from .. to - 1 of O, tO or their low halves. */
static void fill_rows(const agi_head *x, const ag_tensor *t, bool accumulate, int64_t from, int64_t to)
{
    agi_store_rows(x->k, agi_query_slice(x, t, x->call->plan->p.out_dtype, x->Dv), from, to - from,
                   accumulate, 1, NULL, 0);
}

/* Rows from .. to - 1 are padding after the end of the sequence: -infinity in lse, zero elsewhere. */
static void fill_padding(const agi_head *x, int64_t from, int64_t to)
{
    const ag_args *a = &x->call->a;
    if (from >= to) {
        return;
    }
    for (int64_t i = from; i < to; i++) {
        agi_store_stat(x, &a->lse, (a->accumulate & AG_ACC_LSE) != 0, i, -INFINITY);
        if (x->call->map == AGI_JVP) {
            agi_store_stat(x, &a->mu, (a->accumulate & AG_ACC_MU) != 0, i, 0);
        }
    }
    fill_rows(x, &a->o, (a->accumulate & AG_ACC_O) != 0, from, to);
    fill_rows(x, &a->o_low, false, from, to);
    if (x->call->map == AGI_JVP) {
        fill_rows(x, &a->to, (a->accumulate & AG_ACC_TO) != 0, from, to);
        fill_rows(x, &a->to_low, false, from, to);
    }
}

/* Runs the panels against those of keys first_key .. end_key - 1 that they see. */
static void walk_keys(agi_row_scratch *s, const agi_head *x, agi_row_panel *panels, int64_t n_panels,
                      int64_t first_key, int64_t end_key)
{
    const agi_row_ops *ops = x->cpu->row_ops;
    const int64_t i0 = panels[0].i0, step = ops->block_keys;
    int64_t from, to;
    const agi_row_panel *last = &panels[n_panels - 1];
    REAL(agi_key_range)(x, i0, last->i0 + last->ni - i0, &from, &to);
    from = agi_max(from, first_key);
    to = agi_min(to, end_key);
    if (from >= to) {
        return;
    }
    from = from / ops->key_step * ops->key_step;
    for (int64_t j0 = from / step * step; j0 < to && !agi_cancelled(x->call->exec); j0 += step) {
        const int64_t first = agi_max(j0, from);
        ops->block(s, x, panels, n_panels, first, agi_min(j0 + step, to) - first, to);
    }
}

/* ---- Work items: blocks of queries, or splits of their keys ---- */

int64_t REAL(agi_row_begin_item)(const agi_call *call, const agi_row_schedule *schedule, int64_t block,
                                 agi_head *x)
{
    const int64_t head = block / schedule->blocks, heads = call->plan->p.heads;
    REAL(agi_head_begin)(x, call, head / heads, head % heads);
    /* Blocks are taken alternately from the end and from the start: if causal, every thread gets long and short
     * ones. */
    const int64_t n = block % schedule->blocks;
    return (n % 2 == 0 ? schedule->blocks - 1 - n / 2 : n / 2) * schedule->rows;
}

static void finish_item(const agi_row_job *w, const agi_row_scratch *s, const agi_head *x,
                        agi_row_panel *panels, int64_t n_panels, int64_t i0)
{
    const ag_problem *p = &x->call->plan->p;
    for (int64_t n = 0; n < n_panels; n++) {
        finish_panel(w, s, x, &panels[n]);
    }
    if (!agi_has(p, AG_PACKED)) {
        fill_padding(x, agi_max(i0, x->seq.n_q), agi_min(i0 + w->cpu->rows.rows, p->q_len));
    }
}

/* Runs split item % kv_splits of block item / kv_splits. */
static void run_item(void *arg, int64_t item, int64_t slot)
{
    const agi_row_job *w = arg;
    const agi_row_schedule *schedule = &w->cpu->rows;
    const agi_row_ops *ops = w->cpu->row_ops;
    const int64_t split = item % schedule->kv_splits;
    agi_row_scratch *s = &w->scratch[slot];
    agi_row_panel panels[ROW_PANELS];
    agi_head x;
    const int64_t i0 = REAL(agi_row_begin_item)(w->call, schedule, item / schedule->kv_splits, &x);
    const agi_key_splits splits = REAL(agi_key_splits_of)(&x, schedule);
    int64_t n_panels = 0;
    if (split >= splits.n || (w->small && ops->small_head(s, &x))) {
        return;
    }
    for (int64_t i = i0; i < agi_min(i0 + schedule->rows, x.seq.n_q); i += PANEL, n_panels++) {
        panels[n_panels] = REAL(agi_row_panel_of)(w, s, &x, i0, n_panels, item);
        begin_statistics(&panels[n_panels], &x);
    }
    if (n_panels > 0) {
        ops->begin(w, s, &x, panels, n_panels, item);
        walk_keys(s, &x, panels, n_panels, split * splits.keys, (split + 1) * splits.keys);
        if (ops->end != NULL) {
            ops->end(w, s, &x, panels, n_panels);
        }
    }
    if (splits.n == 1) {
        finish_item(w, s, &x, panels, n_panels, i0);
    }
}

/* Merges the splits of a block. */
static void merge_splits(void *arg, int64_t block, int64_t slot)
{
    const agi_row_job *w = arg;
    const agi_row_scratch *s = &w->scratch[slot];
    const int64_t kv_splits = w->cpu->rows.kv_splits;
    agi_row_panel panels[ROW_PANELS];
    agi_head x;
    const int64_t i0 = REAL(agi_row_begin_item)(w->call, &w->cpu->rows, block, &x);
    const int64_t n_splits = REAL(agi_key_splits_of)(&x, &w->cpu->rows).n;
    int64_t n_panels = 0;
    if (n_splits == 1) {
        return; /* its work item has finished it */
    }
    for (int64_t i = i0; i < agi_min(i0 + w->cpu->rows.rows, x.seq.n_q); i += PANEL, n_panels++) {
        panels[n_panels] = REAL(agi_row_panel_of)(w, s, &x, i0, n_panels, block * kv_splits);
        for (int64_t split = 1; split < n_splits; split++) {
            const agi_row_panel other =
                REAL(agi_row_panel_of)(w, s, &x, i0, n_panels, block * kv_splits + split);
            for (int64_t row = 0; row < other.ni; row++) {
                REAL(agi_row_merge_row)(&x, &panels[n_panels], &other, row);
            }
        }
    }
    finish_item(w, s, &x, panels, n_panels, i0);
}

ag_status REAL(agi_row_run)(const agi_call *call, void *memory)
{
    const agi_cpu_plan *cpu = agi_cpu_plan_of(call->plan);
    const agi_row_schedule *schedule = &cpu->rows;
    const agi_row_ops *ops = cpu->row_ops;
    agi_arena arena = agi_arena_begin(memory);
    agi_row_job w = {.call = call, .cpu = cpu};
    w.small =
        schedule->kv_splits == 1 && schedule->blocks == 1 && ops->small_call != NULL && ops->small_call(call);
    REAL(agi_row_lay_out)(&w, &arena, call->plan, call->map);
    const agi_loop blocks = {schedule->items * schedule->kv_splits, cpu->cost[call->map], run_item, &w};
    const ag_status status = agi_parallel_for(call->plan, call->exec, &blocks);
    if (status != AG_OK || schedule->kv_splits == 1) {
        return status;
    }
    const double merged = (double)(blocks.n_items * schedule->rows * cpu->Dv_pad);
    const agi_loop merges = {schedule->items, 4 * merged, merge_splits,
                             &w}; /* rows are read from other caches */
    return agi_parallel_for(call->plan, call->exec, &merges);
}
