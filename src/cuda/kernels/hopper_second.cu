/* vjp_jvp on Hopper, in two kernels as vjp (hopper_backward.cu): every element of a result has one owner and one order
 * of summation, and no block waits for another.
 *
 *     hopper_tdkdv   owns keys     K tK V tV, streams Q tQ dO tdO    tdV += tP^T dO + P^T tdO, tdK += tdZ^T Q + dZ^T tQ
 *     hopper_tdq     owns queries  Q tQ dO tdO, streams K tK V tV    tdQ += tdZ K + dZ tK
 *
 * Scores, transposed where keys are the owners; a tangent that the call lacks is zero:
 *
 *     Z = Q K^T    tZ = tQ K^T + Q tK^T    dP = dO V^T    tdP = dO tV^T + tdO V^T
 *
 * L, mu, D and tD of the queries are those of `statistics`. float16 weights are not raised as in vjp, since tP, which
 * is summed together with P, has no bound. */
#include "cuda/kernels/hopper_owners.cuh"
#include "cuda/kernels/hopper_second_operands.cuh"

template <class T, bool KEYS>
struct second_consumer : owner_consumer<T, KEYS, MATRICES, KEYS ? 4 : 2, agi_hopper_second> {
    typedef owner_consumer<T, KEYS, MATRICES, KEYS ? 4 : 2, agi_hopper_second> base;
    typedef typename T::F F;
    using base::f;
    using base::memory;
    using base::mine;
    static constexpr int SUMS = KEYS ? 2 : 1;

    /* A tile's scores, then its weights P, tP, dZ, tdZ; the latter two without the scale. */
    float Z[T::N / 2], tZ[T::N / 2], dP[T::N / 2], tdP[T::N / 2];
    uint32_t weights[4][T::N / 4]; /* P, tP, dZ, tdZ as operands */
    float sum[SUMS][T::D / 2];     /* tdQ or tdK; tdV */

    VERB second_consumer(const agi_hopper_second &call, const owner_notes<T, KEYS> &notes,
                         const owner_memory<T, KEYS, MATRICES> &shared)
        : base(call, notes, shared)
    {
#pragma unroll
        for (int i = 0; i < SUMS * T::D / 2; i++) {
            sum[i / (T::D / 2)][i % (T::D / 2)] = 0;
        }
    }

    /* ---- Scores ---- */

    template <bool ADD> VERB void multiply(float (&to)[T::N / 2], int of_queries, int of_keys, int n)
    {
        base::template multiply<ADD>(to, KEYS ? of_keys : of_queries, KEYS ? of_queries : of_keys, n);
    }
    /* tZ is summed in the order of jvp, whose mu belongs to these bits. */
    VERB void start_scores(int n)
    {
        multiply<false>(Z, QK, QK, n);
        multiply<false>(tZ, T_QK, QK, n);
        multiply<true>(tZ, QK, T_QK, n);
        products_commit();
        multiply<false>(dP, OV, OV, n);
        multiply<false>(tdP, OV, T_OV, n);
        multiply<true>(tdP, T_OV, OV, n);
        products_commit();
    }

    /* ---- Weights ---- */

    /* Calls g(i, r) for each number i of a tile; r: the statistics of its query, with tD only if TD is true. */
    template <bool TD, class Function> VERB void each_number(int n, Function g)
    {
#pragma unroll
        for (int pair = 0; pair < T::N / 4; pair++) {
            const int i = pair / 2 * 4 + pair % 2; /* and i + 2, of the same column */
            if constexpr (KEYS) {
                const uint32_t stats =
                    memory.ring.tile(n) + memory.TILES + base::column(i) * AGI_CUDA_STATS * 4;
                float x[4];
                shared_load(x, stats);
                const row_stats<float> r = {x[0], x[1], x[2], x[3], TD ? shared_load(stats + 16) : 0, 0};
                g(i, r);
                g(i + 2, r);
            } else {
                g(i, mine[0]);
                g(i + 2, mine[1]);
            }
        }
    }
    /* P = exp(Z scale - L) and tP = P o (tZ scale - mu), both 0 where a pair is hidden. */
    VERB void make_weights(int n)
    {
        constexpr float LOG2_E = 1.4426950408889634f;
        const float scale = (float)f.p.scale;
        each_number<false>(n, [&](int i, const row_stats<float> &r) {
            const float x = add_rn(add_rn(mul_rn(Z[i], scale), -r.lse), -r.lse_low);
            Z[i] = exp2_fast(x * LOG2_E);
            tZ[i] = mul_rn(tZ[i], scale) - r.mu;
        });
        base::hide(Z, n);
        base::clear_behind(Z, tZ, n);
#pragma unroll
        for (int i = 0; i < T::N / 2; i++) {
            tZ[i] *= Z[i];
        }
    }
    /* dZ = P o (dP - D) and tdZ = tP o (dP - D) + P o (tdP - tD). */
    VERB void make_gradients(int n)
    {
        each_number<true>(n, [&](int i, const row_stats<float> &r) {
            const float P = Z[i], tP = tZ[i], dP_D = dP[i] - r.D;
            dP[i] = P * dP_D;
            tdP[i] = fmaf(tP, dP_D, P * (tdP[i] - r.tD));
        });
        base::clear_behind(Z, dP, n);
        base::clear_behind(Z, tdP, n);
    }
    VERB void pack_all()
    {
#pragma unroll
        for (int i = 0; i < T::N / 4; i++) {
            weights[0][i] = F::pack(Z[2 * i], Z[2 * i + 1]);
            weights[1][i] = F::pack(tZ[2 * i], tZ[2 * i + 1]);
            weights[2][i] = F::pack(dP[2 * i], dP[2 * i + 1]);
            weights[3][i] = F::pack(tdP[2 * i], tdP[2 * i + 1]);
        }
    }

    /* ---- The walk ---- */

    VERB void hold_sums()
    {
        hold(sum[0]);
        if constexpr (KEYS) {
            hold(sum[1]);
        }
    }
    VERB void add_sums(int n)
    {
        hold(weights[2]);
        hold(weights[3]);
        if constexpr (KEYS) {
            hold(weights[0]);
            hold(weights[1]);
        }
        hold_sums();
        products_begin();
        base::start_sum(sum[0], weights[3], QK, n);
        base::start_sum(sum[0], weights[2], T_QK, n);
        if constexpr (KEYS) {
            base::start_sum(sum[1], weights[1], OV, n);
            base::start_sum(sum[1], weights[0], T_OV, n);
        }
        products_commit();
        products_wait<0>();
        hold_sums();
    }
    VERB void step(int n)
    {
        memory.ring.wait(n);
        base::clear_hidden(n);
        products_begin();
        start_scores(n);
        products_wait<1>();
        hold(Z);
        hold(tZ);
        make_weights(n);
        products_wait<0>();
        hold(dP);
        hold(tdP);
        make_gradients(n);
        pack_all();
        add_sums(n);
        memory.ring.release(n);
    }

    VERB void finish()
    {
        const warp_rows<T::D> rows = base::begin_results();
        const float scale = (float)f.p.scale;
        if constexpr (KEYS) {
            base::store(rows, sum[0], f.p.a.tdk, AG_ACC_TDK, scale, f.p.Dk);
            base::store(rows, sum[1], f.p.a.tdv, AG_ACC_TDV, 1, f.p.Dv);
        } else {
            base::store(rows, sum[0], f.p.a.tdq, AG_ACC_TDQ, scale, f.p.Dk);
        }
    }
};

/* ---- The kernels ---- */

template <class T> VERB void run_hopper_tdkdv(const agi_hopper_second &f)
{
    run_owners<second_consumer<T, true>>(f);
}
template <class T> VERB void run_hopper_tdq(const agi_hopper_second &f)
{
    run_owners<second_consumer<T, false>>(f);
}

#define AGI_HOPPER_KERNEL(map, format, D, CONSUMERS, N, STAGES)                                              \
    KERNEL void __launch_bounds__(128 * (CONSUMERS + 1), 1)                                                  \
        map##_##format##_d##D(const __grid_constant__ agi_hopper_second f)                                   \
    {                                                                                                        \
        run_##map<hopper_shape<format, D, CONSUMERS, N, STAGES>>(f);                                         \
    }
#define AGI_HOPPER_KERNELS(list, format) list(AGI_HOPPER_KERNEL, format)
AGI_HOPPER_KERNELS(AGI_HOPPER_second, AGI_FORMAT)
