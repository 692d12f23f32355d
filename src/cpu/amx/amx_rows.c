/* Forward and jvp on the AMX unit: one block of keys against the panels of a block of queries. Sums are transposed,
 * O'^T, in tiles by columns, so that P^T is an operand as it stands. A panel takes the keys in groups; their weights wait
 * until the product with V of the whole block, because a longer sum is a cheaper one. */
#include <math.h>
#include <string.h>

#include "cpu/amx/amx_operands.h"
#include "cpu/amx/amx_ops.h"

enum {
    MAX_QUERIES = 1024,                 /* of a work item: operands of the keys take long to make */
    AMX_KEYS = 1024,                    /* keys of a block */
    AMX_WAITING = AMX_KEYS / GROUP_KEYS /* groups of keys whose weights wait for their product with V */
};

/* Operands of a panel, and the sums O'^T and T'^T. */
typedef struct {
    amx_operand columns, t_columns;
    uint16_t *Q;  /* with tQ before it, if there are tangents */
    real *O, *tO; /* in tiles, by columns */
    real *norms;  /* [PANEL]: of Q */
    bool empty;   /* nothing has been added to the sums, and they are not zero yet */
} amx_panel;

/* One thread's scratch. */
typedef struct {
    amx_panel panel[ROW_PANELS];
    uint16_t *K, *V, *tV; /* operands of a block of keys; K with tK */
    real *T[2], *U[2];    /* score tiles of a group, one filled while the other is used */
    int turn;             /* the one that is filled next */
    uint16_t *P, *tP;     /* weights that wait, as pairs, and their tangents */
    uint16_t *rows, *zeroed;
    uint8_t *keep;                  /* [AMX_WAITING][GROUP_KEYS]: the panel sees the key */
    agi_prefetch_rows ahead, after; /* what comes next, and what the item after this one begins with */
    amx_config before; /* the thread's tile configuration, which is restored at the end of an item */
} amx_scratch;

/* ---- Workspace ---- */

static void lay_out(agi_row_scratch *s, agi_arena *arena, const ag_plan *plan, agi_map map)
{
    const int64_t tangents = map == AGI_JVP, panels = agi_cpu_plan_of(plan)->rows.rows / PANEL;
    const int64_t Dk = agi_round_up(plan->p.dim_qk, AMX_DEPTH), Dv = agi_round_up(plan->p.dim_v, AMX_DEPTH);
    amx_scratch dry, *m = agi_take(arena, 1, sizeof *m);
    s->own = m;
    m = m == NULL ? &dry : m;
    for (int64_t q = 0; q < panels; q++) {
        amx_panel *panel = &m->panel[q];
        panel->Q = agi_take16(arena, (1 + tangents) * PANEL * Dk);
        panel->O = agi_take_reals(arena, PANEL * Dv);
        panel->tO = agi_take_reals(arena, tangents * PANEL * Dv);
        panel->norms = agi_take_reals(arena, PANEL);
    }
    m->K = agi_take16(arena, (1 + tangents) * AMX_KEYS * Dk);
    m->V = agi_take16(arena, AMX_KEYS * Dv);
    m->tV = agi_take16(arena, tangents * AMX_KEYS * Dv);
    for (int n = 0; n < 2; n++) {
        m->T[n] = agi_take_reals(arena, GROUP_KEYS * PANEL);
        m->U[n] = agi_take_reals(arena, tangents * GROUP_KEYS * PANEL);
    }
    m->P = agi_take16(arena, AMX_WAITING * GROUP_KEYS * PANEL);
    m->tP = agi_take16(arena, tangents * AMX_WAITING * GROUP_KEYS * PANEL);
    m->rows = agi_take16(arena, PANEL * agi_max(Dk, Dv));
    m->zeroed = agi_take16(arena, GROUP_KEYS * Dv);
    m->keep = agi_take(arena, AMX_WAITING * GROUP_KEYS, 1);
}

/* ---- A panel ---- */

static int64_t lanes_of(const agi_row_panel *panel)
{
    return agi_round_up(panel->ni, AMX_DEPTH);
}

/* May weights come from the table? */
static bool has_table(const agi_head *x)
{
    return x->call->map == AGI_FORWARD && x->has.plain && !x->has.dropout;
}

/* Weights of many keys may be less exact: their errors cancel out. */
enum { MANY_KEYS = 512 };

/* Norms of the queries, with m in 256ths; or infinity, where nothing is to be made of them. */
static void begin_norms(const amx_panel *to, const agi_head *x, const agi_row_panel *panel)
{
    int64_t first, end;
    REAL(agi_key_range)(x, panel->i0, 1, &first, &end);
    if (!has_table(x) || end - first < MANY_KEYS) {
        for (int64_t i = 0; i < PANEL; i++) {
            to->norms[i] = INFINITY;
        }
        return;
    }
    const amx_operand *q = &to->columns;
    for (int64_t i = 0; i < lanes_of(panel); i += AMX_LANES) {
        agi_amx_table.column_norms(to->norms + i, q->p + i / AMX_LANES * q->line,
                                   agi_round_up(x->Dk, AMX_DEPTH) / AMX_DEPTH);
    }
    for (int64_t i = 0; i < PANEL; i++) { /* the sink's logit, where there is one; large ones are in 256ths */
        panel->m[i] = fabsf(panel->m[i]) < 0x1p16f ? roundf(256 * panel->m[i]) / 256 : panel->m[i];
    }
}

static void begin_panel(amx_scratch *s, const agi_head *x, const agi_row_panel *panel)
{
    const ag_args *a = &x->call->a;
    const ag_dtype dtype = x->call->plan->p.dtype;
    const int64_t W = lanes_of(panel);
    const int64_t width = agi_round_up(x->Dk, AMX_DEPTH), own = AMX_LANES * width;
    const bool tangents = x->call->map == AGI_JVP;
    const int64_t line = tangents ? 2 * own : own, behind = tangents ? own : 0;
    amx_panel *to = &s->panel[panel->q];
    to->columns = agi_amx_query_columns(agi_query_slice(x, &a->q, dtype, x->Dk), panel->i0, panel->ni, W,
                                        NULL, to->Q + behind, line, s->rows);
    to->empty = true;
    begin_norms(to, x, panel);
    if (tangents) {
        to->t_columns = (amx_operand){to->Q, line, AMX_AB, 0};
    }
    if (tangents && a->tq.data != NULL) {
        agi_amx_query_columns(agi_query_slice(x, &a->tq, dtype, x->Dk), panel->i0, panel->ni, W, NULL, to->Q,
                              line, s->rows);
    }
}

/* Sums of a panel that saw no key. */
static void clear_sums(const agi_head *x, const amx_panel *panel)
{
    const size_t size = (size_t)(PANEL * agi_amx_tall(x->Dv)) * sizeof(float);
    memset(panel->O, 0, size);
    if (x->call->map == AGI_JVP) {
        memset(panel->tO, 0, size);
    }
}

static void end_panel(const amx_scratch *s, const agi_head *x, agi_row_panel *panel)
{
    const amx_panel *from = &s->panel[panel->q];
    const bool centred = x->call->map == AGI_FORWARD && !x->has.dropout;
    for (int64_t i = 0; i < PANEL && centred; i++) {
        panel->l[i] *= (float)(1 / AMX_CENTRED);
    }
    if (from->empty) {
        clear_sums(x, from);
    }
}

static void transpose_panel(const amx_scratch *s, const agi_head *x, agi_row_panel *panel)
{
    const amx_panel *from = &s->panel[panel->q];
    const int64_t W = lanes_of(panel);
    agi_amx_table.turn(panel->O, x->Dv_pad, from->O, agi_amx_tall(x->Dv), x->Dv_pad, W);
    if (x->call->map == AGI_JVP) {
        agi_amx_table.turn(panel->tO, x->Dv_pad, from->tO, agi_amx_tall(x->Dv), x->Dv_pad, W);
    }
}

/* Rescales the sums after the running maximum m grew; if r changed with it, T' += (r_old - r_new) O'. */
static void rescale(const agi_head *x, const amx_panel *panel, int64_t lanes, const float *alpha,
                    const float *delta)
{
    const bool tangents = x->call->map == AGI_JVP;
    for (int64_t q = 0; q < lanes && !panel->empty; q += AMX_LANES) {
        for (int64_t c = 0; c < x->Dv_pad; c++) {
            float *O = panel->O + q * agi_amx_tall(x->Dv) + c * AMX_LANES, *tO = panel->tO + (O - panel->O);
            for (int64_t i = 0; i < AMX_LANES && tangents; i++) {
                tO[i] = alpha[q + i] * (tO[i] + delta[q + i] * O[i]);
            }
            for (int64_t i = 0; i < AMX_LANES; i++) {
                O[i] *= alpha[q + i];
            }
        }
    }
}

/* ---- A block of keys ---- */

typedef struct {
    int64_t j0, nj;
    amx_operand K, V, tV; /* K's rows with tK's behind them, where there are tangents; tV.p NULL: absent */
    float reach[AMX_KEYS / GROUP_KEYS]; /* times the norm of a query: no less than a score, in base 2 */
} key_operands;

static key_operands load_keys(amx_scratch *s, const agi_head *x, int64_t j0, int64_t nj)
{
    const ag_args *a = &x->call->a;
    const bool tangents = x->call->map == AGI_JVP;
    key_operands keys = {.j0 = j0, .nj = nj};
    const ag_tensor none = {NULL, {0}};
    keys.K = agi_amx_key_rows_and_tangents(x, &a->k, tangents ? &a->tk : &none, x->Dk, j0, nj, s->K);
    for (int64_t j = 0; j < nj && has_table(x); j += GROUP_KEYS) {
        keys.reach[j / GROUP_KEYS] =
            fabsf(x->c) * agi_amx_table.largest_norm(keys.K.p + j * keys.K.row, keys.K.row,
                                                     agi_min(GROUP_KEYS, nj - j),
                                                     agi_round_up(x->Dk, AMX_DEPTH));
    }
    keys.V = agi_amx_key_columns(x, &a->v, x->Dv, j0, nj, s->V, s->rows);
    if (tangents && a->tv.data != NULL) {
        keys.tV = agi_amx_key_columns(x, &a->tv, x->Dv, j0, nj, s->tV, s->rows);
    }
    return keys;
}

/* The groups whose weights wait: n of them, from group first of the block on. Bits of those that have keys which are not
 * to be kept. */
typedef struct {
    int64_t first, n;
    uint32_t partial;
} waiting_groups;

_Static_assert(AMX_WAITING <= 32, "a bit for each group that waits");

/* C = or += V^T P^T for n waiting groups from number `at` on; A is V of the first of them. */
static void add_values(const agi_head *x, const uint16_t *V, const amx_operand *like, const uint16_t *weights,
                       int64_t lanes, int64_t at, int64_t n, float *C, bool add)
{
    const amx_operand A = {V, like->line, like->step, like->row};
    const amx_operand B = {weights + at * GROUP_KEYS * PANEL, AMX_AB, GROUP_KEYS * PANEL, 0};
    const amx_sums sums = amx_sums_by_columns(C, agi_amx_tall(x->Dv));
    agi_amx_table.product(x->Dv_pad / AMX_ROWS, lanes / AMX_LANES, n, &A, &B, &sums, add);
}

/* O' += R V, T' += (tS - r) R V for n groups, V being that of the first. */
static void add_groups(const amx_scratch *s, const agi_head *x, amx_panel *panel, const amx_operand *like,
                       const uint16_t *V, int64_t lanes, int64_t at, int64_t n)
{
    add_values(x, V, like, s->P, lanes, at, n, panel->O, !panel->empty);
    if (x->call->map == AGI_JVP) {
        add_values(x, V, like, s->tP, lanes, at, n, panel->tO, !panel->empty);
    }
    panel->empty = false;
}

/* O' += R V, T' += (tS - r) R V + R tV for n whole groups. */
static void add_whole_groups(const amx_scratch *s, const agi_head *x, amx_panel *panel,
                             const key_operands *keys, int64_t lanes, const waiting_groups *w, int64_t at,
                             int64_t n)
{
    const int64_t offset = (w->first + at) * keys->V.step;
    add_groups(s, x, panel, &keys->V, keys->V.p + offset, lanes, at, n);
    if (keys->tV.p != NULL) {
        add_values(x, keys->tV.p + offset, &keys->V, s->P, lanes, at, n, panel->tO, true);
    }
}

/* The same for one group of which some keys are not to be kept. */
static void add_clean_group(const amx_scratch *s, const agi_head *x, amx_panel *panel,
                            const key_operands *keys, int64_t lanes, const waiting_groups *w, int64_t at)
{
    const int64_t tiles = x->Dv_pad / AMX_ROWS, offset = (w->first + at) * keys->V.step;
    const uint8_t *const keep = s->keep + at * GROUP_KEYS;
    agi_amx_table.clean(s->zeroed, keys->V.p + offset, tiles, keep);
    add_groups(s, x, panel, &keys->V, s->zeroed, lanes, at, 1);
    if (keys->tV.p != NULL) {
        agi_amx_table.clean(s->zeroed, keys->tV.p + offset, tiles, keep);
        add_values(x, s->zeroed, &keys->V, s->P, lanes, at, 1, panel->tO, true);
    }
}

static void flush(const amx_scratch *s, const agi_head *x, amx_panel *panel, const key_operands *keys,
                  int64_t lanes, const waiting_groups *w)
{
    int64_t whole = 0;
    for (int64_t at = 0; at < w->n && w->partial != 0; at++) {
        if (w->partial >> at & 1) {
            if (whole < at) {
                add_whole_groups(s, x, panel, keys, lanes, w, whole, at - whole);
            }
            add_clean_group(s, x, panel, keys, lanes, w, at);
            whole = at + 1;
        }
    }
    if (whole < w->n) {
        add_whole_groups(s, x, panel, keys, lanes, w, whole, w->n - whole);
    }
}

/* ---- A group of keys ---- */

/* Group g of the block, number `at` of those that wait. Its keys that the panel sees are rows from .. to - 1. */
typedef struct {
    int64_t g, at, from, to;
    float *T, *U;
} key_group;

/* The squares of T = K Q^T transposed, or of U, for group g. */
static void add_squares(amx_next *to, const amx_operand *keys, int64_t g, const amx_operand *queries,
                        int64_t depth, int64_t lanes, float *T)
{
    for (int64_t i = 0; i < lanes; i += 2 * AMX_LANES) {
        agi_amx_add_square(to, keys, g * GROUP_KEYS, queries, i, depth, T + i);
    }
}

/* T = S^T = K Q^T, U = tQ K^T + Q tK^T transposed, of group g. Absent tangents are zero. */
static void expect_group(amx_next *to, const amx_scratch *s, const agi_head *x, const amx_panel *panel,
                         const key_operands *keys, int64_t g, int64_t lanes)
{
    const ag_args *a = &x->call->a;
    to->n = 0;
    add_squares(to, &keys->K, g, &panel->columns, agi_round_up(x->Dk, AMX_DEPTH) / AMX_DEPTH, lanes,
                s->T[s->turn]);
    if (x->call->map == AGI_JVP) {
        const agi_amx_sum sum =
            agi_amx_tangent_sum(keys->K, a->tk.data != NULL, panel->t_columns, a->tq.data != NULL, x->Dk);
        add_squares(to, &sum.rows, g, &sum.columns, sum.depth, lanes, s->U[s->turn]);
    }
}

static void hide_rows(float *T, int64_t from, int64_t to)
{
    for (int64_t n = from * PANEL; n < to * PANEL; n++) {
        T[n] = -INFINITY;
    }
}

/* Are scores plain, without dropout, and is it the band alone that hides keys of the group from the panel? */
static bool only_band_hides(const agi_head *x, const agi_row_panel *panel, agi_band band,
                            const key_group *group)
{
    int64_t from, to;
    agi_keys_of(band, 0, panel->ni, GROUP_KEYS, &from, &to);
    return x->has.plain && !x->has.dropout && group->from == from && group->to == to;
}

/* Of the group's keys those that are seen. */
static void keep_seen(const amx_scratch *s, const key_group *group)
{
    uint8_t *const keep = s->keep + group->at * GROUP_KEYS;
    memset(keep, 1, GROUP_KEYS);
    memset(keep, 0, (size_t)group->from);
    memset(keep + group->to, 0, (size_t)(GROUP_KEYS - group->to));
}

/* Features on the rows that are seen; the others get no weight, and their V none of its NaN. */
static void group_features(agi_row_scratch *s, const agi_head *x, const agi_row_panel *panel, int64_t j0,
                           const key_group *group)
{
    amx_scratch *const m = s->own;
    const int64_t n = group->to - group->from, row = group->from * PANEL;
    uint8_t *const keep = m->keep + group->at * GROUP_KEYS;
    const bool masked_keys =
        REAL(agi_row_scores)(s, x, panel, group->T + row, PANEL, j0 + group->g * GROUP_KEYS + group->from, n);
    hide_rows(group->T, 0, group->from);
    hide_rows(group->T, group->to, GROUP_KEYS);
    memset(keep, 0, GROUP_KEYS);
    for (int64_t j = 0; j < n; j++) {
        keep[group->from + j] = !masked_keys || !s->masked_keys[j];
    }
}

/* Weights and their tangents, both rounded, of a group with features, or where m moves. */
static bool tangents_with_features(agi_row_scratch *s, const agi_head *x, agi_row_panel *panel, int64_t j0,
                                   const key_group *group)
{
    amx_scratch *const m = s->own;
    const int64_t W = lanes_of(panel), to = group->at * GROUP_KEYS * PANEL, row = group->from * PANEL;
    x->k->score_tangents(group->U + row, x->has.softcap ? s->F : NULL, NULL, x->has.plain ? NULL : s->tX,
                         PANEL, group->to - group->from, panel->W, x->score_scale);
    const bool rescaled = x->k->softmax_tangent(group->T, group->U, PANEL, GROUP_KEYS, W, x->c, panel->m,
                                                panel->l, panel->r, panel->a, s->alpha, s->delta);
    if (x->has.dropout) {
        REAL(agi_dropout_tile)(x, panel->i0, W, j0 + group->g * GROUP_KEYS, GROUP_KEYS, s->M, PANEL);
        x->k->multiply(group->T, s->M, PANEL, GROUP_KEYS, W);
        x->k->multiply(group->U, s->M, PANEL, GROUP_KEYS, W);
    }
    agi_amx_table.round_pairs(m->P + to, group->T, W);
    agi_amx_table.round_pairs(m->tP + to, group->U, W);
    return rescaled;
}

static bool weights_with_dropout(agi_row_scratch *s, const agi_head *x, agi_row_panel *panel, int64_t j0,
                                 const key_group *group)
{
    amx_scratch *const m = s->own;
    const int64_t W = lanes_of(panel);
    const bool rescaled = x->k->softmax(group->T, PANEL, GROUP_KEYS, W, x->c, panel->m, panel->l, s->alpha);
    REAL(agi_dropout_tile)(x, panel->i0, W, j0 + group->g * GROUP_KEYS, GROUP_KEYS, s->M, PANEL);
    x->k->multiply(group->T, s->M, PANEL, GROUP_KEYS, W);
    agi_amx_table.round_pairs(m->P + group->at * GROUP_KEYS * PANEL, group->T, W);
    return rescaled;
}

/* Weights of a whole panel on which nothing but the band is: rounded already by what computes them, beside the next
 * group's scores. Returns whether they are done; where not, m moves. */
static bool plain_weights(agi_row_scratch *s, const agi_head *x, agi_row_panel *panel, const amx_panel *own,
                          const key_operands *keys, agi_band band, const key_group *group,
                          const amx_next *next)
{
    amx_scratch *const m = s->own;
    const int64_t to = group->at * GROUP_KEYS * PANEL;
    uint16_t *const P = m->P + to;
    if (x->call->map == AGI_FORWARD) {
        return agi_amx_table.weights(P, group->T, x->c, own->norms, keys->reach[group->g], band.low,
                                     band.high, panel->m, panel->l, next);
    }
    return agi_amx_table.softmax_tangent(P, m->tP + to, group->T, group->U, x->c, x->score_scale, panel->m,
                                         panel->l, panel->r, panel->a, next);
}

/* The same where m may move, and with all features. whole: there are none, and all queries see all keys. Returns
 * whether what was summed so far is worth less. */
static bool other_weights(agi_row_scratch *s, const agi_head *x, agi_row_panel *panel, const amx_panel *own,
                          const key_operands *keys, const key_group *group, bool whole)
{
    amx_scratch *const m = s->own;
    const bool forward = x->call->map == AGI_FORWARD, by_table = whole && forward;
    if (!by_table) {
        group_features(s, x, panel, keys->j0, group);
    }
    if (!forward) {
        return tangents_with_features(s, x, panel, keys->j0, group);
    }
    if (x->has.dropout) {
        return weights_with_dropout(s, x, panel, keys->j0, group);
    }
    return agi_amx_table.softmax(m->P + group->at * GROUP_KEYS * PANEL, group->T, lanes_of(panel), x->c,
                                 own->norms, by_table ? keys->reach[group->g] : INFINITY, panel->m, panel->l,
                                 s->alpha);
}

/* Weights of any group, rounded, and the next group's scores. */
static bool group_weights(agi_row_scratch *s, const agi_head *x, agi_row_panel *panel, const amx_panel *own,
                          const key_operands *keys, const key_group *group, const amx_next *next)
{
    amx_scratch *const m = s->own;
    const agi_band band = REAL(agi_band_at)(x, panel->i0, keys->j0 + group->g * GROUP_KEYS);
    const bool inside = agi_inside(band, panel->ni, GROUP_KEYS),
               plain = only_band_hides(x, panel, band, group);
    keep_seen(m, group);
    if (plain && lanes_of(panel) == PANEL && (inside || x->call->map == AGI_FORWARD)) {
        if (plain_weights(s, x, panel, own, keys, band, group, next)) {
            return false;
        }
    } else {
        agi_amx_table.scores(next);
    }
    return other_weights(s, x, panel, own, keys, group, plain && inside);
}

/* ---- A tile ---- */

/* The weights of the newest group, number `at`, become those of the first. */
static void move_down(const amx_scratch *s, int64_t at, bool tangents)
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

/* ---- What comes next ---- */

static void prefetch_keys(agi_prefetch_rows *to, const agi_head *x, int64_t first, int64_t n)
{
    const ag_args *a = &x->call->a;
    agi_amx_prefetch_rows(to, agi_key_slice(x, &a->k, x->Dk), first, n);
    agi_amx_prefetch_rows(to, agi_key_slice(x, &a->v, x->Dv), first, n);
    if (x->call->map == AGI_JVP) {
        agi_amx_prefetch_rows(to, agi_key_slice(x, &a->tk, x->Dk), first, n);
        agi_amx_prefetch_rows(to, agi_key_slice(x, &a->tv, x->Dv), first, n);
    }
}

/* The next item's queries and, if they are others, its first block of keys. jvp's cache has no room for them. */
static void expect_item(amx_scratch *s, const agi_head *x, const agi_head *y, int64_t i0, int64_t n)
{
    const ag_args *a = &x->call->a;
    agi_amx_prefetch_rows(&s->after, agi_query_slice(y, &a->q, AG_BF16, y->Dk), i0, n);
    if (y->seq.view != x->seq.view || y->seq.k0 != x->seq.k0 || y->hk != x->hk) {
        int64_t from, to;
        REAL(agi_key_range)(y, i0, n, &from, &to);
        prefetch_keys(&s->after, y, from, agi_min(to, from / AMX_KEYS * AMX_KEYS + AMX_KEYS) - from);
    }
}

/* A thread takes items in turn. Parts of the keys are short: nothing is prefetched after them. */
static void expect_next(const agi_row_job *w, amx_scratch *s, const agi_head *x, int64_t item)
{
    const agi_row_schedule *schedule = &w->cpu->rows;
    s->after = (agi_prefetch_rows){.n = 0};
    if (schedule->kv_splits == 1 && item + 1 < schedule->items && x->call->map == AGI_FORWARD) {
        agi_head y;
        const int64_t i0 = REAL(agi_row_begin_item)(w, item + 1, &y),
                      n = agi_min(schedule->rows, y.seq.n_q - i0);
        if (n > 0) {
            expect_item(s, x, &y, i0, n);
        }
    }
}

/* The next block of keys, or behind the last the next item: where causal, the last block has half of its groups. */
static void begin_prefetch(amx_scratch *s, const agi_head *x, int64_t next, int64_t n, int64_t groups)
{
    if (n > 0) {
        s->ahead = (agi_prefetch_rows){.n = 0};
        prefetch_keys(&s->ahead, x, next, n);
        agi_prefetch_rows_begin(&s->ahead, groups);
    } else {
        s->ahead = s->after;
        agi_prefetch_rows_begin(&s->ahead, (groups + 1) / 2);
    }
}

/* A panel against a block of keys: it sees keys from .. from + n - 1 of the block, groups first .. end - 1. Of these all
 * queries of a whole panel see all keys of groups whole .. whole_end - 1, and there are no features. */
typedef struct {
    int64_t q;
    int64_t from, n;
    int64_t first, end;
    int64_t whole, whole_end;
} row_tile;

static bool all_see(const agi_head *x, const agi_row_panel *panel, const key_operands *keys, int64_t g)
{
    return agi_inside(REAL(agi_band_at)(x, panel->i0, keys->j0 + g * GROUP_KEYS), panel->ni, GROUP_KEYS);
}

static void find_whole_groups(const agi_head *x, const agi_row_panel *panel, const key_operands *keys,
                              row_tile *t)
{
    t->whole = (t->from + GROUP_KEYS - 1) / GROUP_KEYS;
    t->whole_end = (t->from + t->n) / GROUP_KEYS;
    if (!x->has.plain || x->has.dropout || lanes_of(panel) < PANEL) {
        t->whole_end = t->whole;
    }
    while (t->whole < t->whole_end && !all_see(x, panel, keys, t->whole)) {
        t->whole++;
    }
    while (t->whole < t->whole_end && !all_see(x, panel, keys, t->whole_end - 1)) {
        t->whole_end--;
    }
}

/* The next panel that sees a key of the block; q: panels before it are done. */
static bool next_tile(const agi_head *x, const agi_row_panel *panels, int64_t n_panels,
                      const key_operands *keys, int64_t q, row_tile *t)
{
    for (t->q = q; t->q < n_panels; t->q++) {
        if (REAL(agi_clip_keys)(x, &panels[t->q], keys->j0, keys->nj, &t->from, &t->n)) {
            t->first = t->from / GROUP_KEYS;
            t->end = (t->from + t->n + GROUP_KEYS - 1) / GROUP_KEYS;
            find_whole_groups(x, &panels[t->q], keys, t);
            return true;
        }
    }
    return false;
}

/* Weights of group g of the tile. Returns whether what was summed so far is worth less. */
static bool run_group(agi_row_scratch *s, const agi_head *x, agi_row_panel *panel, const amx_panel *own,
                      const key_operands *keys, const row_tile *t, int64_t g, waiting_groups *waiting,
                      float *T, float *U, const amx_next *next)
{
    amx_scratch *const m = s->own;
    static const agi_band everything = {INT64_MIN / 4, INT64_MAX / 4};
    const key_group group = {g,
                             waiting->n,
                             agi_max(0, t->from - g * GROUP_KEYS),
                             agi_min(GROUP_KEYS, t->from + t->n - g * GROUP_KEYS),
                             T,
                             U};
    if (g >= t->whole && g < t->whole_end) {
        return !plain_weights(s, x, panel, own, keys, everything, &group, next) &&
               other_weights(s, x, panel, own, keys, &group, true);
    }
    const bool rescaled = group_weights(s, x, panel, own, keys, &group, next);
    const bool partial = memchr(m->keep + group.at * GROUP_KEYS, 0, GROUP_KEYS) != NULL;
    waiting->partial |= (uint32_t)partial << group.at;
    return rescaled;
}

/* All groups of a tile. The scores of a group are computed while those of the group before it are used, which may be the
 * last one of the tile before. */
static void run_tile(agi_row_scratch *s, const agi_head *x, agi_row_panel *panels, const key_operands *keys,
                     const row_tile *t, const row_tile *after)
{
    amx_scratch *const m = s->own;
    agi_row_panel *const panel = &panels[t->q];
    amx_panel *const own = &m->panel[t->q];
    const int64_t lanes = lanes_of(panel);
    waiting_groups waiting = {.first = t->first};
    amx_next next;
    for (int64_t g = t->first; g < t->end; g++) {
        float *const T = m->T[m->turn], *const U = m->U[m->turn];
        m->turn = !m->turn;
        next.n = 0;
        if (g + 1 < t->end) {
            expect_group(&next, m, x, own, keys, g + 1, lanes);
        } else if (after != NULL) {
            expect_group(&next, m, x, &m->panel[after->q], keys, after->first, lanes_of(&panels[after->q]));
        }
        agi_amx_prefetch_step(&m->ahead, &next);
        if (run_group(s, x, panel, own, keys, t, g, &waiting, T, U, &next)) {
            flush(m, x, own, keys, lanes, &waiting);
            rescale(x, own, lanes, s->alpha, s->delta);
            move_down(m, waiting.n, x->call->map == AGI_JVP);
            waiting = (waiting_groups){g, 0, waiting.partial >> waiting.n};
        }
        waiting.n++;
    }
    flush(m, x, own, keys, lanes, &waiting);
}

static void block(agi_row_scratch *s, const agi_head *x, agi_row_panel *panels, int64_t n_panels, int64_t j0,
                  int64_t nj, int64_t end)
{
    amx_scratch *const m = s->own;
    const key_operands keys = load_keys(m, x, j0, nj);
    const int64_t next = j0 + nj, groups = (nj + GROUP_KEYS - 1) / GROUP_KEYS;
    row_tile tile[2];
    bool there = next_tile(x, panels, n_panels, &keys, 0, &tile[0]);
    begin_prefetch(m, x, next, agi_min(AMX_KEYS, end - next), n_panels * groups);
    if (there) {
        amx_next first = {.n = 0};
        m->turn = 0;
        expect_group(&first, m, x, &m->panel[tile[0].q], &keys, tile[0].first, lanes_of(&panels[tile[0].q]));
        agi_amx_table.scores(&first);
    }
    for (int turn = 0; there; turn = !turn) {
        there = next_tile(x, panels, n_panels, &keys, tile[turn].q + 1, &tile[!turn]);
        run_tile(s, x, panels, &keys, &tile[turn], there ? &tile[!turn] : NULL);
    }
}

/* ---- An item ---- */

static void begin(const agi_row_job *w, agi_row_scratch *s, const agi_head *x, const agi_row_panel *panels,
                  int64_t n_panels, int64_t item)
{
    amx_scratch *const m = s->own;
    expect_next(w, m, x, item);
    agi_amx_table.begin(&m->before);
    for (int64_t q = 0; q < n_panels; q++) {
        begin_panel(m, x, &panels[q]);
    }
}

/* Does O go from AMX's sums straight to the caller's array? */
static bool stores_sums(const agi_row_job *w, const agi_head *x)
{
    return x->call->map == AGI_FORWARD && w->cpu->rows.kv_splits == 1 &&
           (x->call->a.accumulate & AG_ACC_O) == 0;
}

static void end(const agi_row_job *w, agi_row_scratch *s, const agi_head *x, agi_row_panel *panels,
                int64_t n_panels)
{
    amx_scratch *const m = s->own;
    for (int64_t q = 0; q < n_panels; q++) {
        end_panel(m, x, &panels[q]);
        if (!stores_sums(w, x)) {
            transpose_panel(m, x, &panels[q]);
        }
    }
    agi_amx_table.end(&m->before);
}

static void store(const agi_row_job *w, const agi_row_scratch *s, const agi_head *x,
                  const agi_row_panel *panel, const double *factor)
{
    const amx_scratch *const m = s->own;
    if (stores_sums(w, x)) {
        agi_amx_store_transposed(agi_query_slice(x, &x->call->a.o, AG_BF16, x->Dv), panel->i0, panel->ni,
                                 m->panel[panel->q].O, factor, 1, m->rows);
    } else {
        REAL(agi_row_store_panel)(w, s, x, panel, factor);
    }
}

const agi_row_ops agi_amx_row_ops = {
    .max_queries = MAX_QUERIES,
    .min_blocks = 12,
    .block_keys = AMX_KEYS,
    .key_step =
        GROUP_KEYS, /* as in the backward: the order of a score's sum depends on its place in the group */
    .query_step = PANEL,
    .lay_out = lay_out,
    .begin = begin,
    .block = block,
    .end = end,
    .store = store,
};
