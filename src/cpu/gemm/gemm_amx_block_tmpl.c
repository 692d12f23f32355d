/* A block of C on AMX, 3 x 2 tiles: the sum over steps of AMX_DEPTH terms each, in float32. Knows nothing of matrices.
 * A part of gemm_amx.c, so that it is inlined: a call per block would make short sums one percent slower. */
#ifndef AGI_CPU_GEMM_AMX_BLOCK_TMPL
#define AGI_CPU_GEMM_AMX_BLOCK_TMPL

#include <stdbool.h>

#include "core/prefetch.h"
#include "cpu/amx/kernels/amx.h"
#include "cpu/vec/kernels/vec.h"

/* A strip is the rows of A, and a panel is the columns of B, that are multiplied at once. Six of the eight
 * tile registers hold sums: the more sums there are, the fewer operand tiles are loaded per product, and
 * loads from the L2 cache limit the speed. STRIP_AB: elements of one step of a strip. */
enum { STRIP = 3 * AMX_ROWS, PANEL_COLS = 2 * AMX_LANES, STRIP_AB = 3 * AMX_AB };

/* The operand tiles of one step. */
typedef struct {
    const uint16_t *a;
    int64_t a_tile;   /* distance from one tile of A to the next, in elements */
    int64_t a_stride; /* between rows of a tile of A, in bytes */
    int64_t b;        /* offset of the panel's two tiles of B */
} step_tiles;

/* What is prefetched during the products: two rows of C per step, for c_steps steps, and one cache line of
 * each of a_rows rows of the next strip. Only a little per step, as many prefetches at once would delay the
 * loads of tiles. */
typedef struct {
    uintptr_t c, a;
    int64_t c_stride, c_steps, a_stride, a_rows; /* strides in bytes */
} block_prefetch;

/* The product of a strip of A and a panel of B. */
typedef struct {
    const step_tiles *steps;
    const uint16_t *b;
    int64_t n_steps;
    bool uniform;   /* B's tiles are contiguous, A's are a_step apart from step to step; needs n_steps > 0 */
    int64_t a_step; /* in elements */
    bool reverse;   /* from the last step to the first */
    uint16_t *a_copy; /* where A's tiles are also stored, [n_steps][STRIP_AB]; or NULL */
    block_prefetch prefetch;
} panel_product;

/* The block of C of a strip and a panel, at row i and column j of the gemm tile; `tiles` AMX tiles high, 1 to 3. */
typedef struct {
    int64_t i, j, tiles, ldc;
    float *c;
} c_block;

/* Prefetches what step n is to prefetch. */
INLINE void prefetch_step(block_prefetch *x, int64_t n)
{
    if (n < x->c_steps) {
        agi_prefetch_l1(x->c);
        agi_prefetch_l1(x->c + (uintptr_t)x->c_stride);
        x->c += 2 * (uintptr_t)x->c_stride;
    }
    for (int64_t r = 0; r < x->a_rows; r++) {
        agi_prefetch_l2(x->a + (uintptr_t)(r * x->a_stride));
    }
    x->a += AGI_CACHE_LINE;
}

/* Multiplies one step. One tile register is left for A and one for B: each tile of A is loaded once and
 * multiplied by both tiles of B, of which the last one loaded is reused for the next tile of A. 64: the bytes of a
 * row of a packed tile. */
INLINE void multiply_step(const step_tiles *at, const uint16_t *b, int tiles, uint16_t *a_copy)
{
    AMX_LOAD(7, at->a, at->a_stride);
    AMX_LOAD(6, b, 64);
    AMX_ADD_PRODUCT(0, 7, 6);
    AMX_LOAD(6, b + AMX_AB, 64);
    AMX_ADD_PRODUCT(1, 7, 6);
    if (a_copy != NULL) {
        AMX_STORE(7, a_copy, 64);
    }
    if (tiles > 1) {
        AMX_LOAD(7, at->a + at->a_tile, at->a_stride);
        AMX_ADD_PRODUCT(3, 7, 6);
        AMX_LOAD(6, b, 64);
        AMX_ADD_PRODUCT(2, 7, 6);
        if (a_copy != NULL) {
            AMX_STORE(7, a_copy + AMX_AB, 64);
        }
    }
    if (tiles > 2) {
        AMX_LOAD(7, at->a + 2 * at->a_tile, at->a_stride);
        AMX_ADD_PRODUCT(4, 7, 6);
        AMX_LOAD(6, b + AMX_AB, 64);
        AMX_ADD_PRODUCT(5, 7, 6);
        if (a_copy != NULL) {
            AMX_STORE(7, a_copy + 2 * AMX_AB, 64);
        }
    }
}

/* Multiplies all steps. uniform: addresses are computed, not loaded from x->steps, as such loads would wait
 * for the loads of tiles. */
INLINE void multiply_steps(const panel_product *x, int tiles, bool uniform, bool copy)
{
    const int64_t steps = x->n_steps, first = x->reverse ? steps - 1 : 0, direction = x->reverse ? -1 : 1;
    const uint16_t *b = x->b;
    step_tiles at = uniform ? x->steps[first] : (step_tiles){0};
    block_prefetch prefetch = x->prefetch;
    for (int64_t n = 0; n < steps; n++) {
        const int64_t index = first + direction * n;
        at = uniform ? at : x->steps[index];
        prefetch_step(&prefetch, n);
        multiply_step(&at, b + at.b, tiles, copy ? x->a_copy + index * STRIP_AB : NULL);
        at.a += uniform ? direction * x->a_step : 0;
        at.b += direction * 2 * AMX_AB;
    }
}

INLINE void multiply_tiles(const panel_product *x, int64_t tiles, bool uniform)
{
    if (tiles == 3) {
        multiply_steps(x, 3, uniform, false);
    } else if (tiles == 2) {
        multiply_steps(x, 2, uniform, false);
    } else {
        multiply_steps(x, 1, uniform, false);
    }
}

/* Multiplies all steps of a packed strip, forward (direction 1) or backward (-1). Strides are constants here,
 * so that all variables fit in the general registers: moves from vector registers would wait for products. */
INLINE void multiply_packed(const panel_product *x, int64_t direction)
{
    const int64_t steps = x->n_steps, first = direction < 0 ? steps - 1 : 0;
    step_tiles at = {x->steps[0].a + first * STRIP_AB, AMX_AB, 64, 0};
    const uint16_t *b = x->b + first * 2 * AMX_AB;
    block_prefetch prefetch = x->prefetch;
    for (int64_t n = 0; n < steps; n++) {
        prefetch_step(&prefetch, n);
        multiply_step(&at, b, 3, NULL);
        at.a += direction * STRIP_AB;
        b += direction * 2 * AMX_AB;
    }
}

static void begin_sums(const c_block *c, bool add)
{
    const int64_t stride = 4 * c->ldc, tile = AMX_ROWS * c->ldc;
    AMX_ZERO(0);
    AMX_ZERO(1);
    AMX_ZERO(2);
    AMX_ZERO(3);
    AMX_ZERO(4);
    AMX_ZERO(5);
    if (add) {
        AMX_LOAD(0, c->c, stride);
        AMX_LOAD(1, c->c + AMX_LANES, stride);
    }
    if (add && c->tiles > 1) {
        AMX_LOAD(2, c->c + tile, stride);
        AMX_LOAD(3, c->c + tile + AMX_LANES, stride);
    }
    if (add && c->tiles > 2) {
        AMX_LOAD(4, c->c + 2 * tile, stride);
        AMX_LOAD(5, c->c + 2 * tile + AMX_LANES, stride);
    }
}

static void end_sums(const c_block *c)
{
    const int64_t stride = 4 * c->ldc, tile = AMX_ROWS * c->ldc;
    AMX_STORE(0, c->c, stride);
    AMX_STORE(1, c->c + AMX_LANES, stride);
    if (c->tiles > 1) {
        AMX_STORE(2, c->c + tile, stride);
        AMX_STORE(3, c->c + tile + AMX_LANES, stride);
    }
    if (c->tiles > 2) {
        AMX_STORE(4, c->c + 2 * tile, stride);
        AMX_STORE(5, c->c + 2 * tile + AMX_LANES, stride);
    }
}

/* Sets the block to the sum over the steps, or adds it. */
static void multiply_block(const panel_product *x, const c_block *c, bool add)
{
    const bool packed = x->uniform && c->tiles == 3 && x->a_step == STRIP_AB && x->steps[0].a_stride == 64;
    begin_sums(c, add);
    if (packed && x->reverse) {
        multiply_packed(x, -1);
    } else if (packed) {
        multiply_packed(x, 1);
    } else if (x->a_copy != NULL) {
        multiply_steps(x, 3, false, true);
    } else if (x->uniform) {
        multiply_tiles(x, c->tiles, true);
    } else {
        multiply_tiles(x, c->tiles, false);
    }
    end_sums(c);
}

#endif
