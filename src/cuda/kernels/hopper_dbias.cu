/* The gradient of the bias on Hopper. A block owns a tile of dB in registers, 64 keys and 64 queries for each
 * warpgroup, and walks over the sequences and heads that share it:
 *
 *     S = Q K^T, dP = dO V^T    dB += P o (M o dP - D)
 *
 * Warpgroup 0 copies, the others compute, as in hopper_forward.cu. The tile's bias is the same at every step and stays
 * in registers. Nothing is summed over rows here, so those that nobody sees may hold anything: their pairs are left
 * out.
 *
 * If there are few tiles, the walk is cut into parts, a block for each. hopper_dbias_sum adds their sums up in
 * order. */
#include "cuda/kernels/hopper_features.cuh"
#include "cuda/kernels/hopper_results.cuh"
#include "cuda/kernels/hopper_walk.cuh"
#include "cuda/kernels/stream.cuh"

/* ---- Where a block is ---- */

template <class T> struct bias_block {
    int64_t b, h, part;
    int row, key;              /* the first of the tile */
    int64_t first, end, heads; /* steps of the walk; how many heads of a sequence it visits */

    VERB bias_block(const agi_hopper_dbias &f)
    {
        const agi_cuda_params &p = f.p;
        const int64_t rows = (p.Nq + T::ROWS - 1) / T::ROWS;
        int64_t index = blockIdx.x;
        key = (int)(index % p.w.blocks) * T::N;
        index /= p.w.blocks;
        row = (int)(index % rows) * T::ROWS;
        index /= rows;
        h = index % p.bias_size[1];
        index /= p.bias_size[1];
        b = index % p.bias_size[0];
        part = index / p.bias_size[0];
        heads = p.bias_size[1] == 1 ? p.H : 1;
        first = part * f.steps;
        end = min(first + f.steps, heads * (p.bias_size[0] == 1 ? p.B : 1));
    }
    /* Of step n: sequence and head. */
    VERB int64_t sequence_at(const agi_cuda_params &p, int64_t n) const
    {
        return p.bias_size[0] == 1 ? n / heads : b;
    }
    VERB int head_at(const agi_cuda_params &p, int64_t n) const
    {
        return (int)(p.bias_size[1] == 1 ? n % heads : h);
    }
};

/* What the producer tells the consumers about a step; after the last one comes one that is not there. */
struct bias_step {
    sequence s;
    int h;
    bool there;
    /* Of each warpgroup: it sees some pair; some pair is hidden, by positions and lengths, by the mask. */
    bool seen[3], cut[3], mixed[3];
};

/* Of 64 queries from i on and 64 keys from j on. */
VERB bool sees_some(const sequence &s, int i, int j)
{
    return i < s.n_q && j < s.n_k && min(j + 63, s.n_k - 1) - i >= s.low &&
           j - min(i + 63, s.n_q - 1) <= s.high;
}
VERB bool sees_all(const sequence &s, int i, int j)
{
    return i + 64 <= s.n_q && j + 64 <= s.n_k && j - (i + 63) >= s.low && j + 63 - i <= s.high;
}

/* ---- Shared memory ---- */

/* Stages of Q, dO, K, V and the numbers of the queries; barriers, notes. */
template <class T> struct bias_memory {
    static constexpr int TILES = 2 * T::OWN + 2 * T::TILE, STAGE = TILES + T::ROWS * AGI_CUDA_STATS * 4;
    static_assert(sizeof(bias_step) <= AGI_HOPPER_DBIAS_NOTE, "room for the notes");
    tile_ring<T::STAGES> ring;
    bias_step *notes;

    VERB bias_memory(char *memory)
    {
        const uint32_t shared = shared_address(memory), begin = (shared + 1023) & ~1023u;
        const uint32_t barriers = begin + T::STAGES * STAGE;
        ring = {begin, STAGE, barriers};
        notes = (bias_step *)(memory + (barriers + 2 * T::STAGES * 8 - shared));
    }
    VERB void init() const
    {
        ring.init(4 * T::CONSUMERS);
        barrier_init_done();
    }
    VERB uint32_t queries(int n, int matrix) const /* Q, dO */
    {
        return ring.tile(n) + matrix * T::OWN;
    }
    VERB uint32_t keys(int n, int matrix) const /* K, V */
    {
        return ring.tile(n) + 2 * T::OWN + matrix * T::TILE;
    }
    VERB uint32_t rows(int n) const
    {
        return ring.tile(n) + TILES;
    }
    VERB bias_step &step(int n) const
    {
        return notes[n % T::STAGES];
    }
};

/* ---- The producer ---- */

VERB int operand_of(const agi_hopper_dbias &, bool keys, int matrix)
{
    return keys ? (matrix == 0 ? AGI_CUDA_K : AGI_CUDA_V) : (matrix == 0 ? AGI_CUDA_Q : AGI_CUDA_DO);
}
VERB const agi_cuda_tensor_map &map_of(const agi_hopper_dbias &f, bool keys, int matrix)
{
    return keys ? (matrix == 0 ? f.k : f.v) : (matrix == 0 ? f.q : f.d_o);
}

template <class T> struct bias_producer {
    const agi_hopper_dbias &f;
    const bias_block<T> &at;
    const bias_memory<T> &memory;

    /* Returns whether some warpgroup sees a pair. */
    VERB bool describe(bias_step &step, int64_t number) const
    {
        bool any = false;
        step.s = find_sequence(f.p, at.sequence_at(f.p, number));
        step.h = at.head_at(f.p, number);
        step.there = true;
        for (int w = 0; w < T::CONSUMERS; w++) {
            const int row = at.row + w * 64;
            step.seen[w] = sees_some(step.s, row, at.key);
            step.cut[w] = !sees_all(step.s, row, at.key);
            step.mixed[w] = false;
            if (has_mask(T::FEATURES) && step.seen[w]) {
                const int has = classes_of(f.x, step.s, step.h, row)[at.key / AGI_HOPPER_CLASS];
                step.seen[w] = (has & AGI_TILE_SEEN) != 0;
                step.mixed[w] = (has & AGI_TILE_HIDDEN) != 0;
            }
            any |= step.seen[w];
        }
        return any;
    }
    /* Numbers of the queries that exist, 64 at a time: of three lists, or AGI_CUDA_STATS of each. */
    VERB void copy_rows(const bias_step &step, uint32_t to, uint32_t full, int rows) const
    {
        if (f.lse == nullptr) {
            bulk_load(to, stats_of_head<float>(f.p, {step.s, step.h}) + (int64_t)at.row * AGI_CUDA_STATS,
                      rows * AGI_CUDA_STATS * 4, full);
            return;
        }
        const int64_t first = (step.h * f.tiles + first_tile_of(f.p, step.s, f.tile)) * f.tile + at.row;
        bulk_load(to, f.lse + first, rows * 4, full);
        bulk_load(to + T::ROWS * 4, f.lse_rest + first, rows * 4, full);
        bulk_load(to + T::ROWS * 8, f.delta + first, rows * 4, full);
    }
    VERB void copy(const bias_step &step, int n) const
    {
        const uint32_t full = memory.ring.full(n);
        const int rows = min(T::ROWS, (step.s.n_q - at.row + 63) / 64 * 64);
        const box_copy<agi_hopper_dbias> queries = {f, step.s, false, T::ROWS, step.h};
        const box_copy<agi_hopper_dbias> keys = {f, step.s, true, T::N, step.h / f.p.group};
        barrier_expect(full, memory.TILES + rows * (f.lse == nullptr ? AGI_CUDA_STATS : 3) * 4);
        for (int i = 0; i < 2 * T::BOXES; i++) {
            const int matrix = i / T::BOXES, box = i % T::BOXES;
            queries.load(memory.queries(n, matrix) + box * T::ROWS * 128, full, matrix, box, at.row);
            keys.load(memory.keys(n, matrix) + box * T::BOX, full, matrix, box, at.key);
        }
        copy_rows(step, memory.rows(n), full, rows);
    }
    VERB void run() const
    {
        int n = 0;
#pragma unroll 1
        for (int64_t number = at.first; number < at.end; number++) {
            memory.ring.claim(n);
            if (describe(memory.step(n), number)) {
                copy(memory.step(n), n);
                n++;
            }
        }
        memory.ring.claim(n);
        memory.step(n).there = false;
        barrier_expect(memory.ring.full(n), 0);
    }
};

/* ---- The consumers ---- */

enum { ALL_CONSUMERS = 1 }; /* a named barrier */

template <class T> struct bias_consumer {
    typedef typename T::F F;
    static constexpr bool DROPS = (T::FEATURES & AGI_HAS_DROPOUT) != 0;
    static constexpr float RAISED = F::RAISED ? 14 : 0, LOG2_E = 1.4426950408889634f;

    const agi_hopper_dbias &f;
    const bias_block<T> &at;
    const bias_memory<T> &memory;
    const int w, row; /* of the warpgroup; the thread's first query, the other is row + 8 */
    bool hides;       /* some bias of the warp is minus infinity */
    float S[T::N / 2], dP[T::N / 2], bias[T::N / 2], sum[T::N / 2];
    float lse[2], rest[2], D[2];
    kept_weights<false, T::N / 2> kept;
    mask_bits<false, T::N / 2> visible;

    VERB bias_consumer(const agi_hopper_dbias &call, const bias_block<T> &block, const bias_memory<T> &shared)
        : f(call), at(block), memory(shared), w(uniform((int)threadIdx.x / 128 - 1)),
          row(block.row + (int)threadIdx.x / 32 * 16 - 64 + (int)threadIdx.x % 32 / 4)
    {
        load_bias();
    }
    VERB void load_bias()
    {
        sequence s = {};
        s.b = at.b;
        bool some = false;
#pragma unroll
        for (int i = 0; i < T::N / 2; i++) {
            bias[i] = sum[i] = 0;
        }
        add_bias<F, false>(bias, f.p, {s, (int)at.h, row, at.key});
#pragma unroll
        for (int i = 0; i < T::N / 2; i++) {
            some |= bias[i] == -INFINITY;
        }
        hides = __any_sync(~0u, some);
    }

    /* ---- A step ---- */

    VERB void start_product(float (&to)[T::N / 2], int matrix, int n)
    {
        const operand_tile queries = rows_of(memory.queries(n, matrix) + w * T::SLAB);
        const operand_tile keys = rows_of(memory.keys(n, matrix));
        product_first<F, T::N>(to, operand_at(queries, 0), operand_at(keys, 0));
#pragma unroll
        for (int step = 1; step < T::D / 16; step++) {
            product_next<F, T::N>(to, operand_at(queries, channel_step(step, T::ROWS * 128)),
                                  operand_at(keys, channel_step(step, T::BOX)));
        }
        products_commit();
    }
    /* L, rounded, then -log2 e times what that took from it, and D. */
    VERB void load_rows(int n)
    {
        const bool lists = f.lse != nullptr;
        const uint32_t next = lists ? T::ROWS * 4 : 4, of_row = lists ? 4 : AGI_CUDA_STATS * 4;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const uint32_t from = memory.rows(n) + (row + 8 * half - at.row) * of_row;
            lse[half] = shared_load(from);
            rest[half] = shared_load(from + next);
            rest[half] = lists ? rest[half] : fmaf(rest[half], -LOG2_E, RAISED);
            D[half] = shared_load(from + 2 * next);
        }
    }
    VERB void make_scores()
    {
        const float scale = (float)f.p.scale;
        if (hides) {
#pragma unroll
            for (int i = 0; i < T::N / 2; i++) {
                S[i] = with_bias(mul_rn(S[i], scale), bias[i]);
            }
        } else {
#pragma unroll
            for (int i = 0; i < T::N / 2; i++) {
                S[i] = add_rn(mul_rn(S[i], scale), bias[i]);
            }
        }
    }
    /* P in the place of S, 0 where a pair is hidden. */
    VERB void make_weights(const bias_step &step)
    {
        make_scores();
#pragma unroll
        for (int i = 0; i < T::N / 2; i++) {
            S[i] = exp2_fast(fmaf(add_rn(S[i], -lse[i / 2 % 2]), LOG2_E, rest[i / 2 % 2]));
        }
        if (has_mask(T::FEATURES) && step.mixed[w]) {
            visible.hide(S, 0);
        }
        if (step.cut[w]) {
            hide(step.s);
        }
    }
    VERB void hide(const sequence &s)
    {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int i = row + 8 * half, column = at.key + (int)threadIdx.x % 4 * 2;
            const int from = i + s.low - column, to = i < s.n_q ? min(i + s.high + 1, s.n_k) - column : -FAR;
#pragma unroll
            for (int n = 0; n < T::N / 4; n++) {
                const int c = n / 2 * 8 + n % 2;
                float &x = S[n / 2 * 4 + 2 * half + n % 2];
                x = c < from || c >= to ? 0 : x;
            }
        }
    }
    /* M o dP - D */
    VERB float difference(int i) const
    {
        const float x = !DROPS ? dP[i] : kept[i] ? dP[i] * f.x.inverse_keep : 0;
        return x - D[i / 2 % 2];
    }
    /* hidden: P may be 0 where dP is anything. */
    VERB void add_gradients(bool hidden)
    {
        if (hidden) {
#pragma unroll
            for (int i = 0; i < T::N / 2; i++) {
                sum[i] = S[i] == 0 ? sum[i] : fmaf(S[i], difference(i), sum[i]);
            }
        } else {
#pragma unroll
            for (int i = 0; i < T::N / 2; i++) {
                sum[i] = fmaf(S[i], difference(i), sum[i]);
            }
        }
    }
    VERB void step(int n)
    {
        const bias_step &about = memory.step(n);
        if (!about.seen[w]) {
            memory.ring.release(n);
            return;
        }
        products_begin();
        start_product(S, 0, n);
        start_product(dP, 1, n);
        load_rows(n);
        if constexpr (DROPS) {
            kept.find(f.p, {about.s, about.h, row, at.key});
        }
        if (has_mask(T::FEATURES) && about.mixed[w]) {
            visible.find(f.p, f.x, {about.s, about.h, row, at.key});
        }
        const bool hidden = hides || about.cut[w] || about.mixed[w];
        products_wait<1>();
        hold(S);
        before_next_wait(f.p.H, [&] { make_weights(about); });
        products_wait<0>();
        hold(dP);
        memory.ring.release(n);
        add_gradients(hidden);
    }
    VERB void walk()
    {
#pragma unroll 1
        for (int n = 0;; n++) {
            memory.ring.wait(n);
            if (!memory.step(n).there) {
                return;
            }
            step(n);
        }
    }

    /* ---- Results: into dB, or into the sums of the part ---- */

    VERB void finish()
    {
        const agi_cuda_params &p = f.p;
        const int warp = (int)threadIdx.x / 32 - 4, first = row - (int)threadIdx.x % 32 / 4;
        const int64_t *const size = p.bias_size;
        const bool whole = f.sums == nullptr;
        const ag_tensor of_part = {f.sums, {size[1] * p.Nq * p.Nk, p.Nq * p.Nk, p.Nk, 1}};
        const ag_tensor &t = whole ? p.a.dbias : of_part;
        const output out = {&t, whole ? p.aux_dtype : AG_F32, whole && (p.a.accumulate & AG_ACC_DBIAS) != 0};
#pragma unroll
        for (int i = 0; i < T::N / 2; i++) {
            sum[i] *= F::RAISED ? 0x1p-14f : 1;
        }
        named_sync(ALL_CONSUMERS, 128 * T::CONSUMERS); /* nobody needs the stages any more */
        const warp_rows<T::N> rows = {memory.ring.tiles + warp * 16 * T::N * 4};
        const int64_t b = whole ? at.b : at.part * size[0] + at.b;
        rows.put(sum);
        rows.store(out, element_at(t, b, at.h, first) + at.key * t.strides[3], (int)p.Nq - first,
                   min(T::N, (int)p.Nk - at.key), false);
    }
};

/* ---- The kernels ---- */

template <class T> VERB void run_hopper_dbias(const agi_hopper_dbias &f)
{
    SHARED_MEMORY(shared);
    const bias_memory<T> memory(shared);
    const bias_block<T> at(f);
    if (threadIdx.x == 0) {
        memory.init();
    }
    __syncthreads();
    if (threadIdx.x < 128) {
        give_registers<T::PRODUCER_REGISTERS>();
        if (threadIdx.x == 0) {
            bias_producer<T>{f, at, memory}.run();
        }
    } else {
        take_registers<T::CONSUMER_REGISTERS>();
        bias_consumer<T> c(f, at, memory);
        c.walk();
        c.finish();
    }
}

/* A thread per element of dB: its parts in order. */
VERB void sum_parts(const agi_hopper_dbias &f)
{
    const agi_cuda_params &p = f.p;
    const int64_t *const size = p.bias_size;
    const int64_t count = size[0] * size[1] * p.Nq * p.Nk, e = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    const ag_tensor &t = p.a.dbias;
    if (e >= count) {
        return;
    }
    double sum = 0;
    for (int part = 0; part < p.w.parts; part++) {
        sum += (double)f.sums[part * count + e];
    }
    const int64_t j = e % p.Nk, i = e / p.Nk % p.Nq, head = e / p.Nk / p.Nq;
    const output out = {&t, p.aux_dtype, (p.a.accumulate & AG_ACC_DBIAS) != 0};
    out.store(element_at(t, head / size[1], head % size[1], i) + j * t.strides[3], sum);
}

#define AGI_HOPPER_SET_KERNEL(map, format, D, CONSUMERS, N, STAGES, set)                                     \
    KERNEL void __launch_bounds__(128 * (CONSUMERS + 1), 1)                                                  \
        map##_##format##_d##D##_##set(const __grid_constant__ agi_hopper_dbias f)                            \
    {                                                                                                        \
        run_##map<hopper_shape<format, D, CONSUMERS, N, STAGES, AGI_SET_##set>>(f);                          \
    }
#define AGI_HOPPER_SUM_KERNEL(name, format, threads)                                                         \
    KERNEL void __launch_bounds__(threads) name##_##format(const __grid_constant__ agi_hopper_dbias f)       \
    {                                                                                                        \
        sum_parts(f);                                                                                        \
    }
#define AGI_HOPPER_KERNELS(list, kernel, format) list(kernel, format)
AGI_HOPPER_KERNELS(AGI_HOPPER_dbias_sets, AGI_HOPPER_SET_KERNEL, AGI_FORMAT)
AGI_HOPPER_KERNELS(AGI_HOPPER_dbias_sum, AGI_HOPPER_SUM_KERNEL, AGI_FORMAT)
