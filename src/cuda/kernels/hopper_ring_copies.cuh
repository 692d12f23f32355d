/* vjp in one kernel (hopper_ring.cu): the threads that compute nothing. One takes the block's items, copies tiles and
 * notes down what each step is; two pass dQ on from block to block, and so tdQ in vjp_jvp (hopper_second_ring.cu). */
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

/* Calls f(at, k) for each item of the block, the k-th, whose walk the other threads know by then. */
template <class T, class Call, class Memory, class Function>
VERB void each_item(const Call &call, const Memory &memory, Function f)
{
    item_list items(call, has_mask(T::FEATURES));
    key_walk<T> at;
    key_item item;
    int k = 0;
    for (; take_item(call, memory, items, item, k); k++) {
        item.head = head_in_order<T::FEATURES>(call.p, item.head, call.p.Hk);
        at.begin(call, item);
        if constexpr (has_mask(T::FEATURES)) {
            at.tiles = listed_steps<T, Call>(call, at).is_there() ? at.tiles : 0;
        }
        memory.post(k, at);
        f(at, k);
    }
    at.heads = 0;
    memory.post(k, at);
}

/* K and V, with vjp_jvp their tangents. The results of an item take the place of its keys, even if it has none to
 * load. */
template <class T, int MATRICES, class Call, class Memory>
VERB void copy_keys(const Call &f, const Memory &memory, const key_walk<T> &at, int k)
{
    if (k > 0) {
        barrier_wait(memory.own_empty, (k - 1) % 2);
    }
    if (at.tiles == 0) {
        barrier_arrive(memory.own_full);
        return;
    }
    const side_copy<T, 0, MATRICES, Call> copy(f, at.s, true);
    barrier_expect(memory.own_full, MATRICES * T::OWN);
#pragma unroll
    for (int i = 0; i < MATRICES * T::BOXES; i++) {
        copy.load(memory.own + i * 2 * T::SLAB, memory.own_full, i / T::BOXES, i % T::BOXES, at.row,
                  at.kv_head);
    }
}

/* Which matrices: 0 is Q or K, 1 is dO or V. */
VERB int operand_of(const agi_hopper_ring &, bool keys, int matrix)
{
    return keys ? (matrix == 0 ? AGI_CUDA_K : AGI_CUDA_V) : (matrix == 0 ? AGI_CUDA_Q : AGI_CUDA_DO);
}
VERB const agi_cuda_tensor_map &map_of(const agi_hopper_ring &f, bool keys, int matrix)
{
    return keys ? (matrix == 0 ? f.k : f.v) : (matrix == 0 ? f.q : f.d_o);
}

template <class T> struct ring_producer {
    static constexpr bool HAS_BIAS = (T::FEATURES & AGI_HAS_BIAS) != 0;
    typedef ring_memory<T> M;
    const agi_hopper_ring &f;
    const M &memory;
    uint32_t n = 0;       /* tiles of queries so far */
    uint32_t fetched = 0; /* see noted_steps */

    /* The bias comes to where dS will be: nobody reads the dS of two steps ago any more when the slot of Q is free. */
    VERB void copy_bias(const key_walk<T> &at, const ring_note &step) const
    {
        const int64_t *const strides = f.p.a.bias.strides;
        for (int box = 0; box < T::N / 64 * 2; box++) {
            const int queries = box / 2 * 64, w = box % 2;
            box_load(memory.bias(n, queries, w), f.bias, memory.q.full(n), at.row + w * 64,
                     step.row + queries, strides[1] == 0 ? 0 : step.head, strides[0] == 0 ? 0 : (int)at.s.b);
        }
    }
    /* Between the free slots and the copies nothing is computed. */
    VERB void copy_step(const key_walk<T> &at, const side_copy<T, 0, 2, agi_hopper_ring> &copy,
                        const ring_note &step, int64_t stats)
    {
        const uint32_t q_full = memory.q.full(n), d_o_full = memory.d_o.full(n);
        const bool boxes = HAS_BIAS && f.bias_in_boxes;
        memory.q.claim(n);
        memory.note(n) = step;
        barrier_expect(q_full, T::TILE + (HAS_BIAS ? 2 : 1) * T::N * 4 + (boxes ? M::SCORES : 0));
        copy.load_tile(memory.q.tile(n), q_full, 0, step.row, step.head);
        bulk_load(memory.lse(n), f.lse + stats, T::N * 4, q_full);
        if constexpr (HAS_BIAS) {
            bulk_load(memory.lse_rest(n), f.lse_rest + stats, T::N * 4, q_full);
        }
        if (boxes) {
            copy_bias(at, step);
        }
        memory.d_o.begin(n, T::TILE + T::N * 4);
        copy.load_tile(memory.d_o.tile(n), d_o_full, 1, step.row, step.head);
        bulk_load(memory.delta(n), f.delta + stats, T::N * 4, d_o_full);
        n++;
    }
    VERB void run()
    {
        each_item<T>(f, memory, [&](const key_walk<T> &at, int k) {
            copy_keys<T, 2>(f, memory, at, k);
            const side_copy<T, 0, 2, agi_hopper_ring> copy(f, at.s, false);
#pragma unroll 1
            for (noted_steps<T, agi_hopper_ring> step(f, at); step.is_there(); step.next(f.tiles)) {
                copy_step(at, copy, step.describe(at, fetched, memory.buffer_bit(n)), step.tile * T::N);
            }
        });
    }
};

/* ---- Two threads: dQ from block to block ---- */

/* Passes half w of the tiles of dQ on. At the last tile's visitor the sum of the others is fetched for the warpgroup;
 * at the other tiles what the warpgroup leaves is added to the sum in global memory, in its turn. */
template <class T, class M = ring_memory<T>, class Call = agi_hopper_ring> struct dq_passer {
    const Call &f;
    const M &memory;
    const int w;
    uint32_t n = 0;    /* steps so far */
    uint32_t kept = 0; /* a bit per buffer: the warpgroup reads it, and says when it is done */

    /* Nothing is computed between the warpgroup's numbers and the sum: the turn comes before them as a rule. */
    VERB void add(int32_t *passes, float *sum, int rank)
    {
        const uint32_t half = memory.half(n, w);
        wait_for_passes(passes, rank);
        memory.wait_done(n, w);
        if (rank > 0) {
            bulk_add(sum, half, M::HALF);
        } else {
            bulk_store(sum, half, M::HALF);
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
    VERB void pass_half(int64_t tile, bool last, int rank)
    {
        int32_t *const passes = f.passes + 2 * tile + w;
        float *const sum = f.sums + (2 * tile + w) * (M::HALF / 4);
        const uint32_t bit = memory.buffer_bit(n);
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
    VERB void run()
    {
#pragma unroll 1
        for (int k = 0;; k++) {
            const key_walk<T> &at = memory.walk(k);
            if (at.heads == 0) {
                return;
            }
            typename steps_of_item<T, Call>::ranks ranks = {at};
#pragma unroll 1
            for (typename steps_of_item<T, Call>::steps step(f, at); step.is_there(); step.next(f.tiles)) {
                pass_half(step.tile, step.is_last(), ranks.of(step));
            }
            barrier_arrive(memory.walked);
            memory.done_with(k);
        }
    }
};
