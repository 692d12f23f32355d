/* The loop of all maps. A block owns rows of one side, queries or keys, and walks over tiles of the other, which come
 * through shared memory; each warp keeps 16 rows or more to itself: its score tiles stay in registers, and no warp
 * waits for another except at the barrier of a tile.
 *
 * A map says what it multiplies and what it makes of the scores:
 *
 *     KEYS                     the owners: keys, else queries
 *     OWN, STREAM              number of matrices; own(n), stream(n): which
 *     TILES, PRODUCTS          score tiles; product(n): tile += own stream^T
 *     COLUMNS, SUMS            results; sum(n): column += weights stream
 *     begin, weights, finish   before the loop; a tile's scores into its weights; the results */
#pragma once
#include "cuda/kernels/places.cuh"
#include "cuda/kernels/results.cuh"
#include "cuda/kernels/views.cuh"

struct score_product {
    int tile, own, stream; /* indices into the map's own lists */
};
struct weight_sum {
    int column, weights, stream;
    bool unit; /* the weights are between 0 and 1 */
};

/* ---- Row statistics of vjp and vjp_jvp, made by `statistics` ---- */

template <class real> struct row_stats {
    real lse, lse_low; /* L = lse + lse_low; infinity if the row sees no key: its weights are then 0 */
    real D, mu, tD, smu;
};

template <class real> VERB row_stats<real> stats_at(const real *s)
{
    return {s[0], s[1], s[2], s[3], s[4], s[5]};
}

template <class real> VERB const real *stats_of_head(const agi_cuda_params &p, const head_place &x)
{
    return (const real *)p.stats + (x.h * p.q_rows + x.s.q_copy) * AGI_CUDA_STATS;
}

template <class T> VERB void load_stats(uint32_t to, const typename T::real *from)
{
    constexpr int ALL = T::N * AGI_CUDA_STATS * (int)sizeof(typename T::real) / 16;
    const int offset = 16 * (int)threadIdx.x;
#pragma unroll
    for (int i = 0; i < ALL; i += T::THREADS) {
        if (ALL % T::THREADS == 0 || i + (int)threadIdx.x < ALL) {
            copy_16(to + offset + 16 * i, (const char *)from + offset + 16 * i, true);
        }
    }
}

template <class real> VERB real weight_of(real S, const row_stats<real> &r)
{
    return exp_fast((S - r.lse) - r.lse_low);
}

/* ---- The loop ---- */

template <class Map, class T> struct streamer {
    typedef typename T::real real;
    static constexpr int STATS_BYTES = Map::KEYS ? T::N * AGI_CUDA_STATS * (int)sizeof(real) : 0;
    static constexpr int STAGE_BYTES = Map::STREAM * T::STREAM_BYTES + STATS_BYTES;

    const agi_cuda_params &p;
    block_place<T> at;
    char *memory;
    uint32_t own_tiles, stages;
    static constexpr bool PAIRS = has_pairs_as_rows<Map>;
    static constexpr int HALVES = PAIRS ? 2 : 1; /* heads differ in their powers of two */
    float own_inverse[T::F::SCALED ? Map::OWN : 1][T::M][HALVES];

    VERB streamer(const agi_cuda_params &params, char *shared) : p(params), memory(shared)
    {
        own_tiles = shared_address(shared);
        stages = own_tiles + Map::OWN * T::OWN_BYTES;
    }
    VERB void move_to(const block_place<T> &place)
    {
        at = place;
        if constexpr (T::F::SCALED) {
#pragma unroll
            for (int n = 0; n < Map::OWN; n++) {
                const head_matrix x = matrix(Map::own(n), at.x.h);
#pragma unroll
                for (int i = 0; i < T::M * HALVES; i++) {
                    own_inverse[n][i / HALVES][i % HALVES] = inverse_of_own(x, i / HALVES, i % HALVES);
                }
            }
        }
    }

    /* The power of two of the warp's 16 rows m, or of pairs the lane's row of their half, all of one block of rows. */
    VERB float inverse_of_own(const head_matrix &x, int m, int half) const
    {
        if constexpr (PAIRS) {
            const int row = m * 16 + half * 8 + (int)threadIdx.x % 32 / 4;
            return row < x.n ? x.inverse[row % p.group * (p.q_rows / AGI_CUDA_SCALE_ROWS)] : 1.0f;
        } else {
            return x.n > 0 ? inverse_of<typename T::F>(x, at.warp_row + m * 16) : 1.0f;
        }
    }

    VERB head_matrix matrix(int operand, int q_head) const
    {
        return find_matrix<typename T::F>(p, at.x.s, operand, q_head, at.kv_head);
    }

    /* The tiles of the stream that the block's rows may see. */
    VERB void find_range(int &begin, int &end) const
    {
        const sequence &s = at.x.s;
        const int last = min(at.block_row + T::BLOCK_ROWS, at.n_own) - 1,
                  last_query = PAIRS ? last / p.group : last;
        const int from = Map::KEYS ? at.block_row - s.high : at.block_row + s.low;
        const int to = Map::KEYS ? last - s.low : last_query + s.high;
        begin = max(from, at.from) / T::N;
        end = (min(to + 1, at.to) + T::N - 1) / T::N;
        end = last < at.block_row || to < 0 ? begin : max(begin, end);
    }

    VERB void load_own(int channel) const
    {
#pragma unroll
        for (int n = 0; n < Map::OWN; n++) {
            if (p.m[Map::own(n)].data != nullptr) {
                const head_matrix x = matrix(Map::own(n), at.x.h);
                if constexpr (PAIRS) {
                    load_pairs<T>(own_tiles, x, p.m[Map::own(n)].head * T::F::BYTES, p.group);
                } else {
                    load_tile<T, T::BLOCK_ROWS>(own_tiles + n * T::OWN_BYTES, x, at.block_row, channel);
                }
            }
        }
    }
    VERB void load_stream(int stage, int q_head, int row, int channel) const
    {
        const uint32_t to = stages + stage * STAGE_BYTES;
#pragma unroll
        for (int n = 0; n < Map::STREAM; n++) {
            if (p.m[Map::stream(n)].data != nullptr) {
                load_tile<T, T::N>(to + n * T::STREAM_BYTES, matrix(Map::stream(n), q_head), row, channel);
            }
        }
        if (Map::KEYS) {
            head_place x = at.x;
            x.h = q_head;
            load_stats<T>(to + Map::STREAM * T::STREAM_BYTES,
                          stats_of_head<real>(p, x) + (int64_t)row * AGI_CUDA_STATS);
        }
        copy_commit();
    }
    VERB const real *stats_of_tile(int stage) const
    {
        return (const real *)(memory + Map::OWN * T::OWN_BYTES + stage * STAGE_BYTES +
                              Map::STREAM * T::STREAM_BYTES);
    }

    /* T += X Y^T for all products of the map, over the channels that are in shared memory. */
    VERB void add_all_scores(tile<T> (&t)[Map::TILES], int stage, int q_head, int row) const
    {
        const uint32_t x = own_tiles + threadIdx.x / 32 * T::WARP_ROWS * T::PITCH,
                       y = stages + stage * STAGE_BYTES;
#pragma unroll
        for (int n = 0; n < Map::PRODUCTS; n++) {
            const score_product product = Map::product(n);
            if (p.m[Map::own(product.own)].data == nullptr ||
                p.m[Map::stream(product.stream)].data == nullptr) {
                continue;
            }
            float factor[T::M][HALVES];
            const float y_inverse = stream_inverse(product.stream, q_head, row);
#pragma unroll
            for (int i = 0; i < T::M * HALVES; i++) {
                const int m = i / HALVES, half = i % HALVES;
                factor[m][half] = T::F::SCALED ? own_inverse[product.own][m][half] * y_inverse : 1.0f;
            }
            add_scores<T, Map::KEYS>(t[product.tile], x + product.own * T::OWN_BYTES,
                                     y + product.stream * T::STREAM_BYTES, factor, p.softcap != 0);
        }
    }
    VERB float stream_inverse(int n, int q_head, int row) const
    {
        return T::F::SCALED ? inverse_of<typename T::F>(matrix(Map::stream(n), q_head), row) : 1.0f;
    }

    /* column += W Y for all sums of the map. */
    template <int N = 0>
    VERB void add_all_sums(columns<T> (&c)[Map::COLUMNS], const tile<T> (&w)[Map::TILES],
                           const tile_view<Map, T> &v, int stage) const
    {
        if constexpr (N < Map::SUMS) {
            constexpr weight_sum sum = Map::sum(N);
            if (p.m[Map::stream(sum.stream)].data != nullptr && Map::wanted(p, sum.column)) {
                const uint32_t first = T::ANY ? 0 : at.part * T::C * T::F::BYTES;
                const uint32_t y = stages + stage * STAGE_BYTES + sum.stream * T::STREAM_BYTES + first;
                add_product<T, sum.unit, packed_weights<T, Map>>(
                    c[sum.column], w[sum.weights], y, stream_inverse(sum.stream, v.x.h, v.stream), v.seen);
            }
            add_all_sums<N + 1>(c, w, v, stage);
        }
    }

    /* One tile whose channels are all in shared memory. */
    template <class State> VERB void visit(State &state, tile_view<Map, T> &v, int stage)
    {
        if (!look(v, p)) {
            return;
        }
        tile<T> t[Map::TILES];
#pragma unroll
        for (int n = 0; n < Map::TILES; n++) {
            clear<T>(t[n]);
        }
        add_all_scores(t, stage, v.x.h, v.stream);
        state.weights(p, v, t, stats_of_tile(stage));
        add_all_sums(state.c, t, v, stage);
    }

    /* The same with a chunk of the channels at a time. Returns whether the warp sees anything of the tile. */
    VERB bool chunked_scores(tile<T> (&t)[Map::TILES], tile_view<Map, T> &v)
    {
        const bool sees = look(v, p);
#pragma unroll
        for (int n = 0; n < Map::TILES; n++) {
            clear<T>(t[n]);
        }
        for (int channel = 0; channel < max(p.Dk, p.Dv); channel += T::CH) {
            __syncthreads();
            load_own(channel);
            load_stream(0, v.x.h, v.stream, channel);
            copy_wait();
            __syncthreads();
            if (sees) {
                add_all_scores(t, 0, v.x.h, v.stream);
            }
        }
        return sees;
    }
    /* A result has the columns of one chunk. */
    template <class State> VERB void visit_chunks(State &state, tile_view<Map, T> &v)
    {
        tile<T> t[Map::TILES];
        const bool sees = chunked_scores(t, v);
        __syncthreads();
        load_stream(0, v.x.h, v.stream, at.part * T::C);
        copy_wait();
        __syncthreads();
        if (sees) {
            state.weights(p, v, t, stats_of_tile(0));
            add_all_sums(state.c, t, v, 0);
        }
    }

    template <class State> VERB void run(State &state)
    {
        int begin, end;
        find_range(begin, end);
        const int tiles = end - begin, count = tiles * (Map::KEYS ? p.group : 1);
        tile_view<Map, T> v;
        v.begin(at.x, at.warp_row, p.group);
        if (count == 0) {
            return;
        }
        if (!T::ANY) {
            load_own(0);
        }
        if (T::STAGES == 2) {
            load_stream(0, at.x.h, begin * T::N, 0);
        }
        for (int n = 0; n < count; n++) {
            const int stage = T::STAGES == 2 ? n % 2 : 0;
            v.x.h = at.x.h + n / tiles;
            v.stream = (begin + n % tiles) * T::N;
            if constexpr (T::ANY) {
                visit_chunks(state, v);
                continue;
            }
            if (T::STAGES == 1) {
                __syncthreads();
                load_stream(0, v.x.h, v.stream, 0);
            }
            copy_wait();
            __syncthreads();
            if (T::STAGES == 2 && n + 1 < count) {
                load_stream((n + 1) % 2, at.x.h + (n + 1) / tiles, (begin + (n + 1) % tiles) * T::N, 0);
            }
            visit(state, v, stage);
        }
    }
};

/* ---- Splits of the keys: decode ---- */

/* Where O', m and l of a split are. */
template <class real>
VERB real *split_at(const agi_cuda_params &p, int64_t b, int64_t h, int64_t query, int64_t split)
{
    return (real *)p.splits + (((b * p.H + h) * p.Nq + query) * p.w.blocks + split) * (p.Dv + 2);
}

/* ---- A kernel: State has the map and what it keeps of a row ---- */
template <class State, class T> VERB void run_stream(const agi_cuda_params &p)
{
    typedef typename State::map Map;
    SHARED_MEMORY(memory);
    streamer<Map, T> loop(p, memory);
    loop.move_to(State::place(p));
    State state;
    state.begin(p, loop.at);
    loop.run(state);
    loop.at.staging = memory + threadIdx.x / 32 * T::WARP_ROWS * T::PITCH;
    state.finish(p, loop.at);
}
