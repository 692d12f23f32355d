/* Matrix products of any dtype: C = sum of A_p B_p, or C + that sum, rounded once at the end. Sums are accumulated in
 * float32, in float64 if C is float64. One thread computes each element of C, in an order that the shapes alone
 * determine: any number of threads gives the same bits. */
#ifndef AGI_GEMM_H
#define AGI_GEMM_H

#include "core/arena.h"
#include "core/call.h"
#include "core/prefetch.h"

/* A matrix as stored. Its rows may form groups of `group` rows each (the sequences of a batch). Only the
 * first lengths[g] rows of group g are valid: the others are padding, never read and zero in the product. */
typedef struct {
    const void *data;
    ag_dtype dtype;
    int64_t rows, cols; /* as stored: before transposition */
    int64_t row_stride, col_stride;
    bool transposed;
    int64_t group;
    const int64_t *lengths; /* NULL: all rows are valid */
} agi_matrix;

typedef struct {
    agi_matrix a, b; /* [m][k] and [k][n] after transposition */
} agi_product;

#define AGI_MAX_PRODUCTS 6

/* One result C and the products that are summed into it. */
typedef struct {
    void *c; /* [m][n], dense */
    ag_dtype dtype;
    bool accumulate;
    int64_t m, n;
    int n_products;
    agi_product products[AGI_MAX_PRODUCTS];
} agi_gemm_op;

/* Number of terms k of a product. */
static inline int64_t agi_depth(const agi_product *p)
{
    return p->a.transposed ? p->a.rows : p->a.cols;
}

/* Is the row valid, not padding? */
static inline bool agi_row_is_valid(const agi_matrix *x, int64_t row)
{
    return x->lengths == NULL || row % x->group < x->lengths[row / x->group];
}

/* A tile of C: rows i0 .. i0 + m - 1, columns j0 .. j0 + n - 1. */
typedef struct {
    int64_t i0, m, j0, n;
    agi_prefetch_list *prefetch; /* what the thread reads after this tile; NULL: prefetch nothing */
    agi_exec *exec;              /* asked by agi_cancelled */
} agi_gemm_tile;

/* An implementation, which computes one tile at a time. No bit of C may depend on how it is split into tiles. */
typedef struct agi_gemm_table {
    /* Number of bytes of scratch that one thread needs. */
    size_t (*scratch)(const ag_plan *plan);

    /* Sets tile->m and tile->n such that C has about n_tiles tiles, or more if that is faster. */
    void (*split)(const ag_plan *plan, const agi_gemm_op *op, int64_t n_tiles, agi_gemm_tile *tile);

    void (*run)(const ag_plan *plan, const agi_gemm_op *op, const agi_gemm_tile *tile, void *scratch);
} agi_gemm_table;

extern const agi_gemm_table agi_gemm_portable;

/* The scratch of all threads of a plan. */
typedef struct {
    char *scratch;
    size_t bytes_per_thread;
} agi_gemm_space;

void agi_gemm_lay_out(agi_gemm_space *space, agi_arena *arena, const ag_plan *plan);

#define AGI_MAX_OPS 12

/* Runs all ops in one parallel region, in any order: none may read or write what another one writes. */
ag_status agi_gemm(const agi_gemm_op *ops, int n_ops, const ag_plan *plan, agi_exec *exec,
                   const agi_gemm_space *space);

#endif
