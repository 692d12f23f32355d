/* The kernels that have no number format of their own: lists on their way to the workspace, row statistics, rows that
 * belong to no sequence, the gradients of sink and table from what others have summed, and merge. Every sum has a fixed
 * order. */
#include "cuda/kernels/merge.cuh"
#include "cuda/kernels/row_dots.cuh"
#include "cuda/kernels/stream.cuh"

/* ---- upload ---- */

KERNEL void __launch_bounds__(128) upload(const __grid_constant__ agi_cuda_upload p)
{
    for (int i = threadIdx.x; i < p.count; i += blockDim.x) {
        p.to[i] = p.values[i];
    }
}

/* ---- statistics ---- */

enum { ROWS_OF_WARP = AGI_CUDA_STATS_ROWS };

template <class real> VERB double sum_over_warp(real x)
{
    double sum = x;
    for (int step = 16; step > 0; step /= 2) {
        sum += __shfl_xor_sync(~0u, sum, step);
    }
    return sum;
}

/* A row of an output of more than 16 bits; it has no low half. */
template <class Number> struct output_row {
    const Number *data;
    int64_t step;

    VERB output_row(const ag_tensor &t, const head_place &x, int row)
        : data(t.data == nullptr ? nullptr
                                 : (const Number *)t.data + element_at(t, x.s.view, x.h, x.s.q0 + row)),
          step(t.strides[3])
    {
    }
    VERB double at(int c) const
    {
        return data == nullptr ? 0 : (double)data[c * step];
    }
};

/* Has the row an output? Not if it sees no key, or none that counts: its L is then the sink's logit, or minus infinity
 * without a sink. */
VERB bool has_output(const agi_cuda_params &p, int h, double L)
{
    return L != -INFINITY && (p.a.sink.data == nullptr ||
                              L != load_number<double>(p.aux_dtype, p.a.sink.data, h * p.a.sink.strides[1]));
}

/* What an output of zeros gives, where the caller's dO may be NaN: nothing. Keys that weigh too little beside a sink to
 * change L give what they are. */
VERB double of_output(bool output, double sum)
{
    return output || sum == sum ? sum : 0;
}

/* mu of a row that sees no key; what the caller gives for it may be NaN. */
VERB double sink_tangent(const agi_cuda_params &p, int h)
{
    return p.a.tsink.data == nullptr
               ? 0
               : load_number<double>(p.aux_dtype, p.a.tsink.data, h * p.a.tsink.strides[1]);
}

/* rowsum(dO o O) and, with tangents, rowsum(tO o dO + O o tdO). */
struct row_products {
    double D, tD;
};

/* Outputs of 16 bits: eight lanes a row, four rows a warp. dot(pair, row, c): the product of eight channels. AHEAD: so
 * many of the loop's steps are loaded at once. */
template <bool TANGENTS, int AHEAD, class Dot>
VERB row_products short_products(const agi_cuda_params &p, const head_place &x, int first, Dot dot)
{
    const ag_args &a = p.a;
    const int row = min(first + (int)threadIdx.x % 32 / 8, x.s.n_q - 1);
    float D = 0, tD = 0;
#pragma unroll(AHEAD)
    for (int c = threadIdx.x % 8 * 8; c < p.Dv; c += 64) {
        D += dot({a.o, a.o_low, a.d_o}, row, c);
        if constexpr (TANGENTS) {
            tD += dot({a.to, a.to_low, a.d_o}, row, c) + dot({a.o, a.o_low, a.td_o}, row, c);
        }
    }
    return {sum_of_eight(D), sum_of_eight(tD)};
}
template <class F, bool TANGENTS>
VERB row_products products_in_bytes(const agi_cuda_params &p, const head_place &x, int first)
{
    constexpr int AHEAD = TANGENTS ? 1 : 4;
    return short_products<TANGENTS, AHEAD>(p, x, first, [&](const output_pair &pair, int row, int c) {
        return dot_of_bytes<F>(p, pair, x.s, x.h, row, c);
    });
}
template <bool TANGENTS>
CALLED row_products products_in_chunks(const agi_cuda_params &p, const head_place &x, int first)
{
    return short_products<TANGENTS, 1>(p, x, first, [&](const output_pair &pair, int row, int c) {
        return dot_of_chunk(p, pair, x.s, x.h, row, c);
    });
}

/* Outputs of more bits: the warp takes one row after the other, each lane keeps the sums of its own. */
template <class Number, bool TANGENTS>
VERB row_products long_products(const agi_cuda_params &p, const head_place &x, int first)
{
    row_products mine = {0, 0};
    for (int r = 0; r < ROWS_OF_WARP && first + r < x.s.n_q; r++) {
        const output_row<Number> o(p.a.o, x, first + r), d_o(p.a.d_o, x, first + r), to(p.a.to, x, first + r),
            td_o(p.a.td_o, x, first + r);
        double D = 0, tD = 0;
#pragma unroll(TANGENTS ? 1 : 4)
        for (int c = threadIdx.x % 32; c < p.Dv; c += 32) {
            const double dO = d_o.at(c), O = o.at(c);
            D += dO * O;
            if constexpr (TANGENTS) {
                tD += to.at(c) * dO;
                tD += O * td_o.at(c);
            }
        }
        D = sum_over_warp(D);
        tD = sum_over_warp(tD);
        mine = (int)threadIdx.x % 32 / 8 == r ? row_products{D, tD} : mine;
    }
    return mine;
}

template <bool TANGENTS>
VERB row_products products_of_rows(const agi_cuda_params &p, const head_place &x, int first)
{
    if (first >= x.s.n_q) {
        return {0, 0};
    }
    switch (p.out_dtype) {
    case AG_F64: return long_products<double, TANGENTS>(p, x, first);
    case AG_F32: return long_products<float, TANGENTS>(p, x, first);
    default: break;
    }
    if (p.w.operands == 0) {
        return products_in_chunks<TANGENTS>(p, x, first);
    }
    return p.out_dtype == AG_F16 ? products_in_bytes<f16, TANGENTS>(p, x, first)
                                 : products_in_bytes<bf16, TANGENTS>(p, x, first);
}

/* D = rowsum(dO o O) - dL, tD = rowsum(tO o dO + O o tdO) - tdL. */
template <class real>
VERB void store_statistics(const agi_cuda_params &p, const head_place &x, int row, const row_products &sum)
{
    const bool there = row < x.s.n_q;
    const double L = there ? row_number(p.a.lse, x, row) : -INFINITY;
    const bool output = has_output(p, x.h, L);
    real *const to = (real *)stats_of_head<real>(p, x) + (int64_t)row * AGI_CUDA_STATS;
    to[0] = L == -INFINITY ? (real)INFINITY : (real)L;
    to[1] = fabs(L) < INFINITY ? (real)(L - (double)to[0]) : 0;
    to[2] = there ? (real)(of_output(output, sum.D) - row_number(p.a.d_lse, x, row)) : 0;
    to[3] = (real)(!there ? 0 : output ? row_number(p.a.mu, x, row) : sink_tangent(p, x.h));
    to[4] = there ? (real)(of_output(output, sum.tD) - row_number(p.a.td_lse, x, row)) : 0;
    to[5] = to[6] = to[7] = 0;
}

/* All rows of whole tiles: those after the end have weights of zero. */
template <class real> VERB void statistics(const agi_cuda_params &p)
{
    const int64_t index = (int64_t)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32,
                  head = index / p.w.blocks;
    if (head >= p.B * p.H) {
        return;
    }
    const head_place x = {find_sequence(p, head / p.H), (int)(head % p.H)};
    const int first = (int)(index % p.w.blocks) * ROWS_OF_WARP, lane = threadIdx.x % 32;
    if (first < (x.s.n_q + AGI_CUDA_SCALE_ROWS - 1) / AGI_CUDA_SCALE_ROWS * AGI_CUDA_SCALE_ROWS) {
        const row_products sum = p.a.to.data == nullptr ? products_of_rows<false>(p, x, first)
                                                        : products_of_rows<true>(p, x, first);
        if (lane % 8 == 0) {
            store_statistics<real>(p, x, first + lane / 8, sum);
        }
    }
}

KERNEL void __launch_bounds__(256, 3) statistics_f32(const __grid_constant__ agi_cuda_params p)
{
    statistics<float>(p);
}
KERNEL void __launch_bounds__(256, 3) statistics_f64(const __grid_constant__ agi_cuda_params p)
{
    statistics<double>(p);
}

/* ---- join: the splits of decode, in order; a block per head and query ---- */

/* The row's maximum m and sum l over all splits and the sink. */
template <class real>
VERB void join_sums(const agi_cuda_params &p, const head_place &x, int query, real &m, real &l)
{
    const bool sink = p.a.sink.data != nullptr;
    const real s =
        sink ? load_number<real>(p.aux_dtype, p.a.sink.data, x.h * p.a.sink.strides[1]) : -(real)INFINITY;
    m = s;
    for (int64_t n = 0; n < p.w.blocks; n++) {
        m = fmax(m, split_at<real>(p, x.s.b, x.h, query, n)[p.Dv]);
    }
    l = sink ? exp_fast(s - m) : 0;
    for (int64_t n = 0; n < p.w.blocks; n++) {
        const real *const split = split_at<real>(p, x.s.b, x.h, query, n);
        l += split[p.Dv + 1] == 0 ? 0 : split[p.Dv + 1] * exp_fast(split[p.Dv] - m);
    }
}

template <class real>
VERB real join_column(const agi_cuda_params &p, const head_place &x, int query, real m, real l, int column)
{
    real sum = 0;
    for (int64_t n = 0; n < p.w.blocks; n++) {
        const real *const split = split_at<real>(p, x.s.b, x.h, query, n);
        sum += split[p.Dv + 1] == 0 ? 0 : split[column] * exp_fast(split[p.Dv] - m);
    }
    return l == 0 ? 0 : sum / l;
}

template <class real> VERB void join(const agi_cuda_params &p)
{
    const uint32_t queries = (uint32_t)p.Nq, head = blockIdx.x / queries;
    const int query = (int)(blockIdx.x % queries);
    head_place x;
    x.s = find_sequence(p, head / p.H);
    x.h = (int)(head % p.H);
    real m = -(real)INFINITY, l = 0;
    const bool there = query < x.s.n_q;
    if (!there && (p.flags & AG_PACKED)) { /* that row is another sequence's */
        return;
    }
    if (there) {
        join_sums(p, x, query, m, l);
    }
    const output o = {&p.a.o, p.out_dtype, (p.a.accumulate & AG_ACC_O) != 0},
                 low = {&p.a.o_low, p.out_dtype, false};
    const int64_t row = x.s.q0 + query;
    for (int c = threadIdx.x; c < p.Dv; c += blockDim.x) {
        const real value = there ? join_column(p, x, query, m, l, c) : 0;
        o.store(element_at(p.a.o, x.s.view, x.h, row) + c * p.a.o.strides[3], value);
        if (low.t->data != nullptr) {
            low.store(element_at(p.a.o_low, x.s.view, x.h, row) + c * p.a.o_low.strides[3],
                      low_half(p.out_dtype, (float)value));
        }
    }
    if (threadIdx.x == 0) {
        store_row(p, p.a.lse, AG_ACC_LSE, x, query, l == 0 ? -(double)INFINITY : (double)m + log((double)l));
    }
}

KERNEL void __launch_bounds__(128) join_f32(const __grid_constant__ agi_cuda_params p)
{
    join<float>(p);
}
KERNEL void __launch_bounds__(128) join_f64(const __grid_constant__ agi_cuda_params p)
{
    join<double>(p);
}

/* ---- tails: rows of packed arrays after the last sequence ---- */

VERB void store_tail(const agi_cuda_params &p, const ag_tensor &t, int32_t dtype, uint32_t bit, int heads,
                     int width, int64_t first, int64_t end, double value)
{
    if (t.data == nullptr) {
        return;
    }
    const output out = {&t, dtype, (p.a.accumulate & bit) != 0};
    const int64_t count = (end - first) * heads * width;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count;
         i += (int64_t)gridDim.x * blockDim.x) {
        const int64_t row = first + i / width / heads;
        out.store(element_at(t, 0, i / width % heads, row) + i % width * t.strides[3], value);
    }
}

KERNEL void __launch_bounds__(256) tails(const __grid_constant__ agi_cuda_params p)
{
    const int64_t q = clamp_row(p.a.q_packed[p.B], p.q_total), k = clamp_row(p.a.k_packed[p.B], p.kv_total);
    const bool writes_o = p.w.parts != 0;
    if (writes_o) {
        store_tail(p, p.a.o, p.out_dtype, AG_ACC_O, p.H, p.Dv, q, p.q_total, 0);
        store_tail(p, p.a.o_low, p.out_dtype, 0, p.H, p.Dv, q, p.q_total, 0);
        store_tail(p, p.a.lse, AG_F64, AG_ACC_LSE, p.H, 1, q, p.q_total, -INFINITY);
    }
    if (p.w.operands != 0) {
        store_tail(p, p.a.to, p.out_dtype, AG_ACC_TO, p.H, p.Dv, q, p.q_total, 0);
        store_tail(p, p.a.to_low, p.out_dtype, 0, p.H, p.Dv, q, p.q_total, 0);
        store_tail(p, p.a.mu, AG_F64, AG_ACC_MU, p.H, 1, q, p.q_total, 0);
    }
    store_tail(p, p.a.sto, p.out_dtype, AG_ACC_STO, p.H, p.Dv, q, p.q_total, 0);
    store_tail(p, p.a.nu, AG_F64, AG_ACC_NU, p.H, 1, q, p.q_total, 0);
    store_tail(p, p.a.dq, p.grad_dtype, AG_ACC_DQ, p.H, p.Dk, q, p.q_total, 0);
    store_tail(p, p.a.tdq, p.grad_dtype, AG_ACC_TDQ, p.H, p.Dk, q, p.q_total, 0);
    store_tail(p, p.a.dk, p.grad_dtype, AG_ACC_DK, p.Hk, p.Dk, k, p.kv_total, 0);
    store_tail(p, p.a.tdk, p.grad_dtype, AG_ACC_TDK, p.Hk, p.Dk, k, p.kv_total, 0);
    store_tail(p, p.a.dv, p.grad_dtype, AG_ACC_DV, p.Hk, p.Dv, k, p.kv_total, 0);
    store_tail(p, p.a.tdv, p.grad_dtype, AG_ACC_TDV, p.Hk, p.Dv, k, p.kv_total, 0);
}

/* ---- Sums over a block: always the same tree ---- */

VERB double sum_over_block(double x, char *memory)
{
    double *const of_warps = (double *)memory;
    x = sum_over_warp(x);
    __syncthreads();
    if (threadIdx.x % 32 == 0) {
        of_warps[threadIdx.x / 32] = x;
    }
    __syncthreads();
    double sum = 0;
    for (int i = 0; i < (int)blockDim.x / 32; i++) {
        sum += of_warps[i];
    }
    return sum;
}

/* ---- sum_sink: ds = - sum Ps D, tds = - sum (Ps (ts - mu) D + Ps tD); a block per head ---- */

template <class real>
VERB double sink_gradient(const agi_cuda_params &p, const head_place &x, int row, bool tangent)
{
    const double s = load_number<double>(p.aux_dtype, p.a.sink.data, x.h * p.a.sink.strides[1]);
    const row_stats<real> r = stats_at(stats_of_head<real>(p, x) + (int64_t)row * AGI_CUDA_STATS);
    const double share = exp(s - (double)r.lse - (double)r.lse_low);
    if (!tangent) {
        return -share * r.D;
    }
    return -share * ((sink_tangent(p, x.h) - r.mu) * r.D + r.tD);
}

KERNEL void __launch_bounds__(256) sum_sink(const __grid_constant__ agi_cuda_params p)
{
    SHARED_MEMORY(memory);
    const bool tangent = p.w.parts != 0;
    head_place x;
    double sum = 0;
    x.h = (int)blockIdx.x;
    for (int64_t b = 0; b < p.B; b++) {
        x.s = find_sequence(p, b);
        for (int row = threadIdx.x; row < x.s.n_q; row += blockDim.x) {
            sum += p.dtype == AG_F64 ? sink_gradient<double>(p, x, row, tangent)
                                     : sink_gradient<float>(p, x, row, tangent);
        }
    }
    sum = sum_over_block(sum, memory);
    const ag_tensor &t = tangent ? p.a.tdsink : p.a.dsink;
    const output out = {&t, p.aux_dtype, (p.a.accumulate & (tangent ? AG_ACC_TDSINK : AG_ACC_DSINK)) != 0};
    if (threadIdx.x == 0) {
        out.store(x.h * t.strides[1], sum);
    }
}

/* ---- sum_table: the diagonals of one bucket, over all sequences and the heads that share it; a block per element
 * ---- */

/* j - i of an entry of `diagonals`. */
VERB int64_t diagonal_of(const agi_cuda_params &p, int64_t at)
{
    const int64_t query_tiles = (p.Nq + AGI_CUDA_PAIR_TILE - 1) / AGI_CUDA_PAIR_TILE;
    return (at / 64 - (query_tiles - 1)) * AGI_CUDA_PAIR_TILE + at % 64 - (AGI_CUDA_PAIR_TILE - 1);
}

KERNEL void __launch_bounds__(256) sum_table(const __grid_constant__ agi_cuda_params p)
{
    SHARED_MEMORY(memory);
    const bool tangent = p.w.parts != 0;
    const int64_t row = blockIdx.x / p.table_buckets, column = blockIdx.x % p.table_buckets;
    const int64_t heads = p.table_heads == 1 ? p.H : 1, count = p.diagonal_tiles * 64;
    double sum = 0;
    for (int64_t b = 0; b < p.B; b++) {
        const sequence s = find_sequence(p, b);
        for (int64_t h = row; h < row + heads; h++) {
            for (int64_t d = threadIdx.x; d < count; d += blockDim.x) {
                const double part = p.diagonals[(b * p.H + h) * count + d];
                if (part != 0 && table_column(p, s, diagonal_of(p, d)) == column) {
                    sum += part;
                }
            }
        }
    }
    sum = sum_over_block(sum, memory);
    const ag_tensor &t = tangent ? p.a.tdtable : p.a.dtable;
    const output out = {&t, p.aux_dtype, (p.a.accumulate & (tangent ? AG_ACC_TDTABLE : AG_ACC_DTABLE)) != 0};
    if (threadIdx.x == 0) {
        out.store(row * t.strides[1] + column * t.strides[3], sum);
    }
}

/* ---- merge ---- */

KERNEL void __launch_bounds__(256) merge(const __grid_constant__ agi_cuda_merge p)
{
    merge_sets(p);
}
