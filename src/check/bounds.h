/* Bounds for one problem, from the norms of its inputs: how fast its scores change with an input, which sets
 * the steps of finite differences, and how large each output can be. Residuals are taken relative to those
 * bounds, not to the outputs, because an output may vanish by cancellation (a row that sees one key has dq =
 * 0) and then consists of rounding errors only. */
#ifndef ATTNGRAD_CHECK_BOUNDS_H
#define ATTNGRAD_CHECK_BOUNDS_H

#include "check/arrays.h"
#include "check/results.h"

struct bounds {
    double score;                  /* 1 + a bound of |S|: the rounding error of a score, in units of eps */
    double rate[FAMILY_VARIABLES]; /* relative change of weights or values per change of a variable */
    double tangent_rate;           /* the same per step along the tangents */
    double second_rate;            /* the same along the second direction; 0 if there is none */
    double unit[T_COUNT];          /* bounds of the outputs, times score; 0 for other tensors */
};

/* x must be float64, with its outputs computed. AG_OK or AG_NO_MEMORY. */
ag_status agc_bounds_of(struct bounds *s, const struct arrays *x);

/* Notes |got - wanted| of each element of output t, in units of s->unit[t]; equal infinities differ by 0. */
void agc_note_differences(struct worst *w, const struct bounds *s, enum tensor t, const double *got,
                          const double *wanted, int64_t count);

double agc_largest(const double *values,
                   int64_t count); /* largest finite absolute value; 0 if there is none */

#endif
