/* merge: the results of two disjoint sets of keys, a warp per row, all in float64:
 *
 *     L = logaddexp(L1, L2),  w_k = exp(L_k - L),  O = sum w_k O_k
 *     mu = sum w_k mu_k,  tO = sum w_k (tO_k + (mu_k - mu) O_k);  smu and sO likewise
 *     nu = sum w_k (nu_k + (mu_k - mu) (smu_k - smu))
 *     stO = sum w_k (stO_k + (mu_k - mu) sO_k + (smu_k - smu) tO_k + (nu_k - nu + (mu_k - mu) (smu_k - smu)) O_k)
 *
 * A set without keys has L_k = -infinity and w_k = 0, and is left out by selection. */
#pragma once
#include "cuda/kernels/numbers.cuh"

struct merged_set {
    double w, t, s, ts; /* w_k, mu_k - mu, smu_k - smu, the factor of O_k in stO */
};
struct merge_row {
    const agi_cuda_merge &p;
    int64_t b, h, i;

    VERB double number(const ag_tensor &t) const
    {
        return t.data == nullptr ? 0 : ((const double *)t.data)[element_at(t, b, h, i)];
    }
    VERB void store_number_of_row(const ag_tensor &t, double x) const
    {
        if (t.data != nullptr) {
            ((double *)t.data)[element_at(t, b, h, i)] = x;
        }
    }
    VERB double load(const ag_tensor &t, int c) const
    {
        return t.data == nullptr
                   ? 0
                   : load_number<double>(p.out_dtype, t.data, element_at(t, b, h, i) + c * t.strides[3]);
    }
    VERB double load(const ag_tensor &t, const ag_tensor &low, int c) const
    {
        return load(t, c) + load(low, c) * low_half_scale<double>(p.out_dtype);
    }
    VERB void store(const ag_tensor &t, int c, double x) const
    {
        if (t.data != nullptr) {
            ::store_number(p.out_dtype, t.data, element_at(t, b, h, i) + c * t.strides[3], x);
        }
    }
    /* The low half of a double: what rounding takes from it. */
    VERB void store_low(const ag_tensor &t, int c, double x) const
    {
        if (t.data != nullptr) {
            const float odd = round_to_odd(x);
            const float high = p.out_dtype == AG_F16 ? unpack_half(pack_half(odd, 0)).x
                                                     : unpack_bfloat(pack_bfloat(odd, 0)).x;
            const double rest = x - (double)high;
            store(t, c, fabs(rest) < INFINITY ? (p.out_dtype == AG_F16 ? rest * 0x1p11 : rest) : 0);
        }
    }
};

VERB double weighted(double w, double x)
{
    return w == 0 ? 0 : w * x;
}

VERB void merge_numbers(const merge_row &x, merged_set &a, merged_set &b, bool store)
{
    const ag_merge_args &m = x.p.a;
    const double L1 = x.number(m.lse1), L2 = x.number(m.lse2);
    const double mu1 = x.number(m.mu1), mu2 = x.number(m.mu2), smu1 = x.number(m.smu1),
                 smu2 = x.number(m.smu2);
    const double nu1 = x.number(m.nu1), nu2 = x.number(m.nu2);
    const bool first = L1 > L2 || L1 != L1;
    const double larger = first ? L1 : L2, smaller = first ? L2 : L1;
    const double L = larger == -INFINITY ? -INFINITY : larger + log1p(exp(smaller - larger));
    a.w = L1 == -INFINITY ? 0 : exp(L1 - L);
    b.w = L2 == -INFINITY ? 0 : exp(L2 - L);
    const double mu = weighted(a.w, mu1) + weighted(b.w, mu2),
                 smu = weighted(a.w, smu1) + weighted(b.w, smu2);
    a.t = mu1 - mu, a.s = smu1 - smu;
    b.t = mu2 - mu, b.s = smu2 - smu;
    const double nu = weighted(a.w, nu1 + a.t * a.s) + weighted(b.w, nu2 + b.t * b.s);
    a.ts = nu1 - nu + a.t * a.s;
    b.ts = nu2 - nu + b.t * b.s;
    __syncwarp(); /* the result may be in the memory of the first set */
    if (store) {
        x.store_number_of_row(m.lse, L);
        x.store_number_of_row(m.mu, mu);
        x.store_number_of_row(m.smu, smu);
        x.store_number_of_row(m.nu, nu);
    }
}

VERB void merge_column(const merge_row &x, const merged_set &a, const merged_set &b, int c)
{
    const ag_merge_args &m = x.p.a;
    const double O1 = x.load(m.o1, m.o_low1, c), O2 = x.load(m.o2, m.o_low2, c);
    const double tO1 = x.load(m.to1, m.to_low1, c), tO2 = x.load(m.to2, m.to_low2, c);
    const double sO1 = x.load(m.so1, c), sO2 = x.load(m.so2, c), stO1 = x.load(m.sto1, c),
                 stO2 = x.load(m.sto2, c);
    const double O = weighted(a.w, O1) + weighted(b.w, O2);
    const double tO = weighted(a.w, tO1 + a.t * O1) + weighted(b.w, tO2 + b.t * O2);
    x.store(m.o, c, O);
    x.store_low(m.o_low, c, O);
    x.store(m.to, c, tO);
    x.store_low(m.to_low, c, tO);
    x.store(m.so, c, weighted(a.w, sO1 + a.s * O1) + weighted(b.w, sO2 + b.s * O2));
    x.store(m.sto, c,
            weighted(a.w, stO1 + a.t * sO1 + a.s * tO1 + a.ts * O1) +
                weighted(b.w, stO2 + b.t * sO2 + b.s * tO2 + b.ts * O2));
}

VERB void merge_sets(const agi_cuda_merge &p)
{
    const int64_t index = (int64_t)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    if (index >= p.size[0] * p.size[1] * p.size[2]) {
        return;
    }
    const merge_row x = {p, index / p.size[2] / p.size[1], index / p.size[2] % p.size[1], index % p.size[2]};
    merged_set a, b;
    merge_numbers(x, a, b, threadIdx.x % 32 == 0);
    for (int c = threadIdx.x % 32; c < p.size[3]; c += 32) {
        merge_column(x, a, b, c);
    }
}
