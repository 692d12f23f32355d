/* Weights 2^x straight to bfloat16, in half the instructions of the polynomial, with a lookup table.
 *
 * Schraudolph's exp2: the bits of a floating-point number, read as an integer, are its logarithm, but for a
 * correction. A bfloat16 number with exponent field e and mantissa bits f is 2^(e - 127) (1 + f), f in [0, 1). So let
 *
 *     v = 256 (x + 127)     x + 127 in 8.8 fixed point: 8 bits of floor(x) + 127, 8 bits of f, the fraction of x
 *
 *           15 ...... 8  7 ...... 0                15   14 ...... 7  6 ..... 0
 *     v    [exponent   ][fraction  ]      v >> 1  [ 0 ][exponent   ][mantissa ]
 *
 * v >> 1, read as bfloat16, is 2^floor(x) (1 + f), but 2^floor(x) 2^f is wanted: (1 + f) - 2^f, from 0 to 0.0861, has
 * to be subtracted first. The table exp2_correction[] has it in units of v, 1/256, by the first 6 bits of f. It also
 * takes back what rounding v to 7 mantissa bits (add 1, shift by 1) adds on average, 1/2: an entry is the integer
 * that minimizes the mean square relative error over the four values of f that share it.
 *
 * Weights are within 0.6 percent, their errors larger by a sixth than those of rounding to bfloat16, and they are
 * 1.000155 times too small on average. x must be between -126 and 126, and the shift that is subtracted a multiple of
 * 1/256. */
#ifndef AGI_CPU_AMX_EXP2_LUT_H
#define AGI_CPU_AMX_EXP2_LUT_H

#include <immintrin.h>

#include "cpu/amx/kernels/amx_kernels.h"
#include "cpu/vec/kernels/kernels.h"
#include "cpu/vec/kernels/vec.h"

static const uint8_t exp2_correction[64] = {1,  2,  3,  4,  5,  6,  8,  8,  10, 10, 11, 12, 13, 14, 15, 16,
                                            16, 17, 18, 18, 19, 19, 20, 20, 21, 21, 21, 22, 22, 22, 22, 22,
                                            22, 23, 23, 23, 22, 22, 22, 22, 22, 21, 21, 21, 20, 20, 19, 19,
                                            18, 17, 17, 16, 15, 14, 13, 12, 11, 10, 9,  7,  6,  5,  3,  2};

/* Times this, a sum of these weights is on average the same as a sum of weights by exp2_to_truncate. */
#define LUT_SUM_SCALE ((float)(AMX_TRUNCATION_SCALE * 1.000155))

typedef struct {
    vec scale;          /* 256 c: x is c T - shift */
    __m512i correction; /* exp2_correction */
    __m512i to_upper;   /* shuffle of bytes: the lower half of each dword to its upper half */
    __m512i index_bits; /* multishift: of each 16 bits those from bit 2 on, whose lowest 6 are the index */
    __m512bh ones;
} exp2_lut;

INLINE exp2_lut exp2_lut_of(vec c)
{
    return (exp2_lut){
        .scale = v_mul(c, v_set1(256)),
        .correction = _mm512_loadu_si512(exp2_correction),
        .to_upper = _mm512_broadcast_i32x4(_mm_set_epi8(13, 12, 0, 0, 9, 8, 0, 0, 5, 4, 0, 0, 1, 0, 0, 0)),
        .index_bits = _mm512_set1_epi64(0x0032002200120002),
        .ones = (__m512bh)_mm512_set1_epi16(0x3f80),
    };
}

/* What 256 c T is added to: the sum is 1.5 2^23 + v + 1, and so the lower 16 bits of its float are v + 1. */
INLINE vec lut_offset(vec shift)
{
    return v_fma(shift, v_set1(-256), v_set1(0x1.8p23f + 127 * 256 + 1));
}

/* Two keys of one vector of lanes, T and the row after it: stores their weights in VNNI, returns sum + both. Shifts
 * would do what to_upper and index_bits do, but only one port can shift. */
INLINE vec weights_by_lut(uint16_t *vnni, const float *T, const exp2_lut *lut, vec offset, vec sum)
{
    const __m512i a = _mm512_castps_si512(v_fma(v_load(T), lut->scale, offset));
    const __m512i b = _mm512_castps_si512(v_fma(v_load(T + PANEL), lut->scale, offset));
    const __m512i v = _mm512_mask_shuffle_epi8(a, 0xccccccccccccccccu, b, lut->to_upper);
    const __m512i index = _mm512_multishift_epi64_epi8(lut->index_bits, v);
    const __m512i correction = _mm512_maskz_permutexvar_epi8(0x5555555555555555u, index,
                                                             lut->correction); /* uses 6 bits of each index */
    const __m512i p = _mm512_srli_epi16(_mm512_sub_epi16(v, correction), 1);
    _mm512_storeu_si512(vnni, p);
    return _mm512_dpbf16_ps(sum, (__m512bh)p, lut->ones);
}

/* Is x inside the table's range for 32 lanes, given an upper bound norms[lane] * max_score_per_norm of |c T|? */
INLINE bool lut_in_range(const float *norms, float max_score_per_norm, const vec shift[2])
{
    vmask within = 0xffff;
    UNROLL for (int v = 0; v < 2; v++)
    {
        const vec largest =
            v_fma(v_load(norms + v * LANES), v_set1(max_score_per_norm), _mm512_abs_ps(shift[v]));
        within &= v_less(largest, v_set1(125));
    }
    return within == 0xffff;
}

#endif
