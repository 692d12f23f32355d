/* vjp and vjp_jvp in one kernel (hopper_ring.cu, hopper_second_ring.cu): what the thread that copies notes down about
 * each step, so that those that compute know nothing else of the walk and have registers for everything. */
#pragma once
#include "cuda/kernels/hopper_visits.cuh"

/* The steps of an item with their notes. */
template <class T, class Call> struct noted_steps : steps_of_item<T, Call>::steps {
    typedef typename steps_of_item<T, Call>::steps base;
    int from, to; /* all queries of a tile between these see some key of the block */
    int whole_from,
        whole_to[2]; /* all keys of a warpgroup see all queries of a tile that begins between these */

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
        flags |= base::has_more() ? ring_note::MORE : 0;
        if constexpr (has_mask(T::FEATURES)) {
            flags |= base::about & 3 * ring_note::MIXED;
        }
        if (base::is_last() && base::is_alone(at)) {
            flags |= ring_note::LAST | ring_note::ALONE;
        } else if (base::is_last()) {
            flags |= ring_note::LAST;
            fetched ^= buffer;
        }
        return {base::row, base::head, flags};
    }
};
