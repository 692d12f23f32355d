/* The low halves of 16-bit outputs, on every instruction set: o + o_low is the output with twice the digits, vjp and
 * vjp_jvp use both halves, and their gradients are closer to the truth for it. Zeros if there is nothing to add; the
 * same bits for every number of threads. */
#include "device.h"
#include "low_halves.h"

#include <math.h>

/* ---- What the halves are ------------------------------------------------------------------------ */

/* Against the same problem with outputs in float32. AMX does not run that one: there, a low half is at most half a unit
 * in the last place of its output, and not all of them are zero. */
static void compare_with_f32(const struct runner *r, const struct arrays *x, enum tensor t,
                             const struct arrays *wide, const char *text)
{
    double *sum = read_sum(x, t), *wanted = wide != NULL ? test_read(wide, t) : test_read(x, t);
    double *low = test_read(x, low_of(t));
    const double half_ulp = x->p->out_dtype == AG_F16 ? 0x1p-11 : 0x1p-8;
    int64_t zeros = 0, wrong = 0, used = 0;
    for (int64_t n = 0; n < x->count[t]; n++) {
        const double limit = wide != NULL ? allowed_error(x) : half_ulp;
        wrong += !(fabs(sum[n] - wanted[n]) <= limit * fabs(wanted[n]) + 0x1p-36);
        zeros += low[n] == 0 && wanted[n] != 0;
        used += wanted[n] != 0;
    }
    CHECK(wrong == 0, "%s '%s': %s: %lld elements are not the sum of their halves", r->environment, text,
          agc_tensor_info[t].name, (long long)wrong);
    CHECK(zeros < used / 16, "%s '%s': %s: %lld of %lld low halves are zero", r->environment, text,
          agc_tensor_info[t].name, (long long)zeros, (long long)used);
    free(sum);
    free(wanted);
    free(low);
}

static void halves_add_up(struct runner *r, struct arrays *x, const struct arrays *inputs, const char *text)
{
    struct arrays wide;
    ag_problem problem = inputs->given;
    const int amx = on_amx(x);
    problem.out_dtype = AG_F32;
    if (!amx && CHECK_OK(agc_arrays_like(&wide, inputs, &problem, &r->options))) {
        CHECK_OK(agc_arrays_run(&wide, AG_MAP_FORWARD));
        CHECK_OK(agc_arrays_run(x, AG_MAP_FORWARD));
        compare_with_f32(r, x, T_O, &wide, text);
        CHECK_OK(agc_arrays_run(&wide, AG_MAP_JVP));
        CHECK_OK(agc_arrays_run(x, AG_MAP_JVP));
        compare_with_f32(r, x, T_O, &wide, text);
        compare_with_f32(r, x, T_TO, &wide, text);
        agc_arrays_destroy(&wide);
    } else if (amx) {
        CHECK_OK(agc_arrays_run(x, AG_MAP_FORWARD));
        compare_with_f32(r, x, T_O, NULL, text);
        CHECK_OK(agc_arrays_run(x, AG_MAP_JVP));
        compare_with_f32(r, x, T_O, NULL, text);
        compare_with_f32(r, x, T_TO, NULL, text);
    }
}

/* Where an output is zero because its row sees no key or is padding, so is its low half. */
static void zeros_stay_zeros(const struct runner *r, const struct arrays *x, const char *text)
{
    double *lse = test_read(x, T_LSE), *o_low = test_read(x, T_O_LOW), *to_low = test_read(x, T_TO_LOW);
    const int64_t width = x->size[T_O][3];
    int64_t wrong = 0;
    for (int64_t n = 0; n < x->count[T_O]; n++) {
        wrong += lse[n / width] == -INFINITY && (o_low[n] != 0 || to_low[n] != 0);
    }
    CHECK(wrong == 0, "%s '%s': %lld low halves of rows without keys", r->environment, text,
          (long long)wrong);
    free(lse);
    free(o_low);
    free(to_low);
}

/* ---- Bits --------------------------------------------------------------------------------------- */

/* The other outputs are the same with low halves, and with low halves of zeros in vjp and vjp_jvp, as without. */
static void absent_is_zero(struct arrays *x, const char *text)
{
    const ag_args good = x->args;
    void *with[T_COUNT];
    CHECK_OK(agc_arrays_run_along_s(x));
    for (int map = 0; map < MAPS; map++) {
        CHECK_OK(agc_arrays_run(x, map_bit[map]));
        memset(x->data[T_O_LOW], 0, tensor_bytes(x, T_O_LOW));
        memset(x->data[T_TO_LOW], 0, tensor_bytes(x, T_TO_LOW));
    }
    keep_outputs(x, with);
    x->args.o_low.data = x->args.to_low.data = NULL;
    CHECK_OK(agc_arrays_run_all(x));
    for (enum tensor t = 0; t < T_COUNT; t++) {
        if (with[t] != NULL && agc_tensor_info[t].role == ROLE_OUTPUT) {
            same_tensor(x, t, x->data[t], with[t], text);
        }
    }
    free_outputs(with);
    x->args = good;
}

static void same_bits_for_threads(const struct runner *r, const struct arrays *inputs, struct arrays *one)
{
    struct arrays three;
    if (runner_arrays(r, inputs, 3, &three)) {
        CHECK_OK(agc_arrays_run_all(one));
        CHECK_OK(agc_arrays_run_all(&three));
        same_outputs(&three, one, ALL_MAPS, r->environment);
        agc_arrays_destroy(&three);
    }
}

/* ---- What vjp and vjp_jvp do with them ----------------------------------------------------------- */

/* Subtracts rowsum(dO o low) from dL: what low halves do to D. */
static void move_to_cotangent(struct arrays *x, enum tensor d_o, enum tensor low, enum tensor d_lse)
{
    double *dO = test_read(x, d_o), *half = test_read(x, low), *dL = test_read(x, d_lse);
    const int64_t width = x->size[d_o][3];
    for (int64_t n = 0; n < x->count[d_o]; n++) {
        dL[n / width] -= isnan(half[n]) ? 0 : dO[n] * half[n] / low_scale(x);
    }
    agc_arrays_write(x, d_lse, dL);
    free(dO);
    free(half);
    free(dL);
}

/* Low halves that are not small: the caller's, not ours. NaN in rows that see no key, where they must not be used. */
static void write_any_low(struct arrays *x, enum tensor t, double phase)
{
    double *low = test_read(x, t), *lse = test_read(x, T_LSE);
    for (int64_t n = 0; n < x->count[t]; n++) {
        const int sees_keys = lse[n / x->size[t][3]] > -INFINITY;
        low[n] = sees_keys ? low_scale(x) * sin((double)n + phase) : (double)NAN;
    }
    agc_arrays_write(x, t, low);
    free(low);
    free(lse);
}

/* D = rowsum(dO o (o + o_low)) - dL and tD = rowsum(tdO o (o + o_low) + dO o (to + to_low)) - tdL, so the gradients are
 * those of other cotangents of lse without low halves. */
static void low_halves_enter_deltas(const struct runner *r, struct arrays *x, const struct arrays *inputs,
                                    const char *text)
{
    static const enum tensor gradients[] = {T_DQ, T_DK, T_TDQ, T_TDK};
    struct arrays moved;
    const double limit = on_amx(x) ? 0x1p-7 : x->p->out_dtype == AG_F16 ? 0x1p-10 : 0x1p-7;
    if (!runner_arrays(r, inputs, 1, &moved)) {
        return;
    }
    CHECK_OK(agc_arrays_run_all(x));
    CHECK_OK(agc_arrays_run_all(&moved));
    write_any_low(x, T_O_LOW, 0);
    write_any_low(x, T_TO_LOW, 0.5);
    memcpy(moved.data[T_O_LOW], x->data[T_O_LOW], tensor_bytes(x, T_O_LOW));
    memcpy(moved.data[T_TO_LOW], x->data[T_TO_LOW], tensor_bytes(x, T_TO_LOW));
    move_to_cotangent(&moved, T_D_O, T_O_LOW, T_D_LSE);
    move_to_cotangent(&moved, T_D_O, T_TO_LOW, T_TD_LSE);
    move_to_cotangent(&moved, T_TD_O, T_O_LOW, T_TD_LSE);
    moved.args.o_low.data = moved.args.to_low.data = NULL;
    for (int map = 1; map < 4; map += 2) {
        CHECK_OK(agc_arrays_run(x, map_bit[map]));
        CHECK_OK(agc_arrays_run(&moved, map_bit[map]));
    }
    for (int n = 0; n < 4; n++) {
        const double error = relative_error(x, gradients[n], &moved);
        CHECK(error <= limit, "%s '%s': %s differs by %g from that of the moved cotangent", r->environment,
              text, agc_tensor_info[gradients[n]].name, error);
    }
    agc_arrays_destroy(&moved);
}

static void test_problem(int n, const char *dtype)
{
    struct arrays inputs;
    ag_check_case c;
    char text[256];
    make_case(&c, &inputs, n, dtype, text, sizeof text);
    for (struct runner *r = runners; r < runners + runner_count; r++) {
        struct arrays x;
        if (runner_arrays(r, &inputs, 1, &x)) {
            halves_add_up(r, &x, &inputs, text);
            zeros_stay_zeros(r, &x, text);
            absent_is_zero(&x, text);
            same_bits_for_threads(r, &inputs, &x);
            low_halves_enter_deltas(r, &x, &inputs, text);
            agc_arrays_destroy(&x);
            r->runs++;
        }
    }
    agc_arrays_destroy(&inputs);
}

/* ---- Why ---------------------------------------------------------------------------------------- */

/* The gradients with low halves must be clearly closer to the truth than without; on AMX, where rounded weights have
 * their own error, they have 0.7 of that without. */
static void compare_errors(struct runner *r, const struct arrays *inputs, const struct arrays *truth)
{
    static const enum tensor gradients[] = {T_DQ, T_DK, T_TDQ, T_TDK};
    struct arrays with, without;
    if (!runner_arrays(r, inputs, 1, &with)) {
        return;
    }
    if (runner_arrays(r, inputs, 1, &without)) {
        without.args.o_low.data = without.args.to_low.data = NULL;
        CHECK_OK(agc_arrays_run_all(&with));
        CHECK_OK(agc_arrays_run_all(&without));
        for (int n = 0; n < 4; n++) {
            const double error = relative_error(&with, gradients[n], truth),
                         before = relative_error(&without, gradients[n], truth);
            CHECK(error < 0.8 * before, "%s: %s: error %g with low halves, %g without", r->environment,
                  agc_tensor_info[gradients[n]].name, error, before);
        }
        agc_arrays_destroy(&without);
    }
    agc_arrays_destroy(&with);
}

/* Peaked rows and dO near O: the rounding errors of O, times dO, do not average out in D. With a tangent of V alone,
 * those of tO do not in tD either, and no error of tP hides them. */
static void gradients_are_closer(const char *text)
{
    struct arrays inputs, truth;
    ag_options reference = AG_OPTIONS_INIT;
    reference.backend = AG_BACKEND_REFERENCE;
    make_arrays(&inputs, text, &reference, 5);
    CHECK_OK(agc_arrays_add_low_halves(&inputs));
    scale_queries(&inputs, 6);
    write_zeros(&inputs, T_TQ);
    write_zeros(&inputs, T_TK);
    if (make_truth(&truth, &inputs, text)) {
        move_near_output(&inputs, &truth);
        agc_arrays_destroy(&truth);
    }
    if (make_truth(&truth, &inputs, text)) {
        for (struct runner *r = runners; r < runners + runner_count; r++) {
            compare_errors(r, &inputs, &truth);
        }
        agc_arrays_destroy(&truth);
    }
    agc_arrays_destroy(&inputs);
}

/* ---- Outputs that are not finite ---------------------------------------------------------------- */

/* Every `step`-th element of V is infinite, NaN, or so large that the output overflows in float16: then the low half
 * is 0, so that it cannot make a NaN of an infinity. */
static void not_finite(const struct runner *r, const char *text, double value, int64_t step)
{
    struct arrays x;
    ag_problem p = AG_PROBLEM_INIT;
    CHECK_OK(ag_problem_parse(text, &p));
    if (!CHECK_OK(agc_arrays_create(&x, &p, &r->options, 3)) || !CHECK_OK(agc_arrays_add_low_halves(&x))) {
        return;
    }
    double *v = test_read(&x, T_V);
    for (int64_t n = 0; n < x.count[T_V]; n++) {
        v[n] = n % step == 0 ? value : v[n];
    }
    agc_arrays_write(&x, T_V, v);
    CHECK_OK(agc_arrays_run(&x, AG_MAP_FORWARD));
    double *o = test_read(&x, T_O), *low = test_read(&x, T_O_LOW);
    int64_t seen = 0, wrong = 0;
    for (int64_t n = 0; n < x.count[T_O]; n++) {
        seen += !isfinite(o[n]);
        wrong += !isfinite(o[n]) ? low[n] != 0 : !isfinite(low[n]);
    }
    CHECK(seen > 0 && wrong == 0, "%s '%s' with %g: %lld outputs are not finite, %lld low halves are wrong",
          r->environment, text, value, (long long)seen, (long long)wrong);
    free(v);
    free(o);
    free(low);
    agc_arrays_destroy(&x);
}

static void outputs_that_are_not_finite(void)
{
    for (struct runner *r = runners; r < runners + runner_count; r++) {
        for (int d = 0; d < DTYPES; d++) {
            char text[64];
            snprintf(text, sizeof text, "h2 q40 k40 d32 %s", dtypes[d]);
            not_finite(r, text, (double)INFINITY, 5);
            not_finite(r, text, (double)NAN, 5);
        }
        not_finite(r, "h2 q40 k40 d32 dropout=0.5 f16", 65504, 1); /* kept weights are doubled */
    }
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
    gradients_are_closer("h2 q256 k256 d64 bf16");
    if (!test_is_slow()) {
        gradients_are_closer("h2 q256 k256 d64 f16");
    }
    outputs_that_are_not_finite();
    report_runners();
    return test_maps_summary();
}
