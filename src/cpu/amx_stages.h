/* What is done to score tiles on their way to bfloat16: a part of amx_kernels.c. */
#ifndef AGI_CPU_AMX_STAGES_H
#define AGI_CPU_AMX_STAGES_H

#include <immintrin.h>
#include <math.h>

#include "amx_kernels.h"
#include "kernels.h"
#include "online.h"

/* ---- Rounding ---- */

/* Half of a bfloat16's last place is added to both, so that what is cut off rounds to nearest; a tie, which
 * only a number with 16 zeros behind it is, goes away from zero. a is the lower half of each dword. */
INLINE vec round_pair(vec a, vec b)
{
    const __m512i half = _mm512_set1_epi32(0x8000);
    const __m512i low = _mm512_srli_epi32(_mm512_add_epi32(_mm512_castps_si512(a), half), 16);
    const __m512i high = _mm512_add_epi32(_mm512_castps_si512(b), half);
    return _mm512_castsi512_ps(_mm512_mask_blend_epi16(0xaaaaaaaau, low, high));
}

INLINE void store_pair(uint16_t *to, vec a, vec b)
{
    v_store((float *)(void *)to, round_pair(a, b));
}

static void round_pairs(uint16_t *pairs, const float *T, int64_t W)
{
    for (int64_t i = 0; i < W; i += LANES) {
        for (int j = 0; j < GROUP_KEYS; j += 2) {
            store_pair(pairs + i * 32 + j * 16, v_load(T + j * PANEL + i), v_load(T + (j + 1) * PANEL + i));
        }
    }
}

/* Where row j of a group is, from its first tile on. */
INLINE int64_t row_place(int j, int64_t line)
{
    return j / AMX_ROWS * line + j % AMX_ROWS * AMX_DEPTH;
}

static void round_rows(uint16_t *rows, int64_t line, const float *T, int64_t W)
{
    for (int64_t i = 0; i < W; i += 2 * LANES) {
        for (int j = 0; j < GROUP_KEYS; j++) {
            const float *const t = T + j * PANEL + i;
            store_pair(rows + i * AMX_ROWS + row_place(j, line), v_load(t), v_load(t + LANES));
        }
    }
}

/* Queries i of a patch with low <= j - i <= high, as bits. */
INLINE uint32_t seen_queries(int64_t j, int64_t low, int64_t high)
{
    const int64_t from = j - high < 0 ? 0 : j - high > 32 ? 32 : j - high;
    const int64_t to = j - low < 0 ? 0 : j - low > 31 ? 32 : j - low + 1;
    return (uint32_t)((1ull << to) - 1) & ~(uint32_t)((1ull << from) - 1);
}

/* Bit n of both, next to each other. */
INLINE __mmask32 interleave(uint32_t even, uint32_t odd)
{
    return _pdep_u32(even, 0x55555555u) | _pdep_u32(odd, 0xaaaaaaaau);
}

INLINE void keep_numbers(uint16_t *p, __mmask32 kept)
{
    _mm512_storeu_si512(p, _mm512_maskz_loadu_epi16(kept, p));
}

static void hide_rows(uint16_t *rows, int64_t line, int64_t low, int64_t high)
{
    for (int j = 0; j < GROUP_KEYS; j++) {
        const uint32_t seen = seen_queries(j, low, high);
        keep_numbers(rows + row_place(j, line), interleave(seen & 0xffff, seen >> 16));
    }
}

static void hide_pairs(uint16_t *pairs, int64_t low, int64_t high)
{
    for (int j = 0; j < GROUP_KEYS; j += 2) {
        const uint32_t even = seen_queries(j, low, high), odd = seen_queries(j + 1, low, high);
        keep_numbers(pairs + j * 16, interleave(even & 0xffff, odd & 0xffff));
        keep_numbers(pairs + j * 16 + AMX_AB, interleave(even >> 16, odd >> 16));
    }
}

/* The same by cutting off: for numbers that are greater by CENTRED than they should be, so that what is cut off is
 * made up for on average. Their errors are slightly larger than rounding's, without a bias, for half the work. */
INLINE void store_cut_pair(uint16_t *to, vec a, vec b)
{
    const __m512i low = _mm512_srli_epi32(_mm512_castps_si512(a), 16);
    v_store((float *)(void *)to,
            _mm512_castsi512_ps(_mm512_mask_blend_epi16(0xaaaaaaaau, low, _mm512_castps_si512(b))));
}

/* ---- Stages ---- */

/* CENTRED 2^x within 7.5e-5 of itself: the polynomial of degree 3, enough for what is cut to bfloat16. */
#define CENTRED ((float)AMX_CENTRED)
INLINE vec exp2_centred(vec x)
{
    const vec f = v_fraction(x);
    vec p = v_set1(CENTRED * 0.078024522640478933f);
    p = v_fma(p, f, v_set1(CENTRED * 0.2260671554274834f));
    p = v_fma(p, f, v_set1(CENTRED * 0.6958335404947531f));
    p = v_fma(p, f, v_set1(CENTRED * 0.99992521856271543f));
    return v_scale2(p, x);
}

/* Two vectors of lanes at once, so that a row of far pairs is whole and chains are short. */
enum { PAIR = 2 };

/* A band low <= j - i <= high on keys j by lanes i: -i - low of each vector of lanes, and the most that j - i - low may
 * be. */
typedef struct {
    __m512i above[PAIR], most;
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
    for (int v = 0; v < PAIR; v++) {
        b.above[v] = _mm512_sub_epi32(_mm512_set1_epi32(-first - v * LANES), lane);
    }
    return b;
}

INLINE __mmask16 seen_lanes(const lane_band *band, int j, int v)
{
    return _mm512_cmple_epu32_mask(_mm512_add_epi32(band->above[v], _mm512_set1_epi32(j)), band->most);
}

/* Weights and their sums, with the shift as it is. */
INLINE void weights_of_pair(uint16_t *pairs, const float *T, vec c, const vec *shift, const lane_band *band,
                            vec *sum)
{
    vec odd[PAIR];
    UNROLL for (int v = 0; v < PAIR; v++)
    {
        sum[v] = odd[v] = v_set1(0);
    }
    for (int j = 0; j < GROUP_KEYS; j += 2) {
        UNROLL for (int v = 0; v < PAIR; v++)
        {
            const float *const t = T + j * PANEL + v * LANES;
            const vec p = exp2_centred(v_fms(v_load(t), c, shift[v]));
            const vec q = exp2_centred(v_fms(v_load(t + PANEL), c, shift[v]));
            const vec a = band == NULL ? p : _mm512_maskz_mov_ps(seen_lanes(band, j, v), p);
            const vec b = band == NULL ? q : _mm512_maskz_mov_ps(seen_lanes(band, j + 1, v), q);
            sum[v] = v_add(sum[v], a);
            odd[v] = v_add(odd[v], b);
            store_cut_pair(pairs + v * AMX_AB + j * 16, a, b);
        }
    }
    UNROLL for (int v = 0; v < PAIR; v++)
    {
        sum[v] = v_add(sum[v], odd[v]);
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

/* A number in 256ths, of 16 bits, has the exponent and the mantissa of its own 2^x, but for a curve: how much less the
 * mantissa is, by the first six of the eight bits behind the point. In 256ths, with what rounding to 128ths adds. */
static const uint8_t curve[64] = {1,  2,  3,  4,  5,  6,  8,  8,  10, 10, 11, 12, 13, 14, 15, 16,
                                  16, 17, 18, 18, 19, 19, 20, 20, 21, 21, 21, 22, 22, 22, 22, 22,
                                  22, 23, 23, 23, 22, 22, 22, 22, 22, 21, 21, 21, 20, 20, 19, 19,
                                  18, 17, 17, 16, 15, 14, 13, 12, 11, 10, 9,  7,  6,  5,  3,  2};

/* The same weights in half the instructions, for exponents between -126 and 126. They are 1.00015 times smaller on
 * average; shifts are in 256ths. Their errors are larger than rounding's
 * by a sixth. */
#define CURVED ((float)(AMX_CENTRED * 1.000155))
INLINE void weights_by_curve(uint16_t *pairs, const float *T, vec c, const vec *shift, vec *sum)
{
    const vec scale = v_mul(c, v_set1(256)), bias = v_set1(0x1.8p23f + 127 * 256 + 1);
    const __m512i less = _mm512_loadu_si512(curve);
    const __m512bh ones = (__m512bh)_mm512_set1_epi16(0x3f80);
    vec start[PAIR];
    UNROLL for (int v = 0; v < PAIR; v++)
    {
        start[v] = v_fma(shift[v], v_set1(-256), bias);
        sum[v] = v_set1(0);
    }
    for (int j = 0; j < GROUP_KEYS; j += 2) {
        UNROLL for (int v = 0; v < PAIR; v++)
        {
            const float *const t = T + j * PANEL + v * LANES;
            const __m512i a = _mm512_castps_si512(v_fma(v_load(t), scale, start[v]));
            const __m512i b = _mm512_castps_si512(v_fma(v_load(t + PANEL), scale, start[v]));
            const __m512i x = _mm512_mask_blend_epi16(0xaaaaaaaau, a, _mm512_slli_epi32(b, 16));
            const __m512i l =
                _mm512_maskz_permutexvar_epi8(0x5555555555555555u, _mm512_srli_epi16(x, 2), less);
            const __m512i p = _mm512_srli_epi16(_mm512_sub_epi16(x, l), 1);
            _mm512_storeu_si512(pairs + v * AMX_AB + j * 16, p);
            sum[v] = _mm512_dpbf16_ps(sum[v], (__m512bh)p, ones);
        }
    }
    UNROLL for (int v = 0; v < PAIR; v++)
    {
        sum[v] = v_mul(sum[v], v_set1(CURVED));
    }
}

/* |q| |k| is the most that a product can be. */
INLINE void some_weights(uint16_t *pairs, const float *T, vec c, const float *norms, float reach,
                         const vec *shift, vec *sum)
{
    vmask within = 0xffff;
    UNROLL for (int v = 0; v < PAIR; v++)
    {
        const vec most = v_fma(v_load(norms + v * LANES), v_set1(reach), _mm512_abs_ps(shift[v]));
        within &= v_less(most, v_set1(125));
    }
    if (within == 0xffff) {
        weights_by_curve(pairs, T, c, shift, sum);
    } else {
        weights_of_pair(pairs, T, c, shift, NULL, sum);
    }
}

/* As long as the sums of a group are small, no weight is large, and nobody need know the maximum: the shift
 * stays. Else, and for lanes that have seen nothing, or NaN, it is looked for. */
INLINE bool softmax_pair(uint16_t *pairs, const float *T, vec c, const float *norms, float reach, float *m,
                         float *l, float *alpha)
{
    const vec most = v_set1(256), least = v_set1(-REAL_MAX);
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

static bool softmax_band(uint16_t *pairs, const float *T, int64_t W, float c, int64_t low, int64_t high,
                         const float *m, float *l)
{
    const vec most = v_set1(256), least = v_set1(-REAL_MAX);
    float sums[PANEL];
    for (int64_t i = 0; i < W; i += PAIR * LANES) {
        const vec shift[PAIR] = {v_load(m + i), v_load(m + i + LANES)};
        const lane_band band = band_of(low + i, high + i);
        vec sum[PAIR];
        if ((v_less(least, shift[0]) & v_less(least, shift[1])) != 0xffff) {
            return false;
        }
        weights_of_pair(pairs + i * 32, T + i, v_set1(c), shift, &band, sum);
        if ((v_less(sum[0], most) & v_less(sum[1], most)) != 0xffff) {
            return false;
        }
        v_store(sums + i, sum[0]);
        v_store(sums + i + LANES, sum[1]);
    }
    for (int64_t i = 0; i < W; i += LANES) {
        v_store(l + i, v_add(v_load(l + i), v_load(sums + i)));
    }
    return true;
}

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

static bool softmax_tangent(uint16_t *pairs, uint16_t *t_pairs, const float *T, const float *U, int64_t W,
                            float c, float scale, const float *m, float *l, const float *r, float *a)
{
    float sums[PANEL], tangents[PANEL];
    vmask fine = 0xffff;
    for (int64_t i = 0; i < W; i += LANES) {
        const vec shift = v_load(m + i);
        vec sum = v_set1(0), tangent = sum;
        for (int j = 0; j < GROUP_KEYS; j += 2) {
            weight_tangents(pairs + i * 32 + j * 16, t_pairs + i * 32 + j * 16, T + j * PANEL + i,
                            U + j * PANEL + i, v_set1(c), v_set1(scale), shift, v_load(r + i), &sum,
                            &tangent);
        }
        fine &= v_less(sum, v_set1(256)) & v_less(v_set1(-REAL_MAX), shift);
        v_store(sums + i, sum);
        v_store(tangents + i, tangent);
    }
    for (int64_t i = 0; i < W && fine == 0xffff; i += LANES) {
        const vec centre = v_set1(1 / CENTRED);
        v_store(l + i, v_fma(v_load(sums + i), centre, v_load(l + i)));
        v_store(a + i, v_fma(v_load(tangents + i), centre, v_load(a + i)));
    }
    return fine == 0xffff;
}

/* Two keys by two vectors of lanes. */
INLINE void gradients_square(uint16_t *P, uint16_t *dS, uint16_t *dS_pairs, const float *T, const float *dP,
                             vec c, const vec *L, const vec *D)
{
    vec p[2][PAIR], ds[2][PAIR];
    UNROLL for (int j = 0; j < 2; j++)
    {
        UNROLL for (int v = 0; v < PAIR; v++)
        {
            const int64_t at = j * PANEL + v * LANES;
            p[j][v] = exp2_centred(v_fms(v_load(T + at), c, L[v]));
            ds[j][v] = v_mul(p[j][v], v_sub(v_load(dP + at), D[v]));
        }
        store_cut_pair(P + j * AMX_DEPTH, p[j][0], p[j][1]);
        store_cut_pair(dS + j * AMX_DEPTH, ds[j][0], ds[j][1]);
    }
    UNROLL for (int v = 0; v < PAIR; v++)
    {
        store_cut_pair(dS_pairs + v * AMX_AB, ds[0][v], ds[1][v]);
    }
}

static void gradients(uint16_t *P, uint16_t *dS, int64_t line, uint16_t *dS_pairs, const float *T,
                      const float *dP, int64_t W, float c, const float *L, const float *D)
{
    for (int64_t i = 0; i < W; i += PAIR * LANES) {
        const vec l[PAIR] = {v_load(L + i), v_load(L + i + LANES)};
        const vec d[PAIR] = {v_load(D + i), v_load(D + i + LANES)};
        for (int j = 0; j < GROUP_KEYS; j += 2) {
            const int64_t to = i * AMX_ROWS + row_place(j, line), at = j * PANEL + i;
            gradients_square(P + to, dS + to, dS_pairs + i * 32 + j * 16, T + at, dP + at, v_set1(c), l, d);
        }
    }
}

/* What vjp_jvp makes of one vector of scores. */
typedef struct {
    vec r, ds, tr, tds;
} tangent_stage;

INLINE tangent_stage tangents_at(const float *const scores[4], int64_t at, vec c, vec scale, vec L, vec mu,
                                 vec D, vec tD)
{
    tangent_stage x;
    const vec e = v_sub(v_load(scores[1] + at), D), w = v_fms(v_load(scores[2] + at), scale, mu);
    x.r = exp2_centred(v_fms(v_load(scores[0] + at), c, L));
    x.ds = v_mul(x.r, e);
    x.tr = v_mul(x.r, w);
    x.tds = v_mul(x.r, v_fma(w, e, v_sub(v_load(scores[3] + at), tD)));
    return x;
}

static void gradient_tangents(uint16_t *const rows[4], int64_t line, uint16_t *const pairs[2],
                              const float *const scores[4], float c, float scale, const float *L,
                              const float *mu, const float *D, const float *tD)
{
    for (int j = 0; j < GROUP_KEYS; j += 2) {
        tangent_stage x[2][PAIR];
        UNROLL for (int r = 0; r < 2; r++)
        {
            const int64_t to = row_place(j + r, line);
            UNROLL for (int v = 0; v < PAIR; v++)
            {
                const int64_t i = v * LANES;
                x[r][v] = tangents_at(scores, (j + r) * PANEL + i, v_set1(c), v_set1(scale), v_load(L + i),
                                      v_load(mu + i), v_load(D + i), v_load(tD + i));
            }
            store_cut_pair(rows[0] + to, x[r][0].r, x[r][1].r);
            store_cut_pair(rows[1] + to, x[r][0].ds, x[r][1].ds);
            store_cut_pair(rows[2] + to, x[r][0].tr, x[r][1].tr);
            store_cut_pair(rows[3] + to, x[r][0].tds, x[r][1].tds);
        }
        UNROLL for (int v = 0; v < PAIR; v++)
        {
            store_cut_pair(pairs[0] + v * AMX_AB + j * 16, x[0][v].tds, x[1][v].tds);
            store_cut_pair(pairs[1] + v * AMX_AB + j * 16, x[0][v].ds, x[1][v].ds);
        }
    }
}

#endif
