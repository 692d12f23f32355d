/* Rounding of rows: see matmul_round.h. Loops without branches, so that they become vectors. */
#include "matmul_round.h"

#include <string.h>

#ifndef AGI_REAL64
static uint32_t bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static float from_bits(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static uint16_t to_bf16(float x)
{
    const uint32_t bits = bits_of(x), rounded = bits + 0x7fff + (bits >> 16 & 1);
    const uint32_t quiet = bits | 0x400000;
    return (uint16_t)(((bits & 0x7fffffff) > 0x7f800000 ? quiet : rounded) >> 16);
}

/* Where the result is subnormal, adding 1/2 leaves it in the last bits, rounded; else the exponent's bias is
 * changed and the carry of the rounding may go into it. */
static uint16_t to_f16(float x)
{
    const uint32_t bits = bits_of(x), size = bits & 0x7fffffff;
    const uint32_t small = bits_of(from_bits(size) + 0.5f) - 0x3f000000;
    const uint32_t normal = (size - 0x38000000 + 0xfff + (size >> 13 & 1)) >> 13;
    const uint32_t large = size > 0x7f800000 ? 0x7e00 : 0x7c00;
    const uint32_t finite = size < 0x38800000 ? small : normal;
    return (uint16_t)((size < 0x477ff000 ? finite : large) | (bits >> 16 & 0x8000));
}
#endif

/* In float64, so that there is one rounding. */
static void add_row(ag_dtype dtype, void *c, int64_t first, const real *sum, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        agi_store(dtype, c, first + i, agi_load(dtype, c, first + i) + (double)sum[i]);
    }
}

void agi_round_row(ag_dtype dtype, void *c, int64_t first, const real *sum, int64_t n, bool add)
{
    if (dtype == REAL_DTYPE) { /* one rounding too */
        real *to = (real *)c + first;
        for (int64_t i = 0; i < n; i++) {
            to[i] = add ? to[i] + sum[i] : sum[i];
        }
        return;
    }
    if (add) {
        add_row(dtype, c, first, sum, n);
        return;
    }
#ifndef AGI_REAL64
    uint16_t *to = (uint16_t *)c + first;
    for (int64_t i = 0; i < n && dtype == AG_BF16; i++) {
        to[i] = to_bf16(sum[i]);
    }
    for (int64_t i = 0; i < n && dtype == AG_F16; i++) {
        to[i] = to_f16(sum[i]);
    }
#endif
}
