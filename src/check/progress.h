/* How far ag_check_problem is, for the function `progress` of its caller. The unit of work is the time that the CPU
 * backend takes for one pair of a query and a key in forward, in float64; the work of all else is an estimate. */
#ifndef ATTNGRAD_CHECK_PROGRESS_H
#define ATTNGRAD_CHECK_PROGRESS_H

#include <attngrad_check.h>

/* Starts on this thread: `total` is the estimated work of all parts. options may be NULL. Until agc_progress_end, the
 * other functions call options->progress; before and after, they do nothing. */
void agc_progress_begin(const ag_check_options *options, double total);
void agc_progress_end(void);

/* A part of this estimated work begins; name: a string that lives as long as the program. */
void agc_progress_part(const char *name, double work);

/* So much work of the part is done. */
void agc_progress_add(double work);

/* The work of these maps, each run once by a plan, or by the reference; and of agc_error_sizes_of, all heads. */
double agc_work_of_plan(const ag_plan *plan, uint32_t maps);
double agc_work_of_reference(const ag_problem *p, uint32_t maps);
double agc_work_of_sizes(const ag_problem *p);

#endif
