/* Bounds for one problem: how fast its scores change with an input, which sets the steps of finite
 * differences, and how large each output can be at most, both from the norms of the inputs. Residuals are taken relative to those bounds, not to the outputs, because an output may vanish
 * by cancellation (a row that sees one key has dq = 0) and then holds nothing but rounding errors. */
#ifndef ATTNGRAD_CHECK_BOUNDS_H
#define ATTNGRAD_CHECK_BOUNDS_H

#include "check/arrays.h"
#include "check/results.h"

struct bounds {
    double score;                  /* 1 + a bound of |S|: a score's rounding error in units of eps */
    double rate[FAMILY_VARIABLES]; /* relative change of weights or values with one element of a variable */
    double tangent_rate;           /* the same along the tangents */
    double unit[T_COUNT];          /* bounds of the outputs, times score; 0 for what is no output */
};

/* x: float64, with its outputs computed. */
void bounds_of(struct bounds *s, const struct arrays *x);

/* Notes |got - wanted| of each element, in units of the output t; equal infinities differ by 0. */
void note_differences(struct worst *w, const struct bounds *s, enum tensor t, const double *got,
                      const double *wanted, int64_t count);

double largest(const double *values, int64_t count); /* finite absolute value; 0 of nothing */

#endif
