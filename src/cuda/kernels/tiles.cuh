/* Tiles in shared memory and the two products on them. A tile is PLANES matrices of rows of CH numbers, padded so that
 * neighbouring rows begin at different banks. A warp owns M * 16 rows.
 *
 *     add_scores   T += X Y^T     X: owner rows, Y: stream rows, both in shared memory
 *     add_product  C += W Y       W: the warp's weights, in registers; Y: the same stream tile, read transposed
 *
 * T, W and C are spread over the lanes of a warp as the tensor core does it: of 16 rows and 8 columns, lane l holds
 * rows l / 4 and l / 4 + 8, columns 2 (l % 4) and 2 (l % 4) + 1. So W is an operand of the next product as it is. */
#pragma once
#include "cuda/kernels/formats.cuh"
#include "cuda/params.h"

/* The shape of a stream kernel: see AGI_CUDA_STREAM in params.h. */
template <class FORMAT, int D, int COLUMNS, int M_TILES, int N_WARPS, int ROWS, int N_STAGES, bool IS_FULL>
struct shape {
    typedef FORMAT F;
    typedef typename F::real real;
    static constexpr bool ANY = D == 0, FULL = IS_FULL;
    static constexpr int CH = ANY ? COLUMNS : D; /* channels in shared memory at a time */
    static constexpr int C = COLUMNS, M = M_TILES, WARPS = N_WARPS, N = ROWS, STAGES = N_STAGES;
    static constexpr int WARP_ROWS = 16 * M, BLOCK_ROWS = WARPS * WARP_ROWS, THREADS = 32 * WARPS;
    static constexpr int PITCH = AGI_CUDA_PITCH(F::BYTES, CH); /* bytes of a row */
    static constexpr int OWN_BYTES = F::PLANES * BLOCK_ROWS * PITCH;
    static constexpr int STREAM_BYTES = F::PLANES * N * PITCH;
    static constexpr int SEEN = (N + 31) / 32;
};

/* A score tile of a warp, and columns of a result. */
template <class T> struct tile {
    typename T::real x[T::M][T::N / 8][4];
};
template <class T> struct columns {
    typename T::real x[T::M][T::C / 8][4];
};

template <class T> VERB void clear(tile<T> &t)
{
#pragma unroll
    for (int m = 0; m < T::M; m++) {
#pragma unroll
        for (int i = 0; i < T::N / 2; i++) {
            t.x[m][i / 4][i % 4] = 0;
        }
    }
}
template <class T> VERB void clear(columns<T> &c)
{
#pragma unroll
    for (int m = 0; m < T::M; m++) {
#pragma unroll
        for (int i = 0; i < T::C / 2; i++) {
            c.x[m][i / 4][i % 4] = 0;
        }
    }
}

/* Calls f(m, half, n, c) for each element that the lane holds of a tile: row 16 m + 8 half + lane / 4, column
 * 8 n + 2 (lane % 4) + c, at x[m][n][2 half + c]. */
template <class T, class Function> VERB void each_element(Function f)
{
#pragma unroll
    for (int m = 0; m < T::M; m++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
#pragma unroll
            for (int n = 0; n < T::N / 8; n++) {
#pragma unroll
                for (int c = 0; c < 2; c++) {
                    f(m, half, n, c);
                }
            }
        }
    }
}

/* Over the four lanes that share a row. */
template <class real> VERB real row_max(real x)
{
    x = fmax(x, __shfl_xor_sync(~0u, x, 1));
    return fmax(x, __shfl_xor_sync(~0u, x, 2));
}
template <class real> VERB real row_sum(real x)
{
    x += __shfl_xor_sync(~0u, x, 1);
    return x + __shfl_xor_sync(~0u, x, 2);
}

/* ---- Loading ---- */

/* One head of one sequence of a matrix. */
struct head_matrix {
    const char *data; /* its row 0; NULL: absent */
    const float *inverse;
    int64_t row, plane; /* in bytes */
    int n, width;
};

/* Rows first .. first + ROWS - 1, channels from `channel` on; what does not exist is zero. A thread copies one chunk of
 * channels of every STEP-th row: its addresses move by constants. */
template <class T, int ROWS> VERB void load_tile(uint32_t to, const head_matrix &x, int first, int channel)
{
    constexpr int NUMBERS = 16 / T::F::BYTES, CHUNKS = T::CH / NUMBERS;
    constexpr int COLUMNS = CHUNKS < T::THREADS ? CHUNKS : T::THREADS, STEP = T::THREADS / COLUMNS;
    static_assert(T::THREADS % COLUMNS == 0 && CHUNKS % COLUMNS == 0, "every thread has a chunk of its own");
    const int row = threadIdx.x / COLUMNS, column = threadIdx.x % COLUMNS;
    const int64_t step = STEP * x.row;
    to += row * T::PITCH + column * 16;
#pragma unroll
    for (int c = 0; c < CHUNKS; c += COLUMNS) {
        const int number = channel + (column + c) * NUMBERS, rows = number < x.width ? x.n - first - row : 0;
#pragma unroll
        for (int p = 0; p < T::F::PLANES; p++) {
            const char *from = x.data + p * x.plane + (first + row) * x.row + number * T::F::BYTES;
#pragma unroll
            for (int r = 0; r < ROWS; r += STEP) {
                if (ROWS % STEP == 0 || r + row < ROWS) {
                    copy_16(to + (p * ROWS + r) * T::PITCH + c * 16, from, r < rows);
                }
                from += step;
            }
        }
    }
}

/* The same for rows that are pairs: row r is query r / group of head r % group, heads are `head` bytes apart. */
template <class T> VERB void load_pairs(uint32_t to, const head_matrix &x, int64_t head, int group)
{
    constexpr int NUMBERS = 16 / T::F::BYTES, CHUNKS = T::CH / NUMBERS, ROWS = T::BLOCK_ROWS;
    for (int i = threadIdx.x; i < T::F::PLANES * ROWS * CHUNKS; i += T::THREADS) {
        const int chunk = i % CHUNKS, row = i / CHUNKS % ROWS, plane = i / CHUNKS / ROWS;
        const char *from = x.data + plane * x.plane + row / group * x.row + row % group * head + chunk * 16;
        copy_16(to + (plane * ROWS + row) * T::PITCH + chunk * 16, from,
                row < x.n && chunk * NUMBERS < x.width);
    }
}

/* The power of two of a row. */
template <class F> VERB float inverse_of(const head_matrix &x, int row)
{
    return F::SCALED ? x.inverse[min(row, x.n - 1) / AGI_CUDA_SCALE_ROWS] : 1.0f;
}

/* ---- Scores ---- */

/* t += factor X Y^T, for the warp's rows x of the block's tile. A sum inside the tensor core is cut off, not rounded:
 * so the product of CHAIN * 16 channels of a split format starts from zero, all small planes first, and is added by a
 * rounded sum; factor, by 16 rows (HALVES = 2: by row of the lane), is a power of two. MIRRORED: the planes of X and Y
 * change places, so that Y X^T has the bits of X Y^T. precise: float32 has the product of the two small planes too,
 * which a softcap far below the scores needs: its derivatives change fast. */
template <class T, bool MIRRORED, int HALVES> struct score_products {
    typedef typename T::F F;
    static constexpr int CHAIN = F::PRODUCTS > 1 ? 2 : 1;
    /* Steps of the loop over channels whose fragments the compiler may load ahead. With one, the kernels of float32's
     * vjp at head size 64 need at most 168 registers, and three blocks of them fit a multiprocessor. */
    static constexpr int AHEAD = F::PLANES > 1 && T::M == 1 && T::CH <= 64 ? 1 : 2;
    typedef uint32_t planes[CHAIN][F::PLANES][4];

    static VERB void load(planes &a, uint32_t address, int rows)
    {
#pragma unroll
        for (int k = 0; k < CHAIN; k++) {
#pragma unroll
            for (int p = 0; p < F::PLANES; p++) {
                load_matrices(a[k][p], address + p * rows * T::PITCH + k * 32);
            }
        }
    }
    static VERB void multiply(float (&part)[2][4], const planes &a, const planes &b, bool precise)
    {
        if constexpr (T::FULL && F::PLANES == 2) {
            if (precise) {
#pragma unroll
                for (int k = 0; k < CHAIN; k++) {
                    F::mma(part[0], a[k][1], b[k][1][0], b[k][1][1]);
                    F::mma(part[1], a[k][1], b[k][1][2], b[k][1][3]);
                }
            }
        }
#pragma unroll
        for (int i = 0; i < F::PRODUCTS; i++) {
            const int pa = MIRRORED ? F::second(i) : F::first(i), pb = MIRRORED ? F::first(i) : F::second(i);
#pragma unroll
            for (int k = 0; k < CHAIN; k++) {
                F::mma(part[0], a[k][pa], b[k][pb][0], b[k][pb][1]);
                F::mma(part[1], a[k][pa], b[k][pb][2], b[k][pb][3]);
            }
        }
    }
    static VERB void add(tile<T> &t, uint32_t x, uint32_t y, const float (&factor)[T::M][HALVES],
                         bool precise)
    {
        const int lane = threadIdx.x % 32;
        const uint32_t xa = x + (lane & 15) * T::PITCH + (lane >> 4) * 16;
        const uint32_t yb = y + ((lane & 7) + (lane >> 4) * 8) * T::PITCH + (lane >> 3 & 1) * 16;
#pragma unroll(AHEAD)
        for (int k = 0; k < T::CH / 16; k += CHAIN) {
            planes a[T::M], b;
#pragma unroll
            for (int m = 0; m < T::M; m++) {
                load(a[m], xa + m * 16 * T::PITCH + k * 32, T::BLOCK_ROWS);
            }
#pragma unroll
            for (int n = 0; n < T::N / 16; n++) {
                load(b, yb + n * 16 * T::PITCH + k * 32, T::N);
#pragma unroll
                for (int m = 0; m < T::M; m++) {
                    float(&sum)[2][4] = *(float(*)[2][4]) & t.x[m][2 * n];
                    if (F::PRODUCTS == 1) {
                        multiply(sum, a[m], b, false);
                        continue;
                    }
                    float part[2][4] = {{0, 0, 0, 0}, {0, 0, 0, 0}};
                    multiply(part, a[m], b, precise);
#pragma unroll
                    for (int i = 0; i < 8; i++) {
                        const float f = factor[m][HALVES == 2 ? i / 2 % 2 : 0];
                        sum[i / 4][i % 4] = fmaf(part[i / 4][i % 4], f, sum[i / 4][i % 4]);
                    }
                }
            }
        }
    }
};

/* float64: four loads of 8 bytes, each into the register of the operand where it belongs; loads of 16 bytes are as much
 * traffic, and each product then moves the whole operand between registers first. */
template <class T> VERB void add_scores_f64(tile<T> &t, uint32_t x, uint32_t y)
{
    const int lane = threadIdx.x % 32, at = lane / 4 * T::PITCH + lane % 4 * 8;
#pragma unroll 2
    for (int c = 0; c < T::CH; c += 8) {
#pragma unroll
        for (int m = 0; m < T::M; m++) {
            const uint32_t low = x + m * 16 * T::PITCH + at + c * 8, high = low + 8 * T::PITCH;
            const double a[4] = {load_double(low), load_double(high), load_double(low + 32),
                                 load_double(high + 32)};
#pragma unroll
            for (int n = 0; n < T::N / 8; n++) {
                const uint32_t b = y + n * 8 * T::PITCH + at + c * 8;
                mma_double(t.x[m][n], a, load_double(b), load_double(b + 32));
            }
        }
    }
}

template <class T, bool MIRRORED, int HALVES>
VERB void add_scores(tile<T> &t, uint32_t x, uint32_t y, const float (&factor)[T::M][HALVES], bool precise)
{
    if constexpr (T::F::BYTES == 8) {
        add_scores_f64<T>(t, x, y);
    } else {
        score_products<T, MIRRORED, HALVES>::add(t, x, y, factor, precise);
    }
}

/* ---- Products of weights ---- */

/* Which rows of the stream tile some row of the warp sees; the others are read as zeros, as 0 times NaN is NaN. */
template <class T> struct seen_rows {
    bool all;
    uint32_t bits[T::SEEN];
    VERB bool sees(int row) const
    {
        return bits[row / 32] >> row % 32 & 1;
    }
    /* For a pair of 16-bit numbers of rows `row` and `row` + 1. */
    VERB uint32_t pair(int row) const
    {
        return (sees(row) ? 0xffffu : 0) | (sees(row + 1) ? 0xffff0000u : 0);
    }
};

/* The factor that a format's weights are multiplied by, and its inverse, by rows. bound: none of them is larger. */
template <class T> struct raised {
    float up[T::M][2], down[T::M][2];
};
template <class T> VERB void raise_rows(raised<T> &r, const tile<T> &w)
{
#pragma unroll
    for (int m = 0; m < T::M; m++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float most = 0;
#pragma unroll
            for (int n = 0; n < T::N / 8; n++) {
                const float a = fabsf((float)w.x[m][n][2 * half]), b = fabsf((float)w.x[m][n][2 * half + 1]);
                most = fmaxf(most, fmaxf(a < INFINITY ? a : 0.0f, b < INFINITY ? b : 0.0f));
            }
            r.up[m][half] = raise_to_half(row_max(most), r.down[m][half]);
        }
    }
}
template <class T> VERB void raise_weights(raised<T> &r) /* of numbers up to 1 */
{
#pragma unroll
    for (int i = 0; i < 2 * T::M; i++) {
        r.up[i / 2][i % 2] = T::F::RAISED ? 0x1p14f : 1.0f;
        r.down[i / 2][i % 2] = T::F::RAISED ? 0x1p-14f : 1.0f;
    }
}

/* Rounds weights to what they are as operands of a 16-bit format, so that a sum of them is the sum of what is
 * multiplied. */
template <class T> VERB void round_to_operands(tile<T> &w)
{
    if constexpr (T::F::BYTES == 2 && T::F::PLANES == 1) {
        raised<T> r;
        if (T::F::RAISED) {
            raise_rows<T>(r, w);
        } else {
            raise_weights<T>(r);
        }
        each_element<T>([&](int m, int half, int n, int c) {
            float &x = w.x[m][n][2 * half + c];
            x = T::F::unpack(T::F::pack(x * r.up[m][half], 0)).x * r.down[m][half];
        });
    }
}

/* The weights of a plain kernel of one 16-bit plane that has one tile of them: pairs of neighbours are rounded to
 * operands, raised, at once, and their 32 bits stand in the place of the first of the two. */
template <class T, class Map>
constexpr bool packed_weights = !T::FULL && T::F::BYTES == 2 && T::F::PLANES == 1 && Map::TILES == 1;

/* c += W Y, 16 bits. The sums of a raised format start from zero in each tile and are added by a rounded sum that also
 * takes the powers of two back. ALL: every row of the stream is seen, which spares the masks. */
template <class T, bool ALL, bool PACKED>
VERB void add_product_16(columns<T> &c, const tile<T> &w, const raised<T> &r, uint32_t y, float y_inverse,
                         const seen_rows<T> &seen)
{
    typedef typename T::F F;
    const int lane = threadIdx.x % 32;
    const uint32_t yb = y + (lane & 15) * T::PITCH + (lane >> 4) * 16;
    uint32_t a[T::M][T::N / 16][F::PLANES][4], mask[T::N / 8];
#pragma unroll
    for (int k = 0; k < T::N / 8; k++) {
        mask[k] = ALL || seen.all ? ~0u : seen.pair(k * 8 + lane % 4 * 2);
    }
#pragma unroll
    for (int m = 0; m < T::M; m++) {
#pragma unroll
        for (int i = 0; i < T::N / 4; i++) {
            const int n = i / 2, half = i % 2;
            uint32_t plane[F::PLANES];
            if (PACKED) {
                plane[0] = __float_as_uint((float)w.x[m][n][2 * half]);
            } else {
                split<F>(w.x[m][n][2 * half] * r.up[m][half], w.x[m][n][2 * half + 1] * r.up[m][half], plane);
            }
#pragma unroll
            for (int p = 0; p < F::PLANES; p++) {
                a[m][n / 2][p][n % 2 * 2 + half] = plane[p];
            }
        }
    }
#pragma unroll
    for (int n = 0; n < T::C / 16; n++) {
        float sum[T::M][2][4];
#pragma unroll
        for (int i = 0; i < T::M * 8; i++) {
            sum[i / 8][i / 4 % 2][i % 4] = F::RAISED ? 0.0f : c.x[i / 8][2 * n + i / 4 % 2][i % 4];
        }
#pragma unroll
        for (int k = 0; k < T::N / 16; k++) {
            uint32_t b[F::PLANES][4];
#pragma unroll
            for (int p = 0; p < F::PLANES; p++) {
                load_matrices_transposed(b[p], yb + (p * T::N + k * 16) * T::PITCH + n * 32);
                if (!ALL && !seen.all) {
#pragma unroll
                    for (int i = 0; i < 4; i++) {
                        b[p][i] &= mask[2 * k + i % 2];
                    }
                }
            }
#pragma unroll
            for (int i = 0; i < F::PRODUCTS; i++) {
                const int pb = F::second(i);
#pragma unroll
                for (int m = 0; m < T::M; m++) {
                    F::mma(sum[m][0], a[m][k][F::first(i)], b[pb][0], b[pb][1]);
                    F::mma(sum[m][1], a[m][k][F::first(i)], b[pb][2], b[pb][3]);
                }
            }
        }
#pragma unroll
        for (int i = 0; i < T::M * 8; i++) {
            float &x = c.x[i / 8][2 * n + i / 4 % 2][i % 4];
            const float part = sum[i / 8][i / 4 % 2][i % 4];
            x = F::RAISED ? fmaf(part, r.down[i / 8][i / 2 % 2] * y_inverse, x) : part;
        }
    }
}

/* A lane multiplies rows 2 (lane % 4) and the next of each 8; half of the lanes take the second one first, so that the
 * 16 lanes that load at once meet no bank twice (a pitch is 32 bytes more than a multiple of 128). */
template <class T, bool ALL>
VERB void add_product_f64(columns<T> &c, const tile<T> &w, uint32_t y, const seen_rows<T> &seen)
{
    const int lane = threadIdx.x % 32, turned = lane >> 1 & 1, first = lane % 4 * 2 + turned,
              second = first ^ 1;
    const uint32_t y0 = y + first * T::PITCH + lane / 4 * 8, y1 = y + second * T::PITCH + lane / 4 * 8;
#pragma unroll
    for (int k = 0; k < T::N / 8; k++) {
        const bool sees0 = ALL || seen.all || seen.sees(k * 8 + first);
        const bool sees1 = ALL || seen.all || seen.sees(k * 8 + second);
        double a[T::M][4];
#pragma unroll
        for (int i = 0; i < T::M * 4; i++) {
            const double(&x)[4] = w.x[i / 4][k];
            const int row = i % 2 * 2, column = i % 4 / 2;
            a[i / 4][i % 4] = turned ? x[row + 1 - column] : x[row + column];
        }
#pragma unroll
        for (int n = 0; n < T::C / 8; n++) {
            const uint32_t at = k * 8 * T::PITCH + n * 64;
            const double b0 = sees0 ? load_double(y0 + at) : 0, b1 = sees1 ? load_double(y1 + at) : 0;
#pragma unroll
            for (int m = 0; m < T::M; m++) {
                mma_double(c.x[m][n], a[m], b0, b1);
            }
        }
    }
}

template <class T, bool WEIGHTS, bool PACKED, bool ALL>
VERB void add_product_of(columns<T> &c, const tile<T> &w, uint32_t y, float y_inverse,
                         const seen_rows<T> &seen)
{
    if constexpr (T::F::BYTES == 8) {
        add_product_f64<T, ALL>(c, w, y, seen);
    } else {
        raised<T> r;
        if (WEIGHTS || !T::F::RAISED) {
            raise_weights<T>(r);
        } else {
            raise_rows<T>(r, w);
        }
        add_product_16<T, ALL, PACKED>(c, w, r, y, y_inverse, seen);
    }
}

/* c += W Y. WEIGHTS: the numbers of W are between 0 and 1. Plain kernels have the product twice, as most of their tiles
 * are seen as a whole. */
template <class T, bool WEIGHTS, bool PACKED>
VERB void add_product(columns<T> &c, const tile<T> &w, uint32_t y, float y_inverse, const seen_rows<T> &seen)
{
    if (!T::FULL && seen.all) {
        add_product_of<T, WEIGHTS, PACKED, true>(c, w, y, y_inverse, seen);
    } else {
        add_product_of<T, WEIGHTS, PACKED, false>(c, w, y, y_inverse, seen);
    }
}
