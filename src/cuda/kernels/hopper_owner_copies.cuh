/* Kernels that own rows (hopper_owners.cuh): where a block is, its shared memory, and the warpgroup that copies.
 *
 * A kernel's parameter, Call, is what box_copy (hopper_tiles.cuh) asks for. */
#pragma once
#include "cuda/kernels/hopper_mask.cuh"
#include "cuda/kernels/hopper_tiles.cuh"
#include "cuda/kernels/stream.cuh"

/* ---- Where a block is ---- */

/* Rows from `row` on of one head, and the rows of the other side that some of them see, in tiles of N. */
template <class T, bool KEYS> struct owner_block {
    sequence s;
    int kv_head, row;
    int from, to, first, tiles; /* rows and tiles of the stream */
    int heads, head;            /* query heads that the block walks over, the first of them */

    VERB owner_block(const agi_cuda_params &p)
    {
        const int64_t of_batch = KEYS ? p.Hk : p.H, index = blockIdx.x / p.w.blocks;
        const int64_t block = blockIdx.x % p.w.blocks;
        const int h = (int)(index % of_batch);
        s = find_sequence(p, index / of_batch);
        row = (int)(KEYS ? block : p.w.blocks - 1 - block) *
              T::ROWS; /* with causal the long walks begin first */
        kv_head = KEYS ? h : h / p.group;
        heads = KEYS ? p.group : 1;
        head = KEYS ? h * p.group : h;
        find_stream();
    }
    VERB void find_stream()
    {
        const int last = min(row + T::ROWS, own_rows()) - 1;
        from = max(KEYS ? row - s.high : row + s.low, 0);
        to = min(KEYS ? last - s.low + 1 : last + s.high + 1, stream_rows());
        first = from / T::N;
        tiles = row >= own_rows() || from >= to ? 0 : (to - 1) / T::N + 1 - first;
    }
    VERB int own_rows() const
    {
        return KEYS ? s.n_k : s.n_q;
    }
    VERB int stream_rows() const
    {
        return KEYS ? s.n_q : s.n_k;
    }
    VERB int rows_of_tensor(const agi_cuda_params &p) const
    {
        return p.flags & AG_PACKED ? own_rows() : (int)(KEYS ? p.Nk : p.Nq);
    }

    VERB int steps() const
    {
        return tiles * heads;
    }
    VERB bool sees(int own, int stream) const
    {
        const int distance = KEYS ? own - stream : stream - own; /* j - i */
        return distance >= s.low && distance <= s.high && stream < stream_rows();
    }
};

/* What the producer tells the consumers about a step. */
struct owner_step {
    int row;     /* the first of the tile */
    int head;    /* of the queries */
    bool clear;  /* some rows of the tile are seen by no row of the block */
    bool cut[2]; /* of each warpgroup: some pair of its rows and the tile's is hidden */
};
/* With a mask: steps that it hides from the whole block are left out, and after the last one comes one that is not
 * there. */
struct masked_step {
    bool there;
    bool mixed[2]; /* of each warpgroup: the mask hides some of its pairs */
};

/* In shared memory, so that the consumers keep their registers for sums. */
template <class T, bool KEYS> struct owner_notes {
    owner_block<T, KEYS> at;
    owner_step steps[T::STEPS];
    masked_step masked[has_mask(T::FEATURES) ? T::STAGES : 1];

    VERB owner_step &step(int n)
    {
        return steps[n % T::STEPS];
    }
    VERB const owner_step &step(int n) const
    {
        return steps[n % T::STEPS];
    }
};

/* ---- Shared memory ---- */

/* Own matrices, then stages of as many tiles and, for owners of keys, the statistics of the tile's queries; barriers,
 * notes. */
template <class T, bool KEYS, int MATRICES> struct owner_memory {
    static constexpr int OWN = MATRICES * T::OWN, TILES = MATRICES * T::TILE;
    static constexpr int STATS = KEYS ? T::N * AGI_CUDA_STATS * 4 : 0, STAGE = TILES + STATS;
    static_assert(T::STAGES * STAGE >= T::ROWS * T::D * 4, "results are stored by way of the stages");
    static_assert(sizeof(owner_notes<T, KEYS>) <= AGI_HOPPER_NOTES, "room for the notes");
    uint32_t own, own_full, notes;
    tile_ring<T::STAGES> ring;

    VERB owner_memory(uint32_t shared)
    {
        const uint32_t begin = (shared + 1023) & ~1023u, stages = begin + OWN;
        const uint32_t barriers = stages + T::STAGES * STAGE;
        own = begin;
        ring = {stages, STAGE, barriers};
        own_full = barriers + 2 * T::STAGES * 8;
        notes = own_full + 8;
    }
    VERB void init() const
    {
        ring.init(4 * T::CONSUMERS);
        barrier_init(own_full, 1);
        barrier_init_done();
    }
    /* A tile of step n; the next matrix follows it. */
    VERB uint32_t tile(int matrix, int n) const
    {
        return ring.tile(n) + matrix * T::TILE;
    }
    /* Where results lie on their way to the tensors. */
    VERB uint32_t results() const
    {
        return ring.tiles;
    }
};

/* ---- The walk ----
 *
 * Consumers wait for the thread that walks and copies: what a step is it finds out before the step's slot is free, and
 * it does not divide. */

template <class T, bool KEYS> struct owner_walk {
    int row, head;            /* of the step: the first row of its tile, its query head */
    int first, last, heads;   /* the first rows of the first and the last tile, how many heads are left */
    int from, to;             /* rows of the stream that the block sees */
    int whole_from, whole_to; /* all rows of the first warpgroup see a tile that begins between these */
    int stream_end;           /* where the last tile begins that has no row behind the end */

    VERB owner_walk(const owner_block<T, KEYS> &at)
        : row(at.first * T::N), head(at.head), first(row), last(row + (at.tiles - 1) * T::N),
          heads(at.tiles == 0 ? 0 : at.heads), from(at.from), to(at.to),
          whole_from(at.row + 63 + (KEYS ? -at.s.high : at.s.low)),
          whole_to(at.row + 1 - T::N + (KEYS ? -at.s.low : at.s.high)), stream_end(at.stream_rows() - T::N)
    {
    }
    VERB bool is_there() const
    {
        return heads > 0;
    }
    VERB void next()
    {
        const bool wraps = row == last;
        row = wraps ? first : row + T::N;
        head += wraps;
        heads -= wraps;
    }
    /* Does some row of warpgroup w not see some row of the tile? */
    VERB bool cuts(int w) const
    {
        return row < whole_from + 64 * w || row > whole_to + 64 * w || row > stream_end;
    }
    VERB owner_step describe() const
    {
        static_assert(T::CONSUMERS == 2, "cut is for two");
        return {row, head, row < from || row + T::N > to, {cuts(0), cuts(1)}};
    }
};

/* The classes of each warpgroup along the stream. Behind the last queries the last ones count. */
template <class T, bool KEYS> struct stream_classes {
    static_assert(T::N == AGI_HOPPER_CLASS, "tiles of the stream are those of the mask");
    const uint8_t *own[2];
    int step, last;

    VERB stream_classes(const agi_hopper_features &x, const owner_block<T, KEYS> &at, int h)
    {
        own[0] = classes_of(x, at.s, h, KEYS ? 0 : at.row) + (KEYS ? at.row / T::N : 0);
        own[1] = KEYS ? own[0] + 1 : classes_of(x, at.s, h, at.row + 64);
        step = KEYS ? x.class_tiles[3] : 1;
        last = KEYS ? x.class_tiles[2] - 1 : x.class_tiles[3] - 1;
    }
    VERB int of(int w, int tile) const
    {
        return own[w][(int64_t)min(tile, last) * step];
    }
};
/* With a mask: only the steps in which it lets the block see something. The lanes look at 32 tiles at once. */
template <class T, bool KEYS> struct seen_walk : owner_walk<T, KEYS> {
    typedef owner_walk<T, KEYS> base;
    const agi_hopper_features &x;
    const owner_block<T, KEYS> &at;
    int looked; /* from which row on 32 tiles were looked at */
    uint32_t seen,
        hidden[2]; /* of them: those still to be visited, those with hidden pairs of each warpgroup */
    masked_step masked;

    VERB seen_walk(const agi_hopper_features &features, const owner_block<T, KEYS> &block)
        : base(block), x(features), at(block), looked(base::first)
    {
        look();
        find();
    }
    VERB void next()
    {
        seen &= seen - 1;
        find();
    }
    VERB void look()
    {
        const int lane = (int)threadIdx.x % 32, tile = looked / T::N + lane;
        int has[2] = {0, 0};
        if (base::is_there() && looked + lane * T::N <= base::last) {
            const stream_classes<T, KEYS> classes(x, at, base::head);
            has[0] = classes.of(0, tile);
            has[1] = classes.of(1, tile);
        }
        seen = or_over_warp((has[0] | has[1]) & AGI_TILE_SEEN ? 1u << lane : 0);
        hidden[0] = or_over_warp(has[0] & AGI_TILE_HIDDEN ? 1u << lane : 0);
        hidden[1] = or_over_warp(has[1] & AGI_TILE_HIDDEN ? 1u << lane : 0);
    }
    /* Which bit it is. */
    static VERB int tile_of(uint32_t bit)
    {
        return (bit & 0xaaaaaaaau ? 1 : 0) + (bit & 0xccccccccu ? 2 : 0) + (bit & 0xf0f0f0f0u ? 4 : 0) +
               (bit & 0xff00ff00u ? 8 : 0) + (bit & 0xffff0000u ? 16 : 0);
    }
    /* The next tile that is to be visited, of the next head if there is none of this one. */
    VERB void find()
    {
#pragma unroll 1
        while (seen == 0 && base::is_there()) {
            looked += 32 * T::N;
            if (looked > base::last) {
                looked = base::first;
                base::head++;
                base::heads--;
            }
            look();
        }
        const uint32_t lowest = seen & (0 - seen);
        base::row = looked + tile_of(lowest) * T::N;
        masked = {true, {(hidden[0] & lowest) != 0, (hidden[1] & lowest) != 0}};
    }
};

/* ---- The producer ---- */

template <class T, bool KEYS, int MATRICES, class Memory, class Call>
VERB void copy_own(const Call &f, const owner_block<T, KEYS> &at, const Memory &memory)
{
    constexpr int SLABS = T::ROWS / 64;
    const side_copy<T, 0, MATRICES, Call> copy(f, at.s, KEYS);
    barrier_expect(memory.own_full, MATRICES * T::OWN);
#pragma unroll
    for (int n = 0; n < MATRICES * T::BOXES * SLABS; n++) {
        const int matrix = n / (T::BOXES * SLABS), box = n / SLABS % T::BOXES, slab = n % SLABS;
        copy.load(memory.own + n * T::SLAB, memory.own_full, matrix, box, at.row + slab * 64,
                  KEYS ? at.kv_head : at.head);
    }
}

/* Threads of the producer: one, or with a mask a warp, of which the first one copies. */
template <class T> constexpr VERB int producing_threads()
{
    return has_mask(T::FEATURES) ? 32 : 1;
}

/* The steps of a walk; returns how many. */
template <class T, bool KEYS, int MATRICES, class Call, class Walk>
VERB int copy_steps(const Call &f, owner_notes<T, KEYS> &notes, const owner_memory<T, KEYS, MATRICES> &memory,
                    Walk walk)
{
    const side_copy<T, 0, MATRICES, Call> copy(f, notes.at.s, !KEYS);
    const float *const stats = stats_of_head<float>(f.p, {notes.at.s, 0});
    const int kv_head = notes.at.kv_head;
    int n = 0;
#pragma unroll 1
    for (; walk.is_there(); walk.next(), n++) {
        const owner_step step = walk.describe();
        const float *const of_step = stats + (step.head * f.p.q_rows + step.row) * AGI_CUDA_STATS;
        const uint32_t tile = memory.ring.tile(n), full = memory.ring.full(n);
        memory.ring.claim(n);
        if (producing_threads<T>() == 1 || threadIdx.x == 0) {
            notes.step(n) = step;
            if constexpr (has_mask(T::FEATURES)) {
                notes.masked[n % T::STAGES] = walk.masked;
            }
            barrier_expect(full, memory.STAGE);
            copy.load_tiles(tile, full, step.row, KEYS ? step.head : kv_head);
            if (KEYS) {
                bulk_load(tile + memory.TILES, of_step, memory.STATS, full);
            }
        }
        if constexpr (producing_threads<T>() > 1) {
            __syncwarp();
        }
    }
    return n;
}
/* All that consumers wait for. */
template <class T, bool KEYS, int MATRICES, class Call>
VERB void produce(const Call &f, owner_notes<T, KEYS> &notes, const owner_memory<T, KEYS, MATRICES> &memory)
{
    if (threadIdx.x == 0) {
        copy_own<T, KEYS, MATRICES>(f, notes.at, memory);
    }
    if constexpr (has_mask(T::FEATURES)) {
        const int n = copy_steps(f, notes, memory, seen_walk<T, KEYS>(f.x, notes.at));
        memory.ring.claim(n);
        if (threadIdx.x == 0) {
            notes.masked[n % T::STAGES].there = false;
            barrier_expect(memory.ring.full(n), 0);
        }
    } else {
        copy_steps(f, notes, memory, owner_walk<T, KEYS>(notes.at));
    }
}
