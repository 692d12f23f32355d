/* vjp on Hopper for head sizes from 129 to 256, in two kernels as in hopper_backward.cu, to which the same holds:
 *
 *     hopper_dkdv    owns 64 keys       one warpgroup makes P and sums dV, another makes dZ and sums dK: no thread has
 *                                       registers for both sums. P passes from one to the other in shared memory.
 *     hopper_dq      owns 128 queries   two warpgroups with 64 of them each
 *
 * Each matrix of the stream has a ring of its own, so that a tile that is read once makes room early. */
#include "cuda/kernels/hopper_owners.cuh"

/* ROWS: of a block. */
template <class F_, int D_, int ROWS_, int N_, int STAGES_>
struct wide_shape : hopper_shape<F_, D_, 2, N_, STAGES_> {
    static constexpr int ROWS = ROWS_, OWN = D_ / 64 * ROWS * 128;
    static constexpr int STEPS =
        2 * STAGES_; /* a step's notes are read when the first of its tiles is released */
};

/* Which matrices: 0 is Q or K, 1 is dO or V. */
VERB int operand_of(const agi_hopper_wide &, bool keys, int matrix)
{
    return keys ? (matrix == 0 ? AGI_CUDA_K : AGI_CUDA_V) : (matrix == 0 ? AGI_CUDA_Q : AGI_CUDA_DO);
}
VERB const agi_cuda_tensor_map &map_of(const agi_hopper_wide &f, bool keys, int matrix)
{
    return keys ? (matrix == 0 ? f.k : f.v) : (matrix == 0 ? f.q : f.d_o);
}

/* ---- Shared memory ---- */

/* Own matrices, a ring for each matrix of the stream; for owners of keys P of two steps and the statistics of their
 * queries, L in two parts for each query, then D; barriers, notes. */
template <class T, bool KEYS> struct wide_memory {
    static constexpr int OWN = 2 * T::OWN;
    static constexpr int WEIGHTS = KEYS ? 64 * T::N * 4 : 0, STATS = KEYS ? 3 * T::N * 4 : 0;
    static_assert((KEYS ? 2 * T::STAGES * T::TILE : OWN) >= 128 * T::D * 4, "room for results");
    static_assert(sizeof(owner_notes<T, KEYS>) <= AGI_HOPPER_NOTES, "room for the notes");
    uint32_t own, own_full, weights, notes;
    tile_ring<T::STAGES> stream[2], stats;

    VERB wide_memory(uint32_t shared)
    {
        constexpr int RING = T::STAGES * T::TILE;
        const uint32_t begin = (shared + 1023) & ~1023u, rings = begin + OWN, behind = rings + 2 * RING;
        const uint32_t of_stats = behind + T::STAGES * WEIGHTS, barriers = of_stats + T::STAGES * STATS;
        own = begin;
        weights = behind;
        stream[0] = {rings, T::TILE, barriers};
        stream[1] = {rings + RING, T::TILE, barriers + 2 * T::STAGES * 8};
        stats = {of_stats, STATS, barriers + 4 * T::STAGES * 8};
        own_full = barriers + 6 * T::STAGES * 8;
        notes = own_full + 8;
    }
    VERB void init() const
    {
        stream[0].init(4 * T::CONSUMERS);
        stream[1].init(4 * T::CONSUMERS);
        stats.init(4 * T::CONSUMERS);
        barrier_init(own_full, 1);
        barrier_init_done();
    }
    VERB uint32_t tile(int matrix, int n) const
    {
        return stream[matrix].tile(n);
    }
    VERB uint32_t results() const
    {
        return KEYS ? stream[0].tiles : own;
    }
    /* P of two pairs of step n, the i-th of a thread. */
    VERB uint32_t weight(int n, int i) const
    {
        return weights + n % T::STAGES * WEIGHTS + (i * 128 + (int)threadIdx.x % 128) * 8;
    }
};

/* ---- The producer ---- */

template <class T, bool KEYS> struct wide_producer {
    const agi_hopper_wide &f;
    owner_notes<T, KEYS> &notes;
    const wide_memory<T, KEYS> &memory;

    /* By a thread: a matrix of the stream. That of the first one describes the steps. */
    template <int MATRIX> VERB void run() const
    {
        const side_copy<T, MATRIX, 1, agi_hopper_wide> copy(f, notes.at.s, !KEYS);
        const tile_ring<T::STAGES> &ring = memory.stream[MATRIX];
        const int kv_head = notes.at.kv_head;
        owner_walk<T, KEYS> walk(notes.at);
#pragma unroll 1
        for (int n = 0; walk.is_there(); walk.next(), n++) {
            const owner_step step = walk.describe();
            ring.claim(n);
            if (MATRIX == 0) {
                notes.step(n) = step;
            }
            barrier_expect(ring.full(n), T::TILE);
            copy.load_tiles(ring.tile(n), ring.full(n), step.row, KEYS ? step.head : kv_head);
        }
    }

    /* By a warp: the statistics of each step, two queries for each lane. */
    VERB void run_stats() const
    {
        const int lane = (int)threadIdx.x % 32;
        const float *const stats = stats_of_head<float>(f.p, {notes.at.s, 0}) + 2 * lane * AGI_CUDA_STATS;
        owner_walk<T, KEYS> walk(notes.at);
        static_assert(!KEYS || T::N == 64, "two queries for each lane");
#pragma unroll 1
        for (int n = 0; walk.is_there(); walk.next(), n++) {
            const float *const from = stats + (walk.head * f.p.q_rows + walk.row) * AGI_CUDA_STATS;
            const row_stats<float> a = stats_at(from), b = stats_at(from + AGI_CUDA_STATS);
            memory.stats.claim(n);
            const uint32_t to = memory.stats.tile(n);
            shared_store(to + lane * 16, a.lse, a.lse_low);
            shared_store(to + lane * 16 + 8, b.lse, b.lse_low);
            shared_store(to + T::N * 8 + lane * 8, a.D, b.D);
            __syncwarp();
            if (lane == 0) {
                barrier_arrive(memory.stats.full(n));
            }
        }
    }
};

/* ---- The consumers ---- */

template <class T_, bool KEYS>
struct wide_consumer : owner_consumer<T_, KEYS, 2, 1, agi_hopper_wide, wide_memory<T_, KEYS>> {
    typedef owner_consumer<T_, KEYS, 2, 1, agi_hopper_wide, wide_memory<T_, KEYS>> base;
    typedef T_ T;
    typedef typename T::F F;
    using base::at;
    using base::f;
    using base::memory;
    using base::w;
    static constexpr float LOWER = F::RAISED ? 0x1p-14f : 1; /* P is larger as an operand */

    float sum[T::D / 2];

    VERB wide_consumer(const agi_hopper_wide &call, const owner_notes<T, KEYS> &from,
                       const wide_memory<T, KEYS> &shared)
        : base(call, from, shared)
    {
#pragma unroll
        for (int i = 0; i < T::D / 2; i++) {
            sum[i] = 0;
        }
    }

    /* As the base's, but without a branch for each pair: what a row sees of the stream is an interval. */
    VERB void hide(float (&x)[T::N / 2], int n) const
    {
        const owner_step &step = base::notes.step(n);
        if (!step.cut[base::slab()]) {
            return;
        }
        const int low = KEYS ? -at.s.high : at.s.low, high = KEYS ? -at.s.low : at.s.high;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int row = base::row + 8 * half - step.row;
            const int from = row + low, to = min(row + high + 1, at.stream_rows() - step.row);
#pragma unroll
            for (int i = 2 * half; i < T::N / 2; i += i % 2 == 0 ? 1 : 3) {
                x[i] = base::column(i) < from || base::column(i) >= to ? 0 : x[i];
            }
        }
    }

    /* dZ = P o (dP - D), without the scale; behind a hidden pair dP may be NaN. */
    static VERB float gradient(float weight, float dP, float D)
    {
        return weight == 0 ? 0 : weight * LOWER * (dP - D);
    }
    static VERB void pack(uint32_t (&to)[T::N / 4], const float (&x)[T::N / 2])
    {
#pragma unroll
        for (int i = 0; i < T::N / 4; i++) {
            to[i] = F::pack(x[2 * i], x[2 * i + 1]);
        }
    }
    /* sum += the numbers of the step times a matrix of it. */
    VERB void start_sum(uint32_t (&numbers)[T::N / 4], int matrix, int n)
    {
        hold(numbers);
        hold(sum);
        products_begin();
        base::start_sum(sum, numbers, matrix, n);
        products_commit();
    }

    /* Stores the sum, in boxes by way of `slab` if the call has a map for them. Behind the end of a packed sequence the
     * next one begins. */
    VERB void store_sum(int result, const ag_tensor &t, uint32_t bit, float factor, int width, uint32_t slab)
    {
        const bool cut = f.p.flags & AG_PACKED && at.row + T::ROWS > at.own_rows();
        const warp_rows<T::D> rows = base::begin_results();
        if (!f.in_boxes[result] || cut) {
            base::store(rows, sum, t, bit, factor, width);
            return;
        }
        constexpr int NEXT_BOX = T::ROWS * 128;
        base::scale_rows(sum, factor);
        put_boxes<F, T::D>(slab, NEXT_BOX, sum, (int)threadIdx.x % 128);
        shared_fence();
        named_sync(WARPGROUP + w, 128);
        if (threadIdx.x % 128 == 0) {
            const int row = (int)(KEYS ? at.s.k0 : at.s.q0) + at.row + base::slab() * 64;
            for (int box = 0; box < T::BOXES; box++) {
                box_store(f.results[result], slab + box * NEXT_BOX, box * 64, row,
                          KEYS ? at.kv_head : at.head, (int)at.s.view);
            }
            box_store_wait();
        }
    }
};

/* ---- dK and dV ---- */

enum { WEIGHTS_FULL = 1, WEIGHTS_EMPTY = 3 }; /* named barriers, one for each of two steps */

/* The first warpgroup: P^T, dV += P^T dO. The second: dZ^T, dK += dZ^T Q. Of a step the two have the same pairs. */
template <class T> struct keys_consumer : wide_consumer<T, true> {
    typedef wide_consumer<T, true> base;
    typedef typename T::F F;
    using base::f;
    using base::memory;
    using base::notes;
    using base::sum;
    static_assert(T::STAGES == 2, "named barriers are for two");

    float S[T::N / 2]; /* Z^T, P^T; or dP^T, dZ^T */
    uint32_t packed[T::N / 4];

    VERB keys_consumer(const agi_hopper_wide &call, const owner_notes<T, true> &from,
                       const wide_memory<T, true> &shared)
        : base(call, from, shared)
    {
    }

    /* Starts a product of one own matrix and the same of the stream. While it runs, the sum of the step before is done,
     * and the other matrix of that step makes room. */
    VERB void multiply(int matrix, int n)
    {
        memory.stream[matrix].wait(n);
        products_begin();
        base::multiply(S, matrix, matrix, n);
        products_commit();
        products_wait<1>();
        if (n > 0) {
            memory.stream[1 - matrix].release(n - 1);
        }
        memory.stats.wait(n);
    }
    VERB void wait_for_products(int matrix, int n)
    {
        products_wait<0>();
        hold(S);
        hold(sum);
        memory.stream[matrix].release(n);
    }
    /* Queries of the tile that no key of the block sees may hold anything. */
    VERB void clear_hidden(int matrix, int n)
    {
        memory.stream[matrix].wait(n);
        if (notes.step(n).clear) {
            base::template clear_rows<1>(matrix, n, [](int) { return false; });
        }
    }

    VERB void make_weights(int n)
    {
        const float scale = (float)f.p.scale;
        const uint32_t stats = memory.stats.tile(n);
#pragma unroll
        for (int i = 0; i < T::N / 2; i += 4) {
            float L[4]; /* of two queries, each in two parts */
            shared_load(L, stats + base::column(i) * 8);
#pragma unroll
            for (int k = 0; k < 4; k++) {
                S[i + k] = weight_at<F>(mul_rn(S[i + k], scale), L[k % 2 * 2], L[k % 2 * 2 + 1]);
            }
        }
        base::hide(S, n);
    }
    VERB void pass_weights(int n) const
    {
        if (n >= 2) {
            named_sync(WEIGHTS_EMPTY + n % 2, 256);
        }
#pragma unroll
        for (int i = 0; i < T::N / 4; i++) {
            shared_store(memory.weight(n, i), S[2 * i], S[2 * i + 1]);
        }
        named_arrive(WEIGHTS_FULL + n % 2, 256);
    }
    VERB void make_gradients(int n)
    {
        const uint32_t stats = memory.stats.tile(n) + T::N * 8;
#pragma unroll
        for (int i = 0; i < T::N / 2; i += 4) {
            const float2 D = shared_load_2(stats + base::column(i) * 4);
#pragma unroll
            for (int k = 0; k < 4; k += 2) {
                const float2 P = shared_load_2(memory.weight(n, (i + k) / 2));
                S[i + k] = base::gradient(P.x, S[i + k], D.x);
                S[i + k + 1] = base::gradient(P.y, S[i + k + 1], D.y);
            }
        }
    }

    VERB void weights_step(int n)
    {
        multiply(0, n);
        wait_for_products(0, n);
        make_weights(n);
        memory.stats.release(n);
        pass_weights(n);
        base::pack(packed, S);
        clear_hidden(1, n);
        base::start_sum(packed, 1, n);
    }
    VERB void gradients_step(int n, int steps)
    {
        multiply(1, n);
        named_sync(WEIGHTS_FULL + n % 2, 256);
        wait_for_products(1, n);
        make_gradients(n);
        memory.stats.release(n);
        if (n + 2 < steps) {
            named_arrive(WEIGHTS_EMPTY + n % 2, 256);
        }
        base::pack(packed, S);
        clear_hidden(0, n);
        base::start_sum(packed, 0, n);
    }
    VERB void walk(int steps)
    {
        if (base::w == 0) {
#pragma unroll 1
            for (int n = 0; n < steps; n++) {
                weights_step(n);
            }
        } else {
#pragma unroll 1
            for (int n = 0; n < steps; n++) {
                gradients_step(n, steps);
            }
        }
        products_wait<0>();
        hold(sum);
    }
    VERB void finish()
    {
        const bool values = base::w == 0;
        base::store_sum(base::w, values ? f.p.a.dv : f.p.a.dk, values ? AG_ACC_DV : AG_ACC_DK,
                        values ? base::LOWER : (float)f.p.scale, values ? f.p.Dv : f.p.Dk,
                        memory.own + base::w * T::OWN);
    }
};

/* ---- dQ ---- */

template <class T> struct queries_consumer : wide_consumer<T, false> {
    typedef wide_consumer<T, false> base;
    typedef typename T::F F;
    using base::f;
    using base::memory;
    using base::mine;

    float S[T::N / 2], dP[T::N / 2]; /* Z, P; dP, dZ */
    uint32_t dZ[T::N / 4];

    VERB queries_consumer(const agi_hopper_wide &call, const owner_notes<T, false> &from,
                          const wide_memory<T, false> &shared)
        : base(call, from, shared)
    {
    }

    VERB void make_weights(int n)
    {
        const float scale = (float)f.p.scale;
#pragma unroll
        for (int i = 0; i < T::N / 2; i++) {
            S[i] = weight_at<F>(mul_rn(S[i], scale), mine[i / 2 % 2].lse, mine[i / 2 % 2].lse_low);
        }
        base::hide(S, n);
    }
    VERB void make_gradients()
    {
#pragma unroll
        for (int i = 0; i < T::N / 2; i++) {
            dP[i] = base::gradient(S[i], dP[i], mine[i / 2 % 2].D);
        }
        base::pack(dZ, dP);
    }
    VERB void step(int n)
    {
        memory.stream[0].wait(n);
        base::clear_hidden(n);
        products_begin();
        base::multiply(S, 0, 0, n);
        products_commit();
        memory.stream[1].wait(n);
        base::multiply(dP, 1, 1, n);
        products_commit();
        products_wait<1>();
        hold(S);
        before_next_wait(f.p.H, [&] { make_weights(n); });
        products_wait<0>();
        hold(dP);
        memory.stream[1].release(n);
        make_gradients();
        base::start_sum(dZ, 0, n);
        products_wait<0>();
        hold(base::sum);
        memory.stream[0].release(n);
    }
    VERB void walk(int steps)
    {
#pragma unroll 1
        for (int n = 0; n < steps; n++) {
            step(n);
        }
    }
    VERB void finish()
    {
        base::store_sum(0, f.p.a.dq, AG_ACC_DQ, (float)f.p.scale, f.p.Dk, memory.own + base::w * T::SLAB);
    }
};

/* ---- The kernels ---- */

template <class T, bool KEYS, class Consumer> VERB void run_wide(const agi_hopper_wide &f)
{
    SHARED_MEMORY(shared);
    const wide_memory<T, KEYS> memory(shared_address(shared));
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
        const wide_producer<T, KEYS> producer = {f, notes, memory};
        if (threadIdx.x == 0) {
            copy_own<T, KEYS, 2>(f, at, memory);
            producer.template run<0>();
        } else if (threadIdx.x == 32) {
            producer.template run<1>();
        } else if (KEYS && threadIdx.x / 32 == 2) {
            producer.run_stats();
        }
    } else {
        take_registers<T::CONSUMER_REGISTERS>();
        Consumer c(f, notes, memory);
        barrier_wait(memory.own_full, 0);
        c.walk(at.steps());
        c.finish();
    }
}
template <class T> VERB void run_hopper_dkdv(const agi_hopper_wide &f)
{
    run_wide<T, true, keys_consumer<T>>(f);
}
template <class T> VERB void run_hopper_dq(const agi_hopper_wide &f)
{
    run_wide<T, false, queries_consumer<T>>(f);
}

#define AGI_HOPPER_KERNEL(map, format, D, ROWS, N, STAGES)                                                   \
    KERNEL void __launch_bounds__(384, 1) map##_##format##_d##D(const __grid_constant__ agi_hopper_wide f)   \
    {                                                                                                        \
        run_##map<wide_shape<format, D, ROWS, N, STAGES>>(f);                                                \
    }
#define AGI_HOPPER_KERNELS(list, kernel, format) list(kernel, format)
AGI_HOPPER_KERNELS(AGI_HOPPER_wide, AGI_HOPPER_KERNEL, AGI_FORMAT)
