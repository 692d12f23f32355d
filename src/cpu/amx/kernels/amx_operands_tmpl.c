/* Part of amx_kernels.c: tiles of operands from rows in memory, in the ways that amx_kernels.h explains. */
#include <immintrin.h>

#include "cpu/amx/kernels/amx_kernels.h"
#include "cpu/amx/kernels/amx_transpose.h"
#include "cpu/vec/kernels/vec.h"

static void round_row(uint16_t *to, const float *from, int64_t n)
{
    for (int64_t c = 0; c < n; c += AMX_DEPTH) {
        const __mmask32 inside = n - c < AMX_DEPTH ? (1u << (n - c)) - 1 : 0xffffffffu;
        const vec low = _mm512_maskz_loadu_ps((__mmask16)inside, from + c);
        const vec high = _mm512_maskz_loadu_ps((__mmask16)(inside >> LANES), from + c + LANES);
        _mm512_mask_storeu_epi16(to + c, inside, (__m512i)_mm512_cvtne2ps_pbh(high, low));
    }
}

static void transpose_to_vnni(uint16_t *tile, const uint16_t *rows, int64_t ld)
{
    UNROLL for (int q = 0; q < 4; q++)
    {
        __m512i column[4];
        load_columns(column, rows, 2 * ld, q);
        UNROLL for (int c = 0; c < 4; c++)
        {
            _mm512_storeu_si512(tile + (4 * q + c) * AMX_DEPTH, column[c]);
        }
    }
}

/* 16 elements of one row and 16 of another one, interleaved. */
INLINE vec interleave_rows(const uint16_t *first, const uint16_t *second)
{
    const __m512i low = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i_u *)(const void *)first));
    const __m512i high = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i_u *)(const void *)second));
    return _mm512_castsi512_ps(_mm512_or_si512(low, _mm512_slli_epi32(high, 16)));
}

static void vnni_pairs_split16(uint16_t *tile, const uint16_t *rows, int64_t ld)
{
    UNROLL for (int r = 0; r < AMX_ROWS; r++)
    {
        v_store((float *)(void *)(tile + AMX_DEPTH * r),
                interleave_rows(rows + r * ld, rows + (r + AMX_ROWS) * ld));
    }
}

/* Eight columns of 32 rows: four transposes of 8 x 8 elements, one in each 128 bits. */
INLINE void transpose_half(uint16_t *tile, const uint16_t *rows, int64_t ld)
{
    __m512i a[8], b[8];
    UNROLL for (int r = 0; r < 8; r++)
    {
        a[r] = load_quads(rows + r * ld, 16 * ld); /* rows r, r + 8, r + 16, r + 24: 8 rows are 16 ld bytes */
    }
    UNROLL for (int r = 0; r < 8; r += 2)
    {
        b[r] = _mm512_unpacklo_epi16(a[r], a[r + 1]);
        b[r + 1] = _mm512_unpackhi_epi16(a[r], a[r + 1]);
    }
    UNROLL for (int r = 0; r < 8; r += 4)
    {
        UNROLL for (int h = 0; h < 2; h++)
        {
            a[r + 2 * h] = _mm512_unpacklo_epi32(b[r + h], b[r + h + 2]);
            a[r + 2 * h + 1] = _mm512_unpackhi_epi32(b[r + h], b[r + h + 2]);
        }
    }
    UNROLL for (int r = 0; r < 4; r++)
    {
        _mm512_storeu_si512(tile + 2 * r * AMX_DEPTH, _mm512_unpacklo_epi64(a[r], a[r + 4]));
        _mm512_storeu_si512(tile + (2 * r + 1) * AMX_DEPTH, _mm512_unpackhi_epi64(a[r], a[r + 4]));
    }
}

static void transpose_tile(uint16_t *tile, const uint16_t *rows, int64_t ld)
{
    transpose_half(tile, rows, ld);
    transpose_half(tile + 8 * AMX_DEPTH, rows + 8, ld);
}

static void zero_masked_keys(uint16_t *to, const uint16_t *from, int64_t tiles, const uint8_t *keep)
{
    const __m256i bytes = _mm256_loadu_si256((const __m256i_u *)(const void *)keep);
    const __mmask32 kept = _mm256_test_epi8_mask(bytes, bytes);
    for (int64_t at = 0; at < tiles * AMX_AB; at += AMX_DEPTH) {
        _mm512_storeu_si512(to + at, _mm512_maskz_loadu_epi16(kept, from + at));
    }
}
