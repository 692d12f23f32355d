/* vjp and vjp_jvp. Every element of a gradient has one owner and one order of summation: no atomics, no workspace of
 * queries times channels.
 *
 *     dkdv    owns keys     K V, streams Q dO                  dV += R^T dO, dK += dZ^T Q
 *     dq      owns queries  Q dO, streams K V                  dQ += dZ K
 *     tdkdv   owns keys     K V tK tV, streams Q dO tQ tdO     tdV += tR^T dO + R^T tdO, tdK += tdZ^T Q + dZ^T tQ
 *     tdq     owns queries  Q dO tQ tdO, streams K V tK tV     tdQ += tdZ K + dZ tK */
#include "cuda/kernels/instances.cuh"
#include "cuda/kernels/score_gradients.cuh"

struct dkdv_map : first_order<keys_own> {
    static constexpr int COLUMNS = 2, SUMS = 2; /* dV, dK */
    static constexpr VERB weight_sum sum(int n)
    {
        return n == 0 ? weight_sum{0, 0, 1, true} : weight_sum{1, 1, 0, false};
    }
    static VERB bool wanted(const agi_cuda_params &p, int column)
    {
        return (column == 0 ? p.a.dv : p.a.dk).data != nullptr;
    }
};
struct dq_map : first_order<queries_own> {
    static constexpr int COLUMNS = 1, SUMS = 1;
    static constexpr VERB weight_sum sum(int)
    {
        return {0, 1, 0, false};
    }
    static VERB bool wanted(const agi_cuda_params &, int)
    {
        return true;
    }
};
struct tdkdv_map : second_order<keys_own> {
    static constexpr int COLUMNS = 2, SUMS = 4; /* tdV, tdK */
    static constexpr VERB weight_sum sum(int n)
    {
        return n == 0   ? weight_sum{0, 2, 1, false}
               : n == 1 ? weight_sum{0, 0, 3, true}
               : n == 2 ? weight_sum{1, 3, 0, false}
                        : weight_sum{1, 1, 2, false};
    }
    static VERB bool wanted(const agi_cuda_params &p, int column)
    {
        return (column == 0 ? p.a.tdv : p.a.tdk).data != nullptr;
    }
};
struct tdq_map : second_order<queries_own> {
    static constexpr int COLUMNS = 1, SUMS = 2;
    static constexpr VERB weight_sum sum(int n)
    {
        return n == 0 ? weight_sum{0, 3, 0, false} : weight_sum{0, 1, 2, false};
    }
    static VERB bool wanted(const agi_cuda_params &, int)
    {
        return true;
    }
};

/* The weights of a tile in the place of its scores: R, dZ, tR, tdZ. */
template <class Map, class T, class Stats>
VERB void score_gradients(const agi_cuda_params &p, const tile_view<Map, T> &v, tile<T> (&t)[Map::TILES],
                          Stats stats)
{
    each_element<T>([&](int m, int half, int n, int c) {
        const int at = 2 * half + c;
        const pair_gradients<typename T::real> g =
            gradients_of_pair<Map, T>(p, v, t, stats(m, half, n, c), m, half, n, c);
        t[0].x[m][n][at] = g.R;
        t[1].x[m][n][at] = g.dZ;
        if constexpr (Map::TILES == 4) {
            t[2].x[m][n][at] = g.tR;
            t[3].x[m][n][at] = g.tdZ;
        }
    });
    each_hidden<Map, T>(v, [&](int m, int n, int at) {
#pragma unroll
        for (int i = 0; i < Map::TILES; i++) {
            t[i].x[m][n][at] = 0;
        }
    });
}

/* ---- Owners: keys. The statistics of the queries come with their tile. ---- */

template <class MAP, class T> struct of_keys {
    typedef MAP map;
    typedef typename T::real real;
    columns<T> c[2];

    static VERB block_place<T> place(const agi_cuda_params &p)
    {
        return find_block<map, T>(p);
    }
    VERB void begin(const agi_cuda_params &, const block_place<T> &)
    {
        clear<T>(c[0]);
        clear<T>(c[1]);
    }
    template <class Map>
    VERB void weights(const agi_cuda_params &p, const tile_view<Map, T> &v, tile<T> (&t)[Map::TILES],
                      const real *stats)
    {
        score_gradients<Map, T>(p, v, t, [&](int, int, int n, int i) {
            return stats_at(stats + (n * 8 + (int)threadIdx.x % 4 * 2 + i) * AGI_CUDA_STATS);
        });
    }
    VERB void finish(const agi_cuda_params &p, const block_place<T> &at)
    {
        const bool tangent = map::TILES == 4;
        const int64_t rows = p.flags & AG_PACKED ? 0 : p.Nk;
        const ag_tensor &dv = tangent ? p.a.tdv : p.a.dv, &dk = tangent ? p.a.tdk : p.a.dk;
        const output to_dv = {&dv, p.grad_dtype, (p.a.accumulate & (tangent ? AG_ACC_TDV : AG_ACC_DV)) != 0};
        const output to_dk = {&dk, p.grad_dtype, (p.a.accumulate & (tangent ? AG_ACC_TDK : AG_ACC_DK)) != 0};
        store_columns<T>(to_dv, {at, true, rows, p.Dv, at.kv_head},
                         [&](int m, int, int n, int i) { return c[0].x[m][n][i] / (real)p.keep; });
        store_columns<T>(to_dk, {at, true, rows, p.Dk, at.kv_head},
                         [&](int m, int, int n, int i) { return c[1].x[m][n][i] * (real)p.scale; });
    }
};

/* ---- Owners: queries ---- */

template <class MAP, class T> struct of_queries {
    typedef MAP map;
    typedef typename T::real real;
    columns<T> c[1];
    row_stats<real> rows[T::M][2];

    static VERB block_place<T> place(const agi_cuda_params &p)
    {
        return find_block<map, T>(p);
    }
    VERB void begin(const agi_cuda_params &p, const block_place<T> &at)
    {
        clear<T>(c[0]);
#pragma unroll
        for (int i = 0; i < 2 * T::M; i++) {
            const int64_t row = at.warp_row + i * 8 + (int)threadIdx.x % 32 / 4;
            rows[i / 2][i % 2] = {(real)INFINITY, 0, 0, 0, 0, 0};
            if (row < at.n_own) {
                rows[i / 2][i % 2] = stats_at(stats_of_head<real>(p, at.x) + row * AGI_CUDA_STATS);
            }
        }
    }
    template <class Map>
    VERB void weights(const agi_cuda_params &p, const tile_view<Map, T> &v, tile<T> (&t)[Map::TILES],
                      const real *)
    {
        score_gradients<Map, T>(p, v, t, [&](int m, int half, int, int) { return rows[m][half]; });
    }
    VERB void finish(const agi_cuda_params &p, const block_place<T> &at)
    {
        const bool tangent = map::TILES == 4;
        const ag_tensor &dq = tangent ? p.a.tdq : p.a.dq;
        const output to = {&dq, p.grad_dtype, (p.a.accumulate & (tangent ? AG_ACC_TDQ : AG_ACC_DQ)) != 0};
        store_columns<T>(to, {at, false, p.flags & AG_PACKED ? 0 : p.Nq, p.Dk, at.x.h},
                         [&](int m, int, int n, int i) { return c[0].x[m][n][i] * (real)p.scale; });
    }
};

/* ---- The kernels ---- */

template <class T> struct dkdv : of_keys<dkdv_map, T> {
};
template <class T> struct tdkdv : of_keys<tdkdv_map, T> {
};
template <class T> struct dq : of_queries<dq_map, T> {
};
template <class T> struct tdq : of_queries<tdq_map, T> {
};

AGI_INSTANCES_OF(AGI_CUDA_BACKWARD, AGI_FORMAT)
