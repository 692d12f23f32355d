/* Writing and counting the results of a report. */
#include "check/results.h"

#include "check/message.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>

void agc_worst_note(struct worst *w, double residual, enum tensor t, int64_t element)
{
    if (!isnan(w->residual) && !(residual <= w->residual)) {
        *w = (struct worst){residual, t, element};
    }
}

static void append(ag_check_report *report, const ag_check_result *r)
{
    if (report->count < AG_CHECK_MAX_RESULTS) {
        report->results[report->count++] = *r;
    } else {
        report->omitted++;
    }
}

static ag_check_result result_of(double residual, double limit)
{
    return (ag_check_result){.residual = residual, .limit = limit, .worst = {-1, -1, -1, -1}};
}

static ag_check_result result_of_worst(const struct arrays *x, const struct worst *w, double limit)
{
    ag_check_result r = result_of(w->residual, limit);
    if (w->element >= 0) {
        r.tensor = agc_tensor_info[w->t].name;
        agc_arrays_position(x, w->t, w->element, r.worst);
    }
    return r;
}

void agc_results_add(ag_check_report *report, double residual, double limit, const char *format, ...)
{
    ag_check_result r = result_of(residual, limit);
    va_list values;
    va_start(values, format);
    vsnprintf(r.name, sizeof r.name, format, values);
    va_end(values);
    append(report, &r);
}

void agc_results_add_worst(ag_check_report *report, const struct arrays *x, const struct worst *w,
                           double limit, const char *format, ...)
{
    ag_check_result r = result_of_worst(x, w, limit);
    va_list values;
    va_start(values, format);
    vsnprintf(r.name, sizeof r.name, format, values);
    va_end(values);
    append(report, &r);
}

void agc_results_add_sum(ag_check_report *report, const struct arrays *x, const struct worst *w, int axis,
                         double limit, const char *name)
{
    ag_check_result r = result_of_worst(x, w, limit);
    snprintf(r.name, sizeof r.name, "%s", name);
    r.worst[axis] = -1;
    append(report, &r);
}

void agc_results_not_applicable(ag_check_report *report, const char *reason, const char *name)
{
    ag_check_result r = result_of(0, 0);
    snprintf(r.name, sizeof r.name, "%s", name);
    r.not_applicable = reason;
    append(report, &r);
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
    struct counts c = {0, report->omitted, 0};
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

ag_status agc_results_status(const ag_check_report *report)
{
    if (report->omitted == 0) {
        return AG_OK;
    }
    return agc_fail(AG_NO_MEMORY, "", "the report has room for %d results: %d more were omitted",
                    AG_CHECK_MAX_RESULTS, (int)report->omitted);
}
