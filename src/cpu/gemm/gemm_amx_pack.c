/* Packing of AMX tiles: see gemm_amx_pack.h. Compiled for AVX-512, and called only if the processor has it.
 *
 * A tile is 16 vectors of 16 pairs of terms. Loaded row by row, vector r has 16 pairs of one row of A or column of B:
 * the order in which AMX reads A. Loaded by_k, vector r has terms 2 r and 2 r + 1 of 16 rows or columns: VNNI order, in
 * which AMX reads B. A transposition of 16 x 16 pairs converts one into the other. */
#include "cpu/gemm/gemm_amx_pack.h"

#include "cpu/amx/kernels/amx.h"
#include "cpu/vec/kernels/vec.h"

static int64_t size_of(const agi_matrix *x)
{
    return x->dtype == AG_F32 ? 4 : 2;
}

/* Returns a stored row from column col on; NULL if row >= end or the row is padding. */
static const void *row_at(const agi_matrix *x, int64_t row, int64_t end, int64_t col)
{
    return row < end && agi_row_is_valid(x, row)
               ? (const char *)x->data + (row * x->row_stride + col) * size_of(x)
               : NULL;
}

/* Loads the selected ones of 32 elements, and zero for the others; all zero if p is NULL. */
INLINE __m512i load_32(const uint16_t *p, __mmask32 selected)
{
    return p == NULL ? _mm512_setzero_si512() : _mm512_maskz_loadu_epi16(selected, p);
}

/* The same for 16 elements, each zero-extended to 32 bits. */
INLINE __m512i load_16(const uint16_t *p, __mmask16 selected)
{
    return _mm512_cvtepu16_epi32(p == NULL ? _mm256_setzero_si256() : _mm256_maskz_loadu_epi16(selected, p));
}

/* Loads one component of 16 float32 elements into the upper halves of 32 bits: the first 8 mantissa bits of what the
 * components before it leave. Exact. An infinity is its own component 0 (fpclass 0x18: either infinity), and its others
 * are zero. */
INLINE __m512i load_component(const void *p, __mmask16 selected, int component)
{
    const __m512i upper = _mm512_set1_epi32((int)0xffff0000);
    vec x = p == NULL ? v_set1(0) : _mm512_maskz_loadu_ps(selected, p);
    for (int i = 0; i < component; i++) {
        const vec truncated = _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(x), upper));
        x = _mm512_maskz_sub_ps((__mmask16)~_mm512_fpclass_ps_mask(x, 0x18), x, truncated);
    }
    return _mm512_and_si512(_mm512_castps_si512(x), upper);
}

/* Loads the tile of a bfloat16 matrix. */
INLINE void load_bf16(vec *z, const agi_matrix *x, bool by_k, int64_t mn, int64_t end, const agi_amx_terms *t)
{
    const int64_t k_end = t->k0 + t->k;
    if (!by_k) {
        const __mmask32 terms = (__mmask32)(((uint64_t)1 << t->k) - 1);
        UNROLL for (int r = 0; r < AMX_ROWS; r++)
        {
            z[r] = _mm512_castsi512_ps(load_32(row_at(x, mn + r, end, t->k0), terms));
        }
        return;
    }
    const __mmask16 which = (__mmask16)((1u << agi_clamp(end - mn, AMX_ROWS)) - 1);
    UNROLL for (int r = 0; r < AMX_ROWS; r++)
    {
        const __m512i even = load_16(row_at(x, t->k0 + 2 * r, k_end, mn), which);
        const __m512i odd = load_16(row_at(x, t->k0 + 2 * r + 1, k_end, mn), which);
        z[r] = _mm512_castsi512_ps(_mm512_or_si512(even, _mm512_slli_epi32(odd, 16)));
    }
}

/* The same for a tile without padding. */
INLINE void load_whole_bf16(vec *z, const agi_matrix *x, bool by_k, int64_t mn, const agi_amx_terms *t)
{
    const uint16_t *p =
        (const uint16_t *)x->data + (by_k ? t->k0 * x->row_stride + mn : mn * x->row_stride + t->k0);
    UNROLL for (int r = 0; r < AMX_ROWS; r++)
    {
        if (by_k) {
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

/* Loads the tile of one component of a float32 matrix. */
INLINE void load_f32(vec *z, const agi_matrix *x, bool by_k, int64_t mn, int64_t end, const agi_amx_terms *t)
{
    const __m512i upper_halves =
        _mm512_set_epi16(63, 61, 59, 57, 55, 53, 51, 49, 47, 45, 43, 41, 39, 37, 35, 33, 31, 29, 27, 25, 23,
                         21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1);
    const int64_t first = by_k ? agi_clamp(end - mn, AMX_ROWS) : agi_clamp(t->k, AMX_ROWS);
    const __mmask16 low = (__mmask16)((1u << first) - 1);
    const __mmask16 high = (__mmask16)((1u << agi_clamp(t->k - AMX_ROWS, AMX_ROWS)) - 1);
    for (int r = 0; r < AMX_ROWS; r++) {
        if (by_k) {
            const void *even = row_at(x, t->k0 + 2 * r, t->k0 + t->k, mn);
            const void *odd = row_at(x, t->k0 + 2 * r + 1, t->k0 + t->k, mn);
            const __m512i lower = _mm512_srli_epi32(load_component(even, low, t->component), 16);
            z[r] = _mm512_castsi512_ps(_mm512_or_si512(lower, load_component(odd, low, t->component)));
        } else {
            const float *row = row_at(x, mn + r, end, t->k0);
            const float *second = row == NULL || high == 0 ? NULL : row + AMX_ROWS;
            const __m512i a = load_component(row, low, t->component);
            const __m512i b = load_component(second, high, t->component);
            z[r] = _mm512_castsi512_ps(_mm512_permutex2var_epi16(a, upper_halves, b));
        }
    }
}

void agi_amx_pack(uint16_t *tile, const agi_matrix *x, bool by_k, bool transpose, int64_t mn, int64_t end,
                  const agi_amx_terms *t)
{
    vec z[AMX_ROWS];
    if (x->dtype == AG_F32) {
        load_f32(z, x, by_k, mn, end, t);
    } else if (x->lengths == NULL && t->k == AMX_DEPTH && mn + AMX_ROWS <= end) {
        load_whole_bf16(z, x, by_k, mn, t);
    } else {
        load_bf16(z, x, by_k, mn, end, t);
    }
    if (transpose) {
        v_transpose(z);
    }
    for (int r = 0; r < AMX_ROWS; r++) {
        _mm512_storeu_ps(tile + 32 * r, z[r]);
    }
}
