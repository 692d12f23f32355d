/* The error rule: how far a result may be from the truth. Truth is the reference run as a float64 problem
 * on the same rounded inputs; the baseline is the reference in the problem's dtype with every
 * intermediate matrix rounded to it, as in an implementation without fusion. In Frobenius norms of one output,
 *     |x - truth| <= max(2 |baseline - truth|, 8 eps A, floor |truth|)
 * with A the norm of the same formula on the absolute values of all its terms. */
#ifndef ATTNGRAD_CHECK_ERROR_RULE_H
#define ATTNGRAD_CHECK_ERROR_RULE_H

#include "check/arrays.h"
#include "check/results.h"

struct error_entry {
    enum tensor t;
    double error;    /* |x - truth| */
    int64_t worst;   /* the element of x's data with the largest error; -1: all are exact */
    double baseline; /* |baseline - truth| */
    double size;     /* A */
    double truth;    /* |truth| */
    double limit;
};

/* x: any dtype, any backend, with all four maps run. Fills in the first *count of entries[T_COUNT], one for
 * each output that the problem has. threads: of the reference's plans. */
ag_status error_rule(const struct arrays *x, int32_t threads, struct error_entry *entries, int *count);

int error_entry_passed(const struct error_entry *e);

/* The same as results of a report: error and limit. */
ag_status error_rule_results(const struct arrays *x, int32_t threads, ag_check_report *results);

#endif
