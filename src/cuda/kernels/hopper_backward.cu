/* vjp on Hopper, in two kernels: every element of a gradient has one owner and one order of summation, and no block
 * waits for another.
 *
 *     hopper_dkdv    owns keys     K V, streams Q dO     Z^T = K Q^T, dP^T = V dO^T    dV += P^T dO, dK += dZ^T Q
 *     hopper_dq      owns queries  Q dO, streams K V     Z = Q K^T, dP = dO V^T        dQ += dZ K
 *
 * Warpgroup 0 copies, the others own 64 rows each, as in hopper_forward.cu. P and dZ stay in the registers in which the
 * products leave Z and dP, and from which the next products take their first operand. L and D of the queries are those
 * of `statistics`. */
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
    using base::column;
    using base::f;
    using base::memory;
    using base::mine;
    static constexpr float RAISE = F::RAISED ? 14 : 0; /* P is larger by 2^RAISE as an operand */
    static constexpr int SUMS = KEYS ? 2 : 1;

    float S[T::N / 2], dP[T::N / 2];
    float sum[SUMS][T::D / 2]; /* dZ times Q or K; with KEYS then P^T dO */
    uint32_t P[T::N / 4], dZ[T::N / 4];

    VERB backward_consumer(const agi_hopper_backward &call, const owner_notes<T, KEYS> &notes,
                           const owner_memory<T, KEYS, 2> &shared)
        : base(call, notes, shared)
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
    /* P in the place of Z, 0 where a pair is hidden. */
    VERB void make_weights(int n)
    {
        constexpr float LOG2_E = 1.4426950408889634f;
        const float scale = (float)f.p.scale;
#pragma unroll
        for (int i = 0; i < T::N / 2; i++) {
            const row_stats<float> r = stats(n, i);
            const float x = add_rn(add_rn(mul_rn(S[i], scale), -r.lse), -r.lse_low);
            S[i] = exp2_fast(fmaf(x, LOG2_E, RAISE));
        }
        base::hide(S, n);
    }
    /* dZ = P o (dP - D), without the scale. */
    VERB void make_gradients(int n)
    {
        constexpr float LOWER = F::RAISED ? 0x1p-14f : 1;
#pragma unroll
        for (int i = 0; i < T::N / 2; i++) {
            const float g = S[i] * LOWER * (dP[i] - stats(n, i).D);
            dP[i] = S[i] == 0 ? 0 : g; /* behind a hidden pair dP may be NaN */
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
        base::clear_hidden(n);
        products_begin();
        start_product(S, 0, n);
        start_product(dP, 1, n);
        products_wait<1>();
        hold(S);
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
            base::store(rows, sum[1], f.p.a.dv, AG_ACC_DV, F::RAISED ? 0x1p-14f : 1, f.p.Dv);
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
#define AGI_HOPPER_KERNELS(list, format) list(AGI_HOPPER_KERNEL, format)
AGI_HOPPER_KERNELS(AGI_HOPPER_backward, AGI_FORMAT)
