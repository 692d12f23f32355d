/* bfloat16 and float16 compared with the error of the unfused formula. The error rule also allows 8 eps A, which for
 * these dtypes may be as large as the result: here the error of a result must be at most four times (of tables and
 * sinks, over several draws: twice) that of the baseline, or of rounding the truth, on random problems of several
 * tiles. */
#include "check/error_rule.h"
#include "device.h"
#include "feature_pairs.h"
#include "outputs.h"

#include <math.h>

enum { ALL = 1000, PROBLEMS = 60, SEED = 31, DRAWS = 4 };

/* Squares of errors and of baselines, per output, and the number of draws that have it. */
struct errors {
    double error[T_COUNT], baseline[T_COUNT];
    int draws[T_COUNT];
};

/* A table or a sink has few elements, each a sum over all pairs whose terms nearly cancel: the baseline of a single
 * draw may be small by chance. */
static int has_few_elements(enum tensor t)
{
    return t == T_DTABLE || t == T_TDTABLE || t == T_DSINK || t == T_TDSINK;
}

/* Compared as root mean squares over all draws. */
static int is_within(const struct errors *sum, enum tensor t)
{
    const double max_ratio = has_few_elements(t) ? 2 : 4;
    return sqrt(sum->error[t]) <= max_ratio * sqrt(sum->baseline[t]);
}

/* Adds the errors of one draw. */
static void add_errors(const struct arrays *x, const char *what, struct errors *sum)
{
    struct error_entry entries[T_COUNT];
    const double floor = x->given.dtype == AG_BF16 ? 4e-3 : 6e-4;
    int count = 0;
    CHECK(agc_error_rule(x, 2, entries, &count) == AG_OK, "%s: %s", what, ag_last_message());
    for (int n = 0; n < count; n++) {
        const struct error_entry *e = &entries[n];
        const double baseline = fmax(e->baseline, floor * e->truth);
        sum->error[e->t] += e->error * e->error;
        sum->baseline[e->t] += baseline * baseline;
        sum->draws[e->t]++;
    }
    CHECK(count > 0, "%s: nothing compared", what);
}

static void check_errors(const struct errors *sum, int few_elements, const char *what)
{
    for (enum tensor t = 0; t < T_COUNT; t++) {
        if (sum->draws[t] > 0 && has_few_elements(t) == few_elements) {
            CHECK(is_within(sum, t), "%s: %s: |x - truth| %g; unfused, or truth rounded %g", what,
                  agc_tensor_info[t].name, sqrt(sum->error[t]), sqrt(sum->baseline[t]));
        }
    }
}

static void add_draw(int n, int draw, struct errors *sum, char what[512])
{
    ag_check_case s;
    struct arrays x;
    ag_options options = AG_OPTIONS_INIT;
    options.threads = 1 + n % 2;
    ag_check_random(&s, SEED, (uint64_t)n, AG_CHECK_LARGE);
    s.problem.dtype = n % 4 == 3 ? AG_F16 : AG_BF16;
    s.problem.out_dtype = n % 5 == 3 ? AG_F32 : 0;
    s.problem.grad_dtype = n % 5 >= 3 ? AG_F32 : 0;
    s.problem.aux_dtype = 0;
    s.seed += (uint64_t)draw;
    ag_check_command(&s, what, 512);
    if (CHECK(agc_arrays_of_case(&x, &s, &options) == AG_OK, "%s: %s", what, ag_last_message())) {
        CHECK_OK(agc_arrays_run_all(&x));
        if (n % 2 == 1) { /* to and mu: of jvp that is given o and lse */
            run_given_jvp(&x);
        }
        add_errors(&x, what, sum);
        agc_arrays_destroy(&x);
    }
}

/* One draw; DRAWS of them if a table or a sink is not within the limit in the first. */
static void test(int n)
{
    struct errors sum = {0};
    char what[512];
    int within = 1;
    add_draw(n, 0, &sum, what);
    check_errors(&sum, 0, what);
    for (enum tensor t = 0; t < T_COUNT; t++) {
        within &= !has_few_elements(t) || is_within(&sum, t);
    }
    for (int draw = 1; draw < DRAWS && !within; draw++) {
        add_draw(n, draw, &sum, what);
    }
    check_errors(&sum, 1, what);
}

static int make(struct arrays *x, const char *text)
{
    ag_problem problem = AG_PROBLEM_INIT;
    return CHECK_OK(ag_problem_parse(text, &problem)) && CHECK_OK(agc_arrays_create(x, &problem, NULL, 5));
}

/* Keys that grow, so that each group's maximum is far above that of the group before: sums must be rescaled. */
static void growing_scores(const char *text)
{
    struct arrays x;
    if (make(&x, text)) {
        const int64_t width = x.p->dim_qk;
        double *k = test_read(&x, T_K);
        for (int64_t n = 0; n < x.count[T_K]; n++) {
            k[n] *= 0.05 * (double)(n / width);
        }
        agc_arrays_write(&x, T_K, k);
        free(k);
        struct errors sum = {0};
        CHECK_OK(agc_arrays_run_all(&x));
        add_errors(&x, text, &sum);
        check_errors(&sum, 0, text);
        agc_arrays_destroy(&x);
    }
}

/* V of ones gives O of ones: weights and their sum are rounded without a bias. */
static void weights_add_up(const char *text)
{
    struct arrays x;
    if (make(&x, text)) {
        double *v = test_read(&x, T_V), sum = 0;
        for (int64_t n = 0; n < x.count[T_V]; n++) {
            v[n] = 1;
        }
        agc_arrays_write(&x, T_V, v);
        CHECK_OK(agc_arrays_run(&x, AG_MAP_FORWARD));
        double *o = test_read(&x, T_O);
        for (int64_t n = 0; n < x.count[T_O]; n++) {
            sum += o[n];
        }
        CHECK(fabs(sum / (double)x.count[T_O] - 1) < 1e-3, "%s: O of ones has mean %g", text,
              sum / (double)x.count[T_O]);
        free(v);
        free(o);
        agc_arrays_destroy(&x);
    }
}

/* The same in every row, to the digits of O's low half: few keys, whose rounding errors do not average out. It fails if
 * the weights that are summed are not those that multiply V. */
static void each_row_adds_up(const char *text)
{
    struct arrays x;
    if (make(&x, text) && CHECK_OK(agc_arrays_add_low_halves(&x))) {
        double *v = test_read(&x, T_V), worst = 0;
        for (int64_t n = 0; n < x.count[T_V]; n++) {
            v[n] = 1;
        }
        agc_arrays_write(&x, T_V, v);
        CHECK_OK(agc_arrays_run(&x, AG_MAP_FORWARD));
        double *o = test_read(&x, T_O), *low = test_read(&x, T_O_LOW);
        for (int64_t n = 0; n < x.count[T_O]; n++) {
            worst = fmax(worst, fabs(o[n] + low[n] - 1));
        }
        CHECK(worst < 2e-5, "%s: O of ones is off by up to %g", text, worst);
        free(v);
        free(o);
        free(low);
        agc_arrays_destroy(&x);
    }
}

static void fill(struct arrays *x, enum tensor t, double value)
{
    double *values = test_read(x, t);
    for (int64_t n = 0; n < x->count[t]; n++) {
        values[n] = value;
    }
    agc_arrays_write(x, t, values);
    free(values);
}

static double largest(const struct arrays *x, enum tensor t)
{
    double *values = test_read(x, t), worst = 0;
    for (int64_t n = 0; n < x->count[t]; n++) {
        worst = isnan(values[n]) ? INFINITY : fmax(worst, fabs(values[n]));
    }
    free(values);
    return worst;
}

/* V of ones gives O of ones, whatever the weights are: to and sto are 0, as the weights that multiply V add up to what
 * O is subtracted with. */
static void tangents_add_up(const char *text)
{
    struct arrays x;
    if (make(&x, text) && CHECK_OK(agc_arrays_add_second_direction(&x))) {
        fill(&x, T_V, 1);
        fill(&x, T_TV, 0);
        fill(&x, T_SV, 0);
        CHECK_OK(agc_arrays_run_all(&x));
        fill(&x, T_O, 1);
        run_given_jvp(&x);
        CHECK_OK(agc_arrays_run(&x, AG_MAP_JVP_JVP));
        CHECK(largest(&x, T_TO) < 1e-5, "%s: to of a constant V is %g", text, largest(&x, T_TO));
        CHECK(largest(&x, T_STO) < 1e-5, "%s: sto of a constant V is %g", text, largest(&x, T_STO));
        agc_arrays_destroy(&x);
    }
}

int main(void)
{
    tangents_add_up("h2 q70 k700 d32 bf16");
    tangents_add_up("h2 q70 k30 d32 bf16");
    tangents_add_up("h2 q300 k300 d32 bf16 causal");
    tangents_add_up("h2 q70 k700 d32 f16");
    growing_scores("h1 q70 k400 d32 bf16");
    growing_scores("h1 q70 k900 d32 bf16");
    growing_scores("h1 q70 k400 d32 f16");
    weights_add_up("h2 q70 k700 d32 bf16");
    each_row_adds_up("h2 q70 k30 d32 bf16");
    each_row_adds_up("h2 q300 k300 d32 bf16 causal");
    weights_add_up("h2 q70 k700 d32 f16");

    const int count = test_count(ALL); /* fewer if AG_TEST_COUNT is small: these are large */
    for (int n = 0; n < (count == ALL ? PROBLEMS : count / 100); n++) {
        test(n);
    }
    return test_maps_summary();
}
