/* vjp_jvp in one kernel (hopper_second_ring.cu): its shared memory with the barriers in it, and the thread that takes
 * the block's items, copies tiles and notes down for the computing threads what they would need the walk for. */
#pragma once
#include "cuda/kernels/hopper_ring_copies.cuh"
#include "cuda/kernels/hopper_ring_hidden.cuh"
#include "cuda/kernels/hopper_second_operands.cuh"
#include "cuda/kernels/hopper_statistics.cuh"

/* What a step is. */
struct ring_note {
    enum : uint32_t {
        EDGE = 1,        /* << w: some pair of the warpgroup's keys and the tile's queries is hidden */
        LAST = 1 << 2,   /* the block is the last to visit the tile */
        ALONE = 1 << 3,  /* and the only one */
        UNSEEN = 1 << 4, /* some queries of the tile see no key of the block */
        ODD = 1 << 5,    /* before it an odd number of sums was fetched */
    };
    int row, head; /* the first query of the tile, its head */
    uint32_t flags;
};

/* Step c of the walk over head h. */
template <class T> VERB ring_note describe_step(const key_walk<T> &at, int h, int c)
{
    const int m = at.tile(c), row = m * T::N;
    uint32_t flags = is_edge<T>(at.s, at.row, row) ? ring_note::EDGE : 0;
    flags |= is_edge<T>(at.s, at.row + 64, row) ? ring_note::EDGE << 1 : 0;
    flags |= row < at.from || row + T::N > at.to ? ring_note::UNSEEN : 0;
    if (at.is_last(c)) {
        flags |= at.is_alone(m) ? ring_note::LAST | ring_note::ALONE : ring_note::LAST;
    }
    return {row, h, flags};
}

template <class T> struct second_ring_memory : passing_memory<T, 1> {
    typedef passing_memory<T, 1> base;
    static constexpr int BUFFERS = AGI_HOPPER_SECOND_SCORES(T::D); /* of dS and tdS */
    static constexpr int SCORES = 2 * T::N * KEYS_OF_BLOCK * 2;    /* bytes of one */
    static constexpr int ROWS = ROW_NUMBERS * T::N * 4;            /* of the numbers of a tile's queries */
    static_assert(sizeof(ring_note) <= AGI_HOPPER_RING_NOTE, "room for the notes");
    static_assert(sizeof(key_walk<T>) <= AGI_HOPPER_RING_WALK, "room for the walks");
    uint32_t own, own_full, own_empty;
    tile_ring<2> q, d_o; /* Q and tQ, dO and tdO */
    uint32_t scores, scores_read, rows;
    ring_note *notes;

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
        char *const rest = memory + (barriers + 176 - shared);
        base::walks = (key_walk<T> *)rest;
        notes = (ring_note *)(rest + 2 * AGI_HOPPER_RING_WALK);
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
    /* Of step n: its note, a number of its queries, dS and tdS. */
    VERB ring_note &note(int n) const
    {
        return notes[n % 2];
    }
    VERB uint32_t numbers(int n, int which) const
    {
        return rows + n % 2 * ROWS + which * T::N * 4;
    }
    VERB uint32_t scores_of(int n) const
    {
        return scores + n % BUFFERS * SCORES;
    }
    /* Until the products of the step before have read the only buffer; with two of them the warpgroups cannot be so far
     * apart. */
    VERB void wait_scores(int n) const
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
    const agi_hopper_second_ring &f;
    const second_ring_memory<T> &memory;
    int n = 0;            /* tiles of queries so far */
    uint32_t fetches = 0; /* sums that were fetched for last visits */

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
        const box_copy<agi_hopper_second_ring> copy = {f, at.s, true, KEYS_OF_BLOCK, at.kv_head};
        barrier_expect(memory.own_full, MATRICES * T::OWN);
        for (int i = 0; i < MATRICES * T::BOXES; i++) {
            copy.load(memory.own + i * 2 * T::SLAB, memory.own_full, i / T::BOXES, i % T::BOXES, at.row);
        }
    }
    /* A matrix, Q or dO, and its tangent. */
    VERB void copy_pair(const key_walk<T> &at, const tile_ring<2> &ring, int matrix, const ring_note &step)
    {
        const box_copy<agi_hopper_second_ring> copy = {f, at.s, false, T::N, step.head};
        for (int i = 0; i < 2 * T::BOXES; i++) {
            copy.load(ring.tile(n) + i * T::BOX, ring.full(n), matrix + i / T::BOXES, i % T::BOXES, step.row);
        }
    }
    VERB void copy_step(const key_walk<T> &at, ring_note step)
    {
        step.flags |= fetches % 2 != 0 ? ring_note::ODD : 0;
        fetches += (step.flags & (ring_note::LAST | ring_note::ALONE)) == ring_note::LAST;
        const int64_t tile = step.head * f.tiles + first_tile_of(f.p, at.s, T::N) + step.row / T::N;
        memory.q.claim(n);
        memory.note(n) = step;
        barrier_expect(memory.q.full(n), 2 * T::TILE + memory.ROWS);
        copy_pair(at, memory.q, QK, step);
        bulk_load(memory.numbers(n, 0), f.rows + tile * ROW_NUMBERS * T::N, memory.ROWS, memory.q.full(n));
        memory.d_o.begin(n, 2 * T::TILE);
        copy_pair(at, memory.d_o, OV, step);
        n++;
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
                for (int c = 0; c < at.tiles; c++) {
                    copy_step(at, describe_step(at, h, c));
                }
            }
        }
        at.heads = 0;
        memory.post(k, at);
    }
};
