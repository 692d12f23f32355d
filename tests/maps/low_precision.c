/* bfloat16 and float16 compared with the error of the unfused formula. The error rule also allows 8 eps A,
 * which for these dtypes may be as large as the result: here the error of a result must be at most four times
 * (of tables and sinks: eight times) that of the baseline, or of rounding the truth, on random problems of
 * several tiles. */
#include "check/error_rule.h"
#include "feature_pairs.h"
#include "outputs.h"

#include <math.h>

enum { ALL = 1000, PROBLEMS = 60, SEED = 31 };

/* A table or a sink has few elements, each a sum over all pairs whose terms nearly cancel: the error of the baseline,
 * one draw of that sum's rounding, may be small by chance. */
static double max_ratio(enum tensor t)
{
    return t == T_DTABLE || t == T_TDTABLE || t == T_DSINK || t == T_TDSINK ? 8 : 4;
}

static void check_entries(const struct arrays *x, const char *what)
{
    struct error_entry entries[T_COUNT];
    const double floor = x->given.dtype == AG_BF16 ? 4e-3 : 6e-4;
    int count = 0;
    CHECK(agc_error_rule(x, 2, entries, &count) == AG_OK, "%s: %s", what, ag_last_message());
    for (int n = 0; n < count; n++) {
        const struct error_entry *e = &entries[n];
        CHECK(e->error <= max_ratio(e->t) * fmax(e->baseline, floor * e->truth),
              "%s: %s: |x - truth| %g; unfused %g, A %g, |truth| %g", what, agc_tensor_info[e->t].name,
              e->error, e->baseline, e->size, e->truth);
    }
    CHECK(count > 0, "%s: nothing compared", what);
}

static void test(int n)
{
    ag_check_case s;
    struct arrays x;
    char what[512];
    ag_options options = AG_OPTIONS_INIT;
    options.threads = 1 + n % 2;
    ag_check_random(&s, SEED, (uint64_t)n, AG_CHECK_LARGE);
    s.problem.dtype = n % 4 == 3 ? AG_F16 : AG_BF16;
    s.problem.out_dtype = n % 5 == 3 ? AG_F32 : 0;
    s.problem.grad_dtype = n % 5 >= 3 ? AG_F32 : 0;
    s.problem.aux_dtype = 0;
    ag_check_command(&s, what, sizeof what);
    if (CHECK(agc_arrays_of_case(&x, &s, &options) == AG_OK, "%s: %s", what, ag_last_message())) {
        CHECK_OK(agc_arrays_run_all(&x));
        check_entries(&x, what);
        agc_arrays_destroy(&x);
    }
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
        CHECK_OK(agc_arrays_run_all(&x));
        check_entries(&x, text);
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

int main(void)
{
    growing_scores("h1 q70 k400 d32 bf16");
    growing_scores("h1 q70 k900 d32 bf16");
    growing_scores("h1 q70 k400 d32 f16");
    weights_add_up("h2 q70 k700 d32 bf16");
    each_row_adds_up("h2 q70 k30 d32 bf16");
    each_row_adds_up("h2 q300 k300 d32 bf16 causal");
    weights_add_up("h2 q70 k700 d32 f16");

    const int count = test_count(ALL); /* fewer if AG_TEST_COUNT is small: these are large */
    for (int n = 0; n < (count == ALL ? PROBLEMS : count / 50); n++) {
        test(n);
    }
    return test_summary();
}
