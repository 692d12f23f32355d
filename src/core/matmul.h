/* Matrix products of any number format: C = sum of A_t B_t, or C + that sum, rounded once at the end.
 * Accumulation is in float32, float64 where C is float64. Each element of C is summed by one thread in one
 * order fixed by the shapes: the same bits for any number of threads. */
#ifndef AGI_MATMUL_H
#define AGI_MATMUL_H

#include "ahead.h"
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

/* Length of the sum of one product. */
static inline int64_t agi_depth(const agi_product *p)
{
    return p->a.transposed ? p->a.rows : p->a.cols;
}

static inline bool agi_row_counts(const agi_matrix *x, int64_t row)
{
    return x->lengths == NULL || row % x->group < x->lengths[row / x->group];
}

/* Rows i0 .. i0 + m - 1, columns j0 .. j0 + n - 1 of C. */
typedef struct {
    int64_t i0, m, j0, n;
    agi_ahead *ahead; /* what the thread reads after this tile; NULL: nothing that pays */
} agi_matmul_tile;

/* Who computes tiles. How C is cut may not change a bit of it. */
typedef struct {
    /* Bytes that one thread needs. */
    size_t (*scratch)(const ag_plan *plan);

    /* The size of a tile, m and n of at, that cuts C into about so many tiles, or into more where that pays. */
    void (*cut)(const ag_plan *plan, const agi_matmul_op *op, int64_t tiles, agi_matmul_tile *at);

    void (*run)(const ag_plan *plan, const agi_matmul_op *op, const agi_matmul_tile *at, void *scratch);
} agi_matmul_table;

extern const agi_matmul_table agi_matmul_portable;

/* The one that the plan's backend has for it. */
const agi_matmul_table *agi_matmul_of(const ag_plan *plan);

/* What every thread of a plan needs to run products. */
typedef struct {
    char *scratch;
    size_t slot_bytes;
} agi_matmul_space;

void agi_matmul_lay_out(agi_matmul_space *space, agi_arena *arena, const ag_plan *plan);

#define AGI_MAX_OPS 12

/* All ops, in any order and at once: none may read or write what another writes. */
ag_status agi_matmul(const agi_matmul_op *ops, int n_ops, const ag_plan *plan, const ag_exec *exec,
                     const agi_matmul_space *space);

#endif
