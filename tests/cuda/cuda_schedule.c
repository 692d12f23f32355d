/* The choice of kernels on the host: every kernel fits its device, every head size has one, the parameters of a launch
 * fit every driver, and blocks that wait for each other fit the device. */
#include "cuda/device.h"
#include "cuda/hopper_workspace.h"
#include "cuda/schedule.h"
#include "test.h"

enum { LIMIT_SMALL = AGI_CUDA_SHARED_SMALL, LIMIT_LARGE = AGI_CUDA_SHARED_LARGE, MAX_PARAMETER = 4096 };

static void check_limits(void)
{
    for (int n = 0; n < AGI_CUDA_N_KERNELS; n++) {
        const agi_cuda_kernel *k = &agi_cuda_kernels[n];
        const bool any = strstr(k->name, "_any") != NULL || strstr(k->name, "_d") == NULL;
        CHECK(k->shared <= (any ? LIMIT_SMALL : LIMIT_LARGE), "%s: %d bytes of shared memory", k->name,
              (int)k->shared);
        CHECK(k->threads % 32 == 0 && k->threads <= 1024, "%s: %d threads", k->name, (int)k->threads);
    }
    CHECK(sizeof(agi_cuda_params) <= MAX_PARAMETER, "%zu bytes of parameters", sizeof(agi_cuda_params));
    CHECK(sizeof(agi_cuda_upload) <= MAX_PARAMETER, "%zu bytes of lists", sizeof(agi_cuda_upload));
    CHECK(sizeof(agi_hopper_forward) <= MAX_PARAMETER, "%zu bytes of parameters of Hopper's forward",
          sizeof(agi_hopper_forward));
    CHECK(sizeof(agi_hopper_planes) <= MAX_PARAMETER,
          "%zu bytes of parameters of Hopper's forward in float32", sizeof(agi_hopper_planes));
    CHECK(sizeof(agi_hopper_jvp) <= MAX_PARAMETER, "%zu bytes of parameters of Hopper's jvp",
          sizeof(agi_hopper_jvp));
    CHECK(sizeof(agi_hopper_backward) <= MAX_PARAMETER, "%zu bytes of parameters of Hopper's vjp",
          sizeof(agi_hopper_backward));
    CHECK(sizeof(agi_hopper_wide) <= MAX_PARAMETER, "%zu bytes of parameters of Hopper's wide vjp",
          sizeof(agi_hopper_wide));
    CHECK(sizeof(agi_hopper_second) <= MAX_PARAMETER, "%zu bytes of parameters of Hopper's vjp_jvp",
          sizeof(agi_hopper_second));
    CHECK(sizeof(agi_hopper_before) <= MAX_PARAMETER, "%zu bytes of parameters before a feature set",
          sizeof(agi_hopper_before));
    CHECK(sizeof(agi_hopper_ring) <= MAX_PARAMETER, "%zu bytes of parameters of Hopper's vjp in one kernel",
          sizeof(agi_hopper_ring));
    CHECK(sizeof(agi_hopper_dbias) <= MAX_PARAMETER, "%zu bytes of parameters of the bias's gradient",
          sizeof(agi_hopper_dbias));
    CHECK(sizeof(agi_hopper_second_ring) <= MAX_PARAMETER,
          "%zu bytes of parameters of Hopper's vjp_jvp in one kernel", sizeof(agi_hopper_second_ring));
    CHECK(sizeof(agi_cuda_merge) <= MAX_PARAMETER, "%zu bytes of a merge", sizeof(agi_cuda_merge));
}

/* The choice is for the smallest head size that has room, and for any size where none fits. */
static void check_choices(ag_dtype dtype, int32_t limit)
{
    for (int64_t d = 1; d <= 512; d++) {
        const ag_problem p = {.dtype = dtype, .dim_qk = d, .dim_v = d < 8 ? 8 : d - 7};
        for (int map = AGI_STREAM_forward; map <= AGI_STREAM_tdq; map++) {
            const agi_cuda_choice c = agi_cuda_choose(&p, (agi_cuda_map)map, limit);
            const agi_cuda_kernel *k = &agi_cuda_kernels[c.kernel];
            const char *size = strstr(k->name, "_d");
            const bool any = strstr(k->name, "_any") != NULL;
            CHECK(k->shared <= limit, "%s for d%d: %d bytes of shared memory", k->name, (int)d,
                  (int)k->shared);
            CHECK(any || (size != NULL && atoll(size + 2) >= p.dim_qk && atoll(size + 2) >= p.dim_v),
                  "%s for d%d", k->name, (int)d);
            CHECK(any || d > 32 || atoll(size + 2) == 32, "%s for d%d", k->name, (int)d);
        }
    }
}

/* ---- Splits of the keys ---- */

/* Which problems have them: few queries that see more keys than a split has. In the table sm90 forward is then the
 * portable kernel's, but the other maps stay there if there are several queries. */
static void check_splits(const char *text, uint32_t flags, bool wanted, int64_t tiles)
{
    ag_plan plan = {.p = AG_PROBLEM_INIT, .flags = flags};
    CHECK_OK(ag_problem_parse(text, &plan.p));
    plan.p.kv_heads = plan.p.kv_heads == 0 ? plan.p.heads : plan.p.kv_heads; /* as core does */
    const ag_problem *p = &plan.p;
    const bool splits = agi_cuda_splits_keys(&plan, LIMIT_LARGE);
    CHECK(splits == wanted && agi_cuda_splits_keys(&plan, LIMIT_SMALL) == wanted, "'%s' has splits: %d", text,
          splits);
    if (!splits) {
        return;
    }
    const char *name = agi_cuda_kernels[agi_cuda_choose(p, AGI_STREAM_decode, LIMIT_LARGE).kernel].name;
    const bool has_vjp = agi_hopper_choose(&plan, AGI_hopper_ring, LIMIT_LARGE).kernel >= 0;
    const bool is_16 = p->dtype == AG_BF16 || p->dtype == AG_F16;
    CHECK(strncmp(name, "decode_", 7) == 0, "'%s': %s", text, name);
    CHECK(agi_cuda_decode_tiles(p) == tiles, "'%s': %d tiles of queries", text,
          (int)agi_cuda_decode_tiles(p));
    CHECK(agi_hopper_choose(&plan, AGI_hopper_forward, LIMIT_LARGE).kernel < 0, "'%s' on sm90", text);
    CHECK(has_vjp == (is_16 && p->q_len > 1 && p->dim_qk <= 128), "vjp of '%s' on sm90", text);
}

static void check_all_splits(void)
{
    check_splits("q1 k513 d64 bf16", 0, true, 1);
    check_splits("q1 k512 d64 bf16", 0, false, 0);
    check_splits("b64 h32 q1 k8192 d128 bf16", 0, true, 1);
    check_splits("q1 k600 d64 bf16", AG_INVARIANT, false, 0);
    check_splits("q4 k600 d64 bf16", AG_INVARIANT, false, 0);
    check_splits("h32 kv8 q16 k8192 d128 bf16", 0, true, 4);
    check_splits("h32 kv8 q17 k8192 d128 bf16", 0, false, 0);
    check_splits("b2 h64 q2 k600 d256 f16", 0, true, 1);
    check_splits("b3 h43 q2 k600 d64 f16", 0, false, 0);
    check_splits("h16 kv1 q3 k600 d128 f64", 0, true, 3);
    check_splits("h17 kv1 q3 k600 d128 f64", 0, false, 0);
    check_splits("h6 kv2 q16 k600 d20 f32", 0, true, 4);
    check_splits("q2 k600 d128 f32", 0, true, 1);
    check_splits("q2 k600 d129 f32", 0, false, 0);
    check_splits("q2 k600 d129 f64", 0, false, 0);
    check_splits("q2 k600 d257 bf16", 0, false, 0);
    check_splits("q4 k9000 d64 bf16 softcap=5", 0, false, 0);
    check_splits("q4 k9000 d64 bf16 mask", 0, false, 0);
    check_splits("q4 k9000 d64 bf16 window=500,11", 0, false, 0);
    check_splits("q4 k9000 d64 bf16 window=501,11", 0, true, 1);
    check_splits("q1 k9000 d64 bf16 window=511,11 causal", 0, false, 0);
    check_splits("q1 k9000 d64 bf16 window=512,11 causal", 0, true, 1);
    check_splits("q4 k600 d64 bf16 window=-1,5", 0, true, 1);
    check_splits("b3 q9 k900 d64 f16 packed=20,1200", 0, true, 1);
}

/* ---- Feature sets on Hopper ---- */

static const struct {
    const char *name;
    uint32_t features;
} sets[] = {{"", 0},
#define SET_OF_LIST(Y, format, set, features, ...) {#set, features},
            AGI_HOPPER_SETS(SET_OF_LIST, , )
#undef SET_OF_LIST
};
enum { N_SETS = sizeof sets / sizeof sets[0], ALL_FEATURES = 31 };

/* Which maps have sets: forward, vjp, jvp and vjp_jvp in one kernel; the gradient of the bias those with a bias. */
static bool has_set(agi_hopper_map map, uint32_t features)
{
    if (map == AGI_hopper_dbias) {
        return (features & AGI_HAS_BIAS) != 0;
    }
    return features == 0 || map == AGI_hopper_forward || map == AGI_hopper_jvp || map == AGI_hopper_dkdv ||
           map == AGI_hopper_dq || map == AGI_hopper_ring || map == AGI_hopper_second_ring;
}

/* The choice must be one of the smallest sets with all of the features that the map's kernels need to know; none if
 * there is none. */
static void check_set(uint32_t of_problem, agi_hopper_map map)
{
    const bool before = map == AGI_hopper_statistics || map == AGI_hopper_visits ||
                        map == AGI_hopper_second_statistics || map == AGI_hopper_second_visits;
    const uint32_t features = before ? 0 : of_problem;
    ag_plan plan = {.p = AG_PROBLEM_INIT};
    ag_problem *p = &plan.p;
    int smallest = 99;
    p->dtype = AG_F16;
    p->q_len = p->kv_len = 100;
    p->dim_qk = p->dim_v = 80;
    p->softcap = of_problem & AGI_HAS_SOFTCAP ? 5 : 0;
    p->dropout = of_problem & AGI_HAS_DROPOUT ? 0.5 : 0;
    p->flags = (of_problem & AGI_HAS_RELATIVE ? AG_ALIBI : 0u) | (of_problem & AGI_HAS_BIAS ? AG_BIAS : 0u) |
               (of_problem & AGI_HAS_MASK ? AG_MASK : 0u);
    for (int n = 0; n < N_SETS; n++) {
        const bool covers = has_set(map, sets[n].features) && (features & ~sets[n].features) == 0 &&
                            (sets[n].features & ~features & AGI_HAS_SOFTCAP) == 0;
        const int count = __builtin_popcount(sets[n].features);
        smallest = covers && count < smallest ? count : smallest;
    }
    const agi_hopper_choice c = agi_hopper_choose(&plan, map, LIMIT_LARGE);
    CHECK((c.kernel >= 0) == (smallest < 99), "features %u have kernel %d", (unsigned)features,
          (int)c.kernel);
    if (c.kernel >= 0) {
        const char *name = agi_cuda_kernels[c.kernel].name;
        CHECK((features & ~c.features) == 0 && __builtin_popcount(c.features) == smallest,
              "features %u have set %u", (unsigned)features, (unsigned)c.features);
        CHECK(strstr(name, "_f16_d128") != NULL && strcmp(name + strlen(name) - strlen(c.set), c.set) == 0,
              "features %u have %s", (unsigned)features, name);
    }
}

/* The table sm90 has forward in every dtype but float64, the other maps in 16 bits, for head sizes up to 128; larger
 * ones are check_wide's. */
static void check_hopper(ag_dtype dtype, agi_hopper_map map)
{
    const bool has = dtype == AG_F32 ? map == AGI_hopper_forward : dtype != AG_F64;
    for (int64_t d = 1; d <= 128; d++) {
        const ag_plan plan = {.p = {.dtype = dtype,
                                    .batch = 1,
                                    .heads = 1,
                                    .kv_heads = 1,
                                    .q_len = 65,
                                    .kv_len = 65,
                                    .dim_qk = d,
                                    .dim_v = 1}};
        const agi_hopper_choice c = agi_hopper_choose(&plan, map, LIMIT_LARGE);
        const char *name = c.kernel < 0 ? "none" : agi_cuda_kernels[c.kernel].name;
        CHECK((c.kernel >= 0) == has, "map %d of dtype %d, d%d: %s", (int)map, (int)dtype, (int)d, name);
        CHECK(c.kernel < 0 || strstr(name, d <= 64 ? "_d64" : "_d128") != NULL, "d%d: %s", (int)d, name);
    }
}

/* Head sizes above 128 have forward and vjp; the largest is 256. */
static void check_wide(int64_t d, agi_hopper_map map)
{
    ag_plan plan = {.p = AG_PROBLEM_INIT};
    const bool first = map == AGI_hopper_forward || map == AGI_hopper_dkdv || map == AGI_hopper_dq;
    plan.p.dtype = AG_BF16;
    plan.p.q_len = plan.p.kv_len = 100;
    plan.p.dim_qk = 40;
    plan.p.dim_v = d;
    const agi_hopper_choice c = agi_hopper_choose(&plan, map, LIMIT_LARGE);
    CHECK((c.kernel >= 0) == (d <= 128 || (first && d <= 256)), "map %d has kernel %d for d%d", (int)map,
          (int)c.kernel, (int)d);
    CHECK(c.kernel < 0 || (strstr(agi_cuda_kernels[c.kernel].name, "_d256") != NULL) == (d > 128),
          "%s for d%d", agi_cuda_kernels[c.kernel].name, (int)d);
    plan.p.dropout = 0.1;
    CHECK(d <= 128 || agi_hopper_choose(&plan, map, LIMIT_LARGE).kernel < 0, "map %d has dropout for d%d",
          (int)map, (int)d);
}

/* The walk over what shares a tile of the bias: its parts have all steps, the last one at least one. */
static void check_bias_walk(int64_t batch, int64_t heads, int64_t n, bool over_batch, bool over_heads)
{
    ag_plan plan = {.p = AG_PROBLEM_INIT};
    ag_problem *p = &plan.p;
    p->dtype = AG_BF16;
    p->flags = AG_BIAS;
    p->batch = batch;
    p->heads = p->kv_heads = heads;
    p->q_len = p->kv_len = n;
    p->dim_qk = p->dim_v = 32;
    p->bias_size[0] = over_batch ? 1 : batch;
    p->bias_size[1] = over_heads ? 1 : heads;
    p->bias_size[2] = p->bias_size[3] = n;
    const agi_hopper_bias_walk walk = agi_hopper_walk_of_bias(&plan, LIMIT_LARGE);
    const int64_t steps = (over_batch ? batch : 1) * (over_heads ? heads : 1);
    CHECK(walk.tiles > 0 && walk.steps * walk.parts >= steps && walk.steps * (walk.parts - 1) < steps,
          "%d steps are %d parts of %d", (int)steps, (int)walk.parts, (int)walk.steps);
    CHECK(walk.parts == 1 || walk.tiles * (walk.parts - 1) < 512, "%d parts of %d tiles", (int)walk.parts,
          (int)walk.tiles);
    CHECK(walk.tiles * walk.parts >= 512 || walk.steps <= 8, "%d parts of %d tiles, %d steps each",
          (int)walk.parts, (int)walk.tiles, (int)walk.steps);
    p->bias_size[2] = 1;
    CHECK(agi_hopper_walk_of_bias(&plan, LIMIT_LARGE).tiles == 0, "a bias with one row");
    p->bias_size[2] = n;
    p->softcap = 5;
    CHECK(agi_hopper_walk_of_bias(&plan, LIMIT_LARGE).tiles == 0, "a bias with a softcap");
}

/* Nothing to walk over: no sequences, of which each has a bias or all share one, or no queries. */
static void check_empty_bias_walks(void)
{
    static const struct {
        int64_t batch, queries, biases;
    } empty[] = {{0, 9, 0}, {0, 9, 1}, {3, 0, 3}, {0, 0, 1}};
    for (int n = 0; n < 4; n++) {
        ag_plan plan = {.p = AG_PROBLEM_INIT};
        ag_problem *p = &plan.p;
        p->dtype = AG_BF16;
        p->flags = AG_BIAS;
        p->batch = empty[n].batch;
        p->heads = p->kv_heads = p->bias_size[1] = 2;
        p->q_len = p->bias_size[2] = empty[n].queries;
        p->kv_len = p->bias_size[3] = 9;
        p->dim_qk = p->dim_v = 32;
        p->bias_size[0] = empty[n].biases;
        CHECK(agi_hopper_walk_of_bias(&plan, LIMIT_LARGE).tiles == 0, "%d sequences of %d queries",
              (int)p->batch, (int)p->q_len);
    }
}

/* ---- Launches ---- */

static ag_status count_launch(void *ctx, const agi_cuda_entry *launch)
{
    (void)launch;
    *(int *)ctx += 1;
    return AG_OK;
}

/* More blocks than a launch has: a map and merge are refused by the sizes. */
static void check_too_many_blocks(void)
{
    static double memory[2];
    int launches = 0;
    const agi_cuda_emitter emitter = {count_launch, &launches};
    const agi_cuda_setting device = {.shared_limit = LIMIT_LARGE, .processors = 132};
    ag_plan plan = {.p = AG_PROBLEM_INIT};
    ag_problem *p = &plan.p;
    agi_call call = {.plan = &plan, .map = AGI_FORWARD};
    const ag_merge_args merge = {.struct_size = sizeof merge};
    p->dtype = p->out_dtype = AG_F64;
    p->batch = UINT32_MAX;
    p->heads = p->kv_heads = 1;
    p->q_len = p->kv_len = 100;
    p->dim_qk = p->dim_v = 16;
    call.a.q.data = call.a.k.data = call.a.v.data = call.a.o.data = memory;
    call.a.q.strides[3] = call.a.k.strides[3] = call.a.v.strides[3] = 1;
    CHECK_STATUS(agi_cuda_launch_map(&call, &device, memory, emitter), AG_UNSUPPORTED);
    CHECK(strcmp(ag_last_field(), "batch") == 0 &&
              strstr(ag_last_message(), "batch is 4294967295, heads is 1, q_len is 100") != NULL,
          "%s", ag_last_message());
    CHECK_STATUS(agi_cuda_launch_merge(&plan, &merge, emitter), AG_UNSUPPORTED);
    CHECK(strstr(ag_last_message(), "merge would have") != NULL, "%s", ag_last_message());
    CHECK(launches == 0, "%d launches", launches);
    p->batch = 2;
    CHECK_OK(agi_cuda_launch_map(&call, &device, memory, emitter));
    CHECK_OK(agi_cuda_launch_merge(&plan, &merge, emitter));
    CHECK(launches > 1, "%d launches", launches);
}

/* ---- Blocks that wait for each other ---- */

/* Groups are as few as hold all blocks of keys, and nearly equal; the last one is not empty. */
static void check_ring_size(int64_t keys, int64_t most)
{
    const ag_problem p = {.kv_len = keys}, band = {.kv_len = keys, .flags = AG_CAUSAL};
    const int64_t blocks = (keys + AGI_HOPPER_RING_KEYS - 1) / AGI_HOPPER_RING_KEYS;
    const agi_hopper_ring_size size = agi_hopper_rings(&p, most);
    CHECK(size.is_ring && !agi_hopper_rings(&band, most).is_ring, "%d keys", (int)keys);
    CHECK(size.blocks >= 1 && size.blocks <= most, "%d keys: groups of %d blocks", (int)keys,
          (int)size.blocks);
    CHECK((int64_t)size.blocks * size.groups >= blocks && (int64_t)size.blocks * (size.groups - 1) < blocks &&
              most * (size.groups - 1) < blocks,
          "%d blocks of keys: %d groups of %d", (int)blocks, (int)size.groups, (int)size.blocks);
}

struct grid {
    uint32_t blocks; /* of the launch whose blocks wait for each other */
    int launches;
};
static ag_status note_grid(void *ctx, const agi_cuda_entry *launch)
{
    struct grid *g = ctx;
    if (launch->together) {
        g->blocks = launch->blocks;
        g->launches++;
    }
    return AG_OK;
}
static ag_status make_any_map(const void *ctx, const agi_cuda_box_view *view, agi_cuda_tensor_map *map)
{
    (void)ctx;
    (void)view;
    (void)map;
    return AG_OK;
}

/* The grid of a plan's map on a device. */
static struct grid grid_of(const ag_plan *plan, agi_map map, int32_t processors)
{
    static double memory[2];
    struct grid g = {0};
    const agi_cuda_emitter emitter = {note_grid, &g};
    const agi_cuda_setting device = {.shared_limit = LIMIT_LARGE,
                                     .processors = processors,
                                     .ring_most = AGI_HOPPER_RING_MOST,
                                     .make_map = make_any_map};
    agi_call call = {.plan = plan, .map = map};
    ag_args *a = &call.a;
    ag_tensor *const tensors[] = {&a->q,    &a->k,  &a->v,  &a->o,  &a->d_o, &a->lse, &a->to,
                                  &a->td_o, &a->mu, &a->dq, &a->dk, &a->dv,  &a->tdq, &a->tdk,
                                  &a->tdv,  &a->tq, &a->tk, &a->tv, &a->mask};
    for (size_t n = 0; n < sizeof tensors / sizeof tensors[0]; n++) {
        tensors[n]->data = memory;
        tensors[n]->strides[3] = 1;
    }
    CHECK_OK(agi_cuda_launch_map(&call, &device, memory, emitter));
    return g;
}

/* All blocks of the grid are on the device at once: one per multiprocessor. A grid of rings has as many whole ones as
 * fit, another one a block for each group's block or one per multiprocessor. A device that a group does not fit has
 * none. */
static void check_grid(int64_t batch, int64_t keys, uint32_t flags, agi_map map)
{
    ag_plan plan = {.p = AG_PROBLEM_INIT};
    ag_problem *p = &plan.p;
    p->dtype = p->out_dtype = p->grad_dtype = p->aux_dtype = AG_BF16;
    p->flags = flags;
    p->batch = batch;
    p->heads = p->kv_heads = 3;
    p->q_len = 100;
    p->kv_len = keys;
    p->dim_qk = p->dim_v = 64;
    for (int axis = 0; axis < 4; axis++) {
        p->mask_size[axis] = 1;
    }
    const agi_hopper_ring_size size = agi_hopper_rings(p, AGI_HOPPER_RING_MOST);
    const int64_t groups = 3 * batch * size.groups;
    for (int32_t processors = 1; processors <= 200; processors++) {
        const struct grid g = grid_of(&plan, map, processors);
        const int64_t blocks = g.blocks, free = processors - blocks;
        const bool all = blocks == groups * size.blocks;
        CHECK_INT(g.launches, processors >= size.blocks);
        CHECK(free >= 0 && blocks <= groups * size.blocks, "%d blocks on %d multiprocessors", (int)blocks,
              (int)processors);
        CHECK(g.launches == 0 || blocks >= size.blocks, "%d blocks do not hold a group of %d", (int)blocks,
              (int)size.blocks);
        CHECK(!size.is_ring || blocks % size.blocks == 0, "%d blocks are no rings of %d", (int)blocks,
              (int)size.blocks);
        CHECK(g.launches == 0 || all || free < (size.is_ring ? size.blocks : 1),
              "%d blocks on %d multiprocessors: there is room for more", (int)blocks, (int)processors);
    }
}

static void check_rings(void)
{
    static const int64_t keys[] = {1, 128, 129, 1000, 8192, 8193, 17000, 1 << 20};
    static const uint32_t flags[] = {0, AG_CAUSAL, AG_WINDOW, AG_MASK, AG_MASK | AG_CAUSAL};
    for (int64_t n = 1; n <= 40000; n += 1 + n / 50) {
        check_ring_size(n, AGI_HOPPER_RING_MOST);
        check_ring_size(n, 2);
    }
    CHECK(AGI_HOPPER_RING_MOST <= 64, "rings of %d blocks", (int)AGI_HOPPER_RING_MOST);
    for (int n = 0; n < 8 * 5; n++) {
        check_grid(1 + n % 3 * 8, keys[n % 8], flags[n / 8], AGI_VJP);
        if (!(flags[n / 8] & AG_MASK)) {
            check_grid(1 + n % 3 * 8, keys[n % 8], flags[n / 8], AGI_VJP_JVP);
        }
    }
}

/* With a mask vjp is in one kernel while the lists of its steps, tiles of queries by blocks of keys, are no larger than
 * what grows with the queries and the keys alone. */
static void check_lists_of_masks(void)
{
    static const struct {
        agi_map map;
        int64_t rows;
        uint32_t flags;
        bool in_one;
    } cases[] = {{AGI_VJP, 1 << 19, AG_MASK, true},
                 {AGI_VJP, 1 << 22, AG_MASK, false},
                 {AGI_VJP, 1 << 22, 0, true},
                 {AGI_VJP_JVP, 1 << 18, AG_MASK, true},
                 {AGI_VJP_JVP, 1 << 20, AG_MASK, false},
                 {AGI_VJP_JVP, 1 << 22, 0, true}};
    for (size_t n = 0; n < sizeof cases / sizeof cases[0]; n++) {
        ag_plan plan = {.p = AG_PROBLEM_INIT};
        plan.p.dtype = plan.p.out_dtype = plan.p.grad_dtype = plan.p.aux_dtype = AG_BF16;
        plan.p.flags = cases[n].flags;
        plan.p.batch = plan.p.heads = plan.p.kv_heads = 1;
        plan.p.q_len = plan.p.kv_len = cases[n].rows;
        plan.p.dim_qk = plan.p.dim_v = 64;
        for (int axis = 0; axis < 4; axis++) {
            plan.p.mask_size[axis] = axis == 3 ? cases[n].rows : 1;
        }
        CHECK_INT(agi_hopper_may_have_ring(&plan, cases[n].map), cases[n].in_one);
    }
}

int main(void)
{
    static const ag_dtype dtypes[] = {AG_F64, AG_F32, AG_F16, AG_BF16};
    check_limits();
    check_all_splits();
    check_too_many_blocks();
    check_rings();
    check_lists_of_masks();
    for (int n = 0; n < 4; n++) {
        check_choices(dtypes[n], LIMIT_SMALL);
        check_choices(dtypes[n], LIMIT_LARGE);
        for (int map = AGI_hopper_forward; map <= AGI_hopper_second_visits; map++) {
            if (map != AGI_hopper_forward_fine) { /* which has small head sizes alone */
                check_hopper(dtypes[n], (agi_hopper_map)map);
            }
        }
    }
    for (uint32_t features = 0; features <= ALL_FEATURES; features++) {
        for (int map = AGI_hopper_forward; map <= AGI_hopper_second_visits; map++) {
            if (map != AGI_hopper_forward_fine) {
                check_set(features, (agi_hopper_map)map);
            }
        }
    }
    for (int map = AGI_hopper_forward; map <= AGI_hopper_second_visits; map++) {
        static const int64_t sizes[] = {128, 129, 256, 257};
        for (int n = 0; n < 4 && map != AGI_hopper_forward_fine; n++) {
            check_wide(sizes[n], (agi_hopper_map)map);
        }
    }
    for (uint32_t features = 0; features <= ALL_FEATURES; features++) {
        check_set(features, AGI_hopper_dbias);
    }
    for (int n = 0; n < 4; n++) {
        check_bias_walk(384, 4, 384, n & 1, n & 2);
        check_bias_walk(7, 3, 100, n & 1, n & 2);
        check_bias_walk(1, 16, 4096, n & 1, n & 2);
        check_bias_walk(4096, 2, 70, n & 1, n & 2);
    }
    check_empty_bias_walks();
    return test_summary();
}
