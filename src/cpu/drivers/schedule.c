/* How the work of the maps is cut: a function of the shape and of the ops, never of the number of threads. */
#include "cpu/drivers/backward.h"
#include "cpu/drivers/rows.h"

enum {
    CACHE = 256 * 1024,    /* max elements of a tile's working set: half of a 2 MiB L2 cache in float32 */
    SPAN = 128 * 1024,     /* max elements of the dK and dV of a span */
    MIN_SPLIT_KEYS = 1024, /* min keys of a split */
    MIN_GROUPS = 8,        /* from so many reduction groups on, queries are not split */
    LARGE_ITEMS = 64,      /* work items of a large problem, at least */
    SPLIT_TILES = 16,      /* min tiles of a split of the queries of a large problem, */
    MIN_SPLIT_TILES = 2,   /* and if its keys cannot be split instead */
    MAX_DQ = 4 << 20,      /* max elements of the sums of dQ of spans that run at the same time, */
    MAX_SUMS = 27 << 19    /* and of those, dK and dV together */
};

static const double LARGE_PAIRS = 1 << 25; /* visible pairs of a large problem */

/* Keys that a query sees by causal and window, on average and about. */
static double visible_keys(const ag_problem *p)
{
    const bool causal = agi_has(p, AG_CAUSAL);
    const double keys = (double)p->kv_len, left = (double)p->window_left;
    const double right = causal ? 0 : (double)p->window_right;
    if (agi_has(p, AG_WINDOW) && left >= 0 && right >= 0 && left + right + 1 < keys) {
        return left + right + 1;
    }
    return causal ? keys / 2 : keys;
}

static double visible_pairs(const ag_problem *p)
{
    const double rows = agi_has(p, AG_PACKED) ? (double)p->q_total : (double)p->batch * (double)p->q_len;
    return rows * (double)p->heads * visible_keys(p);
}

/* ---- Forward, jvp and jvp_jvp ---- */

/* Queries of a block: as many as leave min_blocks blocks, of about the same size, in whole float32 panels (64). The
 * vector ops have blocks of one size. */
static int64_t rows_of_block(const ag_problem *p, int64_t max_queries, int64_t min_blocks)
{
    int64_t rows = max_queries;
    if (rows == ROW_BLOCK) {
        return rows;
    }
    while (rows > ROW_BLOCK &&
           agi_saturating_product(p->batch, p->heads, (p->q_len + rows - 1) / rows, 1) < min_blocks) {
        rows /= 2;
    }
    const int64_t blocks = agi_max(1, (p->q_len + rows - 1) / rows);
    return agi_round_up(agi_max(1, (p->q_len + blocks - 1) / blocks), ROW_BLOCK / 3);
}

/* Splits of the keys: none if there are min_blocks blocks of queries, else as many as give the work items wanted. */
static int64_t kv_splits_of(const ag_problem *p, int64_t blocks, int64_t min_blocks)
{
    enum { ITEMS = 32 }; /* work items wanted, about */
    const int64_t max = agi_max(1, p->kv_len / MIN_SPLIT_KEYS);
    if (visible_pairs(p) >= LARGE_PAIRS) {
        return blocks >= LARGE_ITEMS * 3 / 4 ? 1
                                             : agi_min((LARGE_ITEMS + blocks - 1) / agi_max(1, blocks), max);
    }
    return blocks >= min_blocks ? 1 : agi_min(agi_max(1, ITEMS / agi_max(1, blocks)), max);
}

static int64_t split_keys(int64_t n_k, int64_t splits)
{
    return agi_round_up((n_k + splits - 1) / splits, MIN_SPLIT_KEYS / 8);
}

/* AG_INVARIANT: the splits of a sequence whose queries fit in one panel; others have blocks enough. */
static int64_t invariant_kv_splits(int64_t n_k)
{
    enum { MAX_SPLITS = 16 };
    return agi_max(1, agi_min(MAX_SPLITS, n_k / (4 * MIN_SPLIT_KEYS)));
}

agi_row_schedule REAL(agi_row_schedule_of)(const ag_plan *plan, int64_t max_queries, int64_t min_blocks)
{
    const ag_problem *p = &plan->p;
    agi_row_schedule schedule;
    schedule.rows =
        rows_of_block(p, max_queries, visible_pairs(p) >= LARGE_PAIRS ? LARGE_ITEMS / 2 : min_blocks);
    schedule.blocks = agi_max(1, (p->q_len + schedule.rows - 1) / schedule.rows);
    schedule.items = p->q_len == 0 ? 0 : agi_saturating_product(p->batch, p->heads, schedule.blocks, 1);
    schedule.kv_splits = plan->flags & AG_INVARIANT ? invariant_kv_splits(p->kv_len)
                                                    : kv_splits_of(p, schedule.items, min_blocks);
    schedule.split_keys = split_keys(p->kv_len, schedule.kv_splits);
    return schedule;
}

agi_key_splits REAL(agi_key_splits_of)(const agi_head *x, const agi_row_schedule *schedule)
{
    if (!(x->call->plan->flags & AG_INVARIANT)) {
        return (agi_key_splits){schedule->kv_splits, schedule->split_keys};
    }
    const int64_t n = x->seq.n_q <= PANEL ? invariant_kv_splits(x->seq.n_k) : 1;
    return (agi_key_splits){n, split_keys(x->seq.n_k, n)};
}

/* Panels of a block that may have states. */
static int64_t panels_of_block(const ag_plan *plan, const agi_row_schedule *schedule)
{
    return agi_min(schedule->rows, agi_round_up(plan->p.q_len, PANEL)) / PANEL;
}

int64_t REAL(agi_split_panels)(const ag_plan *plan, const agi_row_schedule *schedule)
{
    if (schedule->kv_splits == 1) {
        return 0;
    }
    if (plan->flags & AG_INVARIANT) { /* of a sequence whose keys are split, all queries are in one panel */
        return agi_saturating_product(plan->p.batch, plan->p.heads, schedule->kv_splits, 1);
    }
    return agi_saturating_product(schedule->items, schedule->kv_splits, panels_of_block(plan, schedule), 1);
}

int64_t REAL(agi_split_panel)(const ag_plan *plan, const agi_row_schedule *schedule, int64_t item,
                              int64_t index)
{
    if (plan->flags & AG_INVARIANT) {
        const int64_t head = item / schedule->kv_splits / schedule->blocks;
        return head * schedule->kv_splits + item % schedule->kv_splits;
    }
    return item * panels_of_block(plan, schedule) + index;
}

/* ---- Cost ---- */

double REAL(agi_cost_of)(const ag_plan *plan, agi_map map)
{
    static const double products[] = {
        [AGI_FORWARD] = 2, [AGI_VJP] = 5, [AGI_JVP] = 6, [AGI_VJP_JVP] = 12, [AGI_JVP_JVP] = 10};
    _Static_assert(sizeof products / sizeof products[0] == AGI_N_MAPS, "every map has products");
    const ag_problem *p = &plan->p;
    return visible_pairs(p) * (double)(p->dim_qk + p->dim_v) / 2 * products[map];
}

/* ---- Vjp and vjp_jvp ---- */

/* Max keys of a block, a multiple of 48: its K, V, dK, dV and score tiles must stay in the L2 cache. */
static int64_t max_keys(const ag_problem *p, bool tangents)
{
    const int64_t tiles = (tangents ? 4 : 2) * (TILE_ROWS + 16); /* per key, with padding */
    const int64_t rows = (tangents ? 3 : 2) * (p->dim_qk + p->dim_v);
    const int64_t floats = (int64_t)(sizeof(real) / sizeof(float)); /* of one real */
    return agi_max(48, agi_min(192, CACHE / (tiles + rows) / floats / 48 * 48));
}

/* Cuts n keys into spans of about the same length, and those into blocks of about the same length, a multiple of step;
 * block and span: the max lengths. */
static void cut_keys(agi_backward_cut *cut, int64_t n, int64_t block, int64_t span, int64_t step)
{
    const int64_t max_span = agi_max(block, span), spans = agi_max(1, (n + max_span - 1) / max_span);
    const int64_t each = agi_max(1, (n + spans - 1) / spans), blocks = (each + block - 1) / block;
    cut->block = agi_round_up((each + blocks - 1) / blocks, step);
    cut->span = cut->block * blocks;
    cut->n_spans = agi_max(1, (n + cut->span - 1) / cut->span);
}

/* Max splits of the queries: the number of tiles or, with a window, half the number of tiles that see one span, as
 * adding up the dK and dV of a split pays only if it has at least two of them. */
static int64_t max_splits(const ag_problem *p, int64_t span)
{
    const int64_t rows = TILE_ROWS, tiles = (p->q_len + rows - 1) / rows;
    const int64_t right = agi_has(p, AG_CAUSAL) ? 0 : p->window_right;
    if (!agi_has(p, AG_WINDOW) || p->window_left < 0 || right < 0 || p->window_left > p->q_len - right) {
        return tiles;
    }
    return agi_min(tiles, ((span + p->window_left + right) / rows + 2) / 2);
}

static int64_t divide_up(int64_t n, int64_t step)
{
    return (n + step - 1) / step;
}

/* Elements of the sums of dQ of all groups that run at the same time. */
static int64_t dq_elements(const ag_problem *p, int64_t groups)
{
    return agi_saturating_product(groups, p->heads / p->kv_heads, p->q_len, p->dim_qk);
}

/* How many splits of the queries a group has, and how many of its spans run at the same time. A few groups are split
 * into MIN_GROUPS work items by their queries. Large problems get LARGE_ITEMS: by spans, which costs little, as dQ is
 * read and written once per span in any case, but each span at work has its own sums of dQ; or by queries, each split
 * with its own sums of dK and dV. MAX_DQ and MAX_SUMS bound this memory: very long sequences get fewer items. */
static void split_group(agi_backward_cut *cut, const ag_problem *p, int64_t groups, int64_t min_groups)
{
    const int64_t few = groups >= MIN_GROUPS ? 1 : MIN_GROUPS / agi_max(1, groups);
    const int64_t tiles = p->q_len / TILE_ROWS;
    cut->q_splits = few;
    cut->key_splits = 1;
    if (visible_pairs(p) >= LARGE_PAIRS && groups < min_groups) {
        const int64_t wanted = (LARGE_ITEMS + groups - 1) / groups;
        const int64_t dq = agi_max(1, dq_elements(p, groups));
        const int64_t dkv = agi_max(1, groups * cut->span * (p->dim_qk + p->dim_v)); /* of one split */
        cut->q_splits = agi_min(wanted, agi_max(few, tiles / SPLIT_TILES));
        cut->key_splits =
            agi_min(agi_min(cut->n_spans, agi_max(1, MAX_DQ / dq)), divide_up(wanted, cut->q_splits));
        cut->q_splits =
            agi_max(cut->q_splits, agi_min(divide_up(wanted, cut->key_splits), tiles / MIN_SPLIT_TILES));
        cut->q_splits = agi_max(few, agi_min(cut->q_splits, (MAX_SUMS / cut->key_splits - dq) / dkv));
    }
    cut->q_splits = agi_max(1, agi_min(cut->q_splits, max_splits(p, cut->span)));
}

/* ---- Chains ---- */

/* Max chains: groups whose sums of dQ fit in MAX_SUMS. Two wait less for each other than one, so half of MIN_GROUPS
 * groups and less have two in any case. */
static int64_t max_chains(const ag_problem *p, int64_t groups)
{
    const int64_t min = groups <= MIN_GROUPS / 2 ? 2 : 1;
    return agi_min(groups, agi_max(min, MAX_SUMS / agi_max(1, dq_elements(p, 1))));
}

/* Are there gradients that are sums over all spans? Then spans do not run as chains. */
static bool sums_over_spans(const ag_problem *p)
{
    return agi_has(p, AG_TABLE) || (agi_has(p, AG_BIAS) && !REAL(agi_bias_is_full)(p));
}

/* Whether groups may run as chains of spans. Spans of a group follow each other tile by tile, so it must have min_tiles
 * tiles of queries. */
static bool can_chain(const agi_backward_schedule *schedule, const ag_problem *p, int64_t min_tiles)
{
    return !sums_over_spans(p) && schedule->group_b == 1 && schedule->group_hk == 1 &&
           schedule->groups < LARGE_ITEMS &&
           agi_saturating_product(agi_heads_per_kv(p), p->q_len / TILE_ROWS, 1, 1) >= min_tiles;
}

/* ---- AG_INVARIANT: a cut is a function of the lengths of its sequence and of the head sizes ---- */

enum {
    INVARIANT_SPAN =
        SPAN / 2,          /* max elements of the dK and dV of a span: few heads have many work items by it */
    MIN_CHAINED_SPANS = 4, /* queries of a sequence with so many spans or more are split with a bias only */
    BIAS_SPLIT_TILES = 4,  /* min tiles of a split of the queries, with a bias or a table */
    INVARIANT_SPLITS = 16, /* max splits of the queries */
    INVARIANT_GROUPS = 16  /* with so many groups or more, splits are not work items; no bit depends on it */
};

static int64_t max_span(const ag_problem *p)
{
    return SPAN / (p->dim_qk + p->dim_v);
}

static int64_t max_invariant_span(const ag_problem *p)
{
    return INVARIANT_SPAN / (p->dim_qk + p->dim_v);
}

static bool has_bias(const ag_problem *p)
{
    return agi_has(p, AG_TABLE) || agi_has(p, AG_BIAS);
}

static int64_t invariant_splits(const ag_problem *p, int64_t n_q)
{
    const int64_t tiles = has_bias(p) ? BIAS_SPLIT_TILES : SPLIT_TILES;
    return agi_max(1, agi_min(INVARIANT_SPLITS, n_q / TILE_ROWS / tiles));
}

agi_backward_cut REAL(agi_invariant_cut)(const agi_cpu_plan *cpu, const ag_problem *problem, agi_map map,
                                         int64_t n_q, int64_t n_k)
{
    ag_problem p = *problem;
    agi_backward_cut cut;
    p.q_len = n_q;
    p.kv_len = n_k;
    cut_keys(&cut, n_k, max_keys(&p, map == AGI_VJP_JVP), max_invariant_span(&p),
             cpu->backward_ops->block_step);
    cut.key_splits = cut.q_splits = 1;
    if (cut.n_spans < MIN_CHAINED_SPANS || has_bias(&p)) { /* groups that share a bias do not run as chains */
        cut.q_splits = agi_max(1, agi_min(invariant_splits(&p, n_q), max_splits(&p, cut.span)));
    }
    return cut;
}

/* What no sequence of at most q_len queries and kv_len keys exceeds. */
static agi_backward_cut max_invariant_cut(const agi_cpu_plan *cpu, const ag_problem *p, agi_map map)
{
    const int64_t block = max_keys(p, map == AGI_VJP_JVP), span = agi_max(block, max_invariant_span(p));
    const int64_t keys = agi_max(1, p->kv_len), longest = agi_min(span, keys);
    agi_backward_cut max;
    max.block = agi_round_up(agi_min(block, keys), cpu->backward_ops->block_step);
    max.span = (longest + block - 1) / block * max.block;
    max.n_spans = (keys + span - 1) / span;
    max.key_splits = 1;
    max.q_splits = invariant_splits(p, p->q_len);
    return max;
}

/* Whether the splits of the queries are work items: if their sums fit in MAX_SUMS; but as without the flag, half of
 * MIN_GROUPS groups and less are always split. */
static bool share_invariant_splits(const agi_backward_schedule *schedule, const ag_problem *p)
{
    const agi_backward_cut *max = &schedule->max;
    const double groups = (double)schedule->groups, splits = (double)max->q_splits;
    const double dq = max->n_spans > 1 ? (double)dq_elements(p, schedule->groups) : 0;
    const double dkv = splits * groups * (double)(max->span * (p->dim_qk + p->dim_v));
    return max->q_splits > 1 && schedule->groups < INVARIANT_GROUPS &&
           (dq + dkv <= MAX_SUMS || schedule->groups <= MIN_GROUPS / 2);
}

/* Sets how the work is shared, which no bit depends on: as a chain, whose spans run the splits of the queries one after
 * another, or by these splits. Otherwise the work items are groups. */
static void share_invariant(agi_backward_schedule *schedule, const ag_problem *p)
{
    enum { MIN_TILES = 1 };
    const int64_t spans = schedule->max.n_spans;
    schedule->backwards = true;
    schedule->chained = can_chain(schedule, p, MIN_TILES) && spans > 1 &&
                        (spans >= MIN_CHAINED_SPANS || spans > schedule->max.q_splits);
    schedule->shared = schedule->chained || share_invariant_splits(schedule, p);
}

/* ---- The schedule of vjp and vjp_jvp ---- */

/* Min tiles of queries of a group that runs as a chain: fewer if several groups run at the same time, up to four. */
static int64_t min_chain_tiles(const agi_backward_schedule *schedule)
{
    enum { MIN_TILES = 32, MAX_COUNTED = 4 };
    return MIN_TILES / agi_max(1, agi_min(MAX_COUNTED, schedule->max_chains));
}

/* Cuts the keys into spans that make LARGE_ITEMS work items, by spans of at least half the usual length; false if that
 * is not enough. */
static bool cut_chain(agi_backward_cut *cut, const ag_problem *p, int64_t groups, int64_t block, int64_t step)
{
    const int64_t longest = agi_max(block, max_span(p)), shortest = agi_max(block, longest / 2);
    const int64_t wanted = divide_up(LARGE_ITEMS, agi_max(1, groups));
    cut->q_splits = cut->key_splits = 1;
    for (int64_t n = agi_max(wanted, divide_up(p->kv_len, longest)); divide_up(p->kv_len, n) >= shortest;
         n++) {
        cut_keys(cut, p->kv_len, block, divide_up(p->kv_len, n), step);
        if (cut->n_spans >= wanted) {
            return true;
        }
    }
    return false;
}

/* Large problems without LARGE_ITEMS chained spans: chains of spans of the usual length, if that makes more work items
 * than the parts of a pass. */
static void chain_whole_spans(agi_backward_schedule *schedule, const ag_problem *p)
{
    agi_backward_cut *cut = &schedule->max;
    if (visible_pairs(p) >= LARGE_PAIRS && cut->n_spans > cut->q_splits * cut->key_splits &&
        can_chain(schedule, p, min_chain_tiles(schedule))) {
        cut->q_splits = cut->key_splits = 1;
        schedule->chained = true;
    }
}

/* Sets the cut, and how it is shared. */
static void cut_groups(agi_backward_schedule *schedule, const agi_cpu_plan *cpu, const ag_plan *plan,
                       agi_map map)
{
    const ag_problem *p = &plan->p;
    const agi_backward_ops *ops = cpu->backward_ops;
    const int64_t block = max_keys(p, map == AGI_VJP_JVP);
    agi_backward_cut *cut = &schedule->max;
    schedule->max_chains = max_chains(p, schedule->groups);
    if (plan->flags & AG_INVARIANT) {
        *cut = max_invariant_cut(cpu, p, map);
        share_invariant(schedule, p);
        return;
    }
    schedule->chained = can_chain(schedule, p, min_chain_tiles(schedule)) &&
                        cut_chain(cut, p, schedule->groups, block, ops->block_step);
    if (!schedule->chained) {
        cut_keys(cut, p->kv_len, block, max_span(p), ops->block_step);
        split_group(cut, p, schedule->groups, ops->min_groups);
        chain_whole_spans(schedule, p);
    }
    schedule->backwards = schedule->chained;
    schedule->shared = schedule->chained || cut->q_splits > 1 || cut->key_splits > 1;
}

agi_backward_schedule REAL(agi_backward_schedule_of)(const agi_cpu_plan *cpu, const ag_plan *plan,
                                                     agi_map map)
{
    const ag_problem *p = &plan->p;
    const agi_backward_ops *ops = cpu->backward_ops;
    const bool bias_b = agi_has(p, AG_BIAS) && p->bias_size[0] == 1;
    const bool bias_h = agi_has(p, AG_BIAS) && p->bias_size[1] == 1;
    agi_backward_schedule schedule = {.groups = 0};
    schedule.group_b = (bias_b || agi_has(p, AG_TABLE)) && p->batch > 0 ? p->batch : 1;
    schedule.group_hk = bias_h ? p->kv_heads : 1;
    schedule.groups =
        agi_saturating_product(p->batch / schedule.group_b, p->kv_heads / schedule.group_hk, 1, 1);
    cut_groups(&schedule, cpu, plan, map);
    schedule.member_passes = (schedule.max.n_spans + schedule.max.key_splits - 1) / schedule.max.key_splits;
    schedule.passes = agi_saturating_product(schedule.group_b, schedule.group_hk, schedule.member_passes, 1);
    schedule.parts =
        schedule.shared && !schedule.chained ? schedule.max.q_splits * schedule.max.key_splits : 1;
    schedule.dq_rows = agi_round_up(p->q_len, ops->dq_row_step);
    schedule.dq_width =
        agi_round_up(p->dim_qk, ops->dq_channel_step == 0 ? cpu->k->lanes : ops->dq_channel_step);
    return schedule;
}
