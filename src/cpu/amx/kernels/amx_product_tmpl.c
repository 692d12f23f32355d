/* Part of amx_kernels.c: the product of two operands, C = or += A B, in blocks of 2 x 2 tiles. */
#include "cpu/amx/kernels/amx_block2x2.h"
#include "cpu/amx/kernels/amx_kernels.h"
#include "cpu/vec/kernels/vec.h"

/* The tiles of one operand that stay in the first cache, while those of the other one and of C stream through it. */
enum { MAX_CACHED_TILES = 12 };

/* A tile of an operand. The first cache keeps it only if it is read again from there. */
#define AMX_LOAD_OPERAND(cached, t, p, stride)                                                               \
    do {                                                                                                     \
        if (cached) {                                                                                        \
            AMX_LOAD(t, p, stride);                                                                          \
        } else {                                                                                             \
            AMX_LOAD_T1(t, p, stride);                                                                       \
        }                                                                                                    \
    } while (0)

/* One block at C, from the tiles at A and B on; the block at prev, NULL if there is none, is stored. */
INLINE void product_block(int64_t K, const uint16_t *A, const amx_operand *a, bool cache_a, const uint16_t *B,
                          const amx_operand *b, bool cache_b, float *prev, float *C, const amx_sums *c,
                          bool add)
{
    const int64_t right = c->stride_n, below = c->stride_m;
    const int64_t a_row = 2 * a->ld, a_below = a->stride_mn, a_next = a->stride_k, b_right = b->stride_mn,
                  b_next = b->stride_k;
    for (int64_t k = 0; k < K; k++) {
        const bool first = k == 0;
        AMX_LOAD_OPERAND(cache_a, 4, A, a_row);
        AMX_LOAD_OPERAND(cache_b, 6, B, 64);
        if (first) {
            AMX_STORE_PREV_AND_BEGIN(0, prev, C, 0, 64, add);
        }
        AMX_ADD_PRODUCT(0, 4, 6);
        AMX_LOAD_OPERAND(cache_b, 7, B + b_right, 64);
        if (first) {
            AMX_STORE_PREV_AND_BEGIN(1, prev, C, right, 64, add);
        }
        AMX_ADD_PRODUCT(1, 4, 7);
        AMX_LOAD_OPERAND(cache_a, 5, A + a_below, a_row);
        if (first) {
            AMX_STORE_PREV_AND_BEGIN(2, prev, C, below, 64, add);
        }
        AMX_ADD_PRODUCT(2, 5, 6);
        if (first) {
            AMX_STORE_PREV_AND_BEGIN(3, prev, C, below + right, 64, add);
        }
        AMX_ADD_PRODUCT(3, 5, 7);
        A += a_next;
        B += b_next;
    }
}

/* All blocks. The outer loop runs along the shorter side of C: two tiles along it are used for all of the other side,
 * and their operand is the one to cache. */
INLINE void product_blocks(int64_t M, int64_t N, int64_t K, const amx_operand *A, bool cache_a,
                           const amx_operand *B, bool cache_b, const amx_sums *C, bool add)
{
    const bool n_outside = M > N;
    const int64_t outer_end = n_outside ? N / 2 * 2 : M / 2 * 2,
                  inner_end = n_outside ? M / 2 * 2 : N / 2 * 2;
    float *prev = NULL;
    for (int64_t outer = 0; outer < outer_end; outer += 2) {
        for (int64_t inner = 0; inner < inner_end; inner += 2) {
            const int64_t m = n_outside ? inner : outer, n = n_outside ? outer : inner;
            float *const c = C->p + m * C->stride_m + n * C->stride_n;
            product_block(K, A->p + m * A->stride_mn, A, cache_a, B->p + n * B->stride_mn, B, cache_b, prev,
                          c, C, add);
            prev = c;
        }
    }
    if (prev != NULL) {
        store_block2x2(prev, C->stride_n, C->stride_m, 64);
    }
}

/* A single tile of C: what blocks leave of an odd number of tiles. */
static void product_tile(int64_t m, int64_t n, int64_t K, const amx_operand *A, const amx_operand *B,
                         const amx_sums *C, bool add)
{
    const uint16_t *const a = A->p + m * A->stride_mn, *const b = B->p + n * B->stride_mn;
    float *const c = C->p + m * C->stride_m + n * C->stride_n;
    AMX_BEGIN(0, c, 64, add);
    for (int64_t k = 0; k < K; k++) {
        AMX_LOAD(4, a + k * A->stride_k, 2 * A->ld);
        AMX_LOAD(6, b + k * B->stride_k, 64);
        AMX_ADD_PRODUCT(0, 4, 6);
    }
    AMX_STORE(0, c, 64);
}

static void product(int64_t M, int64_t N, int64_t K, const amx_operand *A, const amx_operand *B,
                    const amx_sums *C, bool add)
{
    const bool cached = 2 * K <= MAX_CACHED_TILES, n_outside = M > N;
    if (!cached) {
        product_blocks(M, N, K, A, false, B, false, C, add);
    } else if (n_outside) {
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
