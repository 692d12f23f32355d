/* What the kernels for Hopper share: their shape, tiles in shared memory and as operands, rings of tiles between the
 * warpgroup that copies and those that compute, and where a block is in the call. */
#pragma once
#include "cuda/kernels/features.cuh"
#include "cuda/kernels/hopper_verbs.cuh"

/* ---- The shape of a kernel that owns queries and walks over keys ---- */

template <class F_, int D_, int CONSUMERS_, int N_, int STAGES_, int FEATURES_ = 0> struct hopper_shape {
    typedef F_ F;
    static constexpr int FEATURES = FEATURES_; /* AGI_HAS_* of hopper_sets.h */
    static constexpr int D = D_, CONSUMERS = CONSUMERS_, N = N_, STAGES = STAGES_;
    static constexpr int ROWS = 64 * CONSUMERS, THREADS = 128 * (CONSUMERS + 1);
    static constexpr int BOXES = D / 64;  /* a row of a box is 64 channels */
    static constexpr int SLAB = 64 * 128; /* bytes of a box of 64 queries */
    static constexpr int BOX = N * 128;   /* of one of N keys */
    static constexpr int OWN = BOXES * ROWS * 128, TILE = BOXES * BOX;
    static constexpr int STEPS = STAGES; /* of vjp and vjp_jvp: notes of so many steps stay */
    static constexpr int Q_SLOTS = AGI_HOPPER_Q_SLOTS(D); /* of forward: tiles of queries at once */
    /* Registers of a thread: what the producer gives up, the consumers take. A launch has 65,536 / THREADS each. */
    static constexpr int PRODUCER_REGISTERS = CONSUMERS != 2 ? 32 : FEATURES == 0 ? 40 : 24;
    static constexpr int CONSUMER_REGISTERS = CONSUMERS == 4   ? 112
                                              : CONSUMERS == 3 ? 160
                                              : FEATURES == 0  ? 232
                                                               : 240;
    static constexpr bool PLACE_IN_MEMORY = false; /* see run_queries */
};

/* ---- Tiles as operands ---- */

enum { SWIZZLE_128 = 1 << 30 }; /* in the high word of a descriptor */

/* Rows of 64 channels, of which 16 at a time are multiplied: 32 bytes a step. */
VERB operand_tile rows_of(uint32_t address)
{
    return {(address & 0x3ffff) >> 4 | 1 << 16, 1024 >> 4 | SWIZZLE_128};
}
/* The same tile with the sum over its rows, 16 at a time: 2,048 bytes a step; boxes of 64 columns `box` bytes apart. */
VERB operand_tile columns_of(uint32_t address, uint32_t box)
{
    return {(address & 0x3ffff) >> 4 | box >> 4 << 16, 1024 >> 4 | SWIZZLE_128};
}
/* Where step k of 16 channels begins in a matrix of boxes that are `box` bytes apart. */
VERB uint32_t channel_step(int k, uint32_t box)
{
    return k / 4 * box + k % 4 * 32;
}

/* ---- Work beside products ----
 *
 * Runs f, once, before products are waited for the next time. The compiler moves that wait in front of work that does
 * not need it, but not into a loop; some: a number of the call that is not 0. */
template <class Function> VERB void before_next_wait(int some, Function f)
{
#pragma unroll 1
    for (int i = 0; i < min(some, 1); i++) {
        f();
    }
}

/* ---- A ring of tiles ----
 *
 * Tile number n is in slot n % STAGES. `full` ends a phase when the tile has come, `empty` when every warp of the
 * consumers is done with it. Count: the type of n; slots of unsigned numbers take fewer instructions. */
template <int STAGES, class Count = int> struct tile_ring {
    uint32_t tiles, bytes, barriers;

    VERB uint32_t tile(Count n) const
    {
        return tiles + n % STAGES * bytes;
    }
    VERB uint32_t full(Count n) const
    {
        return barriers + n % STAGES * 8;
    }
    VERB uint32_t empty(Count n) const
    {
        return full(n) + STAGES * 8;
    }
    VERB void init(int warps) const
    {
        for (int n = 0; n < STAGES; n++) {
            barrier_init(full(n), 1);
            barrier_init(empty(n), warps);
        }
    }

    /* By the producer: its slot is free. */
    VERB void claim(Count n) const
    {
        if (n >= STAGES) {
            barrier_wait(empty(n), (n / STAGES - 1) % 2);
        }
    }
    /* The same, and a tile of `count` bytes is on its way. */
    VERB void begin(Count n, uint32_t count) const
    {
        claim(n);
        barrier_expect(full(n), count);
    }
    /* By consumers. */
    VERB void wait(Count n) const
    {
        barrier_wait(full(n), n / STAGES % 2);
    }
    VERB void release(Count n) const
    {
        __syncwarp();
        if (threadIdx.x % 32 == 0) {
            barrier_arrive(empty(n));
        }
    }
};

/* ---- Where a block is ---- */

/* The n-th head of all sequences in the order in which blocks take them: sequence by sequence; but where sequences
 * share the bias of a head they come one after another, so that it is read from the cache by all but the first. */
template <int FEATURES> VERB int64_t head_in_order(const agi_cuda_params &p, int64_t n, int64_t heads)
{
    const bool shares = FEATURES & AGI_HAS_BIAS && p.a.bias.data != nullptr && p.a.bias.strides[0] == 0;
    return shares ? n % p.B * heads + n / p.B : n;
}

/* Queries from `row` on of one head, and the tiles of keys that some of them see: tile first + count - 1 is the first
 * to be visited. A block that sees no key visits one tile, all of it hidden. */
template <class T> struct query_block {
    sequence s;
    int h, kv_head, row;
    int from, to; /* the keys that some query of the block sees */
    int first, count;

    /* By groups of heads, in each the last rows of every head first. */
    VERB query_block(const agi_cuda_params &p, int heads_together, int number)
    {
        const int blocks = (int)p.w.blocks, of_group = heads_together * blocks;
        const int group = number / of_group, rest = number % of_group;
        const int begin = group * heads_together, together = min(heads_together, (int)p.B * p.H - begin);
        const int head = (int)head_in_order<T::FEATURES>(p, begin + rest % together, p.H);
        s = find_sequence(p, head / p.H);
        h = head % p.H;
        kv_head = h / p.group;
        row = (blocks - 1 - rest / together) * T::ROWS;
        find_keys();
    }
    VERB void find_keys()
    {
        const int last = min(row + T::ROWS, s.n_q) - 1;
        from = max(row + s.low, 0);
        to = min(last + s.high + 1, s.n_k);
        const bool none = row >= s.n_q || from >= to;
        from = none ? 0 : from;
        to = none ? 0 : to;
        first = from / T::N;
        count = none ? 1 : (to - 1) / T::N + 1 - first;
    }
    /* How many rows of the tensors of queries belong to the sequence. */
    VERB int rows_of_tensor(const agi_cuda_params &p) const
    {
        return p.flags & AG_PACKED ? s.n_q : (int)p.Nq;
    }
    /* The first key of the n-th tile that is visited. */
    VERB int key(int n) const
    {
        return (first + count - 1 - n) * T::N;
    }
};

/* The coordinates of a sequence in a matrix. */
struct box_place {
    int row, batch;
};
VERB box_place place_of(const agi_cuda_matrix &m, const sequence &s, bool keys)
{
    if (m.copied) {
        return {(int)(keys ? s.k_copy : s.q_copy), 0};
    }
    return {(int)(keys ? s.k0 : s.q0), (int)s.view};
}

/* 64 channels of a matrix from `row` of the sequence on, in a box of `rows` rows; zeros if the call lacks the matrix:
 * rows before the first are outside of every tensor. Call has `p` and two functions: operand_of(call, keys, n), which
 * operand the n-th matrix of a side is, and map_of(call, keys, n), its tensor map. */
template <class Call> struct box_copy {
    const Call &f;
    const sequence &s;
    bool keys;
    int rows, head;

    VERB void load(uint32_t to, uint32_t full, int matrix, int box, int row) const
    {
        const agi_cuda_matrix &m = f.p.m[operand_of(f, keys, matrix)];
        const box_place place = place_of(m, s, keys);
        box_load(to, map_of(f, keys, matrix), full, box * 64, m.data == nullptr ? -rows : place.row + row,
                 head, place.batch);
    }
};

/* COUNT matrices of a side, from the FIRST on, with their coordinates in registers; f: what box_copy asks for. */
template <class T, int FIRST, int COUNT, class Call> struct side_copy {
    const Call &f;
    bool keys;
    box_place places[COUNT];
    int channels
        [COUNT]; /* the first; beyond the tensor's width, where boxes are zero, if the call lacks the matrix */

    VERB side_copy(const Call &call, const sequence &s, bool of_keys) : f(call), keys(of_keys)
    {
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            const agi_cuda_matrix &m = f.p.m[operand_of(f, keys, FIRST + i)];
            places[i] = place_of(m, s, keys);
            channels[i] = m.data == nullptr ? T::D : 0;
        }
    }
    /* A box of 64 channels of matrix FIRST + i. */
    VERB void load(uint32_t to, uint32_t full, int i, int box, int row, int head) const
    {
        box_load(to, map_of(f, keys, FIRST + i), full, channels[i] + box * 64, places[i].row + row, head,
                 places[i].batch);
    }
    /* All boxes of a tile of one matrix, of each. */
    VERB void load_tile(uint32_t to, uint32_t full, int i, int row, int head) const
    {
#pragma unroll
        for (int box = 0; box < T::BOXES; box++) {
            load(to + box * T::BOX, full, i, box, row, head);
        }
    }
    VERB void load_tiles(uint32_t to, uint32_t full, int row, int head) const
    {
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            load_tile(to + i * T::TILE, full, i, row, head);
        }
    }
};
