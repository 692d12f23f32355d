/* Which tiles of keys two warpgroups of queries visit if a mask hides others from all of them: the thread that copies
 * finds out, by the classes of the mask's tiles, and leaves a note about each step for those that compute. */
#pragma once
#include "cuda/kernels/hopper_mask.cuh"
#include "cuda/kernels/hopper_tiles.cuh"

struct key_note {
    int key;       /* the first of the tile */
    bool last;     /* of the tile of queries */
    bool mixed[2]; /* of each warpgroup: the mask hides some of its pairs */
};

template <class T> struct seen_tiles {
    static_assert(T::CONSUMERS == 2, "notes are for two");
    const agi_hopper_features &x;
    const query_block<T> &at;

    VERB const uint8_t *classes(int w) const
    {
        return classes_of(x, at.s, at.h, at.row + w * 64);
    }
    /* The first tile from n on in which the block sees something; at.count or more if there is none. */
    VERB int next(int n) const
    {
        constexpr int TILE = AGI_HOPPER_CLASS;
        if (n >= at.count) {
            return n;
        }
        const int last = min((at.key(n) + T::N - 1) / TILE, x.class_tiles[3] - 1);
        const int seen = last_seen(classes(0), classes(1), at.first * T::N / TILE, last);
        return seen < 0 ? at.count : max(n, at.first + at.count - 1 - (seen * TILE + TILE - 1) / T::N);
    }
    VERB bool is_mixed(int w, int n) const
    {
        return (class_of_keys<T::N>(x, classes(w), at.key(n)) & AGI_TILE_HIDDEN) != 0;
    }
    VERB key_note note(int n, bool last) const
    {
        return {at.key(n), last, {is_mixed(0, n), is_mixed(1, n)}};
    }
};
