/* vjp uses o and d_lse only through D = rowsum(dO o O) - dL, and vjp_jvp uses to and td_lse, too, only through
 * tD = rowsum(dO o tO + tdO o O) - tdL. So o = 0 and d_lse = -D give the same gradients, to = 0 and td_lse = -tD the
 * same tangents: a caller who has D need not keep o. The zeros may be one element with strides of zero. */
#include "device.h"
#include "every_isa.h"
#include "outputs.h"

/* row[r] += the sum over c of a[r][c] b[r][c] */
static void add_row_dots(double *row, const double *a, const double *b, int64_t rows, int64_t channels)
{
    for (int64_t n = 0; n < rows * channels; n++) {
        row[n / channels] += a[n] * b[n];
    }
}

/* Writes -D to y's d_lse, and -tD to its td_lse. The outputs of forward and jvp are there. */
static void give_D(struct arrays *y)
{
    const int64_t rows = y->count[T_LSE], channels = y->p->dim_v;
    double *o = test_read(y, T_O), *to = test_read(y, T_TO), *d_o = test_read(y, T_D_O);
    double *td_o = test_read(y, T_TD_O), *d_lse = test_read(y, T_D_LSE), *td_lse = test_read(y, T_TD_LSE);
    double *D = test_alloc(rows, sizeof *D), *tD = test_alloc(rows, sizeof *tD);
    for (int64_t r = 0; r < rows; r++) {
        D[r] = -d_lse[r];
        tD[r] = -td_lse[r];
    }
    add_row_dots(D, d_o, o, rows, channels);
    add_row_dots(tD, d_o, to, rows, channels);
    add_row_dots(tD, td_o, o, rows, channels);
    for (int64_t r = 0; r < rows; r++) {
        D[r] = -D[r];
        tD[r] = -tD[r];
    }
    agc_arrays_write(y, T_D_LSE, D);
    agc_arrays_write(y, T_TD_LSE, tD);
    double *const all[] = {o, to, d_o, td_o, d_lse, td_lse, D, tD};
    for (size_t n = 0; n < sizeof all / sizeof all[0]; n++) {
        free(all[n]);
    }
}

static int passed(const struct error_entry *e, ag_dtype dtype)
{
    (void)dtype;
    return agc_error_entry_passed(e);
}

static void check(const ag_check_case *s, const struct runner *r, struct error_truth *truth,
                  const struct arrays *x)
{
    static const double zero = 0;
    struct arrays y;
    ag_options options = r->options;
    options.threads = 2;
    if (!CHECK_OK(agc_arrays_clone_as(&y, x, x->given.dtype, &options))) {
        return;
    }
    CHECK_OK(agc_arrays_run_all(&y));
    give_D(&y);
    y.args.o = y.args.to = (ag_tensor){(void *)(uintptr_t)&zero, {0, 0, 0, 0}};
    CHECK_OK(agc_arrays_run(&y, AG_MAP_VJP));
    CHECK_OK(agc_arrays_run(&y, AG_MAP_VJP_JVP));
    check_error_entries(s, r, truth, &y, passed);
    agc_arrays_destroy(&y);
}

int main(void)
{
    enum { LARGE = 1 }; /* the text of several tiles */
    static const char *const texts[] = {
        "b2 h4 kv2 q24 k40 d16 dv12 sink causal bias=1hqk softcap=4 dropout=0.2",
        "b2 h2 q210 k330 d32 causal",
        "b3 h2 q24 k32 d8 packed=50,70 mask=11qk table=5 sink",
    };
    static const char *const dtypes[] = {"f64", "f32", "f16", "bf16"};
    find_runners(1);
    for (size_t n = 0; n < sizeof texts / sizeof texts[0]; n++) {
        for (int dtype = 0; dtype < 4; dtype++) {
            char text[128];
            if (n == LARGE && dtype != 1 && test_count(1000) < 500) {
                printf("the large problem in %s: not run, AG_TEST_COUNT asks for little\n", dtypes[dtype]);
                continue;
            }
            ag_check_case s = {.problem = AG_PROBLEM_INIT, .seed = 5 + n};
            snprintf(text, sizeof text, "%s %s", texts[n], dtypes[dtype]);
            if (CHECK_OK(ag_problem_parse(text, &s.problem))) {
                every_isa(&s, 2, NULL, check);
            }
        }
    }
    report_runners();
    return test_maps_summary();
}
