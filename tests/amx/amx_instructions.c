/* The functions of amx_instructions.h. The macro AMX_INSTRUCTIONS is the name of their table: amx_processor or
 * amx_emulated. */
#include "amx/amx_instructions.h"

#include <immintrin.h>

#include "cpu/amx/kernels/amx.h"

#if defined(AGI_EMULATED_AMX)
_Thread_local emulated_unit emulated_amx;
_Atomic int emulated_used;
#endif

typedef struct {
    char bytes[64];
} config_bytes;

static void load_config(const void *config)
{
    AMX_LOAD_CONFIG((const config_bytes *)config);
}

static void store_config(void *config)
{
    AMX_STORE_CONFIG((config_bytes *)config);
}

static void release(void)
{
    AMX_RELEASE();
}

static void store_tiles(void *to, int64_t stride)
{
    char *p = to;
    const int64_t tile = AMX_TEST_ROWS * stride;
    AMX_STORE(0, p, stride);
    AMX_STORE(1, p + tile, stride);
    AMX_STORE(2, p + 2 * tile, stride);
    AMX_STORE(3, p + 3 * tile, stride);
    AMX_STORE(4, p + 4 * tile, stride);
    AMX_STORE(5, p + 5 * tile, stride);
    AMX_STORE(6, p + 6 * tile, stride);
    AMX_STORE(7, p + 7 * tile, stride);
}

static void copy_tiles(const void *from, void *to, int64_t stride)
{
    const char *p = from;
    const int64_t tile = AMX_TEST_ROWS * stride;
    AMX_LOAD(0, p, stride);
    AMX_LOAD_T1(1, p + tile, stride);
    AMX_LOAD(2, p + 2 * tile, stride);
    AMX_LOAD_T1(3, p + 3 * tile, stride);
    AMX_LOAD(4, p + 4 * tile, stride);
    AMX_LOAD_T1(5, p + 5 * tile, stride);
    AMX_LOAD(6, p + 6 * tile, stride);
    AMX_LOAD_T1(7, p + 7 * tile, stride);
    AMX_ZERO(3);
    AMX_ZERO(6);
    store_tiles(to, stride);
}

static void add_product(float *c, const uint16_t *a, const uint16_t *b)
{
    AMX_LOAD(0, c, 64);
    AMX_LOAD(1, a, 64);
    AMX_LOAD(2, b, 64);
    AMX_ADD_PRODUCT(0, 1, 2);
    AMX_STORE(0, c, 64);
}

static void dot(float *c, const uint16_t *a, const uint16_t *b)
{
    const __m512bh x = (__m512bh)_mm512_loadu_si512(a), y = (__m512bh)_mm512_loadu_si512(b);
    _mm512_storeu_ps(c, _mm512_dpbf16_ps(_mm512_loadu_ps(c), x, y));
}

static void round_two(uint16_t *rounded, const float *high, const float *low)
{
    _mm512_storeu_si512(rounded, (__m512i)_mm512_cvtne2ps_pbh(_mm512_loadu_ps(high), _mm512_loadu_ps(low)));
}

static void permute(uint8_t *to, uint64_t keep, const uint8_t *index, const uint8_t *x)
{
    _mm512_storeu_si512(
        to, _mm512_maskz_permutexvar_epi8(keep, _mm512_loadu_si512(index), _mm512_loadu_si512(x)));
}

static void multishift(uint8_t *to, const uint8_t *control, const uint8_t *x)
{
    _mm512_storeu_si512(to, _mm512_multishift_epi64_epi8(_mm512_loadu_si512(control), _mm512_loadu_si512(x)));
}

const amx_instructions AMX_INSTRUCTIONS = {
#if defined(AGI_EMULATED_AMX)
    .name = "emulated",
#else
    .name = "the processor's unit",
#endif
    .load_config = load_config,
    .store_config = store_config,
    .release = release,
    .store_tiles = store_tiles,
    .copy_tiles = copy_tiles,
    .add_product = add_product,
    .dot = dot,
    .round_two = round_two,
    .permute = permute,
    .multishift = multishift,
};
