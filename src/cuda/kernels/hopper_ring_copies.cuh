/* vjp in one kernel (hopper_ring.cu): the threads that compute nothing. One takes the block's items and copies tiles; two
 * pass dQ on from block to block, and so tdQ in vjp_jvp (hopper_second_ring.cu). */
#pragma once
#include "cuda/kernels/hopper_ring_memory.cuh"

/* ---- Thread 0: copies, and takes the items ---- */

/* Who takes the next item of a band, its k-th, may not wait for others any more: they may wait for this one. */
template <class Call, class Memory>
VERB bool take_item(const Call &f, const Memory &memory, item_list &items, key_item &item, int k)
{
    if (!f.is_ring && k > 0) {
        barrier_wait(memory.walked, (k - 1) % 2);
    }
    return items.take(f, item);
}

template <class T> struct ring_producer {
    const agi_hopper_ring &f;
    const ring_memory<T> &memory;
    int n = 0; /* tiles of queries so far */

    /* The results of an item take the place of its keys, even if it has none to load. */
    VERB void copy_own(const key_walk<T> &at, int k)
    {
        if (k > 0) {
            barrier_wait(memory.own_empty, (k - 1) % 2);
        }
        if (at.tiles == 0) {
            barrier_arrive(memory.own_full);
            return;
        }
        barrier_expect(memory.own_full, 2 * T::OWN);
        for (int i = 0; i < 2 * T::BOXES; i++) {
            const int matrix = i / T::BOXES, box = i % T::BOXES;
            const box_place place = place_of(f.p.m[matrix == 0 ? AGI_CUDA_K : AGI_CUDA_V], at.s, true);
            box_load(memory.own + i * 2 * T::SLAB, matrix == 0 ? f.k : f.v, memory.own_full, box * 64,
                     place.row + at.row, at.kv_head, place.batch);
        }
    }
    VERB int64_t first_row(const key_walk<T> &at, int h, int m) const
    {
        return (h * f.tiles + first_tile_of(f.p, at.s, T::N) + m) * T::N;
    }
    /* more: bytes that come with it. */
    VERB void copy_tile(const key_walk<T> &at, const tile_ring<2> &ring, const agi_cuda_tensor_map &map, int operand,
                        int h, int m, uint32_t stats_to, const float *stats, uint32_t more)
    {
        const box_place place = place_of(f.p.m[operand], at.s, false);
        ring.begin(n, T::TILE + T::N * 4 + more);
        for (int box = 0; box < T::BOXES; box++) {
            box_load(ring.tile(n) + box * T::BOX, map, ring.full(n), box * 64, place.row + m * T::N, h, place.batch);
        }
        bulk_load(stats_to, stats + first_row(at, h, m), T::N * 4, ring.full(n));
    }
    /* The bias comes to where dS will be: nobody reads the dS of two steps ago any more when the slot of Q is free. */
    VERB void copy_bias(const key_walk<T> &at, int h, int m) const
    {
        const int64_t *const strides = f.p.a.bias.strides;
        for (int box = 0; box < T::N / 64 * 2; box++) {
            const int queries = box / 2 * 64, w = box % 2;
            box_load(memory.bias(n, queries, w), f.bias, memory.q.full(n), at.row + w * 64, m * T::N + queries,
                     strides[1] == 0 ? 0 : h, strides[0] == 0 ? 0 : (int)at.s.b);
        }
    }
    VERB void copy_queries(const key_walk<T> &at, int h, int m)
    {
        constexpr bool HAS_BIAS = (T::FEATURES & AGI_HAS_BIAS) != 0;
        const bool boxes = HAS_BIAS && f.bias_in_boxes;
        const uint32_t more = (HAS_BIAS ? T::N * 4 : 0) + (boxes ? ring_memory<T>::SCORES : 0);
        copy_tile(at, memory.q, f.q, AGI_CUDA_Q, h, m, memory.lse(n), f.lse, more);
        if constexpr (HAS_BIAS) {
            bulk_load(memory.lse_rest(n), f.lse_rest + first_row(at, h, m), T::N * 4, memory.q.full(n));
        }
        if (boxes) {
            copy_bias(at, h, m);
        }
        copy_tile(at, memory.d_o, f.d_o, AGI_CUDA_DO, h, m, memory.delta(n), f.delta, 0);
    }
    VERB void run()
    {
        item_list items(f);
        key_walk<T> at;
        key_item item;
        int k = 0;
        for (; take_item(f, memory, items, item, k); k++) {
            at.begin(f, item);
            memory.post(k, at);
            copy_own(at, k);
            for (int h = at.head; h < at.head + at.heads; h++) {
                for (int c = 0; c < at.tiles; c++, n++) {
                    copy_queries(at, h, at.tile(c));
                }
            }
        }
        at.heads = 0;
        memory.post(k, at);
    }
};

/* ---- Two threads: dQ from block to block ---- */

/* Passes half w of the tiles of dQ on. At the last tile's visitor the sum of the others is fetched for the warpgroup; at
 * the other tiles what the warpgroup leaves is added to the sum in global memory, in its turn. */
template <class T, class M = ring_memory<T>, class Call = agi_hopper_ring> struct dq_passer {
    const Call &f;
    const M &memory;
    const int w;
    int n = 0;         /* steps so far */
    uint32_t kept = 0; /* a bit per buffer: the warpgroup reads it, and says when it is done */

    VERB void add(int32_t *passes, float *sum, int rank)
    {
        memory.wait_done(n, w);
        wait_for_passes(passes, rank);
        if (rank > 0) {
            bulk_add(sum, memory.half(n, w), M::HALF);
        } else {
            bulk_store(sum, memory.half(n, w), M::HALF);
        }
        bulk_wait_read();
        barrier_arrive(memory.empty(n, w));
        bulk_wait();
        pass(passes);
    }
    VERB void fetch(const int32_t *passes, const float *sum, int rank)
    {
        if (rank > 0) {
            wait_for_passes(passes, rank);
            barrier_expect(memory.fetched(n, w), M::HALF);
            bulk_load(memory.half(n, w), sum, M::HALF, memory.fetched(n, w));
        }
    }
    VERB void step(int64_t tile, bool last, int rank)
    {
        int32_t *const passes = f.passes + 2 * tile + w;
        float *const sum = f.sums + (2 * tile + w) * (M::HALF / 4);
        const uint32_t bit = 1u << n % M::STAGED;
        if (kept & bit) {
            memory.wait_done(n - M::STAGED, w);
            barrier_arrive(memory.empty(n, w));
        }
        kept = last ? kept | bit : kept & ~bit;
        if (last) {
            fetch(passes, sum, rank);
        } else {
            add(passes, sum, rank);
        }
        n++;
    }
    VERB void walk(const key_walk<T> &at, int h)
    {
        const int64_t tiles = h * f.tiles + first_tile_of(f.p, at.s, T::N);
        int nearest = at.position;
        for (int c = 0; c < at.tiles; c++) {
            const int m = at.tile(c);
            nearest = m == 0 ? 0 : nearest;
            const int rank = at.rank(m, nearest);
            step(tiles + m, at.is_last(c), rank);
        }
    }
    VERB void run()
    {
        for (int k = 0;; k++) {
            const key_walk<T> &at = memory.walk(k);
            if (at.heads == 0) {
                return;
            }
            for (int h = at.head; h < at.head + at.heads; h++) {
                walk(at, h);
            }
            barrier_arrive(memory.walked);
            memory.done_with(k);
        }
    }
};
