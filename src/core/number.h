/* Number formats: float64, float32, float16 and bfloat16 in memory. Single values are passed as float64. */
#ifndef AGI_NUMBER_H
#define AGI_NUMBER_H

#include <string.h>

#include "attngrad.h"

/* Returns element `index` of an array of that dtype. */
double agi_load(ag_dtype dtype, const void *data, int64_t index);

/* Stores x, rounded once, to nearest, ties to even: overflow gives infinity, small numbers become subnormal,
 * NaN stays NaN. */
void agi_store(ag_dtype dtype, void *data, int64_t index, double x);

/* Returns the value that x has after a store and a load. */
double agi_round(ag_dtype dtype, double x);

/* The low half of x: what rounding to the 16-bit dtype takes from x, times agi_low_scale, so that float16's are not
 * subnormal; 0 if x or the rounded x is not finite. It is not rounded itself. */
double agi_low_half(ag_dtype dtype, double x);
static inline double agi_low_scale(ag_dtype dtype)
{
    return dtype == AG_F16 ? 0x1p11 : 1;
}

/* Conversions from float32 with the same rounding, but without branches, so that compilers vectorise loops
 * over them. */
static inline uint32_t agi_bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline float agi_from_bits(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* A NaN is made quiet instead of rounded, which could make it an infinity or a zero. */
static inline uint16_t agi_to_bf16(float x)
{
    const uint32_t bits = agi_bits_of(x), rounded = bits + 0x7fff + (bits >> 16 & 1);
    const uint32_t quiet = bits | 0x400000;
    return (uint16_t)(((bits & 0x7fffffff) > 0x7f800000 ? quiet : rounded) >> 16);
}

/* `subnormal`, below 2^-14 (0x38800000): the sum with 1/2 has an ulp of 2^-24, the unit of float16's subnormals, so
 * the addition rounds x and leaves the result in the low bits. `normal`: the exponent is rebiased and the mantissa
 * rounded; a carry into the exponent gives the right result. From 65520 (0x477ff000) on, values round to infinity. */
static inline uint16_t agi_to_f16(float x)
{
    const uint32_t bits = agi_bits_of(x), magnitude = bits & 0x7fffffff;
    const uint32_t subnormal = agi_bits_of(agi_from_bits(magnitude) + 0.5f) - 0x3f000000;
    const uint32_t normal = (magnitude - 0x38000000 + 0xfff + (magnitude >> 13 & 1)) >> 13;
    const uint32_t infinity_or_nan = magnitude > 0x7f800000 ? 0x7e00 : 0x7c00;
    const uint32_t finite = magnitude < 0x38800000 ? subnormal : normal;
    return (uint16_t)((magnitude < 0x477ff000 ? finite : infinity_or_nan) | (bits >> 16 & 0x8000));
}

#endif
