/* Weights and their tangents, from scores to bfloat16: a part of amx_kernels.c. */
#ifndef AGI_CPU_AMX_SOFTMAX_H
#define AGI_CPU_AMX_SOFTMAX_H

#include "cpu/amx/kernels/amx_interleave_tmpl.c"
#include "cpu/amx/kernels/amx_scores_tmpl.c"
#include "cpu/vec/kernels/online.h"

enum { VECTORS = PANEL / LANES };

/* As long as the sums of a group stay below it, its shift may stay. */
#define MOST_SUM 256

/* ---- Two keys of one vector of lanes: their weights, rounded, and the sum with them ---- */

INLINE vec weights_by_exp(uint16_t *pairs, const float *T, vec c, vec shift, vec sum)
{
    const vec p = exp2_centred(v_fms(v_load(T), c, shift)),
              q = exp2_centred(v_fms(v_load(T + PANEL), c, shift));
    store_cut_pair(pairs, p, q);
    return v_add(sum, v_add(p, q));
}

/* A band low <= j - i <= high on keys j by lanes i: -i - low of each vector of lanes, and the most that j - i - low may
 * be. */
typedef struct {
    __m512i above[VECTORS], most;
} lane_band;

/* No two of a group are further apart than that. */
INLINE int within_group(int64_t distance)
{
    const int far = 2 * GROUP_KEYS;
    return distance < -far ? -far : distance > far ? far : (int)distance;
}

INLINE lane_band band_of(int64_t low, int64_t high)
{
    const __m512i lane = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    const int first = within_group(low);
    lane_band b = {.most = _mm512_set1_epi32(within_group(high) - first)};
    UNROLL for (int v = 0; v < VECTORS; v++)
    {
        b.above[v] = _mm512_sub_epi32(_mm512_set1_epi32(-first - v * LANES), lane);
    }
    return b;
}

INLINE vec weights_in_band(uint16_t *pairs, const float *T, vec c, vec shift, vec sum, __m512i above,
                           __m512i most)
{
    const vec p = exp2_centred(v_fms(v_load(T), c, shift)),
              q = exp2_centred(v_fms(v_load(T + PANEL), c, shift));
    const __m512i second = _mm512_add_epi32(above, _mm512_set1_epi32(1));
    const vec a = _mm512_maskz_mov_ps(_mm512_cmple_epu32_mask(above, most), p);
    const vec b = _mm512_maskz_mov_ps(_mm512_cmple_epu32_mask(second, most), q);
    store_cut_pair(pairs, a, b);
    return v_add(sum, v_add(a, b));
}

/* A number in 256ths, of 16 bits, has the exponent and the mantissa of its own 2^x, but for a curve: how much less the
 * mantissa is, by the first six of the eight bits behind the point. In 256ths, with what rounding to 128ths adds. */
static const uint8_t curve[64] = {1,  2,  3,  4,  5,  6,  8,  8,  10, 10, 11, 12, 13, 14, 15, 16,
                                  16, 17, 18, 18, 19, 19, 20, 20, 21, 21, 21, 22, 22, 22, 22, 22,
                                  22, 23, 23, 23, 22, 22, 22, 22, 22, 21, 21, 21, 20, 20, 19, 19,
                                  18, 17, 17, 16, 15, 14, 13, 12, 11, 10, 9,  7,  6,  5,  3,  2};

/* The same weights in half the instructions, for exponents between -126 and 126. They are 1.00015 times smaller on
 * average; shifts are in 256ths. Their errors are larger than rounding's by a sixth. */
#define CURVED ((float)(AMX_CENTRED * 1.000155))

typedef struct {
    vec scale;
    __m512i less, up, six;
    __m512bh ones;
} curve_constants;

INLINE curve_constants curve_of(vec c)
{
    return (curve_constants){
        .scale = v_mul(c, v_set1(256)),
        .less = _mm512_loadu_si512(curve),
        .up = _mm512_broadcast_i32x4(_mm_set_epi8(13, 12, 0, 0, 9, 8, 0, 0, 5, 4, 0, 0, 1, 0, 0, 0)),
        .six = _mm512_set1_epi64(0x0032002200120002), /* of each 16 bits those from the third on */
        .ones = (__m512bh)_mm512_set1_epi16(0x3f80),
    };
}

INLINE vec curve_start(vec shift)
{
    return v_fma(shift, v_set1(-256), v_set1(0x1.8p23f + 127 * 256 + 1));
}

/* Shifts would do instead of up and six, but there is one port for them. */
INLINE vec weights_by_curve(uint16_t *pairs, const float *T, const curve_constants *k, vec start, vec sum)
{
    const __m512i a = _mm512_castps_si512(v_fma(v_load(T), k->scale, start));
    const __m512i b = _mm512_castps_si512(v_fma(v_load(T + PANEL), k->scale, start));
    const __m512i x = _mm512_mask_shuffle_epi8(a, 0xccccccccccccccccu, b, k->up);
    const __m512i bits = _mm512_multishift_epi64_epi8(k->six, x);
    const __m512i l = _mm512_maskz_permutexvar_epi8(0x5555555555555555u, bits, k->less);
    const __m512i p = _mm512_srli_epi16(_mm512_sub_epi16(x, l), 1);
    _mm512_storeu_si512(pairs, p);
    return _mm512_dpbf16_ps(sum, (__m512bh)p, k->ones);
}

/* ---- softmax ---- */

/* May the weights of a pair of vectors come by the curve? |q| |k| is the most that a product can be. */
INLINE bool curve_serves(const float *norms, float reach, const vec *shift)
{
    vmask within = 0xffff;
    UNROLL for (int v = 0; v < PAIR; v++)
    {
        const vec most = v_fma(v_load(norms + v * LANES), v_set1(reach), _mm512_abs_ps(shift[v]));
        within &= v_less(most, v_set1(125));
    }
    return within == 0xffff;
}

/* Weights and their sums, with the shift as it is. */
INLINE void some_weights(uint16_t *pairs, const float *T, vec c, const float *norms, float reach,
                         const vec *shift, vec *sum)
{
    const bool by_curve = curve_serves(norms, reach, shift);
    const curve_constants k = curve_of(c);
    UNROLL for (int v = 0; v < PAIR; v++)
    {
        const vec start = curve_start(shift[v]);
        sum[v] = v_set1(0);
        for (int step = 0; step < STEPS; step++) {
            const float *const t = T + step * 2 * PANEL + v * LANES;
            uint16_t *const to = pairs + v * AMX_AB + step * 2 * LANES;
            sum[v] = by_curve ? weights_by_curve(to, t, &k, start, sum[v])
                              : weights_by_exp(to, t, c, shift[v], sum[v]);
        }
        sum[v] = by_curve ? v_mul(sum[v], v_set1(CURVED)) : sum[v];
    }
}

/* Sets the shift by the maxima of the columns, in 256ths where asked. */
static bool move_shifts(const float *T, vec c, bool rounded, float *m, vec *shift, vec *factor)
{
    bool rescaled = false;
    for (int v = 0; v < PAIR; v++) {
        vec highest = v_load(T + v * LANES);
        vmask grown;
        for (int j = 1; j < GROUP_KEYS; j++) {
            highest = v_max(v_load(T + j * PANEL + v * LANES), highest);
        }
        highest = v_mul(highest, c);
        highest = rounded ? _mm512_roundscale_ps(highest, 8 << 4) : highest;
        rescaled |= v_move_shift(highest, m + v * LANES, &shift[v], &factor[v], &grown);
    }
    return rescaled;
}

/* As long as the sums of a group are small, no weight is large, and nobody need know the maximum: the shift
 * stays. Else, and for lanes that have seen nothing, or NaN, it is looked for. */
INLINE bool softmax_pair(uint16_t *pairs, const float *T, vec c, const float *norms, float reach, float *m,
                         float *l, float *alpha)
{
    const vec most = v_set1(MOST_SUM), least = v_set1(-REAL_MAX);
    vec shift[PAIR] = {v_load(m), v_load(m + LANES)}, factor[PAIR] = {v_set1(1), v_set1(1)}, sum[PAIR];
    vmask fine = v_less(least, shift[0]) & v_less(least, shift[1]);
    bool rescaled = false;
    if (fine == 0xffff) {
        some_weights(pairs, T, c, norms, reach, shift, sum);
        fine = v_less(sum[0], most) & v_less(sum[1], most);
    }
    if (fine != 0xffff) {
        rescaled = move_shifts(T, c, norms[0] < INFINITY, m, shift, factor);
        some_weights(pairs, T, c, norms, reach, shift, sum);
    }
    for (int v = 0; v < PAIR; v++) {
        v_store(alpha + v * LANES, factor[v]);
        v_store(l + v * LANES, v_fma(v_load(l + v * LANES), factor[v], sum[v]));
    }
    return rescaled;
}

static bool softmax(uint16_t *pairs, const float *T, int64_t W, float c, const float *norms, float reach,
                    float *m, float *l, float *alpha)
{
    bool rescaled = false;
    for (int64_t i = 0; i < W; i += PAIR * LANES) {
        rescaled |= softmax_pair(pairs + i * 32, T + i, v_set1(c), norms + i, reach, m + i, l + i, alpha + i);
    }
    return rescaled;
}

/* ---- Weights beside scores ---- */

typedef struct {
    const float *T;
    uint16_t *pairs;
    vec c, sum[VECTORS];
    vec shift[VECTORS]; /* by the curve what curve_start makes of it */
    curve_constants curve;
    lane_band band;
} weight_stage;

INLINE void next_two_keys(weight_stage *s)
{
    s->T += 2 * PANEL;
    s->pairs += 2 * LANES;
}

INLINE void two_by_curve(void *stage)
{
    weight_stage *const s = stage;
    UNROLL for (int v = 0; v < VECTORS; v++)
    {
        s->sum[v] =
            weights_by_curve(s->pairs + v * AMX_AB, s->T + v * LANES, &s->curve, s->shift[v], s->sum[v]);
    }
    next_two_keys(s);
}

INLINE void two_by_exp(void *stage)
{
    weight_stage *const s = stage;
    UNROLL for (int v = 0; v < VECTORS; v++)
    {
        s->sum[v] = weights_by_exp(s->pairs + v * AMX_AB, s->T + v * LANES, s->c, s->shift[v], s->sum[v]);
    }
    next_two_keys(s);
}

INLINE void two_in_band(void *stage)
{
    weight_stage *const s = stage;
    UNROLL for (int v = 0; v < VECTORS; v++)
    {
        s->sum[v] = weights_in_band(s->pairs + v * AMX_AB, s->T + v * LANES, s->c, s->shift[v], s->sum[v],
                                    s->band.above[v], s->band.most);
        s->band.above[v] = _mm512_add_epi32(s->band.above[v], _mm512_set1_epi32(2));
    }
    next_two_keys(s);
}

/* Adds the sums of a group to l, unless one of them says that m should have moved. */
INLINE bool take_sums(const vec *sum, float factor, float *l)
{
    vec more[VECTORS];
    vmask fine = 0xffff;
    UNROLL for (int v = 0; v < VECTORS; v++)
    {
        more[v] = v_mul(sum[v], v_set1(factor));
        fine &= v_less(more[v], v_set1(MOST_SUM));
    }
    if (fine != 0xffff) {
        return false;
    }
    UNROLL for (int v = 0; v < VECTORS; v++)
    {
        v_store(l + v * LANES, v_add(v_load(l + v * LANES), more[v]));
    }
    return true;
}

INLINE bool take_weights(weight_stage s, bool by_curve, bool banded, float *l, const amx_next *next)
{
    UNROLL for (int v = 0; v < VECTORS; v++)
    {
        s.shift[v] = by_curve ? curve_start(s.shift[v]) : s.shift[v];
        s.sum[v] = v_set1(0);
    }
    beside(next, by_curve ? two_by_curve : banded ? two_in_band : two_by_exp, &s);
    return take_sums(s.sum, by_curve ? CURVED : 1, l);
}

static bool weights(uint16_t *pairs, const float *T, float c, const float *norms, float reach, int64_t low,
                    int64_t high, const float *m, float *l, const amx_next *next)
{
    const vec least = v_set1(-REAL_MAX);
    weight_stage s = {.T = T, .pairs = pairs, .c = v_set1(c)};
    vmask fine = 0xffff;
    bool by_curve = true;
    UNROLL for (int v = 0; v < VECTORS; v++)
    {
        s.shift[v] = v_load(m + v * LANES);
        fine &= v_less(least, s.shift[v]);
    }
    if (fine != 0xffff) {
        scores(next);
        return false;
    }
    if (low > 1 - PANEL || high < GROUP_KEYS - 1) {
        s.band = band_of(low, high);
        return take_weights(s, false, true, l, next);
    }
    UNROLL for (int v = 0; v < VECTORS; v += PAIR)
    {
        by_curve &= curve_serves(norms + v * LANES, reach, s.shift + v);
    }
    s.curve = curve_of(s.c);
    return by_curve ? take_weights(s, true, false, l, next) : take_weights(s, false, false, l, next);
}

/* ---- Their tangents ---- */

/* Weights and their tangents at two keys of one vector of lanes; both are added up. */
INLINE void weight_tangents(uint16_t *pairs, uint16_t *t_pairs, const float *T, const float *U, vec c,
                            vec scale, vec shift, vec r, vec *sum, vec *tangent)
{
    vec p[2], u[2];
    UNROLL for (int j = 0; j < 2; j++)
    {
        p[j] = exp2_centred(v_fms(v_load(T + j * PANEL), c, shift));
        u[j] = v_mul(p[j], v_fms(v_load(U + j * PANEL), scale, r));
    }
    *sum = v_add(*sum, v_add(p[0], p[1]));
    *tangent = v_add(*tangent, v_add(u[0], u[1]));
    store_cut_pair(pairs, p[0], p[1]);
    store_cut_pair(t_pairs, u[0], u[1]);
}

typedef struct {
    const float *T, *U;
    uint16_t *pairs, *t_pairs;
    vec c, scale, shift[VECTORS], r[VECTORS], sum[VECTORS], tangent[VECTORS];
} tangent_weight_stage;

INLINE void two_tangents(void *stage)
{
    tangent_weight_stage *const s = stage;
    UNROLL for (int v = 0; v < VECTORS; v++)
    {
        const int64_t at = v * LANES, to = v * AMX_AB;
        weight_tangents(s->pairs + to, s->t_pairs + to, s->T + at, s->U + at, s->c, s->scale, s->shift[v],
                        s->r[v], &s->sum[v], &s->tangent[v]);
    }
    s->T += 2 * PANEL;
    s->U += 2 * PANEL;
    s->pairs += 2 * LANES;
    s->t_pairs += 2 * LANES;
}

static bool softmax_tangent(uint16_t *pairs, uint16_t *t_pairs, const float *T, const float *U, float c,
                            float scale, const float *m, float *l, const float *r, float *a,
                            const amx_next *next)
{
    tangent_weight_stage s = {
        .T = T, .U = U, .pairs = pairs, .t_pairs = t_pairs, .c = v_set1(c), .scale = v_set1(scale)};
    vmask fine = 0xffff;
    UNROLL for (int v = 0; v < VECTORS; v++)
    {
        s.shift[v] = v_load(m + v * LANES);
        s.r[v] = v_load(r + v * LANES);
        s.sum[v] = s.tangent[v] = v_set1(0);
        fine &= v_less(v_set1(-REAL_MAX), s.shift[v]);
    }
    if (fine != 0xffff) {
        scores(next);
        return false;
    }
    beside(next, two_tangents, &s);
    if (!take_sums(s.sum, 1 / CENTRED, l)) {
        return false;
    }
    UNROLL for (int v = 0; v < VECTORS; v++)
    {
        v_store(a + v * LANES, v_fma(s.tangent[v], v_set1(1 / CENTRED), v_load(a + v * LANES)));
    }
    return true;
}

#endif
