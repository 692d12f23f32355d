/* What the kernels of vjp and vjp_jvp on Hopper share. A block owns rows of one side, queries or keys, with MATRICES
 * matrices of them in shared memory, and walks over tiles of as many matrices of the other side, which stand in the
 * same order. Warpgroup 0 copies, the others own 64 rows each, as in hopper_forward.cu.
 *
 * A kernel's parameter, Call, is what box_copy (hopper_tiles.cuh) asks for. */
#pragma once
#include "cuda/kernels/hopper_mask.cuh"
#include "cuda/kernels/hopper_results.cuh"
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
        row = (int)(KEYS ? block : p.w.blocks - 1 - block) * T::ROWS; /* with causal the long walks begin first */
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

    /* Step n of the walk: the first row of its tile, its query head. */
    VERB int steps() const
    {
        return tiles * heads;
    }
    VERB int stream_row(int n) const
    {
        return (first + n % tiles) * T::N;
    }
    VERB int query_head(int n) const
    {
        return head + n / tiles;
    }
    VERB bool sees(int own, int stream) const
    {
        const int distance = KEYS ? own - stream : stream - own; /* j - i */
        return distance >= s.low && distance <= s.high && stream < stream_rows();
    }
    /* Do 64 rows from `own` on see all rows of a tile? */
    VERB bool sees_tile(int own, int stream) const
    {
        return sees(own, stream) && sees(own + 63, stream) && sees(own, stream + T::N - 1) &&
               sees(own + 63, stream + T::N - 1);
    }
};

/* What the producer tells the consumers about a step. */
struct owner_step {
    int row;     /* the first of the tile */
    int head;    /* of the queries */
    bool clear;  /* some rows of the tile are seen by no row of the block */
    bool cut[2]; /* of each warpgroup: some pair of its rows and the tile's is hidden */
};
template <class T, bool KEYS> VERB owner_step describe_step(const owner_block<T, KEYS> &at, int row, int head)
{
    static_assert(T::CONSUMERS == 2, "cut is for two");
    return {row, head, row < at.from || row + T::N > at.to,
            {!at.sees_tile(at.row, row), !at.sees_tile(at.row + 64, row)}};
}
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

/* ---- The producer ---- */

template <class T, bool KEYS, class Memory, class Call>
VERB void copy_own(const Call &f, const owner_block<T, KEYS> &at, const Memory &memory)
{
    constexpr int SLABS = T::ROWS / 64;
    const box_copy<Call> copy = {f, at.s, KEYS, 64, KEYS ? at.kv_head : at.head};
    barrier_expect(memory.own_full, memory.OWN);
    for (int n = 0; n < memory.OWN / T::SLAB; n++) {
        const int matrix = n / (T::BOXES * SLABS), box = n / SLABS % T::BOXES, slab = n % SLABS;
        copy.load(memory.own + n * T::SLAB, memory.own_full, matrix, box, at.row + slab * 64);
    }
}
template <class T, bool KEYS, int MATRICES, class Call>
VERB void copy_step(const Call &f, owner_notes<T, KEYS> &notes, const owner_memory<T, KEYS, MATRICES> &memory, int n,
                    int row, int h)
{
    const owner_block<T, KEYS> &at = notes.at;
    const uint32_t tile = memory.ring.tile(n), full = memory.ring.full(n);
    const box_copy<Call> copy = {f, at.s, !KEYS, T::N, KEYS ? h : at.kv_head};
    memory.ring.claim(n);
    notes.step(n) = describe_step(at, row, h);
    barrier_expect(full, memory.STAGE);
    for (int i = 0; i < MATRICES * T::BOXES; i++) {
        copy.load(tile + i * T::BOX, full, i / T::BOXES, i % T::BOXES, row);
    }
    if (KEYS) {
        const float *const stats = stats_of_head<float>(f.p, {at.s, h}) + (int64_t)row * AGI_CUDA_STATS;
        bulk_load(tile + memory.TILES, stats, memory.STATS, full);
    }
}

/* All steps of the block. */
template <class T, bool KEYS, int MATRICES, class Call>
VERB void copy_steps(const Call &f, owner_notes<T, KEYS> &notes, const owner_memory<T, KEYS, MATRICES> &memory)
{
    const owner_block<T, KEYS> &at = notes.at;
    for (int n = 0; n < at.steps(); n++) {
        copy_step(f, notes, memory, n, at.stream_row(n), at.query_head(n));
    }
}

/* ---- The same with a mask ---- */

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
template <class T, bool KEYS, int MATRICES, class Call>
VERB void copy_seen_steps(const Call &f, owner_notes<T, KEYS> &notes, const owner_memory<T, KEYS, MATRICES> &memory)
{
    const owner_block<T, KEYS> &at = notes.at;
    int n = 0;
#pragma unroll 1
    for (int h = at.head; h < at.head + at.heads; h++) {
        const stream_classes<T, KEYS> classes(f.x, at, h);
#pragma unroll 1
        for (int tile = at.first; tile < at.first + at.tiles; tile++) {
            const int has[2] = {classes.of(0, tile), classes.of(1, tile)};
            if (((has[0] | has[1]) & AGI_TILE_SEEN) != 0) {
                memory.ring.claim(n);
                notes.masked[n % T::STAGES] = {
                    true, {(has[0] & AGI_TILE_HIDDEN) != 0, (has[1] & AGI_TILE_HIDDEN) != 0}};
                copy_step(f, notes, memory, n, tile * T::N, h);
                n++;
            }
        }
    }
    memory.ring.claim(n);
    notes.masked[n % T::STAGES].there = false;
    barrier_expect(memory.ring.full(n), 0);
}

/* ---- The consumers ---- */

enum { WARPGROUP = 5, ALL_CONSUMERS = 9 }; /* named barriers */

/* A weight of a score in a row of L; larger by 2^14 in float16, whose range is small. */
template <class F> VERB float weight_at(float S, float lse, float lse_low)
{
    constexpr float LOG2_E = 1.4426950408889634f;
    return exp2_fast(fmaf(add_rn(add_rn(S, -lse), -lse_low), LOG2_E, F::RAISED ? 14 : 0));
}

/* What a thread of a consumer knows and does whatever the map is. A warpgroup has 64 rows of its own, or all have the
 * same. SUMMED: the first so many matrices of the stream are multiplied by weights too, along their rows. */
template <class T_, bool KEYS_, int MATRICES_, int SUMMED, class Call_,
          class Memory = owner_memory<T_, KEYS_, MATRICES_>>
struct owner_consumer {
    typedef T_ T;
    typedef Call_ Call;
    typedef typename T::F F;
    static constexpr bool KEYS = KEYS_;
    static constexpr int MATRICES = MATRICES_;
    static constexpr bool SHARED_ROWS = T::ROWS == 64;

    const Call &f;
    const owner_notes<T, KEYS> &notes;
    const owner_block<T, KEYS> &at;
    const Memory &memory;
    const int w, row;         /* of the warpgroup; the thread's first row, the other is row + 8 */
    row_stats<float> mine[2]; /* of the thread's rows if they are queries */

    VERB owner_consumer(const Call &call, const owner_notes<T, KEYS> &from, const Memory &shared)
        : f(call), notes(from), at(from.at), memory(shared), w(uniform((int)threadIdx.x / 128 - 1)),
          row(from.at.row + (SHARED_ROWS ? (int)threadIdx.x % 128 / 32 * 16 : (int)threadIdx.x / 32 * 16 - 64) +
              (int)threadIdx.x % 32 / 4)
    {
        if constexpr (!KEYS) {
            const float *const stats = stats_of_head<float>(f.p, {at.s, at.head});
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int r = row + 8 * half;
                mine[half] = {INFINITY, 0, 0, 0, 0, 0};
                if (r < at.s.n_q) {
                    mine[half] = stats_at(stats + (int64_t)r * AGI_CUDA_STATS);
                }
            }
        }
    }

    /* The 64 rows of the block that the warpgroup has. */
    VERB int slab() const
    {
        return SHARED_ROWS ? 0 : w;
    }
    VERB bool has_step(int n) const
    {
        if constexpr (has_mask(T::FEATURES)) {
            memory.ring.wait(n);
            return notes.masked[n % T::STAGES].there;
        }
        return n < at.steps();
    }
    /* Does the mask hide some pair of the warpgroup in step n? */
    VERB bool is_mixed(int n) const
    {
        return has_mask(T::FEATURES) && notes.masked[n % T::STAGES].mixed[w];
    }

    /* to = an own matrix times one of the step's, both along the channels; with ADD: to += that. */
    template <bool ADD = false> VERB void multiply(float (&to)[T::N / 2], int own_matrix, int stream_matrix, int n)
    {
        const operand_tile own = rows_of(memory.own + own_matrix * T::OWN + slab() * T::SLAB);
        const operand_tile stream = rows_of(memory.tile(stream_matrix, n));
        if constexpr (ADD) {
            product_next<F, T::N>(to, operand_at(own, 0), operand_at(stream, 0));
        } else {
            product_first<F, T::N>(to, operand_at(own, 0), operand_at(stream, 0));
        }
#pragma unroll
        for (int step = 1; step < T::D / 16; step++) {
            product_next<F, T::N>(to, operand_at(own, channel_step(step, T::ROWS * 128)),
                                  operand_at(stream, channel_step(step, T::BOX)));
        }
    }
    /* to += weights times the step's matrix, along its rows. */
    VERB void start_sum(float (&to)[T::D / 2], const uint32_t (&weights)[T::N / 4], int matrix, int n)
    {
        const operand_tile stream = columns_of(memory.tile(matrix, n), T::BOX);
#pragma unroll
        for (int step = 0; step < T::N / 16; step++) {
            product_weights<F, T::D>(to, weights + 4 * step, operand_at(stream, step * 2048));
        }
    }

    /* Rows of the stream that no row of the block sees may hold anything, and 0 times NaN is NaN: they become zeros in
     * the matrices that are summed. Every warpgroup writes all of them before its own products. */
    VERB void clear_hidden(int n)
    {
        if (notes.step(n).clear) {
            clear_rows<SUMMED>(0, n, [](int) { return false; });
        }
    }
    /* The same in COUNT matrices from `matrix` on, and rows of the tile of which is_dead. */
    template <int COUNT, class Function> VERB void clear_rows(int matrix, int n, Function is_dead)
    {
        const owner_step &step = notes.step(n);
        const int first = step.row;
        for (int i = (int)threadIdx.x % 128; i < COUNT * T::BOXES * T::N * 8; i += 128) {
            const int box = i / (T::N * 8), r = i / 8 % T::N;
            if (first + r < at.from || first + r >= at.to || is_dead(r)) {
                shared_zero_16(memory.tile(matrix, n) + box * T::BOX + r * 128 + i % 8 * 16);
            }
        }
        shared_fence();
        named_sync(WARPGROUP + w, 128);
    }

    /* ---- Pairs ---- */

    /* Of number i of a score tile. */
    VERB int column(int i) const
    {
        return i / 4 * 8 + (int)threadIdx.x % 4 * 2 + i % 2;
    }
    /* 0 in the place of weights of pairs that do not see each other. */
    VERB void hide(float (&x)[T::N / 2], int n) const
    {
        const owner_step &step = notes.step(n);
        if (!step.cut[slab()]) {
            return;
        }
        const int first = step.row;
#pragma unroll
        for (int i = 0; i < T::N / 2; i++) {
            x[i] = at.sees(row + i / 2 % 2 * 8, first + column(i)) ? x[i] : 0;
        }
    }
    /* 0 in the place of other numbers of pairs whose weight is 0 in a tile that is cut: behind a hidden pair there may
     * be NaN. */
    VERB void clear_behind(const float (&weights)[T::N / 2], float (&x)[T::N / 2], int n) const
    {
        if (!notes.step(n).cut[slab()]) {
            return;
        }
#pragma unroll
        for (int i = 0; i < T::N / 2; i++) {
            x[i] = weights[i] == 0 ? 0 : x[i];
        }
    }

    /* ---- Results ---- */

    /* Multiplied by a factor; 0 in rows that do not exist. */
    VERB void scale_rows(float (&x)[T::D / 2], float factor) const
    {
#pragma unroll
        for (int i = 0; i < T::D / 2; i++) {
            x[i] = row + i / 2 % 2 * 8 < at.own_rows() ? x[i] * factor : 0;
        }
    }
    VERB void store(const warp_rows<T::D> &rows, float (&x)[T::D / 2], const ag_tensor &t, uint32_t bit, float factor,
                    int width) const
    {
        const int first = row - (int)threadIdx.x % 32 / 4;
        const int64_t place = element_at(t, at.s.view, KEYS ? at.kv_head : at.head, (KEYS ? at.s.k0 : at.s.q0) + first);
        scale_rows(x, factor);
        rows.put(x);
        rows.store({&t, f.p.grad_dtype, (f.p.a.accumulate & bit) != 0}, place, at.rows_of_tensor(f.p) - first, width,
                   false);
    }
    /* Where the warp's rows lie on their way to the tensors, when all consumers are done with the stages. */
    VERB warp_rows<T::D> begin_results() const
    {
        named_sync(ALL_CONSUMERS, 128 * T::CONSUMERS);
        return {memory.results() + ((int)threadIdx.x / 32 - 4) * 16 * T::D * 4};
    }
};

/* ---- The kernels ---- */

/* Consumer: an owner_consumer with step(n), the n-th of the walk, and finish(). */
template <class Consumer> VERB void run_owners(const typename Consumer::Call &f)
{
    typedef typename Consumer::T T;
    constexpr bool KEYS = Consumer::KEYS;
    SHARED_MEMORY(shared);
    const owner_memory<T, KEYS, Consumer::MATRICES> memory(shared_address(shared));
    owner_notes<T, KEYS> &notes = *(owner_notes<T, KEYS> *)(shared + (memory.notes - shared_address(shared)));
    const owner_block<T, KEYS> &at = notes.at;
    if (threadIdx.x == 0) {
        notes.at = owner_block<T, KEYS>(f.p);
        memory.init();
    }
    __syncthreads();
    if (at.row >= at.rows_of_tensor(f.p)) {
        return;
    }
    if (threadIdx.x < 128) {
        give_registers<T::PRODUCER_REGISTERS>();
        if (threadIdx.x == 0) {
            copy_own(f, at, memory);
            if constexpr (has_mask(T::FEATURES)) {
                copy_seen_steps(f, notes, memory);
            } else {
                copy_steps(f, notes, memory);
            }
        }
    } else {
        take_registers<T::CONSUMER_REGISTERS>();
        Consumer c(f, notes, memory);
        barrier_wait(memory.own_full, 0);
#pragma unroll 1
        for (int n = 0; c.has_step(n); n++) {
            c.step(n);
        }
        c.finish();
    }
}
