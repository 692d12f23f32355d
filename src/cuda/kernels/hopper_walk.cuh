/* The walk of a block of keys over the tiles of queries, and who adds to a tile of dQ after whom.
 *
 * Blocks of 128 keys visit a tile of queries one after another; each adds its part of dQ to a sum in global memory,
 * and the last one rounds the sum and stores dQ. The order at each tile is a function of the shape alone.
 *
 * Band (causal, window): a block walks upwards from the first tile that it sees, and the blocks that see a tile come from
 * the last one down to the first. A block waits for blocks with more keys before them only: these draw earlier tickets, so
 * they have begun.
 *
 * Ring (every query sees every key): blocks begin at tiles that are spread evenly, and go on at tile 0 after the last. At
 * a tile the block that begins nearest before it comes first, then the one that begins before that, and so on around. All
 * blocks of a ring are on the device at once. More than `ring` blocks are several rings, one after the other. */
#pragma once
#include "cuda/kernels/hopper_tiles.cuh"

constexpr int KEYS_OF_BLOCK = 128;

/* Which keys of which head: the work of a block, of which it does one after another in a ring. */
struct key_item {
    int64_t head; /* kv heads of all sequences */
    int group, position; /* of the ring; a band has one group */
};

/* The first tile of a sequence in the sums and statistics: each sequence begins at a tile of its own. */
VERB int64_t first_tile_of(const agi_cuda_params &p, const sequence &s, int rows)
{
    return (p.flags & AG_PACKED ? s.q0 : s.b * p.Nq) / rows + s.b;
}

template <class T> struct key_walk {
    static constexpr int N = T::N;
    sequence s;
    int kv_head, head, heads; /* the first query head, and how many */
    bool ring;
    int block, row;       /* its number in the sequence, its first key */
    int first, tiles;     /* the tile where it begins, how many it visits */
    int of_sequence;      /* tiles of queries */
    int blocks;           /* of keys */
    int last_from;        /* from this step on the block is the last to visit its tiles */
    int position, length; /* in its ring */
    int before;           /* blocks of earlier rings */
    int from, to;         /* queries that some key of the block sees */

    VERB key_walk(const agi_hopper_ring &f, const key_item &item)
    {
        const agi_cuda_params &p = f.p;
        s = find_sequence(p, item.head / p.Hk);
        kv_head = (int)(item.head % p.Hk);
        head = kv_head * p.group;
        heads = p.group;
        ring = f.together != 0;
        of_sequence = (s.n_q + N - 1) / N;
        blocks = (s.n_k + KEYS_OF_BLOCK - 1) / KEYS_OF_BLOCK;
        before = item.group * f.ring;
        position = item.position;
        block = before + position;
        row = block * KEYS_OF_BLOCK;
        tiles = 0;
        if (block < blocks && of_sequence > 0) {
            find_queries();
        }
        if (tiles > 0 && ring) {
            find_ring(f.ring);
        } else if (tiles > 0) {
            find_band();
        }
    }
    VERB void find_queries()
    {
        const int last = min(row + KEYS_OF_BLOCK, s.n_k) - 1;
        from = max(row - s.high, 0);
        to = min(last - s.low + 1, s.n_q);
        first = from / N;
        tiles = from >= to ? 0 : (to - 1) / N + 1 - first;
    }
    VERB void find_band()
    {
        const int below = (row - s.low + N - 1) / N - first; /* steps at tiles that the block before sees too */
        last_from = block == 0 ? 0 : max(below, 0);
    }
    /* The tile where a block of the ring begins. */
    VERB int begin_of(int at) const
    {
        return at * of_sequence / length;
    }
    VERB void find_ring(int most)
    {
        length = min(most, blocks - before);
        first = begin_of(position);
        const int next = position == 0 ? of_sequence - begin_of(length - 1) : first - begin_of(position - 1);
        last_from = before + length == blocks ? of_sequence - next : of_sequence;
    }

    /* ---- Step c of a head ---- */

    VERB int tile(int c) const
    {
        const int m = first + c;
        return ring && m >= of_sequence ? m - of_sequence : m;
    }
    VERB bool is_last(int c) const
    {
        return c >= last_from;
    }
    /* The block with the last keys that tile m sees. */
    VERB int highest(int m) const
    {
        return min(s.n_k - 1, min(s.n_q, (m + 1) * N) - 1 + s.high) / KEYS_OF_BLOCK;
    }
    /* How many blocks visit tile m before this one. `nearest` is the block of the ring that begins nearest before the
     * tile: it only grows along the walk, up to the wrap. */
    VERB int rank(int m, int &nearest) const
    {
        if (!ring) {
            return highest(m) - block;
        }
        while (nearest + 1 < length && begin_of(nearest + 1) <= m) {
            nearest++;
        }
        const int order = nearest - position;
        return before + (order < 0 ? order + length : order);
    }
    /* Is it the only block that visits tile m, of which it is the last visitor? */
    VERB bool is_alone(int m) const
    {
        return ring ? blocks == 1 : highest(m) == block;
    }
    VERB int steps() const
    {
        return tiles * heads;
    }
};

/* ---- The items of a block ---- */

/* In a band one item, by ticket: the last keys of a head first. In rings: the blocks of the grid are so many rings at
 * once, which take the heads in turn, all of them with the first keys, then all with the next. */
struct item_list {
    int64_t now, end, step;
    int position;

    VERB item_list(const agi_hopper_ring &f, int64_t ticket)
    {
        const int64_t heads = f.p.B * f.p.Hk;
        if (f.together) {
            now = blockIdx.x / f.ring;
            step = gridDim.x / f.ring;
            end = heads * f.groups;
            position = (int)(blockIdx.x % f.ring);
        } else {
            now = ticket / f.ring;
            step = heads;
            end = now + 1;
            position = (int)(f.ring - 1 - ticket % f.ring);
        }
    }
    VERB bool more() const
    {
        return now < end;
    }
    VERB key_item take(const agi_hopper_ring &f)
    {
        const int64_t heads = f.p.B * f.p.Hk, item = now;
        now += step;
        return {item % heads, (int)(item / heads), position};
    }
};
