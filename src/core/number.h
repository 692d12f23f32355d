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

static inline uint16_t agi_to_bf16(float x)
{
    const uint32_t bits = agi_bits_of(x), rounded = bits + 0x7fff + (bits >> 16 & 1);
    const uint32_t quiet = bits | 0x400000;
    return (uint16_t)(((bits & 0x7fffffff) > 0x7f800000 ? quiet : rounded) >> 16);
}

/* `small`: adding 1/2 rounds a subnormal result and leaves it in the low bits of the sum. `normal`: the
 * exponent is rebiased and the mantissa rounded; a carry into the exponent gives the right result. */
static inline uint16_t agi_to_f16(float x)
{
    const uint32_t bits = agi_bits_of(x), size = bits & 0x7fffffff;
    const uint32_t small = agi_bits_of(agi_from_bits(size) + 0.5f) - 0x3f000000;
    const uint32_t normal = (size - 0x38000000 + 0xfff + (size >> 13 & 1)) >> 13;
    const uint32_t large = size > 0x7f800000 ? 0x7e00 : 0x7c00;
    const uint32_t finite = size < 0x38800000 ? small : normal;
    return (uint16_t)((size < 0x477ff000 ? finite : large) | (bits >> 16 & 0x8000));
}

#endif
