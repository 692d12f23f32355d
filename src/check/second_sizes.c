/* The absolute formulas of jvp_jvp, from the traces of one head. With |X| the matrix of absolute values and o the
 * elementwise product,
 *     a_tP = P o (|tS| + |mu|)                a_sP = P o (|sS| + |smu|)
 *     a_PW = P o ((|tS| + |mu|) o (|sS| + |smu|) + |stZ phi'| + |tZ phi'' sZ|)
 * and smu: rowsum(P o |sS|) + Ps |ss|, nu: rowsum(a_PW) + Ps (|ts| + |mu|) (|ss| + |smu|), and
 * stO: (a_PW o M) |V| + a_nu |O| + (a_tP o M) |sV| + (a_sP o M) |tV|.
 *
 * The trace has no names for sZ, sS and stZ. They are the tZ and tS of a jvp along s, and the tZ of a jvp along t at
 * the point Q = sQ, K = sK: scale (tQ sK^T + sQ tK^T). */
#include "check/second_sizes.h"

#include <math.h>
#include <stdlib.h>

/* What the traces of the head give. */
struct second {
    const ag_trace_args *first;
    double *sZ, *sS, *stZ, *smu; /* [q_len][kv_len]; smu [q_len] */
};

/* A jvp along s, and one along t at the point (sQ, sK). */
static ag_status trace_both(const struct arrays *x, struct second *y)
{
    ag_trace_args trace = {.struct_size = sizeof trace, .batch = y->first->batch, .head = y->first->head};
    ag_args a = x->args;
    a.tq = a.sq, a.tk = a.sk, a.tv = a.sv;
    a.tbias = a.sbias, a.ttable = a.stable, a.tsink = a.ssink;
    trace.tZ = y->sZ, trace.tS = y->sS, trace.mu = y->smu;
    ag_status status = ag_trace(x->plan, AG_MAP_JVP, &a, &trace, x->workspace, x->workspace_bytes);
    if (status == AG_OK) {
        a = x->args;
        a.q = a.sq, a.k = a.sk;
        trace.tZ = y->stZ, trace.tS = NULL, trace.mu = NULL;
        status = ag_trace(x->plan, AG_MAP_JVP, &a, &trace, x->workspace, x->workspace_bytes);
    }
    return status;
}

static double sink_of(const struct arrays *x, enum tensor t, int64_t h)
{
    return x->data[t] == NULL ? 0 : fabs(agc_arrays_f64(x, t)[agc_arrays_index(x, t, 0, h, 0, 0)]);
}

/* sums[c] += weight * |values[c]| */
static void add(double *sums, double weight, const double *values, int64_t count)
{
    for (int64_t c = 0; c < count; c++) {
        sums[c] += weight * fabs(values[c]);
    }
}

/* Query row i of the head: smu and nu of the row, and its row of sto. */
static void add_row(const struct arrays *x, const struct second *y, int64_t i, double *smu, double *sto,
                    double *nu)
{
    const ag_trace_args *r = y->first;
    const int64_t h = r->head, g = h / (x->p->heads / x->p->kv_heads), Dv = x->p->dim_v;
    const double mu_i = fabs(r->mu[i]), smu_i = fabs(y->smu[i]);
    *smu = r->Ps[i] * sink_of(x, T_SSINK, h);
    *nu = r->Ps[i] * (sink_of(x, T_TSINK, h) + mu_i) * (sink_of(x, T_SSINK, h) + smu_i);
    for (int64_t j = 0; j < agc_arrays_k_length(x, r->batch); j++) {
        const int64_t e = i * x->p->kv_len + j, v = agc_arrays_index(x, T_V, r->batch, g, j, 0);
        if (r->P[e] == 0) {
            continue;
        }
        const double tS = fabs(r->tS[e]) + mu_i, sS = fabs(y->sS[e]) + smu_i;
        const double W = tS * sS + fabs(y->stZ[e] * r->phi1[e]) + fabs(r->tZ[e] * r->phi2[e] * y->sZ[e]);
        *smu += r->P[e] * fabs(y->sS[e]);
        *nu += r->P[e] * W;
        add(sto, r->P[e] * W * r->M[e], agc_arrays_f64(x, T_V) + v, Dv);
        add(sto, r->P[e] * tS * r->M[e], agc_arrays_f64(x, T_SV) + v, Dv);
        add(sto, r->P[e] * sS * r->M[e], agc_arrays_f64(x, T_TV) + v, Dv);
    }
    add(sto, *nu, agc_arrays_f64(x, T_O) + agc_arrays_index(x, T_O, r->batch, h, i, 0), Dv);
}

ag_status agc_second_sizes_add(const struct arrays *x, const ag_trace_args *trace, double *smu, double *sto,
                               double *nu)
{
    const int64_t rows = x->p->q_len, pairs = rows * x->p->kv_len;
    double *memory =
        agc_alloc("the matrices of one head, queries times keys", 3 * pairs + rows, sizeof *memory);
    if (memory == NULL) {
        return AG_NO_MEMORY;
    }
    struct second y = {trace, memory, memory + pairs, memory + 2 * pairs, memory + 3 * pairs};
    const ag_status status = trace_both(x, &y);
    for (int64_t i = 0; i < agc_arrays_q_length(x, trace->batch) && status == AG_OK; i++) {
        const int64_t row = agc_arrays_index(x, T_LSE, trace->batch, trace->head, i, 0);
        const int64_t o = agc_arrays_index(x, T_O, trace->batch, trace->head, i, 0);
        add_row(x, &y, i, smu + row, sto + o, nu + row);
    }
    free(memory);
    return status;
}
