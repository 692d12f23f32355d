/* jvp on Hopper: O and its tangent tO, L and its tangent mu. hopper_queries.cuh has what it shares with forward.
 *
 * For each tile of keys S = Q K^T and U = tQ K^T + Q tK^T are multiplied, then O' += P V and
 * T' += P tV + (P o (tS - r)) V, with tS = scale U. A tile has as many keys as there are registers for S and U beside O'
 * and T'. r is a number for each row, near the mean of tS under P, so that nothing cancels in
 *
 *     mu = r + a / l,   tO = T' / l - (mu - r) O,   a = sum of P (tS - r)
 *
 * It is the mean of the first tile in which the row sees a key, and moves to the mean of all tiles so far when that is
 * more than FAR_FROM_MEAN away. Each row decides by its own numbers alone.
 *
 * float16 has no room for P (tS - r) where tS is large: then the row's weights become smaller by a power of two. */
#include "cuda/kernels/hopper_queries.cuh"

constexpr float FAR_FROM_MEAN = 4;

template <class F, int D, int CONSUMERS, int N, int STAGES>
struct jvp_shape : hopper_shape<F, D, CONSUMERS, N, STAGES> {
    static constexpr bool TURNS = D == 128; /* where multiplying takes longer than making weights */
    static constexpr int PRODUCER_REGISTERS = 24, CONSUMER_REGISTERS = 240;
    static constexpr bool PLACE_IN_MEMORY = true;
};

template <class T> struct jvp_consumer : query_consumer<T, 2> {
    typedef query_consumer<T, 2> base;
    typedef typename T::F F;
    using base::at;
    using base::memory;
    using base::sum;
    /* float16's weights begin at 2^RAISE and may fall to 2^LOWEST_RAISE; P (tS - r) stays below LARGEST. */
    static constexpr float RAISE = F::RAISED ? 6 : 0, LOWEST_RAISE = -10, LARGEST = 60000;

    const agi_hopper_jvp &f;
    float S[T::N / 2], U[T::N / 2], O[T::D / 2], TO[T::D / 2];
    uint32_t P[T::N / 4], R[T::N / 4]; /* R = P o (tS - r) */
    float raise[2], shift[2];          /* shift: r */
    float tangent[2], moved[2];        /* a; the same as R multiplies V, rounded: so tO of a constant V is 0 */
    float limit[2];                    /* how far r may be from the mean; 0 until the row has seen a key */

    VERB jvp_consumer(const agi_hopper_jvp &call, const query_block<T> &block, const query_memory<T, 2> &shared)
        : base(call.p, block, shared, RAISE), f(call)
    {
        const ag_tensor &ts = f.p.a.tsink;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            raise[half] = RAISE;
            shift[half] = ts.data != nullptr ? base::sink_number(ts) : 0;
            tangent[half] = moved[half] = limit[half] = 0;
        }
#pragma unroll
        for (int i = 0; i < T::D / 2; i++) {
            O[i] = TO[i] = 0;
        }
    }

    /* bfloat16's weights are never raised: told to the compiler. */
    VERB float raise_of(int half) const
    {
        return F::RAISED ? raise[half] : RAISE;
    }

    /* ---- Weights ---- */

    VERB void shrink(const float (&factor)[2])
    {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            sum[half] *= factor[half];
            tangent[half] *= factor[half];
            moved[half] *= factor[half];
        }
#pragma unroll
        for (int i = 0; i < T::D / 2; i++) {
            O[i] *= factor[i / 2 % 2];
            TO[i] *= factor[i / 2 % 2];
        }
    }
    /* l: the sum of the numbers that multiply V. */
    VERB void sum_weights()
    {
        float of_tile[2];
        base::sum_packed(P, of_tile);
        sum[0] += of_tile[0];
        sum[1] += of_tile[1];
    }
    VERB void make_weights(int n)
    {
        float factor[2];
        base::scale_scores(S, n);
        const float u[2] = {base::grow(S, 0, raise_of(0), factor[0]), base::grow(S, 1, raise_of(1), factor[1])};
        shrink(factor);
#pragma unroll
        for (int i = 0; i < T::N / 4; i++) {
            P[i] = F::pack(exp2_fast(fmaf(S[2 * i], LOG2_E, -u[i % 2])),
                           exp2_fast(fmaf(S[2 * i + 1], LOG2_E, -u[i % 2])));
        }
        sum_weights();
    }

    /* ---- Tangents of the weights ---- */

    /* The sums of a tile's U, of each row. */
    VERB void sum_tangents(float (&of_tile)[2]) const
    {
        float parts[2][2] = {};
#pragma unroll
        for (int i = 0; i < T::N / 2; i++) {
            parts[i / 2 % 2][i % 2] += U[i];
        }
        of_tile[0] = parts[0][0] + parts[0][1];
        of_tile[1] = parts[1][0] + parts[1][1];
    }
    /* Has float16 no room for U? bfloat16 has it always. */
    VERB float largest(int half) const
    {
        float most = 0;
#pragma unroll
        for (int i = 0; i < T::N / 4 && F::RAISED; i++) {
            most = fmaxf(most, fabsf(U[i / 2 * 4 + 2 * half + i % 2]));
        }
        return most;
    }

    /* P (tS - r) in the place of U, and r where it belongs. A row's mean can be far from r only if that of one of its
     * four lanes is: there is one vote of the warp, and numbers are exchanged only if it says so. */
    VERB void make_tangents()
    {
        const float scale = (float)f.p.scale;
        float of_tile[2];
        bool far[2];
        hold(P);
#pragma unroll
        for (int i = 0; i < T::N / 4; i++) {
            const float2 weight = F::unpack(P[i]);
            U[2 * i] = weight.x * fmaf(U[2 * i], scale, -shift[i % 2]);
            U[2 * i + 1] = weight.y * fmaf(U[2 * i + 1], scale, -shift[i % 2]);
        }
        sum_tangents(of_tile);
        bool any = false;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            far[half] = fabsf(tangent[half] + of_tile[half]) > limit[half] * sum[half];
            any |= far[half] || largest(half) > LARGEST;
        }
        if (__any_sync(~0u, any)) {
            move_reference(far, of_tile);
            make_room();
            sum_tangents(of_tile);
        }
        tangent[0] += of_tile[0];
        tangent[1] += of_tile[1];
        base::pack(R, U);
    }
    /* r of the rows that are far from it becomes their mean; far: what the row's lanes found. */
    VERB void move_reference(const bool (&far)[2], const float (&of_tile)[2])
    {
        float move[2], weights[2];
        hold(P);
        base::sum_packed(P, weights);
        hold(P);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const float a = row_sum(tangent[half] + of_tile[half]), l = row_sum(sum[half]);
            const bool moves = row_max(far[half] ? 1.0f : 0.0f) > 0 && fabsf(a) > limit[half] * l;
            move[half] = moves ? a / l : 0;
            limit[half] = moves ? FAR_FROM_MEAN : limit[half];
            shift[half] += move[half];
            tangent[half] -= move[half] * (sum[half] - weights[half]);
            moved[half] -= move[half] * (sum[half] - weights[half]);
        }
#pragma unroll
        for (int i = 0; i < T::N / 4; i++) {
            const float2 weight = F::unpack(P[i]);
            U[2 * i] = fmaf(-move[i % 2], weight.x, U[2 * i]);
            U[2 * i + 1] = fmaf(-move[i % 2], weight.y, U[2 * i + 1]);
        }
#pragma unroll
        for (int i = 0; i < T::D / 2; i++) {
            TO[i] = fmaf(-move[i / 2 % 2], O[i], TO[i]);
        }
    }
    /* Rows whose U are too large for float16 become smaller, with all that was summed. */
    VERB void make_room()
    {
        if constexpr (F::RAISED) {
            float factor[2];
            hold(P);
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const float most = row_max(largest(half)), u = exponent(base::top[half], raise[half]);
                const float excess = (float)((int)(__float_as_uint(most) >> 23) - 127 - 14); /* above 2^14 */
                raise[half] = most > LARGEST ? fmaxf(raise[half] - excess, LOWEST_RAISE) : raise[half];
                factor[half] = exp2_fast(u - exponent(base::top[half], raise[half]));
            }
#pragma unroll
            for (int i = 0; i < T::N / 4; i++) {
                const float2 weight = F::unpack(P[i]);
                P[i] = F::pack(weight.x * factor[i % 2], weight.y * factor[i % 2]);
                U[2 * i] *= factor[i % 2];
                U[2 * i + 1] *= factor[i % 2];
            }
            shrink(factor); /* and the weights of this tile in l with it */
        }
    }

    /* ---- The walk ---- */

    VERB void start_all_scores(int n)
    {
        base::template start_scores<false>(S, 0, 0, n);
        products_commit();
        base::template start_scores<false>(U, 1, 0, n);
        base::template start_scores<true>(U, 0, 1, n);
        products_commit();
    }
    VERB void start_all_sums(int n)
    {
        base::start_sums(O, P, 0, n);
        base::start_sums(TO, P, 1, n);
        base::start_sums(TO, R, 0, n);
        products_commit();
    }
    VERB void sum_moved()
    {
        float of_tile[2];
        base::sum_packed(R, of_tile);
        moved[0] += of_tile[0];
        moved[1] += of_tile[1];
    }
    VERB void step(int n)
    {
        memory.k.wait(n);
        if (base::has_hidden(n)) {
            base::clear_hidden(memory.k, n); /* U is not hidden pair by pair */
        }
        if constexpr (T::TURNS) {
            base::take_turn();
        }
        products_begin();
        start_all_scores(n);
        if constexpr (T::TURNS) {
            base::pass_turn();
        }
        products_wait<1>();
        hold(S);
        if constexpr (T::D == 64) {
            before_next_wait(f.p.H, [&] { make_weights(n); });
        } else {
            make_weights(n); /* faster if it comes after them */
        }
        products_wait<0>();
        hold(U);
        memory.k.release(n);
        make_tangents();
        base::clear_hidden_values(n);
        memory.v.wait(n);
        hold(P);
        hold(R);
        hold(O);
        hold(TO);
        products_begin();
        start_all_sums(n);
        if constexpr (T::D == 64) {
            sum_moved();
        } else {
            before_next_wait(f.p.H, [&] { sum_moved(); }); /* not before the products */
        }
        products_wait<0>();
        hold(O);
        hold(TO);
        memory.v.release(n);
    }
    VERB void walk()
    {
        if constexpr (T::TURNS) {
            base::begin_turns();
        }
        barrier_wait(memory.q_full, 0);
#pragma unroll 1
        for (int n = 0; n < at.count; n++) {
            step(n);
        }
    }

    /* ---- Results ---- */

    VERB void store_matrix(const float (&x)[T::D / 2], bool boxes, const ag_tensor &t, const ag_tensor &low,
                           uint32_t bit) const
    {
        const bool by_rows = !boxes && t.data != nullptr;
        if (by_rows || low.data != nullptr) {
            base::store_rows(x, by_rows ? &t : nullptr, low, bit);
        }
    }
    /* Low halves are stored by rows: a launch has no room for their maps. */
    VERB void store_all() const
    {
        const ag_args &a = f.p.a;
        const bool whole = base::has_whole_boxes();
        const bool o_boxes = f.o_in_boxes && whole, to_boxes = f.to_in_boxes && whole;
        if (o_boxes) {
            base::template store_boxes<false>(f.o, O, 0);
        }
        if (to_boxes) {
            base::template store_boxes<false>(f.to, TO, 1);
        }
        if ((!o_boxes && a.o.data != nullptr) || !to_boxes || a.o_low.data != nullptr || a.to_low.data != nullptr) {
            base::finish_tiles();
            store_matrix(O, o_boxes, a.o, a.o_low, AG_ACC_O);
            store_matrix(TO, to_boxes, a.to, a.to_low, AG_ACC_TO);
        }
    }
    /* O = O' / l, tO = T' / l - (mu - r) O; 0 if the row sees nothing or is not there. */
    VERB void finish()
    {
        float inverse[2], mean[2]; /* 1 / l; mu - r as it multiplies O */
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const float l = row_sum(sum[half]), a = row_sum(tangent[half]);
            const bool sees = base::sees_keys(half);
            const double mu = l == 0 ? 0 : (double)shift[half] + (sees ? (double)(a / l) : 0);
            inverse[half] = !sees || l == 0 ? 0 : 1 / l;
            mean[half] = row_sum(moved[half]) * inverse[half];
            base::store_lse(half, l, raise_of(half));
            base::store_statistic(f.p.a.mu, AG_ACC_MU, half, base::exists(half) ? mu : 0);
        }
#pragma unroll
        for (int i = 0; i < T::D / 2; i++) {
            const int half = i / 2 % 2;
            const bool there = base::exists(half) && inverse[half] != 0;
            O[i] = there ? O[i] * inverse[half] : 0;
            TO[i] = there ? fmaf(TO[i], inverse[half], -mean[half] * O[i]) : 0;
        }
        store_all();
    }
};

#define AGI_HOPPER_KERNEL(map, format, D, CONSUMERS, N, STAGES)                                              \
    KERNEL void __launch_bounds__(128 * (CONSUMERS + 1), 1)                                                  \
        map##_##format##_d##D(const __grid_constant__ agi_hopper_jvp f)                                      \
    {                                                                                                        \
        typedef jvp_shape<format, D, CONSUMERS, N, STAGES> T;                                                \
        run_queries<T, 2, jvp_consumer<T>>(f, {f.q, f.k, f.v});                                              \
    }
#define AGI_HOPPER_KERNELS(list, format) list(AGI_HOPPER_KERNEL, format)
AGI_HOPPER_KERNELS(AGI_HOPPER_jvp, AGI_FORMAT)
