/* Every feature and every pair of features on problems of several tiles, on each instruction set that the machine has,
 * against the error rule; also each pair with groups of heads or with lengths. In bfloat16, or in float32 if
 * FEATURE_PAIRS_F32 is defined. Fewer pairs, with every feature among them, if AG_TEST_COUNT is set. */
#include "device.h"
#include "every_isa.h"
#include "feature_pairs.h"

#include <math.h>

enum { ALL = 1000, PAIRS_IN_A_SHORT_RUN = 20 };

#if defined(FEATURE_PAIRS_F32)
static const char dtype_word[] = "f32";
#else
static const char dtype_word[] = "bf16";
#endif

/* The rule allows 8 eps A, which in bfloat16 may be as large as the result: there a result must also be within four
 * times the error of the baseline, or of rounding the truth. Not the gradient of a sink: it has one number per head, a
 * sum in which truth and baseline's error may both be small by chance (in 1 of 40 draws, with 16-bit weights). */
static int within(const struct error_entry *e, ag_dtype dtype)
{
    const int of_sink = e->t == T_DSINK || e->t == T_TDSINK;
    return agc_error_entry_passed(e) &&
           (dtype != AG_BF16 || of_sink || e->error <= 4 * fmax(e->baseline, 4e-3 * e->truth));
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

static void test_problems(int third)
{
    const int max = test_count(ALL) == ALL ? PAIRS : PAIRS_IN_A_SHORT_RUN;
    const struct feature_problems list = {SEVERAL_TILES, dtype_word, third, max};
    const int problems = features_each(&list, test), step = features_step(&list);
    printf("%s: %d %s, 1 of every %d\n", dtype_word, problems, third ? "triples" : "features and pairs",
           step);
}

int main(void)
{
    find_runners(0);
#if defined(FEATURE_PAIRS_F32)
    leave_out_runner(AG_ISA_AMX, "it is for bfloat16");
#endif
    test_problems(0);
    test_problems(1);
    report_runners();
    return test_maps_summary();
}
