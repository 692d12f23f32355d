/* AMX emulated in C, for processors with AVX-512 but without AMX: the tile instructions of amx.h, and the
 * intrinsics of avx512_bf16 and avx512_vbmi that the AMX sources use. Gives the same bits as the processor
 * (amx_unit.c compares them): order of sums, rounding, denormals, NaN. The tests compile the AMX sources with
 * this header included first; the library is never compiled with it. */
#ifndef AG_TESTS_AMX_EMULATED_H
#define AG_TESTS_AMX_EMULATED_H

#include <immintrin.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { EMULATED_TILES = 8, EMULATED_ROWS = 16, EMULATED_ROW_BYTES = 64 };

/* The AMX state of a thread: 64 bytes of configuration, as ldtilecfg reads them, and the tiles. Bytes of a
 * tile outside its configured shape are always zero. */
typedef struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
    uint8_t tiles[EMULATED_TILES][EMULATED_ROWS][EMULATED_ROW_BYTES];
} emulated_unit;

extern _Thread_local emulated_unit emulated_amx; /* in amx_instructions.c, as is the next */
extern _Atomic int emulated_used;                /* has any thread configured its tiles? */

/* ---- Configuration ---- */

/* Ends the program if the processor would raise an exception. */
static inline void emulated_need(int holds, const char *what)
{
    if (!holds) {
        fprintf(stderr, "emulated AMX unit: %s\n", what);
        abort();
    }
}

static inline void emulated_load_config(const void *config)
{
    memset(&emulated_amx, 0, sizeof emulated_amx);
    memcpy(&emulated_amx, config, 64);
    atomic_store_explicit(&emulated_used, 1, memory_order_relaxed);
    emulated_need(emulated_amx.palette <= 1, "a palette above 1");
    if (emulated_amx.palette == 0) {
        memset(&emulated_amx, 0, sizeof emulated_amx);
    }
    for (int t = 0; t < 16; t++) {
        const int rows = emulated_amx.rows[t], bytes = emulated_amx.row_bytes[t];
        emulated_need(rows <= EMULATED_ROWS && bytes <= EMULATED_ROW_BYTES,
                      "a tile above 16 rows of 64 bytes");
        emulated_need((rows == 0) == (bytes == 0) && bytes % 4 == 0,
                      "a tile of empty rows or of parts of numbers");
        emulated_need(t < EMULATED_TILES || rows == 0, "a ninth tile");
    }
}

static inline void emulated_store_config(void *config)
{
    memcpy(config, &emulated_amx, 64);
}

static inline void emulated_release(void)
{
    memset(&emulated_amx, 0, sizeof emulated_amx);
}

/* ---- Tiles ---- */

static inline void emulated_zero(int t)
{
    emulated_need(emulated_amx.rows[t] > 0, "a tile that is not configured");
    memset(emulated_amx.tiles[t], 0, sizeof emulated_amx.tiles[t]);
}

static inline void emulated_load(int t, const void *from, int64_t stride)
{
    emulated_zero(t);
    for (int r = 0; r < emulated_amx.rows[t]; r++) {
        memcpy(emulated_amx.tiles[t][r], (const char *)from + r * stride, emulated_amx.row_bytes[t]);
    }
}

static inline void emulated_store(int t, void *to, int64_t stride)
{
    emulated_need(emulated_amx.rows[t] > 0, "a tile that is not configured");
    for (int r = 0; r < emulated_amx.rows[t]; r++) {
        memcpy((char *)to + r * stride, emulated_amx.tiles[t][r], emulated_amx.row_bytes[t]);
    }
}

/* ---- Products of bfloat16 pairs ---- */

/* Sums are rounded to nearest even, denormal operands and results are zero, no exception is raised, whatever
 * the thread's MXCSR is. Written in assembly, as compilers do not model MXCSR, and as the order of the
 * operands determines which NaN results. */
enum { EMULATED_MXCSR = 0x9fc0 };

static inline void emulated_fma(__m512 *sum, __m512 a, __m512 b)
{
    __asm__ volatile("vfmadd231ps %2, %1, %0" : "+v"(*sum) : "v"(a), "v"(b));
}

static inline __m512 emulated_sum(__m512 a, __m512 b)
{
    __m512 sum;
    __asm__ volatile("vaddps %2, %1, %0" : "=v"(sum) : "v"(a), "v"(b));
    return sum;
}

/* The even, or odd, element of each pair as float32. */
static inline __m512 emulated_even(__m512i pairs)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16));
}

static inline __m512 emulated_odd(__m512i pairs)
{
    return _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32((int)0xffff0000)));
}

/* One row: two sums start from zero, one over the even elements of the pairs, one over the odd; the result is
 * C + (even + odd). */
static inline __m512 emulated_row(__m512 c, const uint8_t *a, const __m512 *b_even, const __m512 *b_odd,
                                  int depth)
{
    __m512 even = _mm512_setzero_ps(), odd = _mm512_setzero_ps();
    for (int k = 0; k < depth; k++) {
        int pair;
        memcpy(&pair, a + 4 * k, sizeof pair);
        emulated_fma(&even, emulated_even(_mm512_set1_epi32(pair)), b_even[k]);
        emulated_fma(&odd, emulated_odd(_mm512_set1_epi32(pair)), b_odd[k]);
    }
    return emulated_sum(c, emulated_sum(even, odd));
}

static inline void emulated_add_product(int c, int a, int b)
{
    emulated_unit *const u = &emulated_amx;
    const int depth = u->row_bytes[a] / 4;
    const __mmask16 lanes = (__mmask16)((1u << u->row_bytes[c] / 4) - 1);
    const unsigned before = _mm_getcsr();
    __m512 even[EMULATED_ROWS], odd[EMULATED_ROWS];
    emulated_need(u->rows[c] > 0 && u->rows[c] == u->rows[a] && u->row_bytes[c] == u->row_bytes[b] &&
                      u->rows[b] == depth,
                  "a product of tiles that do not fit each other");
    for (int k = 0; k < depth; k++) {
        const __m512i pairs = _mm512_loadu_si512(u->tiles[b][k]);
        even[k] = emulated_even(pairs);
        odd[k] = emulated_odd(pairs);
    }
    _mm_setcsr(EMULATED_MXCSR);
    for (int m = 0; m < u->rows[c]; m++) {
        uint8_t *const row = u->tiles[c][m];
        const __m512 sums = emulated_row(_mm512_loadu_ps(row), u->tiles[a][m], even, odd, depth);
        _mm512_storeu_ps(row, _mm512_maskz_mov_ps(lanes, sums));
    }
    _mm_setcsr(before);
}

/* vdpbf16ps: the product of the odd elements is added first. */
static inline __m512 emulated_dpbf16(__m512 c, __m512i a, __m512i b)
{
    const unsigned before = _mm_getcsr();
    _mm_setcsr(EMULATED_MXCSR);
    emulated_fma(&c, emulated_odd(a), emulated_odd(b));
    emulated_fma(&c, emulated_even(a), emulated_even(b));
    _mm_setcsr(before);
    return c;
}

/* ---- Rounding, and bytes ---- */

/* Rounds to nearest even; a denormal becomes zero, a NaN becomes quiet. */
static inline uint16_t emulated_round(uint32_t x)
{
    const uint32_t nearest = (x + 0x7fff + (x >> 16 & 1)) >> 16, nan = x >> 16 | 0x40,
                   zero = x >> 16 & 0x8000;
    return (uint16_t)((x & 0x7fffffff) > 0x7f800000 ? nan : (x & 0x7f800000) == 0 ? zero : nearest);
}

/* vcvtne2ps2bf16: the sixteen elements of low, then those of high. */
static inline __m512i emulated_round_two(__m512 high, __m512 low)
{
    uint32_t from[32];
    uint16_t to[32];
    _mm512_storeu_ps(from, low);
    _mm512_storeu_ps(from + 16, high);
    for (int n = 0; n < 32; n++) {
        to[n] = emulated_round(from[n]);
    }
    return _mm512_loadu_si512(to);
}

/* vpermb: byte n is the byte of x that the low six bits of index[n] select; zero if bit n of keep is 0. */
static inline __m512i emulated_permute(__mmask64 keep, __m512i index, __m512i x)
{
    uint8_t at[64], from[64], to[64];
    _mm512_storeu_si512(at, index);
    _mm512_storeu_si512(from, x);
    for (int n = 0; n < 64; n++) {
        to[n] = keep >> n & 1 ? from[at[n] & 63] : 0;
    }
    return _mm512_loadu_si512(to);
}

/* vpmultishiftqb: each byte is eight bits of its 64-bit lane of x, starting at the bit that its control byte
 * selects and wrapping around. */
static inline __m512i emulated_multishift(__m512i control, __m512i x)
{
    uint8_t bit[64], to[64];
    uint64_t from[8];
    _mm512_storeu_si512(bit, control);
    _mm512_storeu_si512(from, x);
    for (int n = 0; n < 64; n++) {
        const uint64_t lane = from[n / 8];
        to[n] = (uint8_t)(lane >> (bit[n] & 63) | lane << (-bit[n] & 63));
    }
    return _mm512_loadu_si512(to);
}

/* ---- The names that the AMX sources use ---- */

#define AMX_LOAD(t, p, stride) emulated_load(t, p, stride)
#define AMX_LOAD_T1(t, p, stride) emulated_load(t, p, stride)
#define AMX_STORE(t, p, stride) emulated_store(t, p, stride)
#define AMX_ZERO(t) emulated_zero(t)
#define AMX_ADD_PRODUCT(c, a, b) emulated_add_product(c, a, b)
#define AMX_LOAD_CONFIG(p) emulated_load_config(p)
#define AMX_STORE_CONFIG(p) emulated_store_config(p)
#define AMX_RELEASE() emulated_release()

#define __m512bh __m512i
#define _mm512_dpbf16_ps(c, a, b) emulated_dpbf16(c, a, b)
#define _mm512_cvtne2ps_pbh(high, low) emulated_round_two(high, low)
#define _mm512_maskz_permutexvar_epi8(keep, index, x) emulated_permute(keep, index, x)
#define _mm512_multishift_epi64_epi8(control, x) emulated_multishift(control, x)

#endif
