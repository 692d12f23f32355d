/* Faults in the kernels' own logic must be found by the error rule: geometry, masks, tails, groups. plant.cmake puts
 * them into a copy of the kernels, each behind a switch, with a problem that must find it; without a fault nothing may
 * be found. Forward and vjp in float32, at one head size: the code is that of all maps and formats. */
#include "planted.h"

int planted_fault;

static int count_wrong(const struct hopper_problem *problem)
{
    struct arrays x;
    make_hopper_problem(&x, problem, 9);
    x.args.dbias.data = x.args.dtable.data = NULL; /* whose kernels are not in this copy */
    CHECK_OK(run_hopper_maps(&x));
    const int wrong = count_wrong_results(&x, problem->text, planted_fault == 0);
    agc_arrays_destroy(&x);
    return wrong;
}

int main(void)
{
    for (int n = 0; n < n_planted; n++) {
        planted_fault = 0;
        const int before = count_wrong(&planted[n].problem);
        planted_fault = n + 1;
        const int wrong = count_wrong(&planted[n].problem);
        printf("%s: %d results out of the rule\n", planted[n].name, wrong);
        CHECK(before == 0, "'%s': %d results out of the rule without a fault", planted[n].problem.text,
              before);
        CHECK(wrong > 0, "not found: %s, by '%s'", planted[n].name, planted[n].problem.text);
    }
    return test_summary();
}
