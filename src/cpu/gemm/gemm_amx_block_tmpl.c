/* A block of a matrix product on the AMX unit, 3 x 2 of its tiles: the sum over steps of AMX_DEPTH terms each, in
 * float32. Knows nothing of matrices. For the one file that cuts products into blocks: a call for each would cost short
 * sums a percent. */
#ifndef AGI_CPU_MATMUL_AMX_BLOCK_H
#define AGI_CPU_MATMUL_AMX_BLOCK_H

#include <stdbool.h>

#include "cpu/amx/kernels/amx.h"
#include "cpu/vec/kernels/vec.h"

/* A strip is the rows of A that are multiplied at once, a panel the columns of B. The more of the unit's tiles are
 * sums, the fewer operands they need each: what is read from a core's second cache limits the speed. */
enum { STRIP = 3 * AMX_ROWS, PANEL_COLS = 2 * AMX_LANES, STRIP_AB = 3 * AMX_AB };

/* Where one step finds its tiles: those of A lie `tile` numbers apart, their rows stride bytes; two of a panel of
 * B. */
typedef struct {
    const uint16_t *a;
    int64_t tile, stride, b;
} agi_amx_places;

/* What will be needed, and is asked for while the unit is busy, a little a step: more at once would keep its own
 * loads waiting. Rows of C, two a step; some rows of the next strip, where it stands, a step of each. */
typedef struct {
    uintptr_t c, a;
    int64_t c_stride, c_steps, a_stride, a_rows;
} agi_amx_goal;

/* What one panel is multiplied from, in which order. */
typedef struct {
    const agi_amx_places *at;
    const uint16_t *b;
    int64_t n_steps;
    bool even; /* do B's tiles follow each other, and each step's of A those before at the same distance, */
    int64_t next;   /* this one, in numbers? Not of no steps. */
    bool back;      /* from the last step to the first */
    uint16_t *keep; /* where the strip's tiles are kept as they pass; or NULL */
    agi_amx_goal to;
} agi_amx_pass;

/* A strip by a panel of C, at row i and column j of the tile; `tiles` of the unit's tiles high. */
typedef struct {
    int64_t i, j, tiles, ldc;
    float *c;
} agi_amx_block;

INLINE void ask(agi_amx_goal *to, int64_t n)
{
    if (n < to->c_steps) {
        _mm_prefetch((const char *)to->c, _MM_HINT_T0);
        _mm_prefetch((const char *)(to->c + (uintptr_t)to->c_stride), _MM_HINT_T0);
        to->c += 2 * (uintptr_t)to->c_stride;
    }
    for (int64_t r = 0; r < to->a_rows; r++) {
        _mm_prefetch((const char *)(to->a + (uintptr_t)(r * to->a_stride)), _MM_HINT_T1);
    }
    to->a += 64;
}

/* One step. There are tiles for no more than one operand of each kind: A's are loaded once, B's, which lie together,
 * for every one of A's, first and second by turns. */
INLINE void multiply_step(const agi_amx_places *at, const uint16_t *b, int tiles, uint16_t *keep)
{
    AMX_LOAD(7, at->a, at->stride);
    AMX_LOAD(6, b, 64);
    AMX_ADD_PRODUCT(0, 7, 6);
    AMX_LOAD(6, b + AMX_AB, 64);
    AMX_ADD_PRODUCT(1, 7, 6);
    if (keep != NULL) {
        AMX_STORE(7, keep, 64);
    }
    if (tiles > 1) {
        AMX_LOAD(7, at->a + at->tile, at->stride);
        AMX_ADD_PRODUCT(3, 7, 6);
        AMX_LOAD(6, b, 64);
        AMX_ADD_PRODUCT(2, 7, 6);
        if (keep != NULL) {
            AMX_STORE(7, keep + AMX_AB, 64);
        }
    }
    if (tiles > 2) {
        AMX_LOAD(7, at->a + 2 * at->tile, at->stride);
        AMX_ADD_PRODUCT(4, 7, 6);
        AMX_LOAD(6, b + AMX_AB, 64);
        AMX_ADD_PRODUCT(5, 7, 6);
        if (keep != NULL) {
            AMX_STORE(7, keep + 2 * AMX_AB, 64);
        }
    }
}

/* even: no address is loaded, as that would wait among the loads of tiles. */
INLINE void multiply_steps(const agi_amx_pass *x, int tiles, bool even, bool keep)
{
    const int64_t steps = x->n_steps, first = x->back ? steps - 1 : 0, way = x->back ? -1 : 1;
    const uint16_t *b = x->b;
    agi_amx_places at = even ? x->at[first] : (agi_amx_places){0};
    agi_amx_goal to = x->to;
    for (int64_t n = 0; n < steps; n++) {
        const int64_t own = first + way * n;
        at = even ? at : x->at[own];
        ask(&to, n);
        multiply_step(&at, b + at.b, tiles, keep ? x->keep + own * STRIP_AB : NULL);
        at.a += even ? way * x->next : 0;
        at.b += way * 2 * AMX_AB;
    }
}

INLINE void multiply_tiles(const agi_amx_pass *x, int64_t tiles, bool even)
{
    if (tiles == 3) {
        multiply_steps(x, 3, even, false);
    } else if (tiles == 2) {
        multiply_steps(x, 2, even, false);
    } else {
        multiply_steps(x, 1, even, false);
    }
}

/* The same of a packed strip, forward (1) or backward (-1): what changes fits in the general registers, as moves from
 * others would wait for products. */
INLINE void multiply_packed(const agi_amx_pass *x, int64_t way)
{
    const int64_t steps = x->n_steps, first = way < 0 ? steps - 1 : 0;
    agi_amx_places at = {x->at[0].a + first * STRIP_AB, AMX_AB, 64, 0};
    const uint16_t *b = x->b + first * 2 * AMX_AB;
    agi_amx_goal to = x->to;
    for (int64_t n = 0; n < steps; n++) {
        ask(&to, n);
        multiply_step(&at, b, 3, NULL);
        at.a += way * STRIP_AB;
        b += way * 2 * AMX_AB;
    }
}

static void begin_sums(const agi_amx_block *c, bool add)
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

static void end_sums(const agi_amx_block *c)
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

/* The block = or += the sum over the steps. */
static void agi_amx_multiply(const agi_amx_pass *x, const agi_amx_block *c, bool add)
{
    const bool packed = x->even && c->tiles == 3 && x->next == STRIP_AB && x->at[0].stride == 64;
    begin_sums(c, add);
    if (packed && x->back) {
        multiply_packed(x, -1);
    } else if (packed) {
        multiply_packed(x, 1);
    } else if (x->keep != NULL) {
        multiply_steps(x, 3, false, true);
    } else if (x->even) {
        multiply_tiles(x, c->tiles, true);
    } else {
        multiply_tiles(x, c->tiles, false);
    }
    end_sums(c);
}

#endif
