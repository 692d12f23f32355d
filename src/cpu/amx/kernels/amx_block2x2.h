/* Blocks of 2 x 2 tiles of C, so that each load of an operand's tile serves two products. The tile registers:
 *
 *               B 6   B 7
 *         A 4    0     1
 *         A 5    2     3
 *
 * The blocks are software pipelined: a store has to wait for the last product of its tile, and stores commit
 * in program order. So a block is stored while the next one begins: between a tile's last product and its
 * store come three products of other tiles. */
#ifndef AGI_CPU_AMX_BLOCK2X2_H
#define AGI_CPU_AMX_BLOCK2X2_H

#include "cpu/amx/kernels/amx.h"
#include "cpu/vec/kernels/vec.h"

/* Begins tile t with C if add, else with zeros. stride: bytes between rows. */
#define AMX_BEGIN(t, C, stride, add)                                                                         \
    do {                                                                                                     \
        if (add) {                                                                                           \
            AMX_LOAD(t, C, stride);                                                                          \
        } else {                                                                                             \
            AMX_ZERO(t);                                                                                     \
        }                                                                                                    \
    } while (0)

/* Stores tile t of the previous block, if there is one (prev), and begins tile t of the next one (C). Both tiles are
 * `offset` elements after the first one of their block. */
#define AMX_STORE_PREV_AND_BEGIN(t, prev, C, offset, stride, add)                                            \
    do {                                                                                                     \
        if ((prev) != NULL) {                                                                                \
            AMX_STORE(t, (prev) + (offset), stride);                                                         \
        }                                                                                                    \
        AMX_BEGIN(t, (C) + (offset), stride, add);                                                           \
    } while (0)

/* Stores the last block, which no other one follows. right, below: floats from its first tile to the
 * neighbours. */
INLINE void store_block2x2(float *C, int64_t right, int64_t below, int64_t stride)
{
    AMX_STORE(0, C, stride);
    AMX_STORE(1, C + right, stride);
    AMX_STORE(2, C + below, stride);
    AMX_STORE(3, C + below + right, stride);
}

#endif
