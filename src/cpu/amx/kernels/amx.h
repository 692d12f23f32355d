/* The instructions of AMX: eight tiles of 16 rows by 64 bytes, 0 to 7, and products of bfloat16 tiles. For files that
 * are compiled for it. Written in assembly, because not all compilers' intrinsics declare which memory they
 * read.
 *
 *     C[16][16] += A[16][32] B[32][16], with A by rows and B in VNNI: row r of its tile has B[2 r + s][n] at 2 n + s
 *
 * All tiles are always whole: smaller matrices are padded with zeros in memory. */
#ifndef AGI_CPU_AMX_H
#define AGI_CPU_AMX_H

#include <stdint.h>
#include <string.h>

/* Rows of a tile; float32 and bfloat16 elements per row; elements of a whole tile of C, and of A or B. */
enum { AMX_ROWS = 16, AMX_LANES = 16, AMX_DEPTH = 32, AMX_C = 256, AMX_AB = 512 };

/* The layout that ldtilecfg reads. */
typedef struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} amx_config;

/* The tests have an emulated unit with the same macros: tests/amx/amx_emulated.h. */
#if defined(__x86_64__) && !defined(AGI_EMULATED_AMX)

/* t = 16 rows of 64 bytes at p, stride bytes apart. */
#define AMX_LOAD(t, p, stride)                                                                               \
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #t ::"r"(p), "r"((int64_t)(stride)) : "memory")
/* The same with a hint that the L1 cache need not keep it. */
#define AMX_LOAD_T1(t, p, stride)                                                                            \
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

/* Between these two calls the thread's tiles are ours. amx_end restores the caller's configuration, with its tiles
 * zero: the calling convention does not preserve them. */
static inline void amx_begin(amx_config *saved)
{
    amx_config ours = {.palette = 1};
    for (int t = 0; t < 8; t++) {
        ours.row_bytes[t] = 64;
        ours.rows[t] = AMX_ROWS;
    }
    AMX_STORE_CONFIG(saved);
    AMX_LOAD_CONFIG(&ours);
}

static inline void amx_end(const amx_config *saved)
{
    if (saved->palette == 0) {
        AMX_RELEASE();
    } else {
        AMX_LOAD_CONFIG(saved);
    }
}

#endif

#endif
