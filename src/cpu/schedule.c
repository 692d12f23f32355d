/* How the work of the maps is cut: a function of the shape alone. */
#include "cpu/drivers/backward.h"
#include "cpu/drivers/rows.h"

enum {
    CACHE = 256 * 1024, /* numbers that a tile's working set may have: half of a 2 MiB cache in float32 */
    SPAN = 128 * 1024,  /* numbers of a span's dK and dV */
    ENOUGH_BLOCKS =
        12, /* large blocks of queries, on the AMX unit, where they could be smaller or have parts */
    ENOUGH_ITEMS = 32, /* blocks of queries that need no parts of the keys */
    LEAST_KEYS = 1024, /* of such a part */
    ENOUGH_CHAINS = 8  /* independent chains that need no parts */
};

/* This file is compiled for float32 alone. */
static int64_t tile_rows(const ag_problem *p)
{
    return p->dtype == AG_F64 ? TILE_ROWS_F64 : TILE_ROWS_F32;
}

/* The most keys of a tile: the block's K, V, dK, dV and its score tiles stay in the cache. */
static int64_t most_keys(const ag_problem *p, bool tangents)
{
    const int64_t tiles = (tangents ? 4 : 2) * (tile_rows(p) + TILE_PAD);
    const int64_t rows = (tangents ? 3 : 2) * (p->dim_qk + p->dim_v);
    const int64_t narrow = p->dtype == AG_F64 ? 2 : 1;
    return agi_max(48, agi_min(192, CACHE / (tiles + rows) / narrow / 48 * 48));
}

/* Spans of about the same length, in blocks of about the same length. */
static void cut_keys(agi_schedule *x, int64_t n, int64_t block, int64_t span, int64_t step)
{
    const int64_t most = agi_max(block, span), spans = agi_max(1, (n + most - 1) / most);
    const int64_t each = agi_max(1, (n + spans - 1) / spans), blocks = (each + block - 1) / block;
    x->block = agi_round_up((each + blocks - 1) / blocks, step);
    x->span = x->block * blocks;
    x->n_spans = agi_max(1, (n + x->span - 1) / x->span);
}

/* Tiles of queries that give a part of a span something to do. Behind a window few see a span, and a part
 * should have two of them, so that its sums are worth their place. */
static int64_t tiles_of_span(const ag_problem *p, int64_t span)
{
    const int64_t rows = tile_rows(p), all = (p->q_len + rows - 1) / rows;
    const int64_t right = agi_has(p, AG_CAUSAL) ? 0 : p->window_right;
    if (!agi_has(p, AG_WINDOW) || p->window_left < 0 || right < 0 || p->window_left > p->q_len - right) {
        return all;
    }
    return agi_min(all, ((span + p->window_left + right) / rows + 2) / 2);
}

agi_schedule agi_schedule_of(const ag_plan *plan, agi_map map)
{
    const ag_problem *p = &plan->p;
    const bool bias_b = agi_has(p, AG_BIAS) && p->bias_size[0] == 1;
    const bool bias_h = agi_has(p, AG_BIAS) && p->bias_size[1] == 1;
    agi_schedule x = {.rows = tile_rows(p)};
    cut_keys(&x, p->kv_len, most_keys(p, map == AGI_VJP_JVP), SPAN / (p->dim_qk + p->dim_v),
             agi_on_amx(plan, map) ? GROUP_KEYS : 16);
    x.join_b = (bias_b || agi_has(p, AG_TABLE)) && p->batch > 0 ? p->batch : 1;
    x.join_hk = bias_h ? p->kv_heads : 1;
    x.chains = agi_saturated(p->batch / x.join_b, p->kv_heads / x.join_hk, 1, 1);
    x.passes = agi_saturated(x.join_b, x.join_hk, x.n_spans, 1);
    const int64_t tiles = tiles_of_span(p, x.span);
    const int64_t wanted = x.chains >= ENOUGH_CHAINS ? 1 : MAX_PARTS / agi_max(1, x.chains);
    x.parts = agi_max(1, agi_min(agi_min(wanted, MAX_PARTS), tiles));
    return x;
}

/* On the AMX unit as many as leave enough blocks for all threads; blocks of about the same size. */
static int64_t rows_of_block(const ag_plan *plan, agi_map map)
{
    const ag_problem *p = &plan->p;
    int64_t rows = AMX_ROW_BLOCK;
    if (!agi_on_amx(plan, map)) {
        return ROW_BLOCK;
    }
    while (rows > ROW_BLOCK &&
           agi_saturated(p->batch, p->heads, (p->q_len + rows - 1) / rows, 1) < ENOUGH_BLOCKS) {
        rows /= 2;
    }
    const int64_t blocks = agi_max(1, (p->q_len + rows - 1) / rows);
    return agi_round_up(agi_max(1, (p->q_len + blocks - 1) / blocks), ROW_BLOCK / 3);
}

agi_row_schedule agi_row_schedule_of(const ag_plan *plan, agi_map map)
{
    const ag_problem *p = &plan->p;
    agi_row_schedule x;
    x.rows = rows_of_block(plan, map);
    x.blocks = agi_max(1, (p->q_len + x.rows - 1) / x.rows);
    x.items = p->q_len == 0 ? 0 : agi_saturated(p->batch, p->heads, x.blocks, 1);
    x.parts = agi_min(ENOUGH_ITEMS / agi_max(1, x.items), p->kv_len / LEAST_KEYS);
    x.parts = agi_on_amx(plan, map) && x.items >= ENOUGH_BLOCKS ? 1 : agi_max(1, x.parts);
    x.keys = agi_round_up((p->kv_len + x.parts - 1) / x.parts, LEAST_KEYS / 8);
    return x;
}
