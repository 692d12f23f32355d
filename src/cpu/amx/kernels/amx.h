/* The AMX unit: eight tiles of 16 rows by 64 bytes, t0 to t7, and products of tiles of bfloat16 pairs. For files
 * that are compiled for it. The compilers' own intrinsics do not all tell which memory they read, so these
 * are written out.
 *
 *     C[16][16] += A[16][32] B, with A by rows and B as pairs: B[r][2 n + s] is row 2 r + s, column n
 *
 * All tiles are always whole: what is smaller is filled up with zeros in memory. */
#ifndef AGI_CPU_AMX_H
#define AGI_CPU_AMX_H

#include <stdint.h>
#include <string.h>

/* Numbers of a tile: of float32, and of bfloat16. */
enum { AMX_ROWS = 16, AMX_LANES = 16, AMX_DEPTH = 32, AMX_C = 256, AMX_AB = 512 };

/* The layout that ldtilecfg reads. */
typedef struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} amx_config;

/* The tests may bring an emulated unit, with the same macros: tests/amx_emulated.h. */
#if defined(__x86_64__) && !defined(AGI_EMULATED_AMX)

/* t = 16 rows of 64 bytes at p, stride bytes apart. */
#define AMX_LOAD(t, p, stride)                                                                               \
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #t ::"r"(p), "r"((int64_t)(stride)) : "memory")
/* The same for what the first cache need not take in: what is there stays. */
#define AMX_PASS(t, p, stride)                                                                               \
    __asm__ volatile("tileloaddt1 (%0,%1,1), %%tmm" #t ::"r"(p), "r"((int64_t)(stride)) : "memory")
#define AMX_STORE(t, p, stride)                                                                              \
    __asm__ volatile("tilestored %%tmm" #t ", (%0,%1,1)" ::"r"(p), "r"((int64_t)(stride)) : "memory")
#define AMX_ZERO(t) __asm__ volatile("tilezero %%tmm" #t ::)
#define AMX_ADD_PRODUCT(c, a, b) __asm__ volatile("tdpbf16ps %%tmm" #b ", %%tmm" #a ", %%tmm" #c ::)
#define AMX_LOAD_CONFIG(p) __asm__ volatile("ldtilecfg %0" ::"m"(*(p)) : "memory")
#define AMX_STORE_CONFIG(p) __asm__ volatile("sttilecfg %0" : "=m"(*(p))::"memory")
#define AMX_RELEASE() __asm__ volatile("tilerelease" ::: "memory")

#endif

#if defined(__x86_64__)

/* Between these two the thread's tiles are ours; what the caller had configured comes back after, as
 * configured, its tiles zero: no call keeps them. */
static inline void amx_begin(amx_config *before)
{
    amx_config ours = {.palette = 1};
    for (int t = 0; t < 8; t++) {
        ours.row_bytes[t] = 64;
        ours.rows[t] = AMX_ROWS;
    }
    AMX_STORE_CONFIG(before);
    AMX_LOAD_CONFIG(&ours);
}

static inline void amx_end(const amx_config *before)
{
    if (before->palette == 0) {
        AMX_RELEASE();
    } else {
        AMX_LOAD_CONFIG(before);
    }
}

#endif

#endif
