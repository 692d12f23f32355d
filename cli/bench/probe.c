/* The probes of probe.h: the loops of each instruction set, and the threads that run them. Compiled with
 * contraction on, so that a product and a sum become one operation if the instruction set has it. */
#define _POSIX_C_SOURCE 200809L /* clock_gettime */
#include "probe.h"

#include "probe_amx.h"
#include "check/rng.h"

#include <attngrad.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

/* CHAINS: chains of dependent multiply-adds, each with its own accumulator; more than latency times execution
 * ports, and no more than fit in 16 registers together with x and y. FED_*: the probe whose factors come from
 * the L1 cache. */
enum {
    CHAINS = 12,
    ROUNDS = 2000,
    MAX_VECTOR_BYTES = 64,
    /* one per float32 lane of CHAINS starting values, 2 multipliers and 2 summands */
    VALUES = (CHAINS + 4) * MAX_VECTOR_BYTES / 4,
    FED_ROWS = 6,   /* rows of a block of sums */
    FED_STEPS = 64, /* products per sum; the operands take 16 KiB at most */
    FED_ROUNDS = ROUNDS / 32,
    FED_BYTES = FED_STEPS * 4 * MAX_VECTOR_BYTES,
    MAX_SUMS = 4 * FED_ROWS,
    MAX_THREADS = 1024
};

/* Vectors per row of a block of sums: AVX-512 has twice the registers of AVX2. */
#define FED_VECTORS(bytes) ((bytes) == 64 ? 4 : 2)

/* The random operands of the loops. */
struct operands {
    double values[VALUES];
    uint16_t tiles[PROBE_TILES * PROBE_TILE]; /* bfloat16 */
    _Alignas(MAX_VECTOR_BYTES) float fed_f32[FED_BYTES / 4];
    _Alignas(MAX_VECTOR_BYTES) double fed_f64[FED_BYTES / 8];
};

#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 24") /* MAX_SUMS, the longest of these loops */
#endif

/* 2^f for f in [0, 1), to about 1e-7. */
#define EXP2_POLYNOMIAL(f)                                                                                   \
    (((((1.87757670e-3f * (f) + 8.98934002e-3f) * (f) + 5.58263181e-2f) * (f) + 2.40153617e-1f) * (f) +      \
      6.93153073e-1f) *                                                                                      \
         (f) +                                                                                               \
     9.99999925e-1f)

#define PROBE_TARGET
#define PROBE_BYTES 16
#define PROBE_NAME(loop) loop##_plain
#include "probe_loops_tmpl.c"

#if defined(__x86_64__)
#define PROBE_TARGET __attribute__((target("avx2,fma")))
#define PROBE_BYTES 32
#define PROBE_NAME(loop) loop##_avx2
#include "probe_loops_tmpl.c"

#define PROBE_TARGET __attribute__((target("avx512f,avx512dq")))
#define PROBE_BYTES 64
#define PROBE_NAME(loop) loop##_avx512
/* reduce with 1: x - floor(x) */
#define PROBE_EXP2(x) _mm512_scalef_ps(EXP2_POLYNOMIAL(_mm512_reduce_ps(x, 1)), x)
#include "probe_loops_tmpl.c"
#endif

#if defined(__x86_64__)
static void products_amx(const struct operands *operands, void *out)
{
    (void)out; /* not needed: the compiler cannot remove AMX instructions */
    probe_amx_products(operands->tiles, ROUNDS);
}
#endif

typedef void (*loop)(const struct operands *operands, void *out);

struct set {
    const char *isa;
    int bytes;
    loop loops[PROBE_KINDS]; /* indexed by enum probe_kind; NULL: the set has no such operation */
};

static const struct set sets[] = {
    {"scalar", 16, {fma_f32_plain, fma_f64_plain, exp2_f32_plain, NULL, fed_f32_plain, fed_f64_plain}},
#if defined(__x86_64__)
    {"avx2", 32, {fma_f32_avx2, fma_f64_avx2, exp2_f32_avx2, NULL, fed_f32_avx2, fed_f64_avx2}},
    {"avx512", 64, {fma_f32_avx512, fma_f64_avx512, exp2_f32_avx512, NULL, fed_f32_avx512, fed_f64_avx512}},
    {"amx",
     64,
     {fma_f32_avx512, fma_f64_avx512, exp2_f32_avx512, products_amx, fed_f32_avx512, fed_f64_avx512}},
#else
    {"neon", 16, {fma_f32_plain, fma_f64_plain, exp2_f32_plain, NULL, fed_f32_plain, fed_f64_plain}},
#endif
};
enum { SETS = sizeof sets / sizeof sets[0] };

/* As the library says, which on Linux also requests the permission to use AMX. */
static int processor_has(const char *isa)
{
    for (int32_t n = 0; n < ag_backend_isa_count(AG_BACKEND_CPU); n++) {
        ag_isa_info info = {.struct_size = sizeof info};
        if (ag_backend_isa(AG_BACKEND_CPU, n, &info) == AG_OK && strcmp(info.name, isa) == 0) {
            return info.available;
        }
    }
    return 0;
}

static const struct set *find_set(const char *isa)
{
    for (int n = 0; n < SETS; n++) {
        if (strcmp(isa, sets[n].isa) == 0 && processor_has(isa)) {
            return &sets[n];
        }
    }
    return NULL;
}

/* Number of operations of one call of a loop. */
static double operations(const struct set *set, enum probe_kind kind)
{
    if (kind == PROBE_AMX_BF16) {
        return (double)PROBE_TILE_OPERATIONS * PROBE_TILES * ROUNDS;
    }
    const double lanes = set->bytes / (kind == PROBE_FMA_F64 || kind == PROBE_FED_F64 ? 8.0 : 4.0);
    if (kind == PROBE_FED_F32 || kind == PROBE_FED_F64) {
        return lanes * 2 * FED_ROWS * FED_VECTORS(set->bytes) * FED_STEPS * FED_ROUNDS;
    }
    /* two multiply-adds per round, two operations each */
    return lanes * CHAINS * ROUNDS * (kind == PROBE_EXP2_F32 ? 1 : 4);
}

static double now_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

struct worker {
    pthread_t thread;
    loop run;
    uint64_t seed;
    double counted_from, until; /* monotonic time in seconds */
    double calls_per_second;
};

/* The upper half of a float32: rounding does not matter for random numbers. */
static uint16_t bfloat16(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (uint16_t)(bits >> 16);
}

/* values: all below 1, so that c x + y stays bounded. A loop takes its starting values from the front, then its
 * multipliers, then its summands. Tiles and FED operands have both signs, so that sums do not only grow. */
static void draw_operands(struct operands *operands, uint64_t seed)
{
    struct rng r;
    agc_rng_init(&r, seed, 0);
    for (int n = 0; n < VALUES; n++) {
        operands->values[n] = 0.25 + 0.5 * agc_rng_uniform(&r);
    }
    for (int n = 0; n < PROBE_TILES * PROBE_TILE; n++) {
        operands->tiles[n] = bfloat16((float)(2 * agc_rng_uniform(&r) - 1));
    }
    for (int n = 0; n < FED_BYTES / 4; n++) {
        operands->fed_f32[n] = (float)(2 * agc_rng_uniform(&r) - 1);
    }
    for (int n = 0; n < FED_BYTES / 8; n++) {
        operands->fed_f64[n] = 2 * agc_rng_uniform(&r) - 1;
    }
}

static void *work(void *arg)
{
    struct worker *w = arg;
    _Alignas(MAX_VECTOR_BYTES) struct operands operands;
    char out[MAX_SUMS * MAX_VECTOR_BYTES];
    int64_t calls = 0;
    draw_operands(&operands, w->seed);
    do {
        w->run(&operands, out);
    } while (now_seconds() < w->counted_from);
    const double start = now_seconds();
    double end;
    do {
        w->run(&operands, out);
        calls++;
        end = now_seconds();
    } while (end < w->until);
    w->calls_per_second = (double)calls / (end - start);
    return NULL;
}

/* The calling thread is one of the workers. */
static double run_workers(struct worker *workers, int threads)
{
    int started = 1;
    double sum = 0;
    while (started < threads &&
           pthread_create(&workers[started].thread, NULL, work, &workers[started]) == 0) {
        started++;
    }
    work(&workers[0]);
    for (int n = 1; n < started; n++) {
        pthread_join(workers[n].thread, NULL);
    }
    for (int n = 0; n < started; n++) {
        sum += workers[n].calls_per_second;
    }
    return started == threads ? sum : 0;
}

double probe_rate(const char *isa, enum probe_kind kind, int threads, double settle, double seconds)
{
    const struct set *set = find_set(isa);
    if (set == NULL || set->loops[kind] == NULL || threads < 1 || threads > MAX_THREADS) {
        return 0;
    }
    struct worker *workers = calloc((size_t)threads, sizeof *workers);
    if (workers == NULL) {
        return 0;
    }
    const double start = now_seconds();
    for (int n = 0; n < threads; n++) {
        workers[n].run = set->loops[kind];
        workers[n].seed = (uint64_t)n + 1;
        workers[n].counted_from = start + settle;
        workers[n].until = start + settle + seconds;
    }
    const double rate = run_workers(workers, threads) * operations(set, kind);
    free(workers);
    return rate;
}
