/* On a GPU: every kernel of the table sm80, by the error rule, as far as the plans take that table: gpu_hopper has the
 * problems of the other one.
 *
 * gpu_kernels [JOBS [NUMBER]]: how many at a time; this problem alone, in this process (for a debugger). */
#define _POSIX_C_SOURCE 200809L /* fork */
#include "processes.h"

#include "check/error_rule.h"
#include "check/random_case.h"
#include "kernel_problems.h"
#include "outputs.h"

/* Prints a line for each result that is out of the rule. */
static void check_results(const struct arrays *x, const char *text, const char *when)
{
    struct error_entry entries[T_COUNT];
    int count = 0;
    CHECK_OK(agc_error_rule(x, 1, entries, &count));
    for (int n = 0; n < count; n++) {
        const struct error_entry *e = &entries[n];
        CHECK(agc_error_entry_passed(e), "'%s'%s: %s: error %.2e, limit %.2e, truth %.2e", text, when,
              agc_tensor_info[e->t].name, e->error, e->limit, e->truth);
    }
}

/* Map by map, so that a fault is reported by the first map that meets it. */
static void check_problem(int number)
{
    struct arrays x;
    ag_check_case c;
    char text[700];
    CHECK_OK(make_fixed(&c, number, 1));
    ag_check_command(&c, text, sizeof text);
    test_need(agc_arrays_of_case(&x, &c, NULL) == AG_OK, ag_check_last_message());
    test_need(agc_on_device(x.plan), "the plan is not on a GPU: ATTNGRAD_BACKEND=cuda");
    for (int map = 0; map < MAPS; map++) {
        const ag_status status = agc_arrays_run(&x, map_bit[map]);
        if (!CHECK(status == AG_OK, "'%s': %s: %s", text, map_name[map], ag_check_last_message())) {
            agc_arrays_destroy(&x);
            return;
        }
    }
    CHECK_OK(agc_arrays_run_all(&x));
    check_results(&x, text, "");
    run_given_jvp(&x);
    check_results(&x, text, " with jvp that is given o");
    agc_arrays_destroy(&x);
}

int main(int argc, char **argv)
{
    const int jobs = argc > 1 ? atoi(argv[1]) : 4;
    if (argc > 2) {
        check_problem(atoi(argv[2]));
        return test_summary();
    }
    return run_processes(check_problem, N_FIXED, jobs) != 0;
}
