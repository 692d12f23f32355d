/* What the maps of queries share: the sink's logit, weights as operands, O of the caller, storing rows. */
#pragma once
#include "cuda/kernels/stream.cuh"

template <class real> VERB real sink_of(const agi_cuda_params &p, const ag_tensor &t, int h)
{
    return load_number<real>(p.aux_dtype, t.data, h * t.strides[1]);
}

/* A sum over the keys of a row. The numbers of a tile are added up first: otherwise thousands of roundings, each as
 * large as the whole sum's, would follow each other. Dtypes of more than 16 bits also keep what the additions of the
 * tiles round off. */
template <class T> struct long_sum {
    typedef typename T::real real;
    static constexpr bool KEEPS_REST = T::F::PLANES > 1 || T::F::BYTES == 8;
    real x, rest;

    VERB void begin(real first)
    {
        x = first;
        rest = 0;
    }
    VERB void add(real of_tile)
    {
        const real sum = add_rn(x, of_tile);
        if constexpr (KEEPS_REST) {
            rest = add_rn(rest, add_rn(add_rn(x, -sum), of_tile));
        }
        x = sum;
    }
    VERB void multiply(real factor)
    {
        x = mul_rn(x, factor); /* contracted with an addition, it could differ between kernels */
        rest = mul_rn(rest, factor);
    }
    VERB real value() const
    {
        return KEEPS_REST && fabs(rest) < (real)INFINITY ? add_rn(x, rest) : x;
    }
};

/* The number that a weight becomes as an operand, if that does not depend on its neighbours. */
template <class F> VERB typename F::real as_operand(typename F::real w)
{
    if constexpr (F::PLANES > 1 || F::BYTES == 8) {
        return w;
    } else {
        const float up = F::RAISED ? 0x1p14f : 1.0f, down = F::RAISED ? 0x1p-14f : 1.0f;
        return F::unpack(F::pack(w * up, 0)).x * down;
    }
}

/* O of the caller with its low half. */
template <class real>
VERB real given_o(const agi_cuda_params &p, const ag_tensor &o, const ag_tensor &low, const head_place &x,
                  int row, int column)
{
    real sum = load_number<real>(p.out_dtype, o.data,
                                 element_at(o, x.s.view, x.h, x.s.q0 + row) + column * o.strides[3]);
    if (low.data != nullptr) {
        const int64_t at = element_at(low, x.s.view, x.h, x.s.q0 + row) + column * low.strides[3];
        sum += load_number<real>(p.out_dtype, low.data, at) * low_half_scale<real>(p.out_dtype);
    }
    return sum;
}

/* O or tO and its low half; f as in store_results. */
template <class T, class Function>
VERB void store_halves(const agi_cuda_params &p, const ag_tensor &o, const ag_tensor &low, uint32_t bit,
                       const block_place<T> &at, const results<T> &all, Function f)
{
    const result_rows<T> r = {at, false, p.flags & AG_PACKED ? 0 : p.Nq, p.Dv, at.x.h};
    store_results<T>({&o, p.out_dtype, (p.a.accumulate & bit) != 0}, r, all, f);
    if constexpr (T::F::BYTES == 2 && T::F::PLANES == 1) {
        store_results<T>({&low, p.out_dtype, false}, r, all,
                         [&](int i, int column, float x) { return low_half(p.out_dtype, f(i, column, x)); });
    }
}

/* The same of numbers that are there already: f as in store_columns. */
template <class T, class Function>
VERB void store_outputs(const agi_cuda_params &p, const ag_tensor &o, const ag_tensor &low, uint32_t bit,
                        const block_place<T> &at, Function f)
{
    const result_rows<T> r = {at, false, p.flags & AG_PACKED ? 0 : p.Nq, p.Dv, at.x.h};
    store_columns<T>({&o, p.out_dtype, (p.a.accumulate & bit) != 0}, r, f);
    if constexpr (T::F::BYTES == 2 && T::F::PLANES == 1) {
        store_columns<T>({&low, p.out_dtype, false}, r, [&](int m, int half, int n, int i) {
            return low_half(p.out_dtype, f(m, half, n, i));
        });
    }
}

/* log l; of 16 bits within 1e-6, far below what their rounding does. */
template <class T> VERB double log_of_sum(double l)
{
    if constexpr (T::F::BYTES == 2 && T::F::PLANES == 1) {
        return 0.6931471805599453 * (double)log2f((float)l);
    }
    return log(l);
}

/* Calls f(m, half, row) for each row of the warp that the tensors have, by one lane. */
template <class T, class Function>
VERB void each_row(const agi_cuda_params &p, const block_place<T> &at, Function f)
{
#pragma unroll
    for (int m = 0; m < T::M; m++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int lane = threadIdx.x % 32, row = at.warp_row + m * 16 + half * 8 + lane / 4;
            const int64_t rows = p.flags & AG_PACKED ? at.n_own : p.Nq;
            if (lane % 4 == 0 && at.part == 0 && row < rows) {
                f(m, half, row);
            }
        }
    }
}
