/* A mask of which most tiles are empty: about one of eight of 128 x 128 is seen, in other places for each head. Some
 * rows of tiles see no key. */
#ifndef AG_TEST_SPARSE_MASK_H
#define AG_TEST_SPARSE_MASK_H

#include "check/arrays.h"

static inline int shows_sparse_pair(int64_t head, int64_t i, int64_t j)
{
    const int64_t row = i / 128, column = j / 128;
    return (row * 7 + column * 13 + row * column * 5 + head * 3) % 8 == 0;
}

static inline void make_mask_sparse(struct arrays *x)
{
    const int64_t *size = x->size[T_MASK];
    uint8_t *const mask = x->data[T_MASK];
    for (int64_t n = 0; n < x->count[T_MASK]; n++) {
        const int64_t j = n % size[3], i = n / size[3] % size[2], head = n / size[3] / size[2];
        mask[n] = (uint8_t)shows_sparse_pair(head, i, j);
    }
}

#endif
