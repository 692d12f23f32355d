/* Adds results to the report of attngrad_check.h, and finds the worst element of a check. A result that does not fit
 * into the report is counted in report->omitted. */
#ifndef ATTNGRAD_CHECK_RESULTS_H
#define ATTNGRAD_CHECK_RESULTS_H

#include "check/arrays.h"

#include <attngrad_check.h>

/* The worst of the elements that a check has looked at so far. */
struct worst {
    double residual;
    enum tensor t;
    int64_t element; /* its index in the tensor's data; -1: every residual so far was 0 */
};
#define WORST_NONE                                                                                           \
    {                                                                                                        \
        0, 0, -1                                                                                             \
    }

/* Notes the element if its residual is larger; NaN is larger than every number. */
void agc_worst_note(struct worst *w, double residual, enum tensor t, int64_t element);

/* Adds a result without a worst element; the format gives its name. */
void agc_results_add(ag_check_report *report, double residual, double limit, const char *format, ...);

/* Adds w's residual and, in the tensors of x, the index of its element. */
void agc_results_add_worst(ag_check_report *report, const struct arrays *x, const struct worst *w,
                           double limit, const char *format, ...);

/* The same for a check of sums over one axis of the tensor: the index on that axis is -1. */
void agc_results_add_sum(ag_check_report *report, const struct arrays *x, const struct worst *w, int axis,
                         double limit, const char *name);

void agc_results_not_applicable(ag_check_report *report, const char *reason, const char *name);

struct counts {
    int passed, failed, not_applicable;
};
struct counts agc_results_count(const ag_check_report *report); /* omitted results count as failed */

/* AG_OK, or AG_NO_MEMORY if results were omitted. */
ag_status agc_results_status(const ag_check_report *report);

#endif
