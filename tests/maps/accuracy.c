/* The small version of bench/accuracy.py: how far 16-bit results are from the truth on every instruction set, from
 * 64 x 64 on, if vjp, vjp_jvp and jvp_jvp are given the low halves. In Frobenius norms, the error of an output is
 * divided by the error of the truth rounded once to the dtype, which no implementation can avoid. */
#include "low_halves.h"

/* Ratios fluctuate from draw to draw, most if all keys have nearly the same weight: then the columns of a head are the
 * only independent numbers. So there are many heads: with a quarter of them, the ratios of single draws are up to 0.15
 * larger. */
static const struct setting {
    int length, dim, heads;
    double factor; /* of Q: from nearly equal weights to peaked rows */
    int near, causal;
} settings[] = {
    {64, 32, 32, 0.1, 0, 0},  {64, 32, 32, 0.1, 1, 1},  {64, 32, 32, 1, 0, 1},   {64, 32, 32, 6, 1, 0},
    {64, 64, 16, 0.1, 1, 0},  {64, 64, 16, 1, 1, 0},    {64, 64, 16, 1, 1, 1},   {64, 64, 16, 6, 0, 1},
    {64, 128, 8, 0.1, 0, 1},  {64, 128, 8, 1, 1, 1},    {64, 128, 8, 6, 0, 0},   {64, 128, 8, 6, 1, 1},
    {128, 32, 16, 0.1, 0, 0}, {128, 32, 16, 6, 0, 0},   {128, 32, 16, 6, 1, 1},  {128, 64, 16, 6, 1, 0},
    {128, 128, 8, 1, 1, 0},   {128, 128, 8, 0.1, 1, 1}, {512, 32, 4, 0.1, 0, 0}, {512, 32, 4, 6, 1, 0},
    {512, 64, 4, 0.1, 1, 1},  {512, 128, 4, 1, 0, 1},   {32, 64, 32, 1, 1, 1},   {32, 128, 16, 1, 1, 0},
};
enum { SETTINGS = sizeof settings / sizeof settings[0] };

/* Limits of the ratios. On AMX the factors of products have 16 bits: one such product gives an error of sqrt 2. If each
 * query sees at most FEW_KEYS keys, they are multiplied in two parts, and the other limits hold. */
enum { FEW_KEYS = 64 };
static const struct {
    enum tensor t;
    double amx, other;
} limits[] = {
    {T_O, 1.55, 1.10},   {T_DQ, 1.75, 1.10},  {T_DK, 1.75, 1.10},  {T_DV, 1.60, 1.10},  {T_TO, 2.10, 1.10},
    {T_TDQ, 2.90, 1.10}, {T_TDK, 2.70, 1.10}, {T_TDV, 1.65, 1.10}, {T_STO, 1.75, 1.10},
};
enum { LIMITS = sizeof limits / sizeof limits[0] };
static const double max_lse_error = 1e-4;                         /* absolute */
static const double max_nu_error = 5e-6, max_nu_error_amx = 1e-4; /* relative */

/* |truth rounded to x's dtype - truth| / |truth| */
static double rounding_error(const struct arrays *x, enum tensor t, const struct arrays *truth)
{
    double *wanted = test_read(truth, t), *rounded = test_read(truth, t);
    uint16_t *bits = test_alloc(x->count[t], sizeof *bits);
    CHECK_OK(ag_convert(bits, x->dtype[t], wanted, AG_F64, x->count[t]));
    CHECK_OK(ag_convert(rounded, AG_F64, bits, x->dtype[t], x->count[t]));
    const double error = relative_difference(rounded, wanted, x->count[t]);
    free(wanted);
    free(rounded);
    free(bits);
    return error;
}

static double largest_difference(const struct arrays *x, enum tensor t, const struct arrays *truth)
{
    double *got = test_read(x, t), *wanted = test_read(truth, t), largest = 0;
    for (int64_t n = 0; n < x->count[t]; n++) {
        const double difference = fabs(got[n] - wanted[n]);
        largest = difference > largest || isnan(difference) ? difference : largest;
    }
    free(got);
    free(wanted);
    return largest;
}

static void check_errors(const struct runner *r, const struct arrays *x, const struct arrays *truth,
                         const struct setting *s, const char *label)
{
    const int amx = on_amx(x) && s->length > FEW_KEYS;
    for (int n = 0; n < LIMITS; n++) {
        const enum tensor t = limits[n].t;
        const double ratio = relative_error(x, t, truth) / rounding_error(x, t, truth);
        const double limit = amx ? limits[n].amx : limits[n].other;
        CHECK(ratio <= limit, "%s %s: error of %s is %.3f times that of rounding the truth, limit %.2f",
              r->environment, label, agc_tensor_info[t].name, ratio, limit);
    }
    const double lse_error = largest_difference(x, T_LSE, truth), nu_error = relative_error(x, T_NU, truth);
    CHECK(lse_error <= max_lse_error, "%s %s: lse is off by %g", r->environment, label, lse_error);
    CHECK(nu_error <= (amx ? max_nu_error_amx : max_nu_error), "%s %s: error of nu %g", r->environment, label,
          nu_error);
}

/* Random inputs, dO random or near O, no cotangent of lse. */
static void make_inputs(struct arrays *x, const struct setting *s, const char *text)
{
    struct arrays truth;
    ag_options reference = AG_OPTIONS_INIT;
    reference.backend = AG_BACKEND_REFERENCE;
    make_arrays(x, text, &reference, 7);
    CHECK_OK(agc_arrays_add_low_halves(x));
    write_zeros(x, T_D_LSE);
    write_zeros(x, T_TD_LSE);
    scale_queries(x, s->factor);
    if (s->near && CHECK_OK(agc_arrays_clone_as(&truth, x, AG_F64, &reference))) {
        CHECK_OK(agc_arrays_run(&truth, AG_MAP_FORWARD));
        move_near_output(x, &truth);
        agc_arrays_destroy(&truth);
    }
}

static void run_setting(const struct arrays *inputs, const struct setting *s, const char *label)
{
    struct arrays truth, x;
    if (!make_truth(&truth, inputs, label)) {
        return;
    }
    for (struct runner *r = runners; r < runners + runner_count; r++) {
        if (runner_arrays(r, inputs, 2, &x)) {
            CHECK_OK(agc_arrays_run_all(&x));
            check_errors(r, &x, &truth, s, label);
            agc_arrays_destroy(&x);
            r->runs++;
        }
    }
    agc_arrays_destroy(&truth);
}

/* float16 is never on AMX, and elsewhere its ratios do not fluctuate: fewer heads. */
static void test_setting(const struct setting *s, const char *dtype)
{
    struct arrays inputs;
    char text[64], label[128];
    const int heads = strcmp(dtype, "f16") == 0 ? s->heads / 4 : s->heads;
    snprintf(text, sizeof text, "h%d q%d d%d %s%s", heads, s->length, s->dim, dtype,
             s->causal ? " causal" : "");
    snprintf(label, sizeof label, "'%s' q x %g%s", text, s->factor, s->near ? " dO near O" : "");
    make_inputs(&inputs, s, text);
    run_setting(&inputs, s, label);
    agc_arrays_destroy(&inputs);
}

/* Adds the same vector to tK of every key: tS of a query moves by one number, O and its tangent do not. */
static void add_common_tangent(struct arrays *x, int64_t dim)
{
    double *tk = test_read(x, T_TK);
    for (int64_t n = 0; n < x->count[T_TK]; n++) {
        tk[n] += n % dim % 2 == 0 ? 16 : -16;
    }
    agc_arrays_write(x, T_TK, tk);
    free(tk);
}

/* jvp that is given O subtracts a value of tS before it multiplies, so that such a move costs it no more digits than it
 * costs jvp. */
static void given_jvp_keeps_digits(void)
{
    struct arrays inputs, truth, x;
    const char *const label = "'h8 q96 d64 bf16', a common tangent";
    ag_options reference = AG_OPTIONS_INIT;
    reference.backend = AG_BACKEND_REFERENCE;
    make_arrays(&inputs, "h8 q96 d64 bf16", &reference, 7);
    CHECK_OK(agc_arrays_add_low_halves(&inputs));
    add_common_tangent(&inputs, 64);
    if (make_truth(&truth, &inputs, label)) {
        for (struct runner *r = runners; r < runners + runner_count; r++) {
            if (runner_arrays(r, &inputs, 2, &x)) {
                CHECK_OK(agc_arrays_run(&x, AG_MAP_JVP));
                const double usual = relative_error(&x, T_TO, &truth);
                run_given_jvp(&x);
                const double given = relative_error(&x, T_TO, &truth);
                CHECK(given <= 1.5 * usual, "%s %s: error of to %g, %g of jvp", r->environment, label, given,
                      usual);
                agc_arrays_destroy(&x);
            }
        }
        agc_arrays_destroy(&truth);
    }
    agc_arrays_destroy(&inputs);
}

int main(void)
{
    find_runners(0);
    given_jvp_keeps_digits();
    /* If AG_TEST_COUNT is set, one setting of five, with lengths 32, 64 and 128 and every head size among them. */
    const int all = test_count(1000) == 1000;
    for (int n = all ? 0 : 2; n < SETTINGS; n += all ? 1 : 5) {
        for (int d = 0; d < DTYPES; d++) {
            test_setting(&settings[n], dtypes[d]);
        }
    }
    report_runners();
    return test_summary();
}
