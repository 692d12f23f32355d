/* The results of many problems, gathered by check. */
#ifndef ATTNGRAD_CHECK_SUMMARY_H
#define ATTNGRAD_CHECK_SUMMARY_H

#include "check/results.h"

struct tally_line {
    char name[40];
    int passed, failed, not_applicable;
    double residual, limit; /* of the problem that came closest to its limit or went furthest past it */
};

struct tally {
    struct tally_line lines[RESULTS_MAX];
    int count;
    int problems, failed_problems;
};

void tally_add(struct tally *tally, const struct results *results);

#endif
