/* The sums of tally.h. */
#include "check/summary.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static struct tally_line *line_of(struct tally *tally, const char *name)
{
    for (int n = 0; n < tally->count; n++) {
        if (strcmp(tally->lines[n].name, name) == 0) {
            return &tally->lines[n];
        }
    }
    if (tally->count == RESULTS_MAX) {
        return NULL;
    }
    struct tally_line *line = &tally->lines[tally->count++];
    memset(line, 0, sizeof *line);
    snprintf(line->name, sizeof line->name, "%s", name);
    return line;
}

/* residual / limit, with 0 / 0 = 0 and NaN as large as can be. */
static double closeness(double residual, double limit)
{
    return isnan(residual) ? INFINITY : residual == 0 ? 0 : residual / limit;
}

static void add(struct tally_line *line, const struct result *r)
{
    if (r->not_applicable != NULL) {
        line->not_applicable++;
        return;
    }
    int first = line->passed + line->failed == 0;
    line->passed += result_passed(r);
    line->failed += !result_passed(r);
    if (first || closeness(r->residual, r->limit) > closeness(line->residual, line->limit)) {
        line->residual = r->residual;
        line->limit = r->limit;
    }
}

void tally_add(struct tally *tally, const struct results *results)
{
    for (int n = 0; n < results->count; n++) {
        struct tally_line *line = line_of(tally, results->items[n].name);
        if (line != NULL) {
            add(line, &results->items[n]);
        }
    }
}
