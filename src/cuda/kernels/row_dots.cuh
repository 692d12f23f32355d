/* Products of two outputs along a row, for the statistics before vjp and vjp_jvp: eight lanes share a row, each takes
 * eight channels at a time. The sums are the same, bit for bit, however the tensors lie in memory. */
#pragma once
#include "cuda/kernels/features.cuh"
#include "cuda/kernels/formats.cuh"

/* x and its low half, what rounding took from it, times y; an absent tensor is zero. */
struct output_pair {
    const ag_tensor &x, &low, &y;
};

/* Of eight channels of a row. */
VERB float dot_of_chunk(const agi_cuda_params &p, const output_pair &t, const sequence &s, int h, int row,
                        int c)
{
    const int64_t x = element_at(t.x, s.view, h, s.q0 + row), y = element_at(t.y, s.view, h, s.q0 + row);
    const int64_t low = element_at(t.low, s.view, h, s.q0 + row);
    float sum = 0, of_low = 0;
#pragma unroll
    for (int i = c; i < c + 8; i++) {
        if (i < p.Dv && t.x.data != nullptr && t.y.data != nullptr) {
            const float g = load_number<float>(p.out_dtype, t.y.data, y + i * t.y.strides[3]);
            sum = fmaf(load_number<float>(p.out_dtype, t.x.data, x + i * t.x.strides[3]), g, sum);
            if (t.low.data != nullptr) {
                const float a = load_number<float>(p.out_dtype, t.low.data, low + i * t.low.strides[3]);
                of_low = fmaf(a, g, of_low);
            }
        }
    }
    return sum + of_low * low_half_scale<float>(p.out_dtype);
}
/* The same where eight channels are 16 bytes in a row. */
template <class F>
VERB float dot_of_bytes(const agi_cuda_params &p, const output_pair &pair, const sequence &s, int h, int row,
                        int c)
{
    struct alignas(16) chunk {
        uint32_t words[4];
    };
    const ag_tensor *const t[3] = {&pair.x, &pair.y, &pair.low};
    chunk x[3] = {};
    if (pair.x.data == nullptr || pair.y.data == nullptr) {
        return 0;
    }
#pragma unroll
    for (int n = 0; n < 3; n++) {
        if ((n < 2 || t[n]->data != nullptr) && c < p.Dv) {
            x[n] =
                *(const chunk *)((const uint16_t *)t[n]->data + element_at(*t[n], s.view, h, s.q0 + row) + c);
        }
    }
    float sum = 0, of_low = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float2 o = F::unpack(x[0].words[i]), g = F::unpack(x[1].words[i]),
                     low = F::unpack(x[2].words[i]);
        sum = fmaf(o.y, g.y, fmaf(o.x, g.x, sum));
        of_low = fmaf(low.y, g.y, fmaf(low.x, g.x, of_low));
    }
    return sum + of_low * low_half_scale<float>(p.out_dtype);
}
/* Over the eight lanes of a row. */
VERB float sum_of_eight(float x)
{
    for (int step = 4; step > 0; step /= 2) {
        x += __shfl_xor_sync(~0u, x, step);
    }
    return x;
}
