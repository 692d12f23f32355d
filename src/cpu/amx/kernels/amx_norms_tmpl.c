/* Part of amx_kernels.c: norms of rows and columns, and dot products of rows. */
#include <immintrin.h>
#include <math.h>

#include "cpu/amx/kernels/amx_kernels.h"
#include "cpu/vec/kernels/vec.h"

static void column_norms(float *norms, const uint16_t *tiles, int64_t n)
{
    vec sum = v_set1(0);
    for (int64_t row = 0; row < n * AMX_ROWS; row++) {
        const __m512bh pairs = (__m512bh)_mm512_loadu_si512(tiles + row * AMX_DEPTH);
        sum = _mm512_dpbf16_ps(sum, pairs, pairs);
    }
    v_store(norms, _mm512_sqrt_ps(sum));
}

/* Each lane keeps the largest of its partial sums of squares; added over lanes, these are at least the sum of any one
 * row. */
static float largest_norm(const uint16_t *rows, int64_t ld, int64_t n, int64_t width)
{
    __m512i largest = _mm512_setzero_si512(); /* compared as integers: NaN is larger than any number */
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

INLINE float dot(const uint16_t *A, const uint16_t *B, int64_t n)
{
    vec sum = v_set1(0);
    for (int64_t i = 0; i < n; i += AMX_DEPTH) {
        const __mmask32 inside = n - i < AMX_DEPTH ? (1u << (n - i)) - 1 : 0xffffffffu;
        sum = _mm512_dpbf16_ps(sum, (__m512bh)_mm512_maskz_loadu_epi16(inside, A + i),
                               (__m512bh)_mm512_maskz_loadu_epi16(inside, B + i));
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
