/* The backward ops (vjp and vjp_jvp) on AMX: a tile of queries against a block of keys. Scores are computed in
 * float32, for one stripe of queries and one group of keys (a patch) at a time. R and dZ of each patch are rounded to
 * bfloat16 and collected for the whole block; the gradients are then products of these arrays:
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
    const int64_t block = agi_round_up(schedule->max.block, GROUP_KEYS);
    const int64_t span = agi_round_up(schedule->max.span, GROUP_KEYS);
    agi_amx_backward_scratch own = {.dQ = NULL};
    REAL(agi_lay_out_features)(s, arena, plan, map, GROUP_KEYS * PANEL);
    for (int t = 0; t < 4; t++) { /* Q, dO, tQ, tdO; R, dZ, tR, tdZ */
        const int64_t present = t < 2 ? 1 : tangents, D = t % 2 ? Dv : Dk;
        own.split16_tiles[t] = agi_take16(arena, present * TILE_ROWS * D);
        own.rounded[t] = agi_take16(arena, present * block * TILE_ROWS);
    }
    /* vnni_tiles and key_rows: [0] of Q and K, [1] of dO and V. The other arrays have [1] in vjp_jvp only. */
    for (int t = 0; t < 2; t++) {
        const int64_t present = t == 0 ? 1 : tangents, D = t == 0 ? Dk : Dv;
        own.vnni_tiles[t] = agi_take16(arena, (1 + tangents) * TILE_ROWS * D);
        own.key_rows[t] = agi_take16(arena, (1 + tangents) * span * D);
        own.transposed[t] = agi_take16(arena, present * span * Dk);
        own.dz_vnni[t] = agi_take16(arena, present * block * TILE_ROWS);
        for (int n = 0; n < 2; n++) {
            own.T[n][t] = agi_take_reals(arena, present * GROUP_KEYS * PANEL);
        }
    }
    own.rest_rows = agi_take16(arena, GROUP_KEYS * STRIPE);
    own.rest_vnni = agi_take16(arena, GROUP_KEYS * STRIPE);
    own.zeroed = agi_take16(arena, block * Dk);
    own.dQ = agi_take_reals(arena, TILE_ROWS * Dk);
    own.key_rows_chunk = agi_take_reals(arena, AMX_ROWS * agi_max(Dk, Dv));
    own.rows = agi_take16(arena, agi_max(TILE_ROWS, GROUP_KEYS) * agi_max(Dk, Dv));
    for (int t = 0; t < 2; t++) {
        own.wide_rows[t] = agi_take_reals(arena, (plan->p.out_dtype == AG_F32) * ROW_CHUNK * Dv);
    }
    s->own = agi_take_copy(arena, &own, sizeof own);
}

/* ---- A pass over a span of keys, and its tiles of queries ---- */

static void begin_pass(agi_backward_scratch *s, int64_t span0)
{
    agi_amx_backward_scratch *const own = s->own;
    own->span0 = span0;
    own->loaded_from = own->loaded_to = 0;
}

/* Spreads the prefetch of the next tile's rows of Q and dO, and in the first span of O and its low half, over the
 * patches of keys from .. to - 1. Rows of tangents are not prefetched. */
static void begin_prefetch(agi_backward_scratch *s, const agi_head *x, int64_t from, int64_t to, int64_t next)
{
    agi_amx_backward_scratch *const own = s->own;
    const ag_args *a = &x->call->a;
    const ag_problem *p = &x->call->plan->p;
    const int64_t n = agi_min(TILE_ROWS, x->seq.n_q - next);
    const int64_t patches = ((to - from) / GROUP_KEYS + 1) * (TILE_ROWS / STRIPE);
    own->prefetch = (agi_prefetch_rows){.n = 0};
    agi_amx_prefetch_rows(&own->prefetch, agi_query_slice(x, &a->q, p->dtype, x->Dk), next, n);
    agi_amx_prefetch_rows(&own->prefetch, agi_query_slice(x, &a->d_o, p->out_dtype, x->Dv), next, n);
    if (own->span0 == 0) {
        agi_amx_prefetch_rows(&own->prefetch, agi_query_slice(x, &a->o, p->out_dtype, x->Dv), next, n);
        agi_amx_prefetch_rows(&own->prefetch, agi_query_slice(x, &a->o_low, p->out_dtype, x->Dv), next, n);
    }
    agi_prefetch_rows_begin(&own->prefetch, patches);
}

static void begin_tile(agi_backward_scratch *s, const agi_head *x, int64_t from, int64_t to, int64_t next)
{
    agi_amx_backward_scratch *const own = s->own;
    agi_amx_table.begin(&own->saved_config);
    begin_prefetch(s, x, from, to, next);
    agi_amx_require_keys(own, x, from, to);
    agi_amx_load_queries(s, x);
}

static void end_tile(agi_backward_scratch *s)
{
    const agi_amx_backward_scratch *const own = s->own;
    agi_amx_table.end(&own->saved_config);
}

/* ---- Stores ---- */

static void store_dq(agi_backward_scratch *s, const agi_head *x, agi_slice dq, int64_t i0, int64_t ni,
                     bool accumulate)
{
    agi_amx_backward_scratch *const own = s->own;
    const double scale = x->scale;
    if (dq.t->data != NULL && dq.dtype == AG_BF16 && !accumulate) {
        agi_amx_store_transposed(dq, i0, ni, s->tile.dQ, &scale, 0, own->rows);
    } else if (dq.t->data != NULL) {
        agi_amx_table.transpose_sums(own->dQ, x->Dk_pad, s->tile.dQ, agi_amx_col_stride(x->Dk), x->Dk_pad,
                                     agi_round_up(ni, AMX_ROWS));
        agi_store_rows(x->k, dq, i0, ni, accumulate, scale, own->dQ, x->Dk_pad);
    }
}

static void store_dkv(const agi_backward_scratch *s, const agi_head *x, agi_slice to, int64_t first,
                      int64_t n, bool accumulate, double factor, const real *sums, int64_t width)
{
    agi_amx_backward_scratch *const own = s->own;
    const size_t row_bytes = AMX_LANES * sizeof *sums;
    if (to.t->data != NULL && to.dtype == AG_BF16 && !accumulate) {
        agi_amx_store_rows(to, first, n, sums, factor, own->rows);
        return;
    }
    /* The sums are AMX tiles of 16 x 16 elements: back to rows. */
    for (int64_t j = 0; j < n && to.t->data != NULL; j += AMX_ROWS) {
        for (int64_t at = 0; at < AMX_ROWS * width; at += AMX_LANES) { /* one row of an AMX tile */
            const int64_t tile = at / AMX_C, row = at % AMX_C / AMX_LANES;
            memcpy(own->key_rows_chunk + row * width + tile * AMX_LANES, sums + j * width + at, row_bytes);
        }
        agi_store_rows(x->k, to, first + j, agi_min(AMX_ROWS, n - j), accumulate, factor, own->key_rows_chunk,
                       width);
    }
}

/* ---- A block of keys ---- */

/* Moves the start of the block back to the first key of its group. The tile sees none of the keys before the given
 * ones. */
static agi_backward_key_block widen_to_groups(const agi_amx_backward_scratch *s, const agi_head *x,
                                              const agi_backward_key_block *keys)
{
    const int64_t before = (keys->j0 - s->span0) % GROUP_KEYS;
    agi_backward_key_block widened = {.j0 = keys->j0 - before, .nj = keys->nj + before};
    widened.dK = keys->dK - before * x->Dk_pad;
    widened.dV = keys->dV - before * x->Dv_pad;
    return widened;
}

static void block(agi_backward_scratch *s, const agi_head *x, const agi_sums *sums,
                  const agi_backward_key_block *given)
{
    agi_amx_backward_scratch *const own = s->own;
    const agi_backward_key_block keys = widen_to_groups(own, x, given);
    const agi_amx_backward_keys operands = agi_amx_keys_of_block(own, x, keys.j0);
    memset(s->masked_keys, 1, (size_t)keys.nj);
    agi_amx_run_patches(s, x, sums, &operands, &keys);
    agi_amx_add_key_gradients(s, x, &keys);
    agi_amx_add_query_gradients(s, x, &operands, &keys);
}

const agi_backward_ops agi_amx_backward_ops = {
    .min_groups = 8,
    .block_step = GROUP_KEYS,
    .key_step = GROUP_KEYS,
    .query_step = PANEL,
    .dq_row_step = TILE_ROWS,
    .dq_channel_step = AMX_DEPTH,
    .lay_out = lay_out,
    .begin_pass = begin_pass,
    .row_dots = agi_amx_row_dots,
    .begin_tile = begin_tile,
    .block = block,
    .end_tile = end_tile,
    .store_dq = store_dq,
    .store_dkv = store_dkv,
};
