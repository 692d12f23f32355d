/* The backward ops on AMX: a tile of queries against a block of keys. Scores are computed in float32, for one
 * stripe of queries and one group of keys (a patch) at a time; what they become is rounded to bfloat16 into
 * tiles of the whole block, and the gradients are products of these:
 *
 *     dV += R^T dO, dK += dZ^T Q    A: R^T, dZ^T by rows of keys    B: dO, Q in split16 VNNI pairs of queries
 *     dQ^T += K^T dZ^T              A: K transposed                 B: dZ^T in VNNI pairs of keys
 *
 * amx_kernels.h explains the formats. */
#include "cpu/amx/amx_backward.h"

#include <string.h>

#include "cpu/amx/amx_ops.h"

/* ---- Workspace ---- */

static void lay_out(agi_backward_scratch *s, agi_arena *arena, const ag_plan *plan, agi_map map)
{
    const int64_t tangents = map == AGI_VJP_JVP;
    const int64_t Dk = agi_round_up(plan->p.dim_qk, AMX_DEPTH), Dv = agi_round_up(plan->p.dim_v, AMX_DEPTH);
    const agi_backward_schedule *schedule = &agi_cpu_plan_of(plan)->backward[map];
    const int64_t block = agi_round_up(schedule->block, GROUP_KEYS);
    const int64_t span = agi_round_up(schedule->span, GROUP_KEYS);
    agi_amx_backward_scratch m = {.dQ = NULL};
    REAL(agi_lay_out_features)(s, arena, plan, map, GROUP_KEYS * PANEL);
    for (int t = 0; t < 4; t++) {
        const int64_t there = t < 2 ? 1 : tangents, D = t % 2 ? Dv : Dk;
        m.split16_tiles[t] = agi_take16(arena, there * TILE_ROWS * D);
        m.rounded[t] = agi_take16(arena, there * block * TILE_ROWS);
    }
    for (int t = 0; t < 2; t++) {
        const int64_t there = t == 0 ? 1 : tangents, D = t == 0 ? Dk : Dv;
        m.vnni_tiles[t] = agi_take16(arena, (1 + tangents) * TILE_ROWS * D);
        m.key_rows[t] = agi_take16(arena, (1 + tangents) * span * D);
        m.transposed[t] = agi_take16(arena, there * span * Dk);
        m.dz_vnni[t] = agi_take16(arena, there * block * TILE_ROWS);
        for (int n = 0; n < 2; n++) {
            m.T[n][t] = agi_take_reals(arena, there * GROUP_KEYS * PANEL);
        }
    }
    m.zeroed = agi_take16(arena, block * Dk);
    m.dQ = agi_take_reals(arena, TILE_ROWS * Dk);
    m.key_rows_chunk = agi_take_reals(arena, AMX_ROWS * agi_max(Dk, Dv));
    m.rows = agi_take16(arena, agi_max(TILE_ROWS, GROUP_KEYS) * agi_max(Dk, Dv));
    s->own = agi_take_copy(arena, &m, sizeof m);
}

/* ---- A pass over a span of keys, and its tiles of queries ---- */

static void begin_pass(agi_backward_scratch *s, int64_t span0)
{
    agi_amx_backward_scratch *const m = s->own;
    m->span0 = span0;
    m->from = m->to = 0;
}

/* Plans the prefetch of the next tile's rows of Q and dO, and in the first pass of O, during the patches of
 * keys from .. to - 1. Rows of tangents are not prefetched. */
static void begin_prefetch(agi_backward_scratch *s, const agi_head *x, int64_t from, int64_t to,
                           int64_t after)
{
    agi_amx_backward_scratch *const m = s->own;
    const ag_args *a = &x->call->a;
    const ag_problem *p = &x->call->plan->p;
    const int64_t n = agi_min(TILE_ROWS, x->seq.n_q - after);
    const int64_t patches = ((to - from) / GROUP_KEYS + 1) * (TILE_ROWS / STRIPE);
    m->ahead = (agi_prefetch_rows){.n = 0};
    agi_amx_prefetch_rows(&m->ahead, agi_query_slice(x, &a->q, p->dtype, x->Dk), after, n);
    agi_amx_prefetch_rows(&m->ahead, agi_query_slice(x, &a->d_o, p->out_dtype, x->Dv), after, n);
    if (m->span0 == 0) {
        agi_amx_prefetch_rows(&m->ahead, agi_query_slice(x, &a->o, p->out_dtype, x->Dv), after, n);
    }
    agi_prefetch_rows_begin(&m->ahead, patches);
}

static void begin_tile(agi_backward_scratch *s, const agi_head *x, int64_t from, int64_t to, int64_t next)
{
    agi_amx_backward_scratch *const m = s->own;
    agi_amx_table.begin(&m->before);
    begin_prefetch(s, x, from, to, next);
    agi_amx_require_keys(m, x, from, to);
    agi_amx_load_queries(s, x);
}

static void end_tile(agi_backward_scratch *s)
{
    const agi_amx_backward_scratch *const m = s->own;
    agi_amx_table.end(&m->before);
}

/* ---- D = rowsum(dO o O) ---- */

/* Rows i .. i + n - 1 of dO, O, tdO or tO: in place if their channels are adjacent, else copied to the
 * scratch. */
static agi_rows16 output_rows(const agi_head *x, const ag_tensor *t, int64_t i, int64_t n, uint16_t *scratch)
{
    const agi_slice slice = agi_query_slice(x, t, x->call->plan->p.out_dtype, x->Dv);
    if (t->strides[3] == 1) {
        return (agi_rows16){(const uint16_t *)t->data + agi_row_offset(slice, i), t->strides[2]};
    }
    return agi_load_rows16(slice, i, n, n, x->Dv, NULL, scratch);
}

/* sums[r] += rowsum(A o B) of rows i .. i + n - 1 */
static void add_row_products(const agi_backward_scratch *s, const agi_head *x, const ag_tensor *A,
                             const ag_tensor *B, int64_t i, int64_t n, double *sums)
{
    agi_amx_backward_scratch *const m = s->own;
    const agi_rows16 a = output_rows(x, A, i, n, m->rows);
    const agi_rows16 b = output_rows(x, B, i, n, m->rows + n * x->Dv);
    float products[ROW_CHUNK];
    agi_amx_table.dots(products, a.p, a.ld, b.p, b.ld, n, x->Dv);
    for (int64_t r = 0; r < n; r++) {
        sums[r] += (double)products[r];
    }
}

static void row_dots(const agi_backward_scratch *s, const agi_head *x, int64_t r, int64_t n, double *D,
                     double *tD)
{
    const ag_args *a = &x->call->a;
    const int64_t i = s->tile.i0 + r;
    add_row_products(s, x, &a->d_o, &a->o, i, n, D);
    if (x->call->map == AGI_VJP_JVP) {
        add_row_products(s, x, &a->d_o, &a->to, i, n, tD);
        if (a->td_o.data != NULL) {
            add_row_products(s, x, &a->td_o, &a->o, i, n, tD);
        }
    }
}

/* ---- Stores ---- */

static void store_dq(agi_backward_scratch *s, const agi_head *x, agi_slice dq, int64_t i0, int64_t ni,
                     bool accumulate)
{
    agi_amx_backward_scratch *const m = s->own;
    const double scale = x->scale;
    if (dq.t->data != NULL && dq.dtype == AG_BF16 && !accumulate) {
        agi_amx_store_transposed(dq, i0, ni, s->tile.dQ, &scale, 0, m->rows);
    } else if (dq.t->data != NULL) {
        agi_amx_table.transpose_sums(m->dQ, x->Dk_pad, s->tile.dQ, agi_amx_col_stride(x->Dk), x->Dk_pad,
                                     agi_round_up(ni, AMX_ROWS));
        agi_store_rows(x->k, dq, i0, ni, accumulate, scale, m->dQ, x->Dk_pad);
    }
}

static void store_dkv(const agi_backward_scratch *s, const agi_head *x, agi_slice to, int64_t first,
                      int64_t n, bool accumulate, double factor, const real *sums, int64_t width)
{
    agi_amx_backward_scratch *const m = s->own;
    const size_t row_bytes = AMX_LANES * sizeof *sums;
    if (to.t->data != NULL && to.dtype == AG_BF16 && !accumulate) {
        agi_amx_store_rows(to, first, n, sums, factor, m->rows);
        return;
    }
    for (int64_t j = 0; j < n && to.t->data != NULL; j += AMX_ROWS) {
        for (int64_t at = 0; at < AMX_ROWS * width; at += AMX_LANES) { /* one row of a tile */
            const int64_t tile = at / AMX_C, row = at % AMX_C / AMX_LANES;
            memcpy(m->key_rows_chunk + row * width + tile * AMX_LANES, sums + j * width + at, row_bytes);
        }
        agi_store_rows(x->k, to, first + j, agi_min(AMX_ROWS, n - j), accumulate, factor, m->key_rows_chunk,
                       width);
    }
}

/* ---- A block of keys ---- */

/* Moves the start of the block back to the first key of its group. The keys before the given ones are
 * masked. */
static agi_backward_key_block widen_to_groups(const agi_amx_backward_scratch *s, const agi_head *x,
                                              const agi_backward_key_block *keys)
{
    const int64_t before = (keys->j0 - s->span0) % GROUP_KEYS;
    agi_backward_key_block whole = {.j0 = keys->j0 - before, .nj = keys->nj + before};
    whole.dK = keys->dK - before * x->Dk_pad;
    whole.dV = keys->dV - before * x->Dv_pad;
    return whole;
}

static void block(agi_backward_scratch *s, const agi_head *x, const agi_sums *sums,
                  const agi_backward_key_block *given)
{
    agi_amx_backward_scratch *const m = s->own;
    const agi_backward_key_block keys = widen_to_groups(m, x, given);
    const agi_amx_backward_keys operands = agi_amx_keys_of_block(m, x, keys.j0);
    memset(s->masked_keys, 1, (size_t)keys.nj);
    agi_amx_run_patches(s, x, sums, &operands, &keys);
    agi_amx_add_key_gradients(s, x, &keys);
    agi_amx_add_query_gradients(s, x, &operands, &keys);
}

const agi_backward_ops agi_amx_backward_ops = {
    .block_step = GROUP_KEYS,
    .key_step = GROUP_KEYS,
    .query_step = PANEL,
    .dq_row_step = TILE_ROWS,
    .dq_channel_step = AMX_DEPTH,
    .lay_out = lay_out,
    .begin_pass = begin_pass,
    .row_dots = row_dots,
    .begin_tile = begin_tile,
    .block = block,
    .end_tile = end_tile,
    .store_dq = store_dq,
    .store_dkv = store_dkv,
};
