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
#include "cuda/kernels/hopper_owners.cuh"

/* Which matrices: 0 is Q or K, 1 is dO or V. */
VERB int operand_of(const agi_hopper_backward &, bool keys, int matrix)
{
    return keys ? (matrix == 0 ? AGI_CUDA_K : AGI_CUDA_V) : (matrix == 0 ? AGI_CUDA_Q : AGI_CUDA_DO);
}
VERB const agi_cuda_tensor_map &map_of(const agi_hopper_backward &f, bool keys, int matrix)
{
    return keys ? (matrix == 0 ? f.k : f.v) : (matrix == 0 ? f.q : f.d_o);
}

template <class T, bool KEYS>
struct backward_consumer : owner_consumer<T, KEYS, 2, KEYS ? 2 : 1, agi_hopper_backward> {
    typedef owner_consumer<T, KEYS, 2, KEYS ? 2 : 1, agi_hopper_backward> base;
    typedef typename T::F F;
    using base::at;
    using base::column;
    using base::f;
    using base::memory;
    using base::mine;
    using base::notes;
    static constexpr int SUMS = KEYS ? 2 : 1;
    static constexpr bool CAPPED = (T::FEATURES & AGI_HAS_SOFTCAP) != 0;
    static constexpr bool HIDES = hides_by_data(T::FEATURES), DROPS = (T::FEATURES & AGI_HAS_DROPOUT) != 0;

    float S[T::N / 2], dP[T::N / 2];
    float sum[SUMS][T::D / 2]; /* dZ times Q or K; with KEYS then P^T dO */
    uint32_t P[T::N / 4], dZ[T::N / 4];
    kept_weights<KEYS, T::N / 2> kept;
    mask_bits<KEYS, T::N / 2> visible; /* if the step is mixed */

    VERB backward_consumer(const agi_hopper_backward &call, const owner_notes<T, KEYS> &from,
                           const owner_memory<T, KEYS, 2> &shared)
        : base(call, from, shared)
    {
#pragma unroll
        for (int i = 0; i < SUMS * T::D / 2; i++) {
            sum[i / (T::D / 2)][i % (T::D / 2)] = 0;
        }
    }

    VERB void start_product(float (&to)[T::N / 2], int matrix, int n)
    {
        base::multiply(to, matrix, matrix, n);
        products_commit();
    }

    VERB const owner_step &about(int n) const
    {
        return notes.step(n);
    }
    VERB fragment_place place(int n) const
    {
        return {at.s, about(n).head, base::row, about(n).row};
    }

    /* ---- Rows that mask and bias hide ---- */

    /* Has row r of the tile no visible pair at all? Of queries their L says it: `statistics`. */
    VERB bool is_dead(int n, int r) const
    {
        if constexpr (!KEYS) {
            return live_keys(f.p, f.x, at.s, at.kv_head)[about(n).row + r] == 0;
        }
        const uint32_t L = memory.ring.tile(n) + memory.TILES + r * AGI_CUDA_STATS * 4;
        const ag_tensor &t = f.p.a.sink;
        const float none = t.data == nullptr
                               ? INFINITY
                               : load_aux(f.p.aux_dtype, t.data, about(n).head * t.strides[1], 0.0f);
        return shared_load(L) == INFINITY || (shared_load(L) == none && shared_load(L + 4) == 0);
    }
    /* Has the tile such rows? The same answer in the whole warp. */
    VERB bool has_dead_rows(int n) const
    {
        if constexpr (!KEYS) {
            return has_dead_keys<T::N>(live_keys(f.p, f.x, at.s, at.kv_head) + about(n).row);
        }
        const int lane = (int)threadIdx.x % 32;
        bool any = false;
#pragma unroll
        for (int r = 0; r < T::N; r += 32) {
            any |= is_dead(n, r + lane);
        }
        return __any_sync(~0u, any);
    }
    VERB void clear_hidden(int n)
    {
        if constexpr (!HIDES) {
            base::clear_hidden(n);
        } else if (about(n).clear || has_dead_rows(n)) {
            base::template clear_rows<SUMS>(0, n, [&](int r) { return is_dead(n, r); });
        }
    }

    /* ---- Weights ---- */

    VERB row_stats<float> stats(int n, int i) const
    {
        if constexpr (!KEYS) {
            return mine[i / 2 % 2];
        } else {
            const uint32_t at_column = memory.ring.tile(n) + memory.TILES + column(i) * AGI_CUDA_STATS * 4;
            return {shared_load(at_column), shared_load(at_column + 4), shared_load(at_column + 8), 0, 0, 0};
        }
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
        if constexpr (T::FEATURES != 0) {
            add_features<F, T::FEATURES, KEYS>(S, f.p, f.x, place(n));
        }
        if (base::is_mixed(n)) {
            visible.hide(S, -INFINITY);
        }
    }
    /* P in the place of Z, 0 where a pair is hidden. */
    VERB void make_weights(int n)
    {
        make_scores(n);
#pragma unroll
        for (int i = 0; i < T::N / 2; i++) {
            const row_stats<float> r = stats(n, i);
            S[i] = weight_at<F>(S[i], r.lse, r.lse_low);
        }
        base::hide(S, n);
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
        if (base::is_mixed(n)) {
            visible.find(f.p, f.x, place(n));
        }
        products_wait<CAPPED ? 0 : 1>();
        hold(S);
        if constexpr (CAPPED) {
            hold(dP);
            make_weights(n);
        } else {
            before_next_wait(f.p.H, [&] { make_weights(n); });
        }
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
        base::start_sum(sum[0], dZ, 0, n);
        if constexpr (KEYS) {
            base::start_sum(sum[1], P, 1, n);
        }
        products_commit();
        products_wait<0>();
        hold(sum[0]);
        if constexpr (KEYS) {
            hold(sum[1]);
        }
        memory.ring.release(n);
    }

    /* ---- Results ---- */

    VERB void finish()
    {
        const warp_rows<T::D> rows = base::begin_results();
        const float scale = (float)f.p.scale;
        if constexpr (KEYS) {
            base::store(rows, sum[0], f.p.a.dk, AG_ACC_DK, scale, f.p.Dk);
            base::store(rows, sum[1], f.p.a.dv, AG_ACC_DV,
                        (F::RAISED ? 0x1p-14f : 1) * (DROPS ? f.x.inverse_keep : 1), f.p.Dv);
        } else {
            base::store(rows, sum[0], f.p.a.dq, AG_ACC_DQ, scale, f.p.Dk);
        }
    }
};

/* ---- The kernels ---- */

template <class T> VERB void run_hopper_dkdv(const agi_hopper_backward &f)
{
    run_owners<backward_consumer<T, true>>(f);
}
template <class T> VERB void run_hopper_dq(const agi_hopper_backward &f)
{
    run_owners<backward_consumer<T, false>>(f);
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
