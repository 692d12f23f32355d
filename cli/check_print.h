/* How `attngrad check` shows what it found: tables on 80 columns, or JSON. */
#ifndef ATTNGRAD_CLI_CHECK_PRINT_H
#define ATTNGRAD_CLI_CHECK_PRINT_H

#include "check/check_all.h"
#include "check/summary.h"
#include "json.h"

/* One problem with all its results. */
void print_problem(const struct setup *s, const char *plan, const struct results *results);
void print_problem_json(const struct setup *s, const char *plan, const struct results *results);

/* One failing problem of many: the command that repeats it and what failed; message: why it could not run
 * at all, or NULL. json: an item of the array of failures. */
void print_failure(const struct setup *s, const struct results *results, const char *message);
void print_failure_json(struct json *json, const struct setup *s, const struct results *results,
                        const char *message);

/* What came of many problems. */
void print_tally(const struct tally *tally);
void print_tally_json(struct json *json, const struct tally *tally);

#endif
