/* forward and jvp: the online softmax, which finds the maximum m and the sum l of a row on the way. jvp carries along
 * r, tS at the maximum, and a = sum exp(S - m) (tS - r), so that nothing cancels. decode is forward on a split of the
 * keys. */
#pragma once
#include "cuda/kernels/rows.cuh"

struct forward_map {
    static constexpr bool KEYS = false;
    static constexpr int OWN = 1, STREAM = 2, TILES = 1, PRODUCTS = 1, COLUMNS = 1, SUMS = 1;
    static constexpr VERB int own(int)
    {
        return AGI_CUDA_Q;
    }
    static constexpr VERB int stream(int n)
    {
        return n == 0 ? AGI_CUDA_K : AGI_CUDA_V;
    }
    static constexpr VERB score_product product(int)
    {
        return {0, 0, 0};
    }
    static constexpr VERB weight_sum sum(int)
    {
        return {0, 0, 1, true};
    }
    static VERB bool wanted(const agi_cuda_params &, int)
    {
        return true;
    }
};

struct jvp_map {
    static constexpr bool KEYS = false;
    static constexpr int OWN = 2, STREAM = 4, TILES = 2, PRODUCTS = 3, COLUMNS = 2, SUMS = 3;
    static constexpr VERB int own(int n)
    {
        return n == 0 ? AGI_CUDA_Q : AGI_CUDA_TQ;
    }
    static constexpr VERB int stream(int n)
    {
        return n == 0 ? AGI_CUDA_K : n == 1 ? AGI_CUDA_V : n == 2 ? AGI_CUDA_TK : AGI_CUDA_TV;
    }
    static constexpr VERB score_product product(int n)
    {
        return n == 0 ? score_product{0, 0, 0} : n == 1 ? score_product{1, 1, 0} : score_product{1, 0, 2};
    }
    static constexpr VERB weight_sum sum(int n)
    {
        return n == 0   ? weight_sum{0, 0, 1, true}
               : n == 1 ? weight_sum{1, 1, 1, false}
                        : weight_sum{1, 0, 3, true};
    }
    static VERB bool wanted(const agi_cuda_params &, int)
    {
        return true;
    }
};

template <class T, bool TANGENT> struct online {
    typedef typename T::real real;
    columns<T> c[1 + TANGENT];                  /* O', T' */
    real top[T::M][2], shift[T::M][2];          /* m, r */
    long_sum<T> sum[T::M][2], tangent[T::M][2]; /* l, a: spread over the four lanes of a row */

    static VERB block_place<T> place(const agi_cuda_params &p)
    {
        return find_block<forward_map, T>(p);
    }
    VERB void begin(const agi_cuda_params &p, const block_place<T> &at)
    {
        const bool sink = p.a.sink.data != nullptr, first = threadIdx.x % 4 == 0;
        const real s = sink ? sink_of<real>(p, p.a.sink, at.x.h) : -(real)INFINITY;
        const real ts = TANGENT && p.a.tsink.data != nullptr ? sink_of<real>(p, p.a.tsink, at.x.h) : 0;
#pragma unroll
        for (int n = 0; n < 1 + TANGENT; n++) {
            clear<T>(c[n]);
        }
#pragma unroll
        for (int i = 0; i < 2 * T::M; i++) {
            top[i / 2][i % 2] = s;
            sum[i / 2][i % 2].begin(sink && first ? 1 : 0);
            shift[i / 2][i % 2] = ts;
            tangent[i / 2][i % 2].begin(0);
        }
    }

    /* S, with hidden pairs minus infinity, in t[0]; tS in t[1]. */
    template <class Map>
    static VERB void scores(const agi_cuda_params &p, const tile_view<Map, T> &v, tile<T> (&t)[Map::TILES])
    {
        each_element<T>([&](int m, int half, int n, int c) {
            const int at = 2 * half + c;
            const bool visible = !T::FULL || v.visible(m, half, n, c); /* plain: hidden below */
            const capped<real> z = cap<T>(p, mul_rn(t[0].x[m][n][at], (real)p.scale));
            t[0].x[m][n][at] = visible ? score<Map, T>(v, z, m, n, at) : -(real)INFINITY;
            if constexpr (TANGENT) {
                const int i = v.query(m, half, n, c), j = v.key(m, half, n, c);
                const real tZ = mul_rn(t[1].x[m][n][at], (real)p.scale);
                t[1].x[m][n][at] =
                    visible ? tZ * z.phi1 + bias_tangent<T>(p, p.a.tbias, p.a.ttable, v.x, i, j) : 0;
            }
        });
        each_hidden<Map, T>(v, [&](int m, int n, int at) {
            t[0].x[m][n][at] = -(real)INFINITY;
            if constexpr (TANGENT) {
                t[1].x[m][n][at] = 0;
            }
        });
    }

    /* tS where S has the row's new maximum; of several the largest. */
    template <int TILES> static VERB real tangent_at(const tile<T> (&t)[TILES], real most, int m, int half)
    {
        real found = -(real)INFINITY;
#pragma unroll
        for (int i = 0; i < T::N / 4; i++) {
            const int n = i / 2, at = 2 * half + i % 2;
            found = t[0].x[m][n][at] == most ? fmax(found, t[TILES - 1].x[m][n][at]) : found;
        }
        return row_max(found);
    }

    /* Takes the row's maximum into account: what was summed before shrinks by `factor`, and T' moves by `move` O'. */
    template <int TILES> VERB bool grow(const tile<T> (&t)[TILES], int m, int half, real &factor, real &move)
    {
        real most = top[m][half];
#pragma unroll
        for (int i = 0; i < T::N / 4; i++) {
            most = fmax(most, t[0].x[m][i / 2][2 * half + i % 2]);
        }
        most = row_max(most);
        const bool grown = most > top[m][half];
        factor = grown ? exp_fast(top[m][half] - most) : 1;
        move = 0;
        if constexpr (TANGENT) {
            const real found = tangent_at(t, most, m, half);
            if (grown) {
                move = shift[m][half] - found;
                shift[m][half] = found;
                tangent[m][half].add(move * sum[m][half].value());
                tangent[m][half].multiply(factor);
            }
        }
        top[m][half] = most;
        sum[m][half].multiply(factor);
        return grown;
    }

    VERB void rescale(const real (&factor)[T::M][2], const real (&move)[T::M][2])
    {
#pragma unroll
        for (int m = 0; m < T::M; m++) {
#pragma unroll
            for (int i = 0; i < T::C / 2; i++) {
                const int half = i / 2 % 2;
                real &o = c[0].x[m][i / 4][i % 4], &to = c[TANGENT].x[m][i / 4][i % 4];
                if constexpr (TANGENT) {
                    to = (to + move[m][half] * o) * factor[m][half];
                }
                o *= factor[m][half];
            }
        }
    }

    /* Forward's weights of a plain kernel in 16 bits, as operands: see packed_weights in tiles.cuh. What is summed into
     * l is what multiplies V. */
    VERB void pack_exponentials(tile<T> &t)
    {
        typedef typename T::F F;
        const float up = F::RAISED ? 0x1p14f : 1.0f, down = F::RAISED ? 0x1p-14f : 1.0f;
#pragma unroll
        for (int i = 0; i < 2 * T::M; i++) {
            const int m = i / 2, half = i % 2;
            const float base = top[m][half] == -INFINITY ? 0 : top[m][half];
            float w_sum = 0;
#pragma unroll
            for (int n = 0; n < T::N / 8; n++) {
                float(&x)[4] = t.x[m][n];
                const uint32_t pair =
                    F::pack(exp_fast(x[2 * half] - base) * up, exp_fast(x[2 * half + 1] - base) * up);
                const float2 w = F::unpack(pair);
                w_sum = add_rn(add_rn(w_sum, w.x), w.y);
                x[2 * half] = __uint_as_float(pair);
            }
            sum[m][half].add(w_sum * down);
        }
    }

    /* exp(S - m), the number that multiplies V and is summed into l; exp(S - m) (tS - r). */
    template <class Map>
    VERB void exponentials(const agi_cuda_params &p, const tile_view<Map, T> &v, tile<T> (&t)[Map::TILES])
    {
        real w_sum[T::M][2] = {}, tw_sum[T::M][2] = {};
        each_element<T>([&](int m, int half, int n, int c) {
            const int at = 2 * half + c;
            const bool keep = kept<T>(p, v.x, v.query(m, half, n, c), v.key(m, half, n, c));
            const real base = top[m][half] == -(real)INFINITY ? 0 : top[m][half];
            const real w = as_operand<typename T::F>(exp_fast(t[0].x[m][n][at] - base));
            w_sum[m][half] = add_rn(w_sum[m][half], w);
            t[0].x[m][n][at] = keep ? w : 0;
            if constexpr (TANGENT) {
                real tw = w == 0 ? 0 : w * (t[1].x[m][n][at] - shift[m][half]);
                tw = T::F::RAISED ? tw : as_operand<typename T::F>(tw);
                tw_sum[m][half] += tw;
                t[1].x[m][n][at] = keep ? tw : 0;
            }
        });
#pragma unroll
        for (int i = 0; i < 2 * T::M; i++) {
            sum[i / 2][i % 2].add(w_sum[i / 2][i % 2]);
            if constexpr (TANGENT) {
                tangent[i / 2][i % 2].add(tw_sum[i / 2][i % 2]);
            }
        }
    }

    template <class Map>
    VERB void weights(const agi_cuda_params &p, const tile_view<Map, T> &v, tile<T> (&t)[Map::TILES],
                      const real *)
    {
        real factor[T::M][2], move[T::M][2];
        bool grown = false;
        scores<Map>(p, v, t);
#pragma unroll
        for (int i = 0; i < 2 * T::M; i++) {
            grown |= grow(t, i / 2, i % 2, factor[i / 2][i % 2], move[i / 2][i % 2]);
        }
        if (__any_sync(~0u, grown)) {
            rescale(factor, move);
        }
        if constexpr (packed_weights<T, Map>) {
            pack_exponentials(t[0]);
        } else {
            exponentials<Map>(p, v, t);
        }
    }

    /* O = O' / l, L = m + log l, mu = r + a / l, tO = T' / l - (mu - r) O; l = 0: the row sees nothing. */
    VERB void finish(const agi_cuda_params &p, const block_place<T> &at)
    {
        real all_keys[T::M][2], inverse[T::M][2], mu[T::M][2]; /* l, 1 / l, mu - r */
#pragma unroll
        for (int i = 0; i < 2 * T::M; i++) {
            const real l = row_sum(sum[i / 2][i % 2].value()), a = row_sum(tangent[i / 2][i % 2].value());
            all_keys[i / 2][i % 2] = l;
            inverse[i / 2][i % 2] = l == 0 ? 0 : 1 / (l * (real)p.keep);
            mu[i / 2][i % 2] = l == 0 ? 0 : a / l;
        }
        each_row<T>(p, at, [&](int m, int half, int row) {
            const double l = (double)all_keys[m][half];
            const bool there = row < at.n_own && l != 0;
            const double L = there ? (double)top[m][half] + log_of_sum<T>(l) : -(double)INFINITY;
            const double tL = there ? (double)shift[m][half] + (double)mu[m][half] : 0;
            store_row(p, p.a.lse, AG_ACC_LSE, at.x, row, L);
            if (TANGENT) {
                store_row(p, p.a.mu, AG_ACC_MU, at.x, row, tL);
            }
        });
        const auto o = [&](int m, int half, int n, int i) { return c[0].x[m][n][i] * inverse[m][half]; };
        store_outputs<T>(p, p.a.o, p.a.o_low, AG_ACC_O, at, o);
        if constexpr (TANGENT) {
            store_outputs<T>(p, p.a.to, p.a.to_low, AG_ACC_TO, at, [&](int m, int half, int n, int i) {
                return c[1].x[m][n][i] * inverse[m][half] - mu[m][half] * o(m, half, n, i);
            });
        }
    }
};

/* ---- decode: few queries ---- */

struct decode_map : forward_map {
};
template <> constexpr bool has_pairs_as_rows<decode_map> = true;

/* A block has a tile of queries, all heads of a group and one split of the keys. Blocks that read the same keys are
 * neighbours. */
struct decode_block {
    int64_t head; /* of the keys, all sequences together */
    int split, first_query;
};
VERB decode_block find_decode_block(const agi_cuda_params &p)
{
    const uint32_t tiles = (uint32_t)p.w.parts, splits = (uint32_t)p.w.blocks, index = blockIdx.x / tiles;
    return {index / splits, (int)(index % splits),
            (int)(blockIdx.x % tiles) * (AGI_CUDA_DECODE_ROWS / p.group)};
}

/* The sequence begins at the first query of the tile, and has as many rows as the tile has pairs. */
template <class T> VERB block_place<T> split_place(const agi_cuda_params &p)
{
    const decode_block block = find_decode_block(p);
    block_place<T> at;
    sequence s = find_sequence(p, block.head / p.Hk);
    s.n_q = min(max(s.n_q - block.first_query, 0), AGI_CUDA_DECODE_ROWS / p.group) * p.group;
    s.q0 += block.first_query;
    s.q_copy += block.first_query;
    s.low += block.first_query;
    s.high += block.first_query;
    at.x.s = s;
    at.kv_head = (int)(block.head % p.Hk);
    at.x.h = at.kv_head * p.group;
    at.part = at.block_row = at.warp_row = 0;
    at.n_own = s.n_q;
    at.n_stream = s.n_k;
    at.from = block.split * AGI_CUDA_SPLIT;
    at.to = min(at.from + (int)AGI_CUDA_SPLIT, s.n_k);
    return at;
}

template <class T> struct one_split : online<T, false> {
    typedef typename T::real real;
    static VERB block_place<T> place(const agi_cuda_params &p)
    {
        return split_place<T>(p);
    }

    VERB void begin(const agi_cuda_params &, const block_place<T> &)
    {
        clear<T>(this->c[0]);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            this->top[0][half] = -(real)INFINITY;
            this->shift[0][half] = 0;
            this->sum[0][half].begin(0);
            this->tangent[0][half].begin(0);
        }
    }
    VERB void finish(const agi_cuda_params &p, const block_place<T> &at)
    {
        const decode_block block = find_decode_block(p);
        const int lane = threadIdx.x % 32;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int row = half * 8 + lane / 4;
            const real l = row_sum(this->sum[0][half].value());
            if (row >= at.n_own) {
                continue;
            }
            real *const to = split_at<real>(p, at.x.s.b, at.x.h + row % p.group,
                                            block.first_query + row / p.group, block.split);
#pragma unroll
            for (int i = 0; i < T::C / 4; i++) {
                const int column = i / 2 * 8 + lane % 4 * 2 + i % 2;
                if (column < p.Dv) {
                    to[column] = this->c[0].x[0][i / 2][2 * half + i % 2];
                }
            }
            if (lane % 4 == 0) {
                to[p.Dv] = this->top[0][half];
                to[p.Dv + 1] = l;
            }
        }
    }
};
