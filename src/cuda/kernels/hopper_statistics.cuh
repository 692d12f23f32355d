/* What comes before vjp in one kernel (hopper_ring.cu): L and D of each query, counters at zero, and zeros in tiles of dQ
 * that no block of keys visits. */
#pragma once
#include "cuda/kernels/hopper_walk.cuh"
#include "cuda/kernels/results.cuh"

/* P is larger by this power of two as an operand in float16, whose range is small. */
template <class F> constexpr float RAISE = F::RAISED ? 14 : 0;

/* O and dO of eight channels of a row; `low`: what rounding took from O. */
VERB float dot_of_chunk(const agi_cuda_params &p, const sequence &s, int h, int row, int c)
{
    const int64_t o = element_at(p.a.o, s.view, h, s.q0 + row), d_o = element_at(p.a.d_o, s.view, h, s.q0 + row);
    const int64_t low = element_at(p.a.o_low, s.view, h, s.q0 + row);
    float sum = 0, of_low = 0;
#pragma unroll
    for (int i = c; i < c + 8; i++) {
        if (i < p.Dv) {
            const float g = load_number<float>(p.out_dtype, p.a.d_o.data, d_o + i * p.a.d_o.strides[3]);
            sum = fmaf(load_number<float>(p.out_dtype, p.a.o.data, o + i * p.a.o.strides[3]), g, sum);
            if (p.a.o_low.data != nullptr) {
                const float x = load_number<float>(p.out_dtype, p.a.o_low.data, low + i * p.a.o_low.strides[3]);
                of_low = fmaf(x, g, of_low);
            }
        }
    }
    return sum + of_low * low_half_scale<float>(p.out_dtype);
}
/* The same where eight channels are 16 bytes in a row. */
template <class F> VERB float dot_of_bytes(const agi_cuda_params &p, const sequence &s, int h, int row, int c)
{
    struct alignas(16) chunk {
        uint32_t words[4];
    };
    const ag_tensor *const t[3] = {&p.a.o, &p.a.d_o, &p.a.o_low};
    chunk x[3] = {};
#pragma unroll
    for (int n = 0; n < 3; n++) {
        if (t[n]->data != nullptr && c < p.Dv) {
            x[n] = *(const chunk *)((const uint16_t *)t[n]->data + element_at(*t[n], s.view, h, s.q0 + row) + c);
        }
    }
    float sum = 0, of_low = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float2 o = F::unpack(x[0].words[i]), g = F::unpack(x[1].words[i]), low = F::unpack(x[2].words[i]);
        sum = fmaf(o.y, g.y, fmaf(o.x, g.x, sum));
        of_low = fmaf(low.y, g.y, fmaf(low.x, g.x, of_low));
    }
    return sum + of_low * low_half_scale<float>(p.out_dtype);
}

VERB double row_number(const ag_tensor &t, const sequence &s, int h, int row)
{
    return t.data == nullptr ? 0 : ((const double *)t.data)[element_at(t, s.view, h, s.q0 + row)];
}

/* A block has one tile of one head: 32 rows at a time, eight lanes each. */
template <class T> struct tile_statistics {
    typedef typename T::F F;
    const agi_hopper_ring &f;
    sequence s;
    int h, m;
    int64_t tile; /* in the sums */

    VERB tile_statistics(const agi_hopper_ring &call) : f(call)
    {
        const int64_t index = blockIdx.x / f.p.w.blocks;
        s = find_sequence(f.p, index / f.p.H);
        h = (int)(index % f.p.H);
        m = (int)(blockIdx.x % f.p.w.blocks);
        tile = h * f.tiles + first_tile_of(f.p, s, T::N) + m;
    }
    VERB float dot(int row) const
    {
        float sum = 0;
#pragma unroll
        for (int c = 0; c < T::D; c += 64) {
            const int mine = c + (int)threadIdx.x % 8 * 8;
            sum += f.in_chunks ? dot_of_bytes<F>(f.p, s, h, row, mine) : dot_of_chunk(f.p, s, h, row, mine);
        }
        return sum;
    }
    /* Has mask or bias hidden every key from a row that has a sink? Then L is the sink. */
    VERB bool sees_sink_alone(double L) const
    {
        const bool hides = f.p.a.bias.data != nullptr || f.p.a.mask.data != nullptr;
        const ag_tensor &t = f.p.a.sink;
        return hides && t.data != nullptr && L == load_aux(f.p.aux_dtype, t.data, h * t.strides[1], 0.0f);
    }
    /* L in powers of two; a row that sees no key has none: its weights are then 0. D = rowsum(dO o O) - dL. */
    VERB void put_row(int r, float D) const
    {
        const int row = m * T::N + r;
        const bool there = row < s.n_q;
        const double L = there ? row_number(f.p.a.lse, s, h, row) : -INFINITY;
        const bool sees = max(row + s.low, 0) < min(row + s.high + 1, s.n_k);
        const bool none = L == -INFINITY || sees_sink_alone(L);
        const int64_t at = tile * T::N + r;
        if (f.lse_rest != nullptr) {
            f.lse[at] = none ? INFINITY : (float)L;
            f.lse_rest[at] = none ? 0 : (float)(((double)(float)L - L) * 1.4426950408889634) + RAISE<F>;
        } else {
            f.lse[at] = none ? INFINITY : (float)(L * 1.4426950408889634 - (double)RAISE<F>);
        }
        f.delta[at] = there ? (sees ? D : 0) - (float)row_number(f.p.a.d_lse, s, h, row) : 0;
    }
    VERB void put_rows() const
    {
        constexpr int EACH = T::N / 32;
        float D[EACH];
#pragma unroll
        for (int n = 0; n < EACH; n++) { /* the loads of all rows are issued before the first is used */
            const int row = m * T::N + n * 32 + (int)threadIdx.x / 8;
            D[n] = dot(min(row, s.n_q - 1));
        }
#pragma unroll
        for (int n = 0; n < EACH; n++) {
            for (int step = 4; step > 0; step /= 2) {
                D[n] += __shfl_xor_sync(~0u, D[n], step);
            }
            if (threadIdx.x % 8 == 0) {
                put_row(n * 32 + (int)threadIdx.x / 8, D[n]);
            }
        }
    }
    /* Does some block of keys visit the tile? */
    VERB bool is_visited() const
    {
        const int last = min((m + 1) * T::N, s.n_q) - 1;
        return m * T::N < s.n_q && max(m * T::N + s.low, 0) <= min(last + s.high, s.n_k - 1);
    }
    VERB void clear_dq() const
    {
        const output out = {&f.p.a.dq, f.p.grad_dtype, (f.p.a.accumulate & AG_ACC_DQ) != 0};
        const int rows = f.p.flags & AG_PACKED ? s.n_q : (int)f.p.Nq;
        for (int i = (int)threadIdx.x; i < T::N * f.p.Dk; i += 256) {
            const int row = m * T::N + i / f.p.Dk;
            if (row < rows) {
                out.store(element_at(f.p.a.dq, s.view, h, s.q0 + row) + i % f.p.Dk * f.p.a.dq.strides[3], 0.0f);
            }
        }
    }
    VERB void run() const
    {
        if (blockIdx.x == 0 && threadIdx.x == 0) {
            *f.tickets = 0;
        }
        if (m * T::N < s.n_q) {
            put_rows();
            if (threadIdx.x < 2) {
                f.passes[2 * tile + threadIdx.x] = 0;
            }
        }
        if (!is_visited()) {
            clear_dq();
        }
    }
};
