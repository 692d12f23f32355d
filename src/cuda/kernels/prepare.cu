/* prepare: matrices of any dtype, stride, head size and alignment become the one layout that the loops read,
 * [head][plane][row][channel], channels padded to whole chunks with zeros. A block copies AGI_CUDA_SCALE_ROWS rows of
 * one head; formats that are SCALED give these rows one power of two, which brings their largest magnitude to the top
 * of float16. Numbers that are not finite are left out of it. */
#include "cuda/kernels/stream.cuh"

/* The tensor that a matrix is a copy of. */
VERB const ag_tensor &source_of(const agi_cuda_params &p, int operand)
{
    switch (operand) {
    case AGI_CUDA_Q: return p.a.q;
    case AGI_CUDA_K: return p.a.k;
    case AGI_CUDA_V: return p.a.v;
    case AGI_CUDA_DO: return p.a.d_o;
    case AGI_CUDA_TQ: return p.a.tq;
    case AGI_CUDA_TK: return p.a.tk;
    case AGI_CUDA_TV: return p.a.tv;
    case AGI_CUDA_TDO: return p.a.td_o;
    case AGI_CUDA_SQ: return p.a.sq;
    case AGI_CUDA_SK: return p.a.sk;
    default: return p.a.sv;
    }
}

VERB bool is_of_outputs(int operand)
{
    return operand == AGI_CUDA_DO || operand == AGI_CUDA_TDO;
}
VERB int width_of(const agi_cuda_params &p, int operand)
{
    return is_of_outputs(operand) || operand == AGI_CUDA_V || operand == AGI_CUDA_TV || operand == AGI_CUDA_SV
               ? p.Dv
               : p.Dk;
}

/* Rows of one head. */
template <class real> struct rows_to_copy {
    int operand, head, first, n; /* rows first .. n - 1 exist */
    int dtype, width;
    const ag_tensor *from;
    int64_t at;
    VERB real load(int row, int channel) const
    {
        return row < n && channel < width
                   ? load_number<real>(dtype, from->data,
                                       at + row * from->strides[2] + channel * from->strides[3])
                   : 0;
    }
};

/* Which rows are this block's: the matrices one after another. */
template <class real> VERB rows_to_copy<real> find_rows_to_copy(const agi_cuda_params &p, sequence &s)
{
    rows_to_copy<real> x;
    int64_t index = blockIdx.x, blocks = 1, heads = 1;
    for (x.operand = 0; x.operand < AGI_CUDA_OPERANDS - 1; x.operand++) {
        const bool keys = is_of_keys(x.operand);
        heads = keys ? p.Hk : p.H;
        blocks = ((keys ? p.Nk : p.Nq) + AGI_CUDA_SCALE_ROWS - 1) / AGI_CUDA_SCALE_ROWS;
        const int64_t count = (p.w.operands >> x.operand & 1) != 0 ? p.B * heads * blocks : 0;
        if (index < count) {
            break;
        }
        index -= count;
    }
    const bool keys = is_of_keys(x.operand);
    heads = keys ? p.Hk : p.H;
    blocks = ((keys ? p.Nk : p.Nq) + AGI_CUDA_SCALE_ROWS - 1) / AGI_CUDA_SCALE_ROWS;
    s = find_sequence(p, index / blocks / heads);
    x.head = (int)(index / blocks % heads);
    x.first = (int)(index % blocks) * AGI_CUDA_SCALE_ROWS;
    x.n = keys ? s.n_k : s.n_q;
    x.dtype = is_of_outputs(x.operand) ? p.out_dtype : p.dtype;
    x.width = width_of(p, x.operand);
    x.from = &source_of(p, x.operand);
    x.at = element_at(*x.from, s.view, x.head, keys ? s.k0 : s.q0);
    return x;
}

/* The larger of two magnitudes, unless the second is not finite. */
VERB float larger(float most, float x)
{
    const float a = fabsf(x);
    return fmaxf(most, a < INFINITY ? a : 0.0f);
}
/* The largest of all threads' numbers, in every thread. */
VERB float largest_of_all(float most, char *memory)
{
    float *const of_warps = (float *)memory;
    for (int step = 16; step > 0; step /= 2) {
        most = fmaxf(most, __shfl_xor_sync(~0u, most, step));
    }
    if (threadIdx.x % 32 == 0) {
        of_warps[threadIdx.x / 32] = most;
    }
    __syncthreads();
    for (int i = 0; i < (int)blockDim.x / 32; i++) {
        most = fmaxf(most, of_warps[i]);
    }
    return most;
}
VERB float largest(const rows_to_copy<float> &x, char *memory)
{
    float most = 0;
    for (int i = threadIdx.x; i < AGI_CUDA_SCALE_ROWS * x.width; i += blockDim.x) {
        most = larger(most, x.load(x.first + i / x.width, i % x.width));
    }
    return largest_of_all(most, memory);
}

/* Where the power of two of the block's rows belongs. */
VERB void store_inverse(const agi_cuda_params &p, const rows_to_copy<float> &x, int64_t copy, float inverse)
{
    const int64_t rows = is_of_keys(x.operand) ? p.k_rows : p.q_rows;
    if (threadIdx.x == 0) {
        ((float *)p.m[x.operand].inverse)[(x.head * rows + copy) / AGI_CUDA_SCALE_ROWS] = inverse;
    }
}

template <class F> VERB void store_planes(const agi_cuda_matrix &m, int64_t at, float x, float y)
{
    uint32_t plane[F::PLANES];
    split<F>(x, y, plane);
#pragma unroll
    for (int n = 0; n < F::PLANES; n++) {
        *(uint32_t *)((uint16_t *)m.data + at + n * m.plane) = plane[n];
    }
}

/* ---- Rows of float32 in whole chunks of 16 bytes: each is read once and stays in registers ---- */

struct alignas(16) four_numbers {
    float x[4];
};
struct alignas(8) four_halves {
    uint32_t pairs[2];
};
enum { CHUNKS = 8 }; /* of a thread */

VERB bool has_chunks(const rows_to_copy<float> &x, const agi_cuda_matrix &m)
{
    const ag_tensor &t = *x.from;
    const int64_t all = t.strides[0] | t.strides[1] | t.strides[2];
    return x.dtype == AG_F32 && x.width == m.width && t.strides[3] == 1 && all % 4 == 0 &&
           (uintptr_t)t.data % 16 == 0 && AGI_CUDA_SCALE_ROWS * x.width / 4 <= CHUNKS * (int)blockDim.x;
}

template <class F>
VERB void prepare_chunks(const agi_cuda_params &p, const rows_to_copy<float> &x, int64_t copy, char *memory)
{
    const agi_cuda_matrix &m = p.m[x.operand];
    const int of_row = x.width / 4, count = min(x.n - x.first, (int)AGI_CUDA_SCALE_ROWS) * of_row;
    const float *const from = (const float *)x.from->data + x.at;
    uint16_t *const to = (uint16_t *)m.data + x.head * m.head + copy * m.row;
    four_numbers y[CHUNKS] = {};
    float most = 0, inverse;
#pragma unroll
    for (int n = 0; n < CHUNKS; n++) {
        const int i = threadIdx.x + n * blockDim.x;
        if (i < count) {
            y[n] =
                *(const four_numbers *)(from + (x.first + i / of_row) * x.from->strides[2] + i % of_row * 4);
        }
    }
#pragma unroll
    for (int i = 0; i < 4 * CHUNKS; i++) {
        most = larger(most, y[i / 4].x[i % 4]);
    }
    const float up = raise_to_half(largest_of_all(most, memory), inverse);
    store_inverse(p, x, copy, inverse);
#pragma unroll
    for (int n = 0; n < CHUNKS; n++) {
        const int i = threadIdx.x + n * blockDim.x;
        uint32_t first[F::PLANES], second[F::PLANES];
        split<F>(y[n].x[0] * up, y[n].x[1] * up, first);
        split<F>(y[n].x[2] * up, y[n].x[3] * up, second);
        for (int plane = 0; plane < F::PLANES && i < count; plane++) {
            *(four_halves *)(to + plane * m.plane + i * 4) = {{first[plane], second[plane]}};
        }
    }
}

/* ---- The kernel ---- */

template <class F> VERB void prepare(const agi_cuda_params &p)
{
    typedef typename F::real real;
    SHARED_MEMORY(memory);
    sequence s;
    const rows_to_copy<real> x = find_rows_to_copy<real>(p, s);
    const agi_cuda_matrix &m = p.m[x.operand];
    const bool keys = is_of_keys(x.operand);
    const int64_t copy = (keys ? s.k_copy : s.q_copy) + x.first;
    if (x.first >= x.n) {
        return;
    }
    float inverse = 1, up = 1;
    if constexpr (F::SCALED) {
        if (has_chunks(x, m)) {
            prepare_chunks<F>(p, x, copy, memory);
            return;
        }
        up = raise_to_half(largest(x, memory), inverse);
        store_inverse(p, x, copy, inverse);
    }
    const int rows = min(x.n - x.first, (int)AGI_CUDA_SCALE_ROWS), pairs = m.width / 2;
    for (int i = threadIdx.x; i < rows * pairs; i += blockDim.x) {
        const int row = i / pairs, channel = i % pairs * 2;
        const int64_t at = x.head * m.head + (copy + row) * m.row + channel;
        const real a = x.load(x.first + row, channel), b = x.load(x.first + row, channel + 1);
        if constexpr (F::BYTES == 8) {
            ((double *)m.data)[at] = a;
            ((double *)m.data)[at + 1] = b;
        } else {
            store_planes<F>(m, at, a * up, b * up);
        }
    }
}

#define AGI_PREPARE(name, format, threads)                                                                   \
    KERNEL void __launch_bounds__(threads) name##_##format(const __grid_constant__ agi_cuda_params p)        \
    {                                                                                                        \
        name<format>(p);                                                                                     \
    }
#define AGI_PREPARE_OF(list, format) list(AGI_PREPARE, format)
AGI_PREPARE_OF(AGI_CUDA_PREPARE, AGI_FORMAT)
