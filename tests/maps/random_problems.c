/* All checks on random problems over all features and dtypes, with one thread and with two: small ones, and some of
 * several tiles, fewer of which are run if AG_TEST_COUNT is small. */
#include "feature_pairs.h"
#include "check/summary.h"

enum { PROBLEMS = 1000, SEED = 20, LARGE_EACH = 20 };

static int is_large(int n)
{
    return n % LARGE_EACH == LARGE_EACH / 2 && n < test_count(PROBLEMS);
}

static void test(int n, struct summary *summary)
{
    ag_check_case c;
    ag_check_report report = {.count = 0};
    ag_options plan = AG_OPTIONS_INIT;
    plan.threads = 1 + n % 2;
    ag_check_random(&c, SEED, (uint64_t)n, is_large(n) ? AG_CHECK_LARGE : AG_CHECK_SMALL);
    ag_status status = ag_check_problem(&c, &(ag_check_options){.plan = &plan}, &report);
    features_report(&c, status, &report);
    summary_add(summary, &report);
}

int main(void)
{
    static struct summary summary;
    int large = 0;
    for (int n = 0; n < PROBLEMS; n++) {
        test(n, &summary);
        large += is_large(n);
    }
    printf("%d problems, %d of them of several tiles\n", (int)PROBLEMS, large);
    for (int n = 0; n < summary.count; n++) {
        const struct summary_line *l = &summary.lines[n];
        printf("%-38s %d problems, closest to its limit %.1e of %.1e\n", l->name, l->passed + l->failed,
               l->residual, l->limit);
    }
    return test_summary();
}
