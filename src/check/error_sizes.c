/* The absolute formulas of error_sizes.h, summed over the trace of every head. With |X| the matrix of
 * absolute values and o the elementwise product,
 *     a_tP  = P o (|tS| + |mu|)
 *     a_dS  = P o (|dP| + |D|)                a_dZ  = a_dS o |phi'|
 *     a_tdS = P o ((|tS| + |mu|) o (|dP| + |D|) + |tdP| + |tD|)
 *     a_tdZ = a_tdS o |phi'| + a_dS o |phi'' tZ|
 * and O: R |V|, tO: (a_tP o M) |V| + R |tV|, dQ: scale a_dZ |K|, and so on as the formulas have it.
 * second_sizes.c has those of jvp_jvp. */
#include "check/error_sizes.h"

#include "check/progress.h"
#include "check/second_sizes.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MATRICES = 10, VECTORS = 5 };

/* The trace of the current head, and the sums over all heads so far. */
struct work {
    const struct arrays *x;
    double *a[T_COUNT]; /* A of each output, in the output's own layout */
    double *memory;
    ag_trace_args trace;
    double score;
};

/* a_tP o M, R, a_dS, a_dZ, a_tdS, a_tdZ of one pair (i, j). */
struct terms {
    double tR, R, dS, dZ, tdS, tdZ;
};

/* [q_len, MATRICES * kv_len + VECTORS]; NULL if there is no memory. */
static double *alloc_trace(const ag_problem *p)
{
    return agc_alloc("the matrices of one head, queries times keys", p->q_len,
                     (size_t)(MATRICES * p->kv_len + VECTORS) * sizeof(double));
}

ag_status agc_error_sizes_try_memory(const ag_problem *p)
{
    double *memory = alloc_trace(p);
    free(memory);
    return memory != NULL ? AG_OK : AG_NO_MEMORY;
}

static void cut_trace(struct work *w)
{
    const int64_t rows = w->x->p->q_len, pairs = rows * w->x->p->kv_len;
    double **matrices[MATRICES] = {&w->trace.S,  &w->trace.P,  &w->trace.M,   &w->trace.R,    &w->trace.dP,
                                   &w->trace.tZ, &w->trace.tS, &w->trace.tdP, &w->trace.phi1, &w->trace.phi2};
    double **vectors[VECTORS] = {&w->trace.Ps, &w->trace.D, &w->trace.mu, &w->trace.tD, &w->trace.L};
    for (int n = 0; n < MATRICES; n++) {
        *matrices[n] = w->memory + n * pairs;
    }
    for (int n = 0; n < VECTORS; n++) {
        *vectors[n] = w->memory + MATRICES * pairs + n * rows;
    }
    w->trace.struct_size = sizeof w->trace;
}

/* AG_OK or AG_NO_MEMORY; to be destroyed either way. */
static ag_status make_work(struct work *w, const struct arrays *x)
{
    memset(w, 0, sizeof *w);
    w->x = x;
    w->memory = alloc_trace(x->p);
    if (w->memory == NULL) {
        return AG_NO_MEMORY;
    }
    cut_trace(w);
    for (enum tensor t = 0; t < T_COUNT; t++) {
        if (agc_tensor_info[t].role == ROLE_OUTPUT && x->data[t] != NULL) {
            w->a[t] = agc_alloc_zeros(agc_tensor_info[t].name, x->count[t]);
            if (w->a[t] == NULL) {
                return AG_NO_MEMORY;
            }
        }
    }
    return AG_OK;
}

static void destroy_work(struct work *w)
{
    for (enum tensor t = 0; t < T_COUNT; t++) {
        free(w->a[t]);
    }
    free(w->memory);
}

static struct terms terms_of(const struct work *w, int64_t i, int64_t e)
{
    const ag_trace_args *r = &w->trace;
    struct terms a;
    double P = r->P[e];
    double tS = fabs(r->tS[e]) + fabs(r->mu[i]), dP = fabs(r->dP[e]) + fabs(r->D[i]);
    a.R = r->R[e];
    a.tR = P * tS * r->M[e];
    a.dS = P * dP;
    a.dZ = a.dS * fabs(r->phi1[e]);
    a.tdS = P * (tS * dP + fabs(r->tdP[e]) + fabs(r->tD[i]));
    a.tdZ = a.tdS * fabs(r->phi1[e]) + a.dS * fabs(r->phi2[e] * r->tZ[e]);
    return a;
}

/* sums[c] += weight * |values[c]| */
static void add(double *sums, double weight, const double *values, int64_t count)
{
    for (int64_t c = 0; c < count; c++) {
        sums[c] += weight * fabs(values[c]);
    }
}

/* Adds what the pair of query i and key j contributes to every output that has channels. q, k, o, v: offsets
 * of their rows. */
static void add_channels(struct work *w, const struct terms *a, int64_t q, int64_t k, int64_t o, int64_t v)
{
    const struct arrays *x = w->x;
    int64_t Dk = x->p->dim_qk, Dv = x->p->dim_v;
    double scale = fabs(x->p->scale);
    add(w->a[T_DQ] + q, scale * a->dZ, agc_arrays_f64(x, T_K) + k, Dk);
    add(w->a[T_DK] + k, scale * a->dZ, agc_arrays_f64(x, T_Q) + q, Dk);
    add(w->a[T_TDQ] + q, scale * a->tdZ, agc_arrays_f64(x, T_K) + k, Dk);
    add(w->a[T_TDQ] + q, scale * a->dZ, agc_arrays_f64(x, T_TK) + k, Dk);
    add(w->a[T_TDK] + k, scale * a->tdZ, agc_arrays_f64(x, T_Q) + q, Dk);
    add(w->a[T_TDK] + k, scale * a->dZ, agc_arrays_f64(x, T_TQ) + q, Dk);
    add(w->a[T_O] + o, a->R, agc_arrays_f64(x, T_V) + v, Dv);
    add(w->a[T_TO] + o, a->tR, agc_arrays_f64(x, T_V) + v, Dv);
    add(w->a[T_TO] + o, a->R, agc_arrays_f64(x, T_TV) + v, Dv);
    add(w->a[T_DV] + v, a->R, agc_arrays_f64(x, T_D_O) + o, Dv);
    add(w->a[T_TDV] + v, a->tR, agc_arrays_f64(x, T_D_O) + o, Dv);
    add(w->a[T_TDV] + v, a->R, agc_arrays_f64(x, T_TD_O) + o, Dv);
}

/* The column of the table for a pair: buckets[clamp(g_j - p_i, -R, R) + R]. */
static int64_t bucket_of(const struct arrays *x, int64_t b, int64_t i, int64_t j)
{
    const ag_problem *p = x->p;
    int64_t shift =
        p->align == AG_ALIGN_BOTTOM_RIGHT ? agc_arrays_k_length(x, b) - agc_arrays_q_length(x, b) : 0;
    int64_t distance = j + agc_arrays_k_offset(x, b) - (i + agc_arrays_q_offset(x, b) + shift);
    int64_t R = p->table_radius;
    int64_t clamped = distance < -R ? -R : distance > R ? R : distance;
    return x->buckets != NULL ? x->buckets[clamped + R] : clamped + R;
}

static void add_biases(struct work *w, const struct terms *a, int64_t b, int64_t h, int64_t i, int64_t j)
{
    const struct arrays *x = w->x;
    if (w->a[T_DBIAS] != NULL) {
        int64_t e = agc_arrays_index(x, T_DBIAS, b, h, i, j);
        w->a[T_DBIAS][e] += a->dS;
        w->a[T_TDBIAS][e] += a->tdS;
    }
    if (w->a[T_DTABLE] != NULL) {
        int64_t e = agc_arrays_index(x, T_DTABLE, 0, h, 0, bucket_of(x, b, i, j));
        w->a[T_DTABLE][e] += a->dS;
        w->a[T_TDTABLE][e] += a->tdS;
    }
}

/* lse: 1 + max |S|; mu: rowsum(P o |tS|) + Ps |ts|; ds: Ps |D|; tds: Ps ((|ts| + |mu|) |D| + |tD|). */
static void add_row(struct work *w, int64_t b, int64_t h, int64_t i)
{
    const ag_trace_args *r = &w->trace;
    int64_t row = agc_arrays_index(w->x, T_LSE, b, h, i, 0), first = i * w->x->p->kv_len;
    double max = 0, mu = 0;
    for (int64_t j = 0; j < agc_arrays_k_length(w->x, b); j++) {
        max = isfinite(r->S[first + j]) ? fmax(max, fabs(r->S[first + j])) : max;
        mu += r->P[first + j] * fabs(r->tS[first + j]);
    }
    w->score = fmax(w->score, max);
    if (w->a[T_DSINK] != NULL) {
        int64_t e = agc_arrays_index(w->x, T_DSINK, 0, h, 0, 0);
        double ts = fabs(agc_arrays_f64(w->x, T_TSINK)[e]);
        mu += r->Ps[i] * ts;
        w->a[T_DSINK][e] += r->Ps[i] * fabs(r->D[i]);
        w->a[T_TDSINK][e] += r->Ps[i] * ((ts + fabs(r->mu[i])) * fabs(r->D[i]) + fabs(r->tD[i]));
    }
    w->a[T_LSE][row] = agc_arrays_f64(w->x, T_LSE)[row] == -INFINITY ? 0 : 1 + max;
    w->a[T_MU][row] = mu;
}

static void add_head(struct work *w, int64_t b, int64_t h)
{
    const struct arrays *x = w->x;
    int64_t g = h / (x->p->heads / x->p->kv_heads);
    for (int64_t i = 0; i < agc_arrays_q_length(x, b); i++) {
        int64_t q = agc_arrays_index(x, T_Q, b, h, i, 0), o = agc_arrays_index(x, T_O, b, h, i, 0);
        add_row(w, b, h, i);
        for (int64_t j = 0; j < agc_arrays_k_length(x, b); j++) {
            int64_t e = i * x->p->kv_len + j;
            if (w->trace.P[e] == 0) {
                continue;
            }
            struct terms a = terms_of(w, i, e);
            add_channels(w, &a, q, agc_arrays_index(x, T_K, b, g, j, 0), o,
                         agc_arrays_index(x, T_V, b, g, j, 0));
            add_biases(w, &a, b, h, i, j);
        }
    }
}

static double norm(const double *values, int64_t count)
{
    double sum = 0;
    for (int64_t n = 0; n < count; n++) {
        sum += values[n] * values[n];
    }
    return sqrt(sum);
}

ag_status agc_error_sizes_of(struct error_sizes *s, const struct arrays *x)
{
    struct work w;
    ag_status status = make_work(&w, x);
    for (int64_t n = 0; n < x->p->batch * x->p->heads && status == AG_OK; n++) {
        w.trace.batch = n / x->p->heads;
        w.trace.head = n % x->p->heads;
        status = ag_trace(x->plan, AG_MAP_VJP_JVP, &x->args, &w.trace, x->workspace, x->workspace_bytes);
        if (status == AG_OK) {
            add_head(&w, w.trace.batch, w.trace.head);
        }
        if (status == AG_OK && agc_arrays_has_second_direction(x)) {
            status = agc_second_sizes_add(x, &w.trace, w.a[T_SMU], w.a[T_STO], w.a[T_NU]);
        }
        agc_progress_add(agc_work_of_sizes(x->p) / (double)(x->p->batch * x->p->heads));
    }
    for (enum tensor t = 0; t < T_COUNT; t++) {
        s->norm[t] = w.a[t] != NULL ? norm(w.a[t], x->count[t]) : 0;
    }
    s->score = w.score;
    destroy_work(&w);
    return status;
}
