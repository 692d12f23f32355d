/* The product of tiles: a part of amx_kernels.c. */
#ifndef AGI_CPU_AMX_PRODUCT_H
#define AGI_CPU_AMX_PRODUCT_H

#include "amx_kernels.h"
#include "vec.h"

/* Tiles of a sum that is short. */
enum { SHORT = 8 };

/* Tiles of an operand that stay in the first cache, beside those of the other one and of C that pass. */
enum { HELD = 24 };

/* C = or += A B, one of them: its tile is t. */
#define AMX_BEGIN(t, p, row, add)                                                                            \
    do {                                                                                                     \
        if (add) {                                                                                           \
            AMX_LOAD(t, p, row);                                                                             \
        } else {                                                                                             \
            AMX_ZERO(t);                                                                                     \
        }                                                                                                    \
    } while (0)

/* Four tiles of C: 2 x 2, so that each load of a tile serves two products. Operands of a long sum are in the second
 * cache, and a tile that takes the first one's lines on its way is a fifth slower. */
INLINE void product_2x2(int64_t K, const uint16_t *A, const amx_operand *a, const uint16_t *B,
                        const amx_operand *b, float *C, const amx_sums *c, bool add)
{
    const int64_t row = 2 * a->row, c_row = 4 * c->row, c_step = c->step, a_line = a->line, a_step = a->step,
                  b_line = b->line, b_step = b->step;
    float *const below = C + c->line;
    AMX_BEGIN(0, C, c_row, add);
    AMX_BEGIN(1, C + c_step, c_row, add);
    AMX_BEGIN(2, below, c_row, add);
    AMX_BEGIN(3, below + c_step, c_row, add);
    for (int64_t k = 0; k < K; k++) {
        AMX_PASS(4, A, row);
        AMX_PASS(6, B, 64);
        AMX_ADD_PRODUCT(0, 4, 6);
        AMX_PASS(7, B + b_line, 64);
        AMX_ADD_PRODUCT(1, 4, 7);
        AMX_PASS(5, A + a_line, row);
        AMX_ADD_PRODUCT(2, 5, 6);
        AMX_ADD_PRODUCT(3, 5, 7);
        A += a_step;
        B += b_step;
    }
    AMX_STORE(0, C, c_row);
    AMX_STORE(1, C + c_step, c_row);
    AMX_STORE(2, below, c_row);
    AMX_STORE(3, below + c_step, c_row);
}

/* The same for a short sum, where loads and stores of C are what counts: a store waits for the end of its products, so
 * the upper two tiles are stored among the products of the lower two. Those run over k backwards, from the tiles of B
 * that are there; so a sum's last bit may depend on where its tile is, and on whether it has a neighbour. */
INLINE void product_short(int64_t K, const uint16_t *A, const amx_operand *a, const uint16_t *B,
                          const amx_operand *b, float *C, const amx_sums *c, bool add)
{
    const int64_t row = 2 * a->row, c_row = 4 * c->row, c_step = c->step, a_step = a->step, b_line = b->line,
                  b_step = b->step;
    const uint16_t *const lower = A + a->line;
    float *const below = C + c->line;
    AMX_BEGIN(0, C, c_row, add);
    AMX_BEGIN(1, C + c_step, c_row, add);
    for (int64_t k = 0; k < K; k++) {
        AMX_LOAD(4, A + k * a_step, row);
        AMX_LOAD(6, B + k * b_step, 64);
        AMX_ADD_PRODUCT(0, 4, 6);
        AMX_LOAD(7, B + k * b_step + b_line, 64);
        AMX_ADD_PRODUCT(1, 4, 7);
    }
    AMX_BEGIN(2, below, c_row, add);
    AMX_BEGIN(3, below + c_step, c_row, add);
    AMX_LOAD(5, lower + (K - 1) * a_step, row);
    AMX_ADD_PRODUCT(2, 5, 6);
    AMX_ADD_PRODUCT(3, 5, 7);
    AMX_STORE(0, C, c_row);
    AMX_STORE(1, C + c_step, c_row);
    for (int64_t k = K - 2; k >= 0; k--) {
        AMX_LOAD(5, lower + k * a_step, row);
        AMX_LOAD(6, B + k * b_step, 64);
        AMX_ADD_PRODUCT(2, 5, 6);
        AMX_LOAD(7, B + k * b_step + b_line, 64);
        AMX_ADD_PRODUCT(3, 5, 7);
    }
    AMX_STORE(2, below, c_row);
    AMX_STORE(3, below + c_step, c_row);
}

/* What an odd number of tiles leaves: one. */
INLINE void product_1x1(int64_t K, const uint16_t *A, const amx_operand *a, const uint16_t *B,
                        const amx_operand *b, float *C, int64_t row, bool add)
{
    AMX_BEGIN(0, C, 4 * row, add);
    for (int64_t k = 0; k < K; k++) {
        AMX_LOAD(4, A, 2 * a->row);
        AMX_LOAD(6, B, 64);
        AMX_ADD_PRODUCT(0, 4, 6);
        A += a->step;
        B += b->step;
    }
    AMX_STORE(0, C, 4 * row);
}

/* Tiles m and m + 1 by n and n + 1 of C, as far as there are such. */
INLINE void product_square(int64_t m, int64_t M, int64_t n, int64_t N, int64_t K, const amx_operand *A,
                           const amx_operand *B, const amx_sums *C, bool add)
{
    const uint16_t *const a = A->p + m * A->line, *const b = B->p + n * B->line;
    float *const c = C->p + m * C->line + n * C->step;
    if (m + 2 <= M && n + 2 <= N) {
        if (K > SHORT || K == 0) {
            product_2x2(K, a, A, b, B, c, C, add);
        } else {
            product_short(K, a, A, b, B, c, C, add);
        }
        return;
    }
    product_1x1(K, a, A, b, B, c, C->row, add);
    if (m + 2 <= M) {
        product_1x1(K, a + A->line, A, b, B, c + C->line, C->row, add);
    } else if (n + 2 <= N) {
        product_1x1(K, a, A, b + B->line, B, c + C->step, C->row, add);
    }
}

/* The operand that is used more often for each of its tiles stays in the first cache: four tiles of it at a time, where
 * they fit, so that the other one comes from the second cache half as often. */
static void product(int64_t M, int64_t N, int64_t K, const amx_operand *A, const amx_operand *B,
                    const amx_sums *C, bool add)
{
    const bool high = M > N;
    const int64_t few = high ? N : M, many = high ? M : N, held = 4 * K <= HELD ? 4 : 2;
    for (int64_t first = 0; first < few; first += held) {
        const int64_t end = first + held < few ? first + held : few;
        for (int64_t other = 0; other < many; other += 2) {
            for (int64_t own = first; own < end; own += 2) {
                product_square(high ? other : own, M, high ? own : other, N, K, A, B, C, add);
            }
        }
    }
}

#endif
