/* Boolean masks on Hopper: the classes of their tiles, which hopper_classes makes, and the bits of a fragment. */
#pragma once
#include "cuda/kernels/hopper_fragments.cuh"

constexpr VERB bool has_mask(int features)
{
    return (features & AGI_HAS_MASK) != 0;
}

/* ---- Classes ---- */

/* Of the 64 queries, from a multiple of 64 on, of which `query` is one: the classes by tiles of keys. Behind the last
 * queries the last ones count. */
VERB const uint8_t *classes_of(const agi_hopper_features &x, const sequence &s, int h, int query)
{
    const int(&n)[4] = x.class_tiles;
    const int64_t head = (int64_t)min((int)s.b, n[0] - 1) * n[1] + min(h, n[1] - 1);
    return x.classes + (head * n[2] + min(query / AGI_HOPPER_CLASS, n[2] - 1)) * n[3];
}
/* What the tiles have in which N keys from `key` on lie. */
template <int N> VERB int class_of_keys(const agi_hopper_features &x, const uint8_t *classes, int key)
{
    constexpr int TILE = AGI_HOPPER_CLASS, MOST = N % TILE == 0 ? N / TILE : (N - 1) / TILE + 2;
    const int last = min((key + N - 1) / TILE, x.class_tiles[3] - 1);
    int bits = 0;
#pragma unroll
    for (int i = 0; i < MOST; i++) {
        bits |= classes[min(key / TILE + i, last)];
    }
    return bits;
}
/* The highest tile of keys from `first` to `tile` in which one of two rows of classes has a pair that is seen; -1 if
 * there is none, or one below `first`. */
VERB int last_seen(const uint8_t *row, const uint8_t *other, int first, int tile)
{
    uint32_t within = 0x01010101u >> 8 * (3 - tile % 4);
#pragma unroll 1
    for (int at = tile & ~3; at + 3 >= first && at >= 0; at -= 4) {
        const uint32_t seen = (*(const uint32_t *)(row + at) | *(const uint32_t *)(other + at)) & within;
        if (seen != 0) {
            return at + (seen >> 24 ? 3 : seen >> 16 ? 2 : seen >> 8 ? 1 : 0);
        }
        within = 0x01010101u;
    }
    return -1;
}

/* ---- Bits ----
 *
 * A fragment's pairs as bits, found while products run. 16 keys of a query are one load; a lane takes two of them,
 * makes a bit of each byte, and exchanges bits with the lanes of the same rows or columns. */

struct alignas(16) sixteen_bytes {
    uint32_t x, y, z, w;
};

/* In each byte that is not zero the highest bit. */
VERB uint32_t nonzero_bytes(uint32_t x)
{
    return (((x & 0x7f7f7f7fu) + 0x7f7f7f7fu) | x) & 0x80808080u;
}
/* Byte k: of keys k, k + 8 of the first and k, k + 8 of the second, then the same of k + 4, from the lowest bit up. */
VERB uint32_t pack_bytes(const sixteen_bytes &first, const sixteen_bytes &second)
{
    return nonzero_bytes(first.x) >> 7 | nonzero_bytes(first.z) >> 6 | nonzero_bytes(second.x) >> 5 |
           nonzero_bytes(second.z) >> 4 | nonzero_bytes(first.y) >> 3 | nonzero_bytes(first.w) >> 2 |
           nonzero_bytes(second.y) >> 1 | nonzero_bytes(second.w);
}
/* Parts of `width` bits follow each other in pairs, `low` has the first of each: the lane without bit `other` gets the
 * first ones of both lanes, the lane with it the second ones. */
VERB uint32_t exchange_parts(uint32_t mine, int other, int width, uint32_t low)
{
    const uint32_t theirs = __shfl_xor_sync(~0u, mine, other);
    return threadIdx.x & other ? (mine & low << width) | (theirs >> width & low)
                               : (mine & low) | (theirs & low) << width;
}

template <bool KEYS, int COUNT> struct mask_bits {
    static constexpr int WORDS = (COUNT + 31) / 32;
    uint32_t bits[WORDS];

    /* Of element n in its word: a word has 64 columns. */
    static constexpr VERB int bit_of(int n)
    {
        const int eight = n / 4 % 8, half = n / 2 % 2, odd = n % 2;
        return KEYS ? 8 * (eight % 4) + 4 * (eight / 4) + 2 * odd + half
                    : 16 * (eight / 2 % 2) + 8 * odd + 4 * (eight / 4) + 2 * half + eight % 2;
    }
    /* The other way round. */
    static constexpr VERB int element_of(int bit)
    {
        const int eight = KEYS ? bit / 8 % 4 + bit / 4 % 2 * 4 : bit / 16 % 2 * 2 + bit / 4 % 2 * 4 + bit % 2;
        const int half = KEYS ? bit % 2 : bit / 2 % 2, odd = KEYS ? bit / 2 % 2 : bit / 8 % 2;
        return bit / 32 * 32 + 4 * eight + 2 * half + odd;
    }
    /* `instead` in the place of what is hidden. In the order of bits, of which the compiler takes seven at once. */
    VERB void hide(float (&S)[COUNT], float instead) const
    {
#pragma unroll
        for (int bit = 0; bit < 32 * WORDS; bit++) {
            const int n = element_of(bit);
            if (n < COUNT) {
                S[n] = bits[bit / 32] & 1u << bit % 32 ? S[n] : instead;
            }
        }
    }
    VERB void find(const agi_cuda_params &p, const agi_hopper_features &x, const fragment_place &at)
    {
        begin(p, x, at);
        end(p, x, at);
    }
    /* The same in two steps, of which the first does not wait for what it loads: 16 keys at a time. Pairs that the mask
     * does not have may get any bit: they are hidden in any case. */
    VERB void begin(const agi_cuda_params &p, const agi_hopper_features &x, const fragment_place &at)
    {
        const ag_tensor &t = p.a.mask;
        const int lane = (int)threadIdx.x % 32, last = (int)p.Nq - 1;
        const uint8_t *const head = (const uint8_t *)t.data + at.s.b * t.strides[0] + at.h * t.strides[1];
#pragma unroll
        for (int word = 0; word < WORDS; word++) {
            const int key = KEYS ? at.own - lane / 4 : at.first + 64 * word + lane % 4 * 16;
            const int query = KEYS ? at.first + 64 * word + lane / 4 * 8 + lane % 4 * 2 : at.own;
            const int next = KEYS ? query + 1 : query + 8, column = KEYS ? lane / 4 * 8 : lane % 4 * 16;
            first[word] = second[word] = {};
            if (x.mask_in_chunks && key < p.Nk && 64 * word + column < 2 * COUNT) {
                first[word] = *(const sixteen_bytes *)(head + min(query, last) * t.strides[2] + key);
                second[word] = *(const sixteen_bytes *)(head + min(next, last) * t.strides[2] + key);
            }
        }
    }
    VERB void end(const agi_cuda_params &p, const agi_hopper_features &x, const fragment_place &at)
    {
        if (!x.mask_in_chunks) {
            find_alone(p.a.mask, pair_entries<KEYS, COUNT>(p, p.a.mask, at));
            return;
        }
#pragma unroll
        for (int word = 0; word < WORDS; word++) {
            bits[word] = exchange(pack_bytes(first[word], second[word]));
        }
    }

  private:
    sixteen_bytes first[WORDS], second[WORDS]; /* of a lane's two rows or columns, between begin and end */

    /* The lanes that share rows have 16 columns each, those that share columns eight: they get their own of all. */
    static VERB uint32_t exchange(uint32_t packed)
    {
        const uint32_t nibbles = exchange_parts(packed, KEYS ? 16 : 2, 4, 0x0f0f0f0fu);
        const uint32_t words = exchange_parts(nibbles, KEYS ? 8 : 1, 16, 0x0000ffffu);
        return KEYS ? exchange_parts(words, 4, 8, 0x00ff00ffu) : words;
    }
    /* Some columns at a time, as there are few registers. Behind the last column that is read again. */
    VERB void find_alone(const ag_tensor &t, const pair_entries<KEYS, COUNT> &entries)
    {
        const uint8_t *const mask = (const uint8_t *)t.data;
#pragma unroll
        for (int word = 0; word < WORDS; word++) {
            constexpr int EIGHTS = COUNT / 4;
            bits[word] = 0;
#pragma unroll 2
            for (int eight = 8 * word; eight < min(8 * word + 8, EIGHTS); eight++) {
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const int column = min(8 * eight + i % 2, entries.columns - 1);
                    const bool seen = mask[entries.row[i / 2] + column * entries.step] != 0;
                    bits[word] |= (uint32_t)seen << bit_of(4 * eight + i);
                }
            }
        }
    }
};
