/* The features of a problem: where a sequence lies and which pairs of its queries and keys see each other, what is
 * added to their scores, which weights are dropped, and the softcap with its derivatives. Everything here is about one
 * pair; the maps take from it what they need. */
#pragma once
#include "cuda/kernels/numbers.cuh"

/* ---- Sequences ---- */

/* One sequence of the batch, as agi_sequence in core/call.h. Query i sees key j by causal and window if
 * low <= j - i <= high. */
struct sequence {
    int64_t b, view;        /* its index in the call, and on the batch axis of the tensors */
    int64_t q0, k0;         /* its first rows in the tensors */
    int64_t q_copy, k_copy; /* its first rows in copies and statistics */
    int n_q, n_k;
    int64_t shift, k_shift; /* positions of query 0 and of key 0 */
    int low, high;
};

constexpr int FAR = 1 << 30; /* further than any two rows are apart */

VERB int clamp_distance(int64_t x)
{
    return (int)(x < -FAR ? -FAR : x > FAR ? FAR : x);
}
VERB int64_t clamp_row(int64_t x, int64_t most)
{
    return x < 0 ? 0 : x > most ? most : x;
}
VERB int64_t copy_row(int64_t first,
                      int64_t b) /* sequences in copies begin at multiples of AGI_CUDA_SCALE_ROWS */
{
    return (first / AGI_CUDA_SCALE_ROWS + b) * AGI_CUDA_SCALE_ROWS;
}

/* Lists may be wrong if they come from the device: rows beyond the tensors do not exist. */
VERB void find_rows(const agi_cuda_params &p, sequence &s)
{
    if (p.flags & AG_PACKED) {
        s.view = 0;
        s.q0 = clamp_row(p.a.q_packed[s.b], p.q_total);
        s.k0 = clamp_row(p.a.k_packed[s.b], p.kv_total);
        s.n_q = (int)clamp_row(clamp_row(p.a.q_packed[s.b + 1], p.q_total) - s.q0, p.Nq);
        s.n_k = (int)clamp_row(clamp_row(p.a.k_packed[s.b + 1], p.kv_total) - s.k0, p.Nk);
        s.q_copy = copy_row(s.q0, s.b);
        s.k_copy = copy_row(s.k0, s.b);
    } else {
        s.view = s.b;
        s.q0 = s.k0 = 0;
        s.n_q = (int)(p.a.q_lengths == nullptr ? p.Nq : clamp_row(p.a.q_lengths[s.b], p.Nq));
        s.n_k = (int)(p.a.kv_lengths == nullptr ? p.Nk : clamp_row(p.a.kv_lengths[s.b], p.Nk));
        s.q_copy = copy_row(s.b * p.Nq, s.b);
        s.k_copy = copy_row(s.b * p.Nk, s.b);
    }
}

VERB void find_positions(const agi_cuda_params &p, sequence &s)
{
    s.shift = p.a.q_offsets == nullptr ? p.a.q_offset : p.a.q_offsets[s.b];
    s.shift += p.bottom_right ? s.n_k - s.n_q : 0;
    s.k_shift = p.a.k_offsets == nullptr ? p.a.k_offset : p.a.k_offsets[s.b];
    const int64_t d = s.shift - s.k_shift;
    s.low = p.window_left < 0 ? -FAR : clamp_distance(d - p.window_left);
    s.high = p.window_right < 0 ? FAR : clamp_distance(d + p.window_right);
    if (p.flags & AG_CAUSAL) {
        s.high = min(s.high, clamp_distance(d));
    }
}

VERB sequence find_sequence(const agi_cuda_params &p, int64_t b)
{
    sequence s;
    s.b = b;
    find_rows(p, s);
    find_positions(p, s);
    return s;
}

/* One query head of one sequence. */
struct head_place {
    sequence s;
    int h;
};

/* ---- What is added to a score ---- */

/* Strides along which it is broadcast are zero. */
VERB int64_t broadcast_at(const ag_tensor &t, const head_place &x, int i, int j)
{
    return x.s.b * t.strides[0] + x.h * t.strides[1] + i * t.strides[2] + j * t.strides[3];
}

VERB int64_t table_column(const agi_cuda_params &p, const sequence &s, int64_t distance) /* j - i */
{
    const int64_t R = p.table_radius, d = distance + s.k_shift - s.shift,
                  at = (d < -R  ? -R
                        : d > R ? R
                                : d) +
                       R;
    return p.buckets == nullptr ? at : p.buckets[at];
}

/* The sum of the tangents of bias and table; absent ones add nothing. */
template <class real>
CALLED real bias_and_table(const agi_cuda_params &p, const ag_tensor &bias, const ag_tensor &table,
                           const head_place &x, int i, int j)
{
    real sum = 0;
    if (bias.data != nullptr) {
        sum = load_aux(p.aux_dtype, bias.data, broadcast_at(bias, x, i, j), sum);
    }
    if (table.data != nullptr) {
        const int64_t row = x.h * table.strides[1], column = table_column(p, x.s, j - i);
        sum = add_rn(sum, load_aux(p.aux_dtype, table.data, row + column * table.strides[3], sum));
    }
    return sum;
}

/* An entry of the table. */
template <class real> CALLED real table_entry(const agi_cuda_params &p, const head_place &x, int distance)
{
    const int64_t column = table_column(p, x.s, distance);
    return load_aux(p.aux_dtype, p.a.table.data, x.h * p.a.table.strides[1] + column * p.a.table.strides[3],
                    (real)0);
}

/* ---- Dropout ---- */

/* Philox 4x32-10, as core/philox.h. */
VERB uint32_t philox_word(uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3, uint64_t seed, int word)
{
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
#pragma unroll
    for (int round = 0; round < 10; round++) {
        const uint64_t a = (uint64_t)c0 * 0xD2511F53u, b = (uint64_t)c2 * 0xCD9E8D57u;
        c0 = (uint32_t)(b >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)b;
        c2 = (uint32_t)(a >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)a;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return word == 0 ? c0 : word == 1 ? c1 : word == 2 ? c2 : c3;
}

/* Is the weight of the pair kept? M is then 1 / (1 - p), else 0. */
CALLED bool is_kept(const agi_cuda_params &p, const head_place &x, int i, int j)
{
    const uint64_t g_j = (uint64_t)(j + x.s.k_shift);
    const uint64_t seed = p.a.seed_device == nullptr ? p.a.seed : *p.a.seed_device;
    return philox_word((uint32_t)(g_j >> 2), (uint32_t)(uint64_t)(i + x.s.shift),
                       (uint32_t)(x.h + p.head_offset), (uint32_t)(x.s.b + p.a.batch_offset), seed,
                       (int)(g_j & 3)) >= p.drop_below;
}

/* ---- The softcap phi and its derivatives ---- */

template <class real> struct capped {
    real phi, phi1, phi2; /* phi(z), phi'(z), phi''(z) */
};

/* phi' = 1 / cosh^2 in a form that does not cancel near the cap. */
template <class real> CALLED capped<real> softcap(real z, real c)
{
    const real u = z / c, t = tanh(u), e = exp(-2 * fabs(u)), phi1 = 4 * e / ((1 + e) * (1 + e));
    return {mul_rn(c, t), phi1, -2 * t * phi1 / c};
}
