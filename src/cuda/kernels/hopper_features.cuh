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

/* ---- Relative positions: ALiBi and table ---- */

/* Where the term of the thread's first pair is; that of (row, column + 1) comes next, with KEYS before it. */
template <bool KEYS>
VERB const float *relative_at(const agi_cuda_params &p, const agi_hopper_features &x, const fragment_place &at)
{
    const int column = at.first + fragment_column(0), distance = KEYS ? at.own - column : column - at.own;
    return x.relative + (at.s.b * p.H + at.h) * x.relative_width + (p.Nq + AGI_HOPPER_PAD + distance);
}
/* The term of (row + 8, column) is that of (row, column - 8): each is loaded once. */
template <bool KEYS, int COUNT> VERB void add_relative(float (&S)[COUNT], const float *term)
{
    constexpr int NEXT = KEYS ? -1 : 1;
    float before[2] = {term[-8 * NEXT], term[-7 * NEXT]};
#pragma unroll
    for (int n = 0; n < COUNT; n += 4) {
        const float now[2] = {term[2 * n * NEXT], term[(2 * n + 1) * NEXT]};
#pragma unroll
        for (int c = 0; c < 2; c++) {
            S[n + c] = add_rn(S[n + c], now[c]);
            S[n + 2 + c] = add_rn(S[n + 2 + c], before[c]);
            before[c] = now[c];
        }
    }
}

/* ---- Bias ---- */

/* Minus infinity hides the pair, whatever its score is. */
VERB float with_bias(float S, float bias)
{
    return bias == -INFINITY ? bias : add_rn(S, bias);
}
template <class F, bool KEYS, int COUNT>
VERB void add_bias(float (&S)[COUNT], const agi_cuda_params &p, const fragment_place &at)
{
    const ag_tensor &t = p.a.bias;
    pair_entries<KEYS, COUNT> entries(p, t, at);
    if (p.aux_dtype == AG_F32) {
        entries.each([&](int n, int64_t e) { S[n] = with_bias(S[n], ((const float *)t.data)[e]); });
    } else if (entries.in_pairs(t.data, 2)) {
        entries.each_pair([&](int n, int64_t e) {
            const float2 both = F::unpack(*(const uint32_t *)((const uint16_t *)t.data + e));
            S[n] = with_bias(S[n], both.x);
            S[n + 1] = with_bias(S[n + 1], both.y);
        });
    } else {
        entries.each([&](int n, int64_t e) {
            S[n] = with_bias(S[n], F::unpack(((const uint16_t *)t.data)[e]).x);
        });
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

/* Can pairs be hidden by data? Then keys may be hidden from all queries, which 0 times NaN must not show. */
constexpr VERB bool hides_by_data(int features)
{
    return (features & (AGI_HAS_BIAS | AGI_HAS_MASK)) != 0;
}
/* Of the keys of one kv head: whether they are seen at all. */
VERB const uint8_t *live_keys(const agi_cuda_params &, const agi_hopper_features &x, const sequence &s, int kv_head)
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
    uint32_t key, query, h, b; /* key: g_j / 4 */
    uint64_t seed;
    uint32_t below;

    /* Bit n: the weight of key 4 (key + keys) + n is kept. */
    VERB uint32_t four(int keys, int queries) const
    {
        uint32_t bits = 0;
#pragma unroll
        for (int n = 0; n < 4; n++) {
            bits |= philox_word(key + (uint32_t)keys, query + (uint32_t)queries, h, b, seed, n) >= below ? 1u << n : 0u;
        }
        return bits;
    }
};

/* Two lanes next to each other share four keys: each has made the numbers of one of their two rows. */
VERB uint32_t exchange_rows(uint32_t mine)
{
    const uint32_t other = __shfl_xor_sync(~0u, mine, 1);
    return threadIdx.x % 2 ? (mine & 0xccccccccu) | (other >> 2 & 0x33333333u)
                           : (mine & 0x33333333u) | (other & 0x33333333u) << 2;
}
/* Four lanes have four keys as rows: lane s has made the numbers of all four for pair s of row and column; it gets
 * those of its own key for all pairs, a transposed matrix of 4 x 4 bits. */
VERB uint32_t exchange_keys(uint32_t mine)
{
    const int s = (int)threadIdx.x / 4 % 4;
    uint32_t other = __shfl_xor_sync(~0u, mine, 8);
    mine = s & 2 ? (mine & 0xccccccccu) | (other >> 2 & 0x33333333u)
                 : (mine & 0x33333333u) | (other & 0x33333333u) << 2;
    other = __shfl_xor_sync(~0u, mine, 4);
    return s & 1 ? (mine & 0xaaaaaaaau) | (other >> 1 & 0x55555555u)
                 : (mine & 0x55555555u) | (other & 0x55555555u) << 1;
}

/* Which weights of a fragment are kept: bit n % 32 of word n / 32. */
template <bool KEYS, int COUNT> struct kept_weights {
    static constexpr int WORDS = (COUNT + 31) / 32;
    uint32_t bits[WORDS];

    VERB bool operator[](int n) const
    {
        return bits[n / 32] >> n % 32 & 1;
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
        c.query = (uint32_t)(uint64_t)(query + at.s.shift);
        c.key = (uint32_t)(g >> 2);
        if (at.s.k_shift % 4 == 0) {
            find_together(c);
        } else {
            find_alone(c, g);
        }
    }
    VERB void find_together(const dropout_counter &c)
    {
        const int lane = (int)threadIdx.x % 32, s = lane / 4 % 4;
#pragma unroll
        for (int word = 0; word < WORDS; word++) {
            uint32_t made = 0;
#pragma unroll 2
            for (int m = 0; m < (COUNT - 32 * word < 32 ? (COUNT - 32 * word) / 4 : 8); m++) {
                const int tile = 8 * word + m; /* of eight columns */
                const uint32_t four = KEYS ? c.four(2 * (s / 2), 8 * tile + lane % 4 * 2 + s % 2)
                                           : c.four(2 * tile + lane % 4 / 2, 8 * (lane % 2));
                made |= four << 4 * m;
            }
            bits[word] = KEYS ? exchange_keys(made) : exchange_rows(made);
        }
    }
    /* Positions of keys that do not begin at a multiple of four. */
    VERB void find_alone(const dropout_counter &c, uint64_t g)
    {
#pragma unroll
        for (int word = 0; word < WORDS; word++) {
            bits[word] = 0;
#pragma unroll 1
            for (int n = 32 * word; n < COUNT && n < 32 * word + 32; n++) {
                const int row = n / 2 % 2 * 8, column = fragment_column(n);
                const uint64_t key = g + (uint64_t)(KEYS ? row : column);
                const uint32_t x = philox_word((uint32_t)(key >> 2), c.query + (uint32_t)(KEYS ? column : row), c.h,
                                               c.b, c.seed, (int)(key & 3));
                bits[word] |= x >= c.below ? 1u << n % 32 : 0u;
            }
        }
    }
};
