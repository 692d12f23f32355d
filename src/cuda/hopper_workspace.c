/* What the kernels of the table sm90 keep in the workspace: see hopper_workspace.h. */
#include "cuda/hopper_workspace.h"

agi_hopper_map agi_hopper_ring_of(agi_map map)
{
    return map == AGI_VJP_JVP ? AGI_hopper_second_ring : AGI_hopper_ring;
}

int64_t agi_hopper_key_blocks(const ag_problem *p)
{
    return agi_cuda_divide_up(p->kv_len, AGI_HOPPER_RING_KEYS);
}

int64_t agi_hopper_most_visits(const ag_problem *p, int64_t tile)
{
    return agi_cuda_divide_up(p->q_len, tile) + 1;
}

/* Of all blocks of so many sequences and of all heads of the mask. */
static int64_t visits_of_mask(const ag_problem *p, int64_t sequences, int64_t tile)
{
    return agi_saturating_product(sequences, p->mask_size[1], agi_hopper_key_blocks(p),
                                  agi_hopper_most_visits(p, tile));
}

static int64_t ring_channels(const ag_problem *p)
{
    return p->dim_qk > 64 || p->dim_v > 64 ? 128 : 64;
}
/* Numbers of the sums of dQ or tdQ. */
static int64_t ring_sums(const ag_problem *p, int64_t tile)
{
    return agi_saturating_product(p->heads, agi_hopper_tiles(p, tile), tile, ring_channels(p));
}

/* The steps that a mask leaves are as many as tiles of queries times blocks of keys: with a mask for each head and as
 * many queries as keys, beyond about a million keys in vjp and half as many in vjp_jvp they would take more memory than
 * the sums and a float32 copy of K, and a call has memory of the order of its tensors alone. By the longest sequence:
 * a batch has the same kernels packed and padded. */
static bool lists_fit(const ag_problem *p, agi_hopper_choice choice)
{
    const int64_t visits = choice.features & AGI_HAS_MASK ? visits_of_mask(p, 1, choice.tile) : 0;
    const int64_t queries = agi_cuda_divide_up(p->q_len, choice.tile) * choice.tile;
    const int64_t numbers_of_visit = (int64_t)(sizeof(agi_hopper_visit) / sizeof(float));
    return visits <= agi_saturating_product(p->heads, queries, ring_channels(p), 1) / numbers_of_visit +
                         agi_saturating_product(p->kv_len, p->kv_heads, p->dim_qk, 1) / numbers_of_visit;
}

/* vjp and vjp_jvp in one kernel: a plan may have it if its table is not sm80. It sums dQ or tdQ over the keys in an
 * order that depends on the lengths, so not with AG_INVARIANT. */
bool agi_hopper_may_have_ring(const ag_plan *plan, agi_map map)
{
    if ((map != AGI_VJP && map != AGI_VJP_JVP) || plan->isa == AG_ISA_SM80 || plan->flags & AG_INVARIANT) {
        return false;
    }
    const agi_hopper_choice choice = agi_hopper_choose(plan, agi_hopper_ring_of(map), INT32_MAX);
    return choice.kernel >= 0 && lists_fit(&plan->p, choice);
}

/* Distances of ALiBi and table: what a tile may need behind the ends of a sequence too. */
static int64_t relative_width(const ag_problem *p)
{
    return p->q_len + p->kv_len + 2 * AGI_HOPPER_PAD;
}

static void lay_out_ring(agi_cuda_layout *x, agi_arena *arena, const ag_plan *plan, agi_map map)
{
    const ag_problem *p = &plan->p;
    const agi_hopper_choice choice = agi_hopper_choose(plan, agi_hopper_ring_of(map), INT32_MAX);
    const int64_t tiles = agi_saturating_product(p->heads, agi_hopper_tiles(p, choice.tile), 1, 1);
    const bool has_rest = (choice.features & AGI_HAS_BIAS) != 0;
    const int64_t numbers[3] = {map == AGI_VJP ? 1 : 4, map == AGI_VJP, has_rest}; /* of a row */
    for (int n = 0; n < 3; n++) {
        if (numbers[n] > 0) {
            x->ring_rows[n] =
                agi_take(arena, agi_saturating_product(tiles, choice.tile, numbers[n], 1), sizeof(float));
        }
    }
    x->ring_sums = agi_take(arena, ring_sums(p, choice.tile), sizeof(float));
    x->ring_passes = agi_take(arena, agi_saturating_product(tiles, 2, 1, 1) + 1, sizeof(int32_t));
    if (choice.features & AGI_HAS_MASK) {
        x->ring_visits = agi_take(arena, visits_of_mask(p, p->batch, choice.tile), sizeof(agi_hopper_visit));
    }
    if (map == AGI_VJP_JVP && agi_has(p, AG_TABLE)) {
        x->relative_tangents =
            agi_take(arena, agi_saturating_product(p->batch, p->heads, relative_width(p), 1), sizeof(float));
    }
}

int64_t agi_hopper_class_tiles(const ag_problem *p, int axis, bool one)
{
    switch (axis) {
    case 3: return agi_cuda_divide_up(p->kv_len, 4 * AGI_HOPPER_CLASS) * 4;
    case 2: return one ? 1 : agi_cuda_divide_up(p->q_len, AGI_HOPPER_CLASS);
    default: return one ? 1 : p->mask_size[axis];
    }
}

/* What the kernels of a feature set read. */
static void lay_out_features(agi_hopper_features *x, agi_arena *arena, const ag_plan *plan)
{
    const ag_problem *p = &plan->p;
    const uint32_t features = agi_hopper_choose(plan, AGI_hopper_forward, INT32_MAX).features;
    x->relative_width = relative_width(p);
    x->live_width = agi_cuda_divide_up(p->kv_len + AGI_HOPPER_PAD, 32) * 32;
    if (features & AGI_HAS_RELATIVE) {
        x->relative =
            agi_take(arena, agi_saturating_product(p->batch, p->heads, x->relative_width, 1), sizeof(float));
    }
    if (features & (AGI_HAS_BIAS | AGI_HAS_MASK)) {
        x->live = agi_take(arena, agi_saturating_product(p->batch, p->kv_heads, x->live_width, 1), 1);
    }
    if (features & AGI_HAS_MASK) {
        const int64_t rows = agi_hopper_class_tiles(p, 2, p->mask_size[2] == 1);
        x->classes = agi_take(arena,
                              agi_saturating_product(p->mask_size[0], p->mask_size[1], rows,
                                                     agi_hopper_class_tiles(p, 3, false)),
                              1);
    }
}

static void lay_out_jvp(agi_cuda_layout *x, agi_arena *arena, const ag_plan *plan)
{
    const ag_problem *p = &plan->p;
    const agi_hopper_choice choice = agi_hopper_choose(plan, AGI_hopper_jvp, INT32_MAX);
    if (choice.features != 0) {
        lay_out_features(&x->features, arena, plan);
    }
    if (choice.features & AGI_HAS_RELATIVE && agi_has(p, AG_TABLE)) {
        x->relative_tangents =
            agi_take(arena, agi_saturating_product(p->batch, p->heads, relative_width(p), 1), sizeof(float));
    }
}

static void lay_out_bias_sums(agi_cuda_layout *x, agi_arena *arena, const ag_plan *plan)
{
    const ag_problem *p = &plan->p;
    const agi_hopper_bias_walk walk = agi_hopper_walk_of_bias(plan, INT32_MAX);
    if (walk.parts > 1) {
        const int64_t numbers = agi_saturating_product(p->bias_size[0], p->bias_size[1], p->q_len, p->kv_len);
        x->bias_sums = agi_take(arena, agi_saturating_product(walk.parts, numbers, 1, 1), sizeof(float));
    }
}

void agi_hopper_lay_out(agi_cuda_layout *x, agi_arena *arena, const ag_plan *plan, agi_map map)
{
    const bool in_ring = agi_hopper_may_have_ring(plan, map);
    if (map == AGI_FORWARD || map == AGI_VJP || (map == AGI_VJP_JVP && in_ring)) {
        lay_out_features(&x->features, arena, plan);
    }
    if (map == AGI_JVP) {
        lay_out_jvp(x, arena, plan);
    }
    if (in_ring) {
        lay_out_ring(x, arena, plan, map);
    }
    if (map == AGI_VJP) {
        lay_out_bias_sums(x, arena, plan);
    }
}
