/* All checks on one problem: finite differences and identities in float64 (on the float64 twin where the
 * problem is narrower), and the error rule. */
#ifndef ATTNGRAD_CLI_BATTERY_H
#define ATTNGRAD_CLI_BATTERY_H

#include "draw.h"
#include "results.h"

/* Adds to results. On failure the library's status, and its message tells why. */
ag_status battery_run(const struct setup *s, const ag_options *options, struct results *results);

#endif
