/* vjp_jvp in one kernel (hopper_second_ring.cu): its shared memory with the barriers in it, and the thread that takes
 * the block's items, copies tiles and notes down what each step is. */
#pragma once
#include "cuda/kernels/hopper_ring_copies.cuh"
#include "cuda/kernels/hopper_ring_hidden.cuh"
#include "cuda/kernels/hopper_second_operands.cuh"
#include "cuda/kernels/hopper_statistics.cuh"

template <class T> struct second_ring_memory : passing_memory<T, 1> {
    typedef passing_memory<T, 1> base;
    static constexpr int BUFFERS = AGI_HOPPER_SECOND_SCORES(T::D); /* of dS and tdS */
    static constexpr int SCORES = 2 * T::N * KEYS_OF_BLOCK * 2;    /* bytes of one */
    static constexpr bool HAS_BIAS = (T::FEATURES & AGI_HAS_BIAS) != 0;
    static constexpr int ROWS = (ROW_NUMBERS + HAS_BIAS) * T::N * 4; /* of the numbers of a tile's queries */
    uint32_t own, own_full, own_empty;
    tile_ring<2, uint32_t> q, d_o; /* Q and tQ, dO and tdO */
    uint32_t scores, scores_read, rows;

    VERB second_ring_memory(char *memory)
    {
        const uint32_t shared = shared_address(memory), begin = (shared + 1023) & ~1023u;
        const uint32_t rings = begin + MATRICES * T::OWN;
        own = begin;
        scores = rings + 8 * T::TILE;
        base::staged = scores + BUFFERS * SCORES;
        rows = base::staged + 2 * base::HALF;
        const uint32_t barriers = rows + 2 * ROWS;
        q = {rings, 2 * T::TILE, barriers};
        d_o = {rings + 4 * T::TILE, 2 * T::TILE, barriers + 32};
        own_full = barriers + 64;
        own_empty = barriers + 72;
        base::posted = barriers + 80;
        base::walked = barriers + 112;
        scores_read = barriers + 120;
        base::passing = barriers + 128;
        base::place_walks(memory + (barriers + 176 - shared));
    }
    VERB void init() const
    {
        q.init(8);
        d_o.init(8);
        barrier_init(own_full, 1);
        barrier_init(own_empty, 2);
        barrier_init(scores_read, 8);
        base::init_passing();
        barrier_init_done();
    }
    /* Of step n: a number of its queries, dS and tdS. */
    VERB uint32_t numbers(uint32_t n, int which) const
    {
        return rows + n % 2 * ROWS + which * T::N * 4;
    }
    VERB uint32_t scores_of(uint32_t n) const
    {
        return scores + n % BUFFERS * SCORES;
    }
    /* Until the products of the step before have read the only buffer; with two of them the warpgroups cannot be so far
     * apart. */
    VERB void wait_scores(uint32_t n) const
    {
        if (BUFFERS == 1 && n > 0) {
            barrier_wait(scores_read, (n - 1) % 2);
        }
    }
    VERB void release_scores() const
    {
        __syncwarp();
        if (BUFFERS == 1 && threadIdx.x % 32 == 0) {
            barrier_arrive(scores_read);
        }
    }
};

template <class T> struct second_ring_producer {
    typedef agi_hopper_second_ring Call;
    const Call &f;
    const second_ring_memory<T> &memory;
    uint32_t n = 0;       /* tiles of queries so far */
    uint32_t fetched = 0; /* see noted_steps */

    /* Between the free slots and the copies nothing is computed. */
    VERB void copy_step(const side_copy<T, QK, 2, Call> &queries, const side_copy<T, OV, 2, Call> &d_o,
                        const ring_note &step, int64_t tile)
    {
        const uint32_t q_full = memory.q.full(n), d_o_full = memory.d_o.full(n);
        memory.q.claim(n);
        memory.note(n) = step;
        barrier_expect(q_full, 2 * T::TILE + memory.ROWS);
        queries.load_tiles(memory.q.tile(n), q_full, step.row, step.head);
        bulk_load(memory.numbers(n, 0), f.rows + tile * ROW_NUMBERS * T::N, ROW_NUMBERS * T::N * 4, q_full);
        if constexpr (second_ring_memory<T>::HAS_BIAS) {
            bulk_load(memory.numbers(n, ROW_LSE_REST), f.lse_rest + tile * T::N, T::N * 4, q_full);
        }
        memory.d_o.begin(n, 2 * T::TILE);
        d_o.load_tiles(memory.d_o.tile(n), d_o_full, step.row, step.head);
        n++;
    }
    VERB void run()
    {
        each_item<T>(f, memory, [&](const key_walk<T> &at, int k) {
            copy_keys<T, MATRICES>(f, memory, at, k);
            const side_copy<T, QK, 2, Call> queries(f, at.s, false);
            const side_copy<T, OV, 2, Call> d_o(f, at.s, false);
#pragma unroll 1
            for (noted_steps<T, Call> step(f, at); step.is_there(); step.next(f.tiles)) {
                copy_step(queries, d_o, step.describe(at, fetched, memory.buffer_bit(n)), step.tile);
            }
        });
    }
};
