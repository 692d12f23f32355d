/* forward in float32 on Hopper. Q, K and V are two planes of float16 with a power of two for each 64 rows, made by
 * `prepare`; a product of two numbers is three of their planes, the small ones first (formats.cuh). hopper_queries.cuh
 * has what it shares with jvp: the second plane of a matrix comes where jvp has the matrix's tangent.
 *
 * Tensor cores cut sums off instead of rounding them. So a sum is never left to them for long: the scores of 32
 * channels start from zero, and so does P V of a tile, and both are added up by rounded sums. The scores have the order
 * of the portable kernels (score_products in tiles.cuh) and so their bits: the other maps recompute them there.
 *
 * In its turn at the tensor cores a warpgroup has P V of one tile and the scores of the next. P V is added to O' while
 * the scores are multiplied: all of them, or the first chain if there are registers for no more beside P V. Then the
 * weights are made, in the turn of another warpgroup.
 *
 * Weights are 2^(S log2 e - u), as in hopper_queries.cuh; as operands they are larger by 2^14, the range of float16. */
#include "cuda/kernels/hopper_queries.cuh"
#include "cuda/kernels/rows.cuh"

template <class F, int D, int CONSUMERS, int N, int STAGES>
struct planes_shape : hopper_shape<F, D, CONSUMERS, N, STAGES> {
    typedef float real;
    static constexpr int CHAIN = 2, CHAINS = D / 16 / CHAIN; /* of score_products in tiles.cuh */
    static constexpr int AHEAD = CONSUMERS == 2 ? 1 : 0;     /* chains that have registers beside P V */
    static constexpr int PRODUCER_REGISTERS = CONSUMERS == 2 ? 24 : 32;
    static constexpr int CONSUMER_REGISTERS = CONSUMERS == 2 ? 240 : 160;
    static constexpr bool PLACE_IN_MEMORY = true;
    static_assert(N == AGI_CUDA_SCALE_ROWS, "a tile has one power of two");
};

template <class T> struct planes_consumer : query_consumer<T, 2> {
    typedef query_consumer<T, 2> base;
    typedef typename T::F F;
    using base::at;
    using base::memory;
    using base::p;
    using base::w;
    typedef float chains[T::CHAINS][T::N / 2];

    const agi_hopper_planes &f;
    float O[T::D / 2];
    uint32_t W[F::PLANES][T::N / 4]; /* the weights as operands */
    long_sum<T> all[2];              /* l without the sink */
    float keep[2];                   /* O' before the last tile shrinks by it */
    float q_inverse, v_inverse;      /* of the queries; of V in the last tile */

    VERB planes_consumer(const agi_hopper_planes &call, const query_block<T> &block,
                         const query_memory<T, 2> &shared)
        : base(call.p, block, shared, 0), f(call)
    {
        const int row = min(at.row + w * 64, at.s.n_q - 1);
        q_inverse = inverse_at(AGI_CUDA_Q, at.h * p.q_rows + at.s.q_copy, row, at.s.n_q);
        all[0].begin(0);
        all[1].begin(0);
#pragma unroll
        for (int i = 0; i < T::D / 2; i++) {
            O[i] = 0;
        }
    }

    /* The power of two of a row; first: row 0 of the sequence in the copy of a matrix. */
    VERB float inverse_at(int operand, int64_t first, int row, int count) const
    {
        return count > 0 ? p.m[operand].inverse[(first + row) / AGI_CUDA_SCALE_ROWS] : 1.0f;
    }
    VERB float inverse_of_tile(int operand, int n) const
    {
        return inverse_at(operand, at.kv_head * p.k_rows + at.s.k_copy, at.key(n), at.s.n_k);
    }

    /* ---- Products ---- */

    /* 32 channels of the scores of tile n, all small products first. */
    VERB void start_chain(float (&to)[T::N / 2], int chain, int n) const
    {
        const uint32_t queries = (uint32_t)here((int)(memory.q + w * T::SLAB));
#pragma unroll
        for (int i = 0; i < F::PRODUCTS; i++) {
            const operand_tile q = rows_of(queries + F::first(i) * T::OWN);
            const operand_tile k = rows_of(memory.k.tile(n) + F::second(i) * T::TILE);
#pragma unroll
            for (int step = 0; step < T::CHAIN; step++) {
                const int channels = chain * T::CHAIN + step;
                const uint64_t a = operand_at(q, channel_step(channels, T::CONSUMERS * T::SLAB));
                const uint64_t b = operand_at(k, channel_step(channels, T::BOX));
                if (i == 0 && step == 0) {
                    product_first<F, T::N>(to, a, b);
                } else {
                    product_next<F, T::N>(to, a, b);
                }
            }
        }
    }
    /* Chains FIRST to END - 1. */
    template <int FIRST, int END> VERB void start_chains(chains &to, int n) const
    {
#pragma unroll
        for (int chain = FIRST; chain < END; chain++) {
            start_chain(to[chain], chain, n);
        }
        products_commit();
    }
    /* P V of tile n. */
    VERB void start_sums(float (&to)[T::D / 2], int n) const
    {
#pragma unroll
        for (int i = 0; i < F::PRODUCTS; i++) {
            const operand_tile v = columns_of(memory.v.tile(n) + F::second(i) * T::TILE, T::BOX);
#pragma unroll
            for (int step = 0; step < T::N / 16; step++) {
                const uint32_t *const a = W[F::first(i)] + 4 * step;
                if (i == 0 && step == 0) {
                    product_weights_first<F, T::D>(to, a, operand_at(v, 0));
                } else {
                    product_weights<F, T::D>(to, a, operand_at(v, step * 2048));
                }
            }
        }
        products_commit();
    }
    VERB void add_sums(const float (&part)[T::D / 2])
    {
        const float down = v_inverse * 0x1p-14f;
#pragma unroll
        for (int i = 0; i < T::D / 2; i++) {
            O[i] = fmaf(part[i], down, mul_rn(O[i], keep[i / 2 % 2]));
        }
    }

    /* ---- Weights ---- */

    /* S of tile n from its chains, in the place of the first. Powers of two change no bit. */
    VERB void make_scores(chains &t, float k_inverse, int n) const
    {
        const float factor = q_inverse * k_inverse * f.scale;
#pragma unroll
        for (int i = 0; i < T::N / 2; i++) {
            float x = t[0][i];
#pragma unroll
            for (int chain = 1; chain < T::CHAINS; chain++) {
                x = add_rn(x, t[chain][i]);
            }
            t[0][i] = mul_rn(x, factor);
        }
        base::hide_pairs(t[0], n);
    }
    VERB void make_weights(float (&S)[T::N / 2])
    {
        const float u[2] = {base::grow(S, 0, 0, keep[0]), base::grow(S, 1, 0, keep[1])};
        float of_tile[2][2] = {};
#pragma unroll
        for (int i = 0; i < T::N / 2; i++) {
            S[i] = exp2_fast(fmaf(S[i], LOG2_E, -u[i / 2 % 2]));
            of_tile[i / 2 % 2][i % 2] += S[i];
        }
#pragma unroll
        for (int half = 0; half < 2; half++) {
            all[half].multiply(keep[half]);
            all[half].add(of_tile[half][0] + of_tile[half][1]);
        }
#pragma unroll
        for (int i = 0; i < T::N / 4; i++) {
            uint32_t plane[F::PLANES];
            split<F>(S[2 * i] * 0x1p14f, S[2 * i + 1] * 0x1p14f, plane);
            W[0][i] = plane[0];
            W[1][i] = plane[1];
        }
    }

    /* ---- The walk ---- */

    /* When the chains of tile n are done. */
    VERB void finish_scores(chains &t, float k_inverse, int n)
    {
        products_wait<0>();
#pragma unroll
        for (int chain = 0; chain < T::CHAINS; chain++) {
            hold(t[chain]);
        }
        memory.k.release(n);
        make_scores(t, k_inverse, n);
        make_weights(t[0]);
        base::clear_hidden_values(n);
    }
    VERB void first_keys()
    {
        chains t;
        const float k_inverse = inverse_of_tile(AGI_CUDA_K, 0);
        v_inverse = inverse_of_tile(AGI_CUDA_V, 0);
        barrier_wait(memory.q_full, 0);
        memory.k.wait(0);
        products_begin();
        start_chains<0, T::CHAINS>(t, 0);
        finish_scores(t, k_inverse, 0);
    }
    /* O' with tile n - 1, and the weights of tile n. */
    VERB void next_keys(int n)
    {
        chains t;
        float part[T::D / 2];
        const float k_inverse = inverse_of_tile(AGI_CUDA_K, n),
                    next_v_inverse = inverse_of_tile(AGI_CUDA_V, n);
        memory.k.wait(n);
        memory.v.wait(n - 1);
        base::take_turn();
        hold(W[0]);
        hold(W[1]);
        products_begin();
        start_sums(part, n - 1);
        start_chains<0, T::AHEAD>(t, n);
        products_wait<1>();
        hold(part);
        memory.v.release(n - 1);
        add_sums(part);
        products_begin();
        start_chains<T::AHEAD, T::CHAINS>(t, n);
        base::pass_turn();
        v_inverse = next_v_inverse;
        finish_scores(t, k_inverse, n);
    }
    VERB void last_keys(int n)
    {
        float part[T::D / 2];
        memory.v.wait(n);
        hold(W[0]);
        hold(W[1]);
        products_begin();
        start_sums(part, n);
        products_wait<0>();
        hold(part);
        add_sums(part);
    }
    VERB void walk()
    {
        base::begin_turns();
        first_keys();
#pragma unroll 1
        for (int n = 1; n < at.count; n++) {
            next_keys(n);
        }
        last_keys(at.count - 1);
    }

    /* ---- Results ---- */

    /* O in float32, two columns at a time. */
    VERB void store_pairs(const ag_tensor &o) const
    {
        const int column = (int)threadIdx.x % 4 * 2;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int r = base::row + 8 * half;
            float *const to = (float *)o.data + element_at(o, at.s.view, at.h, at.s.q0 + r) + column;
#pragma unroll
            for (int i = 0; i < T::D / 8; i++) {
                if (r < at.rows_of_tensor(p) && i * 8 + column < p.Dv) {
                    *(float2 *)(to + i * 8) = make_float2(O[4 * i + 2 * half], O[4 * i + 2 * half + 1]);
                }
            }
        }
    }
    /* O = O' / l; 0 if the row sees nothing or is not there. */
    VERB void finish()
    {
        float inverse[2];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const float keys = row_sum(all[half].value()), l = keys + base::weight_of_sink(half, 0);
            base::store_lse(half, keys, 0);
            inverse[half] = base::exists(half) && base::sees_keys(half) && l != 0 ? 1 / l : 0;
        }
#pragma unroll
        for (int i = 0; i < T::D / 2; i++) {
            O[i] = inverse[i / 2 % 2] != 0 ? O[i] * inverse[i / 2 % 2] : 0;
        }
        const output out = {&p.a.o, p.out_dtype, (p.a.accumulate & AG_ACC_O) != 0};
        if (out.dtype == AG_F32 && has_pairs(out, p.Dv)) {
            store_pairs(p.a.o);
            return;
        }
        base::finish_tiles();
        base::store_rows(O, &p.a.o, p.a.o_low, AG_ACC_O);
    }
};

#define AGI_HOPPER_KERNEL(map, format, D, CONSUMERS, N, STAGES)                                              \
    KERNEL void __launch_bounds__(128 * (CONSUMERS + 1), 1)                                                  \
        map##_##format##_d##D(const __grid_constant__ agi_hopper_planes f)                                   \
    {                                                                                                        \
        typedef planes_shape<format, D, CONSUMERS, N, STAGES> T;                                             \
        run_queries<T, 2, planes_consumer<T>>(f, {f.q, f.k, f.v});                                           \
    }
AGI_HOPPER_forward_f32(AGI_HOPPER_KERNEL, f32)
