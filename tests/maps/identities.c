/* The identities on every feature alone and on every pair of features; each identity must apply at least once. */
#include "device.h"
#include "feature_pairs.h"
#include "check/identities.h"
#include "check/summary.h"

static struct summary summary;

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
    status = status == AG_OK ? agc_identities(&x, &options, &results) : status;
    features_report(s, "", status, &results);
    agc_summary_add(&summary, &results);
    agc_arrays_destroy(&x);
}

/* Checks of what not every backend has. */
static int may_be_missing(const char *name)
{
    return strcmp(name, "jvp_jvp") == 0 || strcmp(name, "to, mu of jvp given o") == 0;
}

int main(void)
{
    printf("%d problems\n", features_each(&small_pairs, test));
    for (int n = 0; n < summary.count; n++) {
        const struct summary_line *l = &summary.lines[n];
        printf("%-38s %d problems, %d not applicable\n", l->name, l->passed + l->failed, l->not_applicable);
        if (l->passed + l->failed == 0 && may_be_missing(l->name)) {
            printf("%s: not checked, the backend does not have it\n", l->name);
            continue;
        }
        CHECK(l->passed + l->failed > 0, "%s applied nowhere", l->name);
    }
    return test_maps_summary();
}
