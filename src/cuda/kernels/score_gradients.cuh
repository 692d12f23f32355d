/* What a score tile becomes in vjp and vjp_jvp, pair by pair, under the names of docs/math.md, and which products it
 * needs:
 *
 *     t[0]  Z = Q K^T        t[2]  tZ  = tQ K^T + Q tK^T
 *     t[1]  dP = dO V^T      t[3]  tdP = dO tV^T + tdO V^T */
#pragma once
#include "cuda/kernels/stream.cuh"

template <class real> struct pair_gradients {
    real R, dS, dZ; /* R without the factor 1 / (1 - p) */
    real tR, tdS, tdZ;
};

/* A plain kernel's hidden pairs must be set to zero afterwards (each_hidden). */
template <class Map, class T>
VERB pair_gradients<typename T::real>
gradients_of_pair(const agi_cuda_params &p, const tile_view<Map, T> &v, const tile<T> (&t)[Map::TILES],
                  const row_stats<typename T::real> &r, int m, int half, int n, int c)
{
    typedef typename T::real real;
    const int at = 2 * half + c, i = v.query(m, half, n, c), j = v.key(m, half, n, c);
    pair_gradients<real> g = {0, 0, 0, 0, 0, 0};
    if (T::FULL && !v.visible(m, half, n, c)) {
        return g;
    }
    const capped<real> z = cap<T>(p, mul_rn(t[0].x[m][n][at], (real)p.scale));
    const real P = weight_of(score<Map, T>(v, z, m, n, at), r);
    const bool keep = kept<T>(p, v.x, i, j);
    const real M = keep ? (real)(1 / p.keep) : 0;
    const real dP_D = (keep ? t[1].x[m][n][at] * M : 0) - r.D;
    g.R = keep ? P : 0;
    g.dS = P * dP_D;
    g.dZ = g.dS * z.phi1;
    if constexpr (Map::TILES == 4) {
        const real tZ = mul_rn(t[2].x[m][n][at], (real)p.scale);
        const real tS_mu = tZ * z.phi1 + bias_tangent<T>(p, p.a.tbias, p.a.ttable, v.x, i, j) - r.mu;
        const real tdP = keep ? t[3].x[m][n][at] * M : 0;
        g.tR = keep ? P * tS_mu : 0;
        g.tdS = P * (tS_mu * dP_D + (tdP - r.tD));
        g.tdZ = g.tdS * z.phi1 + g.dS * z.phi2 * tZ;
    }
    return g;
}

/* ---- The products ---- */

struct queries_own {
    static constexpr bool KEYS = false;
    static constexpr VERB int own(int n)
    {
        return n == 0 ? AGI_CUDA_Q : n == 1 ? AGI_CUDA_DO : n == 2 ? AGI_CUDA_TQ : AGI_CUDA_TDO;
    }
    static constexpr VERB int stream(int n)
    {
        return n == 0 ? AGI_CUDA_K : n == 1 ? AGI_CUDA_V : n == 2 ? AGI_CUDA_TK : AGI_CUDA_TV;
    }
};
struct keys_own {
    static constexpr bool KEYS = true;
    static constexpr VERB int own(int n)
    {
        return queries_own::stream(n);
    }
    static constexpr VERB int stream(int n)
    {
        return queries_own::own(n);
    }
};

/* Indices of both sides mean the same: 0 Q or K, 1 dO or V, 2 tQ or tK, 3 tdO or tV. */
template <class Side> struct first_order : Side {
    static constexpr int OWN = 2, STREAM = 2, TILES = 2, PRODUCTS = 2;
    static constexpr VERB score_product product(int n)
    {
        return {n, n, n};
    }
};
template <class Side> struct second_order : Side {
    static constexpr int OWN = 4, STREAM = 4, TILES = 4, PRODUCTS = 6;
    static constexpr VERB score_product product(int n)
    {
        return n == 0   ? score_product{0, 0, 0}
               : n == 1 ? score_product{1, 1, 1}
               : n == 2 ? product_of_query(2, 2, 0)
               : n == 3 ? product_of_query(2, 0, 2)
               : n == 4 ? product_of_query(3, 1, 3)
                        : product_of_query(3, 3, 1);
    }
    /* The same order of the two products of a tile whoever the owners are: first the one with these matrices. */
    static constexpr VERB score_product product_of_query(int tile, int query, int key)
    {
        return Side::KEYS ? score_product{tile, key, query} : score_product{tile, query, key};
    }
};
