/* vjp and vjp_jvp in one kernel with a mask (hopper_ring.cu, hopper_second_ring.cu): the steps that the mask leaves,
 * and who adds to a tile of dQ or tdQ after whom.
 *
 * A step, a block of keys at a tile of queries, in which the mask shows no pair is left out: nothing of it is copied
 * or multiplied, and nobody waits for it. What is left keeps the order of hopper_walk.cuh, along a block's walk and at
 * each tile, so that dQ is the same sum without some zeros, bit for bit. Nobody waits for ever: a step follows the
 * block's steps before it and waits for the visits before it at its tile, in the whole walk without a circle, and so in
 * any part of it.
 *
 * hopper_visits, or hopper_second_visits, writes a list for each block: its steps one after another, with how many
 * blocks come before it at the tile. The threads that walk read lists, whose lines are in the cache, instead of the
 * mask.
 *
 * Call: agi_hopper_ring or agi_hopper_second_ring. */
#pragma once
#include "cuda/kernels/hopper_mask.cuh"
#include "cuda/kernels/hopper_walk.cuh"

/* ---- What a list says ---- */

/* agi_hopper_visit::about: LAST, ALONE and MIXED as in the step's note, and above them how many blocks come before. */
enum : uint32_t { VISIT_RANK = ring_note::MIXED << 2 };

/* Of one block of keys at one head of queries. Heads that share a mask share lists. */
template <class Call> VERB agi_hopper_visit *visits_of(const Call &f, int64_t b, int h, int block)
{
    const int heads = f.x.class_tiles[1];
    return f.visits + ((b * heads + min(h, heads - 1)) * f.key_blocks + block) * f.most_visits;
}

/* ---- Classes of the mask, by tiles of queries and blocks of keys ---- */

/* A tile of queries has whole tiles of the mask, or lies in one: then it may be visited though none of its own pairs is
 * seen. */
template <class T> struct tile_classes {
    static_assert(T::N % AGI_HOPPER_CLASS == 0 || AGI_HOPPER_CLASS % T::N == 0, "none is cut");
    static_assert(KEYS_OF_BLOCK == 2 * AGI_HOPPER_CLASS, "two classes are read at once");
    static constexpr int ROWS = T::N < AGI_HOPPER_CLASS ? 1 : T::N / AGI_HOPPER_CLASS;
    const uint8_t *rows[ROWS];

    /* Of the tile of queries from `row` on. */
    VERB tile_classes(const agi_hopper_features &x, const sequence &s, int h, int row)
    {
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            rows[i] = classes_of(x, s, h, row + i * AGI_HOPPER_CLASS);
        }
    }
    /* Of a block's first 64 keys in the lower byte, of its others in the upper one. */
    VERB uint32_t of(int block) const
    {
        uint32_t both = 0;
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            both |= ((const uint16_t *)rows[i])[block];
        }
        return both;
    }
    VERB bool shows(int block) const
    {
        return (of(block) & AGI_TILE_SEEN * 0x0101u) != 0;
    }
    /* How many blocks from `first` to `end` - 1 the mask shows to the tile. */
    VERB int count(int first, int end) const
    {
        int sum = 0;
#pragma unroll 8
        for (int block = first; block < end; block++) {
            sum += shows(block);
        }
        return sum;
    }
};

/* Does the mask show some block to the tile? The same answer in the whole warp. */
template <class T> VERB bool shows_any(const agi_hopper_features &x, const sequence &s, int h, int row)
{
    const tile_classes<T> classes(x, s, h, row);
    const int last = highest_block<T::N>(s, row);
    bool any = false;
    for (int block = lowest_block(s, row) + (int)threadIdx.x % 32; block <= last; block += 32) {
        any |= classes.shows(block);
    }
    return __any_sync(~0u, any);
}

/* ---- hopper_visits: a warp per list ---- */

template <class T, class Call> struct visit_finder {
    const Call &f;
    int h, block;
    int64_t b;
    key_walk<T> at;

    VERB visit_finder(const Call &call, int64_t list)
        : f(call), h((int)(list / f.key_blocks % f.x.class_tiles[1])), block((int)(list % f.key_blocks)),
          b(list / f.key_blocks / f.x.class_tiles[1])
    {
        at.begin(f, {b * f.p.Hk, block / f.ring, block % f.ring});
    }
    /* How many blocks of the same group come before this one at the tile. In a band these are the higher ones that see
     * it; in a ring those that begin between this one and the tile, around the ring. */
    VERB int before_in_group(const tile_classes<T> &classes, int tile, int highest) const
    {
        const int end = at.before + at.length;
        const int nearest = at.ring ? at.before + at.nearest_to(tile) : min(highest, end - 1);
        return nearest >= block ? classes.count(block + 1, nearest + 1)
                                : classes.count(block + 1, end) + classes.count(at.before, nearest + 1);
    }
    VERB agi_hopper_visit visit(int tile) const
    {
        const int row = tile * T::N, lowest = lowest_block(at.s, row),
                  highest = highest_block<T::N>(at.s, row);
        const tile_classes<T> classes(f.x, at.s, h, row);
        if (!classes.shows(block)) {
            return {-1, 0};
        }
        const int rank = classes.count(lowest, at.before) + before_in_group(classes, tile, highest);
        const int all = classes.count(lowest, highest + 1);
        const uint32_t hidden = classes.of(block) / AGI_TILE_HIDDEN;
        return {tile, (uint32_t)rank * VISIT_RANK | (rank + 1 == all ? ring_note::LAST : 0) |
                          (all == 1 ? ring_note::ALONE : 0) | (hidden & 1 ? ring_note::MIXED : 0) |
                          (hidden & 0x100 ? ring_note::MIXED << 1 : 0)};
    }
    /* The lanes look at 32 steps of the walk at once. */
    VERB void run() const
    {
        const int lane = (int)threadIdx.x % 32;
        agi_hopper_visit *to = visits_of(f, b, h, block);
#pragma unroll 1
        for (int first = 0; first < at.tiles; first += 32) {
            const int tile = at.first + first + lane;
            agi_hopper_visit mine = {-1, 0};
            if (first + lane < at.tiles) {
                mine = visit(tile < at.of_sequence ? tile : tile - at.of_sequence);
            }
            const uint32_t all = or_over_warp(mine.tile >= 0 ? 1u << lane : 0);
            if (mine.tile >= 0) {
                to[count_bits(all & ((1u << lane) - 1))] = mine;
            }
            to += count_bits(all);
        }
        if (lane == 0) {
            *to = {-1, 0};
        }
    }
};

template <class T, class Call> VERB void find_visits(const Call &f)
{
    const int64_t list = (int64_t)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    if (list < f.p.B * f.x.class_tiles[1] * f.key_blocks) {
        visit_finder<T, Call>(f, list).run();
    }
}

/* ---- The steps of an item, read from its lists ---- */

/* In the place of walk_steps. The step after this one is always known: the load has time while this one is made. */
template <class T, class Call> struct listed_steps {
    const Call &f;
    const key_walk<T> &at;
    int row, head; /* the tile's first query, negative if there is no step; its head */
    int64_t tile;  /* among those of all sequences and heads */
    uint32_t about;
    agi_hopper_visit ahead; /* the next step, its head, and what its list has after it */
    int head_ahead;
    const agi_hopper_visit *list;

    VERB listed_steps(const Call &call, const key_walk<T> &walk)
        : f(call), at(walk), row(-1), ahead({-1, 0}), head_ahead(at.head), list(nullptr)
    {
        if (at.tiles > 0) {
            open();
            skip_ends();
        }
        next(f.tiles);
    }
    VERB void open()
    {
        list = visits_of(f, at.s.b, head_ahead, at.row / KEYS_OF_BLOCK);
        ahead = *list;
    }
    /* At the end of a list on to the next head that has steps. */
    VERB void skip_ends()
    {
#pragma unroll 1
        while (ahead.tile < 0 && ++head_ahead < at.head + at.heads) {
            open();
        }
    }
    VERB bool is_there() const
    {
        return row >= 0;
    }
    VERB bool is_last() const
    {
        return (about & ring_note::LAST) != 0;
    }
    VERB bool is_alone(const key_walk<T> &) const
    {
        return (about & ring_note::ALONE) != 0;
    }
    VERB bool has_more() const
    {
        return ahead.tile >= 0;
    }
    VERB void next(int64_t of_head)
    {
        row = ahead.tile * T::N;
        head = head_ahead;
        about = ahead.about;
        tile = head * of_head + first_tile_of(f.p, at.s, T::N) + ahead.tile;
        if (ahead.tile >= 0) {
            ahead = *++list;
            skip_ends();
        }
    }
};

/* The steps of an item, and their ranks: made of the walk, or with a mask read from lists. */
template <class T, class Call, bool LISTED = has_mask(T::FEATURES)> struct steps_of_item {
    typedef walk_steps<T> steps;
    typedef visit_ranks<T> ranks;
};
template <class T, class Call> struct listed_ranks {
    const key_walk<T> &at;
    VERB int of(const listed_steps<T, Call> &step) const
    {
        return (int)(step.about / VISIT_RANK);
    }
};
template <class T, class Call> struct steps_of_item<T, Call, true> {
    typedef listed_steps<T, Call> steps;
    typedef listed_ranks<T, Call> ranks;
};
