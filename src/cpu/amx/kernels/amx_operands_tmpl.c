/* Operands from rows, rows from sums, and what is to be known of rows: a part of amx_kernels.c. */
#ifndef AGI_CPU_AMX_OPERANDS_H
#define AGI_CPU_AMX_OPERANDS_H

#include <immintrin.h>
#include <math.h>

#include "cpu/amx/kernels/amx_kernels.h"
#include "cpu/vec/kernels/vec.h"

/* Four times 128 bits, at p and 1, 2, 3 steps behind it: from memory, so that only what is left to do inside of
 * lanes takes the one port that can shuffle. */
INLINE __m512i load_quads(const void *p, int64_t step)
{
    const char *const at = p;
    const __m128i_u *const second = (const void *)(at + step), *const third = (const void *)(at + 2 * step),
                           *const fourth = (const void *)(at + 3 * step);
    __m512i q = _mm512_castsi128_si512(_mm_loadu_si128(p));
    q = _mm512_inserti32x4(q, _mm_loadu_si128(second), 1);
    q = _mm512_inserti32x4(q, _mm_loadu_si128(third), 2);
    return _mm512_inserti32x4(q, _mm_loadu_si128(fourth), 3);
}

/* 16 rows of 16 dwords, ld bytes apart: columns 4 q .. 4 q + 3. */
INLINE void load_columns(__m512i column[4], const void *rows, int64_t ld, int q)
{
    const char *const p = (const char *)rows + 16 * q;
    __m512i a[4], b[4];
    UNROLL for (int r = 0; r < 4; r++)
    {
        a[r] = load_quads(p + r * ld, 4 * ld);
    }
    UNROLL for (int r = 0; r < 4; r += 2)
    {
        b[r] = _mm512_unpacklo_epi32(a[r], a[r + 1]);
        b[r + 1] = _mm512_unpackhi_epi32(a[r], a[r + 1]);
    }
    UNROLL for (int r = 0; r < 2; r++)
    {
        column[2 * r] = _mm512_unpacklo_epi64(b[r], b[r + 2]);
        column[2 * r + 1] = _mm512_unpackhi_epi64(b[r], b[r + 2]);
    }
}

static void columns(uint16_t *tile, const uint16_t *rows, int64_t ld)
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

/* 16 numbers of one row and 16 of another, in turn. */
INLINE vec zip_rows(const uint16_t *first, const uint16_t *second)
{
    const __m512i low = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i_u *)(const void *)first));
    const __m512i high = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i_u *)(const void *)second));
    return _mm512_castsi512_ps(_mm512_or_si512(low, _mm512_slli_epi32(high, 16)));
}

static void far_pairs(uint16_t *tile, const uint16_t *rows, int64_t ld)
{
    UNROLL for (int r = 0; r < AMX_ROWS; r++)
    {
        v_store((float *)(void *)(tile + AMX_DEPTH * r), zip_rows(rows + r * ld, rows + (r + AMX_ROWS) * ld));
    }
}

/* Eight columns of 32 rows: 8 by 8 numbers in each lane. */
INLINE void turn_half(uint16_t *tile, const uint16_t *rows, int64_t ld)
{
    __m512i a[8], b[8];
    UNROLL for (int r = 0; r < 8; r++)
    {
        a[r] = load_quads(rows + r * ld, 16 * ld);
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

static void turned(uint16_t *tile, const uint16_t *rows, int64_t ld)
{
    turn_half(tile, rows, ld);
    turn_half(tile + 8 * AMX_DEPTH, rows + 8, ld);
}

static void clean(uint16_t *to, const uint16_t *from, int64_t tiles, const uint8_t *keep)
{
    const __m256i bytes = _mm256_loadu_si256((const __m256i_u *)(const void *)keep);
    const __mmask32 kept = _mm256_test_epi8_mask(bytes, bytes);
    for (int64_t at = 0; at < tiles * AMX_AB; at += AMX_DEPTH) {
        _mm512_storeu_si512(to + at, _mm512_maskz_loadu_epi16(kept, from + at));
    }
}

static void column_norms(float *norms, const uint16_t *tiles, int64_t n)
{
    vec sum = v_set1(0);
    for (int64_t row = 0; row < n * AMX_ROWS; row++) {
        const __m512bh pairs = (__m512bh)_mm512_loadu_si512(tiles + row * AMX_DEPTH);
        sum = _mm512_dpbf16_ps(sum, pairs, pairs);
    }
    v_store(norms, _mm512_sqrt_ps(sum));
}

/* The largest sums of each lane, of whatever row, are together no less than those of any one row. */
static float largest_norm(const uint16_t *rows, int64_t ld, int64_t n, int64_t width)
{
    __m512i largest = _mm512_setzero_si512(); /* as integers, where NaN is larger than any number */
    for (int64_t r = 0; r < n; r++) {
        vec sum = v_set1(0);
        for (int64_t c = 0; c < width; c += AMX_DEPTH) {
            const __m512bh pairs = (__m512bh)_mm512_loadu_si512(rows + r * ld + c);
            sum = _mm512_dpbf16_ps(sum, pairs, pairs);
        }
        largest = _mm512_max_epu32(largest, _mm512_castps_si512(sum));
    }
    return sqrtf(_mm512_reduce_add_ps(_mm512_castsi512_ps(largest)));
}

static void turn(float *to, int64_t ld, const float *sums, int64_t tall, int64_t m, int64_t n)
{
    for (int64_t j = 0; j < n; j += LANES) {
        for (int64_t i = 0; i < m; i += LANES) {
            UNROLL for (int q = 0; q < 4; q++)
            {
                __m512i column[4];
                load_columns(column, sums + j * tall + i * LANES, 64, q);
                UNROLL for (int c = 0; c < 4; c++)
                {
                    v_store(to + (j + 4 * q + c) * ld + i, _mm512_castsi512_ps(column[c]));
                }
            }
        }
    }
}

/* Of 16 lanes and at most 32 channels: pairs of channels are dwords, which a tile's columns are made of. */
INLINE void put_turned_block(uint16_t *to, int64_t ld, const float *sums, const float *factor, int64_t m,
                             int64_t n)
{
    const __mmask32 there = m < 32 ? (1u << m) - 1 : 0xffffffffu;
    const __m512i zip = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7,
                                         22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    const vec f = _mm512_maskz_loadu_ps((__mmask16)(n < LANES ? (1u << n) - 1 : 0xffffu), factor);
    uint16_t pairs[AMX_AB] __attribute__((aligned(64)));
    UNROLL for (int r = 0; r < AMX_ROWS; r++)
    {
        const float *const row = sums + 2 * r * LANES;
        const __m512bh both = _mm512_cvtne2ps_pbh(v_mul(v_load(row + LANES), f), v_mul(v_load(row), f));
        _mm512_store_si512(pairs + r * AMX_DEPTH, _mm512_permutexvar_epi16(zip, (__m512i)both));
    }
    UNROLL for (int q = 0; q < 4; q++)
    {
        __m512i column[4];
        load_columns(column, pairs, 64, q);
        UNROLL for (int c = 0; c < 4; c++)
        {
            if (4 * q + c < n) {
                _mm512_mask_storeu_epi16(to + (4 * q + c) * ld, there, column[c]);
            }
        }
    }
}

static void put_turned(uint16_t *to, int64_t ld, const float *sums, int64_t tall, const float *factor,
                       int64_t m, int64_t n)
{
    for (int64_t j = 0; j < n; j += LANES) {
        for (int64_t i = 0; i < m; i += AMX_DEPTH) {
            put_turned_block(to + j * ld + i, ld, sums + j * tall + i * LANES, factor + j, m - i, n - j);
        }
    }
}

static void put_rows(uint16_t *to, int64_t ld, const float *sums, float factor, int64_t m, int64_t n)
{
    const vec f = v_set1(factor);
    for (int64_t c = 0; c < n; c += AMX_DEPTH) {
        const __mmask32 there = n - c < AMX_DEPTH ? (1u << (n - c)) - 1 : 0xffffffffu;
        const __mmask16 second = n - c > LANES ? 0xffff : 0;
        for (int64_t r = 0; r < m; r++) {
            const float *const row = sums + c * AMX_ROWS + r * LANES;
            const vec high = _mm512_maskz_loadu_ps(second, row + AMX_C);
            const __m512bh both = _mm512_cvtne2ps_pbh(v_mul(high, f), v_mul(v_load(row), f));
            _mm512_mask_storeu_epi16(to + r * ld + c, there, (__m512i)both);
        }
    }
}

INLINE float dot(const uint16_t *A, const uint16_t *B, int64_t n)
{
    vec sum = v_set1(0);
    for (int64_t i = 0; i < n; i += AMX_DEPTH) {
        const __mmask32 there = n - i < AMX_DEPTH ? (1u << (n - i)) - 1 : 0xffffffffu;
        sum = _mm512_dpbf16_ps(sum, (__m512bh)_mm512_maskz_loadu_epi16(there, A + i),
                               (__m512bh)_mm512_maskz_loadu_epi16(there, B + i));
    }
    return _mm512_reduce_add_ps(sum);
}

static void dots(float *out, const uint16_t *A, int64_t lda, const uint16_t *B, int64_t ldb, int64_t n,
                 int64_t width)
{
    for (int64_t r = 0; r < n; r++) {
        out[r] = dot(A + r * lda, B + r * ldb, width);
    }
}

#endif
