/* Extreme values: scores of 1e4 against the plain formulas in long double; sinks of any size; subnormals; softcaps that
 * are tiny or huge. */
#include "check/error_rule.h"
#include "device.h"
#include "outputs.h"

#include <float.h>
#include <math.h>
#include <stdbool.h>

typedef long double real;

/* ---- The four maps of one head, as plain formulas ----------------------------------------------- */

enum { N = 6, M = 7, DK = 4, DV = 3 }; /* queries, keys, channels */

struct head {
    real Q[N][DK], K[M][DK], V[M][DV], dO[N][DV], dL[N];
    real tQ[N][DK], tK[M][DK], tV[M][DV], tdO[N][DV], tdL[N];
    real scale;
    int causal;
};

/* Results; or bounds of them: the same sums with every term taken by absolute value, to which errors are relative. */
struct results {
    real O[N][DV], L[N], dQ[N][DK], dK[M][DK], dV[M][DV];
    real tO[N][DV], mu[N], tdQ[N][DK], tdK[M][DK], tdV[M][DV];
};

struct row {
    real Z[M], P[M], dS[M], tZ[M], tS[M], tP[M], tdS[M]; /* tS has mu subtracted */
    real aS[M], atS[M];                                  /* the terms of dS and tdS by absolute value */
};

static real dot(const real *a, const real *b, int n)
{
    real sum = 0;
    for (int c = 0; c < n; c++) {
        sum += a[c] * b[c];
    }
    return sum;
}

static real dot_abs(const real *a, const real *b, int n)
{
    real sum = 0;
    for (int c = 0; c < n; c++) {
        sum += fabsl(a[c] * b[c]);
    }
    return sum;
}

/* Scores, weights and their tangents of row i, which sees keys 0 .. n - 1. */
static void weights(const struct head *x, int i, int n, struct row *r, struct results *out)
{
    real largest = -HUGE_VALL, sum = 0, mu = 0;
    for (int j = 0; j < n; j++) {
        r->Z[j] = x->scale * dot(x->Q[i], x->K[j], DK);
        r->tZ[j] = x->scale * (dot(x->tQ[i], x->K[j], DK) + dot(x->Q[i], x->tK[j], DK));
        largest = r->Z[j] > largest ? r->Z[j] : largest;
    }
    for (int j = 0; j < n; j++) {
        sum += expl(r->Z[j] - largest);
    }
    out->L[i] = largest + logl(sum);
    for (int j = 0; j < n; j++) {
        r->P[j] = expl(r->Z[j] - out->L[i]);
        mu += r->P[j] * r->tZ[j];
    }
    out->mu[i] = mu;
    for (int j = 0; j < n; j++) {
        r->tS[j] = r->tZ[j] - mu;
        r->tP[j] = r->P[j] * r->tS[j];
        for (int c = 0; c < DV; c++) {
            out->O[i][c] += r->P[j] * x->V[j][c];
            out->tO[i][c] += r->tP[j] * x->V[j][c] + r->P[j] * x->tV[j][c];
        }
    }
}

/* dS and its tangent, with their absolute forms. */
static void scores_backward(const struct head *x, int i, int n, struct row *r, const struct results *out)
{
    const real D = dot(x->dO[i], out->O[i], DV) - x->dL[i];
    const real tD = dot(x->dO[i], out->tO[i], DV) + dot(x->tdO[i], out->O[i], DV) - x->tdL[i];
    const real aD = dot_abs(x->dO[i], out->O[i], DV) + fabsl(x->dL[i]);
    const real atD = dot_abs(x->dO[i], out->tO[i], DV) + dot_abs(x->tdO[i], out->O[i], DV) + fabsl(x->tdL[i]);
    for (int j = 0; j < n; j++) {
        const real dP = dot(x->dO[i], x->V[j], DV), aP = dot_abs(x->dO[i], x->V[j], DV);
        const real tdP = dot(x->dO[i], x->tV[j], DV) + dot(x->tdO[i], x->V[j], DV);
        const real atP = dot_abs(x->dO[i], x->tV[j], DV) + dot_abs(x->tdO[i], x->V[j], DV);
        r->dS[j] = r->P[j] * (dP - D);
        r->tdS[j] = r->P[j] * (r->tS[j] * (dP - D) + tdP - tD);
        r->aS[j] = r->P[j] * (aP + aD);
        r->atS[j] = r->P[j] * ((fabsl(r->tZ[j]) + fabsl(out->mu[i])) * (aP + aD) + atP + atD);
    }
}

static void inputs_backward(const struct head *x, int i, int n, const struct row *r, struct results *out,
                            struct results *bound)
{
    for (int j = 0; j < n; j++) {
        const real dZ = x->scale * r->dS[j], tdZ = x->scale * r->tdS[j];
        const real aZ = fabsl(x->scale) * r->aS[j], atZ = fabsl(x->scale) * r->atS[j];
        for (int c = 0; c < DK; c++) {
            out->dQ[i][c] += dZ * x->K[j][c];
            out->dK[j][c] += dZ * x->Q[i][c];
            out->tdQ[i][c] += tdZ * x->K[j][c] + dZ * x->tK[j][c];
            out->tdK[j][c] += tdZ * x->Q[i][c] + dZ * x->tQ[i][c];
            bound->dQ[i][c] += aZ * fabsl(x->K[j][c]);
            bound->dK[j][c] += aZ * fabsl(x->Q[i][c]);
            bound->tdQ[i][c] += atZ * fabsl(x->K[j][c]) + aZ * fabsl(x->tK[j][c]);
            bound->tdK[j][c] += atZ * fabsl(x->Q[i][c]) + aZ * fabsl(x->tQ[i][c]);
        }
        for (int c = 0; c < DV; c++) {
            out->dV[j][c] += r->P[j] * x->dO[i][c];
            out->tdV[j][c] += r->tP[j] * x->dO[i][c] + r->P[j] * x->tdO[i][c];
            bound->dV[j][c] += r->P[j] * fabsl(x->dO[i][c]);
            bound->tdV[j][c] +=
                r->P[j] * ((fabsl(r->tZ[j]) + fabsl(out->mu[i])) * fabsl(x->dO[i][c]) + fabsl(x->tdO[i][c]));
            bound->O[i][c] += r->P[j] * fabsl(x->V[j][c]);
            bound->tO[i][c] +=
                r->P[j] * ((fabsl(r->tZ[j]) + fabsl(out->mu[i])) * fabsl(x->V[j][c]) + fabsl(x->tV[j][c]));
        }
        bound->mu[i] += r->P[j] * fabsl(r->tZ[j]);
    }
    bound->L[i] = 1; /* its error is relative to the largest score, which is a factor of the limit */
}

/* Returns the largest |Z|. */
static real plain_formulas(const struct head *x, struct results *out, struct results *bound)
{
    real largest = 0;
    memset(out, 0, sizeof *out);
    memset(bound, 0, sizeof *bound);
    for (int i = 0; i < N; i++) {
        const int n = x->causal && i + 1 < M ? i + 1 : M;
        struct row r;
        weights(x, i, n, &r, out);
        scores_backward(x, i, n, &r, out);
        inputs_backward(x, i, n, &r, out, bound);
        for (int j = 0; j < n; j++) {
            largest = fabsl(r.Z[j]) > largest ? fabsl(r.Z[j]) : largest;
        }
    }
    return largest;
}

/* ---- Large scores ------------------------------------------------------------------------------- */

static void read_into(const struct arrays *x, enum tensor t, real *to)
{
    double *values = test_read(x, t);
    for (int64_t n = 0; n < x->count[t]; n++) {
        to[n] = values[n];
    }
    free(values);
}

static void read_head(const struct arrays *x, struct head *h)
{
    memset(h, 0, sizeof *h);
    read_into(x, T_Q, h->Q[0]);
    read_into(x, T_K, h->K[0]);
    read_into(x, T_V, h->V[0]);
    read_into(x, T_D_O, h->dO[0]);
    read_into(x, T_D_LSE, h->dL);
    read_into(x, T_TQ, h->tQ[0]);
    read_into(x, T_TK, h->tK[0]);
    read_into(x, T_TV, h->tV[0]);
    read_into(x, T_TD_O, h->tdO[0]);
    read_into(x, T_TD_LSE, h->tdL);
    h->scale = x->p->scale;
    h->causal = (x->p->flags & AG_CAUSAL) != 0;
}

static void scale_tensor(struct arrays *x, enum tensor t, double factor)
{
    double *values = test_read(x, t);
    for (int64_t n = 0; n < x->count[t]; n++) {
        values[n] *= factor;
    }
    agc_arrays_write(x, t, values);
    free(values);
}

/* In norms: |got - truth| <= 8 eps (1 + max |S|) A for float64. In float32 the rounding of the outputs is added: the
 * reference computes in float64, so that is half a unit of each. */
static void compare(const struct arrays *x, enum tensor t, const real *truth, const real *bound, real largest,
                    const char *label)
{
    double *got = test_read(x, t);
    real error = 0, a = 0, norm = 0;
    for (int64_t n = 0; n < x->count[t]; n++) {
        error += (got[n] - truth[n]) * (got[n] - truth[n]);
        a += bound[n] * bound[n];
        norm += truth[n] * truth[n];
        CHECK(isfinite(got[n]), "%s: %s element %d is %g", label, agc_tensor_info[t].name, (int)n, got[n]);
    }
    const real unit = x->dtype[t] == AG_F32 ? FLT_EPSILON : DBL_EPSILON;
    const real from_o = x->p->dtype == AG_F32 ? 4 * FLT_EPSILON * sqrtl(a)
                                              : 0; /* the backward reads o and to rounded to f32 */
    const real limit = 8 * DBL_EPSILON * (1 + largest) * sqrtl(a) + unit * sqrtl(norm) + from_o;
    CHECK(sqrtl(error) <= limit, "%s: %s is off by %Lg, allowed %Lg of %Lg", label, agc_tensor_info[t].name,
          sqrtl(error), limit, sqrtl(norm));
    free(got);
}

static void large_scores(const char *text, double factor)
{
    struct arrays x;
    struct head h;
    struct results truth, bound;
    char label[128];
    ag_options options = AG_OPTIONS_INIT;
    options.backend = AG_BACKEND_REFERENCE;
    make_arrays(&x, text, &options, 61);
    scale_tensor(&x, T_Q, factor);
    scale_tensor(&x, T_K, factor);
    CHECK_OK(agc_arrays_run_all(&x));
    read_head(&x, &h);
    const real largest = plain_formulas(&h, &truth, &bound);
    snprintf(label, sizeof label, "'%s', scores up to %Lg", text, largest);
    const struct {
        enum tensor t;
        const real *truth, *bound;
    } pairs[] = {
        {T_O, truth.O[0], bound.O[0]},       {T_LSE, truth.L, bound.L},
        {T_DQ, truth.dQ[0], bound.dQ[0]},    {T_DK, truth.dK[0], bound.dK[0]},
        {T_DV, truth.dV[0], bound.dV[0]},    {T_TO, truth.tO[0], bound.tO[0]},
        {T_MU, truth.mu, bound.mu},          {T_TDQ, truth.tdQ[0], bound.tdQ[0]},
        {T_TDK, truth.tdK[0], bound.tdK[0]}, {T_TDV, truth.tdV[0], bound.tdV[0]},
    };
    for (size_t n = 0; n < sizeof pairs / sizeof pairs[0]; n++) {
        compare(&x, pairs[n].t, pairs[n].truth, pairs[n].bound, largest, label);
    }
    agc_arrays_destroy(&x);
}

static void scores_of_any_size(void)
{
    static const double factors[] = {1e-8, 0.1, 1, 10, 80, 1000};
    for (size_t n = 0; n < sizeof factors / sizeof factors[0]; n++) {
        large_scores("q6 k7 d4 dv3 f64", factors[n]);
        large_scores("q6 k7 d4 dv3 f64 causal", factors[n]);
        large_scores("q6 k7 d4 dv3 f64 scale=-1", factors[n]);
        large_scores("q6 k7 d4 dv3 f32", factors[n]);
        large_scores("q6 k7 d4 dv3 f32 causal scale=2", factors[n]);
    }
}

/* The backward recomputes forward's scores bit for bit: at scores of 1e4, whose float32 neighbours are 1e-3 apart,
 * weights still sum to one, and so the rows of dV to those of dO. unit: what each weight is rounded to. */
static void weights_sum_to_one(const char *text, double unit)
{
    struct arrays x;
    make_arrays(&x, text, NULL, 67);
    scale_tensor(&x, T_Q, 100);
    scale_tensor(&x, T_K, 100);
    CHECK_OK(agc_arrays_run_all(&x));
    double *dV = test_read(&x, T_DV), *dO = test_read(&x, T_D_O);
    for (int64_t h = 0; h < x.p->heads; h++) {
        for (int64_t c = 0; c < x.p->dim_v; c++) {
            double sum = 0, wanted = 0, magnitude = 0;
            for (int64_t j = 0; j < x.p->kv_len; j++) {
                sum += dV[(h * x.p->kv_len + j) * x.p->dim_v + c];
            }
            for (int64_t i = 0; i < x.p->q_len; i++) {
                wanted += dO[(h * x.p->q_len + i) * x.p->dim_v + c];
                magnitude += fabs(dO[(h * x.p->q_len + i) * x.p->dim_v + c]);
            }
            CHECK(fabs(sum - wanted) <= unit * magnitude, "'%s': dV sums to %g, dO to %g", text, sum, wanted);
        }
    }
    free(dV);
    free(dO);
    agc_arrays_destroy(&x);
}

static void any_number_of_queries_at_large_scores(void)
{
    for (int q = 1; q <= 7; q++) {
        char text[64];
        snprintf(text, sizeof text, "h2 q%d k40 d64 dv5 f32 scale=1", q);
        weights_sum_to_one(text, 1e-5);
        snprintf(text, sizeof text, "h2 q%d k16 d64 dv16 f32 scale=1", q);
        weights_sum_to_one(text, 1e-5);
    }
    weights_sum_to_one("h1 q70 k300 d24 f32 scale=1", 1e-5);
}

/* Of several tiles, which on a GPU are the tensor cores': there, and on AMX, weights have 16 bits, and scores of 1e4
 * cost them less than that. The first alone if AG_TEST_COUNT is small. */
static void large_scores_in_16_bits(void)
{
    static const char *const list[] = {
        "h1 q70 k130 d64 f16 grad=f32",         "h2 q150 k300 d64 bf16 grad=f32",
        "h2 q200 k300 d128 bf16 grad=f32",      "h2 q300 k300 d64 f16 grad=f32 causal",
        "h2 q70 k300 d128 f16 grad=f32 causal", "h2 q130 k200 d256 bf16 grad=f32",
    };
    for (int n = 0; n < (test_count(1000) == 1000 ? 6 : 1); n++) {
        weights_sum_to_one(list[n], 0x1p-8);
    }
}

/* ---- Sinks of any magnitude -------------------------------------------------------------------------- */

static void set_all(struct arrays *x, enum tensor t, double value)
{
    for (int64_t e = 0; e < x->count[t]; e++) {
        ag_convert((char *)x->data[t] + (size_t)e * element_size(x, t), x->dtype[t], &value, AG_F64, 1);
    }
}

static void run_with_sink(struct arrays *x, const char *text, double sink)
{
    make_arrays(x, text, NULL, 91);
    x->args.q_offset = -5; /* if causal, the first queries see no key */
    set_all(x, T_SINK, sink);
    CHECK_OK(agc_arrays_run_all(x));
}

/* Beyond 10,000 all sinks give the same results, except lse of rows that see only the sink: there it is the sink. Where
 * everything is slow the first and the last of the sizes. */
static void sinks_of_any_size(const char *text, const double *sizes, int n)
{
    for (int sign = -1; sign <= 1; sign += 2) {
        struct arrays large;
        run_with_sink(&large, text, sign * 1e4);
        const double large_sink = element_value(&large, T_SINK, large.data[T_SINK]);
        for (int i = 0; i < n; i += test_is_slow() ? n - 1 : 1) {
            struct arrays huge;
            char label[160];
            run_with_sink(&huge, text, sign * sizes[i]);
            const double sink = element_value(&huge, T_SINK, huge.data[T_SINK]);
            for (int64_t e = 0; e < huge.count[T_LSE]; e++) {
                double *const lse = &((double *)huge.data[T_LSE])[e];
                *lse = *lse == sink ? large_sink : *lse;
            }
            snprintf(label, sizeof label, "'%s' with a sink of %g", text, sign * sizes[i]);
            same_outputs(&huge, &large, ALL_MAPS, label);
            agc_arrays_destroy(&huge);
        }
        agc_arrays_destroy(&large);
    }
}

/* A sink that leaves the keys next to nothing, whose weights count all the same: dsink is made of nothing else if lse
 * has no cotangent. Few digits are left of them in float32 on tensor cores of 16 bits. */
static void keys_beside_a_sink(const char *text, double sink)
{
    static const enum tensor absent[] = {T_D_LSE, T_TD_LSE};
    struct error_entry entries[T_COUNT];
    struct arrays x;
    int count = 0;
    make_arrays(&x, text, NULL, 4);
    set_all(&x, T_SINK, sink);
    for (int n = 0; n < 2; n++) {
        set_all(&x, absent[n], 0); /* for the truth */
        agc_arrays_tensor(&x, absent[n])->data = NULL;
    }
    CHECK_OK(agc_arrays_run_all(&x));
    CHECK_OK(agc_error_rule(&x, 1, entries, &count));
    for (int n = 0; n < count; n++) {
        const struct error_entry *e = &entries[n];
        const bool of_sink = e->t == T_DSINK || e->t == T_TDSINK;
        CHECK(!of_sink || e->error <= fmax(e->limit, e->truth / 8),
              "'%s' with a sink of %g: %s: error %.2e of %.2e", text, sink, agc_tensor_info[e->t].name,
              e->error, e->truth);
    }
    agc_arrays_destroy(&x);
}

/* Scores of 1e8 and beyond leave a sink of 1 all or nothing: with values of one, rows of O and tO are ones or zeros. */
static void a_sink_beside_huge_scores(const char *text)
{
    static const enum tensor ones[] = {T_V, T_TV}, zeros[] = {T_TQ, T_TK}, outputs[] = {T_O, T_TO};
    struct arrays x;
    make_arrays(&x, text, NULL, 8);
    set_all(&x, T_SINK, 1);
    for (int n = 0; n < 2; n++) {
        set_all(&x, ones[n], 1);
        set_all(&x, zeros[n], 0);
    }
    CHECK_OK(agc_arrays_run(&x, AG_MAP_FORWARD));
    CHECK_OK(agc_arrays_run(&x, AG_MAP_JVP));
    for (int n = 0; n < 2; n++) {
        double *got = test_read(&x, outputs[n]);
        bool sees[2] = {false, false};
        for (int64_t e = 0; e < x.count[outputs[n]]; e++) {
            const bool takes = got[e] > 0.5;
            sees[takes] = true;
            CHECK(fabs(got[e] - takes) < 0.01, "'%s': %s element %d is %g", text,
                  agc_tensor_info[outputs[n]].name, (int)e, got[e]);
        }
        CHECK(sees[true], "'%s': no key takes anything: it tests nothing", text);
        free(got);
    }
    agc_arrays_destroy(&x);
}

static void all_sinks(void)
{
    static const double sizes[] = {1e9, 3e10, 1e11, 1e30, 3e38, 1.5e308};
    enum { SIZES = sizeof sizes / sizeof sizes[0] };
    sinks_of_any_size("h2 q40 k60 d16 f32 sink causal", sizes, SIZES - 1);
    sinks_of_any_size("h2 q9 k2100 d8 f32 sink", sizes, SIZES - 1);
    sinks_of_any_size("h1 q70 k600 d32 bf16 aux=f32 sink causal", sizes, SIZES - 1);
    sinks_of_any_size("h1 q70 k2100 d32 bf16 aux=f32 sink", sizes, SIZES - 1);
    sinks_of_any_size("h2 q40 k60 d16 f64 sink causal", sizes, SIZES);
    sinks_of_any_size("h2 q9 k2100 d8 f64 sink", sizes, SIZES);
    a_sink_beside_huge_scores("h2 q20 k40 d16 f32 sink scale=3e7");
    a_sink_beside_huge_scores("h2 q1 k600 d64 f32 sink scale=1e7");
    a_sink_beside_huge_scores("h2 kv1 q70 k90 d64 bf16 sink scale=1.5e7");
    a_sink_beside_huge_scores("h1 q20 k40 d128 f16 sink scale=1e7 causal");
    a_sink_beside_huge_scores("h2 q20 k40 d16 f64 sink scale=1e8");
    keys_beside_a_sink("h2 q20 k40 d16 f32 sink", 25);
    keys_beside_a_sink("h2 q20 k40 d16 f32 sink mask=11qk", 25);
    keys_beside_a_sink("h2 q1 k600 d64 f32 sink", 25);
    keys_beside_a_sink("h2 kv1 q8 k600 d64 bf16 sink", 25);
    keys_beside_a_sink("h1 q70 k90 d128 bf16 sink causal", 25);
    keys_beside_a_sink("h2 q20 k40 d16 f64 sink causal", 45);
}

/* ---- Subnormals -------------------------------------------------------------------------- */

static void flushed_or_same(const struct arrays *x, enum tensor out, enum tensor in, const char *text)
{
    const size_t size = element_size(x, out);
    for (int64_t e = 0; e < x->count[out]; e++) {
        const double got = element_value(x, out, (const char *)x->data[out] + (size_t)e * size);
        const double given = element_value(x, in, (const char *)x->data[in] + (size_t)e * size);
        CHECK(got == 0 || got == given, "%s: %s element %lld is %.17g, neither 0 nor %.17g", text,
              agc_tensor_info[out].name, (long long)e, got, given);
    }
}

/* With one key the weight is exactly 1: O = V, dV = dO, tO = tV, tdV = tdO, to the last bit. Only AMX may take
 * subnormals as zero. */
static void subnormals_pass_unharmed(const char *text, double smallest)
{
    static const enum tensor in[] = {T_V, T_D_O, T_TV, T_TD_O}, out[] = {T_O, T_DV, T_TO, T_TDV};
    struct arrays x;
    make_arrays(&x, text, NULL, 81);
    memset(x.data[T_TQ], 0, tensor_bytes(&x, T_TQ));
    memset(x.data[T_TK], 0, tensor_bytes(&x, T_TK));
    for (int n = 0; n < 4; n++) { /* multiples of the smallest subnormal, both signs */
        for (int64_t e = 0; e < x.count[in[n]]; e++) {
            const double value = (e % 2 ? -smallest : smallest) * (double)(e + n + 1);
            ag_convert((char *)x.data[in[n]] + (size_t)e * element_size(&x, in[n]), x.dtype[in[n]], &value,
                       AG_F64, 1);
        }
    }
    CHECK_OK(agc_arrays_run_all(&x));
    ag_plan_info info = {.struct_size = sizeof info};
    CHECK_OK(ag_plan_info_get(x.plan, &info));
    for (int n = 0; n < 4; n++) {
        if (info.isa == AG_ISA_AMX) {
            flushed_or_same(&x, out[n], in[n], text);
        } else {
            same_tensor(&x, out[n], x.data[out[n]], x.data[in[n]], text);
        }
    }
    agc_arrays_destroy(&x);
}

/* Q and K so small that their products underflow give scores of zero: equal weights, and everything finite. */
static void subnormal_queries_and_keys(void)
{
    struct arrays x;
    make_arrays(&x, "q5 k4 d3 f64", NULL, 83);
    scale_tensor(&x, T_Q, 1e-310);
    scale_tensor(&x, T_K, 1e-310);
    CHECK_OK(agc_arrays_run_all(&x));
    for (int i = 0; i < 5; i++) {
        CHECK(fabs(agc_arrays_f64(&x, T_LSE)[i] - log(4)) < 1e-15 * 4, "lse[%d] is %.17g", i,
              agc_arrays_f64(&x, T_LSE)[i]);
    }
    for (enum tensor t = 0; t < T_COUNT; t++) {
        for (int64_t e = 0; is_output(&x, t, ALL_MAPS) && e < x.count[t]; e++) {
            CHECK(isfinite(agc_arrays_f64(&x, t)[e]), "%s element %d is %g", agc_tensor_info[t].name, (int)e,
                  agc_arrays_f64(&x, t)[e]);
        }
    }
    agc_arrays_destroy(&x);
}

/* ---- Softcap ------------------------------------------------------------------------------------ */

/* A softcap far above every score has no effect. */
static void huge_softcap(double cap)
{
    struct arrays with, without;
    char text[128];
    snprintf(text, sizeof text, "b2 h2 q5 k6 d4 f64 causal softcap=%g", cap);
    make_arrays(&with, text, NULL, 91);
    make_arrays(&without, "b2 h2 q5 k6 d4 f64 causal", NULL, 91);
    CHECK_OK(agc_arrays_run_all(&with));
    CHECK_OK(agc_arrays_run_all(&without));
    for (enum tensor t = 0; t < T_COUNT; t++) {
        for (int64_t e = 0; is_output(&with, t, ALL_MAPS) && e < with.count[t]; e++) {
            const double a = agc_arrays_f64(&with, t)[e], b = agc_arrays_f64(&without, t)[e];
            CHECK(fabs(a - b) <= 1e-12 * (1 + fabs(b)), "softcap %g: %s element %d is %.17g instead of %.17g",
                  cap, agc_tensor_info[t].name, (int)e, a, b);
        }
    }
    agc_arrays_destroy(&with);
    agc_arrays_destroy(&without);
}

/* A softcap far below every score makes all weights equal; the scores no longer depend on Q and K. */
static void tiny_softcap(double cap)
{
    struct arrays x;
    char text[128];
    snprintf(text, sizeof text, "q5 k6 d4 dv1 f64 softcap=%.17g", cap);
    make_arrays(&x, text, NULL, 93);
    CHECK_OK(agc_arrays_run_all(&x));
    double mean = 0;
    for (int j = 0; j < 6; j++) {
        mean += agc_arrays_f64(&x, T_V)[j] / 6;
    }
    for (int i = 0; i < 5; i++) {
        CHECK(fabs(agc_arrays_f64(&x, T_O)[i] - mean) < 1e-12, "softcap %g: O[%d] is %.17g instead of %.17g",
              cap, i, agc_arrays_f64(&x, T_O)[i], mean);
    }
    for (enum tensor t = 0; t < T_COUNT; t++) {
        const int zero = t == T_DQ || t == T_DK || t == T_TDQ || t == T_TDK;
        for (int64_t e = 0; is_output(&x, t, ALL_MAPS) && e < x.count[t]; e++) {
            const double value = agc_arrays_f64(&x, t)[e];
            CHECK(zero ? fabs(value) < 1e-12 : isfinite(value), "softcap %g: %s element %d is %g", cap,
                  agc_tensor_info[t].name, (int)e, value);
        }
    }
    agc_arrays_destroy(&x);
}

/* A score of exactly zero under a tiny softcap: no 0 / 0, no 0 * inf. */
static void zero_scores_under_a_tiny_softcap(void)
{
    struct arrays x;
    make_arrays(&x, "q3 k3 d2 f64 softcap=1e-300", NULL, 95);
    memset(x.data[T_Q], 0, tensor_bytes(&x, T_Q));
    memset(x.data[T_TQ], 0, tensor_bytes(&x, T_TQ));
    CHECK_OK(agc_arrays_run_all(&x));
    for (enum tensor t = 0; t < T_COUNT; t++) {
        for (int64_t e = 0; is_output(&x, t, ALL_MAPS) && e < x.count[t]; e++) {
            CHECK(isfinite(agc_arrays_f64(&x, t)[e]), "%s element %d is %g", agc_tensor_info[t].name, (int)e,
                  agc_arrays_f64(&x, t)[e]);
        }
    }
    agc_arrays_destroy(&x);
}

int main(void)
{
    scores_of_any_size();
    any_number_of_queries_at_large_scores();
    large_scores_in_16_bits();
    all_sinks();
    subnormals_pass_unharmed("h2 q1 k1 d3 f64", 5e-324);
    subnormals_pass_unharmed("h2 q1 k1 d3 f32", 0x1p-149);
    subnormals_pass_unharmed("h2 q1 k1 d3 f16", 0x1p-24);
    subnormals_pass_unharmed("h2 q1 k1 d3 bf16", 0x1p-133);
    subnormal_queries_and_keys();
    huge_softcap(1e9);
    huge_softcap(1e30);
    huge_softcap(1e300);
    tiny_softcap(1e-30);
    tiny_softcap(1e-300);
    tiny_softcap(5e-324);
    zero_scores_under_a_tiny_softcap();
    return test_maps_summary();
}
