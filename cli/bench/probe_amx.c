/* The AMX probe: see probe_amx.h. Empty on other processors, where nothing calls it. */
#include "probe_amx.h"

#if defined(__x86_64__)

/* The operand of ldtilecfg and sttilecfg. */
struct tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};

static void configure(struct tile_config *saved)
{
    struct tile_config config = {.palette = 1};
    for (int t = 0; t < 8; t++) {
        config.row_bytes[t] = 64;
        config.rows[t] = 16;
    }
    __asm__ volatile("sttilecfg %0" : "=m"(*saved)::"memory");
    __asm__ volatile("ldtilecfg %0" ::"m"(config) : "memory");
}

static void restore(const struct tile_config *saved)
{
    if (saved->palette == 0) {
        __asm__ volatile("tilerelease" ::: "memory");
    } else {
        __asm__ volatile("ldtilecfg %0" ::"m"(*saved) : "memory");
    }
}

void probe_amx_products(const uint16_t *tiles, int rounds)
{
    struct tile_config saved;
    configure(&saved);
    __asm__ volatile("tileloadd (%0,%4,1), %%tmm4\n\ttileloadd (%1,%4,1), %%tmm5\n\t"
                     "tileloadd (%2,%4,1), %%tmm6\n\ttileloadd (%3,%4,1), %%tmm7" ::"r"(tiles),
                     "r"(tiles + PROBE_TILE), "r"(tiles + 2 * PROBE_TILE), "r"(tiles + 3 * PROBE_TILE),
                     "r"((int64_t)64)
                     : "memory");
    for (int n = 0; n < rounds; n++) {
        __asm__ volatile("tdpbf16ps %%tmm6, %%tmm4, %%tmm0\n\ttdpbf16ps %%tmm7, %%tmm4, %%tmm1\n\t"
                         "tdpbf16ps %%tmm6, %%tmm5, %%tmm2\n\ttdpbf16ps %%tmm7, %%tmm5, %%tmm3" ::);
    }
    restore(&saved);
}

#endif
