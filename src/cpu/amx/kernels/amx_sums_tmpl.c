/* Part of amx_kernels.c: the sums of products, tiles of C in float32, back to rows in memory. */
#include <immintrin.h>

#include "cpu/amx/kernels/amx_bf16.h"
#include "cpu/amx/kernels/amx_kernels.h"
#include "cpu/amx/kernels/amx_transpose.h"
#include "cpu/vec/kernels/vec.h"

static void transpose_sums(float *to, int64_t ld, const float *sums, int64_t col_stride, int64_t m, int64_t n)
{
    for (int64_t j = 0; j < n; j += LANES) {
        for (int64_t i = 0; i < m; i += LANES) {
            UNROLL for (int q = 0; q < 4; q++)
            {
                __m512i column[4];
                load_columns(column, sums + j * col_stride + i * LANES, 64, q);
                UNROLL for (int c = 0; c < 4; c++)
                {
                    v_store(to + (j + 4 * q + c) * ld + i, _mm512_castsi512_ps(column[c]));
                }
            }
        }
    }
}

/* What rounding took from x; 0 if x or the rounded x is not finite. */
INLINE vec rest_of(vec x, __m256i rounded)
{
    const __m512i bits = _mm512_slli_epi32(_mm512_cvtepu16_epi32(rounded), 16);
    return finite_or_zero(v_sub(x, _mm512_castsi512_ps(bits)));
}

/* Two vectors in bfloat16, a before b; if low, their low halves. */
INLINE __m512i round_pair(vec a, vec b, const bool low)
{
    const __m512i rounded = (__m512i)_mm512_cvtne2ps_pbh(b, a);
    if (!low) {
        return rounded;
    }
    return (__m512i)_mm512_cvtne2ps_pbh(rest_of(b, _mm512_extracti64x4_epi64(rounded, 1)),
                                        rest_of(a, _mm512_castsi512_si256(rounded)));
}

/* 16 columns and at most 32 rows of C: in bfloat16, rows 2 r and 2 r + 1 become one row of dwords, which are
 * transposed. */
INLINE void store_transposed_block(uint16_t *to, int64_t ld, const float *sums, const float *factor,
                                   int64_t m, int64_t n, const bool low)
{
    const __mmask32 stored = m < 32 ? (1u << m) - 1 : 0xffffffffu;
    const __m512i interleaved = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8,
                                                 23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    const vec f = _mm512_maskz_loadu_ps((__mmask16)(n < LANES ? (1u << n) - 1 : 0xffffu), factor);
    uint16_t vnni[AMX_AB] __attribute__((aligned(64)));
    UNROLL for (int r = 0; r < AMX_ROWS; r++)
    {
        const float *const row = sums + 2 * r * LANES;
        const __m512i both = round_pair(v_mul(v_load(row), f), v_mul(v_load(row + LANES), f), low);
        _mm512_store_si512(vnni + r * AMX_DEPTH, _mm512_permutexvar_epi16(interleaved, both));
    }
    UNROLL for (int q = 0; q < 4; q++)
    {
        __m512i column[4];
        load_columns(column, vnni, 64, q);
        UNROLL for (int c = 0; c < 4; c++)
        {
            if (4 * q + c < n) {
                _mm512_mask_storeu_epi16(to + (4 * q + c) * ld, stored, column[c]);
            }
        }
    }
}

INLINE void store_transposed_halves(uint16_t *to, int64_t ld, const float *sums, int64_t col_stride,
                                    const float *factor, int64_t m, int64_t n, const bool low)
{
    for (int64_t j = 0; j < n; j += LANES) {
        for (int64_t i = 0; i < m; i += AMX_DEPTH) {
            store_transposed_block(to + j * ld + i, ld, sums + j * col_stride + i * LANES, factor + j, m - i,
                                   n - j, low);
        }
    }
}

static void store_transposed(uint16_t *to, int64_t ld, const float *sums, int64_t col_stride,
                             const float *factor, int64_t m, int64_t n)
{
    store_transposed_halves(to, ld, sums, col_stride, factor, m, n, false);
}

static void store_transposed_low(uint16_t *to, int64_t ld, const float *sums, int64_t col_stride,
                                 const float *factor, int64_t m, int64_t n)
{
    store_transposed_halves(to, ld, sums, col_stride, factor, m, n, true);
}

static void store_rows(uint16_t *to, int64_t ld, const float *sums, float factor, int64_t m, int64_t n)
{
    const vec f = v_set1(factor);
    for (int64_t c = 0; c < n; c += AMX_DEPTH) {
        const __mmask32 stored = n - c < AMX_DEPTH ? (1u << (n - c)) - 1 : 0xffffffffu;
        const __mmask16 second = n - c > LANES ? 0xffff : 0;
        for (int64_t r = 0; r < m; r++) {
            const float *const row = sums + c * AMX_ROWS + r * LANES;
            const vec high = _mm512_maskz_loadu_ps(second, row + AMX_C);
            const __m512bh both = _mm512_cvtne2ps_pbh(v_mul(high, f), v_mul(v_load(row), f));
            _mm512_mask_storeu_epi16(to + r * ld + c, stored, (__m512i)both);
        }
    }
}
