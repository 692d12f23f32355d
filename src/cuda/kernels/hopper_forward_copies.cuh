/* forward on Hopper (hopper_forward.cu): its shared memory with the barriers in it, and the thread that takes the
 * block's tiles of queries and copies. */
#pragma once
#include "cuda/kernels/hopper_features.cuh"
#include "cuda/kernels/hopper_seen.cuh"

/* In the slot of its queries a tile's O waits to be stored. The places of the tiles stay for at least twice as many, so
 * that the next one can be found before the slot of its Q is free. */
enum { PLACES = 4 };

/* Is l a column of O'? */
template <class T> constexpr VERB bool has_ones()
{
    return AGI_HOPPER_HAS_ONES(T::FEATURES, T::D);
}

template <class T> struct forward_memory {
    static constexpr int ONES = has_ones<T>() ? T::BOX : 0; /* bytes behind each tile of V */
    static constexpr int NOTES =
        2 * T::STAGES; /* a step's is read when the next K has come, but not the one after */
    static constexpr int BIAS =
        T::FEATURES & AGI_HAS_BIAS ? AGI_HOPPER_BIAS_TILE(T::CONSUMERS, T::N) : 0; /* bytes */
    tile_ring<T::Q_SLOTS> q;
    tile_ring<T::STAGES> k, v;
    uint32_t biases; /* tiles of the bias, in the slots of K */
    query_block<T> *places;

    VERB forward_memory(char *shared)
    {
        const uint32_t begin = (shared_address(shared) + 1023) & ~1023u, rings = begin + T::Q_SLOTS * T::OWN;
        biases = rings + T::STAGES * (2 * T::TILE + ONES);
        const uint32_t barriers = biases + T::STAGES * BIAS;
        const uint32_t of_q = barriers + 4 * T::STAGES * 8, behind = of_q + 2 * T::Q_SLOTS * 8;
        static_assert(PLACES >= 2 * T::Q_SLOTS, "places stay longer than slots");
        static_assert(PLACES * sizeof(query_block<T>) +
                              (has_mask(T::FEATURES) ? NOTES * sizeof(key_note) : 0) <=
                          AGI_HOPPER_PLACES,
                      "room for places and notes");
        q = {begin, T::OWN, of_q};
        k = {rings, T::TILE, barriers};
        v = {rings + T::STAGES * T::TILE, T::TILE + ONES, barriers + 2 * T::STAGES * 8};
        places = (query_block<T> *)(shared + (behind - shared_address(shared)));
    }
    VERB void init() const
    {
        k.init(4 * T::CONSUMERS);
        v.init(4 * T::CONSUMERS);
        q.init(4 * T::CONSUMERS);
        barrier_init_done();
    }
    /* By all threads of the block. */
    VERB void write_ones() const
    {
        const uint32_t ones = T::F::pack(1, 1);
        for (int i = (int)threadIdx.x; i < T::STAGES * ONES / 16; i += T::THREADS) {
            shared_fill_16(v.tile(i / (T::BOX / 16)) + T::TILE + i % (T::BOX / 16) * 16, ones);
        }
        shared_fence();
    }
    /* The block's x-th tile of queries. Consumers may read it between q.wait(x) and q.release(x). After the last tile
     * comes one with count 0. */
    VERB query_block<T> &place(int x) const
    {
        return places[x & (PLACES - 1)];
    }
    VERB key_note &note(int step) const
    {
        return ((key_note *)(places + PLACES))[step % NOTES];
    }
    /* The bias of the queries of warpgroup w and of the tile's box-th 64 keys. */
    VERB uint32_t bias(int step, int w, int box) const
    {
        return biases + step % T::STAGES * BIAS + (box * T::CONSUMERS + w) * T::SLAB;
    }
};

/* ---- The producer ---- */

template <class T> struct forward_producer {
    const agi_hopper_forward &f;
    const forward_memory<T> &memory;
    uint32_t number; /* of the tile, of all tiles of the call */

    /* The number after this one: drawn, or every gridDim.x-th. */
    VERB void count_on()
    {
        number = gridDim.x + (f.drawn == nullptr ? number : draw(f.drawn));
    }
    /* The place of the block's x-th tile: from this number on. Behind the end of a packed sequence are none. */
    VERB void find(int x)
    {
        query_block<T> &to = memory.place(x);
        for (; number < (uint32_t)f.tiles; count_on()) {
            to = query_block<T>(f.p, f.heads_together, (int)number);
            if (to.row < to.rows_of_tensor(f.p)) {
                return;
            }
        }
        to.count = 0;
    }

    /* step: of the ring; key: the first of the tile; more: bytes that come with it. */
    VERB void copy_keys(const query_block<T> &at, const tile_ring<T::STAGES> &ring,
                        const agi_cuda_tensor_map &map, int operand, int step, int key, int more)
    {
        const box_place place = place_of(f.p.m[operand], at.s, true);
        ring.begin(step, T::TILE + more);
        for (int box = 0; box < T::BOXES; box++) {
            box_load(ring.tile(step) + box * T::BOX, map, ring.full(step), box * 64, place.row + key,
                     at.kv_head, place.batch);
        }
    }
    /* K, and the bias of its keys. */
    VERB void copy_k(const query_block<T> &at, int step, int key)
    {
        constexpr int BOXES = forward_memory<T>::BIAS / (T::CONSUMERS * T::SLAB);
        const bool with_bias = BOXES > 0 && f.bias_in_boxes;
        const int64_t *const strides = f.p.a.bias.strides;
        copy_keys(at, memory.k, f.k, AGI_CUDA_K, step, key, with_bias ? forward_memory<T>::BIAS : 0);
        for (int n = 0; with_bias && n < T::CONSUMERS * BOXES; n++) {
            const int box = n / T::CONSUMERS, w = n % T::CONSUMERS;
            box_load(memory.bias(step, w, box), f.bias, memory.k.full(step), key + box * 64, at.row + w * 64,
                     strides[1] == 0 ? 0 : at.h, strides[0] == 0 ? 0 : (int)at.s.b);
        }
    }
    /* Without a tile, the word that there is none. */
    VERB void copy_queries(const query_block<T> &at, int x)
    {
        const box_place place = place_of(f.p.m[AGI_CUDA_Q], at.s, false);
        const bool there = at.count > 0;
        memory.q.begin(x, there ? T::OWN : 0);
        for (int slab = 0; there && slab < T::CONSUMERS * T::BOXES; slab++) {
            const int box = slab / T::CONSUMERS, w = slab % T::CONSUMERS;
            box_load(memory.q.tile(x) + slab * T::SLAB, f.q, memory.q.full(x), box * 64,
                     place.row + at.row + w * 64, at.h, place.batch);
        }
    }
    /* The keys of a step, and the values of the step before: so the first K and, if there is room, Q of a tile come
     * before the last V of the tile before it. The next tile is looked for when the first copies of this one are under
     * way. */
    VERB void run()
    {
        int x = -1, n = 0; /* the tile, and the tile of keys in it; before the first step there is none */
        number = blockIdx.x;
#pragma unroll 1
        for (int step = -1;; step++) {
            if (step >= 0 && !copy(x, n, step)) {
                return;
            }
            const int count = step < 0 ? 1 : memory.place(x).count;
            if (n == min(1, count - 1)) {
                if (step >= 0) {
                    count_on();
                }
                find(x + 1);
            }
            n = n + 1 < count ? n + 1 : 0;
            x += n == 0;
        }
    }
    /* The copies of a step; false: there is no such tile. */
    VERB bool copy(int x, int n, int step)
    {
        const query_block<T> &at = memory.place(x), &before = memory.place(n == 0 ? x - 1 : x);
        if (at.count > 0) {
            copy_k(at, step, at.key(n));
        }
        if (n == 0 && T::Q_SLOTS > 1) {
            copy_queries(at, x);
        }
        if (step > 0) {
            copy_keys(before, memory.v, f.v, AGI_CUDA_V, step - 1,
                      before.key(n == 0 ? before.count - 1 : n - 1), 0);
        }
        if (n == 0 && T::Q_SLOTS == 1) {
            copy_queries(at, x); /* its slot is free when O has left it, which needs those values */
        }
        return at.count > 0;
    }

    /* ---- The same with a mask: empty tiles of keys are left out ---- */

    /* As run. A tile of queries that sees nothing visits its first tile of keys, all of it hidden. */
    VERB void run_seen()
    {
        int step = 0;
        number = blockIdx.x;
        find(0);
#pragma unroll 1
        for (int x = 0;; x++) {
            const query_block<T> &at = memory.place(x);
            const seen_tiles<T> tiles = {f.x, at};
            int n = tiles.next(0);
            n = n < at.count ? n : 0;
#pragma unroll 1
            for (int visited = 0; n < at.count || visited == 0; visited++, step++) {
                const int next = tiles.next(n + 1);
                const bool there = at.count > 0;
                if (there) {
                    memory.k.claim(step);
                    memory.note(step) = tiles.note(n, next >= at.count);
                    copy_k(at, step, at.key(n));
                }
                if (visited == 0) {
                    copy_queries(at, x);
                }
                if (step > 0) {
                    copy_keys(memory.place(visited == 0 ? x - 1 : x), memory.v, f.v, AGI_CUDA_V, step - 1,
                              memory.note(step - 1).key, 0);
                }
                if (!there) {
                    return;
                }
                if (visited == 1 || (visited == 0 && next >= at.count)) {
                    count_on();
                    find(x + 1);
                }
                n = next;
            }
        }
    }
};
