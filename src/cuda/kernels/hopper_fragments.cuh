/* Fragments on Hopper: the part that a thread has of a score tile. Its element n is row own + 8 (n / 2 % 2) and column
 * first + fragment_column(n) of the scores. Rows are queries and columns keys; with KEYS it is the other way round. */
#pragma once
#include "cuda/hopper_sets.h"
#include "cuda/kernels/features.cuh"
#include "cuda/kernels/hopper_verbs.cuh"

struct fragment_place {
    const sequence &s;
    int h, own, first;
};
VERB int fragment_column(int n)
{
    return n / 4 * 8 + (int)threadIdx.x % 4 * 2 + n % 2;
}

/* ---- Tensors with an entry for each pair: bias and mask ---- */

/* Where a fragment's entries are in a tensor: rows, columns of the tile. */
template <bool KEYS, int COUNT> struct pair_entries {
    int64_t row[2], step; /* of the thread's first column */
    int columns; /* that the tensor has from there on; what lies behind its ends is hidden, and not read */

    VERB pair_entries(const agi_cuda_params &p, const ag_tensor &t, const fragment_place &at)
    {
        const int64_t stride = t.strides[KEYS ? 3 : 2];
        const int last = (int)(KEYS ? p.Nk : p.Nq) - 1, column = at.first + fragment_column(0);
        step = t.strides[KEYS ? 2 : 3];
        columns = (int)(KEYS ? p.Nq : p.Nk) - column;
        row[0] = at.s.b * t.strides[0] + at.h * t.strides[1] + min(at.own, last) * stride + column * step;
        row[1] = row[0] + (min(at.own + 8, last) - min(at.own, last)) * stride;
    }
    /* Calls f(n, offset) for each element n that the tensor has. */
    template <class Function> VERB void each(Function f)
    {
#pragma unroll
        for (int n = 0; n < COUNT; n += 4) {
#pragma unroll
            for (int c = 0; c < 2; c++) {
                if (2 * n + c < columns) {
                    f(n + c, row[0] + c * step);
                    f(n + 2 + c, row[1] + c * step);
                }
            }
            row[0] += 8 * step;
            row[1] += 8 * step;
        }
    }
    /* Are two columns neighbours in memory, aligned as a pair, in the whole warp? Then each_pair calls f(n, offset) for
     * elements n and n + 1. `bytes`: of an entry. */
    VERB bool in_pairs(const void *data, int bytes) const
    {
        const bool aligned = (row[0] | row[1]) % 2 == 0 && (uintptr_t)data % (2 * bytes) == 0;
        return !KEYS && step == 1 && !__any_sync(~0u, !aligned || columns < 2 * COUNT - 6);
    }
    template <class Function> VERB void each_pair(Function f) const
    {
#pragma unroll
        for (int n = 0; n < COUNT; n += 2) {
            f(n, row[n / 2 % 2] + n / 4 * 8);
        }
    }
};
