/* jvp_jvp and a jvp that is given o, as calls: accumulation, threads, strides, absent tensors, directions that share
 * memory, rows that see no key. What they compute is compared by the check engine: finite_differences, identities,
 * error_rule, random_problems. */
#include "device.h"
#include "outputs.h"

#include <math.h>

enum { SECOND = AG_MAP_JVP_JVP };

static const char *const texts[] = {EVERY_FEATURE "f64", EVERY_FEATURE "bf16", EVERY_FEATURE_PACKED "f32",
                                    EVERY_FEATURE_PACKED "f16 out=f32", "b2 h4 kv2 q70 k90 d16 causal f32"};
enum { N_TEXTS = sizeof texts / sizeof texts[0] };

/* The default backend; the reference if that has no jvp_jvp. */
static ag_backend backend;

static void make_with(struct arrays *x, const char *text, int32_t threads, uint32_t flags)
{
    ag_options options = AG_OPTIONS_INIT;
    options.backend = backend;
    options.threads = threads;
    options.flags = flags;
    make_arrays(x, text, &options, 11);
    CHECK_OK(agc_arrays_add_low_halves(x));
    CHECK_OK(agc_arrays_run_all(x));
}

static void make(struct arrays *x, const char *text, int32_t threads)
{
    make_with(x, text, threads, 0);
}

static void choose_backend(void)
{
    struct arrays x;
    make_arrays(&x, "q2 d2 f32", NULL, 1);
    backend = AG_BACKEND_AUTO;
    if (!agc_plan_has_jvp_jvp(x.plan)) {
        printf("on the reference: the default backend has no jvp_jvp\n");
        backend = AG_BACKEND_REFERENCE;
    }
    agc_arrays_destroy(&x);
}

static void threads(const char *text)
{
    struct arrays one, three;
    make(&one, text, 1);
    make(&three, text, 3);
    same_outputs(&three, &one, SECOND, text);
    agc_arrays_destroy(&one);
    agc_arrays_destroy(&three);
}

/* out = round(out + result). */
static void accumulates(const char *text)
{
    struct arrays x;
    make(&x, text, 2);
    for (enum tensor t = T_STO; t <= T_NU; t++) {
        double *result = test_read(&x, t), *old = test_alloc(x.count[t], sizeof *old);
        for (int64_t n = 0; n < x.count[t]; n++) {
            old[n] = 0.25 * (double)(n % 7);
        }
        agc_arrays_write(&x, t, old);
        x.args.accumulate = agc_tensor_info[t].accumulate;
        CHECK_OK(agc_arrays_run(&x, SECOND));
        double *sum = test_read(&x, t), size = 0, error = 0;
        for (int64_t n = 0; n < x.count[t]; n++) {
            size = fmax(size, fabs(old[n] + result[n]));
            error = fmax(error, fabs(sum[n] - (old[n] + result[n])));
        }
        const double eps = x.dtype[t] == AG_BF16 ? 0x1p-7 : x.dtype[t] == AG_F64 ? 0x1p-50 : 0x1p-21;
        CHECK(error <= eps * size, "%s: %s accumulated: error %g of %g", text, agc_tensor_info[t].name, error,
              size);
        free(result);
        free(old);
        free(sum);
    }
    agc_arrays_destroy(&x);
}

/* Inputs may share memory: the second direction is the first. Fewer products are then enough, with other roundings; but
 * with AG_INVARIANT the bits are those of copies. */
static void one_direction(const char *text, uint32_t flags)
{
    struct arrays x, y;
    make_with(&x, text, 2, flags);
    make_with(&y, text, 2, flags);
    for (int f = 0; f < FAMILY_VARIABLES; f++) { /* x: copies; y: the same memory */
        const enum tensor s = agc_families[f].s, t = agc_families[f].t;
        if (x.data[s] != NULL) {
            memcpy(x.data[s], x.data[t], tensor_bytes(&x, s));
            *agc_arrays_tensor(&y, s) = *agc_arrays_tensor(&y, t);
        }
    }
    memcpy(x.data[T_SMU], x.data[T_MU], tensor_bytes(&x, T_SMU));
    y.args.smu = y.args.mu;
    CHECK_OK(agc_arrays_run(&x, SECOND));
    CHECK_OK(agc_arrays_run(&y, SECOND));
    for (enum tensor t = T_STO; t <= T_NU; t++) {
        double *a = test_read(&x, t), *b = test_read(&y, t), size = 0, error = 0;
        for (int64_t n = 0; n < x.count[t]; n++) {
            size = fmax(size, fabs(a[n]));
            error = fmax(error, fabs(a[n] - b[n]));
        }
        const double rounding = x.given.dtype == AG_BF16  ? 0x1p-7
                                : x.given.dtype == AG_F64 ? 0x1p-46
                                                          : 0x1p-17;
        const double eps = flags & AG_INVARIANT ? 0 : rounding;
        CHECK(error <= eps * size, "%s: %s of one direction: error %g of %g", text, agc_tensor_info[t].name,
              error, size);
        free(a);
        free(b);
    }
    agc_arrays_destroy(&x);
    agc_arrays_destroy(&y);
}

/* sto with every second element of each axis, and without nu: the same bits. */
static void strides(const char *text)
{
    struct arrays x;
    make(&x, text, 2);
    const int64_t *size = x.size[T_STO];
    const size_t bytes = element_size(&x, T_STO);
    char *memory = test_alloc(16 * x.count[T_STO], bytes);
    const ag_tensor dense = x.args.sto;
    ag_tensor view = {memory, {1, 2 * size[0], 4 * size[0] * size[1], 8 * size[0] * size[1] * size[2]}};
    x.args.sto = view;
    x.args.nu.data = NULL;
    CHECK_OK(agc_run_map(x.plan, AG_MAP_JVP_JVP, &x.args, x.workspace, x.workspace_bytes));
    for (int64_t b = 0; b < size[0]; b++) {
        for (int64_t n = 0; n < size[1] * size[2] * size[3]; n++) {
            const int64_t h = n % size[1], i = n / size[1] % size[2], c = n / size[1] / size[2];
            const int64_t at =
                b * view.strides[0] + h * view.strides[1] + i * view.strides[2] + c * view.strides[3];
            const int64_t to =
                b * dense.strides[0] + h * dense.strides[1] + i * dense.strides[2] + c * dense.strides[3];
            CHECK(memcmp(memory + (size_t)at * bytes, (char *)x.data[T_STO] + (size_t)to * bytes, bytes) == 0,
                  "%s: sto[%lld, %lld, %lld, %lld] differs with other strides", text, (long long)b,
                  (long long)h, (long long)i, (long long)c);
        }
    }
    free(memory);
    agc_arrays_destroy(&x);
}

/* Without a second direction, or without a first, every second tangent is zero. */
static void absent(const char *text)
{
    for (int which = 0; which < 2; which++) {
        struct arrays x;
        make(&x, text, 2);
        memset(x.data[which == 0 ? T_MU : T_SMU], 0, tensor_bytes(&x, T_MU));
        for (int f = 0; f < FAMILY_VARIABLES; f++) {
            agc_arrays_tensor(&x, which == 0 ? agc_families[f].t : agc_families[f].s)->data = NULL;
        }
        CHECK_OK(agc_arrays_run(&x, SECOND));
        for (enum tensor t = T_STO; t <= T_NU; t++) {
            double *values = test_read(&x, t);
            int64_t wrong = 0;
            for (int64_t n = 0; n < x.count[t]; n++) {
                wrong += values[n] != 0;
            }
            CHECK(wrong == 0, "%s: %s of one direction: %lld values are not 0", text, agc_tensor_info[t].name,
                  (long long)wrong);
            free(values);
        }
        agc_arrays_destroy(&x);
    }
}

/* Rows that see no key, with and without a sink: zeros, even if o of the row is NaN. */
static void rows_without_keys(const char *words)
{
    struct arrays x;
    make(&x, words, 2);
    memset(x.data[T_MASK], 0, tensor_bytes(&x, T_MASK));
    CHECK_OK(agc_arrays_run_all(&x));
    memset(x.data[T_O], 0xff, tensor_bytes(&x, T_O));
    CHECK_OK(agc_arrays_run(&x, SECOND));
    for (enum tensor t = T_STO; t <= T_NU; t++) {
        double *values = test_read(&x, t);
        for (int64_t n = 0; n < x.count[t]; n++) {
            CHECK(values[n] == 0, "%s: %s element %lld is %g", words, agc_tensor_info[t].name, (long long)n,
                  values[n]);
        }
        free(values);
    }
    agc_arrays_destroy(&x);
}

/* Given o and lse, jvp reads them and writes to, to_low and mu; on the reference the same bits. */
static void given_o(const char *text)
{
    struct arrays x;
    void *before[T_COUNT];
    ag_options reference = AG_OPTIONS_INIT;
    reference.backend = AG_BACKEND_REFERENCE;
    make_arrays(&x, text, &reference, 12);
    CHECK_OK(agc_arrays_add_low_halves(&x));
    CHECK_OK(agc_arrays_run_all(&x));
    keep_outputs(&x, before);
    run_given_jvp(&x);
    for (enum tensor t = 0; t < T_COUNT; t++) {
        if (before[t] != NULL) {
            same_tensor(&x, t, x.data[t], before[t], text);
        }
    }
    free_outputs(before);
    agc_arrays_destroy(&x);
}

int main(void)
{
    choose_backend();
    for (int n = 0; n < N_TEXTS; n++) {
        threads(texts[n]);
        accumulates(texts[n]);
        one_direction(texts[n], 0);
        one_direction(texts[n], AG_INVARIANT);
        strides(texts[n]);
        absent(texts[n]);
        given_o(texts[n]);
    }
    rows_without_keys("b2 h2 q5 k6 d4 f64 mask");
    rows_without_keys("b2 h2 q5 k6 d4 bf16 mask sink");
    return test_maps_summary();
}
