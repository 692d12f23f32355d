/* Tiles of matrix products in portable C. A tile is packed into panels of the accumulator's format, whatever
 * dtype, stride or transposition it came with, so that one kernel serves all of them and its inner loops run
 * over constants, which a compiler turns into vectors. */
#include <string.h>

#include "matmul.h"
#include "number.h"

enum { TILE_M = 64, TILE_N = 128, TILE_K = 256 };

/* What is packed of one operand: lines of panels, depth along the sum. */
typedef struct {
    int64_t width, line0, lines, depth0, depth;
} block;

#define MR 4

#define REAL float
#define NR 8
#define NAME(x) x##32
#include "matmul_tile.h"
#undef REAL
#undef NR
#undef NAME

#define REAL double
#define NR 4
#define NAME(x) x##64
#include "matmul_tile.h"
#undef REAL
#undef NR
#undef NAME

static size_t scratch(const ag_plan *plan)
{
    return plan->p.dtype == AG_F64 ? sizeof(tile64) : sizeof(tile32);
}

static void cut(const ag_plan *plan, const agi_matmul_op *op, int64_t tiles, agi_matmul_tile *at)
{
    (void)plan, (void)op, (void)tiles;
    at->m = TILE_M;
    at->n = TILE_N;
}

static void run(const ag_plan *plan, const agi_matmul_op *op, const agi_matmul_tile *at, void *memory)
{
    (void)plan;
    if (op->dtype == AG_F64) {
        run_tile64(op, at, memory);
    } else {
        run_tile32(op, at, memory);
    }
}

const agi_matmul_table agi_matmul_portable = {.scratch = scratch, .cut = cut, .run = run};
