/* How `attngrad check` shows what it found: tables on 80 columns, or JSON. */
#ifndef ATTNGRAD_CLI_CHECK_PRINT_H
#define ATTNGRAD_CLI_CHECK_PRINT_H

#include "check/summary.h"
#include "json.h"

/* Print one problem with all its results. */
void print_problem(const ag_check_case *c, const ag_check_report *report);
void print_problem_json(const ag_check_case *c, const ag_check_report *report);

/* Print one failing problem of many: the command that repeats it and what failed. message: why it could not
 * run at all, or NULL. json: the array of failures, to which this adds an item. */
void print_failure(const ag_check_case *c, const ag_check_report *report, const char *message);
void print_failure_json(struct json *json, const ag_check_case *c, const ag_check_report *report,
                        const char *message);

/* Print the summary of many problems. */
void print_summary(const struct summary *summary);
void print_summary_json(struct json *json, const struct summary *summary);

#endif
