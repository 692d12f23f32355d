/* The layer's derivatives in float64, through every attention feature: gradients, jvp, vjp_jvp and jvp_jvp against
 * finite differences along random directions, each variable by itself and all at once; the adjoint
 * identity; the symmetry of second derivatives, and that vjp_jvp and jvp_jvp are derivatives of one function. */
#include "check/stencil.h"
#include "nn.h"

static const nn_config configs[] = {
    {"f64 b2 h2 q5 d4", AG_LAYER_SELF, 8, 0, 0, 0, 0},
    {"f64 b2 h2 q5 d4 causal", AG_LAYER_SELF | AG_LAYER_BIASES, 8, 0, 0, 0, 0},
    {"f64 b2 h4 kv2 q4 k6 d3 dv5", AG_LAYER_BIASES, 7, 6, 5, 9, 0},
    {"f64 b2 h4 kv1 q4 k6 d3 dv5", AG_LAYER_SHARED_KV | AG_LAYER_BIAS_Q | AG_LAYER_BIAS_O, 7, 6, 5, 0, 0},
    {"f64 b3 h2 q5 k7 d4 align=bottom-right causal", AG_LAYER_BIASES, 6, 0, 0, 0, 1},
    {"f64 b2 h2 q5 d4 bias=1hqk mask sink softcap=3", AG_LAYER_SELF | AG_LAYER_BIASES, 6, 0, 0, 0, 0},
    {"f64 b2 h2 q5 d4 table=3 alibi window=2,1", AG_LAYER_SELF | AG_LAYER_BIASES, 6, 0, 0, 0, 0},
    {"f64 b2 h2 q6 d4 dropout=0.3 sink table=2,shared scale=0.7", AG_LAYER_SELF | AG_LAYER_BIASES, 6, 0, 0, 0,
     1},
    {"f64 b3 h2 q5 k6 d4 packed=20,22 causal bias=b1qk", AG_LAYER_BIAS_V | AG_LAYER_BIAS_O, 6, 5, 4, 3, 0},
    {"f64 b3 h2 q5 d4 packed=17,17 causal", AG_LAYER_SELF | AG_LAYER_BIASES, 6, 0, 0, 0, 0},
    {"f64 b1 h1 q1 d1", 0, 1, 0, 0, 0, 0},
    {"f64 b9 h3 q30 d23 causal", AG_LAYER_SELF | AG_LAYER_BIASES, 133, 0, 0, 0,
     0}, /* several tiles of each product */
};

enum { N_CONFIGS = sizeof configs / sizeof configs[0] };

static const double STEP = 4e-4;

/* Differences: truncation near STEP^4 / 16 = 2e-15 times a fifth derivative, rounding near
 * 2^-52 / STEP = 6e-13, relative to the norms of gradient and direction. */
static const double DIFFERENCE_LIMIT = 1e-10;
static const double IDENTITY_LIMIT = 1e-12;

/* ---- Moving along the tangents ---- */

/* along: T or S; only: one variable, or N_VARS for all. */
static void move(nn_model *m, double *const base[], int along, int only, double length)
{
    for (int v = 0; v < N_VARS; v++) {
        for (int64_t i = 0; i < m->count[v]; i++) {
            const double t = only == N_VARS || only == v ? nn_get(m, along, v, i) : 0;
            nn_set(m, VALUE, v, i, base[v][i] + length * t);
        }
    }
}

static void keep(const nn_model *m, int kind, double *to[], int first, int end)
{
    for (int v = first; v < end; v++) {
        to[v] = nn_alloc((size_t)m->count[v] * sizeof(double));
        for (int64_t i = 0; i < m->count[v]; i++) {
            to[v][i] = nn_get(m, kind, v, i);
        }
    }
}

static void release(double *arrays[], int n)
{
    for (int v = 0; v < n; v++) {
        free(arrays[v]);
    }
}

/* The derivative of <dY, Y> along one variable's tangent, or all. */
static double loss_difference(nn_model *m, double *const base[], int only)
{
    double sum = 0;
    for (int p = 0; p < STENCIL_POINTS; p++) {
        move(m, base, T, only, agc_stencil[p].at * STEP);
        CHECK_OK(nn_run(m, AG_MAP_FORWARD));
        sum += agc_stencil[p].weight / STEP * nn_dot(m, D, VALUE, Y);
    }
    move(m, base, T, only, 0);
    return sum;
}

/* ---- First order ---- */

static double scale_of(const nn_model *m, int kind, int v)
{
    return sqrt(nn_dot(m, kind, kind, v)) + 1;
}

static void check_gradients(nn_model *m, double *const base[], const char *text)
{
    CHECK_OK(nn_run(m, AG_MAP_FORWARD));
    CHECK_OK(nn_run(m, AG_MAP_VJP));
    for (int v = 0; v < N_VARS; v++) {
        if (m->count[v] > 0) {
            const double got = nn_dot(m, D, T, v), difference = loss_difference(m, base, v);
            CHECK(fabs(got - difference) <= DIFFERENCE_LIMIT * scale_of(m, D, v) * scale_of(m, T, v),
                  "%s: d%s: %.12g, differences %.12g", text, nn_names[v], got, difference);
        }
    }
}

/* A few elements of each parameter, along unit directions. For small layers only. */
static void check_entries(nn_model *m, double *const base[], const char *text)
{
    for (int64_t param = 0; param < ag_layer_param_count(m->layer); param++) {
        ag_param_view view = AG_PARAM_VIEW_INIT;
        CHECK_OK(ag_layer_param(m->layer, param, &view));
        for (int64_t i = view.offset; i < view.offset + view.count; i += 1 + view.count / 5) {
            double difference = 0;
            for (int p = 0; p < STENCIL_POINTS; p++) {
                nn_set(m, VALUE, PARAMS, i, base[PARAMS][i] + agc_stencil[p].at * STEP);
                CHECK_OK(nn_run(m, AG_MAP_FORWARD));
                difference += agc_stencil[p].weight / STEP * nn_dot(m, D, VALUE, Y);
            }
            nn_set(m, VALUE, PARAMS, i, base[PARAMS][i]);
            const double got = nn_get(m, D, PARAMS, i);
            CHECK(fabs(got - difference) <= DIFFERENCE_LIMIT * scale_of(m, D, PARAMS),
                  "%s: d%s[%lld]: %.12g, differences %.12g", text, view.name, (long long)(i - view.offset),
                  got, difference);
        }
    }
}

static void check_jvp(nn_model *m, double *const base[], const char *text)
{
    double adjoint = 0, bound = 0, max_error = 0;
    double *values[N_ARRAYS] = {NULL};
    CHECK_OK(nn_run(m, AG_MAP_FORWARD));
    CHECK_OK(nn_run(m, AG_MAP_VJP));
    keep(m, VALUE, values, Y, Y + 1);
    CHECK_OK(nn_run(m, AG_MAP_JVP));
    for (int64_t i = 0; i < m->count[Y]; i++) {
        max_error = fmax(max_error, fabs(nn_get(m, VALUE, Y, i) - values[Y][i]));
    }
    CHECK(max_error <= 1e-13 * scale_of(m, VALUE, Y), "%s: y of jvp and of forward differ by %.3g", text,
          max_error);
    const double got = nn_dot(m, D, T, Y), difference = loss_difference(m, base, N_VARS);
    CHECK(fabs(got - difference) <= DIFFERENCE_LIMIT * scale_of(m, D, Y) * scale_of(m, T, Y),
          "%s: <dy, ty>: %.12g, differences %.12g", text, got, difference);
    for (int v = 0; v < N_VARS; v++) {
        adjoint += nn_dot(m, D, T, v);
        bound += scale_of(m, D, v) * scale_of(m, T, v);
    }
    CHECK(fabs(got - adjoint) <= IDENTITY_LIMIT * bound, "%s: adjoint: %.16g and %.16g", text, got, adjoint);
    release(values, N_ARRAYS);
}

/* ---- Second order ---- */

/* The gradients at a point moved by `length` along the tangents; dY moves along tdY. */
static void gradients_at(nn_model *m, double *const base[], const double *dy, double length)
{
    move(m, base, T, N_VARS, length);
    for (int64_t i = 0; i < m->count[Y]; i++) {
        nn_set(m, D, Y, i, dy[i] + length * nn_get(m, TD, Y, i));
    }
    CHECK_OK(nn_run(m, AG_MAP_FORWARD));
    CHECK_OK(nn_run(m, AG_MAP_VJP));
}

static void check_second(nn_model *m, double *const base[], const char *text)
{
    double *error[N_VARS], *dy[N_ARRAYS] = {NULL};
    keep(m, D, dy, Y, Y + 1);
    nn_run_all(m);
    keep(m, TD, error, 0, N_VARS); /* becomes the error: td minus its finite difference */
    for (int p = 0; p < STENCIL_POINTS; p++) {
        gradients_at(m, base, dy[Y], agc_stencil[p].at * STEP);
        for (int v = 0; v < N_VARS; v++) {
            for (int64_t i = 0; i < m->count[v]; i++) {
                error[v][i] -= agc_stencil[p].weight / STEP * nn_get(m, D, v, i);
            }
        }
    }
    gradients_at(m, base, dy[Y], 0);
    for (int v = 0; v < N_VARS; v++) {
        double max_error = 0;
        for (int64_t i = 0; i < m->count[v]; i++) {
            max_error = fabs(error[v][i]) > max_error ? fabs(error[v][i]) : max_error;
        }
        CHECK(max_error <= DIFFERENCE_LIMIT * scale_of(m, TD, v) * 10, "%s: td%s is off by %.3g of %.3g",
              text, nn_names[v], max_error, scale_of(m, TD, v));
    }
    release(error, N_VARS);
    release(dy, N_ARRAYS);
}

/* H t for the tangents t now in m, with tdY = 0. */
static void hessian_times(nn_model *m, double *result[])
{
    m->a.tdy = NULL;
    nn_run_all(m);
    m->a.tdy = m->at[TD][Y];
    keep(m, TD, result, 0, N_VARS);
}

static void check_symmetry(nn_model *m, const char *text)
{
    double *Ht[N_VARS], *Hu[N_VARS], *t[N_VARS];
    double uHt = 0, tHu = 0, bound = 0;
    struct rng r;
    agc_rng_init(&r, 5, 1);
    keep(m, T, t, 0, N_VARS);
    hessian_times(m, Ht);
    for (int v = 0; v < N_VARS; v++) {
        nn_fill(m, T, v, &r, 1);
    }
    hessian_times(m, Hu);
    for (int v = 0; v < N_VARS; v++) {
        for (int64_t i = 0; i < m->count[v]; i++) {
            uHt += nn_get(m, T, v, i) * Ht[v][i];
            tHu += t[v][i] * Hu[v][i];
            bound += fabs(t[v][i] * Hu[v][i]);
            nn_set(m, T, v, i, t[v][i]);
        }
    }
    CHECK(fabs(uHt - tHu) <= IDENTITY_LIMIT * bound, "%s: <u, H t> = %.16g, <t, H u> = %.16g", text, uHt,
          tHu);
    release(Ht, N_VARS);
    release(Hu, N_VARS);
    release(t, N_VARS);
}

/* ---- Forward over forward ---- */

/* sty against differences of ty along s. */
static void check_jvp_jvp(nn_model *m, double *const base[], const char *text)
{
    double *error[N_ARRAYS] = {NULL}, max_error = 0; /* error: sty minus its finite difference */
    nn_run_all(m);
    keep(m, ST, error, Y, Y + 1);
    for (int p = 0; p < STENCIL_POINTS; p++) {
        move(m, base, S, N_VARS, agc_stencil[p].at * STEP);
        CHECK_OK(nn_run(m, AG_MAP_JVP));
        for (int64_t i = 0; i < m->count[Y]; i++) {
            error[Y][i] -= agc_stencil[p].weight / STEP * nn_get(m, T, Y, i);
        }
    }
    move(m, base, S, N_VARS, 0);
    for (int64_t i = 0; i < m->count[Y]; i++) {
        max_error = fmax(max_error, fabs(error[Y][i]));
    }
    CHECK(max_error <= DIFFERENCE_LIMIT * scale_of(m, ST, Y) * 10, "%s: sty is off by %.3g of %.3g", text,
          max_error, scale_of(m, ST, Y));
    release(error, N_ARRAYS);
}

/* <dY, sty> = <s, the derivative of the gradients along t>, with tdY = 0. */
static void check_jvp_jvp_by_vjp_jvp(nn_model *m, const char *text)
{
    double *Ht[N_VARS], sum = 0, bound = 0;
    hessian_times(m, Ht);
    for (int v = 0; v < N_VARS; v++) {
        for (int64_t i = 0; i < m->count[v]; i++) {
            sum += nn_get(m, S, v, i) * Ht[v][i];
            bound += fabs(nn_get(m, S, v, i) * Ht[v][i]);
        }
    }
    const double got = nn_dot(m, D, ST, Y);
    CHECK(fabs(got - sum) <= IDENTITY_LIMIT * (bound + 1), "%s: <dy, sty> = %.16g, <s, H t> = %.16g", text,
          got, sum);
    release(Ht, N_VARS);
}

/* NULL tangents are zero tangents. */
static void check_absent_tangents(nn_model *m, const char *text)
{
    const ag_layer_args with_tangents = m->a;
    const ag_args attention = m->attention;
    m->a.tx_q = m->a.tx_k = m->a.tx_v = m->a.t_params = m->a.tdy = NULL;
    m->attention.tbias.data = m->attention.ttable.data = m->attention.tsink.data = NULL;
    nn_run_all(m);
    for (int v = 0; v < N_VARS; v++) {
        CHECK(nn_dot(m, TD, TD, v) == 0, "%s: td%s is not zero along no direction", text, nn_names[v]);
    }
    CHECK(nn_dot(m, T, T, Y) == 0, "%s: ty is not zero along no direction", text);
    CHECK(nn_dot(m, ST, ST, Y) == 0, "%s: sty is not zero along no first direction", text);
    m->a = with_tangents;
    m->attention = attention;
}

int main(void)
{
    for (int c = 0; c < N_CONFIGS; c++) {
        nn_model m;
        double *base[N_VARS];
        nn_make(&m, &configs[c], 2, 11 + (uint64_t)c);
        keep(&m, VALUE, base, 0, N_VARS);
        check_gradients(&m, base, configs[c].text);
        if (m.count[PARAMS] < 1000) {
            check_entries(&m, base, configs[c].text);
        }
        check_jvp(&m, base, configs[c].text);
        check_second(&m, base, configs[c].text);
        check_symmetry(&m, configs[c].text);
        check_jvp_jvp(&m, base, configs[c].text);
        check_jvp_jvp_by_vjp_jvp(&m, configs[c].text);
        check_absent_tangents(&m, configs[c].text);
        release(base, N_VARS);
        nn_free(&m);
    }
    return test_summary();
}
