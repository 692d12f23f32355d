/* forward on Hopper: O = P V. hopper_queries.cuh has what it shares with jvp.
 *
 * S = Q K^T of the next tile and O' += P V of this one are given to the tensor cores together, and while they run the
 * weights of the next tile are made. float16's weights are larger by 2^14, its range, in O' and in l alike. */
#include "cuda/kernels/hopper_queries.cuh"

template <class T> struct forward_consumer : query_consumer<T, 1> {
    typedef query_consumer<T, 1> base;
    typedef typename T::F F;
    using base::at;
    using base::memory;
    using base::sum;
    static constexpr float RAISE = F::RAISED ? 14 : 0;

    const agi_hopper_forward &f;
    float S[T::N / 2], O[T::D / 2];
    uint32_t P[T::N / 4];
    float factor[2];

    VERB forward_consumer(const agi_hopper_forward &call, const query_block<T> &block,
                          const query_memory<T, 1> &shared)
        : base(call.p, block, shared, RAISE), f(call)
    {
#pragma unroll
        for (int i = 0; i < T::D / 2; i++) {
            O[i] = 0;
        }
    }

    /* ---- Weights ---- */

    /* The weights of tile n, in the place of its scores. */
    VERB void make_weights(int n)
    {
        base::scale_scores(S, n);
        const float u[2] = {base::grow(S, 0, RAISE, factor[0]), base::grow(S, 1, RAISE, factor[1])};
#pragma unroll
        for (int i = 0; i < T::N / 2; i++) {
            S[i] = exp2_fast(fmaf(S[i], LOG2_E, -u[i / 2 % 2]));
        }
    }
    /* l: the sum of the numbers that multiply V. */
    VERB void sum_weights()
    {
        float of_tile[2];
        base::sum_packed(P, of_tile);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            sum[half] = add_rn(mul_rn(sum[half], factor[half]), of_tile[half]);
        }
    }
    VERB void shrink()
    {
#pragma unroll
        for (int i = 0; i < T::D / 2; i++) {
            O[i] *= factor[i / 2 % 2];
        }
    }

    /* ---- The walk ---- */

    VERB void start_next_scores(int n)
    {
        base::template start_scores<false>(S, 0, 0, n);
        products_commit();
    }
    VERB void start_values(int n)
    {
        base::start_sums(O, P, 0, n);
        products_commit();
    }
    VERB void first_tile()
    {
        memory.k.wait(0);
        barrier_wait(memory.q_full, 0);
        products_begin();
        start_next_scores(0);
        products_wait<0>();
        hold(S);
        memory.k.release(0);
        make_weights(0);
        base::pack(P, S);
        base::clear_hidden_values(0);
    }
    /* S of tile n, and O' with tile n - 1. P changes only when no product reads the old one any more. */
    VERB void next_tile(int n)
    {
        memory.k.wait(n);
        base::take_turn();
        hold(P);
        hold(O);
        products_begin();
        start_next_scores(n);
        memory.v.wait(n - 1);
        start_values(n - 1);
        base::pass_turn();
        sum_weights();
        products_wait<1>();
        hold(S);
        memory.k.release(n);
        make_weights(n);
        products_wait<0>();
        hold(O);
        memory.v.release(n - 1);
        shrink();
        base::pack(P, S);
        base::clear_hidden_values(n);
    }
    VERB void walk()
    {
        base::begin_turns();
        first_tile();
#pragma unroll 1
        for (int n = 1; n < at.count; n++) {
            next_tile(n);
        }
        memory.v.wait(at.count - 1);
        hold(P);
        hold(O);
        products_begin();
        start_values(at.count - 1);
        sum_weights();
        products_wait<0>();
        hold(O);
    }

    /* ---- Results ---- */

    /* O = O' / l; 0 if the row sees nothing or is not there. */
    VERB void finish()
    {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const float l = row_sum(sum[half]);
            base::store_lse(half, l, RAISE);
            factor[half] = l == 0 ? 0 : 1 / l;
        }
#pragma unroll
        for (int i = 0; i < T::D / 2; i++) {
            O[i] = base::exists(i / 2 % 2) ? O[i] * factor[i / 2 % 2] : 0;
        }
        if (!f.stores_boxes || !base::has_whole_boxes()) {
            base::finish_tiles();
            base::store_rows(O, &f.p.a.o, f.p.a.o_low, AG_ACC_O);
            return;
        }
        base::template store_boxes<false>(f.o, O, 0);
        if (f.p.a.o_low.data != nullptr) {
            named_sync(WARPGROUP + base::w, 128);
            base::template store_boxes<true>(f.o_low, O, 0);
        }
    }
};

#define AGI_HOPPER_KERNEL(map, format, D, CONSUMERS, N, STAGES)                                              \
    KERNEL void __launch_bounds__(128 * (CONSUMERS + 1), 1)                                                  \
        map##_##format##_d##D(const __grid_constant__ agi_hopper_forward f)                                  \
    {                                                                                                        \
        typedef hopper_shape<format, D, CONSUMERS, N, STAGES> T;                                             \
        run_queries<T, 1, forward_consumer<T>>(f, {&f.q, &f.k, &f.v});                                       \
    }
#define AGI_HOPPER_KERNELS(list, format) list(AGI_HOPPER_KERNEL, format)
AGI_HOPPER_KERNELS(AGI_HOPPER_forward, AGI_FORMAT)
