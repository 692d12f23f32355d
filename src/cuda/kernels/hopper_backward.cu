/* vjp on Hopper, in two kernels: every element of a gradient has one owner and one order of summation, and no block
 * waits for another.
 *
 *     hopper_dkdv    owns keys     K V, streams Q dO     Z^T = K Q^T, dP^T = V dO^T    dV += P^T dO, dK += dZ^T Q
 *     hopper_dq      owns queries  Q dO, streams K V     Z = Q K^T, dP = dO V^T        dQ += dZ K
 *
 * Warpgroup 0 copies, the others own 64 rows each, as in hopper_forward.cu. P and dZ stay in the registers in which the
 * products leave Z and dP, and from which the next products take their first operand. L and D of the queries are those
 * of `statistics`. */
#include "cuda/kernels/hopper_features.cuh"
#include "cuda/kernels/hopper_results.cuh"
#include "cuda/kernels/hopper_tiles.cuh"
#include "cuda/kernels/stream.cuh"

enum { STATS_BYTES = 64 * AGI_CUDA_STATS * 4 }; /* of the queries of a tile */

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
};

/* ---- Shared memory ---- */

/* Own matrices, then stages of two tiles and, for owners of keys, the statistics of the tile's queries. */
template <class T, bool KEYS> struct backward_memory {
    static constexpr int STAGE = 2 * T::TILE + (KEYS ? STATS_BYTES : 0);
    uint32_t own, own_full;
    tile_ring<T::STAGES> ring;

    VERB backward_memory(uint32_t shared)
    {
        const uint32_t begin = (shared + 1023) & ~1023u, stages = begin + 2 * T::OWN;
        const uint32_t barriers = stages + T::STAGES * STAGE;
        own = begin;
        ring = {stages, STAGE, barriers};
        own_full = barriers + 2 * T::STAGES * 8;
    }
    VERB void init() const
    {
        ring.init(4 * T::CONSUMERS);
        barrier_init(own_full, 1);
        barrier_init_done();
    }
};

/* ---- The producer ---- */

/* Which matrices: 0 is Q or K, 1 is dO or V. */
VERB int operand_of(bool keys, int matrix)
{
    return keys ? (matrix == 0 ? AGI_CUDA_K : AGI_CUDA_V) : (matrix == 0 ? AGI_CUDA_Q : AGI_CUDA_DO);
}
VERB const agi_cuda_tensor_map &map_of(const agi_hopper_backward &f, bool keys, int matrix)
{
    return keys ? (matrix == 0 ? f.k : f.v) : (matrix == 0 ? f.q : f.d_o);
}

template <class T, bool KEYS>
VERB void copy_own(const agi_hopper_backward &f, const owner_block<T, KEYS> &at, const backward_memory<T, KEYS> &memory)
{
    barrier_expect(memory.own_full, 2 * T::OWN);
    for (int n = 0; n < 2 * T::BOXES * T::CONSUMERS; n++) {
        const int matrix = n / (T::BOXES * T::CONSUMERS), box = n / T::CONSUMERS % T::BOXES, w = n % T::CONSUMERS;
        const box_place place = place_of(f.p.m[operand_of(KEYS, matrix)], at.s, KEYS);
        box_load(memory.own + n * T::SLAB, map_of(f, KEYS, matrix), memory.own_full, box * 64,
                 place.row + at.row + w * 64, KEYS ? at.kv_head : at.head, place.batch);
    }
}
template <class T, bool KEYS>
VERB void copy_step(const agi_hopper_backward &f, const owner_block<T, KEYS> &at, const backward_memory<T, KEYS> &memory,
                    int n)
{
    const uint32_t tile = memory.ring.tile(n), full = memory.ring.full(n);
    const int row = at.stream_row(n), h = at.query_head(n);
    memory.ring.begin(n, memory.STAGE);
    for (int i = 0; i < 2 * T::BOXES; i++) {
        const int matrix = i / T::BOXES, box = i % T::BOXES;
        const box_place place = place_of(f.p.m[operand_of(!KEYS, matrix)], at.s, !KEYS);
        box_load(tile + i * T::BOX, map_of(f, !KEYS, matrix), full, box * 64, place.row + row,
                 KEYS ? h : at.kv_head, place.batch);
    }
    if (KEYS) {
        const float *const stats = stats_of_head<float>(f.p, {at.s, h}) + (int64_t)row * AGI_CUDA_STATS;
        bulk_load(tile + 2 * T::TILE, stats, STATS_BYTES, full);
    }
}

/* ---- The consumers ---- */

enum { WARPGROUP = 5, ALL_CONSUMERS = 9 }; /* named barriers */

template <class T, bool KEYS> struct backward_consumer {
    typedef typename T::F F;
    static constexpr float RAISE = F::RAISED ? 14 : 0; /* P is larger by 2^RAISE as an operand */
    static constexpr int SUMS = KEYS ? 2 : 1;
    static constexpr bool CAPPED = (T::FEATURES & AGI_HAS_SOFTCAP) != 0;
    static constexpr bool HIDES = hides_by_data(T::FEATURES), DROPS = (T::FEATURES & AGI_HAS_DROPOUT) != 0;

    const agi_hopper_backward &f;
    const owner_block<T, KEYS> &at;
    const backward_memory<T, KEYS> &memory;
    const int w, row; /* of the warpgroup; the thread's first row, the other is row + 8 */
    float S[T::N / 2], dP[T::N / 2];
    float sum[SUMS][T::D / 2]; /* dZ times Q or K; with KEYS then P^T dO */
    uint32_t P[T::N / 4], dZ[T::N / 4];
    row_stats<float> mine[2]; /* of the thread's rows if they are queries */
    kept_weights<KEYS, T::N / 2> kept;

    VERB backward_consumer(const agi_hopper_backward &call, const owner_block<T, KEYS> &block,
                           const backward_memory<T, KEYS> &shared)
        : f(call), at(block), memory(shared), w(uniform((int)threadIdx.x / 128 - 1)),
          row(block.row + (int)threadIdx.x / 32 * 16 - 64 + (int)threadIdx.x % 32 / 4)
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
#pragma unroll
        for (int i = 0; i < SUMS * T::D / 2; i++) {
            sum[i / (T::D / 2)][i % (T::D / 2)] = 0;
        }
    }

    /* to = own matrix times the step's, both along the channels. */
    VERB void start_product(float (&to)[T::N / 2], int matrix, int n)
    {
        const operand_tile own = rows_of(memory.own + matrix * T::OWN + w * T::SLAB);
        const operand_tile stream = rows_of(memory.ring.tile(n) + matrix * T::TILE);
        product_first<F, T::N>(to, operand_at(own, 0), operand_at(stream, 0));
#pragma unroll
        for (int step = 1; step < T::D / 16; step++) {
            product_next<F, T::N>(to, operand_at(own, channel_step(step, T::CONSUMERS * T::SLAB)),
                                  operand_at(stream, channel_step(step, T::BOX)));
        }
        products_commit();
    }
    /* to += weights times the step's matrix, along its rows. */
    VERB void start_sum(float (&to)[T::D / 2], const uint32_t (&weights)[T::N / 4], int matrix, int n)
    {
        const operand_tile stream = columns_of(memory.ring.tile(n) + matrix * T::TILE, T::BOX);
#pragma unroll
        for (int step = 0; step < T::N / 16; step++) {
            product_weights<F, T::D>(to, weights + 4 * step, operand_at(stream, step * 2048));
        }
    }

    VERB fragment_place place(int n) const
    {
        return {at.s, at.query_head(n), row, at.stream_row(n)};
    }

    /* Has row r of the tile no visible pair at all? Of queries their L says it: `statistics`. */
    VERB bool is_dead(int n, int r) const
    {
        if constexpr (!KEYS) {
            return live_keys(f.p, f.x, at.s, at.kv_head)[at.stream_row(n) + r] == 0;
        }
        const uint32_t L = memory.ring.tile(n) + 2 * T::TILE + r * AGI_CUDA_STATS * 4;
        const ag_tensor &t = f.p.a.sink;
        const float none = t.data == nullptr
                               ? INFINITY
                               : load_aux(f.p.aux_dtype, t.data, at.query_head(n) * t.strides[1], 0.0f);
        return shared_load(L) == INFINITY || (shared_load(L) == none && shared_load(L + 4) == 0);
    }
    /* Has the tile such rows? The same answer in the whole warp. */
    VERB bool has_dead_rows(int n) const
    {
        if constexpr (!HIDES) {
            return false;
        } else if constexpr (!KEYS) {
            return has_dead_keys<T::N>(live_keys(f.p, f.x, at.s, at.kv_head) + at.stream_row(n));
        }
        const int lane = (int)threadIdx.x % 32;
        bool any = false;
#pragma unroll
        for (int r = 0; r < T::N; r += 32) {
            any |= is_dead(n, r + lane);
        }
        return __any_sync(~0u, any);
    }
    /* Rows of the stream that no row of the block sees may hold anything, and 0 times NaN is NaN: they become zeros in
     * the matrices that are summed. Every warpgroup writes all of them before its own products. */
    VERB void clear_hidden(int n)
    {
        const int first = at.stream_row(n);
        if (first >= at.from && first + T::N <= at.to && !has_dead_rows(n)) {
            return;
        }
        for (int i = (int)threadIdx.x % 128; i < SUMS * T::BOXES * T::N * 8; i += 128) {
            const int box = i / (T::N * 8), r = i / 8 % T::N; /* dq sums K alone */
            if (first + r < at.from || first + r >= at.to || (HIDES && is_dead(n, r))) {
                shared_zero_16(memory.ring.tile(n) + box * T::BOX + r * 128 + i % 8 * 16);
            }
        }
        shared_fence();
        named_sync(WARPGROUP + w, 128);
    }

    /* ---- Weights ---- */

    VERB int column(int i) const
    {
        return i / 4 * 8 + (int)threadIdx.x % 4 * 2 + i % 2;
    }
    VERB row_stats<float> stats(int n, int i) const
    {
        if constexpr (!KEYS) {
            return mine[i / 2 % 2];
        } else {
            const uint32_t at_column = memory.ring.tile(n) + 2 * T::TILE + column(i) * AGI_CUDA_STATS * 4;
            return {shared_load(at_column), shared_load(at_column + 4), shared_load(at_column + 8), 0, 0, 0};
        }
    }
    /* Does every row of the warpgroup see all rows of the tile? */
    VERB bool is_inside(int first) const
    {
        const int own = at.row + w * 64;
        return at.sees(own, first) && at.sees(own + 63, first) && at.sees(own, first + T::N - 1) &&
               at.sees(own + 63, first + T::N - 1);
    }
    /* The scores in the place of the products, minus infinity where a feature hides a pair. With a softcap dP becomes
     * phi' o (M o dP - D) at once: Z is needed for that. */
    VERB void make_scores(int n)
    {
        const float scale = (float)f.p.scale;
#pragma unroll
        for (int i = 0; i < T::N / 2; i++) {
            S[i] = mul_rn(S[i], scale);
            if constexpr (CAPPED) {
                float slope;
                S[i] = capped_score(f.x, S[i], slope);
                dP[i] = slope * difference(n, i);
            }
        }
        add_features<F, T::FEATURES, KEYS>(S, f.p, f.x, place(n));
    }
    /* P in the place of Z, 0 where a pair is hidden. */
    VERB void make_weights(int n)
    {
        constexpr float LOG2_E = 1.4426950408889634f;
        const int first = at.stream_row(n);
        make_scores(n);
#pragma unroll
        for (int i = 0; i < T::N / 2; i++) {
            const row_stats<float> r = stats(n, i);
            const float x = add_rn(add_rn(S[i], -r.lse), -r.lse_low);
            S[i] = exp2_fast(fmaf(x, LOG2_E, RAISE));
        }
        if (is_inside(first)) {
            return;
        }
#pragma unroll
        for (int i = 0; i < T::N / 2; i++) {
            S[i] = at.sees(row + i / 2 % 2 * 8, first + column(i)) ? S[i] : 0;
        }
    }
    /* M o dP - D; M: what dropout multiplies weights with. */
    VERB float difference(int n, int i) const
    {
        if constexpr (DROPS) {
            return (kept[i] ? dP[i] * f.x.inverse_keep : 0) - stats(n, i).D;
        }
        return dP[i] - stats(n, i).D;
    }
    /* dZ = P o phi' o (M o dP - D), without the scale. */
    VERB void make_gradients(int n)
    {
        constexpr float LOWER = F::RAISED ? 0x1p-14f : 1;
#pragma unroll
        for (int i = 0; i < T::N / 2; i++) {
            const float g = S[i] * LOWER * (CAPPED ? dP[i] : difference(n, i));
            dP[i] = S[i] == 0 ? 0 : g; /* behind a hidden pair dP may be NaN */
            S[i] = DROPS && !kept[i] ? 0 : S[i];
        }
    }
    VERB void pack_all()
    {
#pragma unroll
        for (int i = 0; i < T::N / 4; i++) {
            P[i] = F::pack(S[2 * i], S[2 * i + 1]);
            dZ[i] = F::pack(dP[2 * i], dP[2 * i + 1]);
        }
    }

    /* ---- The walk ---- */

    VERB void step(int n)
    {
        memory.ring.wait(n);
        clear_hidden(n);
        products_begin();
        start_product(S, 0, n);
        start_product(dP, 1, n);
        if constexpr (DROPS) {
            kept.find(f.p, place(n));
        }
        products_wait<CAPPED ? 0 : 1>();
        hold(S);
        if constexpr (CAPPED) {
            hold(dP);
        }
        make_weights(n);
        products_wait<0>();
        hold(dP);
        make_gradients(n);
        pack_all();
        hold(dZ);
        hold(sum[0]);
        if constexpr (KEYS) {
            hold(P);
            hold(sum[1]);
        }
        products_begin();
        start_sum(sum[0], dZ, 0, n);
        if constexpr (KEYS) {
            start_sum(sum[1], P, 1, n);
        }
        products_commit();
        products_wait<0>();
        hold(sum[0]);
        if constexpr (KEYS) {
            hold(sum[1]);
        }
        memory.ring.release(n);
    }
    VERB void walk()
    {
        barrier_wait(memory.own_full, 0);
#pragma unroll 1
        for (int n = 0; n < at.steps(); n++) {
            step(n);
        }
    }

    /* ---- Results ---- */

    VERB void store(const warp_rows<T::D> &rows, float (&x)[T::D / 2], const ag_tensor &t, uint32_t bit, float factor,
                    int width) const
    {
        const int first = row - (int)threadIdx.x % 32 / 4;
        const int64_t place = element_at(t, at.s.view, KEYS ? at.kv_head : at.head, (KEYS ? at.s.k0 : at.s.q0) + first);
#pragma unroll
        for (int i = 0; i < T::D / 2; i++) {
            x[i] = row + i / 2 % 2 * 8 < at.own_rows() ? x[i] * factor : 0;
        }
        rows.put(x);
        rows.store({&t, f.p.grad_dtype, (f.p.a.accumulate & bit) != 0}, place, at.rows_of_tensor(f.p) - first, width,
                   false);
    }
    VERB void finish()
    {
        const int warp = (int)threadIdx.x / 32 - 4;
        const warp_rows<T::D> rows = {memory.ring.tiles + warp * 16 * T::D * 4};
        const float scale = (float)f.p.scale;
        named_sync(ALL_CONSUMERS, 128 * T::CONSUMERS); /* the tiles' memory is free */
        if constexpr (KEYS) {
            store(rows, sum[0], f.p.a.dk, AG_ACC_DK, scale, f.p.Dk);
            store(rows, sum[1], f.p.a.dv, AG_ACC_DV, (F::RAISED ? 0x1p-14f : 1) * (DROPS ? f.x.inverse_keep : 1),
                  f.p.Dv);
        } else {
            store(rows, sum[0], f.p.a.dq, AG_ACC_DQ, scale, f.p.Dk);
        }
    }
};

/* ---- The kernels ---- */

template <class T, bool KEYS> VERB void run_backward(const agi_hopper_backward &f)
{
    SHARED_MEMORY(shared);
    const backward_memory<T, KEYS> memory(shared_address(shared));
    const owner_block<T, KEYS> at(f.p);
    if (at.row >= at.rows_of_tensor(f.p)) {
        return;
    }
    if (threadIdx.x == 0) {
        memory.init();
    }
    __syncthreads();
    if (threadIdx.x < 128) {
        give_registers<T::PRODUCER_REGISTERS>();
        if (threadIdx.x == 0) {
            copy_own<T, KEYS>(f, at, memory);
            for (int n = 0; n < at.steps(); n++) {
                copy_step<T, KEYS>(f, at, memory, n);
            }
        }
    } else {
        take_registers<T::CONSUMER_REGISTERS>();
        backward_consumer<T, KEYS> c(f, at, memory);
        c.walk();
        c.finish();
    }
}

template <class T> VERB void run_hopper_dkdv(const agi_hopper_backward &f)
{
    run_backward<T, true>(f);
}
template <class T> VERB void run_hopper_dq(const agi_hopper_backward &f)
{
    run_backward<T, false>(f);
}

#define AGI_HOPPER_KERNEL(map, format, D, CONSUMERS, N, STAGES)                                              \
    KERNEL void __launch_bounds__(128 * (CONSUMERS + 1), 1)                                                  \
        map##_##format##_d##D(const __grid_constant__ agi_hopper_backward f)                                 \
    {                                                                                                        \
        run_##map<hopper_shape<format, D, CONSUMERS, N, STAGES>>(f);                                         \
    }
#define AGI_HOPPER_SET_KERNEL(map, format, D, CONSUMERS, N, STAGES, set)                                     \
    KERNEL void __launch_bounds__(128 * (CONSUMERS + 1), 1)                                                  \
        map##_##format##_d##D##_##set(const __grid_constant__ agi_hopper_backward f)                         \
    {                                                                                                        \
        run_##map<hopper_shape<format, D, CONSUMERS, N, STAGES, AGI_SET_##set>>(f);                          \
    }
#define AGI_HOPPER_KERNELS(list, kernel, format) list(kernel, format)
AGI_HOPPER_KERNELS(AGI_HOPPER_backward, AGI_HOPPER_KERNEL, AGI_FORMAT)
AGI_HOPPER_KERNELS(AGI_HOPPER_backward_sets, AGI_HOPPER_SET_KERNEL, AGI_FORMAT)
