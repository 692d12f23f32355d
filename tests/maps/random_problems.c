/* All checks on random problems over all features and dtypes, on each backend and instruction set, with one thread and
 * with two: small ones, and some of several tiles. If AG_TEST_COUNT is set, IN_A_SHORT_RUN of them from number
 * AG_TEST_FIRST on, which must be chosen so that AMX takes some of them; if it is small, ON_SLOW_ONES, none of them
 * large: feature_pairs has several tiles there. */
#include "check/summary.h"
#include "device.h"
#include "every_isa.h"
#include "feature_pairs.h"

enum {
    PROBLEMS = 600,
    IN_A_SHORT_RUN = 120,
    ON_SLOW_ONES = 100, /* processors that qemu emulates */
    SEED = 20,
    LARGE_EACH = 20
}; /* one of LARGE_EACH problems is large */

static struct summary summary;
static int32_t threads;
static int large; /* is the problem large? */

static int first_problem(void)
{
    const char *text = getenv("AG_TEST_FIRST");
    return text != NULL ? atoi(text) : 0;
}

static int number_of_problems(void)
{
    const int count = test_count(PROBLEMS);
    return count == PROBLEMS ? PROBLEMS : count > 100 ? IN_A_SHORT_RUN : ON_SLOW_ONES;
}

/* The n-th of this run? */
static int is_large(int n)
{
    return n % LARGE_EACH == LARGE_EACH / 2 && number_of_problems() > ON_SLOW_ONES;
}

/* Finite differences and identities are in float64, for which AMX falls back to AVX-512. The reference has no tiles:
 * for it the small problems are enough. */
static int has_float64_checks(const struct runner *r)
{
    return r->options.isa != AG_ISA_AMX && !(large && r->options.backend == AG_BACKEND_REFERENCE);
}

static void check(const ag_check_case *s, const struct runner *r, struct error_truth *truth,
                  const struct arrays *x)
{
    ag_check_report report = {.count = 0};
    ag_status status = AG_OK;
    if (has_float64_checks(r)) {
        ag_options plan = r->options;
        const ag_check_options options = {.parts = AG_CHECK_DIFFERENCES | AG_CHECK_IDENTITIES, .plan = &plan};
        plan.threads = threads;
        status = ag_check_problem(s, &options, &report);
    }
    if (CHECK_OK(agc_error_truth_complete(truth, x))) {
        agc_error_results(truth, x, &report);
    }
    features_report(s, r->environment, status, &report);
    agc_summary_add(&summary, &report);
}

int main(void)
{
    const int problems = number_of_problems(), first = first_problem();
    int n_large = 0;
    find_runners(1);
    for (int n = 0; n < problems; n++) {
        ag_check_case c;
        threads = 1 + n % 2;
        large = is_large(n);
        n_large += large;
        ag_check_random(&c, SEED, (uint64_t)(first + n), large ? AG_CHECK_LARGE : AG_CHECK_SMALL);
        every_isa(&c, threads, NULL, check);
    }
    printf("%d problems from number %d on, %d of them of several tiles\n", problems, first, n_large);
    report_runners();
    for (int n = 0; n < summary.count; n++) {
        const struct summary_line *l = &summary.lines[n];
        printf("%-38s %d problems, closest to its limit %.1e of %.1e\n", l->name, l->passed + l->failed,
               l->residual, l->limit);
    }
    return test_maps_summary();
}
