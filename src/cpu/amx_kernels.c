/* The kernels of amx_kernels.h. Compiled for AVX-512 and AMX, and reached only where the processor has both. */
#include "amx_kernels.h"

#include <immintrin.h>
#include <math.h>

#include "kernels.h"
#include "online.h"

static void begin(amx_config *before)
{
    amx_begin(before);
}

static void end(const amx_config *before)
{
    amx_end(before);
}

/* ---- The product ---- */

/* Tiles of a sum that is short. */
enum { SHORT = 8 };

/* Four tiles of C: 2 x 2, so that each load of a tile serves two products. */
INLINE void product_2x2(int64_t K, const uint16_t *A, const amx_operand *a, const uint16_t *B,
                        const amx_operand *b, float *C, int64_t ldc, bool add)
{
    const int64_t row = 2 * a->row, c_row = 4 * ldc, a_line = a->line, a_step = a->step, b_line = b->line,
                  b_step = b->step;
    float *const below = C + AMX_ROWS * ldc;
    if (add) {
        AMX_LOAD(0, C, c_row);
        AMX_LOAD(1, C + AMX_LANES, c_row);
        AMX_LOAD(2, below, c_row);
        AMX_LOAD(3, below + AMX_LANES, c_row);
    } else {
        AMX_ZERO(0);
        AMX_ZERO(1);
        AMX_ZERO(2);
        AMX_ZERO(3);
    }
    for (int64_t k = 0; k < K; k++) {
        AMX_LOAD(4, A, row);
        AMX_LOAD(6, B, 64);
        AMX_ADD_PRODUCT(0, 4, 6);
        AMX_LOAD(7, B + b_line, 64);
        AMX_ADD_PRODUCT(1, 4, 7);
        AMX_LOAD(5, A + a_line, row);
        AMX_ADD_PRODUCT(2, 5, 6);
        AMX_ADD_PRODUCT(3, 5, 7);
        A += a_step;
        B += b_step;
    }
    AMX_STORE(0, C, c_row);
    AMX_STORE(1, C + AMX_LANES, c_row);
    AMX_STORE(2, below, c_row);
    AMX_STORE(3, below + AMX_LANES, c_row);
}

/* The same for C = A B with a short sum, where stores are what counts: a store waits for the end of its products, so
 * the upper two tiles are stored among the products of the lower two. Those run over k backwards, from the tiles of B
 * that are there. */
INLINE void product_short(int64_t K, const uint16_t *A, const amx_operand *a, const uint16_t *B,
                          const amx_operand *b, float *C, int64_t ldc)
{
    const int64_t row = 2 * a->row, c_row = 4 * ldc, a_step = a->step, b_line = b->line, b_step = b->step;
    const uint16_t *const lower = A + a->line;
    float *const below = C + AMX_ROWS * ldc;
    AMX_ZERO(0);
    AMX_ZERO(1);
    for (int64_t k = 0; k < K; k++) {
        AMX_LOAD(4, A + k * a_step, row);
        AMX_LOAD(6, B + k * b_step, 64);
        AMX_ADD_PRODUCT(0, 4, 6);
        AMX_LOAD(7, B + k * b_step + b_line, 64);
        AMX_ADD_PRODUCT(1, 4, 7);
    }
    AMX_ZERO(2);
    AMX_ZERO(3);
    AMX_LOAD(5, lower + (K - 1) * a_step, row);
    AMX_ADD_PRODUCT(2, 5, 6);
    AMX_ADD_PRODUCT(3, 5, 7);
    AMX_STORE(0, C, c_row);
    AMX_STORE(1, C + AMX_LANES, c_row);
    for (int64_t k = K - 2; k >= 0; k--) {
        AMX_LOAD(5, lower + k * a_step, row);
        AMX_LOAD(6, B + k * b_step, 64);
        AMX_ADD_PRODUCT(2, 5, 6);
        AMX_LOAD(7, B + k * b_step + b_line, 64);
        AMX_ADD_PRODUCT(3, 5, 7);
    }
    AMX_STORE(2, below, c_row);
    AMX_STORE(3, below + AMX_LANES, c_row);
}

/* What an odd number of tiles leaves: one. */
INLINE void product_1x1(int64_t K, const uint16_t *A, const amx_operand *a, const uint16_t *B,
                        const amx_operand *b, float *C, int64_t ldc, bool add)
{
    if (add) {
        AMX_LOAD(0, C, 4 * ldc);
    } else {
        AMX_ZERO(0);
    }
    for (int64_t k = 0; k < K; k++) {
        AMX_LOAD(4, A, 2 * a->row);
        AMX_LOAD(6, B, 64);
        AMX_ADD_PRODUCT(0, 4, 6);
        A += a->step;
        B += b->step;
    }
    AMX_STORE(0, C, 4 * ldc);
}

/* Tiles m and m + 1 by n and n + 1 of C, as far as there are such. */
INLINE void product_square(int64_t m, int64_t M, int64_t n, int64_t N, int64_t K, const amx_operand *A,
                           const amx_operand *B, float *C, int64_t ldc, bool add)
{
    const uint16_t *const a = A->p + m * A->line, *const b = B->p + n * B->line;
    float *const c = C + m * AMX_ROWS * ldc + n * AMX_LANES;
    if (m + 2 <= M && n + 2 <= N) {
        if (add || K > SHORT || K == 0) {
            product_2x2(K, a, A, b, B, c, ldc, add);
        } else {
            product_short(K, a, A, b, B, c, ldc);
        }
        return;
    }
    product_1x1(K, a, A, b, B, c, ldc, add);
    if (m + 2 <= M) {
        product_1x1(K, a + A->line, A, b, B, c + AMX_ROWS * ldc, ldc, add);
    } else if (n + 2 <= N) {
        product_1x1(K, a, A, b + B->line, B, c + AMX_LANES, ldc, add);
    }
}

/* The operand that is used more often for each of its tiles stays in the first cache. */
static void product(int64_t M, int64_t N, int64_t K, const amx_operand *A, const amx_operand *B, float *C,
                    int64_t ldc, bool add)
{
    const bool high = M > N;
    for (int64_t outer = 0; outer < (high ? N : M); outer += 2) {
        for (int64_t inner = 0; inner < (high ? M : N); inner += 2) {
            product_square(high ? inner : outer, M, high ? outer : inner, N, K, A, B, C, ldc, add);
        }
    }
}

/* ---- Operands ---- */

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

static void transpose(float *to, int64_t ld_to, const float *from, int64_t ld_from, int64_t m, int64_t n)
{
    for (int64_t i = 0; i < m; i += LANES) {
        for (int64_t j = 0; j < n; j += LANES) {
            UNROLL for (int q = 0; q < 4; q++)
            {
                __m512i column[4];
                load_columns(column, from + i * ld_from + j, 4 * ld_from, q);
                UNROLL for (int c = 0; c < 4; c++)
                {
                    v_store(to + (j + 4 * q + c) * ld_to + i, _mm512_castsi512_ps(column[c]));
                }
            }
        }
    }
}

/* Of 16 lanes and at most 32 channels. */
INLINE void put_turned_block(uint16_t *to, int64_t ld, const float *from, int64_t ld_from,
                             const float *factor, int64_t m, int64_t n)
{
    const __mmask32 there = m < 32 ? (1u << m) - 1 : 0xffffffffu;
    UNROLL for (int q = 0; q < 4; q++)
    {
        __m512i low[4], high[4];
        load_columns(low, from, 4 * ld_from, q);
        load_columns(high, from + LANES * ld_from, 4 * ld_from, q);
        for (int c = 0; c < 4 && 4 * q + c < n; c++) {
            const vec f = v_set1(factor[4 * q + c]);
            const __m512bh row = _mm512_cvtne2ps_pbh(v_mul(_mm512_castsi512_ps(high[c]), f),
                                                     v_mul(_mm512_castsi512_ps(low[c]), f));
            _mm512_mask_storeu_epi16(to + (4 * q + c) * ld, there, (__m512i)row);
        }
    }
}

static void put_turned(uint16_t *to, int64_t ld, const float *from, int64_t ld_from, const float *factor,
                       int64_t m, int64_t n)
{
    for (int64_t j = 0; j < n; j += LANES) {
        for (int64_t i = 0; i < m; i += AMX_DEPTH) {
            put_turned_block(to + j * ld + i, ld, from + i * ld_from + j, ld_from, factor + j, m - i, n - j);
        }
    }
}

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

/* Weights and their sums, with the shift as it is. */
INLINE void weights_of_pair(uint16_t *pairs, const float *T, vec c, const vec *shift, vec *sum)
{
    vec odd[PAIR];
    UNROLL for (int v = 0; v < PAIR; v++)
    {
        sum[v] = odd[v] = v_set1(0);
    }
    for (int j = 0; j < GROUP_KEYS; j += 2) {
        UNROLL for (int v = 0; v < PAIR; v++)
        {
            const float *const t = T + j * PANEL + v * LANES;
            const vec a = exp2_centred(v_fms(v_load(t), c, shift[v]));
            const vec b = exp2_centred(v_fms(v_load(t + PANEL), c, shift[v]));
            sum[v] = v_add(sum[v], a);
            odd[v] = v_add(odd[v], b);
            store_cut_pair(pairs + v * AMX_AB + j * 16, a, b);
        }
    }
    UNROLL for (int v = 0; v < PAIR; v++)
    {
        sum[v] = v_add(sum[v], odd[v]);
    }
}

/* Sets the shift by the maxima of the columns, in 256ths where asked. */
static bool move_shifts(const float *T, vec c, bool rounded, float *m, vec *shift, vec *factor)
{
    bool rescaled = false;
    for (int v = 0; v < PAIR; v++) {
        vec highest = v_load(T + v * LANES);
        vmask grown;
        for (int j = 1; j < GROUP_KEYS; j++) {
            highest = v_max(v_load(T + j * PANEL + v * LANES), highest);
        }
        highest = v_mul(highest, c);
        highest = rounded ? _mm512_roundscale_ps(highest, 8 << 4) : highest;
        rescaled |= v_move_shift(highest, m + v * LANES, &shift[v], &factor[v], &grown);
    }
    return rescaled;
}

/* A number in 256ths, of 16 bits, has the exponent and the mantissa of its own 2^x, but for a curve: how much less the
 * mantissa is, by the first six of the eight bits behind the point. In 256ths, with what rounding to 128ths adds. */
static const uint8_t curve[64] = {1,  2,  3,  4,  5,  6,  8,  8,  10, 10, 11, 12, 13, 14, 15, 16,
                                  16, 17, 18, 18, 19, 19, 20, 20, 21, 21, 21, 22, 22, 22, 22, 22,
                                  22, 23, 23, 23, 22, 22, 22, 22, 22, 21, 21, 21, 20, 20, 19, 19,
                                  18, 17, 17, 16, 15, 14, 13, 12, 11, 10, 9,  7,  6,  5,  3,  2};

/* The same weights in half the instructions, for exponents between -126 and 126. They are 1.00015 times smaller on
 * average; shifts are in 256ths. Their errors are larger than rounding's
 * by a sixth. */
#define CURVED ((float)(AMX_CENTRED * 1.000155))
INLINE void weights_by_curve(uint16_t *pairs, const float *T, vec c, const vec *shift, vec *sum)
{
    const vec scale = v_mul(c, v_set1(256)), bias = v_set1(0x1.8p23f + 127 * 256 + 1);
    const __m512i less = _mm512_loadu_si512(curve);
    const __m512bh ones = (__m512bh)_mm512_set1_epi16(0x3f80);
    vec start[PAIR];
    UNROLL for (int v = 0; v < PAIR; v++)
    {
        start[v] = v_fma(shift[v], v_set1(-256), bias);
        sum[v] = v_set1(0);
    }
    for (int j = 0; j < GROUP_KEYS; j += 2) {
        UNROLL for (int v = 0; v < PAIR; v++)
        {
            const float *const t = T + j * PANEL + v * LANES;
            const __m512i a = _mm512_castps_si512(v_fma(v_load(t), scale, start[v]));
            const __m512i b = _mm512_castps_si512(v_fma(v_load(t + PANEL), scale, start[v]));
            const __m512i x = _mm512_mask_blend_epi16(0xaaaaaaaau, a, _mm512_slli_epi32(b, 16));
            const __m512i l =
                _mm512_maskz_permutexvar_epi8(0x5555555555555555u, _mm512_srli_epi16(x, 2), less);
            const __m512i p = _mm512_srli_epi16(_mm512_sub_epi16(x, l), 1);
            _mm512_storeu_si512(pairs + v * AMX_AB + j * 16, p);
            sum[v] = _mm512_dpbf16_ps(sum[v], (__m512bh)p, ones);
        }
    }
    UNROLL for (int v = 0; v < PAIR; v++)
    {
        sum[v] = v_mul(sum[v], v_set1(CURVED));
    }
}

/* |q| |k| is the most that a product can be. */
INLINE void some_weights(uint16_t *pairs, const float *T, vec c, const float *norms, float reach,
                         const vec *shift, vec *sum)
{
    vmask within = 0xffff;
    UNROLL for (int v = 0; v < PAIR; v++)
    {
        const vec most = v_fma(v_load(norms + v * LANES), v_set1(reach), _mm512_abs_ps(shift[v]));
        within &= v_less(most, v_set1(125));
    }
    if (within == 0xffff) {
        weights_by_curve(pairs, T, c, shift, sum);
    } else {
        weights_of_pair(pairs, T, c, shift, sum);
    }
}

/* As long as the sums of a group are small, no weight is large, and nobody need know the maximum: the shift
 * stays. Else, and for lanes that have seen nothing, or NaN, it is looked for. */
INLINE bool softmax_pair(uint16_t *pairs, const float *T, vec c, const float *norms, float reach, float *m,
                         float *l, float *alpha)
{
    const vec most = v_set1(256), least = v_set1(-REAL_MAX);
    vec shift[PAIR] = {v_load(m), v_load(m + LANES)}, factor[PAIR] = {v_set1(1), v_set1(1)}, sum[PAIR];
    vmask fine = v_less(least, shift[0]) & v_less(least, shift[1]);
    bool rescaled = false;
    if (fine == 0xffff) {
        some_weights(pairs, T, c, norms, reach, shift, sum);
        fine = v_less(sum[0], most) & v_less(sum[1], most);
    }
    if (fine != 0xffff) {
        rescaled = move_shifts(T, c, norms[0] < INFINITY, m, shift, factor);
        some_weights(pairs, T, c, norms, reach, shift, sum);
    }
    for (int v = 0; v < PAIR; v++) {
        v_store(alpha + v * LANES, factor[v]);
        v_store(l + v * LANES, v_fma(v_load(l + v * LANES), factor[v], sum[v]));
    }
    return rescaled;
}

static bool softmax(uint16_t *pairs, const float *T, int64_t W, float c, const float *norms, float reach,
                    float *m, float *l, float *alpha)
{
    bool rescaled = false;
    for (int64_t i = 0; i < W; i += PAIR * LANES) {
        rescaled |= softmax_pair(pairs + i * 32, T + i, v_set1(c), norms + i, reach, m + i, l + i, alpha + i);
    }
    return rescaled;
}

/* Weights and their tangents at two keys of one vector of lanes; both are added up. */
INLINE void weight_tangents(uint16_t *pairs, uint16_t *t_pairs, const float *T, const float *U, vec c,
                            vec scale, vec shift, vec r, vec *sum, vec *tangent)
{
    vec p[2], u[2];
    UNROLL for (int j = 0; j < 2; j++)
    {
        p[j] = exp2_centred(v_fms(v_load(T + j * PANEL), c, shift));
        u[j] = v_mul(p[j], v_fms(v_load(U + j * PANEL), scale, r));
    }
    *sum = v_add(*sum, v_add(p[0], p[1]));
    *tangent = v_add(*tangent, v_add(u[0], u[1]));
    store_cut_pair(pairs, p[0], p[1]);
    store_cut_pair(t_pairs, u[0], u[1]);
}

static bool softmax_tangent(uint16_t *pairs, uint16_t *t_pairs, const float *T, const float *U, int64_t W,
                            float c, float scale, const float *m, float *l, const float *r, float *a)
{
    float sums[PANEL], tangents[PANEL];
    vmask fine = 0xffff;
    for (int64_t i = 0; i < W; i += LANES) {
        const vec shift = v_load(m + i);
        vec sum = v_set1(0), tangent = sum;
        for (int j = 0; j < GROUP_KEYS; j += 2) {
            weight_tangents(pairs + i * 32 + j * 16, t_pairs + i * 32 + j * 16, T + j * PANEL + i,
                            U + j * PANEL + i, v_set1(c), v_set1(scale), shift, v_load(r + i), &sum,
                            &tangent);
        }
        fine &= v_less(sum, v_set1(256)) & v_less(v_set1(-REAL_MAX), shift);
        v_store(sums + i, sum);
        v_store(tangents + i, tangent);
    }
    for (int64_t i = 0; i < W && fine == 0xffff; i += LANES) {
        const vec centre = v_set1(1 / CENTRED);
        v_store(l + i, v_fma(v_load(sums + i), centre, v_load(l + i)));
        v_store(a + i, v_fma(v_load(tangents + i), centre, v_load(a + i)));
    }
    return fine == 0xffff;
}

/* Two keys by two vectors of lanes. */
INLINE void gradients_square(uint16_t *P, uint16_t *dS, uint16_t *dS_pairs, const float *T, const float *dP,
                             vec c, const vec *L, const vec *D)
{
    vec p[2][PAIR], ds[2][PAIR];
    UNROLL for (int j = 0; j < 2; j++)
    {
        UNROLL for (int v = 0; v < PAIR; v++)
        {
            const int64_t at = j * PANEL + v * LANES;
            p[j][v] = exp2_centred(v_fms(v_load(T + at), c, L[v]));
            ds[j][v] = v_mul(p[j][v], v_sub(v_load(dP + at), D[v]));
        }
        store_cut_pair(P + j * AMX_DEPTH, p[j][0], p[j][1]);
        store_cut_pair(dS + j * AMX_DEPTH, ds[j][0], ds[j][1]);
    }
    UNROLL for (int v = 0; v < PAIR; v++)
    {
        store_cut_pair(dS_pairs + v * AMX_AB, ds[0][v], ds[1][v]);
    }
}

static void gradients(uint16_t *P, uint16_t *dS, int64_t line, uint16_t *dS_pairs, const float *T,
                      const float *dP, int64_t W, float c, const float *L, const float *D)
{
    for (int64_t i = 0; i < W; i += PAIR * LANES) {
        const vec l[PAIR] = {v_load(L + i), v_load(L + i + LANES)};
        const vec d[PAIR] = {v_load(D + i), v_load(D + i + LANES)};
        for (int j = 0; j < GROUP_KEYS; j += 2) {
            const int64_t to = i * AMX_ROWS + row_place(j, line), at = j * PANEL + i;
            gradients_square(P + to, dS + to, dS_pairs + i * 32 + j * 16, T + at, dP + at, v_set1(c), l, d);
        }
    }
}

/* What vjp_jvp makes of one vector of scores. */
typedef struct {
    vec r, ds, tr, tds;
} tangent_stage;

INLINE tangent_stage tangents_at(const float *const scores[4], int64_t at, vec c, vec scale, vec L, vec mu,
                                 vec D, vec tD)
{
    tangent_stage x;
    const vec e = v_sub(v_load(scores[1] + at), D), w = v_fms(v_load(scores[2] + at), scale, mu);
    x.r = exp2_centred(v_fms(v_load(scores[0] + at), c, L));
    x.ds = v_mul(x.r, e);
    x.tr = v_mul(x.r, w);
    x.tds = v_mul(x.r, v_fma(w, e, v_sub(v_load(scores[3] + at), tD)));
    return x;
}

static void gradient_tangents(uint16_t *const rows[4], int64_t line, uint16_t *const pairs[2],
                              const float *const scores[4], float c, float scale, const float *L,
                              const float *mu, const float *D, const float *tD)
{
    for (int j = 0; j < GROUP_KEYS; j += 2) {
        tangent_stage x[2][PAIR];
        UNROLL for (int r = 0; r < 2; r++)
        {
            const int64_t to = row_place(j + r, line);
            UNROLL for (int v = 0; v < PAIR; v++)
            {
                const int64_t i = v * LANES;
                x[r][v] = tangents_at(scores, (j + r) * PANEL + i, v_set1(c), v_set1(scale), v_load(L + i),
                                      v_load(mu + i), v_load(D + i), v_load(tD + i));
            }
            store_cut_pair(rows[0] + to, x[r][0].r, x[r][1].r);
            store_cut_pair(rows[1] + to, x[r][0].ds, x[r][1].ds);
            store_cut_pair(rows[2] + to, x[r][0].tr, x[r][1].tr);
            store_cut_pair(rows[3] + to, x[r][0].tds, x[r][1].tds);
        }
        UNROLL for (int v = 0; v < PAIR; v++)
        {
            store_cut_pair(pairs[0] + v * AMX_AB + j * 16, x[0][v].tds, x[1][v].tds);
            store_cut_pair(pairs[1] + v * AMX_AB + j * 16, x[0][v].ds, x[1][v].ds);
        }
    }
}

/* ---- Rows ---- */

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

const agi_amx_kernels agi_amx_table = {
    .begin = begin,
    .end = end,
    .product = product,
    .columns = columns,
    .far_pairs = far_pairs,
    .turned = turned,
    .column_norms = column_norms,
    .largest_norm = largest_norm,
    .transpose = transpose,
    .put_turned = put_turned,
    .round_pairs = round_pairs,
    .round_rows = round_rows,
    .hide_rows = hide_rows,
    .hide_pairs = hide_pairs,
    .softmax = softmax,
    .softmax_tangent = softmax_tangent,
    .gradients = gradients,
    .gradient_tangents = gradient_tangents,
    .dots = dots,
};
