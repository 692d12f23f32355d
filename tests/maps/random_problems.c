/* All checks on random problems over all features and dtypes, with one thread and with two: small ones, and some of
 * several tiles, fewer of which are run where AG_TEST_COUNT asks for little. */
#include "check/check_all.h"
#include "feature_pairs.h"
#include "check/summary.h"

enum { PROBLEMS = 1000, SEED = 20, LARGE_EACH = 20 };

static int is_large(int n)
{
    return n % LARGE_EACH == LARGE_EACH / 2 && n < test_count(PROBLEMS);
}

static void test(int n, struct tally *tally)
{
    struct rng r;
    struct setup s;
    struct results results = {.count = 0};
    ag_options options = AG_OPTIONS_INIT;
    options.threads = 1 + n % 2;
    rng_init(&r, SEED, (uint64_t)n);
    if (is_large(n)) {
        draw_large_setup(&s, &r);
    } else {
        draw_setup(&s, &r);
    }
    ag_status status = battery_run(&s, &options, &results, NULL);
    features_report(&s, status, &results);
    tally_add(tally, &results);
}

int main(void)
{
    static struct tally tally;
    int large = 0;
    for (int n = 0; n < PROBLEMS; n++) {
        test(n, &tally);
        large += is_large(n);
    }
    printf("%d problems, %d of them of several tiles\n", (int)PROBLEMS, large);
    for (int n = 0; n < tally.count; n++) {
        const struct tally_line *l = &tally.lines[n];
        printf("%-38s %d problems, closest to its limit %.1e of %.1e\n", l->name, l->passed + l->failed,
               l->residual, l->limit);
    }
    return test_summary();
}
