/* Shared by the tests of 16-bit outputs and their low halves. */
#ifndef AG_TEST_LOW_HALVES_H
#define AG_TEST_LOW_HALVES_H

#include "every_isa.h"
#include "outputs.h"

#include <math.h>

enum { DTYPES = 2 };
static const char *const dtypes[DTYPES] = {"bf16", "f16"};

/* Every kind of work: tiles with remainders, groups of heads, packed and padded rows, rows without keys, split keys. */
static const struct {
    const char *text;
    int lengths, many_keys;
} problems[] = {
    {"h2 q70 k90 d64", 0, 0},
    {"b2 h4 kv2 q40 k60 d40 dv24 causal sink", 0, 0},
    {"b3 h2 q33 k47 d32 packed=80,110 dropout=0.2", 0, 0},
    {"b2 h2 q50 k70 d32 mask=b1qk softcap=3", 1, 0},
    {"b2 h3 kv1 q64 k40 d48 dv33 window=20,3 bias=1hqk alibi align=bottom-right", 1, 0},
    {"h1 q3 k3000 d32 sink", 0, 1},
    {"h1 q70 k3000 d32 causal align=bottom-right", 0, 1},
    {"h2 q5 k7 d8 table=3", 0, 0},
};
enum { PROBLEMS = sizeof problems / sizeof problems[0] };

/* If AG_TEST_COUNT is set, a problem of many keys, which is slow, is run in one of the dtypes only. */
static inline int is_wanted(int n, int dtype)
{
    if (!problems[n].many_keys || test_count(1000) == 1000 || n % DTYPES == dtype) {
        return 1;
    }
    printf("'%s' in %s: not run, AG_TEST_COUNT asks for little\n", problems[n].text, dtypes[dtype]);
    return 0;
}

/* Problem n in one of the dtypes: its case with low halves, its inputs, and its text. */
static inline void make_case(ag_check_case *c, struct arrays *inputs, int n, const char *dtype, char *text,
                             size_t size)
{
    ag_options reference = AG_OPTIONS_INIT;
    reference.backend = AG_BACKEND_REFERENCE; /* which takes every problem; it is not run */
    *c = (ag_check_case){.problem = AG_PROBLEM_INIT, .seed = 21 + (uint64_t)n, .low_halves = 1};
    c->lengths = problems[n].lengths;
    snprintf(text, size, "%s %s", problems[n].text, dtype);
    CHECK_OK(ag_problem_parse(text, &c->problem));
    test_need(agc_arrays_of_case(inputs, c, &reference) == AG_OK, "no arrays for a problem");
}

/* What o_low is divided by before it is added to o. */
static inline double low_scale(const struct arrays *x)
{
    return x->p->out_dtype == AG_F16 ? 0x1p11 : 1;
}

/* The relative error of the sum of both halves: each has 8 significant bits in bfloat16, 11 in float16. */
static inline double allowed_error(const struct arrays *x)
{
    return x->p->out_dtype == AG_F16 ? 0x1p-21 : 0x1p-16;
}

static inline int on_amx(const struct arrays *x)
{
    ag_plan_info info = {.struct_size = sizeof info};
    CHECK_OK(ag_plan_info_get(x->plan, &info));
    return info.isa == AG_ISA_AMX;
}

static inline enum tensor low_of(enum tensor t)
{
    return t == T_O ? T_O_LOW : T_TO_LOW;
}

/* Both halves of o or to, to be freed. */
static inline double *read_sum(const struct arrays *x, enum tensor t)
{
    double *sum = test_read(x, t), *low = test_read(x, low_of(t));
    for (int64_t n = 0; n < x->count[t]; n++) {
        sum[n] += low[n] / low_scale(x);
    }
    free(low);
    return sum;
}

/* |got - wanted| / |wanted| in Frobenius norms. */
static inline double relative_difference(const double *got, const double *wanted, int64_t count)
{
    double error = 0, size = 0;
    for (int64_t n = 0; n < count; n++) {
        error += (got[n] - wanted[n]) * (got[n] - wanted[n]);
        size += wanted[n] * wanted[n];
    }
    return sqrt(error / size);
}

/* The same of one output. */
static inline double relative_error(const struct arrays *x, enum tensor t, const struct arrays *truth)
{
    double *got = test_read(x, t), *wanted = test_read(truth, t);
    const double error = relative_difference(got, wanted, x->count[t]);
    free(got);
    free(wanted);
    return error;
}

/* Runs the maps in float64 on x's inputs. */
static inline int make_truth(struct arrays *truth, const struct arrays *inputs, const char *label)
{
    ag_options reference = AG_OPTIONS_INIT;
    reference.backend = AG_BACKEND_REFERENCE;
    return CHECK(agc_arrays_clone_as(truth, inputs, AG_F64, &reference) == AG_OK &&
                     agc_arrays_run_all(truth) == AG_OK,
                 "%s: no truth", label);
}

/* Makes the weights of a row more peaked (factor > 1) or more equal. */
static inline void scale_queries(struct arrays *x, double factor)
{
    double *q = test_read(x, T_Q);
    for (int64_t n = 0; n < x->count[T_Q]; n++) {
        q[n] *= factor;
    }
    agc_arrays_write(x, T_Q, q);
    free(q);
}

static inline void write_zeros(struct arrays *x, enum tensor t)
{
    double *values = test_read(x, t);
    memset(values, 0, (size_t)x->count[t] * sizeof *values);
    agc_arrays_write(x, t, values);
    free(values);
}

/* dO = O plus 5 percent noise. */
static inline void move_near_output(struct arrays *x, const struct arrays *truth)
{
    double *dO = test_read(x, T_D_O), *O = test_read(truth, T_O), squares = 0;
    for (int64_t n = 0; n < x->count[T_O]; n++) {
        squares += O[n] * O[n];
    }
    const double noise = 0.05 * sqrt(squares / (double)x->count[T_O]);
    for (int64_t n = 0; n < x->count[T_O]; n++) {
        dO[n] = O[n] + noise * dO[n];
    }
    agc_arrays_write(x, T_D_O, dO);
    free(dO);
    free(O);
}

#endif
