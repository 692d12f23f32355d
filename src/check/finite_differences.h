/* Compares derivatives with finite differences, in float64. */
#ifndef ATTNGRAD_CHECK_FINITE_DIFFERENCES_H
#define ATTNGRAD_CHECK_FINITE_DIFFERENCES_H

#include "check/arrays.h"
#include "check/results.h"

/* x: float64, all maps run. Adds one result for each derivative:
 *     to, mu          against differences of o and lse along the tangents
 *     dq .. dsink     element by element, against differences of <d_o, o> + <d_lse, lse>
 *     tdq .. tdsink   against differences of dq .. dsink along the tangents of inputs and cotangents
 *     sto, nu         against differences of to and mu along the second direction, if x has one
 * If a variable is large, only as many elements are tested as the time allows, spread over it at random.
 * options: those of x's plan. */
ag_status agc_finite_differences(const struct arrays *x, const ag_options *options, ag_check_report *results);

/* Of agc_finite_differences(x, ..): the estimated work, as progress.h measures it. */
double agc_finite_differences_work(const struct arrays *x);

#endif
