/* ag_check_problem: all checks on one problem. Finite differences and identities are about formulas, so they run in
 * float64, on a copy of the arrays in that dtype if the problem's own is narrower; the error rule is about rounding. */
#include <attngrad_check.h>

#include "check/error_rule.h"
#include "check/finite_differences.h"
#include "check/identities.h"
#include "check/message.h"
#include "check/progress.h"
#include "check/random_case.h"

#include <stdbool.h>
#include <stdio.h>

/* ---- The estimated work, as progress.h measures it ---- */

struct work {
    double maps, differences, identities, rounding;
};

/* The identities run the maps about as often as six runs of all of them. The error rule also has the truth and the
 * baseline of the reference. */
static struct work work_of(const struct arrays *x, uint32_t parts)
{
    const uint32_t first = AG_MAP_FORWARD | AG_MAP_VJP | AG_MAP_JVP | AG_MAP_VJP_JVP;
    const uint32_t all = agc_arrays_has_second_direction(x) ? first | AG_MAP_JVP_JVP : first;
    const double maps = agc_work_of_plan(x->plan, all);
    struct work w = {.maps = 0};
    w.maps = parts & (AG_CHECK_DIFFERENCES | AG_CHECK_IDENTITIES) ? maps : 0;
    w.differences = parts & AG_CHECK_DIFFERENCES ? agc_finite_differences_work(x) : 0;
    w.identities = parts & AG_CHECK_IDENTITIES ? 6 * maps : 0;
    if (parts & AG_CHECK_ROUNDING) {
        w.rounding = maps + 2 * agc_work_of_reference(x->p, all) + agc_work_of_sizes(x->p);
    }
    return w;
}

/* ---- The parts ---- */

static ag_status float64_checks(struct arrays *x, const ag_options *options, uint32_t parts,
                                ag_check_report *results)
{
    const struct work work = work_of(x, parts);
    agc_progress_part("maps", work.maps);
    ag_status status = agc_arrays_run_all(x);
    if (status == AG_OK && (parts & AG_CHECK_DIFFERENCES)) {
        agc_progress_part("differences", work.differences);
        status = agc_finite_differences(x, options, results);
    }
    if (status == AG_OK && (parts & AG_CHECK_IDENTITIES)) {
        agc_progress_part("identities", work.identities);
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

/* Is this plan what the error rule takes as the truth? */
static bool is_truth(const struct arrays *x)
{
    ag_plan_info info = {.struct_size = sizeof info};
    return x->p->dtype == AG_F64 && ag_plan_info_get(x->plan, &info) == AG_OK &&
           info.backend == AG_BACKEND_REFERENCE;
}

static ag_status rounding_checks(struct arrays *x, const ag_options *options, ag_check_report *results)
{
    if (is_truth(x)) {
        agc_results_not_applicable(results, "the reference in f64 is the truth", "rounding");
        return AG_OK;
    }
    agc_progress_part("rounding", work_of(x, AG_CHECK_ROUNDING).rounding);
    ag_status status = agc_arrays_run_all(x);
    return status == AG_OK ? agc_error_rule_results(x, options != NULL ? options->threads : 0, results)
                           : status;
}

static ag_status check_arrays(struct arrays *x, const ag_options *options, uint32_t parts,
                              ag_check_report *report)
{
    const bool rounding = (parts & AG_CHECK_ROUNDING) != 0;
    ag_status status = rounding && !is_truth(x) ? agc_error_sizes_try_memory(x->p) : AG_OK;
    if (status == AG_OK && (parts & (AG_CHECK_DIFFERENCES | AG_CHECK_IDENTITIES)) != 0) {
        status = x->p->dtype == AG_F64 ? float64_checks(x, options, parts, report)
                                       : clone_checks(x, options, parts, report);
    }
    if (status == AG_OK && rounding) {
        status = rounding_checks(x, options, report);
    }
    return status;
}

static ag_status check_case(const ag_check_case *c, const ag_check_options *options, uint32_t parts,
                            ag_check_report *report)
{
    struct arrays x;
    const ag_options *plan = options != NULL ? options->plan : NULL;
    ag_status status = agc_arrays_of_case(&x, c, plan);
    if (status == AG_OK) {
        const struct work w = work_of(&x, parts);
        snprintf(report->plan, sizeof report->plan, "%s", ag_plan_describe(x.plan));
        agc_progress_begin(options, w.maps + w.differences + w.identities + w.rounding);
        status = check_arrays(&x, plan, parts, report);
        agc_progress_end();
        agc_arrays_destroy(&x);
    }
    return status == AG_OK ? agc_results_status(report) : status;
}

ag_status ag_check_problem(const ag_check_case *c, const ag_check_options *options, ag_check_report *report)
{
    const uint32_t parts = options != NULL && options->parts != 0 ? options->parts : (uint32_t)AG_CHECK_ALL;
    agc_message_begin();
    if (c == NULL || report == NULL) {
        return agc_fail(AG_INVALID_ARGUMENT, c == NULL ? "c" : "report", "ag_check_problem: %s is NULL",
                        c == NULL ? "c" : "report");
    }
    if ((parts & ~(uint32_t)AG_CHECK_ALL) != 0) {
        return agc_fail(AG_INVALID_ARGUMENT, "options.parts",
                        "ag_check_problem: options.parts is 0x%x: unknown bits", (unsigned)parts);
    }
    report->count = report->omitted = 0;
    report->plan[0] = '\0';
    return check_case(c, options, parts, report);
}
