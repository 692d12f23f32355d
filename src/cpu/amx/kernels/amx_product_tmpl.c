/* The product of tiles, in squares of four: a part of amx_kernels.c. */
#ifndef AGI_CPU_AMX_PRODUCT_H
#define AGI_CPU_AMX_PRODUCT_H

#include "cpu/amx/kernels/amx_kernels.h"
#include "cpu/vec/kernels/vec.h"

/* Tiles of an operand that stay in the first cache, beside those of the other one and of C that pass. */
enum { HELD = 12 };

/* An operand's tile, which the first cache takes in only where it will be read again from there. */
#define AMX_TAKE(held, t, p, row)                                                                            \
    do {                                                                                                     \
        if (held) {                                                                                          \
            AMX_LOAD(t, p, row);                                                                             \
        } else {                                                                                             \
            AMX_PASS(t, p, row);                                                                             \
        }                                                                                                    \
    } while (0)

#define AMX_BEGIN(t, p, row, add)                                                                            \
    do {                                                                                                     \
        if (add) {                                                                                           \
            AMX_LOAD(t, p, row);                                                                             \
        } else {                                                                                             \
            AMX_ZERO(t);                                                                                     \
        }                                                                                                    \
    } while (0)

/* Tile t of a square of C, `offset` behind its first, begins at k = 0, and the one of the square before is stored: a
 * store waits for the end of its products, four of which have begun since. */
#define AMX_FOLLOW(t, offset, row, add)                                                                      \
    do {                                                                                                     \
        if (k == 0) {                                                                                        \
            if (before != NULL) {                                                                            \
                AMX_STORE(t, before + (offset), row);                                                        \
            }                                                                                                \
            AMX_BEGIN(t, C + (offset), row, add);                                                            \
        }                                                                                                    \
    } while (0)

/* The last square has none behind it. */
INLINE void store_square(float *C, int64_t right, int64_t below, int64_t row)
{
    AMX_STORE(0, C, row);
    AMX_STORE(1, C + right, row);
    AMX_STORE(2, C + below, row);
    AMX_STORE(3, C + below + right, row);
}

/* Four tiles of C, 2 x 2, so that each load of a tile serves two products. They stay in the unit; those of the square
 * before are stored. */
INLINE void product_square(int64_t K, const uint16_t *A, const amx_operand *a, bool hold_a, const uint16_t *B,
                           const amx_operand *b, bool hold_b, float *before, float *C, const amx_sums *c,
                           bool add)
{
    const int64_t right = c->step, below = c->line;
    const int64_t a_row = 2 * a->row, a_line = a->line, a_step = a->step, b_line = b->line, b_step = b->step;
    for (int64_t k = 0; k < K; k++) {
        AMX_TAKE(hold_a, 4, A, a_row);
        AMX_TAKE(hold_b, 6, B, 64);
        AMX_FOLLOW(0, 0, 64, add);
        AMX_ADD_PRODUCT(0, 4, 6);
        AMX_TAKE(hold_b, 7, B + b_line, 64);
        AMX_FOLLOW(1, right, 64, add);
        AMX_ADD_PRODUCT(1, 4, 7);
        AMX_TAKE(hold_a, 5, A + a_line, a_row);
        AMX_FOLLOW(2, below, 64, add);
        AMX_ADD_PRODUCT(2, 5, 6);
        AMX_FOLLOW(3, below + right, 64, add);
        AMX_ADD_PRODUCT(3, 5, 7);
        A += a_step;
        B += b_step;
    }
}

/* All whole squares. The operand of which fewer tiles are used for each of the other's is held: two tiles of it at a
 * time. */
INLINE void product_squares(int64_t M, int64_t N, int64_t K, const amx_operand *A, bool hold_a,
                            const amx_operand *B, bool hold_b, const amx_sums *C, bool add)
{
    const bool high = M > N;
    const int64_t few = high ? N / 2 * 2 : M / 2 * 2, many = high ? M / 2 * 2 : N / 2 * 2;
    float *before = NULL;
    for (int64_t own = 0; own < few; own += 2) {
        for (int64_t other = 0; other < many; other += 2) {
            const int64_t m = high ? other : own, n = high ? own : other;
            float *const c = C->p + m * C->line + n * C->step;
            product_square(K, A->p + m * A->line, A, hold_a, B->p + n * B->line, B, hold_b, before, c, C,
                           add);
            before = c;
        }
    }
    if (before != NULL) {
        store_square(before, C->step, C->line, 64);
    }
}

/* What an odd number of tiles leaves. */
static void product_tile(int64_t m, int64_t n, int64_t K, const amx_operand *A, const amx_operand *B,
                         const amx_sums *C, bool add)
{
    const uint16_t *const a = A->p + m * A->line, *const b = B->p + n * B->line;
    float *const c = C->p + m * C->line + n * C->step;
    AMX_BEGIN(0, c, 64, add);
    for (int64_t k = 0; k < K; k++) {
        AMX_LOAD(4, a + k * A->step, 2 * A->row);
        AMX_LOAD(6, b + k * B->step, 64);
        AMX_ADD_PRODUCT(0, 4, 6);
    }
    AMX_STORE(0, c, 64);
}

static void product(int64_t M, int64_t N, int64_t K, const amx_operand *A, const amx_operand *B,
                    const amx_sums *C, bool add)
{
    const bool held = 2 * K <= HELD, high = M > N;
    if (!held) {
        product_squares(M, N, K, A, false, B, false, C, add);
    } else if (high) {
        product_squares(M, N, K, A, false, B, true, C, add);
    } else {
        product_squares(M, N, K, A, true, B, false, C, add);
    }
    for (int64_t n = 0; n < N && M % 2 == 1; n++) {
        product_tile(M - 1, n, K, A, B, C, add);
    }
    for (int64_t m = 0; m < M / 2 * 2 && N % 2 == 1; m++) {
        product_tile(m, N - 1, K, A, B, C, add);
    }
}

#endif
