/* The loop of a matrix product over tiles of C, and the portable kernels. A tile is packed into panels of
 * the accumulator's format, whatever dtype, stride or transposition it came with, so that one kernel
 * serves all of them and its inner loops run over constants, which a compiler turns into vectors. */
#include "matmul.h"

#include <string.h>

#include "number.h"

/* Where a tile stands in C. */
typedef struct {
    int64_t i0, m, j0, n;
} span;

/* What is packed of one operand: lines of panels, depth along the sum. */
typedef struct {
    int64_t width, line0, lines, depth0, depth;
} block;

typedef struct {
    const agi_matmul_table *table;
    const agi_matmul_op *op;
    const agi_matmul_space *space;
} job;

typedef void (*load_function32)(float *to, ag_dtype dtype, const void *from, int64_t stride, int64_t n);
typedef void (*load_function64)(double *to, ag_dtype dtype, const void *from, int64_t stride, int64_t n);

#define REAL float
#define NAME(x) x##32
#include "matmul_tile.h"
#undef REAL
#undef NAME

#define REAL double
#define NAME(x) x##64
#include "matmul_tile.h"
#undef REAL
#undef NAME

/* ---- The loop ---- */

void agi_matmul_lay_out(agi_matmul_space *space, agi_arena *arena, const ag_plan *plan)
{
    const size_t tile = plan->p.dtype == AG_F64 ? sizeof(tile64) : sizeof(tile32);
    space->slot_bytes = (tile + AGI_CACHE_LINE - 1) / AGI_CACHE_LINE * AGI_CACHE_LINE;
    space->counter = agi_take(arena, 1, sizeof *space->counter);
    space->scratch = agi_take(arena, plan->threads, space->slot_bytes);
}

static int64_t tiles(int64_t n, int64_t size)
{
    return (n + size - 1) / size;
}

static void run_item(void *arg, int64_t item, int64_t slot)
{
    const job *x = arg;
    const int64_t across = tiles(x->op->n, AGI_TILE_N);
    span at = {.i0 = item / across * AGI_TILE_M, .j0 = item % across * AGI_TILE_N};
    at.m = x->op->m - at.i0 < AGI_TILE_M ? x->op->m - at.i0 : AGI_TILE_M;
    at.n = x->op->n - at.j0 < AGI_TILE_N ? x->op->n - at.j0 : AGI_TILE_N;
    if (x->op->dtype == AG_F64) {
        run_tile64(x, &at, slot);
    } else {
        run_tile32(x, &at, slot);
    }
}

ag_status agi_matmul(const agi_matmul_table *table, const agi_matmul_op *op, const ag_plan *plan,
                     const ag_exec *exec, const agi_matmul_space *space)
{
    job x = {table, op, space};
    const int64_t n_items = tiles(op->m, AGI_TILE_M) * tiles(op->n, AGI_TILE_N);
    return agi_run_items(plan, exec, space->counter, n_items, run_item, &x);
}

/* ---- The portable kernels ---- */

enum { MR = 4, NR32 = 8, NR64 = 4 };

/* Both start from zero, so that the error of a long sum grows with the number of blocks, not of terms. */
static void kernel32(int64_t k, const float *restrict a, const float *restrict b, float *restrict c,
                     int64_t ldc)
{
    float sum[MR][NR32] = {{0}};
    for (int64_t l = 0; l < k; l++) {
        for (int i = 0; i < MR; i++) {
            for (int j = 0; j < NR32; j++) {
                sum[i][j] += a[l * MR + i] * b[l * NR32 + j];
            }
        }
    }
    for (int i = 0; i < MR; i++) {
        for (int j = 0; j < NR32; j++) {
            c[i * ldc + j] += sum[i][j];
        }
    }
}

static void kernel64(int64_t k, const double *restrict a, const double *restrict b, double *restrict c,
                     int64_t ldc)
{
    double sum[MR][NR64] = {{0}};
    for (int64_t l = 0; l < k; l++) {
        for (int i = 0; i < MR; i++) {
            for (int j = 0; j < NR64; j++) {
                sum[i][j] += a[l * MR + i] * b[l * NR64 + j];
            }
        }
    }
    for (int i = 0; i < MR; i++) {
        for (int j = 0; j < NR64; j++) {
            c[i * ldc + j] += sum[i][j];
        }
    }
}

static void load32(float *to, ag_dtype dtype, const void *from, int64_t stride, int64_t n)
{
    for (int64_t i = 0; i < n && dtype == AG_F32; i++) {
        to[i] = ((const float *)from)[i * stride];
    }
    for (int64_t i = 0; i < n && dtype != AG_F32; i++) {
        to[i] = (float)agi_load(dtype, from, i * stride);
    }
}

static void load64(double *to, ag_dtype dtype, const void *from, int64_t stride, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        to[i] = agi_load(dtype, from, i * stride);
    }
}

const agi_matmul_table agi_matmul_portable = {
    .name = "portable",
    .mr32 = MR,
    .nr32 = NR32,
    .mr64 = MR,
    .nr64 = NR64,
    .kernel32 = kernel32,
    .kernel64 = kernel64,
    .load32 = load32,
    .load64 = load64,
};
