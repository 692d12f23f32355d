/* The checks of battery.h, in order. */
#include "check/check_all.h"

#include "check/error_rule.h"
#include "check/finite_differences.h"
#include "check/identities.h"

#include <stdio.h>
#include <string.h>

static ag_status float64_checks(struct arrays *x, const ag_options *options, struct results *results)
{
    ag_status status = arrays_run_all(x);
    status = status == AG_OK ? gradcheck(x, options, results) : status;
    return status == AG_OK ? identities(x, options, results) : status;
}

static ag_status twin_checks(const struct arrays *x, const ag_options *options, struct results *results)
{
    struct arrays twin;
    ag_status status = arrays_twin(&twin, x, AG_F64, options);
    if (status == AG_OK) {
        status = float64_checks(&twin, options, results);
        arrays_destroy(&twin);
    }
    return status;
}

static ag_status rounding_checks(struct arrays *x, const ag_options *options, struct results *results)
{
    int reference = strncmp(ag_plan_describe(x->plan), "reference", strlen("reference")) == 0;
    if (x->p->dtype == AG_F64 && reference) {
        results_not_applicable(results, "the reference in f64 is the truth", "rounding");
        return AG_OK;
    }
    ag_status status = arrays_run_all(x);
    return status == AG_OK ? error_rule_results(x, options != NULL ? options->threads : 0, results) : status;
}

ag_status battery_run(const struct setup *s, const ag_options *options, struct results *results,
                      char plan[PLAN_TEXT])
{
    struct arrays x;
    ag_status status = setup_arrays(&x, s, options);
    if (status != AG_OK) {
        return status;
    }
    if (plan != NULL) {
        snprintf(plan, PLAN_TEXT, "%s", ag_plan_describe(x.plan));
    }
    status = x.p->dtype == AG_F64 ? float64_checks(&x, options, results) : twin_checks(&x, options, results);
    if (status == AG_OK) {
        status = rounding_checks(&x, options, results);
    }
    arrays_destroy(&x);
    return status;
}
