/* Part of kernels.c: computes scores, weights and gradients in score tiles, and dropout. */
#include <math.h>

#include "core/philox.h"
#include "cpu/vec/kernels/kernels.h"
#include "cpu/vec/kernels/online.h"

/* ---- Scores ---- */

/* For the softcap's tanh x: x = factor T, and 2 log2(e) x = (high + low) T, in two parts because an absolute error
 * of the exponent is a relative error of e^(2x). */
typedef struct {
    vec factor, high, low;
} cap;

/* Rounded, but never to an infinity. */
INLINE real within_reals(double x)
{
    return (real)(x > REAL_MAX ? REAL_MAX : x < -REAL_MAX ? -REAL_MAX : x);
}

INLINE cap cap_of(real scale, real softcap)
{
    const double x = (double)within_reals((double)scale / (double)softcap), exponent = 2 * LOG2_E * x;
    const real high = within_reals(exponent);
    return (cap){v_set1((real)x), v_set1(high), v_set1(within_reals(exponent - (double)high))};
}

/* tanh x, and its derivative in *slope: 1 / cosh^2 x, because 1 - tanh^2 x loses all digits if x is large.
 * The double version is the C library's: softcap in float64 is for checking, not for speed. */
INLINE vec v_tanh(vec T, cap c, vec *slope)
{
    const vec x = v_mul(T, c.factor);
#ifdef AGI_REAL64
    real t[LANES], d[LANES];
    v_store(t, x);
    for (int i = 0; i < LANES; i++) {
        const real inverse = 1 / cosh(t[i]);
        t[i] = tanh(t[i]);
        d[i] = inverse * inverse;
    }
    *slope = v_load(d);
    return v_load(t);
#else
    /* |x| < 0.65: x (1 + x^2 p(x^2)), with a relative error of 2.6e-8 */
    const vec zero = v_set1(0), one = v_set1(1), magnitude = v_max(x, v_sub(zero, x)), y = v_mul(x, x);
    vec p = v_set1(-0.00592372620602f);
    p = v_fma(p, y, v_set1(0.0208734605776f));
    p = v_fma(p, y, v_set1(-0.0538237588699f));
    p = v_fma(p, y, v_set1(0.133325837052f));
    p = v_fma(p, y, v_set1(-0.333333270206f));
    const vec near = v_fma(v_mul(p, y), x, x);

    /* else, with e = e^(-2 |x|): 1 - 2 e / (1 + e) and 4 e / (1 + e)^2. e is set to 0 below 2^-160: it underflows in
     * float32 there, and the low part of the exponent, which may overflow, must not turn it into NaN. */
    const vec high = v_mul(T, c.high), low = v_fma(T, c.low, v_fms(T, c.high, high));
    const vmask negative = v_less(high, zero);
    const vec exponent = v_select(negative, high, v_sub(zero, high)),
              exponent_low = v_select(negative, low, v_sub(zero, low));
    const vec power = v_exp2(exponent),
              corrected = v_fma(power, v_mul(exponent_low, v_set1((real)LN_2)), power);
    const vec e = v_select(v_less(exponent, v_set1(-160)), zero, corrected), d = v_div(one, v_add(one, e));
    const vec far = v_fma(v_mul(v_set1(-2), e), d, one);
    const vec signed_far = v_select(v_less(x, zero), v_sub(zero, far), far);
    const vmask is_near = v_less(magnitude, v_set1(0.65f));
    *slope = v_select(is_near, v_fma(v_sub(zero, near), near, one), v_mul(v_mul(v_set1(4), e), v_mul(d, d)));
    return v_select(is_near, near, signed_far);
#endif
}

/* The rounding error of sum = a + b (Knuth's TwoSum); 0 if that is NaN, infinite or huge. */
INLINE vec v_two_sum_error(vec a, vec b, vec sum)
{
    const vec part = v_sub(sum, a), error = v_add(v_sub(a, v_sub(sum, part)), v_sub(b, part));
    const vec magnitude = v_max(error, v_sub(v_set1(0), error)),
              huge = v_set1((real)(REAL_MAX * (double)REAL_EPSILON));
    return v_select(v_less(magnitude, huge), error, v_set1(0));
}

static void scores(real *T, const real *X, real *F, real *G, int64_t ld, int64_t nj, int64_t W, real scale,
                   real softcap)
{
    const vec log2_e = v_set1((real)LOG2_E);
    const cap capped = softcap > 0 ? cap_of(scale, softcap) : (cap){.factor = v_set1(scale)};
    /* Only minus infinity masks a key, so a finite sum is clamped to where it times log2(e), here rounded up, is still
     * finite. NaN stays NaN. */
    const vec lowest = v_set1((real)(-REAL_MAX / 1.4427));
    for (int64_t j = 0; j < nj; j++) {
        for (int64_t i = 0; i < W; i += LANES) {
            const int64_t at = j * ld + i;
            vec s = v_mul(v_load(T + at), capped.factor);
            if (softcap > 0) {
                vec phi1;
                const vec t = v_tanh(v_load(T + at), capped, &phi1);
                s = v_mul(t, v_set1(softcap));
                if (F != NULL) {
                    v_store(F + at, phi1);
                }
                if (G != NULL) {
                    v_store(G + at, v_mul(v_mul(t, phi1), v_set1(-2 / softcap)));
                }
            }
            vec error = v_set1(0);
            if (X != NULL) { /* masked by selection: s and phi' may be NaN there */
                const vec add = v_load(X + at), sum = v_add(s, add);
                const vmask masked = v_less(add, v_set1(-REAL_MAX));
                error = v_mul(v_two_sum_error(s, add, sum), log2_e);
                s = v_select(masked, add, v_max(lowest, sum));
                if (softcap > 0 && F != NULL) {
                    v_store(F + at, v_select(masked, v_set1(0), v_load(F + at)));
                }
            }
            v_store(T + at, v_fma(s, log2_e, error));
        }
    }
}

/* Stores minus infinity in lanes from .. to - 1 of a row. */
INLINE void mask_lanes(real *row, int64_t from, int64_t to)
{
    const vec first = v_set1((real)from), end = v_set1((real)to);
    for (int64_t i = from / LANES * LANES; i < to; i += LANES) {
        const vec lane = v_add(v_iota(), v_set1((real)i)), t = v_load(row + i);
        const vec masked = v_select(v_less(lane, end), v_set1((real)-INFINITY), t);
        v_store(row + i, v_select(v_less(lane, first), t, masked));
    }
}

static void mask_band(real *T, int64_t ld, int64_t nj, int64_t W, int64_t low, int64_t high)
{
    for (int64_t j = 0; j < nj; j++) {
        /* visible: low <= j - i <= high, lanes from .. to - 1 */
        const int64_t from = j - high < W ? j - high : W, to = j - low < 0 ? 0 : j - low + 1;
        mask_lanes(T + j * ld, 0, from);
        mask_lanes(T + j * ld, to, W);
    }
}

/* ---- Softmax, online, in base 2 ---- */

/* Queries are processed GROUP vectors at a time, whose maxima and sums are independent chains of instructions; the
 * remaining vectors one by one. */
#define GROUP 4

INLINE void exp2_row(const int nv, real *T, vec c, const vec *shift, vec *sum)
{
    UNROLL_STAGE for (int v = 0; v < nv; v++)
    {
        const vec p = v_exp2(v_fms(v_load(T + v * LANES), c, shift[v]));
        v_store(T + v * LANES, p);
        sum[v] = v_add(sum[v], p);
    }
}

INLINE bool softmax_group(const int nv, real *T, int64_t ld, int64_t nj, vec c, real *m, real *l, real *alpha)
{
    vec highest[GROUP], shift[GROUP], factor[GROUP], sum[2][GROUP];
    bool rescaled = false;
    UNROLL_STAGE for (int v = 0; v < nv; v++)
    {
        highest[v] = v_load(T + v * LANES);
        sum[0][v] = sum[1][v] = v_set1(0);
    }
    for (int64_t j = 1; j < nj; j++) {
        UNROLL_STAGE for (int v = 0; v < nv; v++)
        {
            highest[v] = v_max(v_load(T + j * ld + v * LANES), highest[v]);
        }
    }
    UNROLL_STAGE for (int v = 0; v < nv; v++)
    {
        vmask grown;
        rescaled |= v_move_shift(v_mul(highest[v], c), m + v * LANES, &shift[v], &factor[v], &grown);
        v_store(alpha + v * LANES, factor[v]);
    }
    int64_t j = 0;
    for (; j + 2 <= nj; j += 2) {
        exp2_row(nv, T + j * ld, c, shift, sum[0]);
        exp2_row(nv, T + (j + 1) * ld, c, shift, sum[1]);
    }
    if (j < nj) {
        exp2_row(nv, T + j * ld, c, shift, sum[0]);
    }
    UNROLL_STAGE for (int v = 0; v < nv; v++)
    {
        v_store(l + v * LANES, v_fma(v_load(l + v * LANES), factor[v], v_add(sum[0][v], sum[1][v])));
    }
    return rescaled;
}

static bool softmax(real *T, int64_t ld, int64_t nj, int64_t W, real c, real *m, real *l, real *alpha)
{
    const vec vc = v_set1(c);
    bool rescaled = false;
    int64_t i = 0;
    for (; i + GROUP * LANES <= W; i += GROUP * LANES) {
        rescaled |= softmax_group(GROUP, T + i, ld, nj, vc, m + i, l + i, alpha + i);
    }
    for (; i < W; i += LANES) {
        rescaled |= softmax_group(1, T + i, ld, nj, vc, m + i, l + i, alpha + i);
    }
    return rescaled;
}

#define TANGENT_GROUP 2 /* fewer vectors, as each needs more registers */

INLINE void exp2_tangent_row(const int nv, real *T, real *U, vec c, const vec *shift, const vec *r, vec *sum,
                             vec *tangent)
{
    UNROLL_STAGE for (int v = 0; v < nv; v++)
    {
        const vec p = v_exp2(v_fms(v_load(T + v * LANES), c, shift[v]));
        /* A masked key has weight 0, and its tangent may be anything, even NaN. */
        const vec u = v_mul(p, v_sub(v_load(U + v * LANES), r[v]));
        const vec visible = v_select(v_less(v_set1(0), p), u, v_set1(0));
        v_store(T + v * LANES, p);
        v_store(U + v * LANES, visible);
        sum[v] = v_add(sum[v], p);
        tangent[v] = v_add(tangent[v], visible);
    }
}

INLINE bool softmax_tangent_group(const int nv, real *T, real *U, int64_t ld, int64_t nj, vec c, real *m,
                                  real *l, real *r, real *a, real *alpha, real *delta)
{
    vec highest[TANGENT_GROUP], at_highest[TANGENT_GROUP], shift[TANGENT_GROUP], factor[TANGENT_GROUP],
        r_after[TANGENT_GROUP], tangent[TANGENT_GROUP], sum[2][TANGENT_GROUP];
    bool rescaled = false;
    UNROLL_STAGE for (int v = 0; v < nv; v++)
    {
        highest[v] = v_load(T + v * LANES);
        at_highest[v] = v_load(U + v * LANES);
        sum[0][v] = sum[1][v] = tangent[v] = v_set1(0);
    }
    for (int64_t j = 1; j < nj; j++) {
        UNROLL_STAGE for (int v = 0; v < nv; v++)
        {
            const vec t = v_load(T + j * ld + v * LANES);
            const vmask higher = v_less(highest[v], t);
            highest[v] = v_select(higher, t, highest[v]);
            at_highest[v] = v_select(higher, v_load(U + j * ld + v * LANES), at_highest[v]);
        }
    }
    UNROLL_STAGE for (int v = 0; v < nv; v++)
    {
        vmask grown;
        rescaled |= v_move_shift(v_mul(highest[v], c), m + v * LANES, &shift[v], &factor[v], &grown);
        r_after[v] = v_select(grown, at_highest[v], v_load(r + v * LANES));
        v_store(alpha + v * LANES, factor[v]);
    }
    int64_t j = 0;
    for (; j + 2 <= nj; j += 2) { /* in the order of softmax: the same bits */
        exp2_tangent_row(nv, T + j * ld, U + j * ld, c, shift, r_after, sum[0], tangent);
        exp2_tangent_row(nv, T + (j + 1) * ld, U + (j + 1) * ld, c, shift, r_after, sum[1], tangent);
    }
    if (j < nj) {
        exp2_tangent_row(nv, T + j * ld, U + j * ld, c, shift, r_after, sum[0], tangent);
    }
    UNROLL_STAGE for (int v = 0; v < nv; v++)
    {
        const vec l_before = v_load(l + v * LANES), change = v_sub(v_load(r + v * LANES), r_after[v]);
        const vec a_before = v_mul(v_fma(change, l_before, v_load(a + v * LANES)), factor[v]);
        v_store(a + v * LANES, v_add(a_before, tangent[v]));
        v_store(l + v * LANES, v_fma(l_before, factor[v], v_add(sum[0][v], sum[1][v])));
        v_store(r + v * LANES, r_after[v]);
        v_store(delta + v * LANES, change);
    }
    return rescaled;
}

static bool softmax_tangent(real *T, real *U, int64_t ld, int64_t nj, int64_t W, real c, real *m, real *l,
                            real *r, real *a, real *alpha, real *delta)
{
    const vec vc = v_set1(c);
    const int64_t step = TANGENT_GROUP * LANES;
    bool rescaled = false;
    int64_t i = 0;
    for (; i + step <= W; i += step) {
        rescaled |= softmax_tangent_group(TANGENT_GROUP, T + i, U + i, ld, nj, vc, m + i, l + i, r + i, a + i,
                                          alpha + i, delta + i);
    }
    for (; i < W; i += LANES) {
        rescaled |= softmax_tangent_group(1, T + i, U + i, ld, nj, vc, m + i, l + i, r + i, a + i, alpha + i,
                                          delta + i);
    }
    return rescaled;
}

/* ---- Weights and gradients, from the statistics of a finished forward (L, D, mu) ---- */

/* A pair with weight 0 is masked, or its weight underflowed. Its other values may be anything, even NaN; its
 * results are set to 0 by selection. */

static void weights(real *T, int64_t ld, int64_t nj, int64_t W, real c, const real *high, const real *low)
{
    const vec vc = v_set1(c);
    for (int64_t j = 0; j < nj; j++) {
        for (int64_t i = 0; i < W; i += LANES) {
            const vec x = v_fms(v_load(T + j * ld + i), vc, v_load(high + i));
            v_store(T + j * ld + i, v_exp2(v_sub(x, v_load(low + i))));
        }
    }
}

static void score_tangents(real *U, const real *F, real *G, const real *X, int64_t ld, int64_t nj, int64_t W,
                           real scale)
{
    for (int64_t j = 0; j < nj; j++) {
        for (int64_t i = 0; i < W; i += LANES) {
            const int64_t at = j * ld + i;
            vec u = v_mul(v_load(U + at), v_set1(scale));
            if (G != NULL) {
                v_store(G + at, v_mul(v_load(G + at), u));
            }
            u = F == NULL ? u : v_mul(u, v_load(F + at));
            v_store(U + at, X == NULL ? u : v_add(u, v_load(X + at)));
        }
    }
}

static void tangent_weights(const real *P, real *U, int64_t ld, int64_t nj, int64_t W, const real *r,
                            real *sum)
{
    const vec zero = v_set1(0);
    for (int64_t i = 0; i < W; i += LANES) {
        const vec shift = v_load(r + i);
        vec part = zero;
        for (int64_t j = 0; j < nj; j++) {
            const int64_t at = j * ld + i;
            const vec p = v_load(P + at), u = v_mul(p, v_sub(v_load(U + at), shift));
            const vec visible = v_select(v_less(zero, p), u, zero);
            v_store(U + at, visible);
            part = v_add(part, visible);
        }
        v_store(sum + i, v_add(v_load(sum + i), part));
    }
}

static void second_score_tangents(real *Z, const real *F, const real *G, const real *Y, int64_t ld,
                                  int64_t nj, int64_t W, real scale, real factor)
{
    const vec vscale = v_set1(scale), both = v_set1(scale * factor);
    for (int64_t j = 0; j < nj; j++) {
        for (int64_t i = 0; i < W; i += LANES) {
            const int64_t at = j * ld + i;
            vec z = v_mul(v_load(Z + at), both);
            if (F != NULL) {
                const vec f = v_load(F + at), y = v_mul(v_load(Y + at), vscale);
                /* where phi' is 0 the pair is masked, or phi is flat: phi'' is 0 too, and may be NaN */
                z = v_select(v_less(v_set1(0), f), v_fma(f, z, v_mul(v_load(G + at), y)), v_set1(0));
            }
            v_store(Z + at, z);
        }
    }
}

static void second_weights(const real *P, real *U, real *Y, real *Z, int64_t ld, int64_t nj, int64_t W,
                           const real *mu, const real *smu, real *sum)
{
    const vec zero = v_set1(0);
    for (int64_t i = 0; i < W; i += LANES) {
        const vec vmu = v_load(mu + i), vsmu = v_load(smu + i);
        vec part = zero;
        for (int64_t j = 0; j < nj; j++) {
            const int64_t at = j * ld + i;
            const vec p = v_load(P + at);
            const vmask visible = v_less(zero, p);
            const vec u = v_sub(v_load(U + at), vmu), y = v_sub(v_load(Y + at), vsmu);
            const vec w = v_select(visible, v_mul(p, v_fma(u, y, v_load(Z + at))), zero);
            v_store(U + at, v_select(visible, v_mul(p, u), zero));
            v_store(Y + at, v_select(visible, v_mul(p, y), zero));
            v_store(Z + at, w);
            part = v_add(part, w);
        }
        v_store(sum + i, v_add(v_load(sum + i), part));
    }
}

static void score_gradients(real *dP, const real *P, const real *M, int64_t ld, int64_t nj, int64_t W,
                            const real *D)
{
    for (int64_t j = 0; j < nj; j++) {
        for (int64_t i = 0; i < W; i += LANES) {
            const int64_t at = j * ld + i;
            const vec raw = v_load(dP + at), d = M == NULL ? raw : v_mul(raw, v_load(M + at));
            const vec p = v_load(P + at), ds = v_mul(p, v_sub(d, v_load(D + i)));
            v_store(dP + at, v_select(v_less(v_set1(0), p), ds, v_set1(0)));
        }
    }
}

static void score_gradient_tangents(real *P, real *U, real *dP, real *tdP, const real *M, int64_t ld,
                                    int64_t nj, int64_t W, const real *mu, const real *D, const real *tD)
{
    const vec one = v_set1(1);
    for (int64_t j = 0; j < nj; j++) {
        for (int64_t i = 0; i < W; i += LANES) {
            const int64_t at = j * ld + i;
            const vec factor = M == NULL ? one : v_load(M + at);
            const vec p = v_load(P + at), zero = v_set1(0);
            const vmask visible = v_less(zero, p);
            const vec w = v_sub(v_load(U + at), v_load(mu + i));
            const vec e = v_fms(v_load(dP + at), factor, v_load(D + i));
            const vec td = v_fms(v_load(tdP + at), factor, v_load(tD + i));
            v_store(dP + at, v_select(visible, v_mul(p, e), zero));
            v_store(tdP + at, v_select(visible, v_mul(p, v_fma(w, e, td)), zero));
            v_store(U + at, v_select(visible, v_mul(v_mul(p, w), factor), zero));
            v_store(P + at, v_mul(p, factor));
        }
    }
}

static void softcap_gradients(real *dS, real *tdS, const real *F, const real *G, int64_t ld, int64_t nj,
                              int64_t W)
{
    for (int64_t j = 0; j < nj; j++) {
        for (int64_t i = 0; i < W; i += LANES) {
            const int64_t at = j * ld + i;
            const vec d = v_load(dS + at), f = v_load(F + at), zero = v_set1(0);
            const vmask visible =
                v_less(zero, f); /* else the pair is masked, or phi is flat: phi'' is 0 too */
            if (tdS != NULL) {
                const vec td = v_fma(v_load(tdS + at), f, v_mul(d, v_load(G + at)));
                v_store(tdS + at, v_select(visible, td, zero));
            }
            v_store(dS + at, v_select(visible, v_mul(d, f), zero));
        }
    }
}

static void multiply(real *T, const real *M, int64_t ld, int64_t nj, int64_t W)
{
    for (int64_t j = 0; j < nj; j++) {
        for (int64_t i = 0; i < W; i += LANES) {
            v_store(T + j * ld + i, v_mul(v_load(T + j * ld + i), v_load(M + j * ld + i)));
        }
    }
}

/* ---- Dropout ---- */

/* The random words of keys 4 g4 .. 4 g4 + 3, for W queries from position p0 on: word[key][query]. The compiler
 * vectorises over queries. */
static void philox_lanes(uint32_t word[4][PANEL], int64_t W, uint32_t g4, uint32_t p0, uint32_t head,
                         uint32_t sequence, uint64_t seed)
{
    for (int64_t i = 0; i < W; i++) {
        const uint32_t counter[4] = {g4, p0 + (uint32_t)i, head, sequence};
        const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
        uint32_t out[4];
        agi_philox4x32_10(counter, key, out);
        for (int w = 0; w < 4; w++) {
            word[w][i] = out[w];
        }
    }
}

static void dropout(real *M, int64_t ld, int64_t nj, int64_t W, int64_t g0, int64_t p0, uint32_t head,
                    uint32_t sequence, uint64_t seed, uint32_t threshold, real keep_factor)
{
    uint32_t word[4][PANEL];
    for (int64_t j = 0; j < nj; j++) {
        const uint64_t g = (uint64_t)(g0 + j);
        if (j == 0 || (g & 3) == 0) {
            philox_lanes(word, W, (uint32_t)(g >> 2), (uint32_t)p0, head, sequence, seed);
        }
        for (int64_t i = 0; i < W; i++) {
            M[j * ld + i] = word[g & 3][i] < threshold ? 0 : keep_factor;
        }
    }
}
