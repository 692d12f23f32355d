/* The list of results.h. */
#include "check/results.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

static struct result *next(struct results *list)
{
    if (list->count == RESULTS_MAX) {
        fprintf(stderr, "attngrad: more than %d results of one problem\n", RESULTS_MAX);
        abort();
    }
    return &list->items[list->count++];
}

void results_add(struct results *list, double residual, double limit, const char *format, ...)
{
    struct result *r = next(list);
    va_list values;
    va_start(values, format);
    vsnprintf(r->name, sizeof r->name, format, values);
    va_end(values);
    r->residual = residual;
    r->limit = limit;
    r->not_applicable = NULL;
}

void results_not_applicable(struct results *list, const char *reason, const char *name)
{
    struct result *r = next(list);
    snprintf(r->name, sizeof r->name, "%s", name);
    r->residual = r->limit = 0;
    r->not_applicable = reason;
}

int result_passed(const struct result *r)
{
    return r->not_applicable != NULL || r->residual <= r->limit;
}

struct counts results_count(const struct results *list)
{
    struct counts c = {0, 0, 0};
    for (int n = 0; n < list->count; n++) {
        const struct result *r = &list->items[n];
        if (r->not_applicable != NULL) {
            c.not_applicable++;
        } else if (result_passed(r)) {
            c.passed++;
        } else {
            c.failed++;
        }
    }
    return c;
}

int results_failed(const struct results *list)
{
    return results_count(list).failed;
}
