/* Identities that hold between the maps without finite differences, to rounding error, in float64. */
#ifndef ATTNGRAD_CHECK_IDENTITIES_H
#define ATTNGRAD_CHECK_IDENTITIES_H

#include "check/arrays.h"
#include "check/results.h"
#include "check/bounds.h"

/* The common arguments of all identities. */
struct identity {
    const struct arrays *x; /* float64, all maps run */
    const ag_options *options;
    struct bounds bounds;
    ag_check_report *results;
};

/* Residuals are in units of the bounds of bounds.h, which include the growth of rounding errors with the
 * scores. What remains is a few eps = 2e-16, more if a sum cancels. The largest of 20000 random problems is
 * 8e-15. */
#define IDENTITY_LIMIT 1e-13

/* Checks all identities and adds one result for each, or the reason why it does not apply. options: those of
 * x's plan. */
ag_status agc_identities(const struct arrays *x, const ag_options *options, ag_check_report *results);

ag_status agc_identity_permutations(struct identity *id); /* identity_permute.c */
ag_status agc_identity_split(struct identity *id);        /* identity_split.c */
ag_status agc_identity_second(struct identity *id);       /* identity_second.c */
ag_status agc_identity_given_o(struct identity *id);      /* identity_second.c */

/* A sum of terms and of their absolute values. */
struct sum {
    double value, size;
};
void agc_sum_add(struct sum *s, double sign, const double *a, const double *b, int64_t count);

/* How far a sum that should vanish is from zero, relative to its terms and their rounding errors. */
double agc_sum_imbalance(const struct identity *id, const struct sum *s);

#endif
