/* What is done to score tiles on their way to bfloat16: a part of amx_kernels.c. */
#ifndef AGI_CPU_AMX_STAGES_H
#define AGI_CPU_AMX_STAGES_H

#include <immintrin.h>
#include <math.h>

#include "cpu/amx/kernels/amx_kernels.h"
#include "cpu/vec/kernels/kernels.h"
#include "cpu/vec/kernels/vec.h"

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

#endif
