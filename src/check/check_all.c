/* ag_check_problem: all checks on one problem. Finite differences and identities are about formulas, so they run in
 * float64, on a copy of the arrays in that dtype if the problem's own is narrower; the error rule is about rounding. */
#include <attngrad_check.h>

#include "check/error_rule.h"
#include "check/finite_differences.h"
#include "check/identities.h"
#include "check/random_case.h"

#include <stdio.h>

static ag_status float64_checks(struct arrays *x, const ag_options *options, uint32_t parts,
                                ag_check_report *results)
{
    ag_status status = agc_arrays_run_all(x);
    if (status == AG_OK && (parts & AG_CHECK_DIFFERENCES)) {
        status = agc_finite_differences(x, options, results);
    }
    if (status == AG_OK && (parts & AG_CHECK_IDENTITIES)) {
        status = agc_identities(x, options, results);
    }
    return status;
}

static ag_status clone_checks(const struct arrays *x, const ag_options *options, uint32_t parts,
                              ag_check_report *results)
{
    struct arrays clone;
    ag_status status = agc_arrays_clone_as(&clone, x, AG_F64, options);
    if (status == AG_OK) {
        status = float64_checks(&clone, options, parts, results);
        agc_arrays_destroy(&clone);
    }
    return status;
}

static ag_status rounding_checks(struct arrays *x, const ag_options *options, ag_check_report *results)
{
    ag_plan_info info = {.struct_size = sizeof info};
    ag_status status = ag_plan_info_get(x->plan, &info);
    if (status == AG_OK && x->p->dtype == AG_F64 && info.backend == AG_BACKEND_REFERENCE) {
        agc_results_not_applicable(results, "the reference in f64 is the truth", "rounding");
        return AG_OK;
    }
    status = status == AG_OK ? agc_arrays_run_all(x) : status;
    return status == AG_OK ? agc_error_rule_results(x, options != NULL ? options->threads : 0, results)
                           : status;
}

static ag_status check_arrays(struct arrays *x, const ag_options *options, uint32_t parts,
                              ag_check_report *report)
{
    ag_status status = AG_OK;
    if (parts & (AG_CHECK_DIFFERENCES | AG_CHECK_IDENTITIES)) {
        status = x->p->dtype == AG_F64 ? float64_checks(x, options, parts, report)
                                       : clone_checks(x, options, parts, report);
    }
    if (status == AG_OK && (parts & AG_CHECK_ROUNDING)) {
        status = rounding_checks(x, options, report);
    }
    return status;
}

/* The arguments of ag_check_problem. */
struct request {
    const ag_check_case *c;
    const ag_options *plan;
    uint32_t parts;
    ag_check_report *report;
};

static ag_status check_case(void *arg)
{
    const struct request *r = arg;
    struct arrays x;
    ag_status status = agc_arrays_of_case(&x, r->c, r->plan);
    if (status == AG_OK) {
        snprintf(r->report->plan, sizeof r->report->plan, "%s", ag_plan_describe(x.plan));
        status = check_arrays(&x, r->plan, r->parts, r->report);
        agc_arrays_destroy(&x);
    }
    return status;
}

ag_status ag_check_problem(const ag_check_case *c, const ag_check_options *options, ag_check_report *report)
{
    struct request request = {c, NULL, AG_CHECK_ALL, report};
    if (options != NULL) {
        request.plan = options->plan;
        request.parts = options->parts != 0 ? options->parts : AG_CHECK_ALL;
    }
    if (c == NULL || report == NULL || (request.parts & ~(uint32_t)AG_CHECK_ALL) != 0) {
        return AG_INVALID_ARGUMENT;
    }
    report->count = 0;
    report->plan[0] = '\0';
    return agc_memory_guarded(check_case, &request);
}
