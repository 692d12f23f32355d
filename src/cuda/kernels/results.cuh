/* Storing the results of a block: any stride and dtype, rounded once, added to the old value if the call asks for
 * it. */
#pragma once
#include "cuda/kernels/places.cuh"

/* Can the columns of a result be stored in pairs? */
VERB bool has_pairs(const output &out, int width)
{
    const uintptr_t bytes = out.dtype == AG_F64 ? 16 : out.dtype == AG_F32 ? 8 : 4;
    const int64_t *const s = out.t->strides;
    return !out.accumulate && width % 2 == 0 && s[3] == 1 && ((s[0] | s[1] | s[2]) & 1) == 0 &&
           (uintptr_t)out.t->data % bytes == 0;
}

/* The rows of a result that a warp stores: those after the end of a padded sequence are zero. */
template <class T> struct result_rows {
    const block_place<T> &at;
    bool keys;
    int64_t rows; /* of the tensor, 0 if it is packed */
    int width, head;

    VERB int row(int m, int half) const
    {
        return at.warp_row + m * 16 + half * 8 + (int)threadIdx.x % 32 / 4;
    }
    VERB int column(int n) const
    {
        return at.part * T::C + n * 8 + (int)threadIdx.x % 4 * 2;
    }
    VERB bool exists(int row) const
    {
        return row < at.n_own || row < rows;
    }
    VERB int64_t offset(const output &out, int row) const
    {
        return element_at(*out.t, at.x.s.view, head, (keys ? at.x.s.k0 : at.x.s.q0) + row);
    }
};

/* ---- 16 bytes at a time ---- */

/* Can the rows of a result of 16-bit numbers be stored so? */
template <class F> VERB bool has_chunks(const output &out, int width)
{
    const int64_t *const s = out.t->strides;
    return F::BYTES == 2 && F::PLANES == 1 && out.dtype != AG_F32 && !out.accumulate && width % 8 == 0 &&
           s[3] == 1 && ((s[0] | s[1] | s[2]) & 7) == 0 && (uintptr_t)out.t->data % 16 == 0;
}

/* By way of the warp's place in shared memory: f(m, half, n, i) is the number from the sum at x[m][n][i]. */
template <class T, class Function>
VERB void store_in_chunks(const output &out, const result_rows<T> &r, Function f)
{
    struct alignas(16) chunk {
        uint32_t words[4];
    };
    constexpr int CHUNKS = T::C / 8;
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < 2 * T::M; i++) {
        const int m = i / 2, half = i % 2;
        const bool there = r.row(m, half) < r.at.n_own;
        uint32_t *const row =
            (uint32_t *)(r.at.staging + (m * 16 + half * 8 + lane / 4) * T::PITCH) + lane % 4;
#pragma unroll
        for (int n = 0; n < CHUNKS; n++) {
            row[4 * n] = there ? T::F::pack(f(m, half, n, 2 * half), f(m, half, n, 2 * half + 1)) : 0;
        }
    }
    __syncwarp();
#pragma unroll
    for (int k = lane; k < T::WARP_ROWS * CHUNKS; k += 32) {
        const int row = r.at.warp_row + k / CHUNKS, column = r.at.part * T::C + k % CHUNKS * 8;
        if (r.exists(row) && column < r.width) {
            *(chunk *)((uint16_t *)out.t->data + r.offset(out, row) + column) =
                *(const chunk *)(r.at.staging + k / CHUNKS * T::PITCH + k % CHUNKS * 16);
        }
    }
    __syncwarp(); /* the next result takes the same place */
}

/* ---- Number by number ---- */

/* The numbers that a lane stores, C / 4 for each of its 2 M rows, taken out of the registers so that the loops below
 * are short: f(m, half, n, i) is the number from the sum at x[m][n][i]. */
template <class T> struct results {
    static constexpr int EACH = T::C / 4;
    typename T::real x[2 * T::M][EACH];

    template <class Function> VERB void collect(Function f)
    {
#pragma unroll
        for (int i = 0; i < 2 * T::M * EACH; i++) {
            const int m = i / EACH / 2, half = i / EACH % 2, n = i % EACH / 2;
            x[i / EACH][i % EACH] = f(m, half, n, 2 * half + i % 2);
        }
    }
};

template <class F> VERB void store_pair(const output &out, int64_t at, typename F::real x, typename F::real y)
{
    if constexpr (F::BYTES == 8) {
        *(double2 *)((double *)out.t->data + at) = {x, y};
    } else if constexpr (F::PLANES == 2) {
        *(float2 *)((float *)out.t->data + at) = {x, y};
    } else if (out.dtype == AG_F32) {
        *(float2 *)((float *)out.t->data + at) = {x, y};
    } else {
        *(uint32_t *)((uint16_t *)out.t->data + at) = F::pack(x, y);
    }
}

/* Stores f(row, column, x) for the numbers x of the rows; row: of the lane, 0 to 2 M - 1. */
template <class T, class Function>
VERB void store_results(const output &out, const result_rows<T> &r, const results<T> &all, Function f)
{
    typedef typename T::real real;
    if (out.t->data == nullptr) {
        return;
    }
    const bool pairs = has_pairs(out, r.width);
#pragma unroll 1
    for (int i = 0; i < 2 * T::M; i++) {
        const int row = r.row(i / 2, i % 2);
        const bool there = row < r.at.n_own;
        const int64_t to = r.offset(out, row);
#pragma unroll 1
        for (int n = 0; n < T::C / 8; n++) {
            const int column = r.column(n);
            if (!r.exists(row) || column >= r.width) {
                continue;
            }
            const bool both = column + 1 < r.width;
            const real x = there ? f(i, column, all.x[i][2 * n]) : 0;
            const real y = there && both ? f(i, column + 1, all.x[i][2 * n + 1]) : 0;
            if (pairs) {
                store_pair<typename T::F>(out, to + column, x, y);
                continue;
            }
            out.store(to + column * out.t->strides[3], x);
            if (both) {
                out.store(to + (column + 1) * out.t->strides[3], y);
            }
        }
    }
}

/* Stores f(m, half, n, i), as in store_in_chunks, in the way that the result allows. */
template <class T, class Function>
VERB void store_columns(const output &out, const result_rows<T> &r, Function f)
{
    if (out.t->data == nullptr) {
        return;
    }
    if constexpr (T::F::BYTES == 2 && T::F::PLANES == 1) {
        if (has_chunks<typename T::F>(out, r.width)) {
            store_in_chunks(out, r, f);
            return;
        }
    }
    results<T> all;
    all.collect(f);
    store_results<T>(out, r, all, [](int, int, typename T::real x) { return x; });
}

/* One float64 per row: lse, mu, nu and their cotangents; 0 if the call lacks them. */
VERB double row_number(const ag_tensor &t, const head_place &x, int row)
{
    return t.data == nullptr ? 0 : ((const double *)t.data)[element_at(t, x.s.view, x.h, x.s.q0 + row)];
}
VERB void store_row(const agi_cuda_params &p, const ag_tensor &t, uint32_t bit, const head_place &x, int row,
                    double value)
{
    if (t.data != nullptr) {
        const output out = {&t, AG_F64, (p.a.accumulate & bit) != 0};
        out.store(element_at(t, x.s.view, x.h, x.s.q0 + row), value);
    }
}
