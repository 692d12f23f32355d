/* Forward and jvp on the AMX unit: one block of keys against the panels of a block of queries. Sums are transposed,
 * O'^T[channel][query], so that P^T is an operand as it stands. A panel takes the keys in groups; weights of a few
 * groups wait until their product with V, because a longer sum is a cheaper one. */
#include "amx_rowwise.h"

#include <math.h>
#include <string.h>

/* ---- Workspace ---- */

void agi_amx_row_lay_out(agi_amx_row_scratch *s, agi_arena *arena, const ag_plan *plan, agi_map map)
{
    const int64_t on = agi_amx_of(plan, map) != NULL, tangents = on * (map == AGI_JVP);
    const int64_t Dk = agi_round_up(plan->p.dim_qk, AMX_DEPTH), Dv = agi_round_up(plan->p.dim_v, AMX_ROWS);
    const int64_t panels = agi_row_schedule_of(plan, map).rows / PANEL;
    for (int64_t q = 0; q < panels; q++) {
        agi_amx_panel *panel = &s->panel[q];
        panel->Q = agi_take16(arena, (on + tangents) * PANEL * Dk);
        panel->O = agi_take_reals(arena, on * PANEL * Dv);
        panel->tO = agi_take_reals(arena, tangents * PANEL * Dv);
    }
    s->K = agi_take16(arena, (on + tangents) * AMX_KEYS * Dk);
    s->V = agi_take16(arena, on * AMX_KEYS * Dv);
    s->tV = agi_take16(arena, tangents * AMX_KEYS * Dv);
    for (int n = 0; n < 2; n++) {
        s->T[n] = agi_take_reals(arena, on * GROUP_KEYS * PANEL);
        s->U[n] = agi_take_reals(arena, tangents * GROUP_KEYS * PANEL);
    }
    s->P = agi_take16(arena, on * AMX_WAITING * GROUP_KEYS * PANEL);
    s->tP = agi_take16(arena, tangents * AMX_WAITING * GROUP_KEYS * PANEL);
    s->rows = agi_take16(arena, on * PANEL * agi_max(Dk, Dv));
    s->clean = agi_take16(arena, on * GROUP_KEYS * Dv);
    s->keep = agi_take(arena, on * AMX_WAITING * GROUP_KEYS, 1);
}

/* ---- A panel ---- */

static int64_t lanes_of(const agi_row_panel *panel)
{
    return agi_round_up(panel->ni, AMX_DEPTH);
}

void agi_amx_begin_panel(agi_amx_row_scratch *s, const agi_head *x, const agi_row_panel *panel, int64_t q)
{
    const ag_args *a = &x->call->a;
    const ag_dtype dtype = x->call->plan->p.dtype;
    const int64_t W = lanes_of(panel);
    const size_t size = (size_t)(PANEL * x->Dv_pad) * sizeof(float);
    const int64_t width = agi_round_up(x->Dk, AMX_DEPTH), own = AMX_LANES * width;
    const bool tangents = x->call->map == AGI_JVP;
    const int64_t line = tangents ? 2 * own : own, behind = tangents ? own : 0;
    agi_amx_panel *to = &s->panel[q];
    to->columns = agi_amx_query_columns(x, agi_query_slice(x, &a->q, dtype, x->Dk), panel->i0, panel->ni, W,
                                        NULL, to->Q + behind, line, s->rows);
    memset(to->O, 0, size);
    if (tangents) {
        memset(to->tO, 0, size);
        to->t_columns = (amx_operand){to->Q, line, AMX_AB, 0};
    }
    if (tangents && a->tq.data != NULL) {
        agi_amx_query_columns(x, agi_query_slice(x, &a->tq, dtype, x->Dk), panel->i0, panel->ni, W, NULL,
                              to->Q, line, s->rows);
    }
}

void agi_amx_end_panel(const agi_amx_row_scratch *s, const agi_head *x, agi_row_panel *panel, int64_t q)
{
    const agi_amx_panel *from = &s->panel[q];
    const bool centred = x->call->map == AGI_FORWARD && x->call->plan->p.dropout == 0;
    for (int64_t i = 0; i < PANEL && centred; i++) {
        panel->l[i] *= (float)(1 / AMX_CENTRED);
    }
    x->amx->transpose(panel->O, x->Dv_pad, from->O, PANEL, x->Dv_pad, PANEL, false);
    if (x->call->map == AGI_JVP) {
        x->amx->transpose(panel->tO, x->Dv_pad, from->tO, PANEL, x->Dv_pad, PANEL, false);
    }
}

/* When m grew, sums are worth less; where r changed with it, T' += (r_old - r_new) O'. */
static void rescale(const agi_head *x, const agi_amx_panel *panel, int64_t lanes, const float *alpha,
                    const float *delta)
{
    const bool tangents = x->call->map == AGI_JVP;
    for (int64_t c = 0; c < x->Dv_pad; c++) {
        float *O = panel->O + c * PANEL, *tO = panel->tO + c * PANEL;
        for (int64_t i = 0; i < lanes && tangents; i++) {
            tO[i] = alpha[i] * (tO[i] + delta[i] * O[i]);
        }
        for (int64_t i = 0; i < lanes; i++) {
            O[i] *= alpha[i];
        }
    }
}

/* ---- A block of keys ---- */

typedef struct {
    int64_t j0, nj;
    amx_operand K, V, tV; /* K's rows with tK's behind them, where there are tangents; tV.p NULL: absent */
} key_operands;

static key_operands load_keys(agi_amx_row_scratch *s, const agi_head *x, int64_t j0, int64_t nj)
{
    const ag_args *a = &x->call->a;
    const bool tangents = x->call->map == AGI_JVP;
    key_operands keys = {.j0 = j0, .nj = nj};
    const ag_tensor none = {NULL, {0}};
    keys.K = agi_amx_key_rows_and_tangents(x, &a->k, tangents ? &a->tk : &none, x->Dk, j0, nj, s->K);
    keys.V = agi_amx_key_columns(x, &a->v, x->Dv, j0, nj, s->V, s->rows);
    if (tangents && a->tv.data != NULL) {
        keys.tV = agi_amx_key_columns(x, &a->tv, x->Dv, j0, nj, s->tV, s->rows);
    }
    return keys;
}

/* The groups whose weights wait: n of them, from group first of the block on. */
typedef struct {
    int64_t first, n;
} waiting_groups;

/* C += V^T P^T for n waiting groups from number `at` on; A is V of the first of them. */
static void add_values(const agi_head *x, const uint16_t *V, const amx_operand *like, const uint16_t *weights,
                       int64_t lanes, int64_t at, int64_t n, float *C)
{
    const amx_operand A = {V, like->line, like->step, like->row};
    const amx_operand B = {weights + at * GROUP_KEYS * PANEL, AMX_AB, GROUP_KEYS * PANEL, 0};
    x->amx->product(x->Dv_pad / AMX_ROWS, lanes / AMX_LANES, n, &A, &B, C, PANEL, true);
}

/* O' += R V, T' += (tS - r) R V + R tV for n whole groups. */
static void add_groups(const agi_amx_row_scratch *s, const agi_head *x, const agi_amx_panel *panel,
                       const key_operands *keys, int64_t lanes, const waiting_groups *w, int64_t at,
                       int64_t n)
{
    const int64_t offset = (w->first + at) * keys->V.step;
    add_values(x, keys->V.p + offset, &keys->V, s->P, lanes, at, n, panel->O);
    if (x->call->map == AGI_JVP) {
        add_values(x, keys->V.p + offset, &keys->V, s->tP, lanes, at, n, panel->tO);
        if (keys->tV.p != NULL) {
            add_values(x, keys->tV.p + offset, &keys->V, s->P, lanes, at, n, panel->tO);
        }
    }
}

/* The same for one group of which some keys are not to be kept. */
static void add_clean_group(const agi_amx_row_scratch *s, const agi_head *x, const agi_amx_panel *panel,
                            const key_operands *keys, int64_t lanes, const waiting_groups *w, int64_t at)
{
    const int64_t tiles = x->Dv_pad / AMX_ROWS, offset = (w->first + at) * keys->V.step;
    const uint8_t *const keep = s->keep + at * GROUP_KEYS;
    agi_amx_clean(s->clean, keys->V.p + offset, tiles, keep);
    add_values(x, s->clean, &keys->V, s->P, lanes, at, 1, panel->O);
    if (x->call->map == AGI_JVP) {
        add_values(x, s->clean, &keys->V, s->tP, lanes, at, 1, panel->tO);
        if (keys->tV.p != NULL) {
            agi_amx_clean(s->clean, keys->tV.p + offset, tiles, keep);
            add_values(x, s->clean, &keys->V, s->P, lanes, at, 1, panel->tO);
        }
    }
}

static void flush(const agi_amx_row_scratch *s, const agi_head *x, const agi_amx_panel *panel,
                  const key_operands *keys, int64_t lanes, const waiting_groups *w)
{
    int64_t whole = 0;
    for (int64_t at = 0; at < w->n; at++) {
        if (memchr(s->keep + at * GROUP_KEYS, 0, GROUP_KEYS) != NULL) {
            if (whole < at) {
                add_groups(s, x, panel, keys, lanes, w, whole, at - whole);
            }
            add_clean_group(s, x, panel, keys, lanes, w, at);
            whole = at + 1;
        }
    }
    if (whole < w->n) {
        add_groups(s, x, panel, keys, lanes, w, whole, w->n - whole);
    }
}

/* ---- A group of keys ---- */

/* Group g of the block, number `at` of those that wait. Its keys that the panel sees are rows from .. to - 1. */
typedef struct {
    int64_t g, at, from, to;
    float *T, *U;
} key_group;

static void scores_of(const agi_head *x, amx_operand keys, int64_t g, const amx_operand *queries,
                      int64_t depth, int64_t lanes, float *T)
{
    keys.p += g * GROUP_KEYS * keys.row;
    x->amx->product(GROUP_KEYS / AMX_ROWS, lanes / AMX_LANES, depth, &keys, queries, T, PANEL, false);
}

/* T = S^T = K Q^T, U = tQ K^T + Q tK^T transposed. Absent tangents are zero. */
static void group_products(const agi_amx_row_scratch *s, const agi_head *x, const agi_amx_panel *panel,
                           const key_operands *keys, int64_t g, int64_t lanes)
{
    const ag_args *a = &x->call->a;
    scores_of(x, keys->K, g, &panel->columns, agi_round_up(x->Dk, AMX_DEPTH) / AMX_DEPTH, lanes, s->T[g % 2]);
    if (x->call->map == AGI_JVP) {
        const agi_amx_sum sum =
            agi_amx_tangent_sum(keys->K, a->tk.data != NULL, panel->t_columns, a->tq.data != NULL, x->Dk);
        scores_of(x, sum.rows, g, &sum.columns, sum.depth, lanes, s->U[g % 2]);
    }
}

static void hide_rows(float *T, int64_t from, int64_t to)
{
    for (int64_t n = from * PANEL; n < to * PANEL; n++) {
        T[n] = -INFINITY;
    }
}

/* Features on the rows that are seen; the others get no weight, and their V none of its NaN. */
static void group_features(agi_row_scratch *s, const agi_head *x, const agi_row_panel *panel, int64_t j0,
                           const key_group *group)
{
    const int64_t n = group->to - group->from, row = group->from * PANEL;
    uint8_t *const keep = s->amx.keep + group->at * GROUP_KEYS;
    const bool unseen =
        agi_row_scores(s, x, panel, group->T + row, j0 + group->g * GROUP_KEYS + group->from, n);
    if (x->call->map == AGI_JVP) {
        x->k->score_tangents(group->U + row, x->softcap > 0 ? s->F : NULL, NULL, x->plain ? NULL : s->tX,
                             PANEL, n, panel->W, x->scale);
    }
    hide_rows(group->T, 0, group->from);
    hide_rows(group->T, group->to, GROUP_KEYS);
    memset(keep, 0, GROUP_KEYS);
    for (int64_t j = 0; j < n; j++) {
        keep[group->from + j] = !unseen || !s->unseen[j];
    }
}

/* Weights of a group, rounded. Returns whether what was summed so far is worth less. */
static bool group_weights(agi_row_scratch *s, const agi_head *x, agi_row_panel *panel, int64_t j0,
                          const key_group *group)
{
    const int64_t W = lanes_of(panel), to = group->at * GROUP_KEYS * PANEL;
    const bool dropout = x->call->plan->p.dropout > 0, tangents = x->call->map == AGI_JVP;
    float *const T = group->T, *const U = group->U;
    bool rescaled;
    if (!tangents && !dropout) {
        return x->amx->softmax(s->amx.P + to, T, W, x->c, panel->m, panel->l, s->alpha);
    }
    if (tangents) {
        rescaled = x->k->softmax_tangent(T, U, PANEL, GROUP_KEYS, W, x->c, panel->m, panel->l, panel->r,
                                         panel->a, s->alpha, s->delta);
    } else {
        rescaled = x->k->softmax(T, PANEL, GROUP_KEYS, W, x->c, panel->m, panel->l, s->alpha);
    }
    if (dropout) {
        agi_dropout_tile(x, panel->i0, W, j0 + group->g * GROUP_KEYS, GROUP_KEYS, s->M, PANEL);
        x->k->multiply(T, s->M, PANEL, GROUP_KEYS, W);
        if (tangents) {
            x->k->multiply(U, s->M, PANEL, GROUP_KEYS, W);
        }
    }
    x->amx->round_pairs(s->amx.P + to, T, W);
    if (tangents) {
        x->amx->round_pairs(s->amx.tP + to, U, W);
    }
    return rescaled;
}

/* ---- A tile ---- */

/* The weights of the newest group, number `at`, become those of the first. */
static void move_down(const agi_amx_row_scratch *s, int64_t at, bool tangents)
{
    const int64_t size = GROUP_KEYS * PANEL;
    if (at > 0) {
        memcpy(s->P, s->P + at * size, (size_t)size * sizeof *s->P);
        memcpy(s->keep, s->keep + at * GROUP_KEYS, GROUP_KEYS);
        if (tangents) {
            memcpy(s->tP, s->tP + at * size, (size_t)size * sizeof *s->tP);
        }
    }
}

/* The scores of a group are computed while those of the group before it are used: the unit works beside the
 * vectors, and nothing waits for its stores. */
static void run_tile(agi_row_scratch *s, const agi_head *x, agi_row_panel *panel, const agi_amx_panel *own,
                     const key_operands *keys)
{
    const int64_t lanes = lanes_of(panel);
    const agi_key_block block = {.j0 = keys->j0, .nj = keys->nj};
    int64_t from, n;
    if (!agi_clip_keys(x, panel, &block, &from, &n)) {
        return;
    }
    const int64_t end = (from + n + GROUP_KEYS - 1) / GROUP_KEYS;
    waiting_groups waiting = {.first = from / GROUP_KEYS};
    group_products(&s->amx, x, own, keys, waiting.first, lanes);
    for (int64_t g = waiting.first; g < end; g++) {
        if (g + 1 < end) {
            group_products(&s->amx, x, own, keys, g + 1, lanes);
        }
        key_group group = {g,
                           waiting.n,
                           agi_max(0, from - g * GROUP_KEYS),
                           agi_min(GROUP_KEYS, from + n - g * GROUP_KEYS),
                           s->amx.T[g % 2],
                           s->amx.U[g % 2]};
        group_features(s, x, panel, keys->j0, &group);
        if (group_weights(s, x, panel, keys->j0, &group)) {
            flush(&s->amx, x, own, keys, lanes, &waiting);
            rescale(x, own, lanes, s->alpha, s->delta);
            move_down(&s->amx, waiting.n, x->call->map == AGI_JVP);
            waiting = (waiting_groups){g, 0};
        }
        waiting.n++;
        if (waiting.n == AMX_WAITING || g + 1 == end) {
            flush(&s->amx, x, own, keys, lanes, &waiting);
            waiting = (waiting_groups){g + 1, 0};
        }
    }
}

/* Lanes of a panel that run over the keys at once: so few that scores, weights and sums stay in the first cache. */
#define STRIPE 64

static agi_row_panel stripe_of(const agi_head *x, const agi_row_panel *panel, int64_t lane)
{
    agi_row_panel stripe = *panel;
    stripe.i0 += lane;
    stripe.ni = agi_min(STRIPE, panel->ni - lane);
    stripe.W = agi_round_up(stripe.ni, x->k->lanes);
    stripe.m += lane;
    stripe.l += lane;
    stripe.r += lane;
    stripe.a += lane;
    return stripe;
}

static agi_amx_panel amx_stripe_of(const agi_amx_panel *panel, int64_t lane, bool tangents)
{
    agi_amx_panel stripe = *panel;
    stripe.columns.p += lane / AMX_LANES * panel->columns.line;
    stripe.O += lane;
    if (tangents) {
        stripe.t_columns.p += lane / AMX_LANES * panel->t_columns.line;
        stripe.tO += lane;
    }
    return stripe;
}

void agi_amx_row_block(agi_row_scratch *s, const agi_head *x, agi_row_panel *panels, int64_t n_panels,
                       int64_t j0, int64_t nj)
{
    const key_operands keys = load_keys(&s->amx, x, j0, nj);
    for (int64_t q = 0; q < n_panels; q++) {
        for (int64_t lane = 0; lane < panels[q].ni; lane += STRIPE) {
            agi_row_panel panel = stripe_of(x, &panels[q], lane);
            const agi_amx_panel own = amx_stripe_of(&s->amx.panel[q], lane, x->call->map == AGI_JVP);
            run_tile(s, x, &panel, &own, &keys);
        }
    }
}
