/* Number formats of the products. A float32 is a sum of two float16 planes, and a product of two such sums is three
 * products of planes, the small ones first. The other dtypes are one plane: themselves.
 *
 *     real            what is summed and computed in
 *     PLANES, BYTES   of a number in shared memory; BYTES per plane
 *     PRODUCTS        products of planes; first(i), second(i): the planes of the i-th
 *     SCALED          inputs are stored times a power of two per 64 rows: float16 has 5 bits of exponent
 *     RAISED          weights are brought to the top of float16's range, tile by tile */
#pragma once
#include "cuda/kernels/verbs.cuh"

struct half_pairs {
    typedef float real;
    static constexpr int BYTES = 2;
    static VERB uint32_t pack(float x, float y)
    {
        return pack_half(x, y);
    }
    static VERB float2 unpack(uint32_t r)
    {
        return unpack_half(r);
    }
    static VERB void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
    {
        mma_half(c, a, b0, b1);
    }
};

struct bf16 {
    typedef float real;
    static constexpr int BYTES = 2, PLANES = 1, PRODUCTS = 1;
    static constexpr bool SCALED = false, RAISED = false;
    static constexpr VERB int first(int)
    {
        return 0;
    }
    static constexpr VERB int second(int)
    {
        return 0;
    }
    static VERB uint32_t pack(float x, float y)
    {
        return pack_bfloat(x, y);
    }
    static VERB float2 unpack(uint32_t r)
    {
        return unpack_bfloat(r);
    }
    static VERB void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
    {
        mma_bfloat(c, a, b0, b1);
    }
};

struct f16 : half_pairs {
    static constexpr int PLANES = 1, PRODUCTS = 1;
    static constexpr bool SCALED = false, RAISED = true;
    static constexpr VERB int first(int)
    {
        return 0;
    }
    static constexpr VERB int second(int)
    {
        return 0;
    }
};

struct f32 : half_pairs {
    static constexpr int PLANES = 2, PRODUCTS = 3;
    static constexpr bool SCALED = true, RAISED = true;
    static constexpr VERB int first(int i)
    {
        return i == 0 ? 1 : 0;
    }
    static constexpr VERB int second(int i)
    {
        return i == 1 ? 1 : 0;
    }
};

struct f64 {
    typedef double real;
    static constexpr int BYTES = 8, PLANES = 1, PRODUCTS = 1;
    static constexpr bool SCALED = false, RAISED = false;
};

/* Two numbers into the planes of a format, each plane rounded to nearest of what the planes before it left. */
template <class F> VERB void split(float x, float y, uint32_t (&plane)[F::PLANES])
{
#pragma unroll
    for (int p = 0; p < F::PLANES; p++) {
        plane[p] = F::pack(x, y);
        if (p + 1 < F::PLANES) {
            const float2 taken = F::unpack(plane[p]);
            x -= taken.x;
            y -= taken.y;
        }
    }
}

/* 2^(14 - exponent of most) and its inverse, both normal numbers: brings numbers up to `most` to the top of float16. */
VERB float raise_to_half(float most, float &inverse)
{
    const uint32_t e = min(max(__float_as_uint(most) >> 23, 15u), 254u);
    inverse = __uint_as_float((e - 14u) << 23);
    return __uint_as_float((268u - e) << 23);
}
