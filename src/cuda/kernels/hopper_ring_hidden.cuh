/* vjp and vjp_jvp in one kernel (hopper_ring.cu, hopper_second_ring.cu): rows and pairs that are hidden, for the
 * threads that compute. */
#pragma once
#include "cuda/kernels/hopper_walk.cuh"

/* Rows that may hold anything become zeros in shared memory, as 0 times NaN is NaN: chunk i, 16 bytes, of a matrix of
 * boxes of so many rows, unless its row is in first <= r < end. */
VERB void clear_chunk(uint32_t matrix, uint32_t box, int rows, int first, int end, int i)
{
    const int r = i / 8 % rows;
    if (r < first || r >= end) {
        shared_zero_16(matrix + i / 8 / rows * box + r * 128 + i % 8 * 16);
    }
}

/* Has the tile queries that see no key at all? The same answer in the whole warp. Consumer has is_blind(query). */
template <template <class> class Consumer, class T> VERB bool has_blind_queries(const Consumer<T> &c)
{
    bool any = false;
#pragma unroll
    for (int r = 0; r < T::N; r += 32) {
        any |= c.is_blind(r + c.lane());
    }
    return __any_sync(~0u, any);
}

/* Calls f(element) for each hidden pair of the tile of queries from `row` on. Consumer has key(at), the thread's first
 * key, and query(row), the query of its first number. */
template <class Consumer, class T, class Function>
VERB void each_hidden(const Consumer &c, const key_walk<T> &at, int row, Function f)
{
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int j = c.key(at) + 8 * half;
        const int first = j - at.s.high - c.query(row);
        const int end = j < at.s.n_k ? min(j - at.s.low + 1, at.s.n_q) - c.query(row) : -FAR;
#pragma unroll
        for (int i = 0; i < T::N / 4; i++) {
            const int column = i / 2 * 8 + i % 2;
            if (column < first || column >= end) {
                f(i / 2 * 4 + 2 * half + i % 2);
            }
        }
    }
}

/* x = 0 where a pair is hidden. */
template <class Consumer, class T>
VERB void hide_pairs(const Consumer &c, const key_walk<T> &at, int row, float (&x)[T::N / 2])
{
    each_hidden(c, at, row, [&](int i) { x[i] = 0; });
}
