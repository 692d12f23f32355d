/* Score features on Hopper, those of the sets in hopper_sets.h, on fragments (hopper_fragments.cuh).
 *
 * A score has the same bits in every map and in both orientations, and, but for the softcap's, those of the portable
 * kernels. */
#pragma once
#include "cuda/kernels/hopper_mask.cuh"

/* ---- Softcap ----
 *
 * phi(z) = c tanh(z / c) = c - 2 c r with r = 1 / (1 + e), e = 2^(z rate), and phi'(z) = 4 r (e r), which does not
 * cancel at either end. */

VERB float capped_score(const agi_hopper_features &x, float z)
{
    const float r = reciprocal_fast(1 + exp2_fast(mul_rn(z, x.cap_rate)));
    return fmaf(x.minus_two_caps, r, x.cap);
}
/* The same bits, and phi'. e is kept finite, where that no longer changes phi. */
VERB float capped_score(const agi_hopper_features &x, float z, float &slope)
{
    const float e = exp2_fast(fminf(mul_rn(z, x.cap_rate), 126)), r = reciprocal_fast(1 + e);
    slope = 4 * r * (e * r);
    return fmaf(x.minus_two_caps, r, x.cap);
}
/* The same, and phi'' = -2 phi phi' / c^2, where 2 / c is ln 2 times the rate. */
VERB float capped_score(const agi_hopper_features &x, float z, float &slope, float &bend)
{
    constexpr float LN_2 = 0.6931471805599453f;
    const float S = capped_score(x, z, slope), two_over_cap = LN_2 * x.cap_rate;
    bend = -0.5f * two_over_cap * two_over_cap * S * slope;
    return S;
}

/* ---- Relative positions: ALiBi and table ---- */

/* Where the term of the thread's first pair is among `terms`; that of (row, column + 1) comes next, with KEYS before
 * it. */
template <bool KEYS>
VERB const float *relative_at(const agi_cuda_params &p, const agi_hopper_features &x, const float *terms,
                              const fragment_place &at)
{
    const int column = at.first + fragment_column(0), distance = KEYS ? at.own - column : column - at.own;
    return terms + (at.s.b * p.H + at.h) * x.relative_width + (p.Nq + AGI_HOPPER_PAD + distance);
}
template <bool KEYS>
VERB const float *relative_at(const agi_cuda_params &p, const agi_hopper_features &x,
                              const fragment_place &at)
{
    return relative_at<KEYS>(p, x, x.relative, at);
}
/* The term of (row + 8, column) is that of (row, column - 8): each is loaded once, TERMS of them. */
template <bool KEYS, int COUNT> struct relative_terms {
    static constexpr int TERMS = COUNT / 2 + 2;
    float terms[TERMS];

    VERB void find(const float *first)
    {
        constexpr int NEXT = KEYS ? -1 : 1;
#pragma unroll
        for (int n = 0; n < TERMS; n++) {
            terms[n] = first[(n / 2 * 8 - 8 + n % 2) * NEXT];
        }
    }
    VERB void add(float (&S)[COUNT]) const
    {
#pragma unroll
        for (int n = 0; n < COUNT; n++) {
            S[n] = add_rn(S[n], terms[n / 4 * 2 + (n / 2 % 2 ? 0 : 2) + n % 2]);
        }
    }
};
template <bool KEYS, int COUNT> VERB void add_relative(float (&S)[COUNT], const float *term)
{
    relative_terms<KEYS, COUNT> all;
    all.find(term);
    all.add(S);
}

/* ---- Bias ---- */

/* Minus infinity hides the pair, whatever its score is. */
VERB float with_bias(float S, float bias)
{
    return bias == -INFINITY ? bias : add_rn(S, bias);
}
/* Calls f(n, entry) for each element n that the tensor has, the bias or its tangent. */
template <class F, bool KEYS, int COUNT, class Function>
VERB void each_entry(const agi_cuda_params &p, const ag_tensor &t, const fragment_place &at, Function f)
{
    pair_entries<KEYS, COUNT> entries(p, t, at);
    if (p.aux_dtype == AG_F32) {
        entries.each([&](int n, int64_t e) { f(n, ((const float *)t.data)[e]); });
    } else if (entries.in_pairs(t.data, 2)) {
        entries.each_pair([&](int n, int64_t e) {
            const float2 both = F::unpack(*(const uint32_t *)((const uint16_t *)t.data + e));
            f(n, both.x);
            f(n + 1, both.y);
        });
    } else {
        entries.each([&](int n, int64_t e) { f(n, F::unpack(((const uint16_t *)t.data)[e]).x); });
    }
}
template <class F, bool KEYS, int COUNT>
VERB void add_bias(float (&S)[COUNT], const agi_cuda_params &p, const fragment_place &at)
{
    each_entry<F, KEYS, COUNT>(p, p.a.bias, at, [&](int n, float bias) { S[n] = with_bias(S[n], bias); });
}

/* Calls f(n, pair) for elements n and n + 1 of a warpgroup's tile that the copy engine has brought: boxes of 64
 * columns, next_box bytes apart. */
template <int COUNT, class Function>
VERB void each_pair_in_boxes(uint32_t first_box, uint32_t next_box, Function f)
{
    const int thread = here((int)threadIdx.x) % 128, matrix = thread % 32 / 8;
    const int r = thread / 32 * 16 + thread % 8 + matrix % 2 * 8;
    const uint32_t from = first_box + r * 128 + ((matrix / 2 ^ (r % 8)) << 4);
#pragma unroll
    for (int c = 0; c < COUNT / 4; c += 2) {
        uint32_t pairs[4];
        load_matrices(pairs, (from ^ (uint32_t)(c % 8 << 4)) + c / 8 * next_box);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            f(4 * c + 2 * i, pairs[i]);
        }
    }
}

/* ---- All that is added to scores; the mask is mask_bits' part, causal and window the kernels' ---- */

template <class F, int FEATURES, bool KEYS, int COUNT>
VERB void add_features(float (&S)[COUNT], const agi_cuda_params &p, const agi_hopper_features &x,
                       const fragment_place &at)
{
    if constexpr ((FEATURES & AGI_HAS_BIAS) != 0) {
        if (p.a.bias.data != nullptr) {
            add_bias<F, KEYS>(S, p, at);
        }
    }
    if constexpr ((FEATURES & AGI_HAS_RELATIVE) != 0) {
        if (x.relative != nullptr) {
            add_relative<KEYS>(S, relative_at<KEYS>(p, x, at));
        }
    }
}

/* What the tangents of bias and table add to those of scores, where the call has them. relative: as x.relative. */
template <class F, int FEATURES, bool KEYS, int COUNT>
VERB void add_tangents(float (&tS)[COUNT], const agi_cuda_params &p, const agi_hopper_features &x,
                       const float *relative, const fragment_place &at)
{
    if constexpr ((FEATURES & AGI_HAS_BIAS) != 0) {
        if (p.a.tbias.data != nullptr) {
            each_entry<F, KEYS, COUNT>(p, p.a.tbias, at, [&](int n, float t) { tS[n] = add_rn(tS[n], t); });
        }
    }
    if constexpr ((FEATURES & AGI_HAS_RELATIVE) != 0) {
        if (relative != nullptr) {
            add_relative<KEYS>(tS, relative_at<KEYS>(p, x, relative, at));
        }
    }
}

/* Can pairs be hidden by data? Then keys may be hidden from all queries, which 0 times NaN must not show. */
constexpr VERB bool hides_by_data(int features)
{
    return (features & (AGI_HAS_BIAS | AGI_HAS_MASK)) != 0;
}
/* L of a row whose keys weigh nothing beside the sink: its logit. Only a row that sees no key has it to the last bit,
 * by which vjp knows such rows; the number after it changes no bit of the sink's weight, unless it is a logit beyond
 * 2^26, where scores in float32 are too coarse for gradients of a row that the sink outweighs. */
VERB double lse_of_sink(double sink, bool sees_keys)
{
    const bool can_differ = fabs(sink) < 0x1p26;
    return sees_keys && can_differ ? fmax(sink + 0x1p-60, nextafter(sink, (double)INFINITY)) : sink;
}
/* Of the keys of one kv head: whether they are seen at all. */
VERB const uint8_t *live_keys(const agi_cuda_params &, const agi_hopper_features &x, const sequence &s,
                              int kv_head)
{
    return x.live + s.b * x.live_batch + kv_head * x.live_head;
}
/* Is one of N keys dead? The same answer in the whole warp. */
template <int N> VERB bool has_dead_keys(const uint8_t *live)
{
    static_assert(N % 4 == 0 && N <= 128, "a lane looks at four keys");
    const int lane = (int)threadIdx.x % 32;
    return __any_sync(~0u, 4 * lane < N && ((const uint32_t *)live)[lane] != 0x01010101);
}

/* ---- Dropout ----
 *
 * Philox gives the numbers of one query and four keys at once. */

struct dropout_counter {
    uint32_t h, b;
    uint64_t seed;
    uint32_t below;

    /* Philox 4x32-10: the numbers of keys 4 key to 4 key + 3. The compiler takes out of a loop what does not change in
     * it, the seeds of the rounds among it. */
    VERB void find(uint32_t (&x)[4], uint32_t key, uint32_t query) const
    {
        uint32_t c0 = key, c1 = query, c2 = h, c3 = b, k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
#pragma unroll
        for (int round = 0; round < 10; round++) {
            const wide_product p = multiply_wide(c0, 0xD2511F53u), q = multiply_wide(c2, 0xCD9E8D57u);
            c0 = q.high ^ c1 ^ k0;
            c1 = q.low;
            c2 = p.high ^ c3 ^ k1;
            c3 = p.low;
            k0 += 0x9E3779B9u;
            k1 += 0xBB67AE85u;
        }
        x[0] = c0;
        x[1] = c1;
        x[2] = c2;
        x[3] = c3;
    }
};

/* Which weights of a fragment are kept. A word has a byte for each of the four elements of eight columns, the first
 * columns in the highest bits. */
template <bool KEYS, int COUNT> struct kept_weights {
    static constexpr int WORDS = (COUNT + 31) / 32;
    uint32_t bits[WORDS];

    static constexpr VERB int bit_of(int n)
    {
        return n % 4 * 8 + 7 - n / 4 % 8;
    }
    VERB bool operator[](int n) const
    {
        return bits[n / 32] >> bit_of(n) & 1;
    }
    /* Of elements n and n + 1, n even, as halves of a word: all bits of what is kept. */
    VERB uint32_t halves(int n) const
    {
        return permute_bytes(bits[n / 32] << n / 4 % 8, 0, n % 4 == 0 ? SIGNS_0_1 : SIGNS_2_3);
    }
    VERB void find(const agi_cuda_params &p, const fragment_place &at)
    {
        const int query = KEYS ? at.first : at.own, key = KEYS ? at.own : at.first;
        const uint64_t g = (uint64_t)(key + at.s.k_shift);
        dropout_counter c;
        c.seed = p.a.seed_device == nullptr ? p.a.seed : *p.a.seed_device;
        c.h = (uint32_t)(at.h + p.head_offset);
        c.b = (uint32_t)(at.s.b + p.a.batch_offset);
        c.below = (uint32_t)p.drop_below;
        if (at.s.k_shift % 4 == 0) {
            find_together(c, (uint32_t)(g >> 2), (uint32_t)(uint64_t)(query + at.s.shift));
        } else {
            find_alone(c, g, (uint32_t)(uint64_t)(query + at.s.shift));
        }
    }

  private:
    enum { SIGNS_0_1 = 0x9988, SIGNS_2_3 = 0xbbaa }; /* twice each: the sign of a byte */

    /* Each lane has made the numbers of four keys and one query: two lanes share them if rows are queries, four if they
     * are keys. Key 4 key + n is byte n of what it has made. */
    VERB void find_together(const dropout_counter &c, uint32_t key, uint32_t query)
    {
        const int lane = (int)threadIdx.x % 32, s = lane / 4 % 4;
#pragma unroll
        for (int word = 0; word < WORDS; word++) {
            const int eights = COUNT - 32 * word < 32 ? COUNT / 4 - 8 * word : 8;
            uint32_t made[4] = {};
#pragma unroll(KEYS ? 1 : 2)
            for (int m = 0; m < eights; m++) {
                const int eight = 8 * word + m; /* of columns */
                uint32_t x[4];
                if (KEYS) {
                    c.find(x, key + (uint32_t)(s / 2 * 2),
                           query + (uint32_t)(8 * eight + lane % 4 * 2 + s % 2));
                } else {
                    c.find(x, key + (uint32_t)(2 * eight + lane % 4 / 2), query + (uint32_t)(lane % 2 * 8));
                }
#pragma unroll
                for (int n = 0; n < 4; n++) {
                    append_bit(made[n], x[n], c.below);
                }
            }
            const uint32_t low = made[0] | made[1] << 8, high = made[2] | made[3] << 8;
            const uint32_t all = (low | high << 16) << (8 - eights);
            bits[word] = c.below == 0 ? ~0u : KEYS ? exchange_keys(all) : exchange_rows(all);
        }
    }
    /* Two lanes next to each other share four keys: each has made the numbers of one of their two rows. */
    static VERB uint32_t exchange_rows(uint32_t mine)
    {
        return permute_bytes(mine, __shfl_xor_sync(~0u, mine, 1), threadIdx.x % 2 ? 0x3276 : 0x5410);
    }
    /* Four lanes have four keys as rows: lane s has made the numbers of all four for pair s of row and column; it gets
     * those of its own key for all pairs, a transposed matrix of 4 x 4 bytes. */
    static VERB uint32_t exchange_keys(uint32_t mine)
    {
        const uint32_t half =
            permute_bytes(mine, __shfl_xor_sync(~0u, mine, 8), threadIdx.x & 8 ? 0x3276 : 0x5410);
        return permute_bytes(half, __shfl_xor_sync(~0u, half, 4), threadIdx.x & 4 ? 0x3715 : 0x6240);
    }
    /* Positions of keys that do not begin at a multiple of four. */
    VERB void find_alone(const dropout_counter &c, uint64_t g, uint32_t query)
    {
#pragma unroll
        for (int word = 0; word < WORDS; word++) {
            bits[word] = 0;
#pragma unroll 1
            for (int n = 32 * word; n < COUNT && n < 32 * word + 32; n++) {
                const int row = n / 2 % 2 * 8, column = fragment_column(n);
                const uint64_t key = g + (uint64_t)(KEYS ? row : column);
                uint32_t x[4];
                c.find(x, (uint32_t)(key >> 2), query + (uint32_t)(KEYS ? column : row));
                const uint32_t two = key & 2 ? (key & 1 ? x[3] : x[2]) : (key & 1 ? x[1] : x[0]);
                bits[word] |= two >= c.below ? 1u << bit_of(n) : 0u;
            }
        }
    }
};
