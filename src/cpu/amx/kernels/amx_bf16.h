/* From float32 vectors to bfloat16, two at a time: a and b become the lower and the upper half of each dword. */
#ifndef AGI_CPU_AMX_BF16_H
#define AGI_CPU_AMX_BF16_H

#include <float.h>
#include <immintrin.h>

#include "cpu/amx/kernels/amx_kernels.h"
#include "cpu/vec/kernels/vec.h"

/* The 32 queries of a tile's row: two vectors. Stages take both at once, so that a row in split16 order is stored
 * whole and two chains of dependent instructions overlap. */
enum { ROW_VECTORS = 2 };

/* Half of bfloat16's last place is added before the lower bits are dropped: rounded to nearest. A tie, a number whose
 * lower 16 bits are 0x8000, goes away from zero. */
INLINE __m512i add_half(vec x)
{
    return _mm512_add_epi32(_mm512_castps_si512(x), _mm512_set1_epi32(0x8000));
}

INLINE __m512i rounded_pair(vec a, vec b)
{
    return _mm512_mask_blend_epi16(0xaaaaaaaau, _mm512_srli_epi32(add_half(a), 16), add_half(b));
}

/* The same with one instruction less, but one that has a single port: faster if others leave that port free. */
INLINE __m512i rounded_pair_by_shuffle(vec a, vec b)
{
    /* Bytes 2 and 3 of each dword to bytes 0 and 1. */
    const __m512i to_lower =
        _mm512_broadcast_i32x4(_mm_set_epi8(0, 0, 15, 14, 0, 0, 11, 10, 0, 0, 7, 6, 0, 0, 3, 2));
    return _mm512_mask_shuffle_epi8(add_half(b), 0x3333333333333333u, add_half(a), to_lower);
}

INLINE vec finite_or_zero(vec x)
{
    const __mmask16 finite = _mm512_cmp_ps_mask(_mm512_abs_ps(x), v_set1(FLT_MAX), _CMP_LE_OQ);
    return _mm512_maskz_mov_ps(finite, x);
}

INLINE void store_pair(uint16_t *to, __m512i pair)
{
    _mm512_storeu_si512(to, pair);
}

INLINE void store_rounded_pair(uint16_t *to, vec a, vec b)
{
    store_pair(to, rounded_pair(a, b));
}

/* sum + the lower and the upper half of each dword of the pair: what was rounded, exactly. */
INLINE vec add_pair(vec sum, __m512i pair)
{
    return _mm512_dpbf16_ps(sum, (__m512bh)pair, (__m512bh)_mm512_set1_epi16(0x3f80));
}

/* 2^x, with a relative error of 7.5e-5: a polynomial of degree 3, enough for what becomes bfloat16. */
INLINE vec exp2_for_bf16(vec x)
{
    const vec f = v_fraction(x);
    vec p = v_set1(0.078024522640478933f);
    p = v_fma(p, f, v_set1(0.2260671554274834f));
    p = v_fma(p, f, v_set1(0.6958335404947531f));
    p = v_fma(p, f, v_set1(0.99992521856271543f));
    return v_scale2(p, x);
}

#endif
