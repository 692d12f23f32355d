/* vjp and vjp_jvp in one kernel (hopper_ring.cu, hopper_second_ring.cu): what the thread that copies notes down about
 * each step, so that those that compute know nothing else of the walk and have registers for everything. */
#pragma once
#include "cuda/kernels/hopper_walk.cuh"

struct ring_note {
    enum : uint32_t {
        EDGE = 1,        /* << w: some pair of the warpgroup's keys and the tile's queries is hidden */
        LAST = 1 << 2,   /* the block is the last to visit the tile */
        ALONE = 1 << 3,  /* and the only one */
        UNSEEN = 1 << 4, /* some queries of the tile see no key of the block */
        ODD = 1 << 5,    /* before it an odd number of sums was fetched into its buffer */
        MORE = 1 << 6,   /* the item has a step after this one */
    };
    int row, head; /* the first query of the tile, its head */
    uint32_t flags;
};

/* The steps of an item with their notes. */
template <class T> struct noted_steps : walk_steps<T> {
    typedef walk_steps<T> base;
    int from, to; /* all queries of a tile between these see some key of the block */
    int whole_from,
        whole_to[2]; /* all keys of a warpgroup see all queries of a tile that begins between these */

    template <class Call>
    VERB noted_steps(const Call &f, const key_walk<T> &at)
        : base(f, at), from(at.from), to(at.to - T::N),
          whole_from(at.row + 63 - at.s.high), whole_to{whole_until(at, at.row), whole_until(at, at.row + 64)}
    {
    }
    /* Of the 64 keys from j on. */
    static VERB int whole_until(const key_walk<T> &at, int j)
    {
        return j + 64 > at.s.n_k ? -1 : min(j - at.s.low + 1, at.s.n_q) - T::N;
    }
    VERB bool has_edge(int w) const
    {
        return base::row < whole_from + 64 * w || base::row > whole_to[w];
    }
    /* fetched: whether sums were fetched an odd number of times, a bit per buffer; buffer: the step's bit. */
    VERB ring_note describe(const key_walk<T> &at, uint32_t &fetched, uint32_t buffer) const
    {
        uint32_t flags = has_edge(0) ? ring_note::EDGE : 0;
        flags |= has_edge(1) ? ring_note::EDGE << 1 : 0;
        flags |= base::row < from || base::row > to ? ring_note::UNSEEN : 0;
        flags |= fetched & buffer ? ring_note::ODD : 0;
        flags |= base::heads > 1 || base::number + 1 < base::tiles ? ring_note::MORE : 0;
        if (base::is_last() && at.is_alone(base::row)) {
            flags |= ring_note::LAST | ring_note::ALONE;
        } else if (base::is_last()) {
            flags |= ring_note::LAST;
            fetched ^= buffer;
        }
        return {base::row, base::head, flags};
    }
};
