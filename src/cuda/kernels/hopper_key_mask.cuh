/* The mask of a tile of scores whose rows are keys and whose columns are queries. In memory the keys of a query are
 * neighbours, but a thread has few keys and many queries: so lanes read 16 keys of a query each, the keys of their
 * warp, and exchange bits. */
#pragma once
#include "cuda/kernels/hopper_features.cuh"

/* Bit i of lane l becomes bit l of lane i. */
VERB uint32_t transpose_bits(uint32_t x)
{
    const uint32_t lane = threadIdx.x % 32;
    const uint32_t low[5] = {0x55555555, 0x33333333, 0x0f0f0f0f, 0x00ff00ff, 0x0000ffff};
#pragma unroll
    for (int n = 0; n < 5; n++) {
        const uint32_t step = 1u << n, other = __shfl_xor_sync(~0u, x, step);
        x = lane & step ? (x & ~low[n]) | (other >> step & low[n]) : (x & low[n]) | (other & low[n]) << step;
    }
    return x;
}

/* For a tile of N queries; the thread has keys `own` and own + 8 of the 16 of its warp. */
template <int N> struct key_mask {
    static constexpr int PARTS = N / 64;
    struct alignas(16) chunk {
        uint32_t words[4];
    };
    bool in_chunks;               /* the mask can be read so; the same answer in the whole warp */
    chunk read[PARTS][2];         /* of the lane's queries: lane, 32 + lane, and so on */
    uint32_t visible[PARTS][2][2]; /* bits by part, own key or own + 8, half of the part's queries */

    VERB void load(const agi_cuda_params &p, const fragment_place &at)
    {
        const ag_tensor &t = p.a.mask;
        const int lane = (int)threadIdx.x % 32, first = at.own - lane / 4;
        const int64_t all = t.strides[0] | t.strides[1] | t.strides[2];
        in_chunks = t.data != nullptr && t.strides[3] == 1 && all % 16 == 0 && (uintptr_t)t.data % 16 == 0 &&
                    first + 16 <= p.Nk;
        if (in_chunks) {
            const uint8_t *const from =
                (const uint8_t *)t.data + at.s.b * t.strides[0] + at.h * t.strides[1] + first;
#pragma unroll
            for (int i = 0; i < 2 * PARTS; i++) {
                const int query = min(at.first + 32 * i + lane, (int)p.Nq - 1);
                read[i / 2][i % 2] = *(const chunk *)(from + query * t.strides[2]);
            }
        }
    }
    /* Of 16 keys: bit 8 (k % 4) + k / 4 says that key k is visible. */
    VERB static uint32_t bits_of(const chunk &c)
    {
        uint32_t bits = 0;
#pragma unroll
        for (int n = 0; n < 4; n++) {
            const uint32_t x = c.words[n];
            bits |= ((((x & 0x7f7f7f7f) + 0x7f7f7f7f) | x) & 0x80808080) >> (7 - n);
        }
        return bits;
    }
    VERB void find()
    {
        const int lane = (int)threadIdx.x % 32, own = lane / 4;
        if (!in_chunks) {
            return;
        }
#pragma unroll
        for (int part = 0; part < PARTS; part++) {
            const uint32_t mine = transpose_bits(bits_of(read[part][0]) | bits_of(read[part][1]) << 4);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int lane_of = own % 4 * 8 + own / 4 + i / 2 * 2 + i % 2 * 4;
                visible[part][i / 2][i % 2] = __shfl_sync(~0u, mine, lane_of) >> lane % 4 * 2;
            }
        }
    }
    /* x = 0 where the mask hides a pair. */
    VERB void hide(float (&x)[N / 2], const agi_cuda_params &p, const fragment_place &at) const
    {
        if (in_chunks) {
#pragma unroll
            for (int n = 0; n < N / 2; n++) {
                const int group = n / 4; /* of eight queries */
                const uint32_t bits = visible[group / 8][n / 2 % 2][group / 4 % 2];
                x[n] = bits >> (group % 4 * 8 + n % 2) & 1 ? x[n] : 0;
            }
        } else if (p.a.mask.data != nullptr) {
            hide_masked<true>(x, p, at, 0);
        }
    }
};
