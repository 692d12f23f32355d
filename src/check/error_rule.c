/* Runs the reference for the truth and the baseline of error_rule.h and compares with them. */
#include "check/error_rule.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct format {
    double eps, floor;
};

static struct format format_of(ag_dtype dtype)
{
    switch (dtype) {
    case AG_F64: return (struct format){0x1p-52, 1e-13};
    case AG_F32: return (struct format){0x1p-23, 1e-6};
    case AG_F16: return (struct format){0x1p-10, 6e-4};
    default: return (struct format){0x1p-7, 4e-3};
    }
}

double agc_error_floor(ag_dtype dtype)
{
    return format_of(dtype).floor;
}

/* Frobenius norm of a - b (b NULL: of a's finite values); equal infinities differ by 0. */
static double distance(const double *a, const double *b, int64_t count)
{
    double sum = 0;
    for (int64_t n = 0; n < count; n++) {
        double d = b == NULL ? (isfinite(a[n]) ? a[n] : 0) : a[n] == b[n] ? 0 : a[n] - b[n];
        sum += d * d;
    }
    return sqrt(sum);
}

static int64_t worst_element(const struct arrays *x, enum tensor t, const double *got, const double *wanted)
{
    struct worst w = WORST_NONE;
    for (int64_t n = 0; n < x->count[t]; n++) {
        agc_worst_note(&w, got[n] == wanted[n] ? 0 : fabs(got[n] - wanted[n]), t, n);
    }
    return w.element < 0 ? -1 : agc_arrays_element_of_value(x, t, w.element);
}

/* Compares the output e->t of x with that of the truth and of the baseline, which is NULL if it was not computed. */
static void compare(struct error_entry *e, const struct arrays *x, const struct error_truth *truth,
                    const double *got, const double *baseline, const double *wanted)
{
    struct format f = format_of(x->given.dtype);
    int64_t count = x->count[e->t];
    double growth = x->given.dtype == AG_F64 ? 1 + truth->sizes.score : 1;
    e->error = distance(got, wanted, count);
    e->worst = worst_element(x, e->t, got, wanted);
    e->baseline = baseline != NULL ? distance(baseline, wanted, count) : 0;
    e->truth = distance(wanted, NULL, count);
    e->size = truth->sizes.norm[e->t];
    e->limit = fmax(fmax(2 * e->baseline, 8 * f.eps * growth * e->size), f.floor * e->truth);
}

static ag_status fill_entry(struct error_entry *e, const struct arrays *x, const struct error_truth *truth)
{
    double *got = agc_arrays_read_new(x, e->t), *wanted = agc_arrays_read_new(&truth->truth, e->t);
    double *baseline = truth->complete ? agc_arrays_read_new(&truth->baseline, e->t) : NULL;
    const int failed = got == NULL || wanted == NULL || (truth->complete && baseline == NULL);
    if (!failed) {
        compare(e, x, truth, got, baseline, wanted);
    }
    free(got);
    free(baseline);
    free(wanted);
    return failed ? AG_NO_MEMORY : AG_OK;
}

/* The reference on x's inputs, all maps run. */
static ag_status run_reference(struct arrays *y, const struct arrays *x, ag_dtype dtype, uint32_t flags,
                               int32_t threads)
{
    ag_options options = AG_OPTIONS_INIT;
    options.backend = AG_BACKEND_REFERENCE;
    options.threads = threads;
    options.flags = flags;
    ag_status status = agc_arrays_clone_as(y, x, dtype, &options);
    if (status != AG_OK) {
        return status;
    }
    status = agc_arrays_run_all(y);
    if (status != AG_OK) {
        agc_arrays_destroy(y);
    }
    return status;
}

ag_status agc_error_truth_begin(struct error_truth *truth, const struct arrays *x, int32_t threads)
{
    memset(truth, 0, sizeof *truth);
    truth->threads = threads;
    return run_reference(&truth->truth, x, AG_F64, 0, threads);
}

ag_status agc_error_truth_complete(struct error_truth *truth, const struct arrays *x)
{
    struct error_sizes sizes;
    if (truth->complete) {
        return AG_OK;
    }
    ag_status status = agc_error_sizes_of(&sizes, &truth->truth);
    if (status != AG_OK) {
        return status;
    }
    status = run_reference(&truth->baseline, x, x->given.dtype, AG_ROUND_INTERMEDIATES, truth->threads);
    if (status == AG_OK) {
        truth->sizes = sizes;
        truth->complete = 1;
    }
    return status;
}

ag_status agc_error_truth_create(struct error_truth *truth, const struct arrays *x, int32_t threads)
{
    ag_status status = agc_error_truth_begin(truth, x, threads);
    if (status != AG_OK) {
        return status;
    }
    status = agc_error_truth_complete(truth, x);
    if (status != AG_OK) {
        agc_error_truth_destroy(truth);
    }
    return status;
}

void agc_error_truth_destroy(struct error_truth *truth)
{
    if (truth->complete) {
        agc_arrays_destroy(&truth->baseline);
    }
    agc_arrays_destroy(&truth->truth);
}

ag_status agc_error_entries(const struct error_truth *truth, const struct arrays *x,
                            struct error_entry *entries, int *count)
{
    ag_status status = AG_OK;
    *count = 0;
    for (enum tensor t = 0; t < T_COUNT && status == AG_OK; t++) {
        if (agc_tensor_info[t].role == ROLE_OUTPUT && x->data[t] != NULL) {
            entries[*count].t = t;
            status = fill_entry(&entries[*count], x, truth);
            *count += status == AG_OK;
        }
    }
    return status;
}

ag_status agc_error_rule(const struct arrays *x, int32_t threads, struct error_entry *entries, int *count)
{
    struct error_truth truth;
    ag_status status = agc_error_truth_create(&truth, x, threads);
    *count = 0;
    if (status == AG_OK) {
        status = agc_error_entries(&truth, x, entries, count);
        agc_error_truth_destroy(&truth);
    }
    return status;
}

int agc_error_entry_passed(const struct error_entry *e)
{
    return e->error <= e->limit;
}

ag_status agc_error_results(const struct error_truth *truth, const struct arrays *x, ag_check_report *results)
{
    struct error_entry entries[T_COUNT];
    int count;
    const ag_status status = agc_error_entries(truth, x, entries, &count);
    for (int n = 0; n < count; n++) {
        const struct error_entry *e = &entries[n];
        struct worst worst = {e->error, e->t, e->worst};
        agc_results_add_worst(results, x, &worst, e->limit, "rounding %s", agc_tensor_info[e->t].name);
    }
    return status;
}

ag_status agc_error_rule_results(const struct arrays *x, int32_t threads, ag_check_report *results)
{
    struct error_truth truth;
    ag_status status = agc_error_truth_create(&truth, x, threads);
    if (status == AG_OK) {
        status = agc_error_results(&truth, x, results);
        agc_error_truth_destroy(&truth);
    }
    return status;
}
