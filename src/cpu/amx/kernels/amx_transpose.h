/* Transposes of 16 x 16 dwords, four columns at a time. */
#ifndef AGI_CPU_AMX_TRANSPOSE_H
#define AGI_CPU_AMX_TRANSPOSE_H

#include <immintrin.h>

#include "cpu/vec/kernels/vec.h"

/* Four times 128 bits: from p, and from 1, 2 and 3 strides (in bytes) after it. The inserts come from memory, so that
 * only the unpacks within 128 bits need the one port that can shuffle. */
INLINE __m512i load_quads(const void *p, int64_t stride)
{
    const char *const at = p;
    const __m128i_u *const second = (const void *)(at + stride),
                           *const third = (const void *)(at + 2 * stride),
                           *const fourth = (const void *)(at + 3 * stride);
    __m512i q = _mm512_castsi128_si512(_mm_loadu_si128(p));
    q = _mm512_inserti32x4(q, _mm_loadu_si128(second), 1);
    q = _mm512_inserti32x4(q, _mm_loadu_si128(third), 2);
    return _mm512_inserti32x4(q, _mm_loadu_si128(fourth), 3);
}

/* Columns 4 q .. 4 q + 3 of 16 rows of 16 dwords, ld bytes from row to row. */
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

#endif
