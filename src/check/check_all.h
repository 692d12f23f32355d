/* All checks on one problem: finite differences and identities in float64 (on the float64 twin where the
 * problem is narrower), and the error rule. */
#ifndef ATTNGRAD_CHECK_CHECK_ALL_H
#define ATTNGRAD_CHECK_CHECK_ALL_H

#include "check/random_case.h"
#include "check/results.h"

enum { PLAN_TEXT = 160 };

/* Adds to results, and writes the plan's description into plan (NULL: not wanted). On failure the library's
 * status, and its message tells why. */
ag_status battery_run(const struct setup *s, const ag_options *options, struct results *results,
                      char plan[PLAN_TEXT]);

#endif
