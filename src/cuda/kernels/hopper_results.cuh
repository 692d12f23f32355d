/* Storing the rows of a warp by any dtype and stride, through shared memory: coalesced, and the code that knows dtypes
 * stands in a loop instead of once per number. */
#pragma once
#include "cuda/kernels/hopper_verbs.cuh"
#include "cuda/kernels/results.cuh"

/* 16 rows of D numbers. */
template <int D> struct warp_rows {
    uint32_t memory; /* of the warp: 16 x D floats */

    /* x: as an accumulator of the warpgroup has them. */
    VERB void put(const float (&x)[D / 2]) const
    {
        const int lane = here((int)threadIdx.x) % 32;
        __syncwarp();
#pragma unroll
        for (int i = 0; i < D / 4; i++) {
            shared_store(memory + ((lane / 4 + i % 2 * 8) * D + i / 2 * 8 + lane % 4 * 2) * 4, x[2 * i],
                         x[2 * i + 1]);
        }
        __syncwarp();
    }
    /* The first `rows` of them, `width` numbers each; at: the first row's place in the tensor. low: what rounding takes
     * from them. */
    VERB void store(const output &out, int64_t at, int rows, int width, bool low) const
    {
        if (out.t->data == nullptr) {
            return;
        }
#pragma unroll 1
        for (int r = 0; r < 16 && r < rows; r++) {
            const int64_t to = at + r * out.t->strides[2];
#pragma unroll 1
            for (int c = here((int)threadIdx.x) % 32; c < width; c += 32) {
                const float x = shared_load(memory + (r * D + c) * 4);
                out.store(to + c * out.t->strides[3], low ? low_half(out.dtype, x) : x);
            }
        }
    }
};

/* An accumulator of the warpgroup as boxes of 64 rows of 64 numbers, which are next_box bytes apart; thread: of the
 * warpgroup. */
template <class F, int D>
VERB void put_boxes(uint32_t slab, uint32_t next_box, const float (&x)[D / 2], int thread)
{
    const int matrix = thread % 32 / 8;
    const int r = thread / 32 * 16 + thread % 8 + matrix % 2 * 8;
#pragma unroll
    for (int c = 0; c < D / 8; c += 2) {
        const int chunk = c % 8 + matrix / 2;
        store_matrices(slab + c / 8 * next_box + r * 128 + ((chunk ^ (r % 8)) << 4),
                       F::pack(x[4 * c], x[4 * c + 1]), F::pack(x[4 * c + 2], x[4 * c + 3]),
                       F::pack(x[4 * c + 4], x[4 * c + 5]), F::pack(x[4 * c + 6], x[4 * c + 7]));
    }
}
