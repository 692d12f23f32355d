/* Compares the emulated AMX with the processor's, bit for bit, one instruction after another: random tiles of
 * all shapes, with NaN, infinities, denormals and ties of rounding, for any MXCSR.
 * Skipped if the processor has no AMX. */
#include <xmmintrin.h>

#include "amx/amx_instructions.h"
#include "check/rng.h"
#include "test.h"

enum { STRIDE = 80, TILES_BYTES = AMX_TEST_TILES * AMX_TEST_ROWS * STRIDE };

static const amx_instructions *const units[2] = {&amx_processor, &amx_emulated};

/* ---- Data ---- */

/* Kinds of random float32. bfloat16 are the upper halves of such. */
typedef enum { ORDINARY, SPECIAL, TINY, TIES, ANY_BITS, KINDS } kind;
static const char *const kind_names[KINDS] = {"ordinary", "special", "tiny", "half way", "any bits"};

static uint32_t with_exponent(uint32_t bits, int64_t exponent)
{
    return (bits & 0x807fffffu) | (uint32_t)exponent << 23;
}

static uint32_t draw(struct rng *r, kind k)
{
    const uint32_t bits = (uint32_t)agc_rng_next(r), sign = bits & 0x80000000u;
    static const uint32_t special[] = {0,          1,          0x7fffff,   0x800000,   0x3f800000, 0x7f7fffff,
                                       0x7f800000, 0x7f800001, 0x7fa50000, 0x7fc00000, 0x7fffffff};
    switch (k) {
    case SPECIAL:
        if (agc_rng_chance(r, 0.1)) {
            return sign | special[agc_rng_range(r, 0, (int)(sizeof special / sizeof special[0]) - 1)];
        }
        break;
    case TINY: /* products, sums and operands about the smallest normal number */
        return with_exponent(bits,
                             agc_rng_chance(r, 0.5) ? agc_rng_range(r, 0, 2) : agc_rng_range(r, 60, 66));
    case TIES: /* few bits, so that many sums and conversions are ties */
        return with_exponent(bits & 0xffff8000u, agc_rng_range(r, 115, 127)) +
               (uint32_t)agc_rng_range(r, -1, 1);
    case ANY_BITS: return bits;
    default: break;
    }
    return with_exponent(bits, agc_rng_range(r, 120, 135));
}

static void draw_floats(struct rng *r, kind k, float *to, int n)
{
    for (int i = 0; i < n; i++) {
        const uint32_t bits = draw(r, k);
        memcpy(to + i, &bits, sizeof bits);
    }
}

static void draw_halves(struct rng *r, kind k, uint16_t *to, int n)
{
    for (int i = 0; i < n; i++) {
        to[i] = (uint16_t)(draw(r, k) >> 16);
    }
}

static void draw_bytes(struct rng *r, uint8_t *to, int n)
{
    for (int i = 0; i < n; i++) {
        to[i] = (uint8_t)agc_rng_next(r);
    }
}

/* t0 has m rows of n float32, t1 and t2 have the shapes of its operands; the others have any shape. The layout is
 * that of ldtilecfg: row bytes from byte 16 on, rows from byte 48 on. */
static void draw_config(struct rng *r, uint8_t config[64])
{
    const int whole = agc_rng_chance(r, 0.3);
    const int m = whole ? 16 : (int)agc_rng_range(r, 1, 16), n = whole ? 16 : (int)agc_rng_range(r, 1, 16),
              depth = whole ? 16 : (int)agc_rng_range(r, 1, 16);
    const int shape[3][2] = {{m, 4 * n}, {m, 4 * depth}, {depth, 4 * n}};
    memset(config, 0, 64);
    config[0] = 1;
    for (int t = 0; t < AMX_TEST_TILES; t++) {
        config[48 + t] = (uint8_t)(t < 3 ? shape[t][0] : agc_rng_range(r, 1, 16));
        config[16 + 2 * t] = (uint8_t)(t < 3 ? shape[t][1] : 4 * agc_rng_range(r, 1, 16));
    }
}

/* ---- Checks ---- */

static void check_same(const void *got, const void *wanted, size_t bytes, const char *what, const char *data)
{
    const uint8_t *a = got, *b = wanted;
    size_t n = 0;
    while (n < bytes && a[n] == b[n]) {
        n++;
    }
    CHECK(n == bytes, "%s, %s: byte %zu of %zu is %02x emulated, %02x on the processor", what, data, n, bytes,
          n < bytes ? a[n] : 0, n < bytes ? b[n] : 0);
}

/* ldtilecfg zeroes the tiles, and sttilecfg stores what was loaded; after tilerelease there is no configuration. */
static void check_config(struct rng *r)
{
    uint8_t config[64], kept[2][64], none[2][64], empty[2][TILES_BYTES];
    draw_config(r, config);
    for (int u = 0; u < 2; u++) {
        memset(empty[u], 0xaa, TILES_BYTES);
        units[u]->load_config(config);
        units[u]->copy_tiles(empty[u], empty[u], STRIDE);
        units[u]->load_config(config);
        units[u]->store_tiles(empty[u], STRIDE);
        units[u]->store_config(kept[u]);
        units[u]->release();
        units[u]->store_config(none[u]);
    }
    check_same(kept[1], kept[0], 64, "sttilecfg", "after ldtilecfg");
    check_same(none[1], none[0], 64, "sttilecfg", "after tilerelease");
    check_same(empty[1], empty[0], TILES_BYTES, "ldtilecfg", "tiles after it");
}

static void check_copies(struct rng *r)
{
    uint8_t config[64], from[TILES_BYTES], to[2][TILES_BYTES];
    draw_config(r, config);
    draw_bytes(r, from, TILES_BYTES);
    for (int u = 0; u < 2; u++) {
        memset(to[u], 0xaa, TILES_BYTES);
        units[u]->load_config(config);
        units[u]->copy_tiles(from, to[u], STRIDE);
        units[u]->release();
    }
    check_same(to[1], to[0], TILES_BYTES, "tileloadd, tileloaddt1, tilezero, tilestored", "any bytes");
}

static void check_product(struct rng *r, kind k)
{
    uint8_t config[64];
    float c[2][256];
    uint16_t a[512], b[512];
    draw_config(r, config);
    draw_halves(r, k, a, 512);
    draw_halves(r, k, b, 512);
    draw_floats(r, k, c[0], 256);
    memcpy(c[1], c[0], sizeof c[0]);
    for (int u = 0; u < 2; u++) {
        units[u]->load_config(config);
        units[u]->add_product(c[u], a, b);
        units[u]->release();
    }
    check_same(c[1], c[0], sizeof c[0], "tdpbf16ps", kind_names[k]);
}

static void check_vectors(struct rng *r, kind k)
{
    float c[2][16], x[32];
    uint16_t a[32], b[32], rounded[2][32];
    uint8_t from[64], index[64], moved[2][64], shifted[2][64];
    const uint64_t keep = agc_rng_next(r);
    draw_halves(r, k, a, 32);
    draw_halves(r, k, b, 32);
    draw_floats(r, k, c[0], 16);
    draw_floats(r, k, x, 32);
    draw_bytes(r, from, 64);
    draw_bytes(r, index, 64);
    memcpy(c[1], c[0], sizeof c[0]);
    for (int u = 0; u < 2; u++) {
        units[u]->dot(c[u], a, b);
        units[u]->round_two(rounded[u], x, x + 16);
        units[u]->permute(moved[u], keep, index, from);
        units[u]->multishift(shifted[u], index, from);
    }
    check_same(c[1], c[0], sizeof c[0], "vdpbf16ps", kind_names[k]);
    check_same(rounded[1], rounded[0], sizeof rounded[0], "vcvtne2ps2bf16", kind_names[k]);
    check_same(moved[1], moved[0], 64, "vpermb", "any bytes");
    check_same(shifted[1], shifted[0], 64, "vpmultishiftqb", "any bytes");
}

/* All exceptions masked; any rounding mode, denormals kept or flushed. */
static unsigned draw_mxcsr(struct rng *r)
{
    return 0x1f80u | ((unsigned)agc_rng_next(r) & 0xe040u);
}

int main(void)
{
    if (!amx_usable()) {
        printf("skipped: there is no AMX unit to compare with: %s\n", ag_last_message());
        return 77;
    }
    const unsigned default_mxcsr = _mm_getcsr();
    for (int n = 0; n < test_count(2000); n++) {
        struct rng r;
        agc_rng_init(&r, (uint64_t)n, 7);
        const unsigned mxcsr = draw_mxcsr(&r);
        check_config(&r);
        check_copies(&r);
        for (kind k = 0; k < KINDS; k++) {
            _mm_setcsr(mxcsr);
            check_product(&r, k);
            check_vectors(&r, k);
            const unsigned after = _mm_getcsr();
            _mm_setcsr(default_mxcsr);
            CHECK((after & ~0x3fu) == mxcsr, "MXCSR is %x instead of %x", after, mxcsr);
        }
    }
    return test_summary();
}
