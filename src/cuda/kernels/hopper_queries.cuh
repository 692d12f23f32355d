/* What jvp and float32's forward on Hopper share: a block owns queries and walks over the keys, from the last that it
 * sees to the first.
 *
 * Warpgroup 0 copies: one of its threads asks for the queries once and for each tile of keys and values as soon as a
 * slot is free. The others compute, 64 queries each. MATRICES is 1 for Q, K and V alone, 2 if each has its tangent
 * beside it: a tangent that the call does not have is read from outside of the matrix, where everything is zero.
 *
 * Sets of score features (hopper_sets.h) are jvp's alone. With a mask, tiles of keys that no query of the block sees
 * are left out; a bias and its tangent that the copy engine can read have a place of their own.
 *
 * Weights are 2^(S log2 e - u), u = m log2 e - raise rounded, with m the row's largest score so far; what was summed
 * before shrinks by 2^(u_old - u). The raise brings the weights of float16 to where it has most numbers. */
#pragma once
#include "cuda/kernels/hopper_features.cuh"
#include "cuda/kernels/hopper_results.cuh"
#include "cuda/kernels/hopper_seen.cuh"

constexpr float LOG2_E = 1.4426950408889634f;
constexpr float LOWEST =
    -0x1p126f; /* of m: finite, so that a hidden pair's weight, 2^(-inf - u), needs no test */

/* A slot of a ring has a tile of each matrix. */
template <class T, int MATRICES> struct query_memory {
    static constexpr bool HAS_BIAS = (T::FEATURES & AGI_HAS_BIAS) != 0;
    static constexpr int BIAS = HAS_BIAS ? AGI_HOPPER_BIAS_TILE(T::CONSUMERS, T::N) : 0; /* bytes */
    static constexpr int NOTES =
        2 * T::STAGES; /* a step's is read until the next K has come, but not the one after */
    uint32_t q, q_full;
    query_block<T> *place; /* of the block; the notes are behind it */
    tile_ring<T::STAGES> k, v;
    tile_ring<1> b; /* the bias and its tangent */

    VERB query_memory(char *shared)
    {
        constexpr uint32_t SLOT = MATRICES * T::TILE;
        const uint32_t begin = (shared_address(shared) + 1023) & ~1023u, rings = begin + MATRICES * T::OWN;
        const uint32_t biases = rings + 2 * T::STAGES * SLOT, barriers = biases + 2 * BIAS;
        q = begin;
        k = {rings, SLOT, barriers};
        v = {rings + T::STAGES * SLOT, SLOT, barriers + 2 * T::STAGES * 8};
        b = {biases, 2 * BIAS, barriers + 4 * T::STAGES * 8};
        q_full = barriers + (4 * T::STAGES + (HAS_BIAS ? 2 : 0)) * 8;
        place = (query_block<T> *)(shared + (q_full + 8 - shared_address(shared)));
        static_assert(sizeof(query_block<T>) <= AGI_HOPPER_PLACE && sizeof(key_note) <= 8,
                      "where a block is and its notes have no room in shared memory");
    }
    VERB void init() const
    {
        k.init(4 * T::CONSUMERS);
        v.init(4 * T::CONSUMERS);
        if constexpr (HAS_BIAS) {
            b.init(4 * T::CONSUMERS);
        }
        barrier_init(q_full, 1);
        barrier_init_done();
    }
    VERB key_note &note(int step) const
    {
        return ((key_note *)((char *)place + AGI_HOPPER_PLACE))[step % NOTES];
    }
};

/* ---- The producer ---- */

/* The maps of each matrix and of its tangent. */
struct query_maps {
    const agi_cuda_tensor_map *q, *k, *v;
};

/* The coordinates of a matrix or of its tangent. A matrix that the call lacks has a channel outside of the tensor,
 * where boxes are zero. */
struct operand_place {
    box_place place;
    int channel;
};
template <class T>
VERB operand_place find_operand(const agi_cuda_params &p, const sequence &s, int operand, int matrix)
{
    const bool keys = operand != AGI_CUDA_Q;
    const agi_cuda_matrix &m = p.m[operand + matrix * (AGI_CUDA_TQ - AGI_CUDA_Q)];
    return {place_of(m, s, keys), matrix > 0 && m.data == nullptr ? T::D : 0};
}

/* step: of the ring; key: the first of the tile. */
template <class T, int MATRICES>
VERB void copy_keys(const agi_cuda_params &p, const query_block<T> &at, const tile_ring<T::STAGES> &ring,
                    const agi_cuda_tensor_map *maps, int operand, int step, int key)
{
    ring.begin(step, MATRICES * T::TILE);
    for (int matrix = 0; matrix < MATRICES; matrix++) {
        const operand_place from = find_operand<T>(p, at.s, operand, matrix);
        for (int box = 0; box < T::BOXES; box++) {
            box_load(ring.tile(step) + matrix * T::TILE + box * T::BOX, maps[matrix], ring.full(step),
                     from.channel + box * 64, from.place.row + key, at.kv_head, from.place.batch);
        }
    }
}

template <class T, int MATRICES>
VERB void copy_queries(const agi_cuda_params &p, const query_block<T> &at,
                       const query_memory<T, MATRICES> &memory, const agi_cuda_tensor_map *maps)
{
    barrier_expect(memory.q_full, MATRICES * T::OWN);
    for (int matrix = 0; matrix < MATRICES; matrix++) {
        const operand_place from = find_operand<T>(p, at.s, AGI_CUDA_Q, matrix);
        for (int slab = 0; slab < T::CONSUMERS * T::BOXES; slab++) {
            const int box = slab / T::CONSUMERS, w = slab % T::CONSUMERS;
            box_load(memory.q + matrix * T::OWN + slab * T::SLAB, maps[matrix], memory.q_full,
                     from.channel + box * 64, from.place.row + at.row + w * 64, at.h, from.place.batch);
        }
    }
}

/* A tile of the bias or of its tangent. */
template <class T>
VERB void copy_bias_tile(const query_block<T> &at, const agi_cuda_tensor_map &map, const ag_tensor &t,
                         uint32_t to, uint32_t full, int key)
{
    for (int n = 0; n < T::CONSUMERS * ((T::N + 63) / 64); n++) {
        const int box = n / T::CONSUMERS, w = n % T::CONSUMERS;
        box_load(to + n * T::SLAB, map, full, key + box * 64, at.row + w * 64, t.strides[1] == 0 ? 0 : at.h,
                 t.strides[0] == 0 ? 0 : (int)at.s.b);
    }
}
/* Those of bias and tangent that come in boxes. */
template <class T, int MATRICES, class Launch>
VERB void copy_bias(const Launch &f, const query_block<T> &at, const query_memory<T, MATRICES> &memory,
                    int step, int key)
{
    constexpr int BYTES = query_memory<T, MATRICES>::BIAS;
    const int tiles = f.bias_in_boxes + f.tbias_in_boxes;
    if (tiles == 0) {
        return;
    }
    memory.b.begin(step, tiles * BYTES);
    if (f.bias_in_boxes) {
        copy_bias_tile(at, f.bias, f.p.a.bias, memory.b.tile(step), memory.b.full(step), key);
    }
    if (f.tbias_in_boxes) {
        copy_bias_tile(at, f.o, f.p.a.tbias, memory.b.tile(step) + BYTES, memory.b.full(step), key);
    }
}

/* The first tile from n on that the block visits; at.count or more: there is none. */
template <class T, class Launch> VERB int next_tile(const Launch &f, const query_block<T> &at, int n)
{
    if constexpr (has_mask(T::FEATURES)) {
        return seen_tiles<T>{f.x, at}.next(n);
    }
    return n;
}
/* A block that sees nothing visits its first tile, all of it hidden. The bias comes last, as its place is free only
 * when the tile before has its weights. */
template <class T, int MATRICES, class Launch>
VERB void produce(const Launch &f, const query_block<T> &at, const query_memory<T, MATRICES> &memory,
                  const query_maps &maps)
{
    int n = next_tile<T>(f, at, 0), before = 0;
    n = n < at.count ? n : 0;
#pragma unroll 1
    for (int step = 0;; step++) {
        const int next = next_tile<T>(f, at, n + 1), key = at.key(n);
        if constexpr (has_mask(T::FEATURES)) {
            memory.k.claim(step);
            memory.note(step) = seen_tiles<T>{f.x, at}.note(n, next >= at.count);
        }
        copy_keys<T, MATRICES>(f.p, at, memory.k, maps.k, AGI_CUDA_K, step, key);
        if (step == 0) {
            copy_queries<T, MATRICES>(f.p, at, memory, maps.q);
        } else {
            copy_keys<T, MATRICES>(f.p, at, memory.v, maps.v, AGI_CUDA_V, step - 1, before);
        }
        if constexpr ((T::FEATURES & AGI_HAS_BIAS) != 0) {
            copy_bias(f, at, memory, step, key);
        }
        before = key;
        if (next >= at.count) {
            copy_keys<T, MATRICES>(f.p, at, memory.v, maps.v, AGI_CUDA_V, step, before);
            return;
        }
        n = next;
    }
}

/* ---- The consumers ---- */

/* Named barriers. */
enum { TURN = 1, WARPGROUP = 5, ALL_CONSUMERS = 9 };

/* u of a row whose largest score is m. */
VERB float exponent(float m, float raise)
{
    return add_rn(mul_rn(m, LOG2_E), -raise);
}

template <class T, int MATRICES> struct query_consumer {
    typedef typename T::F F;

    const agi_cuda_params &p;
    const query_block<T> &at;
    const query_memory<T, MATRICES> &memory;
    const int w, row;     /* of the warpgroup; the thread's first query, the other is row + 8 */
    float top[2], sum[2]; /* m; the sum of the keys' weights, spread over the four lanes of a row */

    VERB query_consumer(const agi_cuda_params &call, const query_block<T> &block,
                        const query_memory<T, MATRICES> &shared, float raise)
        : p(call), at(block), memory(shared), w(uniform((int)threadIdx.x / 128 - 1)),
          row(block.row + (int)threadIdx.x / 32 * 16 - 64 + (int)threadIdx.x % 32 / 4)
    {
        begin_rows();
    }

    /* Of a sink s in a row whose maximum is m. A huge m that is not the sink's leaves it nothing. */
    static VERB float sink_weight(float s, float m, float raise)
    {
        const float of_huge = fmaxf(s, LOWEST) >= m ? 0 : LOWEST;
        return exp2_fast(is_huge(m) ? of_huge : fmaf(s, LOG2_E, -exponent(m, raise)));
    }
    /* A maximum for which u is rounded by more than weights can take. */
    static VERB bool is_huge(float m)
    {
        return fabsf(m) > 0x1p28f;
    }
    /* The sink counts as a score without a value. */
    VERB void begin_rows()
    {
        const float s = p.a.sink.data != nullptr ? sink_number(p.a.sink) : LOWEST;
        top[0] = top[1] = fminf(fmaxf(s, LOWEST), -LOWEST);
        sum[0] = sum[1] = 0;
    }
    /* Its weight, which is not in the sum: so keys that it outweighs are not lost in it. */
    VERB float weight_of_sink(int half, float raise) const
    {
        return p.a.sink.data == nullptr ? 0 : sink_weight(sink_number(p.a.sink), top[half], raise);
    }
    VERB float sink_number(const ag_tensor &t) const
    {
        return load_number<float>(p.aux_dtype, t.data, at.h * t.strides[1]);
    }

    /* ---- Products ---- */

    /* to = or, if MORE, += matrix `own` of the queries times matrix `keys` of tile n, along the channels. */
    template <bool MORE> VERB void start_scores(float (&to)[T::N / 2], int own, int keys, int n) const
    {
        const operand_tile q = rows_of(memory.q + own * T::OWN + w * T::SLAB);
        const operand_tile k = rows_of(memory.k.tile(n) + keys * T::TILE);
        if constexpr (MORE) {
            product_next<F, T::N>(to, operand_at(q, 0), operand_at(k, 0));
        } else {
            product_first<F, T::N>(to, operand_at(q, 0), operand_at(k, 0));
        }
#pragma unroll
        for (int step = 1; step < T::D / 16; step++) {
            product_next<F, T::N>(to, operand_at(q, channel_step(step, T::CONSUMERS * T::SLAB)),
                                  operand_at(k, channel_step(step, T::BOX)));
        }
    }
    /* to += weights times matrix `values` of tile n. */
    VERB void start_sums(float (&to)[T::D / 2], const uint32_t (&weights)[T::N / 4], int values, int n) const
    {
        const operand_tile v = columns_of(memory.v.tile(n) + values * T::TILE, T::BOX);
#pragma unroll
        for (int step = 0; step < T::N / 16; step++) {
            product_weights<F, T::D>(to, weights + 4 * step, operand_at(v, step * 2048));
        }
    }

    /* Waits for its turn at the tensor cores, and passes it on: one warpgroup makes weights while another
     * multiplies. */
    VERB void take_turn() const
    {
        named_sync(TURN + w, 256);
    }
    VERB void pass_turn() const
    {
        named_arrive(TURN + (w + 1) % T::CONSUMERS, 256);
    }
    VERB void begin_turns() const
    {
        if (w == T::CONSUMERS - 1) {
            pass_turn();
        }
    }

    /* ---- Weights ---- */

    /* The first key of the n-th tile that is visited. */
    VERB int key_of(int n) const
    {
        if constexpr (has_mask(T::FEATURES)) {
            return memory.note(n).key;
        }
        return at.key(n);
    }
    /* Does every query of the warpgroup see all keys of tile n, but for mask and bias? */
    VERB bool is_inside(int n) const
    {
        const int first = at.row + w * 64, key = key_of(n);
        return key >= first + 63 + at.s.low && key + T::N <= min(first + at.s.high + 1, at.s.n_k);
    }
    /* Minus infinity where causal, window or a length hides a pair of tile n. */
    VERB void hide_pairs(float (&S)[T::N / 2], int n) const
    {
        const int first = anew(key_of(n));
        if (is_inside(n)) {
            return;
        }
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int from = row + 8 * half + at.s.low, to = min(row + 8 * half + at.s.high + 1, at.s.n_k);
#pragma unroll
            for (int i = 0; i < T::N / 4; i++) {
                const int key = first + i / 2 * 8 + (int)threadIdx.x % 4 * 2 + i % 2;
                float &x = S[i / 2 * 4 + 2 * half + i % 2];
                x = key < from || key >= to ? -INFINITY : x;
            }
        }
    }

    /* The row's new m; returns u. factor: what was summed before shrinks by. */
    VERB float grow(const float (&S)[T::N / 2], int half, float raise, float &factor)
    {
        float most = top[half];
#pragma unroll
        for (int i = 2 * half; i < T::N / 2; i += 4) {
            most = fmaxf(most, fmaxf(S[i], S[i + 1]));
        }
        most = row_max(most);
        const float u = exponent(most, raise);
        factor = exp2_fast(exponent(top[half], raise) - u);
        top[half] = most;
        return u;
    }

    /* The sums of a tile's numbers as they multiply V, of each row. */
    static VERB void sum_packed(const uint32_t (&x)[T::N / 4], float (&of_tile)[2])
    {
        float parts[2][2] = {};
#pragma unroll
        for (int i = 0; i < T::N / 4; i++) {
            const float2 both = F::unpack(x[i]);
            parts[i % 2][0] += both.x;
            parts[i % 2][1] += both.y;
        }
        of_tile[0] = parts[0][0] + parts[0][1];
        of_tile[1] = parts[1][0] + parts[1][1];
    }
    static VERB void pack(uint32_t (&to)[T::N / 4], const float (&x)[T::N / 2])
    {
#pragma unroll
        for (int i = 0; i < T::N / 4; i++) {
            to[i] = F::pack(x[2 * i], x[2 * i + 1]);
        }
    }

    /* Keys that no query of the block sees may be anything, and 0 times NaN is NaN: in tile n of a ring they become
     * zeros. Every warpgroup writes all of them before its own products. live: of the tile's keys, those of others are
     * zeros too; NULL: mask and bias hide none. */
    VERB bool has_hidden(int n) const
    {
        return key_of(n) < at.from || key_of(n) + T::N > at.to;
    }
    VERB void clear_hidden(const tile_ring<T::STAGES> &ring, int n, const uint8_t *live) const
    {
        const int first = key_of(n), thread = anew((int)threadIdx.x % 128);
        ring.wait(n);
        for (int i = thread; i < MATRICES * T::BOXES * T::N * 8; i += 128) {
            const int box = i / (T::N * 8), r = i / 8 % T::N, key = first + r;
            if (key < at.from || key >= at.to || (live != nullptr && live[r] == 0)) {
                shared_zero_16(ring.tile(n) + box * T::BOX + r * 128 + i % 8 * 16);
            }
        }
        shared_fence();
        named_sync(WARPGROUP + w, 128);
    }
    VERB void clear_hidden_values(int n) const
    {
        if (has_hidden(n)) {
            clear_hidden(memory.v, n, nullptr);
        }
    }

    /* ---- Results ---- */

    VERB bool exists(int half) const
    {
        return row + 8 * half < at.s.n_q;
    }
    VERB bool sees_keys(int half) const
    {
        const int r = row + 8 * half;
        return max(r + at.s.low, 0) < min(r + at.s.high + 1, at.s.n_k);
    }
    VERB void store_statistic(const ag_tensor &t, uint32_t bit, int half, double x) const
    {
        if (threadIdx.x % 4 == 0 && row + 8 * half < at.rows_of_tensor(p)) {
            store_row(p, t, bit, {at.s, at.h}, row + 8 * half, x);
        }
    }
    /* L = m + log l, l freed of what rounding u put into the weights. keys: their part of l. */
    VERB void store_lse(int half, float keys, float raise) const
    {
        const double m = top[half], excess = m * (double)LOG2_E - (double)exponent(top[half], raise);
        const double sink = p.a.sink.data == nullptr ? -INFINITY : sink_number(p.a.sink);
        const double of_sink = weight_of_sink(half, raise), l = (double)keys + of_sink;
        const bool sees = sees_keys(half) && keys != 0;
        const double L = sees && l != of_sink ? m + (log(l) - excess * 0.6931471805599453) : sink;
        store_statistic(p.a.lse, AG_ACC_LSE, half,
                        exists(half) ? (L == sink ? lse_of_sink(sink, sees) : L) : -(double)INFINITY);
    }

    /* May the block's rows be stored in boxes? Behind the end of a packed sequence the next one begins. */
    VERB bool has_whole_boxes() const
    {
        return !(p.flags & AG_PACKED && at.row + T::ROWS > at.s.n_q);
    }
    /* Two numbers of x, or what rounding takes from them. */
    template <bool LOW> VERB uint32_t pair(const float (&x)[T::D / 2], int i) const
    {
        return LOW ? F::pack(low_half(p.dtype, x[i]), low_half(p.dtype, x[i + 1])) : F::pack(x[i], x[i + 1]);
    }
    /* Stores the warpgroup's rows by way of its place in a matrix of the queries. */
    template <bool LOW>
    VERB void store_boxes(const agi_cuda_tensor_map &map, const float (&x)[T::D / 2], int matrix) const
    {
        const int thread = (int)threadIdx.x % 128, part = thread % 32 / 8;
        const int r = thread / 32 * 16 + thread % 8 + part % 2 * 8;
        const uint32_t slab = memory.q + matrix * T::OWN + w * T::SLAB;
        constexpr int NEXT_BOX = T::CONSUMERS * T::SLAB;
#pragma unroll
        for (int c = 0; c < T::D / 8; c += 2) {
            const int chunk = c % 8 + part / 2;
            store_matrices(slab + c / 8 * NEXT_BOX + r * 128 + ((chunk ^ (r % 8)) << 4), pair<LOW>(x, 4 * c),
                           pair<LOW>(x, 4 * c + 2), pair<LOW>(x, 4 * c + 4), pair<LOW>(x, 4 * c + 6));
        }
        shared_fence();
        named_sync(WARPGROUP + w, 128);
        if (thread == 0) {
            for (int box = 0; box < T::BOXES; box++) {
                box_store(map, slab + box * NEXT_BOX, box * 64, (int)at.s.q0 + at.row + w * 64, at.h,
                          (int)at.s.view);
            }
            box_store_wait();
        }
    }

    /* Stores x into `t`, if it is given, and what rounding takes from it into `low` by any dtype and stride. All
     * warpgroups must be done with the tiles, whose memory it takes. */
    VERB void store_rows(const float (&x)[T::D / 2], const ag_tensor *t, const ag_tensor &low,
                         uint32_t bit) const
    {
        const int warp = (int)threadIdx.x / 32 - 4, first = row - (int)threadIdx.x % 32 / 4;
        const warp_rows<T::D> rows = {memory.k.tiles + warp * 16 * T::D * 4};
        const int left = at.rows_of_tensor(p) - first;
        rows.put(x);
        if (t != nullptr) {
            rows.store({t, p.out_dtype, (p.a.accumulate & bit) != 0},
                       element_at(*t, at.s.view, at.h, at.s.q0 + first), left, p.Dv, false);
        }
        rows.store({&low, p.out_dtype, false}, element_at(low, at.s.view, at.h, at.s.q0 + first), left, p.Dv,
                   true);
    }
    VERB void finish_tiles() const
    {
        named_sync(ALL_CONSUMERS, 128 * T::CONSUMERS);
    }
};

/* ---- A kernel: Consumer(f, block, memory) walks and finishes ----
 *
 * PLACE_IN_MEMORY: where the block is stays in shared memory, as the consumers have no registers for it. */
template <class T, int MATRICES, class Consumer, class Launch>
VERB void run_queries(const Launch &f, const query_maps &maps)
{
    SHARED_MEMORY(shared);
    const query_memory<T, MATRICES> memory(shared);
    const query_block<T> place(f.p, f.heads_together, (int)blockIdx.x);
    if (place.row >= place.rows_of_tensor(f.p)) {
        return;
    }
    if (threadIdx.x == 0) {
        memory.init();
    }
    if (threadIdx.x == 0 && T::PLACE_IN_MEMORY) {
        *memory.place = place;
    }
    __syncthreads();
    const query_block<T> &at = T::PLACE_IN_MEMORY ? *memory.place : place;
    if (threadIdx.x < 128) {
        give_registers<T::PRODUCER_REGISTERS>();
        if (threadIdx.x == 0) {
            produce<T, MATRICES>(f, at, memory, maps);
        }
    } else {
        take_registers<T::CONSUMER_REGISTERS>();
        Consumer c(f, at, memory);
        c.walk();
        c.finish();
    }
}
