/* jvp_jvp, and jvp that is given o and lse, on vectors: see cpu/drivers/given.h. */
#include "cpu/vec/vec.h"

#include <string.h>

/* The directions of a map: the values themselves, along t, along s. */
enum { AT_VALUE, ALONG_T, ALONG_S, N_DIRECTIONS };

/* Queries of a panel along one direction: as agi_vec_panel has them; p is NULL if the tensor is absent. */
typedef struct {
    real *transposed; /* [Dk][PANEL] */
    agi_rows rows;
    bool present;
} given_queries;

typedef struct {
    given_queries queries[ROW_PANELS][N_DIRECTIONS];
    real *K[N_DIRECTIONS], *V[N_DIRECTIONS]; /* converted rows */
    real *zeroed;                            /* V with the rows of masked keys zero */
    agi_given_tiles tiles;                   /* [GIVEN_KEYS][ROW_LD] */
} given_scratch;

/* A block of keys along each direction; p is NULL if the tensor is absent. */
typedef struct {
    int64_t j0, nj;
    agi_rows K[N_DIRECTIONS], V[N_DIRECTIONS];
} given_keys;

static void lay_out(agi_given_scratch *s, agi_arena *arena, const ag_plan *plan, agi_map map)
{
    const agi_cpu_plan *cpu = agi_cpu_plan_of(plan);
    const int64_t second = map == AGI_JVP_JVP, tile = GIVEN_KEYS * ROW_LD;
    given_scratch v = {.zeroed = NULL};
    for (int d = 0; d < N_DIRECTIONS; d++) {
        const int64_t present = d < ALONG_S ? 1 : second;
        for (int64_t n = 0; n < cpu->given.rows / PANEL; n++) {
            v.queries[n][d].transposed = agi_take_reals(arena, present * plan->p.dim_qk * PANEL);
        }
        v.K[d] = agi_take_reals(arena, present * GIVEN_KEYS * cpu->Dk_pad);
        v.V[d] = agi_take_reals(arena, present * GIVEN_KEYS * cpu->Dv_pad);
    }
    v.zeroed = agi_take_reals(arena, GIVEN_KEYS * cpu->Dv_pad);
    v.tiles.P = agi_take_reals(arena, tile);
    v.tiles.U = agi_take_reals(arena, tile);
    v.tiles.Y = agi_take_reals(arena, second * tile);
    v.tiles.Z = agi_take_reals(arena, second * tile);
    s->own = agi_take_copy(arena, &v, sizeof v);
}

static void load_queries(given_queries *q, const agi_head *x, const agi_given_panel *panel,
                         const ag_tensor *t)
{
    const agi_slice slice = agi_query_slice(x, t, x->call->plan->p.dtype, x->Dk);
    q->present = t->data != NULL;
    if (q->present && x->short_q) {
        q->rows = agi_load_rows(x->k, slice, panel->i0, panel->ni, NULL, q->transposed);
    } else if (q->present) {
        REAL(agi_load_panel)(x->k, slice, panel->i0, panel->ni, NULL, q->transposed);
    }
}

static void begin(agi_given_scratch *s, const agi_head *x, const agi_given_panel *panels, int64_t n_panels)
{
    const ag_args *a = &x->call->a;
    const ag_tensor *const Q[N_DIRECTIONS] = {&a->q, &a->tq, &a->sq};
    given_scratch *const v = s->own;
    for (int64_t n = 0; n < n_panels; n++) {
        memset(panels[n].rows, 0, (size_t)(panels[n].ni * x->Dv_pad) * sizeof(real));
        for (int d = 0; d < (x->call->map == AGI_JVP_JVP ? N_DIRECTIONS : ALONG_S); d++) {
            load_queries(&v->queries[n][d], x, &panels[n], Q[d]);
        }
    }
}

static given_keys load_keys(given_scratch *v, const agi_head *x, int64_t j0, int64_t nj)
{
    const ag_args *a = &x->call->a;
    const ag_tensor *const K[N_DIRECTIONS] = {&a->k, &a->tk, &a->sk}, *const V[] = {&a->v, &a->tv, &a->sv};
    given_keys keys = {.j0 = j0, .nj = nj};
    for (int d = 0; d < (x->call->map == AGI_JVP_JVP ? N_DIRECTIONS : ALONG_S); d++) {
        keys.K[d] = agi_load_keys(x, K[d], x->Dk, j0, nj, v->K[d]);
        keys.V[d] = agi_load_keys(x, V[d], x->Dv, j0, nj, v->V[d]);
    }
    return keys;
}

/* ---- A panel against a block of keys ---- */

/* The panel's part of a block: keys from .. from + nj - 1. */
typedef struct {
    const agi_head *x;
    const agi_given_panel *panel;
    const given_queries *queries; /* [N_DIRECTIONS] */
    const given_keys *keys;
    int64_t from, nj;
} given_part;

/* T = or += K Q^T, K along one direction and Q along another. Returns whether T holds something then. */
static bool add_product(const given_part *p, int of_keys, int of_queries, real *T, bool add)
{
    const agi_rows K = p->keys->K[of_keys];
    const given_queries *const q = &p->queries[of_queries];
    if (K.p == NULL || !q->present) {
        return add;
    }
    REAL(agi_score_product)
    (p->x, (agi_rows){K.p + p->from * K.ld, K.ld}, p->nj, p->x->Dk, q->transposed, q->rows, p->panel->ni, T,
     ROW_LD, add);
    return true;
}

static void clear_tile(real *T, int64_t nj)
{
    for (int64_t j = 0; j < nj; j++) {
        memset(T + j * ROW_LD, 0, PANEL * sizeof *T);
    }
}

/* T = K_a Q_b^T + K_b Q_a^T of two directions. Absent tensors are zero. */
static void cross_products(const given_part *p, int a, int b, real *T)
{
    bool any = add_product(p, a, b, T, false);
    any = add_product(p, b, a, T, any);
    if (!any) {
        clear_tile(T, p->nj);
    }
}

/* Fills the tiles; returns the factor of Z. */
static real score_products(const given_part *p, const agi_given_tiles *t)
{
    add_product(p, AT_VALUE, AT_VALUE, t->P, false);
    cross_products(p, AT_VALUE, ALONG_T, t->U);
    if (p->x->call->map != AGI_JVP_JVP) {
        return 1;
    }
    if (!REAL(agi_same_direction)(p->x->call)) {
        cross_products(p, AT_VALUE, ALONG_S, t->Y);
        cross_products(p, ALONG_T, ALONG_S, t->Z);
        return 1;
    }
    for (int64_t j = 0; j < p->nj; j++) {
        memcpy(t->Y + j * ROW_LD, t->U + j * ROW_LD, PANEL * sizeof(real));
    }
    if (!add_product(p, ALONG_T, ALONG_T, t->Z, false)) {
        clear_tile(t->Z, p->nj);
    }
    return 2;
}

/* rows += T V, with the rows of masked keys zero: they may hold NaN. */
static void add_values(const agi_given_scratch *s, const given_part *p, const real *T, int of_values,
                       bool masked_keys)
{
    const agi_head *const x = p->x;
    const given_scratch *const v = s->own;
    agi_rows V = p->keys->V[of_values];
    if (V.p == NULL) {
        return;
    }
    V.p += p->from * V.ld;
    V = masked_keys ? REAL(agi_zero_masked_rows)(V, p->nj, x->Dv_pad, s->masked_keys, v->zeroed) : V;
    x->k->product(p->panel->ni, x->Dv_pad, p->nj, T, 1, ROW_LD, V.p, V.ld, p->panel->rows, x->Dv_pad, true);
}

static void run_part(agi_given_scratch *s, const given_part *p)
{
    const given_scratch *const v = s->own;
    const agi_given_tiles *const t = &v->tiles;
    const agi_head *const x = p->x;
    const double one = 1;
    const real z_factor = score_products(p, t);
    const bool masked =
        REAL(agi_given_stages)(s, x, p->panel, t, ROW_LD, p->keys->j0 + p->from, p->nj, z_factor);
    if (x->call->map != AGI_JVP_JVP) {
        add_values(s, p, t->U, AT_VALUE, masked);
        add_values(s, p, t->P, ALONG_T, masked);
        return;
    }
    add_values(s, p, t->Z, AT_VALUE, masked);
    if (z_factor == 2) { /* one direction: (tP + sP) tV */
        x->k->store_rows(t->U, ROW_LD, t->Y, ROW_LD, p->nj, p->panel->W, &one, 0, true);
    } else {
        add_values(s, p, t->Y, ALONG_T, masked);
    }
    add_values(s, p, t->U, ALONG_S, masked);
}

static void block(agi_given_scratch *s, const agi_head *x, const agi_given_panel *panels, int64_t n_panels,
                  int64_t j0, int64_t nj)
{
    given_scratch *const v = s->own;
    const given_keys keys = load_keys(v, x, j0, nj);
    for (int64_t n = 0; n < n_panels; n++) {
        given_part p = {.x = x, .panel = &panels[n], .queries = v->queries[n], .keys = &keys};
        if (REAL(agi_clip_keys)(x, panels[n].i0, panels[n].ni, j0, nj, &p.from, &p.nj)) {
            run_part(s, &p);
        }
    }
}

const agi_given_ops REAL(agi_vec_given_ops) = {
    .max_queries = ROW_BLOCK,
    .min_blocks = 32,
    .block_keys = GIVEN_KEYS,
    .key_step = 1,
    .lay_out = lay_out,
    .begin = begin,
    .block = block,
};
