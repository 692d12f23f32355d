/* Part of amx_kernels.c: score tiles rounded to bfloat16, for both kinds of products, and zeroed outside the band. */
#include <immintrin.h>

#include "cpu/amx/kernels/amx_bf16.h"
#include "cpu/amx/kernels/amx_kernels.h"
#include "cpu/vec/kernels/kernels.h"

static void round_to_vnni(uint16_t *vnni, const float *T, int64_t W)
{
    for (int64_t i = 0; i < W; i += LANES) {
        for (int j = 0; j < GROUP_KEYS; j += 2) {
            const float *const t = T + j * PANEL + i;
            store_rounded_pair(vnni + i * GROUP_KEYS + j * LANES, v_load(t), v_load(t + PANEL));
        }
    }
}

static void round_weights(uint16_t *vnni, const float *T, int64_t W, float *excess)
{
    for (int64_t i = 0; i < W; i += LANES) {
        vec exact = v_set1(0), rounded = v_set1(0);
        for (int j = 0; j < GROUP_KEYS; j += 2) {
            const vec p = v_load(T + j * PANEL + i), q = v_load(T + (j + 1) * PANEL + i);
            const __m512i pair = rounded_pair(p, q);
            store_pair(vnni + i * 32 + j * 16, pair);
            exact = v_add(exact, v_add(p, q));
            rounded = add_pair(rounded, pair);
        }
        v_store(excess + i, v_add(v_load(excess + i), v_sub(rounded, exact)));
    }
}

/* Where key j of a group begins in its tiles of 16 keys. */
INLINE int64_t row_offset(int j, int64_t tile_stride)
{
    return j / AMX_ROWS * tile_stride + j % AMX_ROWS * AMX_DEPTH;
}

static void round_to_rows(uint16_t *rows, int64_t tile_stride, const float *T, int64_t W)
{
    for (int64_t i = 0; i < W; i += ROW_VECTORS * LANES) {
        for (int j = 0; j < GROUP_KEYS; j++) {
            const float *const t = T + j * PANEL + i;
            store_rounded_pair(rows + i * AMX_ROWS + row_offset(j, tile_stride), v_load(t),
                               v_load(t + LANES));
        }
    }
}

static void keep_rest(float *T, int64_t W)
{
    const __m512i upper = _mm512_set1_epi32((int)0xffff0000u);
    for (int j = 0; j < GROUP_KEYS; j++) {
        for (int64_t i = 0; i < W; i += LANES) {
            const vec x = v_load(T + j * PANEL + i);
            const vec rounded = _mm512_castsi512_ps(_mm512_and_si512(add_half(x), upper));
            v_store(T + j * PANEL + i, finite_or_zero(v_sub(x, rounded)));
        }
    }
}

/* Bit i, of 32: does query i see key j, low <= j - i <= high? */
INLINE uint32_t visible_queries(int64_t j, int64_t low, int64_t high)
{
    const int64_t from = j - high < 0 ? 0 : j - high > 32 ? 32 : j - high;
    const int64_t to = j - low < 0 ? 0 : j - low > 31 ? 32 : j - low + 1;
    return (uint32_t)((1ull << to) - 1) & ~(uint32_t)((1ull << from) - 1);
}

/* Of bits 0 .. 15: bit n of `even` goes to bit 2 n, bit n of `odd` to bit 2 n + 1. */
INLINE __mmask32 interleave_bits(uint32_t even, uint32_t odd)
{
    return _pdep_u32(even, 0x55555555u) | _pdep_u32(odd, 0xaaaaaaaau);
}

INLINE void zero_unless(uint16_t *p, __mmask32 kept)
{
    _mm512_storeu_si512(p, _mm512_maskz_loadu_epi16(kept, p));
}

static void mask_band_rows(uint16_t *rows, int64_t tile_stride, int64_t low, int64_t high)
{
    for (int j = 0; j < GROUP_KEYS; j++) {
        const uint32_t visible = visible_queries(j, low, high);
        zero_unless(rows + row_offset(j, tile_stride), interleave_bits(visible & 0xffff, visible >> 16));
    }
}

static void mask_band_vnni(uint16_t *vnni, int64_t low, int64_t high)
{
    for (int j = 0; j < GROUP_KEYS; j += 2) {
        const uint32_t even = visible_queries(j, low, high), odd = visible_queries(j + 1, low, high);
        zero_unless(vnni + j * 16, interleave_bits(even & 0xffff, odd & 0xffff));
        zero_unless(vnni + j * 16 + AMX_AB, interleave_bits(even >> 16, odd >> 16));
    }
}
