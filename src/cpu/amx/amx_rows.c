/* The row ops on AMX: one block of keys against the panels of a block of queries. Sums are transposed, O'^T, and
 * stored by columns of tiles, so that P^T is an operand without a transposition. A panel takes the keys in
 * groups of 32; the weights of all groups of a block are kept, and then multiplied with V at once, because a
 * longer sum costs less per key. */
#include <math.h>
#include <string.h>

#include "cpu/amx/amx_operands.h"
#include "cpu/amx/amx_ops.h"

enum {
    MAX_QUERIES = 1024, /* max queries of a block: making the operands of the keys must pay */
    BLOCK_KEYS = 1024,  /* keys of a block */
    MAX_PENDING = BLOCK_KEYS / GROUP_KEYS /* max groups of keys whose weights are not yet multiplied with V */
};

/* Operands of a panel, and the sums O'^T and T'^T. */
typedef struct {
    amx_operand queries, t_queries;
    uint16_t *Q;  /* memory of the operands: [tQ | Q], or Q in forward */
    real *O, *tO; /* by columns of tiles */
    real *norms;  /* [PANEL]: norms of the queries; infinite: do not use the exp2 table */
    bool empty;   /* the sums are not set yet: the first product overwrites them */
} amx_panel;

/* One thread's scratch. */
typedef struct {
    amx_panel panel[ROW_PANELS];
    uint16_t *K, *V, *tV; /* operands of a block of keys: [K | tK], V and tV transposed */
    real *T[2], *U[2];    /* score tiles of two groups: one is computed while the other is used */
    int next_buffer;      /* which of the two is computed next */
    uint16_t *P, *tP;     /* pending weights and their tangents, in VNNI pairs of keys */
    uint16_t *rows, *zeroed;
    uint8_t *visible; /* [MAX_PENDING][GROUP_KEYS]: does some query of the panel see the key? */
    agi_prefetch_rows prefetch, after; /* rows that are read next, and the first rows of the next item */
    amx_config before;                 /* the caller's tile configuration, restored at the end of an item */
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
    m->K = agi_take16(arena, (1 + tangents) * BLOCK_KEYS * Dk);
    m->V = agi_take16(arena, BLOCK_KEYS * Dv);
    m->tV = agi_take16(arena, tangents * BLOCK_KEYS * Dv);
    for (int n = 0; n < 2; n++) {
        m->T[n] = agi_take_reals(arena, GROUP_KEYS * PANEL);
        m->U[n] = agi_take_reals(arena, tangents * GROUP_KEYS * PANEL);
    }
    m->P = agi_take16(arena, MAX_PENDING * GROUP_KEYS * PANEL);
    m->tP = agi_take16(arena, tangents * MAX_PENDING * GROUP_KEYS * PANEL);
    m->rows = agi_take16(arena, PANEL * agi_max(Dk, Dv));
    m->zeroed = agi_take16(arena, GROUP_KEYS * Dv);
    m->visible = agi_take(arena, MAX_PENDING * GROUP_KEYS, 1);
}

/* ---- A panel ---- */

static int64_t lanes_of(const agi_row_panel *panel)
{
    return agi_round_up(panel->ni, AMX_DEPTH);
}

/* May weights come from the exp2 table? */
static bool may_use_exp2_lut(const agi_head *x)
{
    return x->call->map == AGI_FORWARD && x->has.plain && !x->has.dropout;
}

/* With at least this many keys the errors of single weights average out. */
enum { MIN_LUT_KEYS = 512 };

/* Norms of the queries, and m rounded to a multiple of 1/256, if weights may come from the exp2 table; else
 * infinity, which tells the kernels not to use it. */
static void begin_norms(const amx_panel *to, const agi_head *x, const agi_row_panel *panel)
{
    int64_t first, end;
    REAL(agi_key_range)(x, panel->i0, 1, &first, &end);
    if (!may_use_exp2_lut(x) || end - first < MIN_LUT_KEYS) {
        for (int64_t i = 0; i < PANEL; i++) {
            to->norms[i] = INFINITY;
        }
        return;
    }
    const amx_operand *q = &to->queries;
    for (int64_t i = 0; i < lanes_of(panel); i += AMX_LANES) {
        agi_amx_table.column_norms(to->norms + i, q->p + i / AMX_LANES * q->stride_mn,
                                   agi_round_up(x->Dk, AMX_DEPTH) / AMX_DEPTH);
    }
    for (int64_t i = 0; i < PANEL;
         i++) { /* m is the sink's logit, if there is a sink; large floats are multiples of 1/256 already */
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
    const int64_t query_stride = tangents ? 2 * own : own, offset = tangents ? own : 0;
    amx_panel *to = &s->panel[panel->q];
    to->queries = agi_amx_query_columns(agi_query_slice(x, &a->q, dtype, x->Dk), panel->i0, panel->ni, W,
                                        NULL, to->Q + offset, query_stride, s->rows);
    to->empty = true;
    begin_norms(to, x, panel);
    if (tangents) {
        to->t_queries = (amx_operand){to->Q, query_stride, AMX_AB, 0};
    }
    if (tangents && a->tq.data != NULL) {
        agi_amx_query_columns(agi_query_slice(x, &a->tq, dtype, x->Dk), panel->i0, panel->ni, W, NULL, to->Q,
                              query_stride, s->rows);
    }
}

/* Zeroes the sums of a panel that saw no key. */
static void zero_sums(const agi_head *x, const amx_panel *panel)
{
    const size_t size = (size_t)(PANEL * agi_amx_col_stride(x->Dv)) * sizeof(float);
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
        panel->l[i] *= (float)(1 / AMX_TRUNCATION_SCALE);
    }
    if (from->empty) {
        zero_sums(x, from);
    }
}

static void transpose_panel(const amx_scratch *s, const agi_head *x, agi_row_panel *panel)
{
    const amx_panel *from = &s->panel[panel->q];
    const int64_t W = lanes_of(panel);
    agi_amx_table.transpose_sums(panel->O, x->Dv_pad, from->O, agi_amx_col_stride(x->Dv), x->Dv_pad, W);
    if (x->call->map == AGI_JVP) {
        agi_amx_table.transpose_sums(panel->tO, x->Dv_pad, from->tO, agi_amx_col_stride(x->Dv), x->Dv_pad, W);
    }
}

/* Rescales the sums after the running maximum m grew; if r changed with it, T' += (r_old - r_new) O'. */
static void rescale(const agi_head *x, const amx_panel *panel, int64_t lanes, const float *alpha,
                    const float *delta)
{
    const bool tangents = x->call->map == AGI_JVP;
    for (int64_t q = 0; q < lanes && !panel->empty; q += AMX_LANES) {
        for (int64_t c = 0; c < x->Dv_pad; c++) {
            float *O = panel->O + q * agi_amx_col_stride(x->Dv) + c * AMX_LANES,
                  *tO = panel->tO + (O - panel->O);
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
    amx_operand K, V, tV; /* [K | tK], V and tV transposed; tV.p is NULL if it is absent */
    float
        max_score_per_norm[BLOCK_KEYS / GROUP_KEYS]; /* times the norm of a query: an upper bound of |c S| */
} key_operands;

static key_operands load_keys(amx_scratch *s, const agi_head *x, int64_t j0, int64_t nj)
{
    const ag_args *a = &x->call->a;
    const bool tangents = x->call->map == AGI_JVP;
    key_operands keys = {.j0 = j0, .nj = nj};
    const ag_tensor none = {NULL, {0}};
    keys.K = agi_amx_key_rows_and_tangents(x, &a->k, tangents ? &a->tk : &none, x->Dk, j0, nj, s->K);
    for (int64_t j = 0; j < nj && may_use_exp2_lut(x); j += GROUP_KEYS) {
        keys.max_score_per_norm[j / GROUP_KEYS] =
            fabsf(x->c) * agi_amx_table.largest_norm(keys.K.p + j * keys.K.ld, keys.K.ld,
                                                     agi_min(GROUP_KEYS, nj - j),
                                                     agi_round_up(x->Dk, AMX_DEPTH));
    }
    keys.V = agi_amx_key_columns(x, &a->v, x->Dv, j0, nj, s->V, s->rows);
    if (tangents && a->tv.data != NULL) {
        keys.tV = agi_amx_key_columns(x, &a->tv, x->Dv, j0, nj, s->tV, s->rows);
    }
    return keys;
}

/* The groups of a block whose weights are pending: n groups, starting with number `first` of the block. Bit g of
 * `partial`: group first + g has keys that no query of the panel sees. */
typedef struct {
    int64_t first, n;
    uint32_t partial;
} pending_groups;

_Static_assert(MAX_PENDING <= 32, "a bit for each group that waits");

/* C = V^T P^T, or C += V^T P^T, for n pending groups, starting with number `at`. V: the operand of the first of
 * them. */
static void add_values(const agi_head *x, const uint16_t *V, const amx_operand *like, const uint16_t *weights,
                       int64_t lanes, int64_t at, int64_t n, float *C, bool add)
{
    const amx_operand A = {V, like->stride_mn, like->stride_k, like->ld};
    const amx_operand B = {weights + at * GROUP_KEYS * PANEL, AMX_AB, GROUP_KEYS * PANEL, 0};
    const amx_sums sums = amx_sums_by_columns(C, agi_amx_col_stride(x->Dv));
    agi_amx_table.product(x->Dv_pad / AMX_ROWS, lanes / AMX_LANES, n, &A, &B, &sums, add);
}

/* O' += R V, T' += (tS - r) R V for n pending groups. V: the operand of the first of them. */
static void add_groups(const amx_scratch *s, const agi_head *x, amx_panel *panel, const amx_operand *like,
                       const uint16_t *V, int64_t lanes, int64_t at, int64_t n)
{
    add_values(x, V, like, s->P, lanes, at, n, panel->O, !panel->empty);
    if (x->call->map == AGI_JVP) {
        add_values(x, V, like, s->tP, lanes, at, n, panel->tO, !panel->empty);
    }
    panel->empty = false;
}

/* O' += R V, T' += (tS - r) R V + R tV for n groups without masked keys. */
static void add_whole_groups(const amx_scratch *s, const agi_head *x, amx_panel *panel,
                             const key_operands *keys, int64_t lanes, const pending_groups *w, int64_t at,
                             int64_t n)
{
    const int64_t offset = (w->first + at) * keys->V.stride_k;
    add_groups(s, x, panel, &keys->V, keys->V.p + offset, lanes, at, n);
    if (keys->tV.p != NULL) {
        add_values(x, keys->tV.p + offset, &keys->V, s->P, lanes, at, n, panel->tO, true);
    }
}

/* The same for one group with masked keys. */
static void add_masked_group(const amx_scratch *s, const agi_head *x, amx_panel *panel,
                             const key_operands *keys, int64_t lanes, const pending_groups *w, int64_t at)
{
    const int64_t tiles = x->Dv_pad / AMX_ROWS, offset = (w->first + at) * keys->V.stride_k;
    const uint8_t *const visible = s->visible + at * GROUP_KEYS;
    agi_amx_table.zero_masked_keys(s->zeroed, keys->V.p + offset, tiles, visible);
    add_groups(s, x, panel, &keys->V, s->zeroed, lanes, at, 1);
    if (keys->tV.p != NULL) {
        agi_amx_table.zero_masked_keys(s->zeroed, keys->tV.p + offset, tiles, visible);
        add_values(x, s->zeroed, &keys->V, s->P, lanes, at, 1, panel->tO, true);
    }
}

static void flush(const amx_scratch *s, const agi_head *x, amx_panel *panel, const key_operands *keys,
                  int64_t lanes, const pending_groups *w)
{
    int64_t whole = 0;
    for (int64_t at = 0; at < w->n && w->partial != 0; at++) {
        if (w->partial >> at & 1) {
            if (whole < at) {
                add_whole_groups(s, x, panel, keys, lanes, w, whole, at - whole);
            }
            add_masked_group(s, x, panel, keys, lanes, w, at);
            whole = at + 1;
        }
    }
    if (whole < w->n) {
        add_whole_groups(s, x, panel, keys, lanes, w, whole, w->n - whole);
    }
}

/* ---- A group of keys ---- */

/* Group g of the block, number `at` of the pending ones. The panel sees its keys from .. to - 1. */
typedef struct {
    int64_t g, at, from, to;
    float *T, *U;
} key_group;

/* Queues the 2 x 2 blocks of T = K Q^T, or of U, for group g. */
static void queue_blocks(amx_queue *to, const amx_operand *keys, int64_t g, const amx_operand *queries,
                         int64_t depth, int64_t lanes, float *T)
{
    for (int64_t i = 0; i < lanes; i += 2 * AMX_LANES) {
        agi_amx_queue_block(to, keys, g * GROUP_KEYS, queries, i, depth, T + i);
    }
}

/* Queues the products of group g: T = S^T = K Q^T, and in jvp U = (tQ K^T + Q tK^T)^T. Absent tangents are zero. */
static void queue_group(amx_queue *to, const amx_scratch *s, const agi_head *x, const amx_panel *panel,
                        const key_operands *keys, int64_t g, int64_t lanes)
{
    const ag_args *a = &x->call->a;
    to->n = 0;
    queue_blocks(to, &keys->K, g, &panel->queries, agi_round_up(x->Dk, AMX_DEPTH) / AMX_DEPTH, lanes,
                 s->T[s->next_buffer]);
    if (x->call->map == AGI_JVP) {
        const agi_amx_sum sum =
            agi_amx_tangent_sum(keys->K, a->tk.data != NULL, panel->t_queries, a->tq.data != NULL, x->Dk);
        queue_blocks(to, &sum.rows, g, &sum.columns, sum.depth, lanes, s->U[s->next_buffer]);
    }
}

static void mask_rows(float *T, int64_t from, int64_t to)
{
    for (int64_t n = from * PANEL; n < to * PANEL; n++) {
        T[n] = -INFINITY;
    }
}

/* Are scores plain, without dropout, and does nothing but the band mask keys of the group for the panel? */
static bool only_band_masks(const agi_head *x, const agi_row_panel *panel, agi_band band,
                            const key_group *group)
{
    int64_t from, to;
    agi_keys_of(band, 0, panel->ni, GROUP_KEYS, &from, &to);
    return x->has.plain && !x->has.dropout && group->from == from && group->to == to;
}

/* Which keys of the group are visible. */
static void note_visible_keys(const amx_scratch *s, const key_group *group)
{
    uint8_t *const visible = s->visible + group->at * GROUP_KEYS;
    memset(visible, 1, GROUP_KEYS);
    memset(visible, 0, (size_t)group->from);
    memset(visible + group->to, 0, (size_t)(GROUP_KEYS - group->to));
}

/* Applies features to the visible keys. The others get score -infinity, and their rows of V will be zeroed, as
 * they may be NaN. */
static void group_features(agi_row_scratch *s, const agi_head *x, const agi_row_panel *panel, int64_t j0,
                           const key_group *group)
{
    amx_scratch *const m = s->own;
    const int64_t n = group->to - group->from, row = group->from * PANEL;
    uint8_t *const visible = m->visible + group->at * GROUP_KEYS;
    const bool masked_keys =
        REAL(agi_row_scores)(s, x, panel, group->T + row, PANEL, j0 + group->g * GROUP_KEYS + group->from, n);
    mask_rows(group->T, 0, group->from);
    mask_rows(group->T, group->to, GROUP_KEYS);
    memset(visible, 0, GROUP_KEYS);
    for (int64_t j = 0; j < n; j++) {
        visible[group->from + j] = !masked_keys || !s->masked_keys[j];
    }
}

/* jvp: weights and their tangents, rounded, of a group with features, or if the running maximum must grow. */
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
    agi_amx_table.round_to_vnni(m->P + to, group->T, W);
    agi_amx_table.round_to_vnni(m->tP + to, group->U, W);
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
    agi_amx_table.round_to_vnni(m->P + group->at * GROUP_KEYS * PANEL, group->T, W);
    return rescaled;
}

/* Weights of a whole panel with nothing but the band on its scores, rounded by the kernel that computes them;
 * the products of the next group are interleaved. False: nothing was done, because the running maximum must
 * grow. */
static bool plain_weights(agi_row_scratch *s, const agi_head *x, agi_row_panel *panel, const amx_panel *own,
                          const key_operands *keys, agi_band band, const key_group *group,
                          const amx_queue *next)
{
    amx_scratch *const m = s->own;
    const int64_t to = group->at * GROUP_KEYS * PANEL;
    uint16_t *const P = m->P + to;
    if (x->call->map == AGI_FORWARD) {
        return agi_amx_table.weights(P, group->T, x->c, own->norms, keys->max_score_per_norm[group->g],
                                     band.low, band.high, panel->m, panel->l, next);
    }
    return agi_amx_table.softmax_tangent(P, m->tP + to, group->T, group->U, x->c, x->score_scale, panel->m,
                                         panel->l, panel->r, panel->a, next);
}

/* Weights of any group. whole: there are no features, and all queries see all its keys. Returns whether the sums
 * so far must be rescaled. */
static bool other_weights(agi_row_scratch *s, const agi_head *x, agi_row_panel *panel, const amx_panel *own,
                          const key_operands *keys, const key_group *group, bool whole)
{
    amx_scratch *const m = s->own;
    const bool forward = x->call->map == AGI_FORWARD, by_lut = whole && forward;
    if (!by_lut) {
        group_features(s, x, panel, keys->j0, group);
    }
    if (!forward) {
        return tangents_with_features(s, x, panel, keys->j0, group);
    }
    if (x->has.dropout) {
        return weights_with_dropout(s, x, panel, keys->j0, group);
    }
    return agi_amx_table.softmax(m->P + group->at * GROUP_KEYS * PANEL, group->T, lanes_of(panel), x->c,
                                 own->norms, by_lut ? keys->max_score_per_norm[group->g] : INFINITY, panel->m,
                                 panel->l, s->alpha);
}

/* Weights of any group, rounded, and the products of the next group. */
static bool group_weights(agi_row_scratch *s, const agi_head *x, agi_row_panel *panel, const amx_panel *own,
                          const key_operands *keys, const key_group *group, const amx_queue *next)
{
    amx_scratch *const m = s->own;
    const agi_band band = REAL(agi_band_at)(x, panel->i0, keys->j0 + group->g * GROUP_KEYS);
    const bool inside = agi_inside(band, panel->ni, GROUP_KEYS),
               plain = only_band_masks(x, panel, band, group);
    note_visible_keys(m, group);
    if (plain && lanes_of(panel) == PANEL && (inside || x->call->map == AGI_FORWARD)) {
        if (plain_weights(s, x, panel, own, keys, band, group, next)) {
            return false;
        }
    } else {
        agi_amx_table.score_blocks(next);
    }
    return other_weights(s, x, panel, own, keys, group, plain && inside);
}

/* ---- A tile ---- */

/* After the groups before it were multiplied, the newest group, number `at`, becomes number 0. */
static void move_to_front(const amx_scratch *s, int64_t at, bool tangents)
{
    const int64_t size = GROUP_KEYS * PANEL;
    if (at > 0) {
        memcpy(s->P, s->P + at * size, (size_t)size * sizeof *s->P);
        memcpy(s->visible, s->visible + at * GROUP_KEYS, GROUP_KEYS);
        if (tangents) {
            memcpy(s->tP, s->tP + at * size, (size_t)size * sizeof *s->tP);
        }
    }
}

/* ---- Prefetching ---- */

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

/* The queries of the next item and, if it has other keys, its first block of keys. */
static void prefetch_item(amx_scratch *s, const agi_head *x, const agi_head *y, int64_t i0, int64_t n)
{
    const ag_args *a = &x->call->a;
    agi_amx_prefetch_rows(&s->after, agi_query_slice(y, &a->q, AG_BF16, y->Dk), i0, n);
    if (y->seq.view != x->seq.view || y->seq.k0 != x->seq.k0 || y->hk != x->hk) {
        int64_t from, to;
        REAL(agi_key_range)(y, i0, n, &from, &to);
        prefetch_keys(&s->after, y, from, agi_min(to, from / BLOCK_KEYS * BLOCK_KEYS + BLOCK_KEYS) - from);
    }
}

/* A thread usually takes the item after this one next. Not if keys are split, as splits are short, and not in
 * jvp, whose cache is full. */
static void prefetch_next_item(const agi_row_job *w, amx_scratch *s, const agi_head *x, int64_t item)
{
    const agi_row_schedule *schedule = &w->cpu->rows;
    s->after = (agi_prefetch_rows){.n = 0};
    if (schedule->kv_splits == 1 && item + 1 < schedule->items && x->call->map == AGI_FORWARD) {
        agi_head y;
        const int64_t i0 = REAL(agi_row_begin_item)(w, item + 1, &y),
                      n = agi_min(schedule->rows, y.seq.n_q - i0);
        if (n > 0) {
            prefetch_item(s, x, &y, i0, n);
        }
    }
}

/* Plans the prefetch of the next block of keys, or after the last one, of the next item. If causal, the last
 * block has about half of the groups. */
static void begin_prefetch(amx_scratch *s, const agi_head *x, int64_t next, int64_t n, int64_t groups)
{
    if (n > 0) {
        s->prefetch = (agi_prefetch_rows){.n = 0};
        prefetch_keys(&s->prefetch, x, next, n);
        agi_prefetch_rows_begin(&s->prefetch, groups);
    } else {
        s->prefetch = s->after;
        agi_prefetch_rows_begin(&s->prefetch, (groups + 1) / 2);
    }
}

/* A panel against a block of keys: it sees keys from .. from + n - 1 of the block, in groups first .. end - 1.
 * In groups whole .. whole_end - 1 all queries see all keys, and there are no features. */
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

/* The first panel from number q on that sees a key of the block. */
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

/* Weights of group g of the tile. Returns whether the sums so far must be rescaled. */
static bool run_group(agi_row_scratch *s, const agi_head *x, agi_row_panel *panel, const amx_panel *own,
                      const key_operands *keys, const row_tile *t, int64_t g, pending_groups *pending,
                      float *T, float *U, const amx_queue *next)
{
    amx_scratch *const m = s->own;
    static const agi_band everything = {INT64_MIN / 4, INT64_MAX / 4};
    const key_group group = {g,
                             pending->n,
                             agi_max(0, t->from - g * GROUP_KEYS),
                             agi_min(GROUP_KEYS, t->from + t->n - g * GROUP_KEYS),
                             T,
                             U};
    if (g >= t->whole && g < t->whole_end) {
        return !plain_weights(s, x, panel, own, keys, everything, &group, next) &&
               other_weights(s, x, panel, own, keys, &group, true);
    }
    const bool rescaled = group_weights(s, x, panel, own, keys, &group, next);
    const bool partial = memchr(m->visible + group.at * GROUP_KEYS, 0, GROUP_KEYS) != NULL;
    pending->partial |= (uint32_t)partial << group.at;
    return rescaled;
}

/* All groups of a tile. The products of a group are interleaved with the vector work of the group before it;
 * those of the next tile's first group with that of this tile's last. */
static void run_tile(agi_row_scratch *s, const agi_head *x, agi_row_panel *panels, const key_operands *keys,
                     const row_tile *t, const row_tile *after)
{
    amx_scratch *const m = s->own;
    agi_row_panel *const panel = &panels[t->q];
    amx_panel *const own = &m->panel[t->q];
    const int64_t lanes = lanes_of(panel);
    pending_groups pending = {.first = t->first};
    amx_queue next;
    for (int64_t g = t->first; g < t->end; g++) {
        float *const T = m->T[m->next_buffer], *const U = m->U[m->next_buffer];
        m->next_buffer = !m->next_buffer;
        next.n = 0;
        if (g + 1 < t->end) {
            queue_group(&next, m, x, own, keys, g + 1, lanes);
        } else if (after != NULL) {
            queue_group(&next, m, x, &m->panel[after->q], keys, after->first, lanes_of(&panels[after->q]));
        }
        agi_amx_prefetch_step(&m->prefetch, &next);
        if (run_group(s, x, panel, own, keys, t, g, &pending, T, U, &next)) {
            flush(m, x, own, keys, lanes, &pending);
            rescale(x, own, lanes, s->alpha, s->delta);
            move_to_front(m, pending.n, x->call->map == AGI_JVP);
            pending = (pending_groups){g, 0, pending.partial >> pending.n};
        }
        pending.n++;
    }
    flush(m, x, own, keys, lanes, &pending);
}

static void block(agi_row_scratch *s, const agi_head *x, agi_row_panel *panels, int64_t n_panels, int64_t j0,
                  int64_t nj, int64_t end)
{
    amx_scratch *const m = s->own;
    const key_operands keys = load_keys(m, x, j0, nj);
    const int64_t next = j0 + nj, groups = (nj + GROUP_KEYS - 1) / GROUP_KEYS;
    row_tile tile[2];
    bool there = next_tile(x, panels, n_panels, &keys, 0, &tile[0]);
    begin_prefetch(m, x, next, agi_min(BLOCK_KEYS, end - next), n_panels * groups);
    if (there) {
        amx_queue first = {.n = 0};
        m->next_buffer = 0;
        queue_group(&first, m, x, &m->panel[tile[0].q], &keys, tile[0].first, lanes_of(&panels[tile[0].q]));
        agi_amx_table.score_blocks(&first);
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
    prefetch_next_item(w, m, x, item);
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
    .block_keys = BLOCK_KEYS,
    .key_step = GROUP_KEYS, /* as in the backward ops, so that recomputed scores have the same bits */
    .query_step = PANEL,
    .lay_out = lay_out,
    .begin = begin,
    .block = block,
    .end = end,
    .store = store,
};
