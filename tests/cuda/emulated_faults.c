/* Faults planted into the emulation must be found by the error rule, under at least one schedule; without a fault
 * nothing may be found. */
#include "check/error_rule.h"
#include "kernels.h"
#include "test.h"

/* Results out of the rule of one problem under one schedule. */
static int count_wrong(const char *text, int schedule)
{
    struct error_entry entries[T_COUNT];
    struct arrays x;
    ag_problem problem = AG_PROBLEM_INIT;
    int count = 0, wrong = 0;
    CHECK_OK(ag_problem_parse(text, &problem));
    test_need(agc_arrays_create(&x, &problem, NULL, 3) == AG_OK, "a plan");
    emulate_schedule(schedule & 1, schedule >> 1);
    CHECK_OK(agc_arrays_run_all(&x));
    CHECK_OK(agc_error_rule(&x, 1, entries, &count));
    for (int n = 0; n < count; n++) {
        wrong += !agc_error_entry_passed(&entries[n]);
    }
    agc_arrays_destroy(&x);
    return wrong;
}

int main(void)
{
    /* Two tiles of each side and tails, in kernels with two stages, with one, and for any head size. */
    static const char *const problems[] = {"h1 q70 k80 d20 bf16", "h1 q70 k80 d60 f32 causal",
                                           "h1 q40 k50 d300 bf16"};
    for (int fault = 0; emulate_plant(fault) != NULL; fault++) {
        const char *name = emulate_plant(fault);
        int wrong = 0;
        for (int n = 0; n < 3; n++) {
            for (int schedule = 0; schedule < 4; schedule++) {
                wrong += count_wrong(problems[n], schedule);
            }
        }
        printf("%s: %d results out of the rule\n", name, wrong);
        CHECK((wrong > 0) == (fault > 0), "%s: %d results out of the rule", name, wrong);
    }
    return test_summary();
}
