/* Part of kernels.c: storing, converting, multiplying and transposing rows. */
#include <math.h>
#include <string.h>

#include "core/arena.h"
#include "core/number.h"
#include "core/prefetch.h"
#include "cpu/vec/kernels/kernels.h"
#include "cpu/vec/kernels/vec.h"

/* ---- Rows: plain loops that the compiler vectorises ---- */

static void store_rows(real *to, int64_t ldt, const real *from, int64_t ldf, int64_t rows, int64_t n,
                       const double *factor, int64_t factor_stride, bool add)
{
    for (int64_t r = 0; r < rows; r++) {
        real *out = to + r * ldt;
        const real *in = from + r * ldf;
        const double f = factor[r * factor_stride];
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

static void prefetch_write(const real *first, int64_t ld, int64_t rows, int64_t n)
{
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t c = 0; c < n; c += AGI_CACHE_LINE / (int64_t)sizeof(real)) {
            agi_prefetch_write((uintptr_t)(first + r * ld + c));
        }
    }
}

/* Returns the bits of factor * from in float32, and in *odd the same rounded to odd: truncated, with the last
 * bit set if that was inexact. Rounding *odd to nearest with fewer digits gives the same result as
 * rounding once. No branches, so that loops over this are vectorised. With an fma, float32 suffices. */
#if !defined(AGI_REAL64) && (defined(__FMA__) || defined(__ARM_FEATURE_FMA))
INLINE uint32_t round_to_odd(real from, double factor, uint32_t *odd)
{
    const float high = (float)factor, low = (float)(factor - (double)high);
    const float near = from * high,
                scale = fabsf(near) < 0x1p-60f ? 0x1p60f : 1; /* else the rest may underflow */
    const float rest = fmaf(from * scale, low, fmaf(from * scale, high, -near * scale));
    uint32_t bits, rest_bits;
    memcpy(&bits, &near, sizeof bits);
    memcpy(&rest_bits, &rest, sizeof rest_bits);
    const uint32_t inexact = rest != 0;
    /* one less if rest points towards zero: near was rounded away from it */
    *odd = (bits - (((bits ^ rest_bits) >> 31) & inexact)) | inexact;
    return bits;
}
#else
INLINE uint32_t round_to_odd(real from, double factor, uint32_t *odd)
{
    const double x = factor * (double)from;
    const float near = (float)x;
    const double excess = fabs((double)near) - fabs(x);
    uint32_t bits;
    memcpy(&bits, &near, sizeof bits);
    *odd = (bits - (excess > 0)) | (excess != 0);
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

/* Subnormals are rounded by adding 0.5: the last bit of a float16 subnormal has the value of the last bit of 0.5 in
 * float32. 112 is the difference of the exponents' biases, 113 the exponent of the smallest normal float16. */
INLINE uint16_t to_f16(real from, double factor)
{
    uint32_t odd;
    const uint32_t near = round_to_odd(from, factor, &odd), magnitude = odd & 0x7fffffff;
    const uint32_t normal = (magnitude - (112u << 23) + 0xfff + (magnitude >> 13 & 1)) >> 13;
    float small;
    uint32_t subnormal;
    memcpy(&small, &magnitude, sizeof small);
    small += 0.5f;
    memcpy(&subnormal, &small, sizeof subnormal);
    subnormal -= 126u << 23;
    const uint32_t finite = magnitude < 113u << 23 ? subnormal : normal;
    const uint32_t rounded =
        magnitude >= 0x477ff000 ? 0x7c00 : finite; /* 65520 and above round to infinity */
    return (uint16_t)((near >> 16 & 0x8000) | ((near & 0x7fffffff) > 0x7f800000 ? 0x7e00 : rounded));
}

INLINE float from_bf16(uint32_t h)
{
    return agi_from_bits(h << 16);
}

/* The product with 2^112 changes the exponent's bias from float16's to float32's, for subnormals too. special: the
 * exponent of infinity and NaN. */
INLINE float from_f16(uint32_t h)
{
    const uint32_t special = (h & 0x7c00) == 0x7c00 ? 0x7f800000u : 0;
    const float magnitude = agi_from_bits((h & 0x7fff) << 13) * 0x1p112f;
    return agi_from_bits(agi_bits_of(magnitude) | special | (h & 0x8000) << 16);
}

static void load_bf16(real *to, const uint16_t *from, int64_t stride, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        to[i] = (real)from_bf16(from[i * stride]);
    }
}

static void load_f16(real *to, const uint16_t *from, int64_t stride, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        to[i] = (real)from_f16(from[i * stride]);
    }
}

static void store_bf16(uint16_t *to, const real *from, int64_t n, double factor)
{
    for (int64_t i = 0; i < n; i++) {
        to[i] = to_bf16(from[i], factor);
    }
}

static void store_f16(uint16_t *to, const real *from, int64_t n, double factor)
{
    for (int64_t i = 0; i < n; i++) {
        to[i] = to_f16(from[i], factor);
    }
}

/* What rounding took from factor * from; 0 if that or the rounded value is not finite. No branches, as above. */
INLINE real rest_of(real from, double factor, float rounded)
{
#if !defined(AGI_REAL64) && (defined(__FMA__) || defined(__ARM_FEATURE_FMA))
    const float high = (float)factor, low = (float)(factor - (double)high);
    const float rest = fmaf(from, low, fmaf(from, high, -rounded));
    return rest - rest == 0 ? rest : 0;
#else
    const double rest = factor * (double)from - (double)rounded;
    return rest - rest == 0 ? (real)rest : 0;
#endif
}

static void store_low_bf16(uint16_t *to, const real *from, int64_t n, double factor)
{
    for (int64_t i = 0; i < n; i++) {
        to[i] = to_bf16(rest_of(from[i], factor, from_bf16(to_bf16(from[i], factor))), 1);
    }
}

static void store_low_f16(uint16_t *to, const real *from, int64_t n, double factor)
{
    for (int64_t i = 0; i < n; i++) {
        to[i] = to_f16(rest_of(from[i], factor, from_f16(to_f16(from[i], factor))), 0x1p11);
    }
}

INLINE double dot(const real *A, const real *B, int64_t n)
{
    double8 part = {0};
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        double8 a, b;
        v_double8(A + i, &a);
        v_double8(B + i, &b);
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

/* log2 x = e + log2 m with x = 2^e m, m between the square roots of 1/2 and 2; with s = (m - 1) / (m + 1), log2 m is
 * 2 / ln 2 (s + s^3 / 3 + s^5 / 5 ...); s^2 <= 0.0295, so that ten terms are enough for float64. */
INLINE double log2_of(double x)
{
    const uint64_t root = 0x3fe6a09e667f3bcd;   /* the bits of sqrt(1/2) */
    const uint64_t bias = (uint64_t)1024 << 52; /* so that e is not negative */
    uint64_t bits, exponent;
    double m, e;
    memcpy(&bits, &x, sizeof bits);
    exponent = (bits - root + bias) >> 52; /* e + 1024 */
    bits = bits + bias - (exponent << 52);
    memcpy(&m, &bits, sizeof m);
    exponent |= (uint64_t)0x433 << 52; /* as a double: 2^52 + exponent */
    memcpy(&e, &exponent, sizeof e);
    const double s = (m - 1) / (m + 1), z = s * s;
    double p = 0.15186263588304877;
    p = p * z + 0.16972882833987804;
    p = p * z + 0.19235933878519512;
    p = p * z + 0.22195308321368667;
    p = p * z + 0.2623081892525388;
    p = p * z + 0.3205988979753252;
    p = p * z + 0.4121985831111324;
    p = p * z + 0.5770780163555853;
    p = p * z + 0.9617966939259756;
    p = p * z + 2.8853900817779268;
    const double y = (e - (0x1p52 + 1024)) + s * p;
    return y + (x < (double)INFINITY ? 0 : x); /* a conditional would not be vectorised */
}

static void log2_array(double *out, const double *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        out[i] = log2_of(x[i]);
    }
}

/* Transposes LANES x LANES elements: rows from n on are taken as zero, and the first D columns are stored. */
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

/* The same if fewer than LANES channels may be read. */
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
