/* What the kernels of some feature sets on Hopper read instead of working it out for each pair: the sum of ALiBi and
 * table by distance, and which keys some query sees. */
#include "cuda/hopper_params.h"
#include "cuda/kernels/features.cuh"

/* ---- hopper_relative: a number for each j - i of each head ---- */

VERB float relative_term(const agi_cuda_params &p, const head_place &x, int distance) /* j - i */
{
    float sum = p.a.table.data == nullptr ? 0 : table_entry<float>(p, x, distance);
    if (p.slopes != nullptr) {
        const int64_t apart = distance + x.s.k_shift - x.s.shift;
        sum = add_rn(sum, mul_rn(-(float)p.slopes[x.h], (float)(apart < 0 ? -apart : apart)));
    }
    return sum;
}

KERNEL void __launch_bounds__(256) hopper_relative(const __grid_constant__ agi_hopper_before f)
{
    const int64_t head = blockIdx.x / f.p.w.blocks, step = f.p.w.blocks * blockDim.x;
    const head_place x = {find_sequence(f.p, head / f.p.H), (int)(head % f.p.H)};
    float *const to = f.x.relative + head * f.x.relative_width;
    const int64_t first = blockIdx.x % f.p.w.blocks * blockDim.x + threadIdx.x;
    for (int64_t at = first; at < f.x.relative_width; at += step) {
        to[at] = relative_term(f.p, x, (int)(at - f.p.Nq - AGI_HOPPER_PAD));
    }
}

/* ---- hopper_live: has the key a visible pair? ---- */

VERB bool is_visible(const agi_cuda_params &p, const head_place &x, int i, int j)
{
    const ag_tensor &mask = p.a.mask, &bias = p.a.bias;
    const bool masked = mask.data != nullptr && ((const uint8_t *)mask.data)[broadcast_at(mask, x, i, j)] == 0;
    return !masked && (bias.data == nullptr ||
                       load_aux(p.aux_dtype, bias.data, broadcast_at(bias, x, i, j), 0.0f) != -INFINITY);
}

/* Is an axis of mask and bias the same all along? */
VERB bool is_broadcast(const agi_cuda_params &p, int axis)
{
    return (p.a.mask.data == nullptr || p.a.mask.strides[axis] == 0) &&
           (p.a.bias.data == nullptr || p.a.bias.strides[axis] == 0);
}

/* Queries i, i + step, ... below end: COUNT loads at once. */
template <int COUNT>
VERB bool sees_some(const agi_cuda_params &p, const head_place &x, int i, int step, int end, int j)
{
    bool some = false;
#pragma unroll
    for (int n = 0; n < COUNT; n++) {
        some |= i + n * step < end && is_visible(p, x, i + n * step, j);
    }
    return some;
}

/* A lane per key; the warps share its queries, and stop as soon as one of them has found a pair. */
KERNEL void __launch_bounds__(256) hopper_live(const __grid_constant__ agi_hopper_before f)
{
    constexpr int TOGETHER = 8;
    SHARED_MEMORY(shared);
    volatile int *const found = (volatile int *)shared;
    const agi_cuda_params &p = f.p;
    const int64_t head = blockIdx.x / p.w.blocks;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    const int j = (int)(blockIdx.x % p.w.blocks) * 32 + lane;
    head_place x = {find_sequence(p, head / p.Hk), 0};
    const int from = max(j - x.s.high, 0), to = j < x.s.n_k ? min(j - x.s.low + 1, x.s.n_q) : 0;
    const int end = is_broadcast(p, 2) ? min(to, from + 1) : to;
    if (warp == 0) {
        found[lane] = j >= x.s.n_k;
    }
    __syncthreads();
    for (int n = 0; n < (is_broadcast(p, 1) ? 1 : p.group); n++) {
        x.h = (int)(head % p.Hk) * p.group + n;
        for (int i = from + warp; i < end && found[lane] == 0; i += TOGETHER * warps) {
            if (sees_some<TOGETHER>(p, x, i, warps, end, j)) {
                found[lane] = 1;
            }
        }
    }
    __syncthreads();
    if (warp == 0) {
        f.x.live[head * f.x.live_width + j] = (uint8_t)found[lane];
    }
}
