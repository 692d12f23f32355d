/* Numbers in the caller's memory: any dtype, any stride, each output rounded once. */
#pragma once
#include "cuda/kernels/verbs.cuh"
#include "cuda/params.h"

template <class real> VERB real load_number(int32_t dtype, const void *data, int64_t at)
{
    switch (dtype) {
    case AG_F64: return (real)((const double *)data)[at];
    case AG_F32: return ((const float *)data)[at];
    case AG_F16: return unpack_half(((const uint16_t *)data)[at]).x;
    default: return unpack_bfloat(((const uint16_t *)data)[at]).x;
    }
}

/* One of the problem's auxiliary tensors: of the dtype of the products, or wider. */
VERB double load_aux(int32_t, const void *data, int64_t at, double)
{
    return ((const double *)data)[at];
}
VERB float load_aux(int32_t dtype, const void *data, int64_t at, float)
{
    if (dtype == AG_F32) {
        return ((const float *)data)[at];
    }
    const uint32_t x = ((const uint16_t *)data)[at];
    return dtype == AG_F16 ? unpack_half(x).x : unpack_bfloat(x).x;
}

/* A double becomes a 16-bit number by way of a float that is rounded to odd, so that it is rounded once in effect. */
VERB float round_to_odd(double x)
{
    const float nearest = (float)x;
    const double error = x - (double)nearest;
    if (!(error != 0) || !(fabsf(nearest) < INFINITY) || (__float_as_uint(nearest) & 1) != 0) {
        return nearest;
    }
    const bool up = (error > 0) == (nearest > 0);
    return __uint_as_float(__float_as_uint(nearest) + (up ? 1u : ~0u));
}
VERB float round_to_odd(float x)
{
    return x;
}

template <class real> VERB void store_number(int32_t dtype, void *data, int64_t at, real x)
{
    switch (dtype) {
    case AG_F64: ((double *)data)[at] = (double)x; break;
    case AG_F32: ((float *)data)[at] = (float)x; break;
    case AG_F16: ((uint16_t *)data)[at] = (uint16_t)pack_half(round_to_odd(x), 0); break;
    default: ((uint16_t *)data)[at] = (uint16_t)pack_bfloat(round_to_odd(x), 0); break;
    }
}

/* The low half of x: what rounding to the 16-bit dtype takes from it; float16's times 2^11. 0 unless both are
 * finite. */
VERB float low_half(int32_t dtype, float x)
{
    const float rounded =
        dtype == AG_F16 ? unpack_half(pack_half(x, 0)).x : unpack_bfloat(pack_bfloat(x, 0)).x;
    const float rest = x - rounded;
    return !(fabsf(rest) < INFINITY) ? 0.0f : dtype == AG_F16 ? rest * 0x1p11f : rest;
}
template <class real> VERB real low_half_scale(int32_t dtype)
{
    return dtype == AG_F16 ? (real)0x1p-11 : (real)1;
}

/* Where element (b, h, row, 0) of a view is. */
VERB int64_t element_at(const ag_tensor &t, int64_t b, int64_t h, int64_t row)
{
    return b * t.strides[0] + h * t.strides[1] + row * t.strides[2];
}

/* An output: added to its old value if the call asks for that. */
struct output {
    const ag_tensor *t;
    int32_t dtype;
    bool accumulate;
    template <class real> VERB void store(int64_t at, real x) const
    {
        if (accumulate) {
            const real before = load_number<real>(dtype, t->data, at);
            store_number(dtype, t->data, at, add_rn(before, x));
        } else {
            store_number(dtype, t->data, at, x);
        }
    }
};
