/* Faults in the kernels' own logic must be found by the error rule: geometry, masks, tails, groups. plant.cmake puts
 * them into a copy of the kernels, each behind a switch, with a problem that must find it; without a fault nothing may
 * be found. Forward and vjp in float32, at one head size: the code is that of all maps and formats. */
#include "check/error_rule.h"
#include "check/random_case.h"
#include "planted.h"
#include "test.h"

int planted_fault;

/* Results of forward and vjp that are out of the rule; not the gradients whose kernels are not in this copy. */
static int count_wrong(const struct planted *f)
{
    struct error_entry entries[T_COUNT];
    struct arrays x;
    ag_check_case c = {.problem = AG_PROBLEM_INIT, .seed = 9};
    int count = 0, wrong = 0;
    CHECK_OK(ag_problem_parse(f->problem, &c.problem));
    c.lengths = f->call == LENGTHS;
    c.offsets = f->call == OFFSETS;
    test_need(agc_arrays_of_case(&x, &c, NULL) == AG_OK, "a plan");
    x.args.dbias.data = x.args.dtable.data = NULL;
    CHECK_OK(agc_arrays_run(&x, AG_MAP_FORWARD));
    CHECK_OK(agc_arrays_run(&x, AG_MAP_VJP));
    CHECK_OK(agc_error_rule(&x, 1, entries, &count));
    for (int n = 0; n < count; n++) {
        const enum tensor t = entries[n].t;
        const int ran = (agc_tensor_info[t].writers & (AG_MAP_FORWARD | AG_MAP_VJP)) != 0;
        wrong += ran && t != T_DBIAS && t != T_DTABLE && !agc_error_entry_passed(&entries[n]);
    }
    agc_arrays_destroy(&x);
    return wrong;
}

int main(void)
{
    for (int n = 0; n < n_planted; n++) {
        planted_fault = 0;
        const int before = count_wrong(&planted[n]);
        planted_fault = n + 1;
        const int wrong = count_wrong(&planted[n]);
        printf("%s: %d results out of the rule\n", planted[n].name, wrong);
        CHECK(before == 0, "'%s': %d results out of the rule without a fault", planted[n].problem, before);
        CHECK(wrong > 0, "not found: %s, by '%s'", planted[n].name, planted[n].problem);
    }
    return test_summary();
}
