/* Which query sees which key, written from the contract alone and not from the library's source: what the
 * tests compare the library with. */
#ifndef AG_TEST_VISIBLE_H
#define AG_TEST_VISIBLE_H

#include "outputs.h"

#include <math.h>

static inline double value_at(const struct arrays *x, enum tensor t, int64_t b, int64_t h, int64_t i,
                              int64_t c)
{
    const size_t at = (size_t)agc_arrays_index(x, t, b, h, i, c) * element_size(x, t);
    return element_value(x, t, (const char *)x->data[t] + at);
}

/* p_i and g_j. */
static inline int64_t query_position(const struct arrays *x, int64_t b, int64_t i)
{
    const int bottom_right = x->p->align == AG_ALIGN_BOTTOM_RIGHT;
    return i + agc_arrays_q_offset(x, b) +
           (bottom_right ? agc_arrays_k_length(x, b) - agc_arrays_q_length(x, b) : 0);
}

static inline int64_t key_position(const struct arrays *x, int64_t b, int64_t j)
{
    return j + agc_arrays_k_offset(x, b);
}

/* Decided by position and mask alone; minus infinity in a bias or a table may mask more pairs. */
static inline int visible_before_bias(const struct arrays *x, int64_t b, int64_t h, int64_t i, int64_t j)
{
    const ag_problem *p = x->p;
    const int64_t position = query_position(x, b, i), g = key_position(x, b, j);
    if (i >= agc_arrays_q_length(x, b) || j >= agc_arrays_k_length(x, b) ||
        ((p->flags & AG_CAUSAL) && g > position)) {
        return 0;
    }
    if ((p->flags & AG_WINDOW) && ((p->window_left >= 0 && g < position - p->window_left) ||
                                   (p->window_right >= 0 && g > position + p->window_right))) {
        return 0;
    }
    return !(p->flags & AG_MASK) ||
           ((const uint8_t *)x->data[T_MASK])[agc_arrays_index(x, T_MASK, b, h, i, j)] != 0;
}

static inline int is_hidden_by_table(const struct arrays *x, int64_t b, int64_t h, int64_t i, int64_t j)
{
    const int64_t R = x->p->table_radius, distance = key_position(x, b, j) - query_position(x, b, i);
    const int64_t entry = (distance < -R ? -R : distance > R ? R : distance) + R;
    return value_at(x, T_TABLE, 0, x->p->table_heads == 1 ? 0 : h, 0,
                    x->buckets != NULL ? x->buckets[entry] : entry) == -(double)INFINITY;
}

static inline int visible(const struct arrays *x, int64_t b, int64_t h, int64_t i, int64_t j)
{
    return visible_before_bias(x, b, h, i, j) &&
           !((x->p->flags & AG_BIAS) && value_at(x, T_BIAS, b, h, i, j) == -(double)INFINITY) &&
           !((x->p->flags & AG_TABLE) && is_hidden_by_table(x, b, h, i, j));
}

#endif
