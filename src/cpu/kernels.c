/* The tile kernels: one source over the verbs of vec.h, compiled once for each instruction set and each
 * real. Knows tiles, lanes and rows; knows no problem. */
#include "kernels.h"

#include <math.h>
#include <string.h>

#include "../core/arena.h"
#include "../core/number.h"
#include "../core/philox.h"
#include "online.h"

/* ---- The product ---- */

/* Of what is asked for ahead: half a cache line in each step of k, as others' lines do not come faster. */
enum { AHEAD_STEP = 32 };

/* C[mr][nv vectors]: every C stays in a register while k runs. mr, nv and add are constants at each of
 * the places below, and ahead is 0 at most of them: this is a template. */
INLINE void micro(const int mr, const int nv, const bool add, int64_t K, const real *A, int64_t ars,
                  int64_t aks, const real *B, int64_t ldb, real *C, int64_t ldc, uintptr_t ahead)
{
    vec c[12][MAX_NV];
    UNROLL for (int r = 0; r < mr; r++)
    {
        UNROLL for (int v = 0; v < nv; v++)
        {
            c[r][v] = add ? v_load(C + r * ldc + v * LANES) : v_set1(0);
        }
    }
    for (int64_t k = 0; k < K; k++) {
        vec b[MAX_NV];
        UNROLL for (int v = 0; v < nv; v++)
        {
            b[v] = v_load(B + v * LANES);
        }
        UNROLL for (int r = 0; r < mr; r++)
        {
            const vec a = v_set1(A[r * ars]);
            UNROLL for (int v = 0; v < nv; v++)
            {
                c[r][v] = v_fma(a, b[v], c[r][v]);
            }
        }
        if (ahead != 0) {
            __builtin_prefetch((const void *)ahead, 0, 2);
            ahead += AHEAD_STEP;
        }
        A += aks;
        B += ldb;
    }
    UNROLL for (int r = 0; r < mr; r++)
    {
        UNROLL for (int v = 0; v < nv; v++)
        {
            v_store(C + r * ldc + v * LANES, c[r][v]);
        }
    }
}

#define PARAMETERS                                                                                           \
    int64_t mr, int64_t K, const real *A, int64_t ars, int64_t aks, const real *B, int64_t ldb, real *C,     \
        int64_t ldc
#define ARGS K, A, ars, aks, B, ldb, C, ldc

/* The instances: mr rows of nv vectors, C = or C +=. */
INLINE void instances(const int nv, const bool add, PARAMETERS, uintptr_t ahead)
{
    switch (mr) {
    case 1: micro(1, nv, add, ARGS, ahead); break;
    case 2: micro(2, nv, add, ARGS, ahead); break;
    case 3: micro(3, nv, add, ARGS, ahead); break;
    case 4: micro(4, nv, add, ARGS, ahead); break;
    case 5: micro(5, nv, add, ARGS, ahead); break;
    case 6: micro(6, nv, add, ARGS, ahead); break;
    case 7: micro(MAX_MR(nv) < 7 ? 1 : 7, nv, add, ARGS, ahead); break;
    case 8: micro(MAX_MR(nv) < 8 ? 1 : 8, nv, add, ARGS, ahead); break;
    case 9: micro(MAX_MR(nv) < 9 ? 1 : 9, nv, add, ARGS, ahead); break;
    case 10: micro(MAX_MR(nv) < 10 ? 1 : 10, nv, add, ARGS, ahead); break;
    case 11: micro(MAX_MR(nv) < 11 ? 1 : 11, nv, add, ARGS, ahead); break;
    default: micro(MAX_MR(nv) < 12 ? 1 : 12, nv, add, ARGS, ahead); break;
    }
}

static void set_1(PARAMETERS)
{
    instances(1, false, mr, ARGS, 0);
}
static void add_1(PARAMETERS)
{
    instances(1, true, mr, ARGS, 0);
}
static void set_2(PARAMETERS)
{
    instances(2, false, mr, ARGS, 0);
}
static void add_2(PARAMETERS)
{
    instances(2, true, mr, ARGS, 0);
}
#if MAX_NV == 4
static void set_3(PARAMETERS)
{
    instances(3, false, mr, ARGS, 0);
}
static void add_3(PARAMETERS)
{
    instances(3, true, mr, ARGS, 0);
}
static void set_4(PARAMETERS)
{
    instances(4, false, mr, ARGS, 0);
}
static void add_4(PARAMETERS)
{
    instances(4, true, mr, ARGS, 0);
}
static void (*const micros[][2])(PARAMETERS) = {
    {NULL}, {set_1, add_1}, {set_2, add_2}, {set_3, add_3}, {set_4, add_4}};
#else
static void (*const micros[][2])(PARAMETERS) = {{NULL}, {set_1, add_1}, {set_2, add_2}};
#endif

static void set_ahead(PARAMETERS, uintptr_t ahead)
{
    instances(MAX_NV, false, mr, ARGS, ahead);
}
static void add_ahead(PARAMETERS, uintptr_t ahead)
{
    instances(MAX_NV, true, mr, ARGS, ahead);
}

static void product(int64_t M, int64_t N, int64_t K, const real *A, int64_t ars, int64_t aks, const real *B,
                    int64_t ldb, real *C, int64_t ldc, bool add)
{
    const int64_t vectors = N / LANES, groups = (vectors + MAX_NV - 1) / MAX_NV;
    for (int64_t g = 0; g < groups; g++) {
        /* Groups as even as can be: 5 vectors are 3 and 2, not 4 and 1. */
        const int64_t first = groups == 1 ? 0 : vectors * g / groups;
        const int64_t nv = groups == 1 ? vectors : vectors * (g + 1) / groups - first;
        const int64_t step = MAX_MR(nv);
        for (int64_t r = 0; r < M; r += step) {
            micros[nv][add](M - r < step ? M - r : step, K, A + r * ars, ars, aks, B + first * LANES, ldb,
                            C + r * ldc + first * LANES, ldc);
        }
    }
}

/* Where the next `bytes` that are asked for begin; 0: all has been. */
static uintptr_t next_ahead(agi_ahead *ahead, int64_t bytes)
{
    while (ahead->first < ahead->n && ahead->ranges[ahead->first].at >= ahead->ranges[ahead->first].end) {
        ahead->first++;
    }
    if (ahead->first == ahead->n) {
        return 0;
    }
    agi_range *range = &ahead->ranges[ahead->first];
    const uintptr_t at = range->at;
    range->at += (uintptr_t)bytes;
    return at;
}

static void product_ahead(int64_t M, int64_t N, int64_t K, const real *A, int64_t ars, int64_t aks,
                          const real *B, int64_t ldb, real *C, int64_t ldc, bool add, agi_ahead *ahead)
{
    const int64_t step = MAX_MR(MAX_NV), width = MAX_NV * LANES;
    int64_t i = 0;
    for (; i + width <= N; i += width) {
        for (int64_t r = 0; r < M; r += step) {
            const int64_t mr = M - r < step ? M - r : step;
            const uintptr_t lines = next_ahead(ahead, AHEAD_STEP * K);
            if (lines == 0) { /* the rest */
                product(M - r, width, K, A + r * ars, ars, aks, B + i, ldb, C + r * ldc + i, ldc, add);
                break;
            }
            (add ? add_ahead : set_ahead)(mr, K, A + r * ars, ars, aks, B + i, ldb, C + r * ldc + i, ldc,
                                          lines);
        }
    }
    if (i < N) {
        product(M, N - i, K, A, ars, aks, B + i, ldb, C + i, ldc, add);
    }
}

/* ---- The product for few queries ---- */

/* Lane r: the sum of the lanes of s[r]. Each time the halves of two vectors are added, and they become one. */
INLINE vec v_sums(vec *s)
{
    for (int n = LANES / 2; n > 0; n /= 2) {
        UNROLL_STAGE for (int r = 0; r < LANES / 2; r++)
        {
            if (r < n) {
                vec low, high;
                v_zip(s[r], s[r + n], &low, &high);
                s[r] = v_add(low, high);
            }
        }
    }
    return s[0];
}

/* The products of n rows of K, LANES at most, and one of Q. */
INLINE vec row_sums(const int64_t n, const real *K, int64_t ldk, const real *q, int64_t D)
{
    vec s[LANES];
    UNROLL_STAGE for (int r = 0; r < LANES; r++)
    {
        s[r] = v_set1(0);
    }
    for (int64_t c = 0; c < D; c += LANES) {
        const vec b = v_load(q + c);
        UNROLL_STAGE for (int r = 0; r < LANES; r++)
        {
            if (r < n) {
                s[r] = v_fma(v_load(K + r * ldk + c), b, s[r]);
            }
        }
    }
    return v_sums(s);
}

static void few_scores(real *T, int64_t ld, int64_t nj, int64_t W, const real *K, int64_t ldk, const real *Q,
                       int64_t ldq, int64_t ni, int64_t D, bool add)
{
    real sums[LANES];
    for (int64_t j = 0; j < nj && !add; j++) {
        for (int64_t i = 0; i < W; i += LANES) {
            v_store(T + j * ld + i, v_set1(0));
        }
    }
    for (int64_t j = 0; j < nj; j += LANES) {
        const int64_t n = nj - j < LANES ? nj - j : LANES;
        for (int64_t i = 0; i < ni; i++) {
            const real *rows = K + j * ldk, *q = Q + i * ldq;
            v_store(sums, n == LANES ? row_sums(LANES, rows, ldk, q, D) : row_sums(n, rows, ldk, q, D));
            for (int64_t r = 0; r < n; r++) {
                T[(j + r) * ld + i] += sums[r];
            }
        }
    }
}

/* ---- Scores ---- */

/* The softcap's x = factor T, and 2 log2(e) x = (high + low) T: a power keeps the digits that its exponent has. */
typedef struct {
    vec factor, high, low;
} cap;

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

/* tanh x, and its derivative in *slope: 1 / cosh^2 x, because 1 - tanh^2 x has no digits left where x is large.
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
    /* x (1 + x^2 p(x^2)) where |x| < 0.65: within 2.6e-8 of itself */
    const vec zero = v_set1(0), one = v_set1(1), size = v_max(x, v_sub(zero, x)), y = v_mul(x, x);
    vec p = v_set1(-0.00592372620602f);
    p = v_fma(p, y, v_set1(0.0208734605776f));
    p = v_fma(p, y, v_set1(-0.0538237588699f));
    p = v_fma(p, y, v_set1(0.133325837052f));
    p = v_fma(p, y, v_set1(-0.333333270206f));
    const vec near = v_fma(v_mul(p, y), x, x);

    /* with e = e^(-2 |x|), elsewhere: 1 - 2 e / (1 + e) and 4 e / (1 + e)^2; e = 0 where the rest would overflow */
    const vec high = v_mul(T, c.high), rest = v_fma(T, c.low, v_fms(T, c.high, high));
    const vmask negative = v_less(high, zero);
    const vec up = v_select(negative, high, v_sub(zero, high)),
              more = v_select(negative, rest, v_sub(zero, rest));
    const vec power = v_exp2(up), exact = v_fma(power, v_mul(more, v_set1((real)LN_2)), power);
    const vec e = v_select(v_less(up, v_set1(-160)), zero, exact), d = v_div(one, v_add(one, e));
    const vec far = v_fma(v_mul(v_set1(-2), e), d, one);
    const vec signed_far = v_select(v_less(x, zero), v_sub(zero, far), far);
    const vmask is_near = v_less(size, v_set1(0.65f));
    *slope = v_select(is_near, v_fma(v_sub(zero, near), near, one), v_mul(v_mul(v_set1(4), e), v_mul(d, d)));
    return v_select(is_near, near, signed_far);
#endif
}

/* What a + b = sum lost; 0 where that is no small number. */
INLINE vec v_lost(vec a, vec b, vec sum)
{
    const vec part = v_sub(sum, a), lost = v_add(v_sub(a, v_sub(sum, part)), v_sub(b, part));
    const vec size = v_max(lost, v_sub(v_set1(0), lost)),
              most = v_set1((real)(REAL_MAX * (double)REAL_EPSILON));
    return v_select(v_less(size, most), lost, v_set1(0));
}

static void scores(real *T, const real *X, real *F, real *G, int64_t ld, int64_t nj, int64_t W, real scale,
                   real softcap)
{
    const vec log2_e = v_set1((real)LOG2_E);
    const cap capped = softcap > 0 ? cap_of(scale, softcap) : (cap){.factor = v_set1(scale)};
    /* Only minus infinity hides: the lowest finite bias must not overflow in base 2. NaN stays. */
    const vec least = v_set1((real)(-REAL_MAX / 1.4427));
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
            vec rest = v_set1(0);
            if (X != NULL) { /* hidden by selection: s and phi' may be NaN there */
                const vec add = v_load(X + at), sum = v_add(s, add);
                const vmask hidden = v_less(add, v_set1(-REAL_MAX));
                rest = v_mul(v_lost(s, add, sum), log2_e);
                s = v_select(hidden, add, v_max(least, sum));
                if (softcap > 0 && F != NULL) {
                    v_store(F + at, v_select(hidden, v_set1(0), v_load(F + at)));
                }
            }
            v_store(T + at, v_fma(s, log2_e, rest));
        }
    }
}

/* Lanes from .. to - 1 of a row. */
INLINE void hide_lanes(real *row, int64_t from, int64_t to)
{
    const vec first = v_set1((real)from), end = v_set1((real)to);
    for (int64_t i = from / LANES * LANES; i < to; i += LANES) {
        const vec lane = v_add(v_iota(), v_set1((real)i)), t = v_load(row + i);
        const vec hidden = v_select(v_less(lane, end), v_set1((real)-INFINITY), t);
        v_store(row + i, v_select(v_less(lane, first), t, hidden));
    }
}

static void hide(real *T, int64_t ld, int64_t nj, int64_t W, int64_t low, int64_t high)
{
    for (int64_t j = 0; j < nj; j++) {
        /* low <= j - i <= high, for the lanes i */
        const int64_t from = j - high < W ? j - high : W, to = j - low < 0 ? 0 : j - low + 1;
        hide_lanes(T + j * ld, 0, from);
        hide_lanes(T + j * ld, to, W);
    }
}

/* ---- Softmax, online, in base 2 ---- */

/* The lanes of a row are taken in groups of GROUP vectors, whose chains of maxima and sums are independent of
 * each other, and what is left by single vectors. */
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

#define TANGENT_GROUP 2

INLINE void exp2_tangent_row(const int nv, real *T, real *U, vec c, const vec *shift, const vec *r, vec *sum,
                             vec *tangent)
{
    UNROLL_STAGE for (int v = 0; v < nv; v++)
    {
        const vec p = v_exp2(v_fms(v_load(T + v * LANES), c, shift[v]));
        /* A hidden key has weight 0, and its tangent may be anything. */
        const vec u = v_mul(p, v_sub(v_load(U + v * LANES), r[v]));
        const vec seen = v_select(v_less(v_set1(0), p), u, v_set1(0));
        v_store(T + v * LANES, p);
        v_store(U + v * LANES, seen);
        sum[v] = v_add(sum[v], p);
        tangent[v] = v_add(tangent[v], seen);
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
    for (; j + 2 <= nj; j += 2) { /* as softmax adds up: the same bits */
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

/* ---- Weights and gradients, from statistics that are known ---- */

/* Where the weight is 0 the pair is hidden, or as good as: its other numbers may be anything, and what
 * comes of them is 0 by selection. */

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
            const vec mask = M == NULL ? one : v_load(M + at);
            const vec p = v_load(P + at), zero = v_set1(0);
            const vmask seen = v_less(zero, p);
            const vec w = v_sub(v_load(U + at), v_load(mu + i));
            const vec e = v_fms(v_load(dP + at), mask, v_load(D + i));
            const vec td = v_fms(v_load(tdP + at), mask, v_load(tD + i));
            v_store(dP + at, v_select(seen, v_mul(p, e), zero));
            v_store(tdP + at, v_select(seen, v_mul(p, v_fma(w, e, td)), zero));
            v_store(U + at, v_select(seen, v_mul(v_mul(p, w), mask), zero));
            v_store(P + at, v_mul(p, mask));
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
            const vmask live = v_less(zero, f); /* phi' is 0 where hidden, and where phi'' is 0 too */
            if (tdS != NULL) {
                const vec td = v_fma(v_load(tdS + at), f, v_mul(d, v_load(G + at)));
                v_store(tdS + at, v_select(live, td, zero));
            }
            v_store(dS + at, v_select(live, v_mul(d, f), zero));
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

/* ---- Rows: plain loops that the compiler makes vectors of ---- */

static void put(real *to, int64_t ldt, const real *from, int64_t ldf, int64_t rows, int64_t n,
                const double *factor, int64_t step, bool add)
{
    for (int64_t r = 0; r < rows; r++) {
        real *out = to + r * ldt;
        const real *in = from + r * ldf;
        const double f = factor[r * step];
        if (add) {
            INDEPENDENT for (int64_t i = 0; i < n; i++)
            {
                out[i] = (real)((double)out[i] + f * (double)in[i]);
            }
        } else {
            INDEPENDENT for (int64_t i = 0; i < n; i++)
            {
                out[i] = (real)(f * (double)in[i]);
            }
        }
    }
}

/* Where it is not known, a hint for reading: processors without AVX2 may lack the instruction. */
INLINE void expect_line(const real *p)
{
#if defined(__AVX2__)
    __asm__ volatile("prefetchw %0" : : "m"(*p));
#else
    __builtin_prefetch(p, 1);
#endif
}

static void expect(const real *rows_at, int64_t ld, int64_t rows, int64_t n)
{
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t c = 0; c < n; c += AGI_CACHE_LINE / (int64_t)sizeof(real)) {
            expect_line(rows_at + r * ld + c);
        }
    }
}

/* The bits of factor * from in float32, and in *odd those rounded to odd: cut off, the last bit set where that lost
 * something. What then rounds to fewer digits, to nearest, is as if rounded once. No branches, so that loops over
 * these become vectors; where there is an fma, in float32 alone. */
#if !defined(AGI_REAL64) && (defined(__FMA__) || defined(__ARM_FEATURE_FMA))
INLINE uint32_t round_to_odd(real from, double factor, uint32_t *odd)
{
    const float high = (float)factor, low = (float)(factor - (double)high);
    const float near = from * high,
                up = fabsf(near) < 0x1p-60f ? 0x1p60f : 1; /* else the rest may underflow */
    const float rest = fmaf(from * up, low, fmaf(from * up, high, -near * up));
    uint32_t bits, sign;
    memcpy(&bits, &near, sizeof bits);
    memcpy(&sign, &rest, sizeof sign);
    const uint32_t lost = rest != 0;
    *odd = (bits - (((bits ^ sign) >> 31) & lost)) | lost;
    return bits;
}
#else
INLINE uint32_t round_to_odd(real from, double factor, uint32_t *odd)
{
    const double x = factor * (double)from;
    const float near = (float)x;
    const double lost = fabs((double)near) - fabs(x);
    uint32_t bits;
    memcpy(&bits, &near, sizeof bits);
    *odd = (bits - (lost > 0)) | (lost != 0);
    return bits;
}
#endif

INLINE uint16_t to_bf16(real from, double factor)
{
    uint32_t odd;
    const uint32_t near = round_to_odd(from, factor, &odd);
    const uint32_t rounded = (odd + 0x7fff + (odd >> 16 & 1)) >> 16;
    return (uint16_t)((near & 0x7fffffff) > 0x7f800000 ? near >> 16 | 0x40 : rounded);
}

/* Beside normal numbers: subnormals have their last place where 0.5 has its own in float32. */
INLINE uint16_t to_f16(real from, double factor)
{
    uint32_t odd;
    const uint32_t near = round_to_odd(from, factor, &odd), size = odd & 0x7fffffff;
    const uint32_t normal = (size - (112u << 23) + 0xfff + (size >> 13 & 1)) >> 13;
    float small;
    uint32_t subnormal;
    memcpy(&small, &size, sizeof small);
    small += 0.5f;
    memcpy(&subnormal, &small, sizeof subnormal);
    subnormal -= 126u << 23;
    const uint32_t finite = size < 113u << 23 ? subnormal : normal;
    const uint32_t rounded = size >= 0x477ff000 ? 0x7c00 : finite; /* from 65520 on: infinity */
    return (uint16_t)((near >> 16 & 0x8000) | ((near & 0x7fffffff) > 0x7f800000 ? 0x7e00 : rounded));
}

static void get_bf16(real *to, const uint16_t *from, int64_t stride, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        to[i] = (real)agi_from_bits((uint32_t)from[i * stride] << 16);
    }
}

/* The product moves the exponent from float16's bias to float32's and makes subnormals right. */
static void get_f16(real *to, const uint16_t *from, int64_t stride, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        const uint32_t h = from[i * stride], special = (h & 0x7c00) == 0x7c00 ? 0x7f800000u : 0;
        const float size = agi_from_bits((h & 0x7fff) << 13) * 0x1p112f;
        to[i] = (real)agi_from_bits(agi_bits_of(size) | special | (h & 0x8000) << 16);
    }
}

static void put_bf16(uint16_t *to, const real *from, int64_t n, double factor)
{
    for (int64_t i = 0; i < n; i++) {
        to[i] = to_bf16(from[i], factor);
    }
}

static void put_f16(uint16_t *to, const real *from, int64_t n, double factor)
{
    for (int64_t i = 0; i < n; i++) {
        to[i] = to_f16(from[i], factor);
    }
}

INLINE double dot(const real *A, const real *B, int64_t n)
{
    eight part = {0};
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        eight a, b;
        v_eight(A + i, &a);
        v_eight(B + i, &b);
        part += a * b;
    }
    for (; i < n; i++) {
        part[0] += (double)A[i] * (double)B[i];
    }
    return ((part[0] + part[1]) + (part[2] + part[3])) + ((part[4] + part[5]) + (part[6] + part[7]));
}

static void dots(double *out, const real *A, int64_t lda, const real *B, int64_t ldb, int64_t rows, int64_t n)
{
    for (int64_t r = 0; r < rows; r++) {
        out[r] = dot(A + r * lda, B + r * ldb, n);
    }
}

/* Rows 0 .. n - 1 of a square, the others zero, as columns; the first D of those. */
INLINE void transpose_square(real *out, const real *rows, int64_t ld, int64_t n, int64_t D)
{
    vec a[LANES];
    UNROLL_STAGE for (int r = 0; r < LANES; r++)
    {
        a[r] = r < n ? v_load(rows + r * ld) : v_set1(0);
    }
    v_transpose(a);
    UNROLL_STAGE for (int r = 0; r < LANES; r++)
    {
        if (r < D) {
            v_store(out + r * PANEL, a[r]);
        }
    }
}

/* Fewer channels than a vector has. */
static void transpose_edge(real *out, const real *rows, int64_t ld, int64_t n, int64_t D)
{
    real edge[LANES * LANES] = {0};
    for (int64_t r = 0; r < n && r < LANES; r++) {
        memcpy(edge + r * LANES, rows + r * ld, (size_t)D * sizeof(real));
    }
    transpose_square(out, edge, LANES, n, D);
}

static void transpose(real *out, const real *rows, int64_t ld, int64_t n, int64_t D)
{
    for (int64_t i = 0; i < n; i += LANES) {
        int64_t c = 0;
        for (; c + LANES <= D && n - i >= LANES; c += LANES) {
            transpose_square(out + c * PANEL + i, rows + i * ld + c, ld, LANES, LANES);
        }
        for (; c + LANES <= D; c += LANES) {
            transpose_square(out + c * PANEL + i, rows + i * ld + c, ld, n - i, LANES);
        }
        if (c < D) {
            transpose_edge(out + c * PANEL + i, rows + i * ld + c, ld, n - i, D - c);
        }
    }
}

/* ---- Dropout ---- */

/* Four keys, g to g + 3, of W queries: word[key][query]. The lanes are independent: the compiler
 * makes vectors of them. */
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
                    uint32_t sequence, uint64_t seed, uint32_t threshold, real keep)
{
    uint32_t word[4][PANEL];
    for (int64_t j = 0; j < nj; j++) {
        const uint64_t g = (uint64_t)(g0 + j);
        if (j == 0 || (g & 3) == 0) {
            philox_lanes(word, W, (uint32_t)(g >> 2), (uint32_t)p0, head, sequence, seed);
        }
        for (int64_t i = 0; i < W; i++) {
            M[j * ld + i] = word[g & 3][i] < threshold ? 0 : keep;
        }
    }
}

#if defined(AGI_KERNELS_AVX512)
#define TABLE agi_kernels_avx512
#define TABLE_NAME "avx512"
#elif defined(AGI_KERNELS_AVX2)
#define TABLE agi_kernels_avx2
#define TABLE_NAME "avx2"
#elif defined(AGI_KERNELS_NEON)
#define TABLE agi_kernels_neon
#define TABLE_NAME "neon"
#else
#define TABLE agi_kernels_scalar
#define TABLE_NAME "scalar"
#endif

const agi_kernels TABLE = {
    .name = TABLE_NAME,
    .lanes = LANES,
    .product = product,
    .product_ahead = product_ahead,
    .few_scores = few_scores,
    .scores = scores,
    .hide = hide,
    .softmax = softmax,
    .softmax_tangent = softmax_tangent,
    .weights = weights,
    .score_tangents = score_tangents,
    .score_gradients = score_gradients,
    .score_gradient_tangents = score_gradient_tangents,
    .softcap_gradients = softcap_gradients,
    .multiply = multiply,
    .put = put,
    .expect = expect,
    .get_bf16 = get_bf16,
    .get_f16 = get_f16,
    .put_bf16 = put_bf16,
    .put_f16 = put_f16,
    .dots = dots,
    .transpose = transpose,
    .dropout = dropout,
};
