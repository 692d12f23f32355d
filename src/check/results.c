/* Writing and counting the results of a report. */
#include "check/results.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

void agc_worst_note(struct worst *w, double residual, enum tensor t, int64_t element)
{
    if (!isnan(w->residual) && !(residual <= w->residual)) {
        *w = (struct worst){residual, t, element};
    }
}

/* The number of checks is fixed in the source, so a full report is a bug. */
static ag_check_result *next(ag_check_report *report)
{
    if (report->count == AG_CHECK_MAX_RESULTS) {
        fprintf(stderr, "attngrad: more than %d results of one problem\n", AG_CHECK_MAX_RESULTS);
        abort();
    }
    ag_check_result *r = &report->results[report->count++];
    *r = (ag_check_result){.worst = {-1, -1, -1, -1}};
    return r;
}

void agc_results_add(ag_check_report *report, double residual, double limit, const char *format, ...)
{
    ag_check_result *r = next(report);
    va_list values;
    va_start(values, format);
    vsnprintf(r->name, sizeof r->name, format, values);
    va_end(values);
    r->residual = residual;
    r->limit = limit;
}

ag_check_result *agc_results_add_worst(ag_check_report *report, const struct arrays *x, const struct worst *w,
                                       double limit, const char *format, ...)
{
    ag_check_result *r = next(report);
    va_list values;
    va_start(values, format);
    vsnprintf(r->name, sizeof r->name, format, values);
    va_end(values);
    r->residual = w->residual;
    r->limit = limit;
    if (w->element >= 0) {
        r->tensor = agc_tensor_info[w->t].name;
        agc_arrays_position(x, w->t, w->element, r->worst);
    }
    return r;
}

void agc_results_not_applicable(ag_check_report *report, const char *reason, const char *name)
{
    ag_check_result *r = next(report);
    snprintf(r->name, sizeof r->name, "%s", name);
    r->not_applicable = reason;
}

int32_t ag_check_passed(const ag_check_result *result)
{
    return result->not_applicable != NULL || result->residual <= result->limit;
}

void ag_check_place(const ag_check_result *result, char *text, size_t size)
{
    char axes[4][24];
    for (int n = 0; n < 4; n++) {
        snprintf(axes[n], sizeof axes[n], result->worst[n] < 0 ? "*" : "%" PRId64, result->worst[n]);
    }
    if (result->tensor == NULL) {
        snprintf(text, size, "%s", "");
    } else {
        snprintf(text, size, "%s[%s, %s, %s, %s]", result->tensor, axes[0], axes[1], axes[2], axes[3]);
    }
}

struct counts agc_results_count(const ag_check_report *report)
{
    struct counts c = {0, 0, 0};
    for (int n = 0; n < report->count; n++) {
        const ag_check_result *r = &report->results[n];
        if (r->not_applicable != NULL) {
            c.not_applicable++;
        } else if (ag_check_passed(r)) {
            c.passed++;
        } else {
            c.failed++;
        }
    }
    return c;
}

int32_t ag_check_failures(const ag_check_report *report)
{
    return agc_results_count(report).failed;
}
