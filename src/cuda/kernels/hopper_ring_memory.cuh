/* vjp in one kernel (hopper_ring.cu): its shape, and its shared memory with the barriers in it. What has to do with
 * items and with sums that go from block to block serves vjp_jvp too (hopper_second_ring.cu). */
#pragma once
#include "cuda/kernels/hopper_features.cuh"
#include "cuda/kernels/hopper_ring_notes.cuh"

/* At head size 64 a tile has 128 queries, whose scores need more registers. */
template <class F, int D, int CONSUMERS, int N, int STAGES, int FEATURES = 0>
struct ring_shape : hopper_shape<F, D, CONSUMERS, N, STAGES, FEATURES> {
    static constexpr int PRODUCER_REGISTERS = D == 64 ? 24 : 40, CONSUMER_REGISTERS = D == 64 ? 240 : 232;
};

/* The walk of an item, notes of two steps, and half tiles of dQ or tdQ on their way. STAGED: buffers of them. */
template <class T, int STAGED_> struct passing_memory {
    static constexpr int STAGED = STAGED_;
    static constexpr int HALF = T::N * T::D * 2; /* bytes of half a tile of dQ */
    static_assert(sizeof(key_walk<T>) <= AGI_HOPPER_RING_WALK, "room for the walks");
    static_assert(sizeof(ring_note) <= AGI_HOPPER_RING_NOTE, "room for the notes");
    uint32_t staged, passing, posted, walked;
    key_walk<T> *walks; /* of the item that is computed, and the next */
    ring_note *notes;   /* of the steps whose tiles are in shared memory */

    /* Where walks and notes are. */
    VERB void place_walks(char *at)
    {
        walks = (key_walk<T> *)at;
        notes = (ring_note *)(at + 2 * AGI_HOPPER_RING_WALK);
    }

    VERB void init_passing() const
    {
        barrier_init(walked, 2);
        for (int n = 0; n < 2; n++) {
            barrier_init(posted + n * 16, 1);
            barrier_init(posted + n * 16 + 8, 4); /* two warpgroups, two threads that pass dQ on */
        }
        for (int half = 0; half < 2 * STAGED; half++) {
            barrier_init(passing + half * 24, 1);
            barrier_init(passing + half * 24 + 8, 1);
            barrier_init(passing + half * 24 + 16, 4);
        }
    }
    /* The walk of item k: posted by the producer, read by the others until they are done with the item. */
    VERB void post(int k, const key_walk<T> &walk) const
    {
        if (k >= 2) {
            barrier_wait(posted + k % 2 * 16 + 8, (k / 2 - 1) % 2);
        }
        walks[k % 2] = walk;
        barrier_arrive(posted + k % 2 * 16);
    }
    VERB const key_walk<T> &walk(int k) const
    {
        barrier_wait(posted + k % 2 * 16, k / 2 % 2);
        return walks[k % 2];
    }
    VERB ring_note &note(uint32_t n) const
    {
        return notes[n % 2];
    }
    VERB void done_with(int k) const
    {
        barrier_arrive(posted + k % 2 * 16 + 8);
    }
    /* A half of dQ at step n, the bit of its buffer, and its barriers. `empty`: nobody needs what the buffer had
     * before; `fetched`: the sum of the blocks before is in it; `done`: the warps of the warpgroup have filled or read
     * it. */
    VERB uint32_t buffer_bit(uint32_t n) const
    {
        return 1u << n % STAGED;
    }
    VERB uint32_t half(uint32_t n, int w) const
    {
        return staged + (n % STAGED * 2 + w) * HALF;
    }
    VERB uint32_t empty(uint32_t n, int w) const
    {
        return passing + (n % STAGED * 2 + w) * 24;
    }
    VERB uint32_t fetched(uint32_t n, int w) const
    {
        return empty(n, w) + 8;
    }
    VERB uint32_t done(uint32_t n, int w) const
    {
        return empty(n, w) + 16;
    }
    VERB void wait_empty(uint32_t n, int w) const
    {
        if (n >= STAGED) {
            barrier_wait(empty(n, w), (n / STAGED - 1) % 2);
        }
    }
    VERB void wait_done(uint32_t n, int w) const
    {
        barrier_wait(done(n, w), n / STAGED % 2);
    }
};

template <class T> struct ring_memory : passing_memory<T, AGI_HOPPER_RING_STAGED(T::D)> {
    typedef passing_memory<T, AGI_HOPPER_RING_STAGED(T::D)> base;
    static constexpr int SCORES = T::N * KEYS_OF_BLOCK * 2; /* bytes of dS */
    using base::passing;
    using base::posted;
    using base::staged;
    using base::walked;
    uint32_t own, own_full, own_empty;
    tile_ring<2, uint32_t> q, d_o;
    uint32_t scores, stats;

    VERB ring_memory(char *memory)
    {
        const uint32_t shared = shared_address(memory), begin = (shared + 1023) & ~1023u,
                       rings = begin + 2 * T::OWN;
        own = begin;
        scores = rings + 4 * T::TILE;
        staged = scores + 2 * SCORES;
        stats = staged + base::STAGED * 2 * base::HALF;
        const uint32_t barriers = stats + 6 * T::N * 4;
        q = {rings, T::TILE, barriers};
        d_o = {rings + 2 * T::TILE, T::TILE, barriers + 32};
        own_full = barriers + 64;
        own_empty = barriers + 72;
        posted = barriers + 80;
        walked = barriers + 112;
        passing = barriers + 120;
        base::place_walks(memory + (passing + base::STAGED * 48 - shared));
    }
    VERB void init() const
    {
        q.init(8);
        d_o.init(8);
        barrier_init(own_full, 1);
        barrier_init(own_empty, 2);
        base::init_passing();
        barrier_init_done();
    }
    /* L, D and the rest of L of the queries of step n. */
    VERB uint32_t lse(uint32_t n) const
    {
        return stats + n % 2 * T::N * 4;
    }
    VERB uint32_t delta(uint32_t n) const
    {
        return stats + (2 + n % 2) * T::N * 4;
    }
    VERB uint32_t lse_rest(uint32_t n) const
    {
        return stats + (4 + n % 2) * T::N * 4;
    }
    VERB uint32_t scores_of(uint32_t n) const
    {
        return scores + n % 2 * SCORES;
    }
    /* The bias of 64 queries and of the keys of warpgroup w: in the place of their dS. */
    VERB uint32_t bias(uint32_t n, int queries, int w) const
    {
        return scores_of(n) + queries / 64 * 16384 + w * T::SLAB;
    }
};
