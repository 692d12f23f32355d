/* The table of kernels, and the choice among them: see schedule.h. */
#include "cuda/schedule.h"

/* ---- The table ---- */

enum {
    PREPARE_SHARED = 64, /* a float per warp */
    SUM_SHARED = 64      /* a double per warp */
};

/* Shared memory of a stream kernel of one format. */
#define STREAM_SHARED(map, format, D, C, M, W, N, S)                                                         \
    AGI_CUDA_SHARED(AGI_CUDA_PLANES_##format, AGI_CUDA_BYTES_##format, ((D) == 0 ? (C) : (D)),               \
                    AGI_CUDA_OWN_##map, 16 * (M) * (W), AGI_CUDA_READ_##map, N, S)

/* Of the gradients of bias and table: the tiles of dq or tdq, or afterwards one tile of doubles. */
#define PAIR_SHARED(map, format)                                                                             \
    AGI_CUDA_SHARED(AGI_CUDA_PLANES_##format, AGI_CUDA_BYTES_##format, AGI_CUDA_CHUNK_##format,              \
                    AGI_CUDA_OWN_##map, AGI_CUDA_PAIR_TILE, AGI_CUDA_READ_##map, AGI_CUDA_PAIR_TILE, 1)
#define PAIR_SHARED_dbias(format) PAIR_SHARED(dq, format)
#define PAIR_SHARED_dtable(format) PAIR_SHARED(dq, format)
#define PAIR_SHARED_tdbias(format) PAIR_SHARED(tdq, format)
#define PAIR_SHARED_tdtable(format) PAIR_SHARED(tdq, format)

#define SHARED_upload 0
#define SHARED_statistics_f32 0
#define SHARED_statistics_f64 0
#define SHARED_join_f32 0
#define SHARED_join_f64 0
#define SHARED_tails 0
#define SHARED_sum_sink SUM_SHARED
#define SHARED_sum_table SUM_SHARED
#define SHARED_merge 0

#define ROWWISE_LEVELS(map, format, D, C, M, W, N, S)                                                        \
    {#map "_" #format "_d" #D "_plain", "rowwise_" #format, 32 * W,                                          \
     STREAM_SHARED(map, format, D, C, M, W, N, S)},                                                          \
        {#map "_" #format "_d" #D "_full", "rowwise_" #format, 32 * W,                                       \
         STREAM_SHARED(map, format, D, C, 1, W, N, S)},
#define ROWWISE_ANY(map, format, D, C, M, W, N, S)                                                           \
    {#map "_" #format "_any", "rowwise_" #format, 32 * W, STREAM_SHARED(map, format, D, C, M, W, N, S)},
#define ROWWISE_ONE(map, format, D, C, M, W, N, S)                                                           \
    {#map "_" #format "_d" #D, "rowwise_" #format, 32 * W, STREAM_SHARED(map, format, D, C, M, W, N, S)},
#define BACKWARD_LEVELS(map, format, D, C, M, W, N, S)                                                       \
    {#map "_" #format "_d" #D "_plain", "backward_" #format, 32 * W,                                         \
     STREAM_SHARED(map, format, D, C, M, W, N, S)},                                                          \
        {#map "_" #format "_d" #D "_full", "backward_" #format, 32 * W,                                      \
         STREAM_SHARED(map, format, D, C, 1, W, N, S)},
#define BACKWARD_ANY(map, format, D, C, M, W, N, S)                                                          \
    {#map "_" #format "_any", "backward_" #format, 32 * W, STREAM_SHARED(map, format, D, C, M, W, N, S)},
#define PREPARE(name, format, threads) {#name "_" #format, "prepare_" #format, threads, PREPARE_SHARED},
#define GRADIENTS(name, format, threads)                                                                     \
    {#name "_" #format, "gradients_" #format, threads, PAIR_SHARED_##name(format)},
#define OF_FORMAT(format, class)                                                                             \
    AGI_CUDA_ROWWISE(ROWWISE_LEVELS, ROWWISE_ANY, ROWWISE_ONE, format, class)                                \
    AGI_CUDA_BACKWARD(BACKWARD_LEVELS, BACKWARD_ANY, BACKWARD_ANY, format, class)                            \
    AGI_CUDA_PREPARE(PREPARE, format)                                                                        \
    AGI_CUDA_GRADIENTS(GRADIENTS, format)
#define OTHER(name, threads) {#name, "common", threads, SHARED_##name},

#define HOPPER_FORWARD(map, format, D, CONSUMERS, N, STAGES)                                                 \
    {#map "_" #format "_d" #D, "hopper_forward_" #format, 128 * (CONSUMERS + 1),                             \
     AGI_HOPPER_SHARED(D, CONSUMERS, N, STAGES) + AGI_HOPPER_ONES(0, D, N, STAGES)},
#define HOPPER_JVP(map, format, D, CONSUMERS, N, STAGES)                                                     \
    {#map "_" #format "_d" #D, #map "_" #format, 128 * (CONSUMERS + 1),                                      \
     AGI_HOPPER_JVP_SHARED(D, CONSUMERS, N, STAGES)},
#define HOPPER_BACKWARD(map, format, D, CONSUMERS, N, STAGES)                                                \
    {#map "_" #format "_d" #D, "hopper_backward_" #format, 128 * (CONSUMERS + 1),                            \
     AGI_HOPPER_OWNERS_SHARED(2, AGI_HOPPER_STATS_##map, D, CONSUMERS, N, STAGES)},
#define HOPPER_SECOND(map, format, D, CONSUMERS, N, STAGES)                                                  \
    {#map "_" #format "_d" #D, "hopper_second_" #format, 128 * (CONSUMERS + 1),                              \
     AGI_HOPPER_OWNERS_SHARED(4, AGI_HOPPER_STATS_##map, D, CONSUMERS, N, STAGES)},
#define HOPPER_FORWARD_SET(map, format, D, CONSUMERS, N, STAGES, set)                                        \
    {#map "_" #format "_d" #D "_" #set, #map "_" #format, 128 * (CONSUMERS + 1),                             \
     AGI_HOPPER_SHARED(D, CONSUMERS, N, STAGES) + AGI_HOPPER_ONES(AGI_SET_##set, D, N, STAGES) +             \
         (AGI_SET_##set & AGI_HAS_BIAS ? (STAGES)*AGI_HOPPER_BIAS_TILE(CONSUMERS, N) : 0)},
#define HOPPER_BACKWARD_SET(map, format, D, CONSUMERS, N, STAGES, set)                                       \
    {#map "_" #format "_d" #D "_" #set, "hopper_backward_" #format, 128 * (CONSUMERS + 1),                   \
     AGI_HOPPER_OWNERS_SHARED(2, AGI_HOPPER_STATS_##map, D, CONSUMERS, N, STAGES)},
#define HOPPER_FORWARD_OF(format)                                                                            \
    AGI_HOPPER_forward(HOPPER_FORWARD, format) AGI_HOPPER_forward_sets(HOPPER_FORWARD_SET, format)
#define HOPPER_JVP_SET(map, format, D, CONSUMERS, N, STAGES, set)                                            \
    {#map "_" #format "_d" #D "_" #set, #map "_" #format, 128 * (CONSUMERS + 1),                             \
     AGI_HOPPER_JVP_SHARED(D, CONSUMERS, N, STAGES) +                                                        \
         AGI_HOPPER_JVP_SET_SHARED(AGI_SET_##set, CONSUMERS, N, STAGES)},
#define HOPPER_JVP_OF(format) AGI_HOPPER_jvp(HOPPER_JVP, format) AGI_HOPPER_jvp_sets(HOPPER_JVP_SET, format)
#define HOPPER_BACKWARD_OF(format)                                                                           \
    AGI_HOPPER_backward(HOPPER_BACKWARD, format) AGI_HOPPER_backward_sets(HOPPER_BACKWARD_SET, format)
#define HOPPER_SECOND_OF(format) AGI_HOPPER_second(HOPPER_SECOND, format)
#define HOPPER_WIDE(map, format, D, ROWS, N, STAGES)                                                         \
    {#map "_" #format "_d" #D, "hopper_wide_" #format, 384,                                                  \
     AGI_HOPPER_WIDE_SHARED(AGI_HOPPER_STATS_##map, D, ROWS, N, STAGES)},
#define HOPPER_WIDE_OF(format) AGI_HOPPER_wide(HOPPER_WIDE, format)
#define HOPPER_RING(map, format, D, CONSUMERS, N, STAGES)                                                    \
    {#map "_" #format "_d" #D, #map "_" #format, 128 * (CONSUMERS + 1),                                      \
     AGI_HOPPER_RING_SHARED(D, CONSUMERS, N, STAGES)},
#define HOPPER_STATISTICS(map, format, D, CONSUMERS, N, STAGES)                                              \
    {"hopper_statistics_" #format "_d" #D, #map "_" #format, 256, 0},                                        \
        {"hopper_visits_" #format "_d" #D, #map "_" #format, 256, 0},
#define HOPPER_RING_SET(map, format, D, CONSUMERS, N, STAGES, set)                                           \
    {#map "_" #format "_d" #D "_" #set, #map "_" #format, 128 * (CONSUMERS + 1),                             \
     AGI_HOPPER_RING_SHARED(D, CONSUMERS, N, STAGES)},
#define HOPPER_RING_OF(format)                                                                               \
    AGI_HOPPER_ring(HOPPER_RING, format) AGI_HOPPER_ring(HOPPER_STATISTICS, format)                          \
        AGI_HOPPER_ring_sets(HOPPER_RING_SET, format)
#define HOPPER_BEFORE(name, threads, shared) {#name, "sets", threads, shared},
#define HOPPER_SECOND_RING(map, format, D, CONSUMERS, N, STAGES)                                             \
    {#map "_" #format "_d" #D, #map "_" #format, 128 * (CONSUMERS + 1),                                      \
     AGI_HOPPER_SECOND_RING_SHARED(D, CONSUMERS, N, STAGES)},
#define HOPPER_SECOND_STATISTICS(map, format, D, CONSUMERS, N, STAGES)                                       \
    {"hopper_second_statistics_" #format "_d" #D, #map "_" #format, 256, 0},                                 \
        {"hopper_second_visits_" #format "_d" #D, #map "_" #format, 256, 0},
#define HOPPER_SECOND_RING_SET(map, format, D, CONSUMERS, N, STAGES, set)                                    \
    {#map "_" #format "_d" #D "_" #set, #map "_" #format, 128 * (CONSUMERS + 1),                             \
     AGI_HOPPER_SECOND_RING_SHARED(D, CONSUMERS, N, STAGES) + AGI_HOPPER_SECOND_REST(AGI_SET_##set, N)},
#define HOPPER_SECOND_RING_OF(format)                                                                        \
    AGI_HOPPER_second_ring(HOPPER_SECOND_RING, format)                                                       \
        AGI_HOPPER_second_ring(HOPPER_SECOND_STATISTICS, format)                                             \
            AGI_HOPPER_second_ring_sets(HOPPER_SECOND_RING_SET, format)
#define HOPPER_DBIAS_SET(map, format, D, CONSUMERS, N, STAGES, set)                                          \
    {#map "_" #format "_d" #D "_" #set, #map "_" #format, 128 * (CONSUMERS + 1),                             \
     AGI_HOPPER_DBIAS_SHARED(D, CONSUMERS, N, STAGES)},
#define HOPPER_DBIAS_SUM(name, format, threads) {#name "_" #format, "hopper_dbias_" #format, threads, 0},
#define HOPPER_DBIAS_OF(format)                                                                              \
    AGI_HOPPER_dbias_sets(HOPPER_DBIAS_SET, format) AGI_HOPPER_dbias_sum(HOPPER_DBIAS_SUM, format)

const agi_cuda_kernel agi_cuda_kernels[AGI_CUDA_N_KERNELS] = {
    AGI_CUDA_FORMATS(OF_FORMAT) AGI_CUDA_OTHERS(OTHER) AGI_HOPPER_FORMATS(HOPPER_FORWARD_OF)
        AGI_HOPPER_forward_f32(HOPPER_JVP, f32) AGI_HOPPER_FORMATS(HOPPER_JVP_OF)
            AGI_HOPPER_FORMATS(HOPPER_BACKWARD_OF) AGI_HOPPER_FORMATS(HOPPER_RING_OF)
                AGI_HOPPER_FORMATS(HOPPER_SECOND_OF) AGI_HOPPER_FORMATS(HOPPER_SECOND_RING_OF)
                    AGI_HOPPER_FORMATS(HOPPER_WIDE_OF) AGI_HOPPER_FORMATS(HOPPER_DBIAS_OF)
                        AGI_HOPPER_BEFORE(HOPPER_BEFORE)};

/* ---- The stream kernels ---- */

typedef struct {
    agi_cuda_map map;
    agi_cuda_format format;
    int64_t D, columns; /* D: 0: any */
    int32_t plain, full;
    int64_t plain_rows, full_rows;
} stream_kernel;

#define CHOICE_LEVELS(map, format, D, C, M, W, N, S)                                                         \
    {AGI_STREAM_##map,                                                                                       \
     AGI_FORMAT_##format,                                                                                    \
     D,                                                                                                      \
     C,                                                                                                      \
     agi_kernel_##map##_##format##_d##D##_plain,                                                             \
     agi_kernel_##map##_##format##_d##D##_full,                                                              \
     16 * (M) * (W),                                                                                         \
     16 * (W)},
#define CHOICE_ANY(map, format, D, C, M, W, N, S)                                                            \
    {AGI_STREAM_##map,                                                                                       \
     AGI_FORMAT_##format,                                                                                    \
     0,                                                                                                      \
     C,                                                                                                      \
     agi_kernel_##map##_##format##_any,                                                                      \
     agi_kernel_##map##_##format##_any,                                                                      \
     16 * (M) * (W),                                                                                         \
     16 * (M) * (W)},
#define CHOICE_ONE(map, format, D, C, M, W, N, S)                                                            \
    {AGI_STREAM_##map,                                                                                       \
     AGI_FORMAT_##format,                                                                                    \
     D,                                                                                                      \
     C,                                                                                                      \
     agi_kernel_##map##_##format##_d##D,                                                                     \
     agi_kernel_##map##_##format##_d##D,                                                                     \
     16 * (M) * (W),                                                                                         \
     16 * (M) * (W)},
#define CHOICES(format, class)                                                                               \
    AGI_CUDA_ROWWISE(CHOICE_LEVELS, CHOICE_ANY, CHOICE_ONE, format, class)                                   \
    AGI_CUDA_BACKWARD(CHOICE_LEVELS, CHOICE_ANY, CHOICE_ONE, format, class)

static const stream_kernel stream_kernels[] = {AGI_CUDA_FORMATS(CHOICES)};

enum { N_STREAM_KERNELS = sizeof stream_kernels / sizeof stream_kernels[0] };

agi_cuda_format agi_cuda_format_of(ag_dtype dtype)
{
    switch (dtype) {
    case AG_F64: return AGI_FORMAT_f64;
    case AG_F32: return AGI_FORMAT_f32;
    case AG_F16: return AGI_FORMAT_f16;
    default: return AGI_FORMAT_bf16;
    }
}

int64_t agi_cuda_planes(agi_cuda_format format)
{
    return format == AGI_FORMAT_f32 ? 2 : 1;
}

int64_t agi_cuda_number_bytes(agi_cuda_format format)
{
    return format == AGI_FORMAT_f64 ? 8 : 2;
}

bool agi_cuda_needs_full(const ag_problem *p)
{
    return agi_has(p, AG_BIAS | AG_MASK | AG_TABLE | AG_ALIBI | AG_SLOPES) || p->softcap != 0 ||
           p->dropout != 0;
}

/* The smallest head size that is large enough and fits the device; else the kernel for any; NULL: the map has none. */
static const stream_kernel *find_kernel(const ag_problem *p, agi_cuda_map map, int32_t shared_limit)
{
    const agi_cuda_format format = agi_cuda_format_of(p->dtype);
    const int64_t D = p->dim_qk > p->dim_v ? p->dim_qk : p->dim_v;
    const stream_kernel *best = NULL;
    for (int n = 0; n < N_STREAM_KERNELS; n++) {
        const stream_kernel *k = &stream_kernels[n];
        if (k->map != map || k->format != format) {
            continue;
        }
        const bool fits = k->D == 0 || (k->D >= D && agi_cuda_kernels[k->plain].shared <= shared_limit);
        const bool better = best == NULL || best->D == 0 || (k->D != 0 && k->D < best->D);
        best = fits && better ? k : best;
    }
    return best;
}

agi_cuda_choice agi_cuda_choose(const ag_problem *p, agi_cuda_map map, int32_t shared_limit)
{
    const stream_kernel *found = find_kernel(p, map, shared_limit);
    const stream_kernel *k = found != NULL ? found : find_kernel(p, AGI_STREAM_forward, shared_limit);
    return agi_cuda_needs_full(p) ? (agi_cuda_choice){k->full, k->full_rows, k->columns}
                                  : (agi_cuda_choice){k->plain, k->plain_rows, k->columns};
}

agi_cuda_map agi_cuda_forward_of(const ag_problem *p)
{
    const bool is_short = p->q_len <= AGI_CUDA_SCALE_ROWS && p->kv_len <= AGI_CUDA_SCALE_ROWS;
    return is_short && !agi_cuda_needs_full(p) ? AGI_STREAM_forward_short : AGI_STREAM_forward;
}

int64_t agi_cuda_key_splits(const ag_problem *p)
{
    return agi_cuda_divide_up(p->kv_len, AGI_CUDA_SPLIT);
}

bool agi_cuda_splits_keys(const ag_plan *plan, int32_t shared_limit)
{
    enum { MAX_GROUP = 16 }; /* rows of a tile */
    const ag_problem *p = &plan->p;
    return p->q_len == 1 && p->heads / p->kv_heads <= MAX_GROUP && p->kv_len > AGI_CUDA_SPLIT &&
           !agi_has(p, AG_WINDOW) && !agi_cuda_needs_full(p) && !(plan->flags & AG_INVARIANT) &&
           find_kernel(p, AGI_STREAM_decode, shared_limit) != NULL;
}

/* ---- Hopper ---- */

typedef struct {
    agi_hopper_map map;
    agi_cuda_format format;
    int64_t D;
    agi_hopper_choice choice;
} hopper_kernel;

#define HOPPER_CHOICE(map, format, D, CONSUMERS, N, STAGES)                                                  \
    {AGI_##map,                                                                                              \
     AGI_FORMAT_##format,                                                                                    \
     D,                                                                                                      \
     {agi_kernel_##map##_##format##_d##D, 64 * (CONSUMERS), N, AGI_SET_none, ""}},
#define HOPPER_WIDE_CHOICE(map, format, D, ROWS, N, STAGES)                                                  \
    {AGI_##map, AGI_FORMAT_##format, D, {agi_kernel_##map##_##format##_d##D, ROWS, N, AGI_SET_none, ""}},
#define HOPPER_PRE_CHOICE(map, format, D, CONSUMERS, N, STAGES)                                              \
    {AGI_hopper_statistics,                                                                                  \
     AGI_FORMAT_##format,                                                                                    \
     D,                                                                                                      \
     {agi_kernel_hopper_statistics_##format##_d##D, N, N, AGI_SET_none, ""}},                                \
        {AGI_hopper_visits,                                                                                  \
         AGI_FORMAT_##format,                                                                                \
         D,                                                                                                  \
         {agi_kernel_hopper_visits_##format##_d##D, N, N, AGI_SET_none, ""}},
#define HOPPER_SET_CHOICE(map, format, D, CONSUMERS, N, STAGES, set)                                         \
    {AGI_##map,                                                                                              \
     AGI_FORMAT_##format,                                                                                    \
     D,                                                                                                      \
     {agi_kernel_##map##_##format##_d##D##_##set, 64 * (CONSUMERS), N, AGI_SET_##set, #set}},
#define HOPPER_SECOND_PRE_CHOICE(map, format, D, CONSUMERS, N, STAGES)                                       \
    {AGI_hopper_second_statistics,                                                                           \
     AGI_FORMAT_##format,                                                                                    \
     D,                                                                                                      \
     {agi_kernel_hopper_second_statistics_##format##_d##D, N, N, AGI_SET_none, ""}},                         \
        {AGI_hopper_second_visits,                                                                           \
         AGI_FORMAT_##format,                                                                                \
         D,                                                                                                  \
         {agi_kernel_hopper_second_visits_##format##_d##D, N, N, AGI_SET_none, ""}},
#define HOPPER_CHOICES(format)                                                                               \
    AGI_HOPPER_forward(HOPPER_CHOICE, format) AGI_HOPPER_jvp(HOPPER_CHOICE, format)                          \
        AGI_HOPPER_backward(HOPPER_CHOICE, format) AGI_HOPPER_ring(HOPPER_CHOICE, format)                    \
            AGI_HOPPER_ring(HOPPER_PRE_CHOICE, format) AGI_HOPPER_second(HOPPER_CHOICE, format)              \
                AGI_HOPPER_forward_sets(HOPPER_SET_CHOICE, format)                                           \
                    AGI_HOPPER_backward_sets(HOPPER_SET_CHOICE, format)                                      \
                        AGI_HOPPER_ring_sets(HOPPER_SET_CHOICE, format)                                      \
                            AGI_HOPPER_second_ring(HOPPER_CHOICE, format)                                    \
                                AGI_HOPPER_second_ring(HOPPER_SECOND_PRE_CHOICE, format)                     \
                                    AGI_HOPPER_second_ring_sets(HOPPER_SET_CHOICE, format)                   \
                                        AGI_HOPPER_wide(HOPPER_WIDE_CHOICE, format)                          \
                                            AGI_HOPPER_dbias_sets(HOPPER_SET_CHOICE, format)                 \
                                                AGI_HOPPER_jvp_sets(HOPPER_SET_CHOICE, format)

static const hopper_kernel hopper_kernels[] = {AGI_HOPPER_FORMATS(HOPPER_CHOICES)
                                                   AGI_HOPPER_forward_f32(HOPPER_CHOICE, f32)};

enum { N_HOPPER_KERNELS = sizeof hopper_kernels / sizeof hopper_kernels[0] };

/* Short problems have kernels of their own, but not with AG_INVARIANT: there each plan takes the same kernel. */
static bool hopper_serves(const ag_plan *plan, int32_t shared_limit)
{
    const ag_problem *p = &plan->p;
    const bool has_keys = p->kv_len > 0 && (!agi_has(p, AG_PACKED) || p->kv_total > 0);
    const bool is_short =
        agi_cuda_forward_of(p) == AGI_STREAM_forward_short || agi_cuda_splits_keys(plan, shared_limit);
    return has_keys && p->softcap <= AGI_HOPPER_MAX_SOFTCAP && (!is_short || plan->flags & AG_INVARIANT);
}

static uint32_t score_features_of(const ag_problem *p)
{
    return (p->softcap != 0 ? AGI_HAS_SOFTCAP : 0u) |
           (agi_has(p, AG_TABLE | AG_ALIBI | AG_SLOPES) ? AGI_HAS_RELATIVE : 0u) |
           (agi_has(p, AG_BIAS) ? AGI_HAS_BIAS : 0u) | (agi_has(p, AG_MASK) ? AGI_HAS_MASK : 0u) |
           (p->dropout != 0 ? AGI_HAS_DROPOUT : 0u);
}

static int count_features(uint32_t features)
{
    int count = 0;
    for (; features != 0; features &= features - 1) {
        count++;
    }
    return count;
}

/* Does the kernel have what the problem needs? One with a softcap needs a softcap; others may be absent. What comes
 * before vjp or vjp_jvp in one kernel serves any problem. */
static bool covers(const hopper_kernel *k, const ag_problem *p, int32_t shared_limit)
{
    const int64_t D = p->dim_qk > p->dim_v ? p->dim_qk : p->dim_v;
    const bool before = k->map == AGI_hopper_statistics || k->map == AGI_hopper_second_statistics ||
                        k->map == AGI_hopper_visits || k->map == AGI_hopper_second_visits;
    const uint32_t wanted = before ? 0 : score_features_of(p);
    const uint32_t has = k->choice.features;
    return k->format == agi_cuda_format_of(p->dtype) && k->D >= D && (wanted & ~has) == 0 &&
           (has & AGI_HAS_SOFTCAP) == (wanted & AGI_HAS_SOFTCAP) &&
           agi_cuda_kernels[k->choice.kernel].shared <= shared_limit;
}

/* Has forward at small head sizes more from four warpgroups and short tiles of keys than from three and long ones? Yes
 * if there are few keys, or somewhat more of which queries do not see all. The bits are others, so not with
 * AG_INVARIANT. */
static bool is_fine(const ag_plan *plan)
{
    const ag_problem *p = &plan->p;
    const int64_t longest = agi_has(p, AG_CAUSAL | AG_WINDOW) ? 4096 : 1024;
    return p->dtype != AG_F32 && p->dim_qk <= 64 && p->dim_v <= 64 && p->kv_len <= longest &&
           score_features_of(p) == 0 && !(plan->flags & AG_INVARIANT);
}

/* The smallest set of features that covers the problem's, and the smallest head size. */
agi_hopper_choice agi_hopper_choose(const ag_plan *plan, agi_hopper_map wanted, int32_t shared_limit)
{
    const agi_hopper_map map =
        wanted == AGI_hopper_forward && is_fine(plan) ? AGI_hopper_forward_fine : wanted;
    const hopper_kernel *best = NULL;
    const int count = hopper_serves(plan, shared_limit) ? N_HOPPER_KERNELS : 0;
    for (int n = 0; n < count; n++) {
        const hopper_kernel *k = &hopper_kernels[n];
        if (k->map != map || !covers(k, &plan->p, shared_limit)) {
            continue;
        }
        const int more =
            best == NULL ? -1 : count_features(k->choice.features) - count_features(best->choice.features);
        best = more < 0 || (more == 0 && k->D < best->D) ? k : best;
    }
    return best == NULL ? (agi_hopper_choice){.kernel = -1, .set = ""} : best->choice;
}

agi_hopper_ring_size agi_hopper_rings(const ag_problem *p, int64_t most)
{
    const int64_t blocks = agi_cuda_divide_up(p->kv_len, AGI_HOPPER_RING_KEYS);
    const int64_t groups = agi_cuda_divide_up(blocks, most);
    return (agi_hopper_ring_size){!agi_has(p, AG_CAUSAL | AG_WINDOW),
                                  (int32_t)agi_cuda_divide_up(blocks, groups), (int32_t)groups};
}

int64_t agi_hopper_tiles(const ag_problem *p, int64_t rows)
{
    const int64_t total =
        agi_has(p, AG_PACKED) ? p->q_total : agi_saturating_product(p->batch, p->q_len, 1, 1);
    return total / rows + p->batch;
}

agi_hopper_bias_walk agi_hopper_walk_of_bias(const ag_plan *plan, int32_t shared_limit)
{
    enum { BLOCKS = 512, FEWEST_STEPS = 8 }; /* wanted, about four per multiprocessor; of a part */
    const ag_problem *p = &plan->p;
    const agi_hopper_choice choice = agi_hopper_choose(plan, AGI_hopper_dbias, shared_limit);
    if (choice.kernel < 0 || p->bias_size[2] != p->q_len || p->bias_size[3] != p->kv_len) {
        return (agi_hopper_bias_walk){0};
    }
    const int64_t tiles =
        agi_saturating_product(p->bias_size[0], p->bias_size[1], agi_cuda_divide_up(p->q_len, choice.rows),
                               agi_cuda_divide_up(p->kv_len, choice.tile));
    const int64_t steps = agi_saturating_product(p->bias_size[0] == 1 ? p->batch : 1,
                                                 p->bias_size[1] == 1 ? p->heads : 1, 1, 1);
    const int64_t wanted = agi_cuda_divide_up(BLOCKS, tiles), most = agi_cuda_divide_up(steps, FEWEST_STEPS);
    const int64_t of_part = agi_cuda_divide_up(steps, wanted < most ? wanted : most);
    return (agi_hopper_bias_walk){tiles, of_part, agi_cuda_divide_up(steps, of_part)};
}

int64_t agi_hopper_heads_together(const ag_problem *p)
{
    enum { CACHE = 24 << 20 }; /* bytes of K and V, about half of the L2 cache of an H100 */
    const bool shares_bias = agi_has(p, AG_BIAS) && p->bias_size[0] == 1; /* then heads of one bias are together */
    const int64_t heads = shares_bias ? p->batch : agi_saturating_product(p->batch, p->heads, 1, 1);
    const int64_t planes = agi_cuda_planes(agi_cuda_format_of(p->dtype));
    const int64_t bytes = agi_saturating_product(p->kv_len, p->dim_qk + p->dim_v, 2, planes);
    const int64_t together = CACHE / bytes * (shares_bias ? 1 : p->heads / p->kv_heads);
    if ((!agi_has(p, AG_CAUSAL | AG_WINDOW) && !shares_bias) || together < 1) {
        return 1;
    }
    return together < heads ? together : heads;
}

int64_t agi_cuda_copied_rows(int64_t batch, int64_t longest, int64_t total)
{
    const int64_t rows = total > 0 ? total : agi_saturating_product(batch, longest, 1, 1);
    return agi_saturating_product(rows / AGI_CUDA_SCALE_ROWS + batch, AGI_CUDA_SCALE_ROWS, 1, 1);
}
