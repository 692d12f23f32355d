/* Every feature and every pair of features on problems of several tiles, in bfloat16 and float32, on each instruction
 * set that the machine has, against the error rule; also each pair with groups of heads or with lengths. */
#include "every_isa.h"
#include "feature_pairs.h"

#include <math.h>

enum { ALL = 1000 };

/* The rule allows 8 eps A, which in bfloat16 may be as large as the result: there a result must also be within four
 * times the error of the baseline, or of rounding the truth. */
static int within(const struct error_entry *e, ag_dtype dtype)
{
    return agc_error_entry_passed(e) &&
           (dtype != AG_BF16 || e->error <= 4 * fmax(e->baseline, 4e-3 * e->truth));
}

static void check(const ag_check_case *s, const struct runner *r, struct error_truth *truth,
                  const struct arrays *x)
{
    check_error_entries(s, r, truth, x, within);
}

static void test(const ag_check_case *s)
{
    every_isa(s, 1, NULL, check);
}

int main(void)
{
    static const char *const dtypes[] = {"bf16", "f32"};
    const int max = test_count(ALL) == ALL ? PAIRS : test_count(ALL) / 40 + 1; /* these are large */
    find_runners(0);
    for (int n = 0; n < 2; n++) {
        for (int third = 0; third < 2; third++) {
            const struct feature_problems list = {SEVERAL_TILES, dtypes[n], third, max};
            const int problems = features_each(&list, test);
            printf("%s: %d %s\n", dtypes[n], problems, third ? "triples" : "features and pairs");
        }
    }
    report_runners();
    return test_summary();
}
