/* The norm A of the error rule (error_rule.h): each output's formula on the absolute values of all its terms. */
#ifndef ATTNGRAD_CHECK_ERROR_SIZES_H
#define ATTNGRAD_CHECK_ERROR_SIZES_H

#include "check/arrays.h"

struct error_sizes {
    double norm[T_COUNT]; /* of each output; 0 for other tensors */
    double score;         /* the largest visible |S| */
};

/* Is there memory for the matrices of one head, which grow with queries times keys? AG_OK or AG_NO_MEMORY. They are
 * freed again: this is to know it before the time for other checks is spent. */
ag_status agc_error_sizes_try_memory(const ag_problem *p);

/* x must be float64, on the reference, with all maps run. */
ag_status agc_error_sizes_of(struct error_sizes *s, const struct arrays *x);

#endif
