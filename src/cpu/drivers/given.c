/* The order of work of jvp_jvp, and of jvp that is given o and lse: see given.h. */
#include "cpu/drivers/given.h"

#include <math.h>
#include <string.h>

/* ---- Workspace ---- */

/* How many reals the sums of a panel have. */
static int64_t state_size(int64_t Dv_pad)
{
    return PANEL * (Dv_pad + 2);
}

static int64_t all_states(const ag_plan *plan)
{
    const agi_cpu_plan *cpu = agi_cpu_plan_of(plan);
    return agi_saturating_product(REAL(agi_split_panels)(plan, &cpu->given), state_size(cpu->Dv_pad), 1, 1);
}

static void lay_out_panels(agi_given_scratch *s, agi_arena *arena, const agi_cpu_plan *cpu)
{
    for (int64_t n = 0; n < cpu->given.rows / PANEL; n++) {
        agi_given_panel *panel = &s->panel[n];
        real **const statistics[] = {&panel->L_high, &panel->L_low, &panel->mu,
                                     &panel->smu,    &panel->sum,   &panel->excess};
        for (size_t i = 0; i < sizeof statistics / sizeof statistics[0]; i++) {
            *statistics[i] = agi_take_reals(arena, PANEL);
        }
        panel->rows = agi_take_reals(arena, PANEL * cpu->Dv_pad);
    }
}

static void lay_out_scratch(agi_given_scratch *s, agi_arena *arena, const ag_plan *plan, agi_map map)
{
    const agi_cpu_plan *cpu = agi_cpu_plan_of(plan);
    const int64_t second = map == AGI_JVP_JVP, tile = GIVEN_KEYS * ROW_LD;
    lay_out_panels(s, arena, cpu);
    s->X = agi_take_reals(arena, tile);
    s->tX = agi_take_reals(arena, tile);
    s->sX = agi_take_reals(arena, second * tile);
    s->F = agi_take_reals(arena, tile);
    s->G = agi_take_reals(arena, second * tile);
    s->M = agi_take_reals(arena, tile);
    s->masked_keys = agi_take(arena, GIVEN_KEYS, 1);
    s->Q = agi_take_reals(arena, (1 - second) * PANEL * cpu->Dk_pad);
    s->tQ = agi_take_reals(arena, (1 - second) * PANEL * cpu->Dk_pad);
    s->K = agi_take_reals(arena, (1 - second) * cpu->Dk_pad);
    s->tK = agi_take_reals(arena, (1 - second) * cpu->Dk_pad);
    s->O = agi_take_reals(arena, GIVEN_ROWS * cpu->Dv_pad);
    s->O_low = agi_take_reals(arena, agi_has_low_half(&plan->p) * GIVEN_ROWS * cpu->Dv_pad);
    cpu->given_ops->lay_out(s, arena, plan, map);
}

void REAL(agi_given_lay_out)(agi_given_job *w, agi_arena *arena, const ag_plan *plan, agi_map map)
{
    w->states = agi_take_reals(arena, all_states(plan));
    w->scratch = agi_take(arena, plan->threads, sizeof *w->scratch);
    for (int64_t slot = 0; slot < plan->threads; slot++) {
        agi_given_scratch dry;
        lay_out_scratch(w->scratch == NULL ? &dry : &w->scratch[slot], arena, plan, map);
    }
}

/* ---- Panels ---- */

/* Panel `index` of the block that starts at query i0; its sums are in the scratch or, if the keys are split, in the
 * memory of the work item. */
static agi_given_panel panel_of(const agi_given_job *w, const agi_given_scratch *s, const agi_head *x,
                                int64_t i0, int64_t index, int64_t item)
{
    const agi_row_schedule *schedule = &w->cpu->given;
    agi_given_panel panel = s->panel[index];
    panel.index = index;
    panel.i0 = i0 + index * PANEL;
    panel.ni = agi_min(PANEL, x->seq.n_q - panel.i0);
    panel.W = agi_round_up(panel.ni, x->k->lanes);
    if (REAL(agi_key_splits_of)(x, schedule).n > 1) {
        const int64_t at = REAL(agi_split_panel)(x->call->plan, schedule, item, index);
        panel.rows = w->states + at * state_size(x->Dv_pad);
        panel.sum = panel.rows + PANEL * x->Dv_pad;
        panel.excess = panel.sum + PANEL;
    }
    return panel;
}

/* L, mu and smu of the panel's queries. Of a query that sees no key, mu and smu are not read. */
static void load_statistics(const agi_head *x, const agi_given_panel *panel)
{
    const ag_args *a = &x->call->a;
    const bool second = x->call->map == AGI_JVP_JVP;
    const int64_t step = x->cpu->given_ops->query_step;
    const int64_t lanes = step == 0 ? panel->W : agi_round_up(panel->ni, step);
    for (int64_t r = 0; r < lanes; r++) {
        const int64_t i = panel->i0 + r;
        const bool row = r < panel->ni;
        const double L = row ? agi_load_stat(x, &a->lse, i) : INFINITY;
        const bool sees_keys = row && !REAL(agi_sees_no_key)(x, i, L);
        agi_split_log(sees_keys ? L : INFINITY, &panel->L_high[r], &panel->L_low[r]);
        panel->mu[r] = sees_keys && second ? (real)agi_load_stat(x, &a->mu, i) : 0;
        panel->smu[r] = sees_keys && second ? (real)agi_load_stat(x, &a->smu, i) : 0;
        panel->sum[r] = 0;
        panel->excess[r] = 0;
    }
}

/* ---- The end of a panel ---- */

static bool accumulates(const agi_head *x, uint32_t bit)
{
    return (x->call->a.accumulate & bit) != 0;
}

/* Adds the sink's term to the sum of row r, and stores mu or nu. Returns the factor of O. A query that sees no key has
 * nu = 0 and, with a sink, mu = ts. */
static double finish_sum(const agi_head *x, const agi_given_panel *panel, int64_t r)
{
    const ag_args *a = &x->call->a;
    const int64_t i = panel->i0 + r;
    const double Ps = x->sink == -INFINITY ? 0 : exp(x->sink - agi_load_stat(x, &a->lse, i));
    const double shift = (double)panel->mu[r], sum = (double)panel->sum[r], excess = (double)panel->excess[r];
    const bool sees_no_key = panel->L_high[r] == (real)INFINITY;
    if (x->call->map == AGI_JVP_JVP) {
        const double mu = agi_load_stat(x, &a->mu, i), smu = agi_load_stat(x, &a->smu, i);
        const double nu = sum + (Ps == 0 ? 0 : Ps * (x->tsink - mu) * (x->ssink - smu));
        agi_store_stat(x, &a->nu, accumulates(x, AG_ACC_NU), i, sees_no_key ? 0 : nu);
        return nu + excess;
    }
    const double change = sum + (Ps == 0 ? 0 : Ps * (x->tsink - shift));
    const bool empty = sees_no_key && x->sink == -INFINITY;
    agi_store_stat(x, &a->mu, accumulates(x, AG_ACC_MU), i, empty ? 0 : shift + change);
    return change + excess;
}

/* Rows r0 .. r0 + n - 1 of the panel: minus factor O. A query that sees no key has no O. */
static void subtract_output(const agi_given_scratch *s, const agi_head *x, const agi_given_panel *panel,
                            int64_t r0, int64_t n)
{
    const ag_args *a = &x->call->a;
    const agi_rows O = REAL(agi_load_output_rows)(x, &a->o, &a->o_low, panel->i0 + r0, n, s->O, s->O_low);
    for (int64_t r = 0; r < n; r++) {
        const double factor = finish_sum(x, panel, r0 + r);
        if (panel->L_high[r0 + r] != (real)INFINITY) {
            agi_add_scaled_row(x->k, panel->rows + (r0 + r) * x->Dv_pad, O.p + r * O.ld, x->Dv, -factor);
        }
    }
}

static void finish_panel(const agi_given_scratch *s, const agi_head *x, const agi_given_panel *panel)
{
    const ag_args *a = &x->call->a;
    const ag_dtype dtype = x->call->plan->p.out_dtype;
    const bool second = x->call->map == AGI_JVP_JVP;
    const agi_slice to = agi_query_slice(x, second ? &a->sto : &a->to, dtype, x->Dv);
    double one[PANEL];
    for (int64_t r = 0; r < panel->ni; r += GIVEN_ROWS) {
        subtract_output(s, x, panel, r, agi_min(GIVEN_ROWS, panel->ni - r));
    }
    agi_store_rows(x->k, to, panel->i0, panel->ni, accumulates(x, second ? AG_ACC_STO : AG_ACC_TO), 1,
                   panel->rows, x->Dv_pad);
    for (int64_t r = 0; r < PANEL; r++) {
        one[r] = 1;
    }
    if (!second) {
        REAL(agi_store_low_rows)
        (x->k, agi_query_slice(x, &a->to_low, dtype, x->Dv), panel->i0, panel->ni, one, panel->rows,
         x->Dv_pad);
    }
}

/* Rows from .. to - 1 are padding after the end of the sequence: zeros, or what accumulating them gives. */
static void fill_padding(const agi_head *x, int64_t from, int64_t to)
{
    const ag_args *a = &x->call->a;
    const ag_dtype dtype = x->call->plan->p.out_dtype;
    const bool second = x->call->map == AGI_JVP_JVP;
    if (from >= to) {
        return;
    }
    agi_store_rows(x->k, agi_query_slice(x, second ? &a->sto : &a->to, dtype, x->Dv), from, to - from,
                   accumulates(x, second ? AG_ACC_STO : AG_ACC_TO), 1, NULL, 0);
    if (!second) {
        agi_store_rows(x->k, agi_query_slice(x, &a->to_low, dtype, x->Dv), from, to - from, false, 1, NULL,
                       0);
    }
    for (int64_t i = from; i < to; i++) {
        agi_store_stat(x, second ? &a->nu : &a->mu, accumulates(x, second ? AG_ACC_NU : AG_ACC_MU), i, 0);
    }
}

/* ---- Work items: blocks of queries, or splits of their keys ---- */

/* Runs the panels against those of keys first_key .. end_key - 1 that they see. */
static void walk_keys(agi_given_scratch *s, const agi_head *x, const agi_given_panel *panels,
                      int64_t n_panels, int64_t first_key, int64_t end_key)
{
    const agi_given_ops *ops = x->cpu->given_ops;
    const agi_given_panel *last = &panels[n_panels - 1];
    const int64_t i0 = panels[0].i0, step = ops->block_keys;
    int64_t from, to;
    REAL(agi_key_range)(x, i0, last->i0 + last->ni - i0, &from, &to);
    from = agi_max(from, first_key) / ops->key_step * ops->key_step;
    to = agi_min(to, end_key);
    for (int64_t j0 = from / step * step; j0 < to && !agi_cancelled(x->call->exec); j0 += step) {
        const int64_t first = agi_max(j0, from);
        ops->block(s, x, panels, n_panels, first, agi_min(j0 + step, to) - first);
    }
}

static void finish_item(const agi_given_job *w, const agi_given_scratch *s, const agi_head *x,
                        const agi_given_panel *panels, int64_t n_panels, int64_t i0)
{
    const ag_problem *p = &x->call->plan->p;
    for (int64_t n = 0; n < n_panels; n++) {
        finish_panel(s, x, &panels[n]);
    }
    if (!agi_has(p, AG_PACKED)) {
        fill_padding(x, agi_max(i0, x->seq.n_q), agi_min(i0 + w->cpu->given.rows, p->q_len));
    }
}

/* The head of a block of queries, and its panels; returns the block's first query. */
static int64_t begin_item(const agi_given_job *w, const agi_given_scratch *s, int64_t item, agi_head *x,
                          agi_given_panel *panels, int64_t *n_panels)
{
    const agi_row_schedule *schedule = &w->cpu->given;
    const int64_t i0 = REAL(agi_row_begin_item)(w->call, schedule, item / schedule->kv_splits, x);
    *n_panels = 0;
    for (int64_t i = i0; i < agi_min(i0 + schedule->rows, x->seq.n_q); i += PANEL, ++*n_panels) {
        panels[*n_panels] = panel_of(w, s, x, i0, *n_panels, item);
    }
    return i0;
}

/* Runs split item % kv_splits of block item / kv_splits. */
static void run_item(void *arg, int64_t item, int64_t slot)
{
    const agi_given_job *w = arg;
    const agi_row_schedule *schedule = &w->cpu->given;
    const agi_given_ops *ops = w->cpu->given_ops;
    const int64_t split = item % schedule->kv_splits;
    agi_given_scratch *s = &w->scratch[slot];
    agi_given_panel panels[ROW_PANELS];
    agi_head x;
    int64_t n_panels;
    const int64_t i0 = begin_item(w, s, item, &x, panels, &n_panels);
    const agi_key_splits splits = REAL(agi_key_splits_of)(&x, schedule);
    if (split >= splits.n) {
        return;
    }
    for (int64_t n = 0; n < n_panels; n++) {
        load_statistics(&x, &panels[n]);
        if (x.call->map == AGI_JVP) {
            REAL(agi_given_shift)(s, &x, &panels[n]);
        }
    }
    if (n_panels > 0) {
        ops->begin(s, &x, panels, n_panels);
        walk_keys(s, &x, panels, n_panels, split * splits.keys, (split + 1) * splits.keys);
        if (ops->end != NULL) {
            ops->end(s, &x, panels, n_panels);
        }
    }
    if (splits.n == 1) {
        finish_item(w, s, &x, panels, n_panels, i0);
    }
}

/* Adds up the splits of a block. */
static void add_splits(void *arg, int64_t block, int64_t slot)
{
    const agi_given_job *w = arg;
    const int64_t kv_splits = w->cpu->given.kv_splits;
    agi_given_scratch *s = &w->scratch[slot];
    agi_given_panel panels[ROW_PANELS];
    agi_head x;
    int64_t n_panels;
    const int64_t i0 = begin_item(w, s, block * kv_splits, &x, panels, &n_panels);
    const int64_t n_splits = REAL(agi_key_splits_of)(&x, &w->cpu->given).n;
    if (n_splits == 1) {
        return; /* its work item has finished it */
    }
    for (int64_t n = 0; n < n_panels; n++) {
        const agi_given_panel *panel = &panels[n];
        real sum[PANEL], excess[PANEL];
        memcpy(sum, panel->sum, sizeof sum);
        memcpy(excess, panel->excess, sizeof excess);
        for (int64_t split = 1; split < n_splits; split++) {
            const agi_given_panel other = panel_of(w, s, &x, i0, n, block * kv_splits + split);
            for (int64_t r = 0; r < panel->ni; r++) {
                agi_add_scaled_row(x.k, panel->rows + r * x.Dv_pad, other.rows + r * x.Dv_pad, x.Dv, 1);
                sum[r] += other.sum[r];
                excess[r] += other.excess[r];
            }
        }
        load_statistics(&x, panel);
        if (x.call->map == AGI_JVP) {
            REAL(agi_given_shift)(s, &x, panel);
        }
        memcpy(panel->sum, sum, (size_t)panel->ni * sizeof(real));
        memcpy(panel->excess, excess, (size_t)panel->ni * sizeof(real));
    }
    finish_item(w, s, &x, panels, n_panels, i0);
}

ag_status REAL(agi_given_run)(const agi_call *call, void *memory)
{
    const agi_cpu_plan *cpu = agi_cpu_plan_of(call->plan);
    const agi_row_schedule *schedule = &cpu->given;
    agi_arena arena = agi_arena_begin(memory);
    agi_given_job w = {.call = call, .cpu = cpu};
    REAL(agi_given_lay_out)(&w, &arena, call->plan, call->map);
    const agi_loop blocks = {schedule->items * schedule->kv_splits, cpu->cost[call->map], run_item, &w};
    const ag_status status = agi_parallel_for(call->plan, call->exec, &blocks);
    if (status != AG_OK || schedule->kv_splits == 1) {
        return status;
    }
    /* Four times, because rows are read from other threads' caches. */
    const double added = 4 * (double)(blocks.n_items * schedule->rows * cpu->Dv_pad);
    const agi_loop sums = {schedule->items, added, add_splits, &w};
    return agi_parallel_for(call->plan, call->exec, &sums);
}
