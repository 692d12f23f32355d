/* jvp on Hopper: O and its tangent tO, L and its tangent mu. hopper_queries.cuh has what it shares with forward.
 *
 * For each tile of keys S = Q K^T and U = tQ K^T + Q tK^T are multiplied, then O' += P V and
 * T' += P tV + (P o (tS - r)) V, with tS = scale U. A tile has as many keys as there are registers for S and U beside
 * O' and T'. r is a number for each row, near the mean of tS under P, so that nothing cancels in
 *
 *     mu = r + a / l,   tO = T' / l - (mu - r) O,   a = sum of P (tS - r)
 *
 * It is the mean of the first tile in which the row sees a key, and moves to the mean of all tiles so far when that is
 * more than FAR_FROM_MEAN away. Each row decides by its own numbers alone. A sink comes into l and a in the end.
 *
 * float16 has no room for P (tS - r) where tS is large: then the row's weights become smaller by a power of two.
 *
 * Sets of score features: what scores need beside the products is found while these run. With a softcap, where tS =
 * phi' scale U, S waits for U. The tangents of bias and table are added to tS. Dropout takes pairs from P and
 * P o (tS - r) as they multiply V and tV; l and a have all of them. What a hidden pair has in U, or in a bias's
 * tangent, may be anything: where P is 0, P (tS - r) is. */
#include "cuda/kernels/hopper_queries.cuh"

constexpr float FAR_FROM_MEAN = 4;

template <class F, int D, int CONSUMERS, int N, int STAGES, int FEATURES = 0>
struct jvp_shape : hopper_shape<F, D, CONSUMERS, N, STAGES, FEATURES> {
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
    static constexpr bool CAPS = (T::FEATURES & AGI_HAS_SOFTCAP) != 0,
                          DROPS = (T::FEATURES & AGI_HAS_DROPOUT) != 0;
    static constexpr bool RELATIVE = (T::FEATURES & AGI_HAS_RELATIVE) != 0, MASKED = has_mask(T::FEATURES);
    /* Terms of relative positions are read before the scores are there, if there are registers for them. */
    static constexpr bool RELATIVE_EARLY = RELATIVE && T::D == 64;
    static constexpr bool HAS_BIAS = (T::FEATURES & AGI_HAS_BIAS) != 0, HIDES = hides_by_data(T::FEATURES);

    const agi_hopper_jvp &f;
    float S[T::N / 2], U[T::N / 2], O[T::D / 2], TO[T::D / 2];
    uint32_t P[T::N / 4], R[T::N / 4]; /* R = P o (tS - r) */
    float raise[2], shift[2];          /* shift: r */
    float tangent[2], moved[2]; /* a; the same as R multiplies V, rounded: so tO of a constant V is 0 */
    float limit[2];             /* how far r may be from the mean; 0 until the row has seen a key */
    kept_weights<false, T::N / 2> kept;
    mask_bits<false, T::N / 2> visible; /* if the tile is mixed */
    relative_terms<false, T::N / 2> relative;

    VERB jvp_consumer(const agi_hopper_jvp &call, const query_block<T> &block,
                      const query_memory<T, 2> &shared)
        : base(call.p, block, shared, RAISE), f(call)
    {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            raise[half] = RAISE;
            shift[half] = tsink();
            tangent[half] = moved[half] = limit[half] = 0;
        }
#pragma unroll
        for (int i = 0; i < T::D / 2; i++) {
            O[i] = TO[i] = 0;
        }
    }

    VERB float tsink() const
    {
        return f.p.a.tsink.data != nullptr ? base::sink_number(f.p.a.tsink) : 0;
    }
    /* bfloat16's weights are never raised: told to the compiler. */
    VERB float raise_of(int half) const
    {
        return F::RAISED ? raise[half] : RAISE;
    }

    /* ---- Features of the score ---- */

    VERB fragment_place place(int n) const
    {
        return {at.s, at.h, base::row, base::key_of(n)};
    }
    VERB bool is_mixed(int n) const
    {
        return MASKED && memory.note(n).mixed[base::w];
    }
    /* What needs no scores. */
    VERB void find_features(int n)
    {
        if (is_mixed(n)) {
            visible.find(f.p, f.x, place(n));
        }
        if constexpr (DROPS) {
            kept.find(f.p, place(n));
        }
        if (RELATIVE_EARLY && f.x.relative != nullptr) {
            relative.find(relative_at<false>(f.p, f.x, place(n)));
            hold(relative.terms);
        }
    }
    /* S becomes the scaled scores; with a softcap phi of them, and U is multiplied by phi'. */
    VERB void scale_scores()
    {
        const float scale = (float)f.p.scale;
#pragma unroll
        for (int i = 0; i < T::N / 2; i++) {
            S[i] = mul_rn(S[i], scale);
            if constexpr (CAPS) {
                float slope;
                S[i] = capped_score(f.x, S[i], slope);
                U[i] *= slope;
            }
        }
    }
    /* Have bias or tangent come in boxes? */
    VERB bool has_boxes() const
    {
        return HAS_BIAS && (f.bias_in_boxes || f.tbias_in_boxes);
    }
    /* Calls use(n, entry) for the tile of the bias, 0, or of its tangent, 1. */
    template <class Function> VERB void each_in_boxes(int matrix, int n, Function use) const
    {
        const uint32_t tile = memory.b.tile(n) + matrix * query_memory<T, 2>::BIAS + base::w * T::SLAB;
        each_pair_in_boxes<T::N / 2>(tile, T::CONSUMERS * T::SLAB, [&](int i, uint32_t pair) {
            const float2 both = F::unpack(pair);
            use(i, both.x);
            use(i + 1, both.y);
        });
    }
    VERB void add_terms(int n)
    {
        if (HAS_BIAS && f.bias_in_boxes) {
            each_in_boxes(0, n, [&](int i, float bias) { S[i] = with_bias(S[i], bias); });
        } else {
            constexpr int LATE = T::FEATURES & ~(RELATIVE_EARLY ? AGI_HAS_RELATIVE : 0);
            add_features<F, LATE, false>(S, f.p, f.x, place(n));
        }
        if (RELATIVE_EARLY && f.x.relative != nullptr) {
            relative.add(S);
        }
    }
    /* S of tile n, minus infinity where a pair is hidden. */
    VERB void make_scores(int n)
    {
        scale_scores();
        if (has_boxes()) {
            memory.b.wait(n);
        }
        if constexpr (T::FEATURES != 0) {
            add_terms(n);
        }
        if (is_mixed(n)) {
            visible.hide(S, -INFINITY);
        }
        base::hide_pairs(S, n);
    }
    /* tS is U times what this returns: the scale, or 1 if there were tangents of bias or table to be added. */
    VERB float scale_tangents(int n)
    {
        const bool some =
            (HAS_BIAS && f.p.a.tbias.data != nullptr) || (RELATIVE && f.relative_tangents != nullptr);
        const float scale = (float)f.p.scale;
#pragma unroll
        for (int i = 0; i < T::N / 2 && some; i++) {
            U[i] = mul_rn(U[i], scale);
        }
        if (HAS_BIAS && f.tbias_in_boxes) {
            each_in_boxes(1, n, [&](int i, float t) { U[i] = add_rn(U[i], t); });
        } else {
            add_tangents<F, T::FEATURES, false>(U, f.p, f.x, f.relative_tangents, place(n));
        }
        if (has_boxes()) {
            memory.b.release(n);
        }
        return some ? 1 : scale;
    }
    /* No sum reads P or R as they were any more. */
    VERB void drop_weights()
    {
        if constexpr (DROPS) {
#pragma unroll
            for (int i = 0; i < T::N / 4; i++) {
                const uint32_t halves = kept.halves(2 * i);
                P[i] &= halves;
                R[i] &= halves;
            }
        }
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
        make_scores(n);
        const float u[2] = {base::grow(S, 0, raise_of(0), factor[0]),
                            base::grow(S, 1, raise_of(1), factor[1])};
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

    /* P (tS - r) of a pair. */
    static VERB float weigh(float weight, float U, float scale, float r)
    {
        const float x = weight * fmaf(U, scale, -r);
        return HIDES && weight == 0 ? 0 : x;
    }
    /* P (tS - r) in the place of U, and r where it belongs. A row's mean can be far from r only if that of one of its
     * four lanes is: there is one vote of the warp, and numbers are exchanged only if it says so. */
    VERB void make_tangents(int n)
    {
        float of_tile[2];
        bool far[2];
        hold(P);
        const float scale = T::FEATURES == 0 ? (float)f.p.scale : scale_tangents(n);
#pragma unroll
        for (int i = 0; i < T::N / 4; i++) {
            const float2 weight = F::unpack(P[i]);
            U[2 * i] = weigh(weight.x, U[2 * i], scale, shift[i % 2]);
            U[2 * i + 1] = weigh(weight.y, U[2 * i + 1], scale, shift[i % 2]);
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
    /* r of the rows that are far from it becomes their mean; far: what the row's lanes found. A tile in which the row
     * sees nothing changes no bit, as it may be left out. */
    VERB void move_reference(const bool (&far)[2], const float (&of_tile)[2])
    {
        float move[2], weights[2];
        hold(P);
        base::sum_packed(P, weights);
        hold(P);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const float a = row_sum(tangent[half] + of_tile[half]), l = row_sum(sum[half]);
            const bool sees = !MASKED || row_max(weights[half]) > 0;
            const bool moves = row_max(far[half] ? 1.0f : 0.0f) > 0 && fabsf(a) > limit[half] * l && sees;
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
    /* Of keys that are hidden from every query too. */
    VERB void clear_hidden_values(int n) const
    {
        if constexpr (HIDES) {
            const uint8_t *const live = live_keys(f.p, f.x, at.s, at.kv_head) + base::key_of(n);
            if (has_dead_keys<T::N>(live) || base::has_hidden(n)) {
                base::clear_hidden(memory.v, n, live);
            }
        } else {
            base::clear_hidden_values(n);
        }
    }
    VERB void step(int n)
    {
        memory.k.wait(n);
        if (!HIDES && base::has_hidden(n)) {
            base::clear_hidden(memory.k, n, nullptr); /* U is not hidden pair by pair */
        }
        if constexpr (T::TURNS) {
            base::take_turn();
        }
        products_begin();
        start_all_scores(n);
        if constexpr (T::TURNS) {
            base::pass_turn();
        }
        if constexpr (T::FEATURES != 0) {
            find_features(n);
        }
        products_wait<CAPS ? 0 : 1>();
        hold(S);
        if constexpr (CAPS) {
            hold(U);
        }
        if constexpr (T::D == 64 && !CAPS) {
            before_next_wait(f.p.H, [&] { make_weights(n); });
        } else {
            make_weights(n); /* faster if it comes after them */
        }
        products_wait<0>();
        hold(U);
        memory.k.release(n);
        make_tangents(n);
        drop_weights();
        clear_hidden_values(n);
        memory.v.wait(n);
        hold(P);
        hold(R);
        hold(O);
        hold(TO);
        products_begin();
        start_all_sums(n);
        if constexpr (DROPS) {
            /* a serves: tO of a constant V is not 0 */
        } else if constexpr (T::D == 64) {
            sum_moved();
        } else {
            before_next_wait(f.p.H, [&] { sum_moved(); }); /* not before the products */
        }
        products_wait<0>();
        hold(O);
        hold(TO);
        memory.v.release(n);
    }
    /* Is there a tile n, after the one before it? */
    VERB bool has_tile(int n) const
    {
        if constexpr (MASKED) {
            return n == 0 || !memory.note(n - 1).last;
        }
        return n < at.count;
    }
    VERB void walk()
    {
        if constexpr (T::TURNS) {
            base::begin_turns();
        }
        barrier_wait(memory.q_full, 0);
#pragma unroll 1
        for (int n = 0; has_tile(n); n++) {
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
        if ((!o_boxes && a.o.data != nullptr) || !to_boxes || a.o_low.data != nullptr ||
            a.to_low.data != nullptr) {
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
            const float keys = row_sum(sum[half]), a = row_sum(tangent[half]);
            const float of_sink = base::weight_of_sink(half, raise_of(half)), l = keys + of_sink;
            const float ts = tsink();
            const bool sees = base::sees_keys(half);
            const double of_keys = sees ? (double)keys * shift[half] + a : 0;
            const double mu = l == 0 ? 0 : (of_keys + (double)of_sink * ts) / (sees ? l : of_sink);
            inverse[half] = !sees || l == 0 ? 0 : 1 / l;
            mean[half] = ((DROPS ? a : row_sum(moved[half])) + of_sink * (ts - shift[half])) * inverse[half];
            inverse[half] *= DROPS ? f.x.inverse_keep : 1;
            base::store_lse(half, keys, raise_of(half));
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
#define AGI_HOPPER_SET_KERNEL(map, format, D, CONSUMERS, N, STAGES, set)                                     \
    KERNEL void __launch_bounds__(128 * (CONSUMERS + 1), 1)                                                  \
        map##_##format##_d##D##_##set(const __grid_constant__ agi_hopper_jvp f)                              \
    {                                                                                                        \
        typedef jvp_shape<format, D, CONSUMERS, N, STAGES, AGI_SET_##set> T;                                 \
        run_queries<T, 2, jvp_consumer<T>>(f, {f.q, f.k, f.v});                                              \
    }
#define AGI_HOPPER_KERNELS(list, kernel, format) list(kernel, format)
AGI_HOPPER_KERNELS(AGI_HOPPER_jvp, AGI_HOPPER_KERNEL, AGI_FORMAT)
AGI_HOPPER_KERNELS(AGI_HOPPER_jvp_sets, AGI_HOPPER_SET_KERNEL, AGI_FORMAT)
