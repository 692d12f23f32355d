/* Part of amx_kernels.c: weights and their tangents, from scores to VNNI. */
#include <immintrin.h>
#include <math.h>

#include "cpu/amx/kernels/amx_bf16.h"
#include "cpu/amx/kernels/amx_kernels.h"
#include "cpu/vec/kernels/online.h"

enum { VECTORS = PANEL / LANES };

/* The shift m of a lane stays as it is while the weights 2^(c T - m) of a group add up to less than this. */
#define MAX_SUM 256

/* ---- Two keys of one vector of lanes: stores their weights, adds both to the sums ---- */

/* Sums of weights, as they are and as they were rounded for the product with V. */
typedef struct {
    vec exact, rounded;
} weight_sums;

/* pair: p and q, rounded. */
INLINE void add_weights(uint16_t *vnni, __m512i pair, vec p, vec q, weight_sums *sum)
{
    store_pair(vnni, pair);
    sum->exact = v_add(sum->exact, v_add(p, q));
    sum->rounded = add_pair(sum->rounded, pair);
}

INLINE void weights_by_exp(uint16_t *vnni, const float *T, vec c, vec shift, weight_sums *sum)
{
    const vec p = exp2_for_bf16(v_fms(v_load(T), c, shift)),
              q = exp2_for_bf16(v_fms(v_load(T + PANEL), c, shift));
    add_weights(vnni, rounded_pair_by_shuffle(p, q), p, q, sum);
}

/* The band low <= j - i <= high as one comparison per lane: j - i - low, as unsigned, is at most high - low. */
typedef struct {
    __m512i distance[VECTORS]; /* j - i - low of the stage's next key j */
    __m512i width;             /* high - low */
} lane_band;

/* Clamped to 32 bits: j - i is between 1 - PANEL and GROUP_KEYS - 1, and all bounds beyond mean the same. */
INLINE int clamp_bound(int64_t bound)
{
    _Static_assert(PANEL <= 2 * GROUP_KEYS, "no distance is beyond the largest bound");
    const int far = 2 * GROUP_KEYS;
    return bound < -far ? -far : bound > far ? far : (int)bound;
}

INLINE lane_band band_of(int64_t low, int64_t high)
{
    const __m512i lane = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    const int first = clamp_bound(low);
    lane_band b = {.width = _mm512_set1_epi32(clamp_bound(high) - first)};
    UNROLL for (int v = 0; v < VECTORS; v++)
    {
        b.distance[v] = _mm512_sub_epi32(_mm512_set1_epi32(-first - v * LANES), lane);
    }
    return b;
}

INLINE void weights_in_band(uint16_t *vnni, const float *T, vec c, vec shift, weight_sums *sum,
                            __m512i distance, __m512i width)
{
    const vec p = exp2_for_bf16(v_fms(v_load(T), c, shift)),
              q = exp2_for_bf16(v_fms(v_load(T + PANEL), c, shift));
    const __m512i second = _mm512_add_epi32(distance, _mm512_set1_epi32(1));
    const vec a = _mm512_maskz_mov_ps(_mm512_cmple_epu32_mask(distance, width), p);
    const vec b = _mm512_maskz_mov_ps(_mm512_cmple_epu32_mask(second, width), q);
    add_weights(vnni, rounded_pair_by_shuffle(a, b), a, b, sum);
}

/* ---- One step of the online softmax, 32 lanes at a time ---- */

/* The weights of a group with the given shift, and their sums. */
INLINE void group_weights(uint16_t *vnni, const float *T, vec c, const vec *shift, weight_sums *sum)
{
    UNROLL for (int v = 0; v < ROW_VECTORS; v++)
    {
        sum[v] = (weight_sums){v_set1(0), v_set1(0)};
        for (int step = 0; step < STEPS; step++) {
            weights_by_exp(vnni + v * AMX_AB + step * 2 * LANES, T + step * 2 * PANEL + v * LANES, c,
                           shift[v], &sum[v]);
        }
    }
}

/* Moves m to the maxima of the columns where these exceed m by enough. */
static bool move_shifts(const float *T, vec c, float *m, vec *shift, vec *factor)
{
    bool rescaled = false;
    for (int v = 0; v < ROW_VECTORS; v++) {
        vec highest = v_load(T + v * LANES);
        vmask grown;
        for (int j = 1; j < GROUP_KEYS; j++) {
            highest = v_max(v_load(T + j * PANEL + v * LANES), highest);
        }
        rescaled |= v_move_shift(v_mul(highest, c), m + v * LANES, &shift[v], &factor[v], &grown);
    }
    return rescaled;
}

/* First with m as it is: if the sums of weights are small, no weight is large, and the maximum need not be known.
 * If one is large, or a lane has seen no key yet (m = -infinity) or is NaN, once more with m moved. */
INLINE bool softmax_row_vectors(uint16_t *vnni, const float *T, vec c, float *m, float *l, float *excess,
                                float *alpha)
{
    const vec max_sum = v_set1(MAX_SUM), lowest = v_set1(-REAL_MAX);
    vec shift[ROW_VECTORS] = {v_load(m), v_load(m + LANES)}, factor[ROW_VECTORS] = {v_set1(1), v_set1(1)};
    weight_sums sum[ROW_VECTORS];
    vmask fine = v_less(lowest, shift[0]) & v_less(lowest, shift[1]);
    bool rescaled = false;
    if (fine == 0xffff) {
        group_weights(vnni, T, c, shift, sum);
        fine = v_less(sum[0].exact, max_sum) & v_less(sum[1].exact, max_sum);
    }
    if (fine != 0xffff) {
        rescaled = move_shifts(T, c, m, shift, factor);
        group_weights(vnni, T, c, shift, sum);
    }
    for (int v = 0; v < ROW_VECTORS; v++) {
        const int64_t at = v * LANES;
        v_store(alpha + at, factor[v]);
        v_store(l + at, v_fma(v_load(l + at), factor[v], sum[v].exact));
        v_store(excess + at, v_fma(v_load(excess + at), factor[v], v_sub(sum[v].rounded, sum[v].exact)));
    }
    return rescaled;
}

static bool softmax(uint16_t *vnni, const float *T, int64_t W, float c, float *m, float *l, float *excess,
                    float *alpha)
{
    bool rescaled = false;
    for (int64_t i = 0; i < W; i += ROW_VECTORS * LANES) {
        rescaled |=
            softmax_row_vectors(vnni + i * GROUP_KEYS, T + i, v_set1(c), m + i, l + i, excess + i, alpha + i);
    }
    return rescaled;
}

/* ---- Weights with m as it is, interleaved with the next scores ---- */

typedef struct {
    const float *T;
    uint16_t *vnni;
    weight_sums sum[VECTORS];
    vec c, shift[VECTORS]; /* shift: m */
    lane_band band;
} weight_stage;

INLINE void next_two_keys(weight_stage *s)
{
    s->T += 2 * PANEL;
    s->vnni += 2 * LANES;
}

/* A step of the stage, two keys: all of them, or those inside a band. */
INLINE void two_keys_by_exp(void *stage)
{
    weight_stage *const s = stage;
    UNROLL for (int v = 0; v < VECTORS; v++)
    {
        weights_by_exp(s->vnni + v * AMX_AB, s->T + v * LANES, s->c, s->shift[v], &s->sum[v]);
    }
    next_two_keys(s);
}

INLINE void two_keys_in_band(void *stage)
{
    weight_stage *const s = stage;
    UNROLL for (int v = 0; v < VECTORS; v++)
    {
        weights_in_band(s->vnni + v * AMX_AB, s->T + v * LANES, s->c, s->shift[v], &s->sum[v],
                        s->band.distance[v], s->band.width);
        s->band.distance[v] = _mm512_add_epi32(s->band.distance[v], _mm512_set1_epi32(2));
    }
    next_two_keys(s);
}

/* Is no sum so large that m has to move? */
INLINE bool sums_fit(const weight_sums *sum)
{
    vmask fine = 0xffff;
    UNROLL for (int v = 0; v < VECTORS; v++)
    {
        fine &= v_less(sum[v].exact, v_set1(MAX_SUM));
    }
    return fine == 0xffff;
}

/* l += the exact sums, excess += the rounded sums minus these. */
INLINE void add_sums(const weight_sums *sum, float *l, float *excess)
{
    UNROLL for (int v = 0; v < VECTORS; v++)
    {
        const int64_t at = v * LANES;
        v_store(l + at, v_add(v_load(l + at), sum[v].exact));
        v_store(excess + at, v_add(v_load(excess + at), v_sub(sum[v].rounded, sum[v].exact)));
    }
}

INLINE bool run_weights(weight_stage s, bool banded, float *l, float *excess, const amx_queue *next)
{
    interleave(next, banded ? two_keys_in_band : two_keys_by_exp, &s);
    if (!sums_fit(s.sum)) {
        return false;
    }
    add_sums(s.sum, l, excess);
    return true;
}

static bool weights(uint16_t *vnni, const float *T, float c, int64_t low, int64_t high, const float *m,
                    float *l, float *excess, const amx_queue *next)
{
    const vec lowest = v_set1(-REAL_MAX);
    weight_stage s = {.T = T, .vnni = vnni, .c = v_set1(c)};
    vmask fine = 0xffff;
    UNROLL for (int v = 0; v < VECTORS; v++)
    {
        s.shift[v] = v_load(m + v * LANES);
        s.sum[v] = (weight_sums){v_set1(0), v_set1(0)};
        fine &= v_less(lowest, s.shift[v]);
    }
    if (fine != 0xffff) {
        score_blocks(next);
        return false;
    }
    if (low > 1 - PANEL || high < GROUP_KEYS - 1) {
        s.band = band_of(low, high);
        return run_weights(s, true, l, excess, next);
    }
    return run_weights(s, false, l, excess, next);
}

/* ---- Weights and their tangents with m and r as they are, interleaved with the next scores ---- */

/* Two keys of one vector of lanes; weights are added to *sum, their tangents to *tangent. */
INLINE void weight_tangents(uint16_t *vnni, uint16_t *t_vnni, const float *T, const float *U, vec c,
                            vec scale, vec shift, vec r, weight_sums *sum, weight_sums *tangent)
{
    vec p[2], u[2];
    UNROLL for (int j = 0; j < 2; j++)
    {
        p[j] = exp2_for_bf16(v_fms(v_load(T + j * PANEL), c, shift));
        u[j] = v_mul(p[j], v_fms(v_load(U + j * PANEL), scale, r));
    }
    add_weights(vnni, rounded_pair(p[0], p[1]), p[0], p[1], sum);
    add_weights(t_vnni, rounded_pair(u[0], u[1]), u[0], u[1], tangent);
}

typedef struct {
    const float *T, *U;
    uint16_t *vnni, *t_vnni;
    weight_sums sum[VECTORS], tangent[VECTORS];
    vec c, scale, shift[VECTORS], r[VECTORS];
} tangent_weight_stage;

INLINE void two_keys_tangents(void *stage)
{
    tangent_weight_stage *const s = stage;
    UNROLL for (int v = 0; v < VECTORS; v++)
    {
        const int64_t at = v * LANES, to = v * AMX_AB;
        weight_tangents(s->vnni + to, s->t_vnni + to, s->T + at, s->U + at, s->c, s->scale, s->shift[v],
                        s->r[v], &s->sum[v], &s->tangent[v]);
    }
    s->T += 2 * PANEL;
    s->U += 2 * PANEL;
    s->vnni += 2 * LANES;
    s->t_vnni += 2 * LANES;
}

static bool softmax_tangent(uint16_t *vnni, uint16_t *t_vnni, const float *T, const float *U, float c,
                            float scale, const float *m, float *l, float *excess, const float *r, float *a,
                            float *t_excess, const amx_queue *next)
{
    tangent_weight_stage s = {
        .T = T, .U = U, .vnni = vnni, .t_vnni = t_vnni, .c = v_set1(c), .scale = v_set1(scale)};
    vmask fine = 0xffff;
    UNROLL for (int v = 0; v < VECTORS; v++)
    {
        s.shift[v] = v_load(m + v * LANES);
        s.r[v] = v_load(r + v * LANES);
        s.sum[v] = s.tangent[v] = (weight_sums){v_set1(0), v_set1(0)};
        fine &= v_less(v_set1(-REAL_MAX), s.shift[v]);
    }
    if (fine != 0xffff) {
        score_blocks(next);
        return false;
    }
    interleave(next, two_keys_tangents, &s);
    if (!sums_fit(s.sum)) {
        return false;
    }
    add_sums(s.sum, l, excess);
    add_sums(s.tangent, a, t_excess);
    return true;
}
