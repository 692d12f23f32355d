/* How the work of the maps is cut: a function of the shape and of the ops, never of the number of threads. */
#include "cpu/drivers/backward.h"
#include "cpu/drivers/rows.h"

enum {
    CACHE = 256 * 1024,    /* max numbers of a tile's working set: half of a 2 MiB cache in float32 */
    SPAN = 128 * 1024,     /* max numbers of the dK and dV of a span */
    MIN_SPLIT_KEYS = 1024, /* min keys of a split */
    MIN_GROUPS = 8         /* with so many reduction groups, queries are not split */
};

/* ---- Forward and jvp ---- */

/* As many queries as leave min_blocks blocks; blocks of about the same size. */
static int64_t rows_of_block(const agi_row_ops *ops, const ag_problem *p)
{
    int64_t rows = ops->max_queries;
    if (rows == ROW_BLOCK) {
        return rows;
    }
    while (rows > ROW_BLOCK &&
           agi_saturated(p->batch, p->heads, (p->q_len + rows - 1) / rows, 1) < ops->min_blocks) {
        rows /= 2;
    }
    const int64_t blocks = agi_max(1, (p->q_len + rows - 1) / rows);
    return agi_round_up(agi_max(1, (p->q_len + blocks - 1) / blocks), ROW_BLOCK / 3);
}

agi_row_schedule REAL(agi_row_schedule_of)(const agi_cpu_plan *cpu, const ag_plan *plan)
{
    enum { ITEMS = 32 }; /* work items wanted, about */
    const ag_problem *p = &plan->p;
    agi_row_schedule x;
    x.rows = rows_of_block(cpu->row_ops, p);
    x.blocks = agi_max(1, (p->q_len + x.rows - 1) / x.rows);
    x.items = p->q_len == 0 ? 0 : agi_saturated(p->batch, p->heads, x.blocks, 1);
    x.kv_splits = agi_max(1, agi_min(ITEMS / agi_max(1, x.items), p->kv_len / MIN_SPLIT_KEYS));
    x.kv_splits = x.items >= cpu->row_ops->min_blocks ? 1 : x.kv_splits;
    x.split_keys = agi_round_up((p->kv_len + x.kv_splits - 1) / x.kv_splits, MIN_SPLIT_KEYS / 8);
    return x;
}

/* ---- Vjp and vjp_jvp ---- */

/* Max keys of a tile: the block's K, V, dK, dV and its score tiles must stay in the cache. */
static int64_t max_keys(const ag_problem *p, bool tangents)
{
    const int64_t tiles = (tangents ? 4 : 2) * (TILE_ROWS + 16);
    const int64_t rows = (tangents ? 3 : 2) * (p->dim_qk + p->dim_v);
    const int64_t size = (int64_t)(sizeof(real) / sizeof(float));
    return agi_max(48, agi_min(192, CACHE / (tiles + rows) / size / 48 * 48));
}

/* Spans of about the same length, in blocks of about the same length. */
static void cut_keys(agi_backward_schedule *x, int64_t n, int64_t block, int64_t span, int64_t step)
{
    const int64_t most = agi_max(block, span), spans = agi_max(1, (n + most - 1) / most);
    const int64_t each = agi_max(1, (n + spans - 1) / spans), blocks = (each + block - 1) / block;
    x->block = agi_round_up((each + blocks - 1) / blocks, step);
    x->span = x->block * blocks;
    x->n_spans = agi_max(1, (n + x->span - 1) / x->span);
}

/* Upper bound of the number of splits of the queries: the tiles that see one span. With a window few do, and a split
 * should have at least two of them: otherwise adding up its dK and dV costs more than it gains. */
static int64_t tiles_of_span(const ag_problem *p, int64_t span)
{
    const int64_t rows = TILE_ROWS, all = (p->q_len + rows - 1) / rows;
    const int64_t right = agi_has(p, AG_CAUSAL) ? 0 : p->window_right;
    if (!agi_has(p, AG_WINDOW) || p->window_left < 0 || right < 0 || p->window_left > p->q_len - right) {
        return all;
    }
    return agi_min(all, ((span + p->window_left + right) / rows + 2) / 2);
}

agi_backward_schedule REAL(agi_backward_schedule_of)(const agi_cpu_plan *cpu, const ag_plan *plan,
                                                     agi_map map)
{
    const ag_problem *p = &plan->p;
    const agi_backward_ops *ops = cpu->backward_ops;
    const bool bias_b = agi_has(p, AG_BIAS) && p->bias_size[0] == 1;
    const bool bias_h = agi_has(p, AG_BIAS) && p->bias_size[1] == 1;
    agi_backward_schedule x = {.n_spans = 1};
    cut_keys(&x, p->kv_len, max_keys(p, map == AGI_VJP_JVP), SPAN / (p->dim_qk + p->dim_v), ops->block_step);
    x.group_b = (bias_b || agi_has(p, AG_TABLE)) && p->batch > 0 ? p->batch : 1;
    x.group_hk = bias_h ? p->kv_heads : 1;
    x.groups = agi_saturated(p->batch / x.group_b, p->kv_heads / x.group_hk, 1, 1);
    x.passes = agi_saturated(x.group_b, x.group_hk, x.n_spans, 1);
    const int64_t tiles = tiles_of_span(p, x.span);
    const int64_t wanted = x.groups >= MIN_GROUPS ? 1 : MAX_Q_SPLITS / agi_max(1, x.groups);
    x.q_splits = agi_max(1, agi_min(agi_min(wanted, MAX_Q_SPLITS), tiles));
    x.dq_rows = agi_round_up(p->q_len, ops->dq_row_step);
    x.dq_width = agi_round_up(p->dim_qk, ops->dq_channel_step == 0 ? cpu->k->lanes : ops->dq_channel_step);
    return x;
}
