/* Adds the results of one problem to those of many. */
#include "check/summary.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static struct summary_line *line_of(struct summary *summary, const char *name)
{
    for (int n = 0; n < summary->count; n++) {
        if (strcmp(summary->lines[n].name, name) == 0) {
            return &summary->lines[n];
        }
    }
    if (summary->count == AG_CHECK_MAX_RESULTS) {
        return NULL;
    }
    struct summary_line *line = &summary->lines[summary->count++];
    memset(line, 0, sizeof *line);
    snprintf(line->name, sizeof line->name, "%s", name);
    return line;
}

/* residual / limit, with 0 / 0 = 0, and infinity for NaN. */
static double closeness(double residual, double limit)
{
    return isnan(residual) ? INFINITY : residual == 0 ? 0 : residual / limit;
}

static void add(struct summary_line *line, const ag_check_result *r)
{
    if (r->not_applicable != NULL) {
        line->not_applicable++;
        return;
    }
    int first = line->passed + line->failed == 0;
    line->passed += ag_check_passed(r);
    line->failed += !ag_check_passed(r);
    if (first || closeness(r->residual, r->limit) > closeness(line->residual, line->limit)) {
        line->residual = r->residual;
        line->limit = r->limit;
    }
}

void agc_summary_add(struct summary *summary, const ag_check_report *results)
{
    for (int n = 0; n < results->count; n++) {
        struct summary_line *line = line_of(summary, results->results[n].name);
        if (line != NULL) {
            add(line, &results->results[n]);
        }
    }
}
