/* jvp that is given o and lse (AG_GIVEN_O) in 16 bits, on the reference and on every instruction set, with o_low and
 * without: to and mu keep the error rule, to_low is what rounding took from to, and what is given is only read. */
#include "device.h"
#include "low_halves.h"

/* Only what this jvp writes. */
static int within(const struct error_entry *e, ag_dtype dtype)
{
    (void)dtype;
    return (e->t != T_TO && e->t != T_MU) || agc_error_entry_passed(e);
}

static void given_is_unchanged(const struct arrays *x, void *const before[T_COUNT], const char *label)
{
    static const enum tensor given[] = {T_O, T_LSE, T_O_LOW};
    for (int n = 0; n < 3; n++) {
        same_tensor(x, given[n], x->data[given[n]], before[given[n]], label);
    }
}

/* Both halves of to are closer to the truth than the high one, whose rounding error the low one takes away. */
static void low_half_helps(const struct runner *r, const struct arrays *x, const struct arrays *truth,
                           const char *text)
{
    double *both = read_sum(x, T_TO), *wanted = test_read(truth, T_TO);
    const double error = relative_difference(both, wanted, x->count[T_TO]);
    const double high = relative_error(x, T_TO, truth);
    CHECK(error < high, "%s '%s': error of to %g, %g without to_low", r->environment, text, error, high);
    free(both);
    free(wanted);
}

static void check_runner(struct runner *r, const ag_check_case *c, struct error_truth *truth,
                         struct arrays *x, const char *text)
{
    void *before[T_COUNT];
    CHECK_OK(agc_arrays_run_all(x));
    keep_outputs(x, before);
    for (int with_low = 0; with_low < 2; with_low++) {
        x->args.o_low.data = with_low ? x->data[T_O_LOW] : NULL;
        run_given_jvp(x);
        check_error_entries(c, r, truth, x, within);
        low_half_helps(r, x, &truth->truth, text);
        given_is_unchanged(x, before, text);
    }
    free_outputs(before);
    r->runs++;
}

static void test_problem(int n, const char *dtype)
{
    struct arrays inputs, x;
    struct error_truth truth;
    ag_check_case c;
    char text[256];
    make_case(&c, &inputs, n, dtype, text, sizeof text);
    if (CHECK_OK(agc_error_truth_begin(&truth, &inputs, 1))) {
        for (struct runner *r = runners; r < runners + runner_count; r++) {
            if (runner_arrays(r, &inputs, 1, &x)) {
                check_runner(r, &c, &truth, &x, text);
                agc_arrays_destroy(&x);
            }
        }
        agc_error_truth_destroy(&truth);
    }
    agc_arrays_destroy(&inputs);
}

int main(void)
{
    find_runners(1);
    for (int n = 0; n < PROBLEMS; n++) {
        for (int d = 0; d < DTYPES; d++) {
            if (is_wanted(n, d)) {
                test_problem(n, dtypes[d]);
            }
        }
    }
    report_runners();
    return test_maps_summary();
}
