/* Adds results to the report of attngrad_check.h, and finds the worst element of a check. */
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

/* Adds w's residual and, in the tensors of x, the index of its element. The result may be changed before the
 * next one is added. */
ag_check_result *agc_results_add_worst(ag_check_report *report, const struct arrays *x, const struct worst *w,
                                       double limit, const char *format, ...);

void agc_results_not_applicable(ag_check_report *report, const char *reason, const char *name);

struct counts {
    int passed, failed, not_applicable;
};
struct counts agc_results_count(const ag_check_report *report);

#endif
