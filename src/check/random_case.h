/* The arrays of a case, and random cases (attngrad_check.h). */
#ifndef ATTNGRAD_CHECK_RANDOM_CASE_H
#define ATTNGRAD_CHECK_RANDOM_CASE_H

#include "check/arrays.h"

#include <attngrad_check.h>

/* Makes a plan and random arrays for the case, as agc_arrays_create does. */
ag_status agc_arrays_of_case(struct arrays *x, const ag_check_case *c, const ag_options *options);

#endif
