/* The error rule: the reference and each instruction set satisfy it in all four dtypes, on the problems with
 * the largest rounding errors and on random ones; results that are slightly wrong violate it. */
#include "device.h"
#include "every_isa.h"
#include "outputs.h"

static const char *const dtypes[] = {"f64", "f32", "f16", "bf16"};

/* ---- The rule holds ---- */

static int within(const struct error_entry *e, ag_dtype dtype)
{
    (void)dtype;
    return agc_error_entry_passed(e);
}

static void check(const ag_check_case *s, const struct runner *r, struct error_truth *truth,
                  const struct arrays *x)
{
    check_error_entries(s, r, truth, x, within);
}

static void mean_10(struct arrays *x)
{
    double *v = test_read(x, T_V);
    for (int64_t n = 0; n < x->count[T_V]; n++) {
        v[n] += 10;
    }
    agc_arrays_write(x, T_V, v);
    free(v);
}

/* A sink that takes nearly all the weight: what is left must keep its digits. */
static void heavy_sinks(struct arrays *x)
{
    double *sink = test_read(x, T_SINK);
    for (int64_t n = 0; n < x->count[T_SINK]; n++) {
        sink[n] = 10 + 15 * (double)n;
    }
    agc_arrays_write(x, T_SINK, sink);
    free(sink);
}

static void sink_of_25(struct arrays *x)
{
    double sink = 25;
    agc_arrays_write(x, T_SINK, &sink);
}

static void tangent_is_q(struct arrays *x)
{
    double *q = test_read(x, T_Q);
    agc_arrays_write(x, T_TQ, q);
    free(q);
}

static void test_text(const char *text, void (*change)(struct arrays *x))
{
    ag_check_case s = {.problem = AG_PROBLEM_INIT, .seed = 5};
    if (CHECK_OK(ag_problem_parse(text, &s.problem))) {
        every_isa(&s, 1, change, check);
    }
}

static void test_list(const char *dtype)
{
    char text[192];
    const int length = test_count(16384);
    const struct {
        const char *words;
        void (*change)(struct arrays *x);
    } list[] = {
        {"b2 h4 kv2 q24 k32 d16 dv12", NULL},
        {"h2 q16 k32 d16 scale=2500", NULL},   /* scores of 1e4: near one-hot */
        {"h4 kv2 q16 k16 d128 scale=3", NULL}, /* forward takes the small-head path, vjp does not */
        {"h2 q40 d16 causal", NULL},
        {"h2 q24 k32 d16", mean_10},
        {"h2 q24 k32 d16", tangent_is_q},
        {"b2 h2 q24 k32 d8 softcap=2 sink dropout=0.2 bias=1hqk table=4 alibi", NULL},
        {"h1 q64 k64 d64 softcap=30 scale=30", NULL}, /* scores at the cap: phi' of 1e-2 to 1e-20 */
        {"h2 q24 k32 d16 softcap=0.5 scale=2", NULL},
        {"h4 q20 k24 d16 sink causal", heavy_sinks},
        {"h4 q20 k24 d16 sink mask=11qk", heavy_sinks},
        {"h1 q20 k24 d16 sink mask=11qk", sink_of_25},
    };
    for (size_t n = 0; n < sizeof list / sizeof list[0]; n++) {
        snprintf(text, sizeof text, "%s %s", list[n].words, dtype);
        test_text(text, list[n].change);
    }
    snprintf(text, sizeof text, "h1 q64 k%d d16 %s", length, dtype);
    test_text(text, NULL);
    snprintf(text, sizeof text, "h1 q%d k64 d16 %s", length, dtype);
    test_text(text, NULL);
}

/* Several tiles, spans and splits; left out if AG_TEST_COUNT is small. */
static void test_large(const char *dtype)
{
    static const char *const list[] = {
        "h1 q400 k700 d16 causal align=bottom-right",
        "b2 h4 kv2 q210 k330 d20 dv12 bias=11qk table=20,shared dropout=0.1 causal sink softcap=5",
        "b2 h2 q200 k260 d24 window=70,20 bias=1hqk mask=b1qk alibi",
        "b4 h2 kv1 q200 k250 d8 packed=500,700 causal dropout=0.2 bias=11qk table=10 sink",
        "h2 q70 k300 d512 bias=111k",
        "h1 q9 k3000 d16 causal align=bottom-right sink",
        "b2 h2 kv1 q70 k2300 d8 dv20 window=1500,10 align=bottom-right mask=b11k softcap=4 dropout=0.1",
    };
    char text[192];
    for (size_t n = 0; n < sizeof list / sizeof list[0] && test_count(1000) == 1000; n++) {
        snprintf(text, sizeof text, "%s %s", list[n], dtype);
        test_text(text, NULL);
    }
}

/* ---- On a GPU ----
 *
 * The large errors and wider results once more, at sizes that its tensor cores take: the processor's kernels have met
 * them above, and in wide_outputs. */

static int is_on_device(void)
{
    struct arrays x;
    make_arrays(&x, "q4 d4 f32", NULL, 1);
    const int is = agc_on_device(x.plan);
    agc_arrays_destroy(&x);
    return is;
}

static void test_large_errors_of_tiles(const char *dtype)
{
    const struct {
        const char *words;
        void (*change)(struct arrays *x);
    } list[] = {
        {"h2 q150 k300 d64 scale=1250 out=f32", NULL}, /* scores of 1e4: sto may be beyond float16 */
        {"h2 q150 k300 d128 scale=900 out=f32", NULL},
        {"h2 q300 k300 d64 scale=1250 causal", NULL},
        {"h4 kv2 q70 k300 d128 scale=3", NULL},
        {"h4 kv2 q200 k300 d64 scale=3 causal", NULL},
        {"h2 q150 k300 d64", mean_10},
        {"h2 q70 k300 d128 causal", mean_10},
        {"h2 q130 k300 d64", tangent_is_q},
        {"h2 q130 k300 d128", tangent_is_q},
        {"h2 q130 k300 d64 softcap=30 scale=30", NULL},
        {"h2 q130 k300 d128 softcap=0.5 scale=2", NULL},
        {"h4 q200 k300 d64 sink causal", heavy_sinks},
        {"h4 q100 k300 d128 sink causal", heavy_sinks},
        {"h4 q100 k300 d64 sink mask=11qk", heavy_sinks},
        {"h1 q100 k300 d64 sink mask=11qk", sink_of_25},
        {"h1 q130 k200 d256 scale=600 out=f32", NULL},
        {"h2 q130 k300 d200 sink", heavy_sinks},
    };
    for (size_t n = 0; n < sizeof list / sizeof list[0]; n++) {
        char text[192];
        snprintf(text, sizeof text, "%s %s", list[n].words, dtype);
        test_text(text, list[n].change);
    }
}

static void test_wider_results(const char *dtype)
{
    static const char *const wider[] = {"out=f32", "grad=f32", "out=f32 grad=f32"};
    static const char *const list[] = {
        "h2 q130 k200 d64",
        "h2 q70 k300 d128 causal",
        "h4 kv2 q150 k130 d40 dv72 window=40,10 softcap=2 dropout=0.2",
        "b2 h2 q100 k90 d33 dv20 bias=11qk mask=b11k sink table=5",
        "b5 h2 q150 k200 packed=200,300 d64 causal alibi",
        "b2 h2 kv1 q1 k700 d128",
        "h1 q130 k100 d256 causal",
    };
    for (size_t n = 0; n < sizeof list / sizeof list[0]; n++) {
        for (size_t w = 0; w < sizeof wider / sizeof wider[0]; w++) {
            char text[192];
            snprintf(text, sizeof text, "%s %s %s", list[n], dtype, wider[w]);
            test_text(text, NULL);
        }
    }
}

static void test_device(void)
{
    for (int n = 2; n < 4; n++) { /* the dtypes of 16 bits */
        test_large_errors_of_tiles(dtypes[n]);
        test_wider_results(dtypes[n]);
    }
}

/* One of ten is large; if AG_TEST_COUNT is set, only among the first 30. */
static void test_random(int n)
{
    ag_check_case s;
    const int large = n % 10 == 5 && (n < 30 || test_count(1000) == 1000);
    ag_check_random(&s, 30, (uint64_t)n, large ? AG_CHECK_LARGE : AG_CHECK_SMALL);
    every_isa(&s, 1, NULL, check);
}

/* ---- The rule can be broken ---- */

/* Each output in turn times a factor: that output must break the rule, and no other. The factor is as
 * large as it must be: the rule allows about 8 eps A, and A, in which nothing cancels, is several times |truth|. */
static void test_breaks(const char *dtype, double factor)
{
    char text[64];
    struct arrays x;
    ag_problem problem = AG_PROBLEM_INIT;
    ag_options options = AG_OPTIONS_INIT;
    options.threads = 1;
    snprintf(text, sizeof text, "h2 q6 k7 d4 bias sink %s", dtype);
    if (!CHECK_OK(ag_problem_parse(text, &problem)) ||
        !CHECK_OK(agc_arrays_create(&x, &problem, &options, 6))) {
        return;
    }
    for (enum tensor t = 0; t < T_COUNT; t++) {
        struct error_entry entries[T_COUNT];
        int count = 0;
        if (agc_tensor_info[t].role != ROLE_OUTPUT || x.data[t] == NULL) {
            continue;
        }
        CHECK_OK(agc_arrays_run_all(&x));
        double *values = test_read(&x, t);
        for (int64_t n = 0; n < x.count[t]; n++) {
            values[n] *= factor;
        }
        agc_arrays_write(&x, t, values);
        free(values);
        CHECK_OK(agc_error_rule(&x, 1, entries, &count));
        for (int n = 0; n < count; n++) {
            CHECK(agc_error_entry_passed(&entries[n]) == (entries[n].t != t),
                  "%s: %s times %.17g: %s: error %g, limit %g", text, agc_tensor_info[t].name, factor,
                  agc_tensor_info[entries[n].t].name, entries[n].error, entries[n].limit);
        }
    }
    agc_arrays_destroy(&x);
}

int main(void)
{
    find_runners(1);
    if (test_count(1000) < 1000) {
        printf("the list of large problems: not run, AG_TEST_COUNT asks for little; random ones are\n");
    }
    for (int n = 0; n < 4; n++) {
        test_list(dtypes[n]);
        test_large(dtypes[n]);
    }
    if (is_on_device()) {
        test_device();
    }
    for (int n = 0; n < test_count(100); n++) {
        test_random(n);
    }
    report_runners();
    test_breaks("f64", 1 + 1e-12); /* eps of the four dtypes: 2e-16, 1e-7, 1e-3, 8e-3 */
    test_breaks("f32", 1 + 1e-4);
    test_breaks("f16", 1.5);
    test_breaks("bf16", 3);
    return test_maps_summary();
}
