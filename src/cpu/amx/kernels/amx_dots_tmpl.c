/* Part of amx_kernels.c: dot products of rows. */
#include <immintrin.h>

#include "cpu/amx/kernels/amx_kernels.h"
#include "cpu/vec/kernels/vec.h"

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
