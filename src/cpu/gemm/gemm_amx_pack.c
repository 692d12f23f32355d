/* Packing: see matmul_amx_pack.h. Compiled for AVX-512, and reached only where the processor has it. */
#include "cpu/gemm/gemm_amx_pack.h"

#include "cpu/amx/kernels/amx.h"
#include "cpu/vec/kernels/vec.h"

static int64_t size_of(const agi_matrix *x)
{
    return x->dtype == AG_F32 ? 4 : 2;
}

/* Elements col .. of a stored row, NULL where it does not count or is not there. */
static const void *row_at(const agi_matrix *x, int64_t row, int64_t end, int64_t col)
{
    return row < end && agi_row_counts(x, row)
               ? (const char *)x->data + (row * x->row_stride + col) * size_of(x)
               : NULL;
}

/* The first of 16 or 32 numbers, zeros behind them. */
INLINE __m512i load_32(const uint16_t *p, __mmask32 which)
{
    return p == NULL ? _mm512_setzero_si512() : _mm512_maskz_loadu_epi16(which, p);
}

INLINE __m512i load_16(const uint16_t *p, __mmask16 which)
{
    return _mm512_cvtepu16_epi32(p == NULL ? _mm256_setzero_si256() : _mm256_maskz_loadu_epi16(which, p));
}

/* One part of 16 float32, in the upper halves: the first 8 bits of what the parts before leave. Exact; infinity is
 * its own first part, with zeros behind it. */
INLINE __m512i load_part(const void *p, __mmask16 which, int part)
{
    const __m512i upper = _mm512_set1_epi32((int)0xffff0000);
    vec x = p == NULL ? v_set1(0) : _mm512_maskz_loadu_ps(which, p);
    for (int i = 0; i < part; i++) {
        const vec cut = _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(x), upper));
        x = _mm512_maskz_sub_ps((__mmask16)~_mm512_fpclass_ps_mask(x, 0x18), x, cut);
    }
    return _mm512_and_si512(_mm512_castps_si512(x), upper);
}

/* Sixteen lines (rows of A, columns of B) from `line` on by up to 32 terms. Where the stored rows are lines:
 * a line in each vector. Where they are terms: a pair of terms in each, 16 lines wide. */
INLINE void get_lines(vec *z, const agi_matrix *x, bool across, int64_t line, int64_t end,
                      const agi_amx_terms *t)
{
    const int64_t behind = t->k0 + t->k;
    if (!across) {
        const __mmask32 terms = (__mmask32)(((uint64_t)1 << t->k) - 1);
        UNROLL for (int r = 0; r < AMX_ROWS; r++)
        {
            z[r] = _mm512_castsi512_ps(load_32(row_at(x, line + r, end, t->k0), terms));
        }
        return;
    }
    const __mmask16 lines = (__mmask16)((1u << agi_clip(end - line, AMX_ROWS)) - 1);
    UNROLL for (int r = 0; r < AMX_ROWS; r++)
    {
        const __m512i even = load_16(row_at(x, t->k0 + 2 * r, behind, line), lines);
        const __m512i odd = load_16(row_at(x, t->k0 + 2 * r + 1, behind, line), lines);
        z[r] = _mm512_castsi512_ps(_mm512_or_si512(even, _mm512_slli_epi32(odd, 16)));
    }
}

/* The same of a part of float32. */
INLINE void get_part(vec *z, const agi_matrix *x, bool across, int64_t line, int64_t end,
                     const agi_amx_terms *t)
{
    const __m512i joined = _mm512_set_epi16(63, 61, 59, 57, 55, 53, 51, 49, 47, 45, 43, 41, 39, 37, 35, 33,
                                            31, 29, 27, 25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1);
    const int64_t first = across ? agi_clip(end - line, AMX_ROWS) : agi_clip(t->k, AMX_ROWS);
    const __mmask16 low = (__mmask16)((1u << first) - 1);
    const __mmask16 high = (__mmask16)((1u << agi_clip(t->k - AMX_ROWS, AMX_ROWS)) - 1);
    for (int r = 0; r < AMX_ROWS; r++) {
        if (across) {
            const void *even = row_at(x, t->k0 + 2 * r, t->k0 + t->k, line);
            const void *odd = row_at(x, t->k0 + 2 * r + 1, t->k0 + t->k, line);
            z[r] = _mm512_castsi512_ps(_mm512_or_si512(_mm512_srli_epi32(load_part(even, low, t->part), 16),
                                                       load_part(odd, low, t->part)));
        } else {
            const float *row = row_at(x, line + r, end, t->k0);
            const __m512i a = load_part(row, low, t->part);
            const __m512i b = load_part(row == NULL || high == 0 ? NULL : row + AMX_ROWS, high, t->part);
            z[r] = _mm512_castsi512_ps(_mm512_permutex2var_epi16(a, joined, b));
        }
    }
}

/* The same where all of it is there. */
INLINE void get_whole(vec *z, const agi_matrix *x, bool across, int64_t line, const agi_amx_terms *t)
{
    const uint16_t *p =
        (const uint16_t *)x->data + (across ? t->k0 * x->row_stride + line : line * x->row_stride + t->k0);
    UNROLL for (int r = 0; r < AMX_ROWS; r++)
    {
        if (across) {
            const __m512i even = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)p));
            const __m512i odd = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)(p + x->row_stride)));
            z[r] = _mm512_castsi512_ps(_mm512_or_si512(even, _mm512_slli_epi32(odd, 16)));
            p += 2 * x->row_stride;
        } else {
            z[r] = _mm512_loadu_ps(p);
            p += x->row_stride;
        }
    }
}

void agi_amx_pack(uint16_t *tile, const agi_matrix *x, bool across, bool turned, int64_t line, int64_t end,
                  const agi_amx_terms *t)
{
    vec z[AMX_ROWS];
    if (x->dtype == AG_F32) {
        get_part(z, x, across, line, end, t);
    } else if (x->lengths == NULL && t->k == AMX_DEPTH && line + AMX_ROWS <= end) {
        get_whole(z, x, across, line, t);
    } else {
        get_lines(z, x, across, line, end, t);
    }
    if (turned) {
        v_transpose(z);
    }
    for (int r = 0; r < AMX_ROWS; r++) {
        _mm512_storeu_ps(tile + 32 * r, z[r]);
    }
}
