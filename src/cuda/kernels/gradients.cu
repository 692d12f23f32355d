/* The gradients of bias and table, dB and dT, and their tangents. Both are sums of dS (of tdS), computed anew in tiles
 * of AGI_CUDA_PAIR_TILE queries and keys.
 *
 *     dbias    a block owns a tile of dB and adds up the sequences, heads, queries and keys that share it, in order
 *     dtable   a block owns the tiles of one head whose indices differ by one number, and adds up their diagonals;
 *              sum_table then adds up the diagonals of each bucket */
#include "cuda/kernels/score_gradients.cuh"

template <class F>
using pair_shape =
    shape<F, 0, F::BYTES == 8 ? AGI_CUDA_CHUNK_f64 : AGI_CUDA_CHUNK_f32, 1, 2, AGI_CUDA_PAIR_TILE, 1, true>;

struct first_scores : first_order<queries_own> {
    static constexpr int COLUMNS = 1, SUMS = 0;
};
struct second_scores : second_order<queries_own> {
    static constexpr int COLUMNS = 1, SUMS = 0;
};

constexpr int PAIR_TILE = AGI_CUDA_PAIR_TILE;

template <class T>
VERB block_place<T> place_of_tile(const agi_cuda_params &p, const sequence &s, int h, int first_query)
{
    block_place<T> at;
    at.x.s = s;
    at.x.h = h;
    at.kv_head = h / p.group;
    at.part = 0;
    at.block_row = first_query;
    at.warp_row = first_query + (int)threadIdx.x / 32 * T::WARP_ROWS;
    at.n_own = s.n_q;
    at.n_stream = s.n_k;
    at.from = 0;
    at.to = s.n_k;
    return at;
}

/* dS or tdS of one tile; zero where a pair is hidden. */
template <class Map, class T>
VERB void score_gradient_tile(streamer<Map, T> &loop, const block_place<T> &at, int first_key, tile<T> &dS)
{
    typedef typename T::real real;
    tile<T> t[Map::TILES];
    tile_view<Map, T> v;
    loop.move_to(at);
    v.begin(at.x, at.warp_row);
    v.stream = first_key;
    const bool sees = loop.chunked_scores(t, v);
    row_stats<real> rows[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int64_t row = min(v.row(0, half), at.n_own - 1);
        rows[half] = stats_at(stats_of_head<real>(loop.p, at.x) + row * AGI_CUDA_STATS);
    }
    clear<T>(dS);
    if (sees) {
        each_element<T>([&](int m, int half, int n, int c) {
            const pair_gradients<real> g = gradients_of_pair<Map, T>(loop.p, v, t, rows[half], m, half, n, c);
            dS.x[m][n][2 * half + c] = Map::TILES == 4 ? g.tdS : g.dS;
        });
    }
}

/* A tile of the block in shared memory, [PAIR_TILE][PAIR_TILE + 1]. */
template <class T, class Tile> VERB double *spread_tile(const Tile &x, char *memory)
{
    double *const all = (double *)memory;
    const int lane = threadIdx.x % 32, first = threadIdx.x / 32 * 16 + lane / 4;
    __syncthreads();
    each_element<T>([&](int m, int half, int n, int c) {
        all[(first + half * 8) * (PAIR_TILE + 1) + n * 8 + lane % 4 * 2 + c] =
            (double)x.x[m][n][2 * half + c];
    });
    __syncthreads();
    return all;
}

/* ---- dbias ---- */

struct wide_tile {
    double x[1][PAIR_TILE / 8][4];
};

/* Which part of an axis of the bias a block has: all of it if the axis is summed over. */
struct range {
    int64_t first, end;
};
VERB range range_of(int64_t size, int64_t index, int64_t all)
{
    return size == 1 ? range{0, all} : range{index, index + 1};
}

template <class T>
VERB void store_bias_tile(const agi_cuda_params &p, bool tangent, const int64_t index[4], const double *sums)
{
    const ag_tensor &t = tangent ? p.a.tdbias : p.a.dbias;
    const output out = {&t, p.aux_dtype, (p.a.accumulate & (tangent ? AG_ACC_TDBIAS : AG_ACC_DBIAS)) != 0};
    const bool one_row = p.bias_size[2] == 1, one_column = p.bias_size[3] == 1;
    const int rows = one_row ? 1 : PAIR_TILE, cols = one_column ? 1 : PAIR_TILE;
    for (int e = threadIdx.x; e < rows * cols; e += T::THREADS) {
        const int64_t i = index[2] * PAIR_TILE + e / cols, j = index[3] * PAIR_TILE + e % cols;
        double sum = 0;
        for (int r = 0; r < (one_row ? PAIR_TILE : 1); r++) {
            for (int c = 0; c < (one_column ? PAIR_TILE : 1); c++) {
                sum += sums[(e / cols + r) * (PAIR_TILE + 1) + e % cols + c];
            }
        }
        if (i < p.bias_size[2] && j < p.bias_size[3]) {
            out.store(element_at(t, index[0], index[1], i) + j * t.strides[3], sum);
        }
    }
}

template <class F, class Map> VERB void bias_gradient(const agi_cuda_params &p)
{
    typedef pair_shape<F> T;
    SHARED_MEMORY(memory);
    const int64_t rows = p.bias_size[2] == 1 ? 1 : (p.Nq + PAIR_TILE - 1) / PAIR_TILE, block = blockIdx.x;
    const int64_t index[4] = {block / p.w.blocks / rows / p.bias_size[1],
                              block / p.w.blocks / rows % p.bias_size[1], block / p.w.blocks % rows,
                              block % p.w.blocks};
    const range batch = range_of(p.bias_size[0], index[0], p.B),
                heads = range_of(p.bias_size[1], index[1], p.H);
    streamer<Map, T> loop(p, memory);
    wide_tile sum = {};
    for (int64_t b = batch.first; b < batch.end; b++) {
        const sequence s = find_sequence(p, b);
        const range is = range_of(p.bias_size[2], index[2], (s.n_q + PAIR_TILE - 1) / PAIR_TILE);
        const range js = range_of(p.bias_size[3], index[3], (s.n_k + PAIR_TILE - 1) / PAIR_TILE);
        for (int64_t h = heads.first; h < heads.end; h++) {
            for (int64_t i = is.first; i < is.end && i * PAIR_TILE < s.n_q; i++) {
                for (int64_t j = js.first; j < js.end && j * PAIR_TILE < s.n_k; j++) {
                    tile<T> dS;
                    score_gradient_tile(loop, place_of_tile<T>(p, s, (int)h, (int)i * PAIR_TILE),
                                        (int)j * PAIR_TILE, dS);
                    each_element<T>([&](int m, int half, int n, int c) {
                        sum.x[m][n][2 * half + c] += (double)dS.x[m][n][2 * half + c];
                    });
                }
            }
        }
    }
    store_bias_tile<T>(p, Map::TILES == 4, index, spread_tile<T>(sum, memory));
}

/* ---- dtable ---- */

template <class F, class Map> VERB void table_gradient(const agi_cuda_params &p)
{
    typedef pair_shape<F> T;
    SHARED_MEMORY(memory);
    const int64_t head = blockIdx.x / p.diagonal_tiles, diagonal = blockIdx.x % p.diagonal_tiles;
    const int64_t query_tiles = (p.Nq + PAIR_TILE - 1) / PAIR_TILE, ahead = diagonal - (query_tiles - 1);
    const sequence s = find_sequence(p, head / p.H);
    streamer<Map, T> loop(p, memory);
    double sum = 0;
    for (int64_t i = max(-ahead, (int64_t)0); i * PAIR_TILE < s.n_q && (i + ahead) * PAIR_TILE < s.n_k; i++) {
        tile<T> dS;
        score_gradient_tile(loop, place_of_tile<T>(p, s, (int)(head % p.H), (int)i * PAIR_TILE),
                            (int)(i + ahead) * PAIR_TILE, dS);
        const double *const all = spread_tile<T>(dS, memory);
        const int e = (int)threadIdx.x - (PAIR_TILE - 1); /* j - i in the tile */
        for (int row = max(0, -e); row < min(PAIR_TILE, PAIR_TILE - e); row++) {
            sum += all[row * (PAIR_TILE + 1) + row + e];
        }
    }
    p.diagonals[(int64_t)blockIdx.x * 64 + threadIdx.x] = sum;
}

/* ---- The kernels ---- */

#define AGI_GRADIENT(name, format, threads)                                                                  \
    KERNEL void __launch_bounds__(threads) name##_##format(const __grid_constant__ agi_cuda_params p)        \
    {                                                                                                        \
        name<format>(p);                                                                                     \
    }

template <class F> VERB void dbias(const agi_cuda_params &p)
{
    bias_gradient<F, first_scores>(p);
}
template <class F> VERB void tdbias(const agi_cuda_params &p)
{
    bias_gradient<F, second_scores>(p);
}
template <class F> VERB void dtable(const agi_cuda_params &p)
{
    table_gradient<F, first_scores>(p);
}
template <class F> VERB void tdtable(const agi_cuda_params &p)
{
    table_gradient<F, second_scores>(p);
}
#define AGI_GRADIENTS_OF(list, format) list(AGI_GRADIENT, format)
AGI_GRADIENTS_OF(AGI_CUDA_GRADIENTS, AGI_FORMAT)
