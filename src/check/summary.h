/* The results of many problems, one line per check. */
#ifndef ATTNGRAD_CHECK_SUMMARY_H
#define ATTNGRAD_CHECK_SUMMARY_H

#include "check/results.h"

struct summary_line {
    char name[40];
    int passed, failed, not_applicable;
    double residual, limit; /* of the problem that came closest to its limit or went furthest past it */
};

struct summary {
    struct summary_line lines[AG_CHECK_MAX_RESULTS];
    int count;
    int problems, failed_problems;
};

void agc_summary_add(struct summary *summary, const ag_check_report *results);

#endif
