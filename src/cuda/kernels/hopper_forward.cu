/* forward on Hopper: a block owns queries and walks over the keys, from the last that it sees to the first.
 *
 * Warpgroup 0 copies: one of its threads asks for Q once and for each tile of K and V as soon as a slot is free. The
 * others compute, 64 queries each: S = Q K^T of the next tile and O' += P V of this one are given to the tensor cores
 * together, and while they run the weights of the next tile are made. A turn is passed on from warpgroup to warpgroup,
 * so that one makes weights while another multiplies.
 *
 * Weights are 2^(S log2 e - u), u = m log2 e rounded, with m the row's largest score so far; what was summed before
 * shrinks by 2^(u_old - u). float16's are larger by 2^14, its range, in O' and in l alike. */
#include "cuda/kernels/hopper_features.cuh"
#include "cuda/kernels/hopper_results.cuh"
#include "cuda/kernels/hopper_tiles.cuh"

constexpr float LOG2_E = 1.4426950408889634f;
constexpr float LOWEST = -0x1p126f; /* of m: finite, so that a hidden pair's weight, 2^(-inf - u), needs no test */

template <class T> struct forward_memory {
    uint32_t q, q_full;
    tile_ring<T::STAGES> k, v;

    VERB forward_memory(uint32_t shared)
    {
        const uint32_t begin = (shared + 1023) & ~1023u, rings = begin + T::OWN;
        const uint32_t barriers = rings + 2 * T::STAGES * T::TILE;
        q = begin;
        k = {rings, T::TILE, barriers};
        v = {rings + T::STAGES * T::TILE, T::TILE, barriers + 2 * T::STAGES * 8};
        q_full = barriers + 4 * T::STAGES * 8;
    }
    VERB void init() const
    {
        k.init(4 * T::CONSUMERS);
        v.init(4 * T::CONSUMERS);
        barrier_init(q_full, 1);
        barrier_init_done();
    }
};

/* ---- The producer ---- */

template <class T>
VERB void copy_keys(const agi_hopper_forward &f, const query_block<T> &at, const tile_ring<T::STAGES> &ring,
                    const agi_cuda_tensor_map &map, int operand, int n)
{
    const box_place place = place_of(f.p.m[operand], at.s, true);
    ring.begin(n, T::TILE);
    for (int box = 0; box < T::BOXES; box++) {
        box_load(ring.tile(n) + box * T::BOX, map, ring.full(n), box * 64, place.row + at.key(n), at.kv_head,
                 place.batch);
    }
}

template <class T>
VERB void copy_queries(const agi_hopper_forward &f, const query_block<T> &at, const forward_memory<T> &memory)
{
    const box_place place = place_of(f.p.m[AGI_CUDA_Q], at.s, false);
    barrier_expect(memory.q_full, T::OWN);
    for (int slab = 0; slab < T::CONSUMERS * T::BOXES; slab++) {
        const int box = slab / T::CONSUMERS, w = slab % T::CONSUMERS;
        box_load(memory.q + slab * T::SLAB, f.q, memory.q_full, box * 64, place.row + at.row + w * 64, at.h,
                 place.batch);
    }
}

template <class T>
VERB void produce(const agi_hopper_forward &f, const query_block<T> &at, const forward_memory<T> &memory)
{
    copy_keys<T>(f, at, memory.k, f.k, AGI_CUDA_K, 0);
    copy_queries<T>(f, at, memory);
    for (int n = 1; n < at.count; n++) {
        copy_keys<T>(f, at, memory.k, f.k, AGI_CUDA_K, n);
        copy_keys<T>(f, at, memory.v, f.v, AGI_CUDA_V, n - 1);
    }
    copy_keys<T>(f, at, memory.v, f.v, AGI_CUDA_V, at.count - 1);
}

/* ---- The consumers ---- */

/* Named barriers. */
enum { TURN = 1, WARPGROUP = 5, ALL_CONSUMERS = 9 };

template <class T> struct forward_consumer {
    typedef typename T::F F;
    static constexpr float RAISE = F::RAISED ? 14 : 0; /* weights are larger by 2^RAISE */
    static constexpr bool HIDES = hides_by_data(T::FEATURES), DROPS = (T::FEATURES & AGI_HAS_DROPOUT) != 0;

    const agi_hopper_forward &f;
    const query_block<T> &at;
    const forward_memory<T> &memory;
    const int w, row; /* of the warpgroup; the thread's first query, the other is row + 8 */
    int inside_from, inside_to; /* keys that every query of the warpgroup sees */
    float S[T::N / 2], O[T::D / 2];
    uint32_t P[T::N / 4];
    float top[2], sum[2], factor[2];
    bool seen[2] = {false, false}; /* has the row met a pair that mask and bias do not hide? */
    kept_weights<false, T::N / 2> kept;

    VERB forward_consumer(const agi_hopper_forward &call, const query_block<T> &block,
                          const forward_memory<T> &shared)
        : f(call), at(block), memory(shared), w(uniform((int)threadIdx.x / 128 - 1)),
          row(block.row + (int)threadIdx.x / 32 * 16 - 64 + (int)threadIdx.x % 32 / 4)
    {
        const int first = at.row + w * 64;
        inside_from = first + 63 + at.s.low;
        inside_to = min(first + at.s.high + 1, at.s.n_k);
        begin_rows();
#pragma unroll
        for (int i = 0; i < T::D / 2; i++) {
            O[i] = 0;
        }
    }

    /* u of a row whose largest score is m. */
    static VERB float exponent(float m)
    {
        return add_rn(mul_rn(m, LOG2_E), -RAISE);
    }
    /* The sink counts as a score without a value. */
    VERB void begin_rows()
    {
        const ag_tensor &t = f.p.a.sink;
        const bool there = t.data != nullptr;
        const float s = there ? load_number<float>(f.p.aux_dtype, t.data, at.h * t.strides[1]) : LOWEST;
        const float m = fmaxf(s, LOWEST), l = exp2_fast(fmaf(s, LOG2_E, -exponent(m)));
        top[0] = top[1] = m;
        sum[0] = sum[1] = there && threadIdx.x % 4 == 0 ? l : 0;
    }

    /* ---- Products ---- */

    VERB void start_scores(int n)
    {
        const operand_tile q = rows_of(memory.q + w * T::SLAB), k = rows_of(memory.k.tile(n));
        product_first<F, T::N>(S, operand_at(q, 0), operand_at(k, 0));
#pragma unroll
        for (int step = 1; step < T::D / 16; step++) {
            product_next<F, T::N>(S, operand_at(q, channel_step(step, T::CONSUMERS * T::SLAB)),
                                  operand_at(k, channel_step(step, T::BOX)));
        }
        products_commit();
    }
    VERB void start_sums(int n)
    {
        const operand_tile v = columns_of(memory.v.tile(n), T::BOX);
#pragma unroll
        for (int step = 0; step < T::N / 16; step++) {
            product_weights<F, T::D>(O, P + 4 * step, operand_at(v, step * 2048));
        }
        products_commit();
    }

    /* Waits for its turn at the tensor cores, and passes it on. */
    VERB void take_turn()
    {
        named_sync(TURN + w, 256);
    }
    VERB void pass_turn()
    {
        named_arrive(TURN + (w + 1) % T::CONSUMERS, 256);
    }

    /* ---- Weights ---- */

    /* S of tile n, minus infinity where a pair is hidden. */
    VERB void scale_scores(int n)
    {
        const float scale = (float)f.p.scale;
        const int first = at.key(n);
#pragma unroll
        for (int i = 0; i < T::N / 2; i++) {
            S[i] = mul_rn(S[i], scale);
            if constexpr ((T::FEATURES & AGI_HAS_SOFTCAP) != 0) {
                S[i] = capped_score(f.x, S[i]);
            }
        }
        add_features<F, T::FEATURES, false>(S, f.p, f.x, {at.s, at.h, row, first});
        if (first >= inside_from && first + T::N <= inside_to) {
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

    /* The row's new m; returns u. */
    VERB float grow(int half)
    {
        float most = HIDES ? -INFINITY : top[half];
#pragma unroll
        for (int i = 0; i < T::N / 4; i++) {
            most = fmaxf(most, S[i / 2 * 4 + 2 * half + i % 2]);
        }
        most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
        most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
        if constexpr (HIDES) {
            seen[half] |= most != -INFINITY;
            most = fmaxf(most, top[half]);
        }
        const float u = exponent(most);
        factor[half] = exp2_fast(exponent(top[half]) - u);
        top[half] = most;
        return u;
    }

    /* The weights of tile n, in the place of its scores. */
    VERB void make_weights(int n)
    {
        scale_scores(n);
        const float u[2] = {grow(0), grow(1)};
#pragma unroll
        for (int i = 0; i < T::N / 2; i++) {
            S[i] = exp2_fast(fmaf(S[i], LOG2_E, -u[i / 2 % 2]));
        }
    }
    /* P, only when no product reads the old one any more. With dropout it is summed before some are dropped. */
    VERB void pack_weights()
    {
#pragma unroll
        for (int i = 0; i < T::N / 4; i++) {
            P[i] = F::pack(S[2 * i], S[2 * i + 1]);
        }
        if constexpr (DROPS) {
            add_weights();
#pragma unroll
            for (int i = 0; i < T::N / 4; i++) {
                P[i] &= (kept[2 * i] ? 0xffffu : 0) | (kept[2 * i + 1] ? 0xffff0000u : 0);
            }
        }
    }
    /* While products run. */
    VERB void sum_weights()
    {
        if constexpr (!DROPS) {
            add_weights();
        }
    }
    VERB void find_kept(int n)
    {
        if constexpr (DROPS) {
            kept.find(f.p, {at.s, at.h, row, at.key(n)});
        }
    }
    /* l: the sum of the numbers that multiply V. */
    VERB void add_weights()
    {
        float of_tile[2][2] = {};
#pragma unroll
        for (int i = 0; i < T::N / 4; i++) {
            const float2 both = F::unpack(P[i]);
            of_tile[i % 2][0] += both.x;
            of_tile[i % 2][1] += both.y;
        }
#pragma unroll
        for (int half = 0; half < 2; half++) {
            sum[half] = add_rn(mul_rn(sum[half], factor[half]), of_tile[half][0] + of_tile[half][1]);
        }
    }
    VERB void shrink()
    {
#pragma unroll
        for (int i = 0; i < T::D / 2; i++) {
            O[i] *= factor[i / 2 % 2];
        }
    }

    /* Rows of V that no query of the block sees may hold anything, and 0 times NaN is NaN: they become zeros. Every
     * warpgroup writes all of them before its own product. */
    VERB void clear_hidden(int n)
    {
        const int first = at.key(n), thread = (int)threadIdx.x % 128;
        const uint8_t *const live = live_keys(f.p, f.x, at.s, at.kv_head) + first;
        const bool dead = HIDES && has_dead_keys<T::N>(live);
        if (first >= at.from && first + T::N <= at.to && !dead) {
            return;
        }
        memory.v.wait(n);
        for (int i = thread; i < T::N * T::BOXES * 8; i += 128) {
            const int r = i / (T::BOXES * 8), chunk = i % (T::BOXES * 8), key = first + r;
            if (key < at.from || key >= at.to || (HIDES && live[r] == 0)) {
                shared_zero_16(memory.v.tile(n) + chunk / 8 * T::BOX + r * 128 + chunk % 8 * 16);
            }
        }
        shared_fence();
        named_sync(WARPGROUP + w, 128);
    }

    /* ---- The walk ---- */

    VERB void first_tile()
    {
        memory.k.wait(0);
        barrier_wait(memory.q_full, 0);
        products_begin();
        start_scores(0);
        find_kept(0);
        products_wait<0>();
        hold(S);
        memory.k.release(0);
        make_weights(0);
        pack_weights();
        clear_hidden(0);
    }
    /* S of tile n, and O' with tile n - 1. */
    VERB void next_tile(int n)
    {
        memory.k.wait(n);
        take_turn();
        hold(P);
        hold(O);
        products_begin();
        start_scores(n);
        memory.v.wait(n - 1);
        start_sums(n - 1);
        pass_turn();
        sum_weights();
        find_kept(n);
        products_wait<1>();
        hold(S);
        memory.k.release(n);
        make_weights(n);
        products_wait<0>();
        hold(O);
        memory.v.release(n - 1);
        shrink();
        pack_weights();
        clear_hidden(n);
    }
    VERB void walk()
    {
        if (w == T::CONSUMERS - 1) {
            pass_turn();
        }
        first_tile();
#pragma unroll 1
        for (int n = 1; n < at.count; n++) {
            next_tile(n);
        }
        memory.v.wait(at.count - 1);
        hold(P);
        hold(O);
        products_begin();
        start_sums(at.count - 1);
        sum_weights();
        products_wait<0>();
        hold(O);
    }

    /* ---- Results ---- */

    VERB bool exists(int half) const
    {
        return row + 8 * half < at.s.n_q;
    }
    /* L = m + log l, l freed of what rounding u put into the weights. If the row sees no key it is the sink's logit, to
     * the last bit: so vjp knows such rows. */
    VERB void store_lse(int half, float l) const
    {
        const int r = row + 8 * half;
        const bool sees =
            max(r + at.s.low, 0) < min(r + at.s.high + 1, at.s.n_k) && (!HIDES || seen[half] || !(l == l));
        const double m = top[half], excess = m * (double)LOG2_E - (double)exponent(top[half]);
        const double L = sees ? m + (log((double)l) - excess * 0.6931471805599453) : m;
        if (threadIdx.x % 4 == 0 && r < at.rows_of_tensor(f.p)) {
            store_row(f.p, f.p.a.lse, AG_ACC_LSE, {at.s, at.h}, r,
                      exists(half) && l != 0 ? L : -(double)INFINITY);
        }
    }

    /* Two numbers of O, or what rounding takes from them. */
    template <bool LOW> VERB uint32_t pair(int i) const
    {
        return LOW ? F::pack(low_half(f.p.dtype, O[i]), low_half(f.p.dtype, O[i + 1]))
                   : F::pack(O[i], O[i + 1]);
    }
    /* Stores a matrix by way of the warpgroup's place in Q. */
    template <bool LOW> VERB void store_boxes(const agi_cuda_tensor_map &map) const
    {
        const int thread = (int)threadIdx.x % 128, matrix = thread % 32 / 8;
        const int r = thread / 32 * 16 + thread % 8 + matrix % 2 * 8;
        const uint32_t slab = memory.q + w * T::SLAB;
        constexpr int NEXT_BOX = T::CONSUMERS * T::SLAB;
#pragma unroll
        for (int c = 0; c < T::D / 8; c += 2) {
            const int chunk = c % 8 + matrix / 2;
            store_matrices(slab + c / 8 * NEXT_BOX + r * 128 + ((chunk ^ (r % 8)) << 4), pair<LOW>(4 * c),
                           pair<LOW>(4 * c + 2), pair<LOW>(4 * c + 4), pair<LOW>(4 * c + 6));
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

    /* Stores O and what rounding takes from it by any dtype and stride. When all warpgroups are done, the tiles' memory
     * is free. */
    VERB void store_by_rows() const
    {
        const int warp = (int)threadIdx.x / 32 - 4, first = row - (int)threadIdx.x % 32 / 4;
        const warp_rows<T::D> rows = {memory.k.tiles + warp * 16 * T::D * 4};
        const ag_tensor &o = f.p.a.o, &low = f.p.a.o_low;
        const int left = at.rows_of_tensor(f.p) - first;
        named_sync(ALL_CONSUMERS, 128 * T::CONSUMERS);
        rows.put(O);
        rows.store({&o, f.p.out_dtype, (f.p.a.accumulate & AG_ACC_O) != 0},
                   element_at(o, at.s.view, at.h, at.s.q0 + first), left, f.p.Dv, false);
        rows.store({&low, f.p.out_dtype, false}, element_at(low, at.s.view, at.h, at.s.q0 + first), left, f.p.Dv,
                   true);
    }

    /* O = O' / l; 0 if the row sees nothing or is not there. */
    VERB void finish()
    {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float l = sum[half] + __shfl_xor_sync(~0u, sum[half], 1);
            l += __shfl_xor_sync(~0u, l, 2);
            store_lse(half, l);
            factor[half] = l == 0 ? 0 : (DROPS ? f.x.inverse_keep : 1) / l;
        }
#pragma unroll
        for (int i = 0; i < T::D / 2; i++) {
            O[i] = exists(i / 2 % 2) ? O[i] * factor[i / 2 % 2] : 0;
        }
        /* Behind the end of a packed sequence the next one begins. */
        const bool cut = f.p.flags & AG_PACKED && at.row + T::ROWS > at.s.n_q;
        if (!f.stores_boxes || cut) {
            store_by_rows();
            return;
        }
        store_boxes<false>(f.o);
        if (f.p.a.o_low.data != nullptr) {
            named_sync(WARPGROUP + w, 128);
            store_boxes<true>(f.o_low);
        }
    }
};

/* ---- The kernel ---- */

template <class T> VERB void run_forward(const agi_hopper_forward &f)
{
    SHARED_MEMORY(shared);
    const forward_memory<T> memory(shared_address(shared));
    const query_block<T> at(f.p, f.heads_together);
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
            produce<T>(f, at, memory);
        }
    } else {
        take_registers<T::CONSUMER_REGISTERS>();
        forward_consumer<T> c(f, at, memory);
        c.walk();
        c.finish();
    }
}

#define AGI_HOPPER_KERNEL(map, format, D, CONSUMERS, N, STAGES)                                              \
    KERNEL void __launch_bounds__(128 * (CONSUMERS + 1), 1)                                                  \
        map##_##format##_d##D(const __grid_constant__ agi_hopper_forward f)                                  \
    {                                                                                                        \
        run_forward<hopper_shape<format, D, CONSUMERS, N, STAGES>>(f);                                       \
    }
#define AGI_HOPPER_SET_KERNEL(map, format, D, CONSUMERS, N, STAGES, set)                                     \
    KERNEL void __launch_bounds__(128 * (CONSUMERS + 1), 1)                                                  \
        map##_##format##_d##D##_##set(const __grid_constant__ agi_hopper_forward f)                          \
    {                                                                                                        \
        run_forward<hopper_shape<format, D, CONSUMERS, N, STAGES, AGI_SET_##set>>(f);                        \
    }
#define AGI_HOPPER_KERNELS(list, kernel, format) list(kernel, format)
AGI_HOPPER_KERNELS(AGI_HOPPER_forward, AGI_HOPPER_KERNEL, AGI_FORMAT)
AGI_HOPPER_KERNELS(AGI_HOPPER_forward_sets, AGI_HOPPER_SET_KERNEL, AGI_FORMAT)
