/* Matrix products of any number format: C = sum of A_t B_t, or C + that sum, rounded once at the end.
 * Accumulation is in float32, float64 where C is float64. Each tile of C has one owner, which adds up in
 * one order fixed by the shapes: the same bits for any number of threads. */
#ifndef AGI_MATMUL_H
#define AGI_MATMUL_H

#include "arena.h"
#include "call.h"

/* Row-major by its strides. Rows may come in groups (the sequences of a batch) of which only the first
 * lengths[group] rows count: the others are never read and count as zeros. */
typedef struct {
    const void *data;
    ag_dtype dtype;
    int64_t rows, cols; /* before transposition */
    int64_t row_stride, col_stride;
    bool transposed;
    int64_t group;          /* rows of a group */
    const int64_t *lengths; /* NULL: all rows count */
} agi_matrix;

typedef struct {
    agi_matrix a, b; /* [m, k] and [k, n] after transposition */
} agi_product;

#define AGI_MAX_PRODUCTS 6

typedef struct {
    void *c; /* [m][n], dense */
    ag_dtype dtype;
    bool accumulate;
    int64_t m, n;
    int n_products;
    agi_product products[AGI_MAX_PRODUCTS];
} agi_matmul_op;

/* The kernels. Packed A is panels of mr rows, each [k][mr]; packed B panels of nr columns, each [k][nr];
 * kernel adds the product of two panels to mr x nr of c, whose rows lie ldc apart. load reads n elements
 * that lie stride apart. All of one float64 kernel, and of one float32 kernel that serves the other
 * dtypes. mr and nr divide AGI_TILE_M and AGI_TILE_N. */
typedef struct {
    const char *name;
    int64_t mr32, nr32, mr64, nr64;
    void (*kernel32)(int64_t k, const float *a, const float *b, float *c, int64_t ldc);
    void (*kernel64)(int64_t k, const double *a, const double *b, double *c, int64_t ldc);
    void (*load32)(float *to, ag_dtype dtype, const void *from, int64_t stride, int64_t n);
    void (*load64)(double *to, ag_dtype dtype, const void *from, int64_t stride, int64_t n);
} agi_matmul_table;

enum { AGI_TILE_M = 64, AGI_TILE_N = 128, AGI_TILE_K = 256 };

extern const agi_matmul_table agi_matmul_portable;

/* What every thread of a plan needs to run products. */
typedef struct {
    _Atomic int64_t *counter;
    char *scratch;
    size_t slot_bytes;
} agi_matmul_space;

void agi_matmul_lay_out(agi_matmul_space *space, agi_arena *arena, const ag_plan *plan);

ag_status agi_matmul(const agi_matmul_table *table, const agi_matmul_op *op, const ag_plan *plan,
                     const ag_exec *exec, const agi_matmul_space *space);

#endif
