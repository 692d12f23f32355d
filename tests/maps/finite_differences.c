/* Finite differences for every derivative of every feature alone and of every pair of features. */
#include "device.h"
#include "feature_pairs.h"
#include "check/finite_differences.h"

/* to, mu, a gradient and its tangent for each variable, and sto and nu. */
static int derivatives_of(const struct arrays *x)
{
    int count = agc_arrays_has_second_direction(x) ? 4 : 2;
    for (int f = 0; f < FAMILY_VARIABLES; f++) {
        count += x->data[agc_families[f].x] != NULL ? 2 : 0;
    }
    return count;
}

static void test(const ag_check_case *s)
{
    struct arrays x;
    ag_check_report results = {.count = 0};
    ag_options options = AG_OPTIONS_INIT;
    options.threads = 1;
    if (!CHECK_OK(agc_arrays_of_case(&x, s, &options))) {
        return;
    }
    ag_status status = agc_arrays_run_all(&x);
    status = status == AG_OK ? agc_finite_differences(&x, &options, &results) : status;
    features_report(s, "", status, &results);
    CHECK_INT(results.count, derivatives_of(&x));
    agc_arrays_destroy(&x);
}

int main(void)
{
    printf("%d problems\n", features_each(&small_pairs, test));
    return test_maps_summary();
}
