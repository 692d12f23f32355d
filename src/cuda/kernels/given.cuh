/* jvp that is given O and L, and jvp_jvp, which is given O, L and its tangents along both directions. */
#pragma once
#include "cuda/kernels/online.cuh"

/* L and its tangents as the caller gives them. L infinite: the row sees no key. */
template <class T> struct given_rows {
    typedef typename T::real real;
    row_stats<real> stats[T::M][2];
    double L[T::M][2];

    VERB void load(const agi_cuda_params &p, const block_place<T> &at, bool second)
    {
#pragma unroll
        for (int i = 0; i < 2 * T::M; i++) {
            const int row = at.warp_row + i * 8 + (int)threadIdx.x % 32 / 4;
            row_stats<real> &r = stats[i / 2][i % 2];
            L[i / 2][i % 2] = -INFINITY;
            r = {(real)INFINITY, 0, 0, 0, 0, 0};
            if (row < at.n_own) {
                const double l = row_number(p.a.lse, at.x, row);
                L[i / 2][i % 2] = l;
                r.lse = l == -INFINITY ? (real)INFINITY : (real)l;
                r.lse_low = fabs(l) < INFINITY ? (real)(l - (double)r.lse) : 0;
                r.mu = second ? (real)row_number(p.a.mu, at.x, row) : 0;
                r.smu = second ? (real)row_number(p.a.smu, at.x, row) : 0;
            }
        }
    }
};

/* The sink's share of a row, exp(s - L). */
VERB double sink_share(const agi_cuda_params &p, int h, double L)
{
    return p.a.sink.data == nullptr || L == -INFINITY ? 0 : exp(sink_of<double>(p, p.a.sink, h) - L);
}

/* tS is shifted by r, its value at the largest score of the first tile in which the row sees a key, so that nothing
 * cancels if all tS are moved by one number: with a = sum P (tS - r), mu - r = a + Ps (ts - r) and
 * tO = sum R ((tS - r) V + tV) - (mu - r) O. */
template <class T> struct given {
    typedef typename T::real real;
    columns<T> c[1];
    given_rows<T> rows;
    real shift[T::M][2];
    long_sum<T> tangent[T::M][2],
        moved[T::M][2]; /* a; moved: summed over what multiplies V: so tO of a constant V is
                                                     0 */
    bool shifted[T::M][2];

    static VERB block_place<T> place(const agi_cuda_params &p)
    {
        return find_block<jvp_map, T>(p);
    }
    VERB void begin(const agi_cuda_params &p, const block_place<T> &at)
    {
        clear<T>(c[0]);
        rows.load(p, at, false);
#pragma unroll
        for (int i = 0; i < 2 * T::M; i++) {
            shift[i / 2][i % 2] = 0;
            tangent[i / 2][i % 2].begin(0);
            moved[i / 2][i % 2].begin(0);
            shifted[i / 2][i % 2] = false;
        }
    }
    VERB void find_shift(const tile<T> (&t)[2], int m, int half)
    {
        real most = -(real)INFINITY;
#pragma unroll
        for (int i = 0; i < T::N / 4; i++) {
            most = fmax(most, t[0].x[m][i / 2][2 * half + i % 2]);
        }
        most = row_max(most);
        const real found = online<T, true>::tangent_at(t, most, m, half);
        if (!shifted[m][half] && most > -(real)INFINITY) {
            shift[m][half] = found;
            shifted[m][half] = true;
        }
    }
    template <class Map>
    VERB void weights(const agi_cuda_params &p, const tile_view<Map, T> &v, tile<T> (&t)[Map::TILES],
                      const real *)
    {
        online<T, true>::template scores<Map>(p, v, t);
#pragma unroll
        for (int i = 0; i < 2 * T::M; i++) {
            find_shift(t, i / 2, i % 2);
        }
        real tw_sum[T::M][2] = {}, moved_sum[T::M][2] = {};
        each_element<T>([&](int m, int half, int n, int c) {
            const int at = 2 * half + c;
            const real w = weight_of(t[0].x[m][n][at], rows.stats[m][half]);
            const real tw = w == 0 ? 0 : w * (t[1].x[m][n][at] - shift[m][half]);
            tw_sum[m][half] += tw;
            t[0].x[m][n][at] = w;
            t[1].x[m][n][at] = tw;
        });
        round_to_operands<T>(t[1]);
        each_element<T>([&](int m, int half, int n, int c) {
            const int at = 2 * half + c;
            moved_sum[m][half] += t[1].x[m][n][at];
            if (!kept<T>(p, v.x, v.query(m, half, n, c), v.key(m, half, n, c))) {
                t[0].x[m][n][at] = t[1].x[m][n][at] = 0;
            }
        });
#pragma unroll
        for (int i = 0; i < 2 * T::M; i++) {
            tangent[i / 2][i % 2].add(tw_sum[i / 2][i % 2]);
            moved[i / 2][i % 2].add(moved_sum[i / 2][i % 2]);
        }
    }
    VERB void finish(const agi_cuda_params &p, const block_place<T> &at)
    {
        const real ts = p.a.tsink.data != nullptr ? sink_of<real>(p, p.a.tsink, at.x.h) : 0;
        real mu[T::M][2], of_o[T::M][2]; /* mu - r, and the same as O is multiplied by it */
#pragma unroll
        for (int i = 0; i < 2 * T::M; i++) {
            const int m = i / 2, half = i % 2;
            const real share = (real)sink_share(p, at.x.h, rows.L[m][half]);
            const real of_sink = share == 0 ? 0 : share * (ts - shift[m][half]);
            mu[m][half] = row_sum(tangent[m][half].value()) + of_sink;
            of_o[m][half] = row_sum(moved[m][half].value()) + of_sink;
        }
        each_row<T>(p, at, [&](int m, int half, int row) {
            const bool there = row < at.n_own;
            store_row(p, p.a.mu, AG_ACC_MU, at.x, row,
                      there ? (double)shift[m][half] + (double)mu[m][half] : 0);
        });
        results<T> all;
        all.collect([&](int m, int, int n, int i) { return c[0].x[m][n][i] / (real)p.keep; });
        store_halves<T>(p, p.a.to, p.a.to_low, AG_ACC_TO, at, all, [&](int i, int column, real x) {
            if (!shifted[i / 2][i % 2]) {
                return (real)0;
            }
            const int row = at.warp_row + i * 8 + (int)threadIdx.x % 32 / 4;
            return x - of_o[i / 2][i % 2] * given_o<real>(p, p.a.o, p.a.o_low, at.x, row, column);
        });
    }
};

struct jvp_given_map : jvp_map {
    static constexpr int COLUMNS = 1, SUMS = 2;
    static constexpr VERB weight_sum sum(int n)
    {
        return n == 0 ? weight_sum{0, 1, 1, false} : weight_sum{0, 0, 3, true};
    }
};

/* W = (tS - mu) o (sS - smu) + stS; nu = sum P W + Ps (ts - mu) (ss - smu), stO = sum - nu O. */
template <class T> struct second {
    typedef typename T::real real;
    columns<T> c[1];
    given_rows<T> rows;
    long_sum<T> nu[T::M][2], moved[T::M][2]; /* both sum P W; moved: summed over what multiplies V */
    bool sees[T::M][2];

    static VERB block_place<T> place(const agi_cuda_params &p)
    {
        return find_block<jvp_map, T>(p);
    }
    VERB void begin(const agi_cuda_params &p, const block_place<T> &at)
    {
        clear<T>(c[0]);
        rows.load(p, at, true);
#pragma unroll
        for (int i = 0; i < 2 * T::M; i++) {
            nu[i / 2][i % 2].begin(0);
            moved[i / 2][i % 2].begin(0);
            sees[i / 2][i % 2] = false;
        }
    }
    template <class Map>
    VERB void weights(const agi_cuda_params &p, const tile_view<Map, T> &v, tile<T> (&t)[Map::TILES],
                      const real *)
    {
        const real scale = (real)p.scale;
        real PW_sum[T::M][2] = {}, moved_sum[T::M][2] = {};
        each_element<T>([&](int m, int half, int n, int c) {
            const int at = 2 * half + c, i = v.query(m, half, n, c), j = v.key(m, half, n, c);
            const bool visible = v.visible(m, half, n, c);
            const row_stats<real> &r = rows.stats[m][half];
            const capped<real> z = cap<T>(p, mul_rn(t[0].x[m][n][at], scale));
            const real P = visible ? weight_of(score<Map, T>(v, z, m, n, at), r) : 0;
            const real tZ = mul_rn(t[1].x[m][n][at], scale), sZ = mul_rn(t[2].x[m][n][at], scale);
            const real tS = visible ? tZ * z.phi1 + bias_tangent<T>(p, p.a.tbias, p.a.ttable, v.x, i, j) : 0;
            const real sS = visible ? sZ * z.phi1 + bias_tangent<T>(p, p.a.sbias, p.a.stable, v.x, i, j) : 0;
            const real stS = mul_rn(t[3].x[m][n][at], scale) * z.phi1 + tZ * z.phi2 * sZ;
            const bool has_weight = visible && P != 0;
            const real PW = has_weight ? P * ((tS - r.mu) * (sS - r.smu) + stS) : 0;
            sees[m][half] |= visible;
            PW_sum[m][half] += PW;
            t[0].x[m][n][at] = PW;
            t[1].x[m][n][at] = has_weight ? P * (tS - r.mu) : 0;
            t[2].x[m][n][at] = has_weight ? P * (sS - r.smu) : 0;
        });
        round_to_operands<T>(t[0]);
        each_element<T>([&](int m, int half, int n, int c) {
            const int at = 2 * half + c;
            moved_sum[m][half] += t[0].x[m][n][at];
            if (!kept<T>(p, v.x, v.query(m, half, n, c), v.key(m, half, n, c))) {
                t[0].x[m][n][at] = t[1].x[m][n][at] = t[2].x[m][n][at] = 0;
            }
        });
#pragma unroll
        for (int i = 0; i < 2 * T::M; i++) {
            nu[i / 2][i % 2].add(PW_sum[i / 2][i % 2]);
            moved[i / 2][i % 2].add(moved_sum[i / 2][i % 2]);
        }
    }
    VERB void finish(const agi_cuda_params &p, const block_place<T> &at)
    {
        const real ts = p.a.tsink.data != nullptr ? sink_of<real>(p, p.a.tsink, at.x.h) : 0;
        const real ss = p.a.ssink.data != nullptr ? sink_of<real>(p, p.a.ssink, at.x.h) : 0;
        const double s = p.a.sink.data != nullptr ? sink_of<double>(p, p.a.sink, at.x.h) : -(double)INFINITY;
        bool output[T::M][2];
        real all_keys[T::M][2], of_o[T::M][2]; /* nu, and the same as O is multiplied by it */
#pragma unroll
        for (int i = 0; i < 2 * T::M; i++) {
            const int m = i / 2, half = i % 2;
            const row_stats<real> &r = rows.stats[m][half];
            const real share = (real)sink_share(p, at.x.h, rows.L[m][half]);
            output[m][half] = row_max(sees[m][half] ? 1.0f : 0.0f) > 0 || rows.L[m][half] != s;
            const real of_sink = output[m][half] && share != 0 ? share * (ts - r.mu) * (ss - r.smu) : 0;
            all_keys[m][half] = row_sum(nu[m][half].value()) + of_sink;
            of_o[m][half] = row_sum(moved[m][half].value()) + of_sink;
        }
        each_row<T>(p, at, [&](int m, int half, int row) {
            store_row(p, p.a.nu, AG_ACC_NU, at.x, row, row < at.n_own ? (double)all_keys[m][half] : 0);
        });
        results<T> all;
        all.collect([&](int m, int, int n, int i) { return c[0].x[m][n][i] / (real)p.keep; });
        store_halves<T>(p, p.a.sto, ag_tensor{}, AG_ACC_STO, at, all, [&](int i, int column, real x) {
            if (!output[i / 2][i % 2]) {
                return (real)0;
            }
            const int row = at.warp_row + i * 8 + (int)threadIdx.x % 32 / 4;
            return x - of_o[i / 2][i % 2] * given_o<real>(p, p.a.o, p.a.o_low, at.x, row, column);
        });
    }
};

struct jvp_jvp_map {
    static constexpr bool KEYS = false;
    static constexpr int OWN = 3, STREAM = 6, TILES = 4, PRODUCTS = 7, COLUMNS = 1, SUMS = 3;
    static constexpr VERB int own(int n)
    {
        return n == 0 ? AGI_CUDA_Q : n == 1 ? AGI_CUDA_TQ : AGI_CUDA_SQ;
    }
    static constexpr VERB int stream(int n)
    {
        return n == 0   ? AGI_CUDA_K
               : n == 1 ? AGI_CUDA_V
               : n == 2 ? AGI_CUDA_TK
               : n == 3 ? AGI_CUDA_TV
               : n == 4 ? AGI_CUDA_SK
                        : AGI_CUDA_SV;
    }
    static constexpr VERB score_product product(int n)
    {
        return n == 0   ? score_product{0, 0, 0}
               : n == 1 ? score_product{1, 1, 0}
               : n == 2 ? score_product{1, 0, 2}
               : n == 3 ? score_product{2, 2, 0}
               : n == 4 ? score_product{2, 0, 4}
               : n == 5 ? score_product{3, 1, 4}
                        : score_product{3, 2, 2};
    }
    static constexpr VERB weight_sum sum(int n)
    {
        return n == 0   ? weight_sum{0, 0, 1, false}
               : n == 1 ? weight_sum{0, 1, 5, false}
                        : weight_sum{0, 2, 3, false};
    }
    static VERB bool wanted(const agi_cuda_params &, int)
    {
        return true;
    }
};
