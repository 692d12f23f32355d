/* One tile as a warp sees it: which of its pairs are visible, what is added to their scores, and what a kernel's level
 * makes of a pair. Plain kernels have causal, window and lengths only. */
#pragma once
#include "cuda/kernels/features.cuh"
#include "cuda/kernels/tiles.cuh"

/* ---- A tile ---- */

/* Are the owner rows of a map's tiles pairs? Row r is then head r % group of a group and query r / group. */
template <class Map> constexpr bool has_pairs_as_rows = false;

/* What is added to the scores, minus infinity where a pair is hidden: only if the problem has such features. */
template <class T, bool FULL = T::FULL> struct additives {
    tile<T> x;
};
template <class T> struct additives<T, false> {
};

template <class Map, class T> struct tile_view {
    head_place x;
    int own, stream; /* first rows */
    int group;       /* of rows that are pairs: the heads of a query */
    int from[T::M][2],
        count[T::M][2]; /* by row of the lane: the rows of the stream that causal and window leave */
    bool edge;          /* some pairs may be hidden */
    seen_rows<T> seen;
    additives<T> added;

    VERB void begin(const head_place &place, int first, int heads = 1)
    {
        x = place;
        own = first;
        group = heads;
        const sequence &s = x.s;
#pragma unroll
        for (int i = 0; i < 2 * T::M; i++) {
            const int r = row(i / 2, i % 2), at = has_pairs_as_rows<Map> ? r / group : r;
            const int low = Map::KEYS ? at - s.high : at + s.low, high = Map::KEYS ? at - s.low : at + s.high;
            const int end = min(high + 1, Map::KEYS ? s.n_q : s.n_k);
            from[i / 2][i % 2] = max(low, 0);
            count[i / 2][i % 2] = r < (Map::KEYS ? s.n_k : s.n_q) ? max(end - max(low, 0), 0) : 0;
        }
    }
    VERB bool is_inside(int m, int half, int n, int c) const
    {
        return (unsigned)(column(n, c) - from[m][half]) < (unsigned)count[m][half];
    }
    VERB int row(int m, int half) const
    {
        return own + m * 16 + half * 8 + (int)threadIdx.x % 32 / 4;
    }
    VERB int column(int n, int c) const
    {
        return stream + n * 8 + (int)threadIdx.x % 4 * 2 + c;
    }
    VERB int query(int m, int half, int n, int c) const
    {
        return Map::KEYS ? column(n, c) : row(m, half);
    }
    VERB int key(int m, int half, int n, int c) const
    {
        return Map::KEYS ? row(m, half) : column(n, c);
    }
    VERB bool visible(int m, int half, int n, int c) const
    {
        if constexpr (T::FULL) {
            return added.x.x[m][n][2 * half + c] != -(typename T::real)INFINITY;
        } else {
            return !edge || is_inside(m, half, n, c);
        }
    }
};

/* Calls f(m, n, at) for each hidden pair, at x[m][n][at], of a plain kernel's tile: one branch for the whole tile, as
 * most tiles have none. */
template <class Map, class T, class Function> VERB void each_hidden(const tile_view<Map, T> &v, Function f)
{
    if constexpr (!T::FULL) {
        if (!v.edge) {
            return;
        }
        each_element<T>([&](int m, int half, int n, int c) {
            if (!v.is_inside(m, half, n, c)) {
                f(m, n, 2 * half + c);
            }
        });
    }
}

/* Does causal or window hide all pairs of these rows, or none? */
template <class Map, class T> VERB void classify(const tile_view<Map, T> &v, bool &none, bool &all)
{
    const sequence &s = v.x.s;
    const int n_q = has_pairs_as_rows<Map> ? s.n_q / v.group : s.n_q;
    const int own_end = has_pairs_as_rows<Map> ? n_q : v.own + T::WARP_ROWS, stream_end = v.stream + T::N;
    const int i0 = Map::KEYS ? v.stream : v.own, i1 = Map::KEYS ? stream_end : own_end;
    const int j0 = Map::KEYS ? v.own : v.stream, j1 = Map::KEYS ? own_end : stream_end;
    const int i_end = min(i1, n_q), j_end = min(j1, s.n_k);
    none = i0 >= i_end || j0 >= j_end || j_end - 1 - i0 < s.low || j0 - (i_end - 1) > s.high;
    all = i1 <= n_q && j1 <= s.n_k && j0 - (i1 - 1) >= s.low && j1 - 1 - i0 <= s.high;
}

/* Calls f(x, offset) for each visible pair of a tile: x, what is added to its score, and its offset in a tensor that
 * has queries and keys as its last two axes. */
template <class Map, class T, class Function>
VERB void each_added(tile_view<Map, T> &v, const ag_tensor &t, Function f)
{
    const int64_t own_stride = t.strides[Map::KEYS ? 3 : 2], stream_stride = t.strides[Map::KEYS ? 2 : 3];
    const int64_t head = v.x.s.b * t.strides[0] + v.x.h * t.strides[1];
    each_element<T>([&](int m, int half, int n, int c) {
        typename T::real &x = v.added.x.x[m][n][2 * half + c];
        if (x != -(typename T::real)INFINITY) {
            f(x, head + v.row(m, half) * own_stride + v.column(n, c) * stream_stride);
        }
    });
}

/* What is added to the scores, feature by feature; minus infinity: the pair is hidden. */
template <class Map, class T> VERB void add_features(tile_view<Map, T> &v, const agi_cuda_params &p)
{
    typedef typename T::real real;
    each_element<T>([&](int m, int half, int n, int c) {
        const bool there = !v.edge || v.is_inside(m, half, n, c);
        v.added.x.x[m][n][2 * half + c] = there ? (real)0 : -(real)INFINITY;
    });
    if (p.a.mask.data != nullptr) {
        const uint8_t *const mask = (const uint8_t *)p.a.mask.data;
        each_added(v, p.a.mask, [&](real &x, int64_t at) { x = mask[at] == 0 ? -(real)INFINITY : x; });
    }
    if (p.a.bias.data != nullptr) {
        each_added(v, p.a.bias,
                   [&](real &x, int64_t at) { x = load_aux(p.aux_dtype, p.a.bias.data, at, x); });
    }
    if (p.a.table.data != nullptr) {
        const ag_tensor distances = {nullptr, {0, 0, -1, 1}}; /* the offset is j - i */
        each_added(v, distances,
                   [&](real &x, int64_t at) { x = add_rn(x, table_entry<real>(p, v.x, (int)at)); });
    }
    if (p.slopes != nullptr) {
        const ag_tensor distances = {nullptr, {0, 0, -1, 1}};
        const real slope = (real)p.slopes[v.x.h];
        each_added(v, distances, [&](real &x, int64_t at) {
            const int64_t distance = at + v.x.s.k_shift - v.x.s.shift;
            x = add_rn(x, mul_rn(-slope, (real)(distance < 0 ? -distance : distance)));
        });
    }
}

/* Finds out which pairs the warp sees, and what is added to their scores. Returns whether it sees any. */
template <class Map, class T> VERB bool look(tile_view<Map, T> &v, const agi_cuda_params &p)
{
    bool none, all;
    classify(v, none, all);
    v.edge = !all;
    uint32_t any = 0;
#pragma unroll
    for (int word = 0; word < T::SEEN; word++) {
        v.seen.bits[word] = 0;
    }
    v.seen.all = all && !(T::FULL && (p.a.mask.data != nullptr || p.a.bias.data != nullptr));
    if (none) {
        return false;
    }
    if constexpr (T::FULL) {
        add_features(v, p);
    }
    if (v.seen.all) {
        return true;
    }
    each_element<T>([&](int m, int half, int n, int c) {
        const int column = n * 8 + (int)threadIdx.x % 4 * 2 + c;
        v.seen.bits[n / 4] |= v.visible(m, half, n, c) ? 1u << column % 32 : 0u;
    });
#pragma unroll
    for (int word = 0; word < T::SEEN; word++) {
        v.seen.bits[word] = or_over_warp(v.seen.bits[word]);
        any |= v.seen.bits[word];
    }
    return any != 0;
}

/* ---- A pair ---- */

/* phi(z), phi'(z), phi''(z) of a kernel's level. */
template <class T> VERB capped<typename T::real> cap(const agi_cuda_params &p, typename T::real z)
{
    if (T::FULL && p.softcap != 0) {
        return softcap<typename T::real>(z, (typename T::real)p.softcap);
    }
    return {z, 1, 0};
}

/* Z and S of an element of the score tile. */
template <class Map, class T>
VERB typename T::real score(const tile_view<Map, T> &v, const capped<typename T::real> &z, int m, int n,
                            int at)
{
    if constexpr (T::FULL) {
        return add_rn(z.phi, v.added.x.x[m][n][at]);
    } else {
        return z.phi;
    }
}

/* tB of a pair. */
template <class T>
VERB typename T::real bias_tangent(const agi_cuda_params &p, const ag_tensor &bias, const ag_tensor &table,
                                   const head_place &x, int i, int j)
{
    if (T::FULL && (bias.data != nullptr || table.data != nullptr)) {
        return bias_and_table<typename T::real>(p, bias, table, x, i, j);
    }
    return 0;
}

template <class T> VERB bool kept(const agi_cuda_params &p, const head_place &x, int i, int j)
{
    return !T::FULL || p.drop_below == 0 || is_kept(p, x, i, j);
}
