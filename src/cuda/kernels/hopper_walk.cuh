/* The walk of a block of keys over the tiles of queries, and who adds to a tile of dQ after whom.
 *
 * Blocks of 128 keys visit a tile of queries one after another; each adds its part of dQ to a sum in global memory,
 * and the last one rounds the sum and stores dQ. The order at each tile is a function of the shape alone.
 *
 * The blocks of keys of a head come in groups of at most `ring`; a group's blocks are on the device at once, and groups
 * are begun one after the other. At a tile the blocks of lower groups come first. Inside a group:
 *
 * Band (causal, window): a block walks upwards from the first tile that it sees. The blocks that see a tile come from
 * the highest down to the lowest: the highest has begun nearest to it.
 *
 * Ring (every query sees every key): blocks begin at tiles that are spread evenly, and go on at tile 0 after the last.
 * At a tile the block that begins nearest before it comes first, then the one that begins before that, and so on
 * around. */
#pragma once
#include "cuda/kernels/hopper_tiles.cuh"

constexpr int KEYS_OF_BLOCK = AGI_HOPPER_RING_KEYS;

/* The blocks with the first and the last keys that the tile of N queries from `row` on sees. */
VERB int lowest_block(const sequence &s, int row)
{
    return max(row + s.low, 0) / KEYS_OF_BLOCK;
}
template <int N> VERB int highest_block(const sequence &s, int row)
{
    return min(s.n_k - 1, min(s.n_q, row + N) - 1 + s.high) / KEYS_OF_BLOCK;
}

/* The work of a block, one item after another: which head, of all sequences, and which of its keys. */
struct key_item {
    int64_t head;
    int group, position;
};

/* The first tile of a sequence in the sums and statistics: each sequence begins at a tile of its own. */
VERB int64_t first_tile_of(const agi_cuda_params &p, const sequence &s, int rows)
{
    return (p.flags & AG_PACKED ? s.q0 : s.b * p.Nq) / rows + s.b;
}

template <class T> struct key_walk {
    static constexpr int N = T::N;
    sequence s;
    int kv_head, head, heads;     /* the first query head, and how many; no heads: there is no more to do */
    int ring;                     /* 1: a ring, 0: a band */
    int row;                      /* its first key */
    int first, tiles;             /* the tile where it begins, how many it visits */
    int of_sequence;              /* tiles of queries */
    int before, position, length; /* blocks of lower groups, its place in its group, the group's blocks */
    int last_from, last_to;       /* in these steps the block is the last to visit its tile */
    int from, to;                 /* queries that some key of the block sees */

    /* Call, here and below: agi_hopper_ring or agi_hopper_second_ring. */
    template <class Call> VERB void begin(const Call &f, const key_item &item)
    {
        const agi_cuda_params &p = f.p;
        s = find_sequence(p, item.head / p.Hk);
        kv_head = (int)(item.head % p.Hk);
        head = kv_head * p.group;
        heads = p.group;
        ring = f.is_ring;
        of_sequence = (s.n_q + N - 1) / N;
        before = item.group * f.ring;
        position = item.position;
        length = min(f.ring, blocks() - before);
        row = (before + position) * KEYS_OF_BLOCK;
        find_queries();
        if (ring) {
            find_ring();
        } else {
            find_band();
        }
    }
    VERB int blocks() const
    {
        return (s.n_k + KEYS_OF_BLOCK - 1) / KEYS_OF_BLOCK;
    }
    VERB void find_queries()
    {
        const int last = min(row + KEYS_OF_BLOCK, s.n_k) - 1;
        from = max(row - s.high, 0);
        to = row < s.n_k ? min(last - s.low + 1, s.n_q) : 0;
        first = from / N;
        tiles = from >= to ? 0 : (to - 1) / N + 1 - first;
    }
    /* Last where no lower block of the group sees the tile, and no higher group. */
    VERB void find_band()
    {
        const int above = (before + length) * KEYS_OF_BLOCK; /* the first key of higher groups */
        last_from = position == 0 ? 0 : max((row - s.low + N - 1) / N - first, 0);
        last_to = above >= s.n_k || s.n_q - 1 + s.high < above ? tiles : max((above - s.high) / N - first, 0);
    }
    /* The tile where a block of the ring begins; the block that begins nearest before a tile, or there. */
    VERB int begin_of(int at) const
    {
        return at * of_sequence / length;
    }
    VERB int nearest_to(int tile) const
    {
        return ((tile + 1) * length - 1) / of_sequence;
    }
    VERB void find_ring()
    {
        if (tiles > 0) {
            first = begin_of(position);
            const int own =
                position == 0 ? of_sequence - begin_of(length - 1) : first - begin_of(position - 1);
            last_from = before + length == blocks() ? of_sequence - own : of_sequence;
            last_to = of_sequence;
        }
    }

    /* Is this block the only one that visits the tile of queries from tile_row on? */
    VERB bool is_alone(int tile_row) const
    {
        return ring ? blocks() == 1 : highest_block<N>(s, tile_row) == lowest_block(s, tile_row);
    }
};

/* The steps of a block over the tiles and heads of an item, one after another and without divisions. */
template <class T> struct walk_steps {
    static constexpr int N = T::N;
    int row, head,
        number;   /* the tile's first query, its head, the number of the step in the walk over the head */
    int64_t tile; /* among those of all sequences and heads */
    int heads;    /* that are left, this one too */
    int first, end, tiles; /* the row where the walk begins, that of the end of all tiles; steps of a head */
    int last_from, last_to;

    template <class Call>
    VERB walk_steps(const Call &f, const key_walk<T> &at)
        : row(at.first * N), head(at.head), number(0),
          tile(at.head * f.tiles + first_tile_of(f.p, at.s, N) + at.first),
          heads(at.tiles == 0 ? 0 : at.heads), first(row), end(at.of_sequence * N), tiles(at.tiles),
          last_from(at.last_from), last_to(at.last_to)
    {
    }
    VERB bool is_there() const
    {
        return heads > 0;
    }
    /* Is the block the last to visit the tile? */
    VERB bool is_last() const
    {
        return number >= last_from && number < last_to;
    }
    /* And the only one? */
    VERB bool is_alone(const key_walk<T> &at) const
    {
        return at.is_alone(row);
    }
    VERB bool has_more() const
    {
        return heads > 1 || number + 1 < tiles;
    }
    /* of_head: all tiles of a head. */
    VERB void next(int64_t of_head)
    {
        row += N;
        tile++;
        number++;
        if (number == tiles) {
            tile += of_head - (row - first) / N;
            row = first;
            number = 0;
            head++;
            heads--;
        } else if (row == end) {
            tile -= end / N;
            row = 0;
        }
    }
};

/* How many blocks visit the tile of a step before this one. */
template <class T> struct visit_ranks {
    const key_walk<T> &at;
    /* The block of the ring that begins nearest before the tile, and the row where the one after it begins. */
    int nearest = 0, next = 0;

    VERB void go_on_from(int block)
    {
        nearest = block;
        next = row_of(block + 1);
    }
    VERB int row_of(int block) const
    {
        return block < at.length ? at.begin_of(block) * T::N : FAR;
    }
    VERB int of(const walk_steps<T> &step)
    {
        if (!at.ring) {
            const int last = min(highest_block<T::N>(at.s, step.row), at.before + at.length - 1);
            return max(at.before - lowest_block(at.s, step.row), 0) + last - at.row / KEYS_OF_BLOCK;
        }
        if (step.number == 0 || step.row == 0) {
            go_on_from(step.number == 0 ? at.position : 0);
        }
        while (step.row >= next) {
            go_on_from(nearest + 1);
        }
        const int order = nearest - at.position;
        return at.before + (order < 0 ? order + at.length : order);
    }
};

/* ---- What is noted down about a step (hopper_ring_notes.cuh) ---- */

struct ring_note {
    enum : uint32_t {
        EDGE = 1,        /* << w: some pair of the warpgroup's keys and the tile's queries is hidden */
        LAST = 1 << 2,   /* the block is the last to visit the tile */
        ALONE = 1 << 3,  /* and the only one */
        UNSEEN = 1 << 4, /* some queries of the tile see no key of the block */
        ODD = 1 << 5,    /* before it an odd number of sums was fetched into its buffer */
        MORE = 1 << 6,   /* the item has a step after this one */
        MIXED = 1 << 7,  /* << w: the mask hides some pair of the warpgroup's keys and the tile's queries */
    };
    int row, head; /* the first query of the tile, its head */
    uint32_t flags;
};

/* ---- The items of a block, drawn by one of its threads ----
 *
 * Items are numbered group by group, in each head by head. Rings: the blocks of the grid are so many rings, which take
 * the heads in turn. Bands: whoever is free takes the next item; the first keys, with causal the longest walks, come
 * first. A block then waits for blocks of its own group and head and of lower groups only: either they have begun, or
 * free blocks will take them next, as the grid has room for a whole group.
 *
 * With a mask a place in a ring may have more steps than another one, in every head: `turns` gives a block of the grid
 * the next place in each item. All blocks of a ring still take the same items in the same order. */
struct item_list {
    int64_t now, end, step;
    int position;
    bool turns;

    template <class Call> VERB item_list(const Call &f, bool turning) : turns(turning)
    {
        end = f.p.B * f.p.Hk * f.groups;
        now = blockIdx.x / f.ring;
        step = gridDim.x / f.ring;
        position = (int)(blockIdx.x % f.ring);
    }
    template <class Call> VERB bool take(const Call &f, key_item &item)
    {
        const int64_t heads = f.p.B * f.p.Hk;
        if (!f.is_ring) {
            const int ticket = draw_ticket(f.tickets);
            now = ticket / f.ring;
            position = ticket % f.ring;
        }
        item = {now % heads, (int)(now / heads), position};
        const bool there = now < end;
        now += step;
        position = !turns ? position : position + 1 < f.ring ? position + 1 : 0;
        return there;
    }
};
