/* Part of amx_kernels.c: the product of two operands, C = or += A B, in blocks of 2 x 2 tiles. */
#include "cpu/amx/kernels/amx_block2x2.h"
#include "cpu/amx/kernels/amx_kernels.h"
#include "cpu/vec/kernels/vec.h"

/* Max tiles of one operand that stay in the L1 cache while those of the other one and of C stream through it. */
enum { MAX_CACHED_TILES = 12 };

/* Loads a tile of an operand. cached: the L1 cache shall keep it, because it is read again from there. */
#define AMX_LOAD_OPERAND(cached, t, p, stride)                                                               \
    do {                                                                                                     \
        if (cached) {                                                                                        \
            AMX_LOAD(t, p, stride);                                                                          \
        } else {                                                                                             \
            AMX_LOAD_T1(t, p, stride);                                                                       \
        }                                                                                                    \
    } while (0)

/* Computes one block of 2 x 2 tiles of C and leaves it in tile registers 0 to 3; K is in tiles. The block before it, at
 * prev (NULL if none), is still in these registers: each is stored just before it is reused. */
INLINE void product_block(int64_t K, const uint16_t *a_tile, const amx_operand *A, bool cache_a,
                          const uint16_t *b_tile, const amx_operand *B, bool cache_b, float *prev,
                          float *c_tile, const amx_sums *C, bool add)
{
    const int64_t right = C->stride_n, below = C->stride_m;
    const int64_t a_row_bytes = 2 * A->ld, a_below = A->stride_mn, a_next = A->stride_k,
                  b_right = B->stride_mn, b_next = B->stride_k;
    for (int64_t k = 0; k < K; k++) {
        const bool first = k == 0;
        AMX_LOAD_OPERAND(cache_a, 4, a_tile, a_row_bytes);
        AMX_LOAD_OPERAND(cache_b, 6, b_tile, 64);
        if (first) {
            AMX_STORE_PREV_AND_BEGIN(0, prev, c_tile, 0, 64, add);
        }
        AMX_ADD_PRODUCT(0, 4, 6);
        AMX_LOAD_OPERAND(cache_b, 7, b_tile + b_right, 64);
        if (first) {
            AMX_STORE_PREV_AND_BEGIN(1, prev, c_tile, right, 64, add);
        }
        AMX_ADD_PRODUCT(1, 4, 7);
        AMX_LOAD_OPERAND(cache_a, 5, a_tile + a_below, a_row_bytes);
        if (first) {
            AMX_STORE_PREV_AND_BEGIN(2, prev, c_tile, below, 64, add);
        }
        AMX_ADD_PRODUCT(2, 5, 6);
        if (first) {
            AMX_STORE_PREV_AND_BEGIN(3, prev, c_tile, below + right, 64, add);
        }
        AMX_ADD_PRODUCT(3, 5, 7);
        a_tile += a_next;
        b_tile += b_next;
    }
}

/* All blocks. The outer loop runs along the shorter side of C: the inner loop reads the same two rows or columns of
 * tiles of one operand again and again, and that operand is the one to cache. */
INLINE void product_blocks(int64_t M, int64_t N, int64_t K, const amx_operand *A, bool cache_a,
                           const amx_operand *B, bool cache_b, const amx_sums *C, bool add)
{
    const bool n_is_outer = M > N;
    const int64_t outer_end = n_is_outer ? N / 2 * 2 : M / 2 * 2,
                  inner_end = n_is_outer ? M / 2 * 2 : N / 2 * 2;
    float *prev = NULL;
    for (int64_t outer = 0; outer < outer_end; outer += 2) {
        for (int64_t inner = 0; inner < inner_end; inner += 2) {
            const int64_t m = n_is_outer ? inner : outer, n = n_is_outer ? outer : inner;
            float *const c_tile = C->p + m * C->stride_m + n * C->stride_n;
            product_block(K, A->p + m * A->stride_mn, A, cache_a, B->p + n * B->stride_mn, B, cache_b, prev,
                          c_tile, C, add);
            prev = c_tile;
        }
    }
    if (prev != NULL) {
        store_block2x2(prev, C->stride_n, C->stride_m, 64);
    }
}

/* A single tile of C: the last one of an odd number of tiles, which no block covers. */
static void product_tile(int64_t m, int64_t n, int64_t K, const amx_operand *A, const amx_operand *B,
                         const amx_sums *C, bool add)
{
    const uint16_t *const a_tile = A->p + m * A->stride_mn, *const b_tile = B->p + n * B->stride_mn;
    float *const c_tile = C->p + m * C->stride_m + n * C->stride_n;
    AMX_BEGIN(0, c_tile, 64, add);
    for (int64_t k = 0; k < K; k++) {
        AMX_LOAD(4, a_tile + k * A->stride_k, 2 * A->ld);
        AMX_LOAD(6, b_tile + k * B->stride_k, 64);
        AMX_ADD_PRODUCT(0, 4, 6);
    }
    AMX_STORE(0, c_tile, 64);
}

static void product(int64_t M, int64_t N, int64_t K, const amx_operand *A, const amx_operand *B,
                    const amx_sums *C, bool add)
{
    const bool cached = 2 * K <= MAX_CACHED_TILES, n_is_outer = M > N;
    if (!cached) {
        product_blocks(M, N, K, A, false, B, false, C, add);
    } else if (n_is_outer) {
        product_blocks(M, N, K, A, false, B, true, C, add);
    } else {
        product_blocks(M, N, K, A, true, B, false, C, add);
    }
    for (int64_t n = 0; n < N && M % 2 == 1; n++) {
        product_tile(M - 1, n, K, A, B, C, add);
    }
    for (int64_t m = 0; m < M / 2 * 2 && N % 2 == 1; m++) {
        product_tile(m, N - 1, K, A, B, C, add);
    }
}
