/* The low halves of 16-bit outputs in ag_merge and ag_trace, and the calls with low halves that are refused. */
#include "device.h"
#include "low_halves.h"

#include <math.h>

/* ---- Merging ------------------------------------------------------------------------------------ */

/* The call on keys first .. first + n - 1 of x, with outputs of its own. */
static ag_args part_args(struct arrays *x, struct arrays *part, int64_t first)
{
    static const enum tensor by_keys[] = {T_K, T_V, T_TK, T_TV}, by_queries[] = {T_Q, T_TQ};
    ag_args args = part->args;
    for (int n = 0; n < 4; n++) {
        ag_tensor *to = (ag_tensor *)(void *)((char *)&args + agc_tensor_info[by_keys[n]].offset);
        *to = *agc_arrays_tensor(x, by_keys[n]);
        to->data = (char *)to->data + first * to->strides[2] * (int64_t)element_size(x, by_keys[n]);
    }
    for (int n = 0; n < 2; n++) {
        *(ag_tensor *)(void *)((char *)&args + agc_tensor_info[by_queries[n]].offset) =
            *agc_arrays_tensor(x, by_queries[n]);
    }
    args.k_offset = first;
    return args;
}

static ag_merge_args merge_args(const struct arrays *a, const struct arrays *b, const struct arrays *to)
{
    return (ag_merge_args){.struct_size = sizeof(ag_merge_args),
                           .o1 = a->args.o,
                           .lse1 = a->args.lse,
                           .to1 = a->args.to,
                           .mu1 = a->args.mu,
                           .o2 = b->args.o,
                           .lse2 = b->args.lse,
                           .to2 = b->args.to,
                           .mu2 = b->args.mu,
                           .o = to->args.o,
                           .lse = to->args.lse,
                           .to = to->args.to,
                           .mu = to->args.mu,
                           .o_low1 = a->args.o_low,
                           .to_low1 = a->args.to_low,
                           .o_low2 = b->args.o_low,
                           .to_low2 = b->args.to_low,
                           .o_low = to->args.o_low,
                           .to_low = to->args.to_low};
}

/* The largest difference of the sums of halves, relative to the largest element. */
static double largest_difference(const struct arrays *x, enum tensor t, const double *wanted)
{
    double *got = read_sum(x, t), difference = 0, size = 0;
    for (int64_t n = 0; n < x->count[t]; n++) {
        difference = fmax(difference, fabs(got[n] - wanted[n]));
        size = fmax(size, fabs(wanted[n]));
    }
    free(got);
    return difference / size;
}

/* The parts' results by the formulas, from the sums of their halves. */
static void merge_by_formulas(const struct arrays *part, double *O, double *tO)
{
    double *o[2], *to[2], *lse[2], *mu[2];
    const int64_t width = part->size[T_O][3];
    for (int k = 0; k < 2; k++) {
        o[k] = read_sum(&part[k], T_O);
        to[k] = read_sum(&part[k], T_TO);
        lse[k] = test_read(&part[k], T_LSE);
        mu[k] = test_read(&part[k], T_MU);
    }
    for (int64_t n = 0; n < part->count[T_O]; n++) {
        const int64_t i = n / width;
        const double w1 = 1 / (1 + exp(lse[1][i] - lse[0][i])), w2 = 1 - w1;
        const double mean = (w1 == 0 ? 0 : w1 * mu[0][i]) + (w2 == 0 ? 0 : w2 * mu[1][i]);
        O[n] = w1 * o[0][n] + w2 * o[1][n];
        tO[n] = w1 * (to[0][n] + (mu[0][i] - mean) * o[0][n]) + w2 * (to[1][n] + (mu[1][i] - mean) * o[1][n]);
    }
    for (int k = 0; k < 2; k++) {
        free(o[k]);
        free(to[k]);
        free(lse[k]);
        free(mu[k]);
    }
}

static void check_merged(const struct runner *r, const struct arrays *part, struct arrays *merged,
                         const struct arrays *truth)
{
    double *O = test_alloc(merged->count[T_O], sizeof *O), *tO = test_alloc(merged->count[T_O], sizeof *tO);
    merge_by_formulas(part, O, tO);
    const double o_error = largest_difference(merged, T_O, O),
                 to_error = largest_difference(merged, T_TO, tO);
    CHECK(o_error <= allowed_error(merged) && to_error <= allowed_error(merged),
          "%s: merged halves differ from the formulas by %g and %g", r->environment, o_error, to_error);
    if (!on_amx(part) && !agc_on_device(part->plan)) { /* their parts have the errors of 16-bit weights */
        const double *o = agc_arrays_f64(truth, T_O), *to = agc_arrays_f64(truth, T_TO);
        CHECK(largest_difference(merged, T_O, o) <= 2 * allowed_error(merged) &&
                  largest_difference(merged, T_TO, to) <= 4 * allowed_error(merged),
              "%s: merged halves differ from the whole by %g and %g", r->environment,
              largest_difference(merged, T_O, o), largest_difference(merged, T_TO, to));
    }
    free(O);
    free(tO);
}

/* Two halves of the keys, merged with their low halves: into another array, and in place with the same bits. */
static void merge_two_parts(struct runner *r, const struct arrays *inputs, const struct arrays *truth)
{
    struct arrays x, part[2], merged;
    ag_problem problem = inputs->given;
    problem.kv_len /= 2;
    if (!runner_arrays(r, inputs, 1, &x)) {
        return;
    }
    for (int k = 0; k < 2; k++) {
        CHECK_OK(agc_arrays_like(&part[k], inputs, &problem, &r->options));
        const ag_args args = part_args(&x, &part[k], k * problem.kv_len);
        CHECK_OK(agc_run_map(part[k].plan, AG_MAP_JVP, &args, part[k].workspace, part[k].workspace_bytes));
    }
    CHECK_OK(agc_arrays_like(&merged, inputs, &problem, &r->options));
    ag_merge_args m = merge_args(&part[0], &part[1], &merged);
    CHECK_OK(agc_run_merge(merged.plan, &m));
    check_merged(r, part, &merged, truth);
    m = merge_args(&part[0], &part[1], &part[0]);
    CHECK_OK(agc_run_merge(merged.plan, &m));
    same_outputs(&part[0], &merged, AG_MAP_JVP, "merged in place");
    agc_arrays_destroy(&merged);
    agc_arrays_destroy(&part[1]);
    agc_arrays_destroy(&part[0]);
    agc_arrays_destroy(&x);
}

static void merging(const char *text)
{
    struct arrays inputs, truth;
    ag_options reference = AG_OPTIONS_INIT;
    reference.backend = AG_BACKEND_REFERENCE;
    make_arrays(&inputs, text, &reference, 8);
    CHECK_OK(agc_arrays_add_low_halves(&inputs));
    if (make_truth(&truth, &inputs, text)) {
        for (struct runner *r = runners; r < runners + runner_count; r++) {
            merge_two_parts(r, &inputs, &truth);
        }
        agc_arrays_destroy(&truth);
    }
    agc_arrays_destroy(&inputs);
}

/* ---- The trace ---------------------------------------------------------------------------------- */

/* The sum over the channels of row n of A times both halves of t. */
static double row_dot(const struct arrays *x, enum tensor a, enum tensor t, int64_t row)
{
    double *A = test_read(x, a), *sum = read_sum(x, t), dot = 0;
    const int64_t width = x->size[t][3];
    for (int64_t n = row * width; n < (row + 1) * width; n++) {
        dot += A[n] * sum[n];
    }
    free(A);
    free(sum);
    return dot;
}

static void trace_uses_both_halves(const char *text)
{
    enum { ROWS = 6, HEAD = 1 };
    struct arrays x;
    double D[ROWS], tD[ROWS];
    ag_options reference = AG_OPTIONS_INIT;
    reference.backend = AG_BACKEND_REFERENCE;
    make_arrays(&x, text, &reference, 4);
    CHECK_OK(agc_arrays_add_low_halves(&x));
    CHECK_OK(agc_arrays_run_all(&x));
    const ag_trace_args trace = {.struct_size = sizeof trace, .head = HEAD, .D = D, .tD = tD};
    CHECK_OK(ag_trace(x.plan, AG_MAP_VJP_JVP, &x.args, &trace, x.workspace, x.workspace_bytes));
    for (int i = 0; i < ROWS; i++) {
        const int64_t row = HEAD * ROWS + i;
        const double wanted = row_dot(&x, T_D_O, T_O, row) - agc_arrays_f64(&x, T_D_LSE)[row];
        const double tangent =
            row_dot(&x, T_D_O, T_TO, row) + row_dot(&x, T_TD_O, T_O, row) - agc_arrays_f64(&x, T_TD_LSE)[row];
        CHECK(fabs(D[i] - wanted) < 1e-13 && fabs(tD[i] - tangent) < 1e-13,
              "'%s': row %d: D is %.17g instead of %.17g, tD %.17g instead of %.17g", text, i, D[i], wanted,
              tD[i], tangent);
    }
    agc_arrays_destroy(&x);
}

/* ---- Refusals ----------------------------------------------------------------------------------- */

static void refuse(struct arrays *x, int map, const char *field)
{
    void *before[T_COUNT];
    for (enum tensor t = 0; t < T_COUNT; t++) {
        if (is_output(x, t, ALL_MAPS)) {
            memset(x->data[t], 0x3c, tensor_bytes(x, t));
        }
    }
    keep_outputs(x, before);
    CHECK_STATUS(call_map(map, x->plan, &x->args, NULL, x->workspace, x->workspace_bytes),
                 AG_INVALID_ARGUMENT);
    CHECK(strcmp(ag_last_field(), field) == 0, "%s: the field is '%s' instead of '%s': %s", map_name[map],
          ag_last_field(), field, ag_last_message());
    for (enum tensor t = 0; t < T_COUNT; t++) {
        if (before[t] != NULL) {
            same_tensor(x, t, x->data[t], before[t], "after a refusal");
        }
    }
    free_outputs(before);
}

/* Outputs that are wider than 16 bits have no low half. */
static void wide_outputs(const char *text)
{
    struct arrays x;
    make_arrays(&x, text, NULL, 2);
    const ag_args good = x.args;
    for (int map = 0; map < MAPS; map++) {
        x.args.o_low = x.args.d_o;
        refuse(&x, map, "o_low");
        x.args = good;
        x.args.to_low = x.args.d_o;
        if (map == 2 || map == 3) {
            refuse(&x, map, "to_low");
        } else {
            CHECK_OK(call_map(map, x.plan, &x.args, NULL, x.workspace, x.workspace_bytes)); /* not its own */
        }
        x.args = good;
    }
    ag_merge_args m = merge_args(&x, &x, &x);
    m.o_low2 = x.args.d_o;
    CHECK_STATUS(ag_merge(x.plan, &m, NULL), AG_INVALID_ARGUMENT);
    CHECK(strcmp(ag_last_field(), "o_low2") == 0, "merge: the field is '%s'", ag_last_field());
    agc_arrays_destroy(&x);
}

/* A low half is of one result, not of a sum in memory. Of an input it does not matter what accumulates. */
static void accumulated_outputs(const char *text)
{
    struct arrays x;
    make_arrays(&x, text, NULL, 2);
    CHECK_OK(agc_arrays_add_low_halves(&x));
    CHECK_OK(agc_arrays_run_all(&x));
    x.args.accumulate = AG_ACC_O;
    refuse(&x, 0, "o_low");
    refuse(&x, 2, "o_low");
    CHECK_OK(agc_arrays_run(&x, AG_MAP_VJP));
    x.args.accumulate = AG_ACC_TO;
    CHECK_OK(agc_arrays_run(&x, AG_MAP_FORWARD));
    refuse(&x, 2, "to_low");
    CHECK_OK(agc_arrays_run(&x, AG_MAP_VJP_JVP));
    x.args.to_low.data = NULL;
    CHECK_OK(agc_arrays_run(&x, AG_MAP_JVP));
    agc_arrays_destroy(&x);
}

/* A low half of a tangent without the tangents; a low half where another tensor is. */
static void wrong_merges(const char *text)
{
    struct arrays x, y;
    make_arrays(&x, text, NULL, 2);
    make_arrays(&y, text, NULL, 3);
    CHECK_OK(agc_arrays_add_low_halves(&x));
    CHECK_OK(agc_arrays_add_low_halves(&y));
    CHECK_OK(agc_arrays_run_all(&x));
    CHECK_OK(agc_arrays_run_all(&y));
    const ag_merge_args good = merge_args(&x, &y, &x);
    ag_merge_args m = good;
    m.to1.data = m.mu1.data = m.to2.data = m.mu2.data = m.to.data = m.mu.data = NULL;
    CHECK_STATUS(ag_merge(x.plan, &m, NULL), AG_INVALID_ARGUMENT);
    CHECK(strcmp(ag_last_field(), "to1") == 0, "merge: the field is '%s'", ag_last_field());
    m = good;
    m.o_low.data = m.o_low2.data;
    CHECK_STATUS(ag_merge(x.plan, &m, NULL), AG_INVALID_ARGUMENT);
    CHECK(strcmp(ag_last_field(), "o_low") == 0, "merge: the field is '%s'", ag_last_field());
    CHECK_OK(agc_run_merge(x.plan, &good));
    agc_arrays_destroy(&y);
    agc_arrays_destroy(&x);
}

int main(void)
{
    find_runners(1);
    for (int d = 0; d < DTYPES; d++) {
        char text[64];
        snprintf(text, sizeof text, "b2 h2 kv1 q40 k64 d32 causal %s", dtypes[d]);
        merging(text);
        snprintf(text, sizeof text, "h2 q6 k9 d5 sink %s", dtypes[d]);
        trace_uses_both_halves(text);
        accumulated_outputs(text);
        wrong_merges(text);
        snprintf(text, sizeof text, "h2 q6 k9 d5 %s out=f32", dtypes[d]);
        wide_outputs(text);
    }
    wide_outputs("h2 q6 k9 d5 f32");
    wide_outputs("h2 q6 k9 d5 f64");
    return test_maps_summary();
}
