/* The loop of forward and jvp over blocks of queries and of keys. */
#include "cpu/amx/amx_rows.h"
#include "cpu/drivers/small.h"

#include <math.h>
#include <string.h>

/* ---- Workspace ---- */

void agi_row_lay_out(agi_row_scratch *s, agi_arena *arena, const ag_plan *plan, const agi_kernels *k,
                     agi_map map)
{
    const int64_t Dk = plan->p.dim_qk, Dk_pad = agi_round_up(Dk, k->lanes),
                  Dv_pad = agi_round_up(plan->p.dim_v, k->lanes);
    const int64_t tangents = map == AGI_JVP, amx = agi_on_amx(plan, map);
    const int64_t panels = agi_row_schedule_of(plan, map).rows / PANEL;
    for (int64_t i = 0; i < panels; i++) {
        agi_row_panel *panel = &s->panel[i];
        panel->QT = agi_take_reals(arena, !amx * Dk * PANEL);
        panel->tQT = agi_take_reals(arena, !amx * tangents * Dk * PANEL);
        panel->O = agi_take_reals(arena, PANEL * Dv_pad);
        panel->tO = agi_take_reals(arena, tangents * PANEL * Dv_pad);
        panel->m = agi_take_reals(arena, PANEL);
        panel->l = agi_take_reals(arena, PANEL);
        panel->r = agi_take_reals(arena, PANEL);
        panel->a = agi_take_reals(arena, PANEL);
    }
    s->T = agi_take_reals(arena, !amx * ROW_KEYS * ROW_LD);
    s->U = agi_take_reals(arena, !amx * tangents * ROW_KEYS * ROW_LD);
    s->X = agi_take_reals(arena, ROW_KEYS * ROW_LD);
    s->tX = agi_take_reals(arena, tangents * ROW_KEYS * ROW_LD);
    s->F = agi_take_reals(arena, tangents * ROW_KEYS * ROW_LD);
    s->M = agi_take_reals(arena, ROW_KEYS * ROW_LD);
    s->K = agi_take_reals(arena, !amx * ROW_KEYS * Dk_pad);
    s->V = agi_take_reals(arena, !amx * ROW_KEYS * Dv_pad);
    s->tK = agi_take_reals(arena, !amx * tangents * ROW_KEYS * Dk_pad);
    s->tV = agi_take_reals(arena, !amx * tangents * ROW_KEYS * Dv_pad);
    s->clean = agi_take_reals(arena, !amx * ROW_KEYS * Dv_pad);
    s->alpha = agi_take_reals(arena, PANEL);
    s->delta = agi_take_reals(arena, PANEL);
    s->unseen = agi_take(arena, ROW_KEYS, 1);
    if (AGI_HAS_AMX) {
        agi_amx_row_lay_out(&s->amx, arena, plan, map);
    }
}

/* ---- What the tiles of both maps do ---- */

bool agi_clip_keys(const agi_head *x, const agi_row_panel *panel, const agi_key_block *keys, int64_t *from,
                   int64_t *n)
{
    int64_t to;
    agi_keys_of(agi_band_at(x, panel->i0, keys->j0), 0, panel->ni, keys->nj, from, &to);
    *from += keys->j0;
    *n = agi_trim_hidden(x, panel->i0, panel->ni, from, to + keys->j0);
    *from -= keys->j0;
    return *n > 0;
}

/* A single vector of queries does too little with a row to hide its way from memory: rows of V are asked for
 * here, before their product, and those of K a block ahead. */
void agi_row_product(agi_row_scratch *s, const agi_head *x, const agi_row_panel *panel,
                     const agi_key_block *keys, int64_t from, int64_t nj)
{
    const agi_rows K = {keys->K.p + from * keys->K.ld, keys->K.ld};
    const bool near = panel->W == x->k->lanes;
    const int64_t step = near ? 16 : nj;
    for (int64_t j = 0; j < nj; j += step) {
        const int64_t n = agi_min(step, nj - j);
        for (int64_t r = from + j; near && r < from + j + n; r++) {
            agi_ask_for(keys->V.p + r * keys->V.ld, x->Dv * (int64_t)sizeof(real));
            if (r + ROW_KEYS < keys->ahead) {
                agi_ask_for(keys->K.p + (r + ROW_KEYS) * keys->K.ld, x->Dk * (int64_t)sizeof(real));
            }
        }
        agi_score_product(x, (agi_rows){K.p + j * K.ld, K.ld}, n, x->Dk, panel->QT, panel->Q, panel->ni,
                          s->T + j * ROW_LD, ROW_LD, false);
    }
}

bool agi_row_scores(agi_row_scratch *s, const agi_head *x, const agi_row_panel *panel, real *T, int64_t ld,
                    int64_t j0, int64_t nj)
{
    const agi_band band = agi_band_at(x, panel->i0, j0);
    bool unseen = false;
    if (!x->plain) {
        unseen = agi_additive(x, panel->i0, panel->ni, j0, nj, s->X, x->call->map == AGI_JVP ? s->tX : NULL,
                              ld, s->unseen);
        x->k->scores(T, s->X, x->call->map == AGI_JVP ? s->F : NULL, NULL, ld, nj, panel->W, x->scale,
                     x->softcap);
    }
    if (!agi_inside(band, panel->ni, nj)) {
        x->k->hide(T, ld, nj, panel->W, band.low, band.high);
    }
    return unseen;
}

/* ---- A block of queries ---- */

static void begin_statistics(agi_row_panel *panel, const agi_head *x)
{
    const int64_t lanes = x->amx == NULL ? panel->W : PANEL;
    const double most = (double)REAL_MAX, sink = fmax(-most, fmin(most, x->sink * LOG2_E));
    for (int64_t i = 0; i < lanes; i++) {
        panel->m[i] = x->sink == -INFINITY ? (real)-INFINITY : (real)sink;
        panel->l[i] = 0; /* the sink's own term is added at the end, where nothing can drown in it */
        panel->r[i] = (real)x->tsink;
        panel->a[i] = 0;
    }
}

/* Q or tQ: its rows where queries are few, else the panel. */
static agi_rows get_queries(const agi_row_panel *panel, const agi_head *x, const ag_tensor *t, real *QT)
{
    const agi_slice slice = agi_query_slice(x, t, x->call->plan->p.dtype, x->Dk);
    if (x->few) {
        return agi_get_rows(x->k, slice, panel->i0, panel->ni, NULL, QT);
    }
    agi_get_panel(x->k, slice, panel->i0, panel->ni, NULL, QT);
    return (agi_rows){NULL, 0};
}

static void begin_panel(agi_row_panel *panel, const agi_head *x)
{
    const ag_args *a = &x->call->a;
    panel->Q = get_queries(panel, x, &a->q, panel->QT);
    const size_t size = (size_t)(panel->ni * x->Dv_pad) * sizeof(real);
    memset(panel->O, 0, size);
    if (x->call->map == AGI_JVP) {
        memset(panel->tO, 0, size);
        if (a->tq.data != NULL) {
            panel->tQ = get_queries(panel, x, &a->tq, panel->tQT);
        }
    }
}

static agi_key_block load_keys(agi_row_scratch *s, const agi_head *x, int64_t j0, int64_t nj)
{
    const ag_args *a = &x->call->a;
    agi_key_block keys = {.j0 = j0, .nj = nj};
    keys.K = agi_key_rows(x, &a->k, x->Dk, j0, nj, s->K);
    keys.ahead = keys.K.p == s->K ? nj : x->seq.n_k - j0;
    keys.V = agi_key_rows(x, &a->v, x->Dv, j0, nj, s->V);
    if (x->call->map == AGI_JVP) {
        keys.tK = agi_key_rows(x, &a->tk, x->Dk, j0, nj, s->tK);
        keys.tV = agi_key_rows(x, &a->tv, x->Dv, j0, nj, s->tV);
    }
    return keys;
}

/* With the sink's term w = 2^(log2(e) s - m): L = m + log(l + w), O = O' / (l + w),
 * mu = r + (a + w (ts - r)) / (l + w), tO = (T' - (mu - r) O') / (l + w). l + w = 0 is the empty row. */
typedef struct {
    double w, sum, log; /* w, l + w, log2(l + w) */
} row_sum;

/* Where it is alone any will do. Else m began with it, rounded: what a sink of 10^11 lost by that may be more than a
 * power has place for. */
static double sink_term(const agi_head *x, const agi_row_panel *panel, int64_t i)
{
    if (x->sink == -INFINITY) {
        return 0;
    }
    return panel->l[i] == 0 ? 1 : exp2(fmin(x->sink * LOG2_E - (double)panel->m[i], 1000));
}

/* Stores L and mu of row i, makes T' ready, returns 1 / (l + w). */
static double finish_statistics(const agi_head *x, agi_row_panel *panel, int64_t i, row_sum s)
{
    const ag_args *a = &x->call->a;
    const double m = (double)panel->m[i], r = (double)panel->r[i];
    const double inverse = s.sum == 0 ? 0 : 1 / s.sum;
    if (x->call->map == AGI_JVP) {
        const double shift = ((double)panel->a[i] + (s.w == 0 ? 0 : s.w * (x->tsink - r))) * inverse;
        agi_put_row(x->k, panel->tO + i * x->Dv_pad, panel->O + i * x->Dv_pad, x->Dv, -shift, true);
        agi_put_stat(x, &a->mu, (a->accumulate & AG_ACC_MU) != 0, panel->i0 + i,
                     inverse == 0 ? 0 : r + shift);
    }
    agi_put_stat(x, &a->lse, (a->accumulate & AG_ACC_LSE) != 0, panel->i0 + i,
                 panel->l[i] == 0 ? x->sink : (m + s.log) * LN_2);
    return inverse;
}

/* Does O go from the AMX unit's sums straight to its place? */
static bool puts_sums(const agi_row_job *w, const agi_head *x)
{
    const ag_args *a = &x->call->a;
    return AGI_HAS_AMX && x->amx != NULL && x->call->map == AGI_FORWARD && w->schedule.parts == 1 &&
           (a->accumulate & AG_ACC_O) == 0;
}

static void finish_panel(const agi_row_job *w, const agi_row_scratch *s, const agi_head *x,
                         agi_row_panel *panel, int64_t q)
{
    const ag_args *a = &x->call->a;
    const ag_dtype dtype = x->call->plan->p.out_dtype;
    double term[PANEL], sum[PANEL], log[PANEL], inverse[PANEL];
    for (int64_t i = 0; i < panel->ni; i++) {
        term[i] = sink_term(x, panel, i);
        sum[i] = (double)panel->l[i] + term[i];
    }
    x->k->logarithms(log, sum, panel->ni);
    for (int64_t i = 0; i < panel->ni; i++) {
        inverse[i] = finish_statistics(x, panel, i, (row_sum){term[i], sum[i], log[i]});
    }
    if (AGI_HAS_AMX && puts_sums(w, x)) {
        agi_amx_put_panel(&s->amx, x, panel, q, inverse);
        return;
    }
    if (x->call->map == AGI_JVP) {
        agi_scale_and_put_rows(x->k, agi_query_slice(x, &a->to, dtype, x->Dv), panel->i0, panel->ni,
                               (a->accumulate & AG_ACC_TO) != 0, inverse, 1, panel->tO, x->Dv_pad);
    }
    agi_scale_and_put_rows(x->k, agi_query_slice(x, &a->o, dtype, x->Dv), panel->i0, panel->ni,
                           (a->accumulate & AG_ACC_O) != 0, inverse, 1, panel->O, x->Dv_pad);
}

/* Rows of a padded batch behind the end of their sequence. */
static void fill_rows(const agi_head *x, int64_t from, int64_t to)
{
    const ag_args *a = &x->call->a;
    const ag_dtype dtype = x->call->plan->p.out_dtype;
    if (from >= to) {
        return;
    }
    for (int64_t i = from; i < to; i++) {
        agi_put_stat(x, &a->lse, (a->accumulate & AG_ACC_LSE) != 0, i, -INFINITY);
        if (x->call->map == AGI_JVP) {
            agi_put_stat(x, &a->mu, (a->accumulate & AG_ACC_MU) != 0, i, 0);
        }
    }
    agi_put_rows(x->k, agi_query_slice(x, &a->o, dtype, x->Dv), from, to - from,
                 (a->accumulate & AG_ACC_O) != 0, 1, NULL, 0);
    if (x->call->map == AGI_JVP) {
        agi_put_rows(x->k, agi_query_slice(x, &a->to, dtype, x->Dv), from, to - from,
                     (a->accumulate & AG_ACC_TO) != 0, 1, NULL, 0);
    }
}

/* The keys [first_key, end_key) that the block sees. */
static void walk_keys(agi_row_scratch *s, const agi_head *x, agi_row_panel *panels, int64_t n_panels,
                      int64_t first_key, int64_t end_key)
{
    const int64_t i0 = panels[0].i0;
    int64_t from, to;
    const agi_row_panel *last = &panels[n_panels - 1];
    agi_key_range(x, i0, last->i0 + last->ni - i0, &from, &to);
    from = agi_max(from, first_key);
    to = agi_min(to, end_key);
    if (from >= to) {
        return;
    }
    const int64_t step = x->amx != NULL ? AMX_KEYS : ROW_KEYS;
    /* Groups as in the backward: the order of a score's sum depends on its place in the group. */
    from = x->amx != NULL ? from / GROUP_KEYS * GROUP_KEYS : from;
    for (int64_t j0 = from / step * step; j0 < to; j0 += step) {
        const int64_t first = agi_max(j0, from), n = agi_min(j0 + step, to) - first;
        if (AGI_HAS_AMX && x->amx != NULL) {
            agi_amx_row_block(s, x, panels, n_panels, first, n, to);
            continue;
        }
        const agi_key_block keys = load_keys(s, x, first, n);
        for (int64_t q = 0; q < n_panels; q++) {
            if (x->call->map == AGI_JVP) {
                agi_jvp_tile(s, x, &panels[q], &keys);
            } else {
                agi_forward_tile(s, x, &panels[q], &keys);
            }
        }
    }
}

/* ---- Work items: blocks of queries, parts of the keys ---- */

static int64_t begin_item(const agi_row_job *w, int64_t item, agi_head *x)
{
    const agi_row_schedule *schedule = &w->schedule;
    const int64_t bh = item / schedule->blocks, heads = w->call->plan->p.heads;
    agi_head_begin(x, w->call, w->k, bh / heads, bh % heads);
    /* From the last block on and from the first on, in turns: where causal, each share has long and short ones. */
    const int64_t n = item % schedule->blocks;
    return (n % 2 == 0 ? schedule->blocks - 1 - n / 2 : n / 2) * schedule->rows;
}

static void finish_item(const agi_row_job *w, const agi_row_scratch *s, const agi_head *x,
                        agi_row_panel *panels, int64_t n_panels, int64_t i0)
{
    const ag_problem *p = &x->call->plan->p;
    for (int64_t q = 0; q < n_panels; q++) {
        finish_panel(w, s, x, &panels[q], q);
    }
    if (!agi_has(p, AG_PACKED)) {
        fill_rows(x, agi_max(i0, x->seq.n_q), agi_min(i0 + w->schedule.rows, p->q_len));
    }
}

static void run_panels(agi_row_scratch *s, const agi_head *x, agi_row_panel *panels, int64_t n_panels,
                       int64_t first_key, int64_t end_key)
{
    for (int64_t q = 0; q < n_panels; q++) {
        begin_panel(&panels[q], x);
    }
    walk_keys(s, x, panels, n_panels, first_key, end_key);
}

static void run_on_amx(const agi_row_job *w, agi_row_scratch *s, const agi_head *x, agi_row_panel *panels,
                       int64_t n_panels, int64_t first_key, int64_t end_key)
{
    amx_config before;
    x->amx->begin(&before);
    for (int64_t q = 0; q < n_panels; q++) {
        agi_amx_begin_panel(&s->amx, x, &panels[q], q);
    }
    walk_keys(s, x, panels, n_panels, first_key, end_key);
    for (int64_t q = 0; q < n_panels; q++) {
        agi_amx_end_panel(&s->amx, x, &panels[q], q);
        if (!puts_sums(w, x)) {
            agi_amx_turn_panel(&s->amx, x, &panels[q], q);
        }
    }
    x->amx->end(&before);
}

/* A thread takes items in turn. Parts of the keys are short: no more is asked for. */
static void expect_next(const agi_row_job *w, agi_row_scratch *s, const agi_head *x, int64_t number)
{
    agi_head y;
    if (w->schedule.parts > 1 || number + 1 == w->schedule.items) {
        agi_amx_expect_item(&s->amx, x, NULL, 0, 0);
        return;
    }
    const int64_t i0 = begin_item(w, number + 1, &y);
    agi_amx_expect_item(&s->amx, x, &y, i0, agi_min(w->schedule.rows, y.seq.n_q - i0));
}

void agi_row_item(const agi_row_job *w, agi_row_scratch *s, int64_t number)
{
    const agi_row_schedule *schedule = &w->schedule;
    const int64_t part = number % schedule->parts;
    agi_row_panel panels[ROW_PANELS];
    agi_head x;
    const int64_t i0 = begin_item(w, number / schedule->parts, &x);
    int64_t n_panels = 0;
    if (w->small && agi_small_head(&x)) {
        agi_small_forward(s, &x);
        return;
    }
    for (int64_t i = i0; i < agi_min(i0 + schedule->rows, x.seq.n_q); i += PANEL, n_panels++) {
        panels[n_panels] = agi_row_panel_of(w, s, &x, i0, n_panels, number);
        begin_statistics(&panels[n_panels], &x);
    }
    if (n_panels > 0 && AGI_HAS_AMX && x.amx != NULL) {
        expect_next(w, s, &x, number);
        run_on_amx(w, s, &x, panels, n_panels, part * schedule->keys, (part + 1) * schedule->keys);
    } else if (n_panels > 0) {
        run_panels(s, &x, panels, n_panels, part * schedule->keys, (part + 1) * schedule->keys);
    }
    if (schedule->parts == 1) {
        finish_item(w, s, &x, panels, n_panels, i0);
    }
}

void agi_row_join(const agi_row_job *w, agi_row_scratch *s, int64_t item)
{
    const int64_t parts = w->schedule.parts;
    agi_row_panel panels[ROW_PANELS];
    agi_head x;
    const int64_t i0 = begin_item(w, item, &x);
    int64_t n_panels = 0;
    for (int64_t i = i0; i < agi_min(i0 + w->schedule.rows, x.seq.n_q); i += PANEL, n_panels++) {
        panels[n_panels] = agi_row_panel_of(w, s, &x, i0, n_panels, item * parts);
        for (int64_t part = 1; part < parts; part++) {
            const agi_row_panel other = agi_row_panel_of(w, s, &x, i0, n_panels, item * parts + part);
            for (int64_t row = 0; row < other.ni; row++) {
                agi_row_join_row(&x, &panels[n_panels], &other, row);
            }
        }
    }
    finish_item(w, s, &x, panels, n_panels, i0);
}
