/* Conversion between float64 and the other formats. A 16-bit format is described by the widths of its
 * exponent and mantissa, and one pair of functions handles both: sign | exponent | mantissa.
 *
 *     float16    1 |  5 | 10        bfloat16   1 |  8 |  7
 */
#include "core/number.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "core/status.h"

typedef struct {
    int exponent, mantissa; /* widths in bits */
} format16;

static const format16 float16 = {5, 10};
static const format16 bfloat16 = {8, 7};

static uint64_t bits_of(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static double from_bits(uint64_t bits)
{
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* significand / 2^shift, rounded to nearest, ties to even. */
static uint64_t shift_right_even(uint64_t significand, int shift)
{
    if (shift > 54) {
        return 0; /* a significand has 53 bits: this is less than a half */
    }
    const uint64_t quotient = significand >> shift;
    const uint64_t rest = significand & ((UINT64_C(1) << shift) - 1);
    const uint64_t half = UINT64_C(1) << (shift - 1);
    return quotient + (rest > half || (rest == half && (quotient & 1)));
}

static uint16_t encode(format16 f, double x)
{
    const uint64_t bits = bits_of(x);
    const uint64_t sign = (bits >> 63) << 15;
    const uint64_t fraction = bits & ((UINT64_C(1) << 52) - 1);
    const int biased = (int)(bits >> 52 & 0x7ff);
    const uint64_t infinity = ((UINT64_C(1) << f.exponent) - 1) << f.mantissa;
    if (biased == 0x7ff) {
        const uint64_t quiet = UINT64_C(1) << (f.mantissa - 1);
        return (uint16_t)(sign | infinity | (fraction ? quiet | fraction >> (52 - f.mantissa) : 0));
    }
    if (biased == 0) {
        return (uint16_t)sign; /* far below half of the smallest 16-bit number */
    }
    const int bias = (1 << (f.exponent - 1)) - 1;
    const int exponent = biased - 1023;
    const int below = 1 - bias - exponent; /* > 0: the result is subnormal, shifted right by this much more */
    const int shift = 52 - f.mantissa + (below > 0 ? below : 0);
    const uint64_t rounded = shift_right_even(fraction | UINT64_C(1) << 52, shift);
    /* A normal result's leading one, or a carry out of the mantissa, adds 1 to the exponent field. */
    const uint64_t base = below > 0 ? 0 : (uint64_t)(exponent + bias - 1) << f.mantissa;
    const uint64_t magnitude = base + rounded;
    return (uint16_t)(sign | (magnitude < infinity ? magnitude : infinity));
}

static double decode(format16 f, uint16_t h)
{
    const uint64_t sign = (uint64_t)(h >> 15) << 63;
    const uint64_t fraction = h & ((UINT64_C(1) << f.mantissa) - 1);
    const int max_biased = (1 << f.exponent) - 1; /* of infinity and NaN */
    const int biased = h >> f.mantissa & max_biased;
    const int bias = (1 << (f.exponent - 1)) - 1;
    if (biased == max_biased) {
        return from_bits(sign | UINT64_C(0x7ff) << 52 | fraction << (52 - f.mantissa));
    }
    if (biased == 0) {
        const double unit = from_bits((uint64_t)(1023 + 1 - bias - f.mantissa) << 52);
        return from_bits(sign | bits_of((double)fraction * unit));
    }
    return from_bits(sign | (uint64_t)(biased - bias + 1023) << 52 | fraction << (52 - f.mantissa));
}

double agi_load(ag_dtype dtype, const void *data, int64_t index)
{
    switch (dtype) {
    case AG_F64: return ((const double *)data)[index];
    case AG_F32: return (double)((const float *)data)[index];
    case AG_F16: return decode(float16, ((const uint16_t *)data)[index]);
    default: return decode(bfloat16, ((const uint16_t *)data)[index]);
    }
}

void agi_store(ag_dtype dtype, void *data, int64_t index, double x)
{
    switch (dtype) {
    case AG_F64: ((double *)data)[index] = x; break;
    case AG_F32: ((float *)data)[index] = (float)x; break;
    case AG_F16: ((uint16_t *)data)[index] = encode(float16, x); break;
    default: ((uint16_t *)data)[index] = encode(bfloat16, x); break;
    }
}

double agi_round(ag_dtype dtype, double x)
{
    switch (dtype) {
    case AG_F64: return x;
    case AG_F32: return (double)(float)x;
    case AG_F16: return decode(float16, encode(float16, x));
    default: return decode(bfloat16, encode(bfloat16, x));
    }
}

double agi_low_half(ag_dtype dtype, double x)
{
    const double rest = x - agi_round(dtype, x);
    return isfinite(rest) ? rest * agi_low_scale(dtype) : 0;
}

size_t ag_dtype_size(ag_dtype dtype)
{
    static const size_t sizes[] = {0, 8, 4, 2, 2};
    return dtype >= AG_F64 && dtype <= AG_BF16 ? sizes[dtype] : 0;
}

const char *ag_dtype_name(ag_dtype dtype)
{
    static const char *const names[] = {"?", "f64", "f32", "f16", "bf16"};
    return dtype >= AG_F64 && dtype <= AG_BF16 ? names[dtype] : "?";
}

static int is_reserved(ag_dtype dtype)
{
    return dtype == AG_F8_E4M3 || dtype == AG_F8_E5M2;
}

/* Copies, or converts from float32 to a 16-bit format or from bfloat16 to float32, without going through float64.
 * Returns false for other pairs of dtypes. */
static bool convert_directly(void *dst, ag_dtype dst_dtype, const void *src, ag_dtype src_dtype, int64_t n)
{
    const bool narrow = src_dtype == AG_F32 && (dst_dtype == AG_BF16 || dst_dtype == AG_F16);
    const bool widen = src_dtype == AG_BF16 && dst_dtype == AG_F32, same = src_dtype == dst_dtype;
    if (same && n > 0) {
        memmove(dst, src, (size_t)n * ag_dtype_size(src_dtype));
    }
    for (int64_t i = 0; i < n && narrow && dst_dtype == AG_BF16; i++) {
        ((uint16_t *)dst)[i] = agi_to_bf16(((const float *)src)[i]);
    }
    for (int64_t i = 0; i < n && narrow && dst_dtype == AG_F16; i++) {
        ((uint16_t *)dst)[i] = agi_to_f16(((const float *)src)[i]);
    }
    for (int64_t i = 0; i < n && widen; i++) {
        ((float *)dst)[i] = agi_from_bits((uint32_t)((const uint16_t *)src)[i] << 16);
    }
    return narrow || widen || same;
}

ag_status ag_convert(void *dst, ag_dtype dst_dtype, const void *src, ag_dtype src_dtype, int64_t n)
{
    if (ag_dtype_size(dst_dtype) == 0 || ag_dtype_size(src_dtype) == 0) {
        return agi_fail_field(is_reserved(dst_dtype) || is_reserved(src_dtype) ? AG_UNSUPPORTED
                                                                               : AG_INVALID_ARGUMENT,
                              ag_dtype_size(dst_dtype) == 0 ? "dst_dtype" : "src_dtype",
                              "no such dtype: dst_dtype %d, src_dtype %d", (int)dst_dtype, (int)src_dtype);
    }
    if (n < 0 || (n > 0 && (dst == NULL || src == NULL))) {
        return agi_fail_field(AG_INVALID_ARGUMENT,
                              n < 0         ? "n"
                              : dst == NULL ? "dst"
                                            : "src",
                              "n is %lld, dst %p, src %p", (long long)n, dst, src);
    }
    if (!convert_directly(dst, dst_dtype, src, src_dtype, n)) {
        for (int64_t i = 0; i < n; i++) {
            agi_store(dst_dtype, dst, i, agi_load(src_dtype, src, i));
        }
    }
    return AG_OK;
}
