/* The layer's jvp_jvp: in each dtype against the same layer in float64 on the reference backend, at the same rounded
 * inputs; with and without the low half of C; directions of which a part is absent; one direction twice. That the layer
 * in float64 is right is shown by the finite differences of nn_layer.c. */
#include "nn.h"

typedef struct {
    const char *dtype, *rest;
    uint32_t flags;
    double limit; /* of |error| / |truth|, in Frobenius norms */
} second_case;

static const char small[] = "b3 h4 kv2 q6 k9 d5 dv3 causal sink", large[] = "b2 h4 q70 d32 softcap=4";

static const second_case cases[] = {
    {"f64", small, AG_LAYER_BIASES, 1e-14},      {"f64", large, AG_LAYER_SELF, 1e-14},
    {"f32", small, AG_LAYER_BIASES, 2e-6},       {"f32", large, AG_LAYER_SELF, 2e-6},
    {"f16", small, AG_LAYER_BIASES, 4e-3},       {"f16", large, AG_LAYER_SELF, 4e-3},
    {"bf16", small, AG_LAYER_BIASES, 3e-2},      {"bf16", large, AG_LAYER_SELF, 3e-2},
    {"f16 out=f32", large, AG_LAYER_SELF, 2e-3}, {"bf16 out=f32", large, AG_LAYER_SELF, 2e-2},
};

enum { N_CASES = sizeof cases / sizeof cases[0], TEXT_SIZE = 128, SEED = 51, WIDTH = 24 };

/* ---- Against float64 ---- */

static void copy_inputs(nn_model *to, const nn_model *from)
{
    const int kinds[] = {VALUE, T, S};
    for (int n = 0; n < 3; n++) {
        for (int array = 0; array < N_VARS; array++) {
            for (int64_t i = 0; i < to->count[array]; i++) {
                nn_set(to, kinds[n], array, i, nn_get(from, kinds[n], array, i));
            }
        }
    }
}

static double distance(const nn_model *a, const nn_model *b)
{
    double error2 = 0; /* squared norm */
    for (int64_t i = 0; i < a->count[Y]; i++) {
        const double e = nn_get(a, ST, Y, i) - nn_get(b, ST, Y, i);
        error2 += e * e;
    }
    return sqrt(error2 / nn_dot(b, ST, ST, Y));
}

/* Runs the case and returns the error of its sty; v_mean is added to x_v. */
static double error_on(const second_case *c, ag_backend backend, double v_mean)
{
    char text[TEXT_SIZE], wide[TEXT_SIZE];
    const nn_config config = {text, c->flags, WIDTH, 0, 0, 0, 0};
    const nn_config wide_config = {wide, c->flags, WIDTH, 0, 0, 0, 0};
    nn_model m, truth;
    snprintf(text, sizeof text, "%s %s", c->dtype, c->rest);
    snprintf(wide, sizeof wide, "f64 %s", c->rest);
    nn_make_on(&m, &config, backend, 2, SEED);
    nn_make_on(&truth, &wide_config, AG_BACKEND_REFERENCE, 1, SEED);
    for (int64_t i = 0; i < m.count[X_V]; i++) {
        nn_set(&m, VALUE, X_V, i, nn_get(&m, VALUE, X_V, i) + v_mean);
    }
    copy_inputs(&truth, &m);
    nn_run_all(&m);
    nn_run_all(&truth);
    const double error = distance(&m, &truth);
    nn_free(&m);
    nn_free(&truth);
    return error;
}

static void check_dtype(const second_case *c)
{
    const double error = error_on(c, AG_BACKEND_AUTO, 0);
    CHECK(error <= c->limit, "%s %s: sty is off by %.3g of its norm", c->dtype, c->rest, error);
}

/* jvp_jvp subtracts nu C, so that the rounding error of a large C counts. On the reference, whose sums are exact to
 * float64. */
static void check_low_half(const char *dtype)
{
    const second_case low = {dtype, "b2 h2 q64 d32", 0, 0};
    const second_case without = {dtype, "b2 h2 q64 d32", AG_LAYER_NO_LOW, 0};
    const double with_low = error_on(&low, AG_BACKEND_REFERENCE, 20);
    const double without_low = error_on(&without, AG_BACKEND_REFERENCE, 20);
    CHECK(with_low <= 0.9 * without_low, "%s: error of sty %.3g with the low half of C, %.3g without", dtype,
          with_low, without_low);
}

/* ---- Parts of a direction ---- */

enum { X = 1, WEIGHTS = 2, FEATURES = 4, X_Q_ONLY = 8 }; /* what a direction has */

static const int parts[][2] = {
    {X, X},
    {X, WEIGHTS},
    {WEIGHTS, X},
    {WEIGHTS, WEIGHTS},
    {X_Q_ONLY, WEIGHTS},
    {FEATURES, X},
    {FEATURES, WEIGHTS},
    {X_Q_ONLY, X},
    {X | WEIGHTS, X},
    {X, X | FEATURES},
    {WEIGHTS, X_Q_ONLY},
};

enum { N_PARTS = sizeof parts / sizeof parts[0] };

static int has(int part, int array)
{
    return array == PARAMS ? (part & WEIGHTS) != 0
           : array == X_Q  ? (part & (X | X_Q_ONLY)) != 0
           : array >= BIAS ? (part & FEATURES) != 0
                           : (part & X) != 0;
}

/* Sets to zero what the direction lacks. */
static void clear(nn_model *m, int kind, int part)
{
    for (int array = 0; array < N_VARS; array++) {
        for (int64_t i = 0; i < m->count[array] && !has(part, array); i++) {
            nn_set(m, kind, array, i, 0);
        }
    }
}

/* Makes absent what the direction lacks. */
static void leave_out(nn_model *m, int kind, int part)
{
    ag_layer_args *a = &m->a;
    const void **const t[] = {&a->tx_q, &a->tx_k, &a->tx_v, &a->t_params}; /* in the order of X_Q to PARAMS */
    const void **const s[] = {&a->sx_q, &a->sx_k, &a->sx_v, &a->s_params};
    for (int array = X_Q; array <= PARAMS; array++) {
        const void **const pointer = kind == T ? t[array] : s[array];
        *pointer = has(part, array) ? *pointer : NULL;
    }
    ag_tensor *const sink = kind == T ? &m->attention.tsink : &m->attention.ssink;
    sink->data = has(part, SINK) ? sink->data : NULL;
}

/* Absent tangents count as zero: the results are those of arrays of zeros, up to rounding. */
static void check_parts(uint32_t flags, int t, int s)
{
    const nn_config config = {"f64 b3 h4 kv2 q9 d5 dv3 causal sink", flags, WIDTH, 0, 0, 0, 0};
    nn_model zeros, absent;
    nn_make(&zeros, &config, 2, SEED);
    nn_make(&absent, &config, 2, SEED);
    clear(&zeros, T, t);
    clear(&zeros, S, s);
    leave_out(&absent, T, t);
    leave_out(&absent, S, s);
    nn_run_all(&zeros);
    nn_run_all(&absent);
    CHECK(nn_dot(&zeros, ST, ST, Y) > 0, "flags %u, parts %d and %d: sty is zero", (unsigned)flags, t, s);
    CHECK(distance(&absent, &zeros) <= 1e-14, "flags %u, parts %d and %d: absent tangents change sty by %.3g",
          (unsigned)flags, t, s, distance(&absent, &zeros));
    nn_free(&zeros);
    nn_free(&absent);
}

/* ---- One direction twice ---- */

/* t_saved serves as s_saved, and the arrays of t as those of s. */
static void check_twice(void)
{
    const nn_config config = {
        "f64 b2 h4 q30 d16 causal sink", AG_LAYER_SELF | AG_LAYER_BIASES, WIDTH, 0, 0, 0, 0};
    nn_model once, twice;
    nn_make(&once, &config, 2, SEED);
    nn_make(&twice, &config, 2, SEED);
    for (int array = 0; array < N_VARS; array++) {
        for (int64_t i = 0; i < twice.count[array]; i++) {
            nn_set(&twice, S, array, i, nn_get(&twice, T, array, i));
        }
    }
    once.a.sx_q = once.a.tx_q, once.a.s_params = once.a.t_params, once.a.s_saved = once.a.t_saved;
    once.attention.ssink = once.attention.tsink;
    CHECK_OK(nn_run(&once, AG_MAP_JVP));
    CHECK_OK(nn_run(&once, AG_MAP_JVP_JVP));
    nn_run_all(&twice);
    CHECK(distance(&once, &twice) <= 1e-14, "one direction twice: sty differs by %.3g",
          distance(&once, &twice));
    nn_free(&once);
    nn_free(&twice);
}

int main(void)
{
    const uint32_t flags[] = {AG_LAYER_BIASES, AG_LAYER_SELF | AG_LAYER_BIASES, AG_LAYER_SHARED_KV};
    for (int n = 0; n < N_CASES; n++) {
        check_dtype(&cases[n]);
    }
    check_low_half("f16");
    check_low_half("bf16");
    for (int n = 0; n < N_PARTS; n++) {
        for (int f = 0; f < 3; f++) {
            check_parts(flags[f], parts[n][0], parts[n][1]);
        }
    }
    check_twice();
    return test_summary();
}
