/* The backward ops on vectors: loads tiles of queries and blocks of keys, and runs each tile against each block. */
#include <string.h>

#include "core/number.h"
#include "cpu/vec/vec.h"

static void lay_out_queries(agi_vec_backward_scratch *v, agi_arena *arena, const agi_cpu_plan *cpu,
                            int64_t tangents, int64_t low_half)
{
    v->QT = agi_take_reals(arena, TILE_ROWS * cpu->Dk_pad);
    v->dOT = agi_take_reals(arena, TILE_ROWS * cpu->Dv_pad);
    v->tQT = agi_take_reals(arena, tangents * TILE_ROWS * cpu->Dk_pad);
    v->tdOT = agi_take_reals(arena, tangents * TILE_ROWS * cpu->Dv_pad);
    v->rows[0] = agi_take_reals(arena, TILE_ROWS * cpu->Dk_pad);
    v->rows[1] = agi_take_reals(arena, TILE_ROWS * cpu->Dv_pad);
    v->rows[2] = agi_take_reals(arena, tangents * TILE_ROWS * cpu->Dk_pad);
    v->rows[3] = agi_take_reals(arena, tangents * TILE_ROWS * cpu->Dv_pad);
    v->O[0] = agi_take_reals(arena, ROW_CHUNK * cpu->Dv_pad);
    v->O[1] = agi_take_reals(arena, tangents * ROW_CHUNK * cpu->Dv_pad);
    v->O_low = agi_take_reals(arena, low_half * ROW_CHUNK * cpu->Dv_pad);
}

static void lay_out(agi_backward_scratch *s, agi_arena *arena, const ag_plan *plan, agi_map map)
{
    const agi_cpu_plan *cpu = agi_cpu_plan_of(plan);
    const int64_t tangents = map == AGI_VJP_JVP, features = !cpu->features.plain;
    const int64_t block = cpu->backward[map].max.block, tile = block * TILE_LD;
    agi_vec_backward_scratch v = {.K = NULL};
    lay_out_queries(&v, arena, cpu, tangents, agi_has_low_half(&plan->p));
    v.scores.P = agi_take_reals(arena, tile);
    v.scores.U = agi_take_reals(arena, tangents * tile);
    v.scores.dS = agi_take_reals(arena, tile);
    v.scores.tdS = agi_take_reals(arena, tangents * tile);
    REAL(agi_lay_out_features)(s, arena, plan, map, tile);
    v.K = agi_take_reals(arena, block * cpu->Dk_pad);
    v.V = agi_take_reals(arena, block * cpu->Dv_pad);
    v.tK = agi_take_reals(arena, tangents * block * cpu->Dk_pad);
    v.tV = agi_take_reals(arena, tangents * block * cpu->Dv_pad);
    v.zeroed = agi_take_reals(arena, features * block * cpu->Dk_pad);
    v.t_zeroed = agi_take_reals(arena, features * tangents * block * cpu->Dk_pad);
    s->own = agi_take_copy(arena, &v, sizeof v);
}

/* ---- A tile of queries ---- */

static agi_rows query_rows(const agi_head *x, const agi_query_tile *t, const ag_tensor *from, ag_dtype dtype,
                           int64_t D, const uint8_t *skip, real *scratch)
{
    const agi_rows absent = {NULL, 0};
    const agi_slice slice = agi_query_slice(x, from, dtype, D);
    return from->data == NULL ? absent : agi_load_dense_rows(x, slice, t->i0, t->ni, skip, scratch);
}

/* Loads the rows of Q, dO and their tangents; the rows of queries to skip become zero. */
static void load_query_rows(agi_backward_scratch *s, const agi_head *x, const uint8_t *skip)
{
    const ag_args *a = &x->call->a;
    const ag_problem *p = &x->call->plan->p;
    const agi_query_tile *t = &s->tile;
    agi_vec_backward_scratch *v = s->own;
    v->Q = query_rows(x, t, &a->q, p->dtype, x->Dk, skip, v->rows[0]);
    v->dO = query_rows(x, t, &a->d_o, p->out_dtype, x->Dv, skip, v->rows[1]);
    if (x->call->map == AGI_VJP_JVP) {
        v->tQ = query_rows(x, t, &a->tq, p->dtype, x->Dk, skip, v->rows[2]);
        v->tdO = query_rows(x, t, &a->td_o, p->out_dtype, x->Dv, skip, v->rows[3]);
    }
}

static void load_rows(agi_backward_scratch *s, const agi_head *x)
{
    load_query_rows(s, x, NULL);
}

static void row_dots(const agi_backward_scratch *s, const agi_head *x, int64_t r, int64_t n, double *D,
                     double *tD)
{
    const ag_args *a = &x->call->a;
    const agi_vec_backward_scratch *v = s->own;
    const agi_rows O = REAL(agi_load_output_rows)(x, &a->o, &a->o_low, s->tile.i0 + r, n, v->O[0], v->O_low);
    const real *dO = v->dO.p + r * v->dO.ld;
    double second[ROW_CHUNK] = {0}; /* rowsum(O o tdO) */
    x->k->dots(D, dO, v->dO.ld, O.p, O.ld, n, x->Dv);
    if (x->call->map != AGI_VJP_JVP) {
        return;
    }
    const agi_rows tO =
        REAL(agi_load_output_rows)(x, &a->to, &a->to_low, s->tile.i0 + r, n, v->O[1], v->O_low);
    x->k->dots(tD, dO, v->dO.ld, tO.p, tO.ld, n, x->Dv);
    if (a->td_o.data != NULL) {
        x->k->dots(second, v->tdO.p + r * v->tdO.ld, v->tdO.ld, O.p, O.ld, n, x->Dv);
    }
    for (int64_t e = 0; e < n; e++) {
        tD[e] += second[e];
    }
}

static void transpose_panels(const agi_head *x, const agi_query_tile *t, agi_rows rows, int64_t D,
                             real *panels)
{
    for (int64_t i = 0; i < t->ni && rows.p != NULL && !x->short_q; i += PANEL) {
        x->k->transpose(panels + i * D, rows.p + i * rows.ld, rows.ld, agi_min(PANEL, t->ni - i), D);
    }
}

/* The rows of queries that see no key are taken as zero: they may hold NaN, and 0 times NaN is NaN. */
static void begin_tile(agi_backward_scratch *s, const agi_head *x, int64_t from, int64_t to, int64_t next)
{
    const agi_query_tile *t = &s->tile;
    const agi_vec_backward_scratch *v = s->own;
    (void)from, (void)to, (void)next;
    if (memchr(t->sees_no_key, 1, (size_t)t->ni) != NULL) {
        load_query_rows(s, x, t->sees_no_key);
    }
    transpose_panels(x, t, v->Q, x->Dk, v->QT);
    transpose_panels(x, t, v->dO, x->Dv, v->dOT);
    if (x->call->map == AGI_VJP_JVP) {
        transpose_panels(x, t, v->tQ, x->Dk, v->tQT);
        transpose_panels(x, t, v->tdO, x->Dv, v->tdOT);
    }
}

/* ---- A block of keys ---- */

static void block(agi_backward_scratch *s, const agi_head *x, const agi_sums *sums,
                  const agi_backward_key_block *keys)
{
    const ag_args *a = &x->call->a;
    const agi_vec_backward_scratch *v = s->own;
    agi_key_rows rows = {.K = agi_load_keys(x, &a->k, x->Dk, keys->j0, keys->nj, v->K),
                         .V = agi_load_keys(x, &a->v, x->Dv, keys->j0, keys->nj, v->V)};
    if (x->call->map == AGI_VJP_JVP) {
        rows.tK = agi_load_keys(x, &a->tk, x->Dk, keys->j0, keys->nj, v->tK);
        rows.tV = agi_load_keys(x, &a->tv, x->Dv, keys->j0, keys->nj, v->tV);
        REAL(agi_vjp_jvp_tile)(s, x, sums, keys, &rows);
    } else {
        REAL(agi_vjp_tile)(s, x, sums, keys, &rows);
    }
}

/* ---- Gradients: the sums are rows ---- */

static void store_dq(agi_backward_scratch *s, const agi_head *x, agi_slice dq, int64_t i0, int64_t ni,
                     bool accumulate)
{
    agi_store_rows(x->k, dq, i0, ni, accumulate, x->scale, s->tile.dQ, x->Dk_pad);
}

static void store_dkv(const agi_backward_scratch *s, const agi_head *x, agi_slice to, int64_t first,
                      int64_t n, bool accumulate, double factor, const real *sums, int64_t width)
{
    (void)s;
    agi_store_rows(x->k, to, first, n, accumulate, factor, sums, width);
}

const agi_backward_ops REAL(agi_vec_backward_ops) = {
    .min_groups = 64,
    .block_step = 16,
    .key_step = 1,
    .dq_row_step = 1,
    .lay_out = lay_out,
    .load_rows = load_rows,
    .row_dots = row_dots,
    .begin_tile = begin_tile,
    .block = block,
    .store_dq = store_dq,
    .store_dkv = store_dkv,
    .small_call = REAL(agi_small_call),
    .small_head = REAL(agi_small_vjp),
};

const agi_implementation REAL(agi_vec_implementation) = {
    .row_ops = &REAL(agi_vec_row_ops),
    .backward_ops = &REAL(agi_vec_backward_ops),
    .given_ops = &REAL(agi_vec_given_ops),
};
