/* The layout of one head's variables in the workspace; loads them from the caller's tensors and stores them
 * there, rounded once. */
#include <math.h>
#include <string.h>

#include "core/number.h"
#include "reference/head.h"

/* ---- Layout ---- */

/* If rows * columns overflows, the arena refuses it. */
static void *take(agi_arena *arena, int64_t rows, int64_t columns, size_t size)
{
    return agi_take(arena, agi_saturating_product(rows, columns, 1, 1), size);
}

static void take_all(agi_arena *arena, double **const fields[], int n, int64_t rows, int64_t columns)
{
    for (int f = 0; f < n; f++) {
        *fields[f] = take(arena, rows, columns, sizeof(double));
    }
}

#define TAKE(arena, rows, columns, ...)                                                                      \
    take_all(arena, (double **const[]){__VA_ARGS__},                                                         \
             (int)(sizeof((double **const[]){__VA_ARGS__}) / sizeof(double **)), rows, columns)

void agi_reference_lay_out_head(head *x, agi_arena *arena, const ag_plan *plan, agi_map map)
{
    const int64_t Nq = plan->p.q_len, Nk = plan->p.kv_len, Dk = plan->p.dim_qk, Dv = plan->p.dim_v;
    const bool backward = map == AGI_VJP || map == AGI_VJP_JVP;
    const bool tangent = map == AGI_JVP || map == AGI_VJP_JVP || map == AGI_JVP_JVP;
    memset(x, 0, sizeof *x);
    TAKE(arena, Nq, Nk, &x->Z, &x->B, &x->S, &x->P, &x->M, &x->R);
    x->visible = take(arena, Nq, Nk, sizeof x->visible[0]);
    x->sees = take(arena, Nq, 1, sizeof x->sees[0]);
    TAKE(arena, Nq, 1, &x->L, &x->Ps);
    TAKE(arena, Nq, Dk, &x->Q);
    TAKE(arena, Nk, Dk, &x->K);
    TAKE(arena, Nk, Dv, &x->V);
    TAKE(arena, Nq, Dv, &x->O);
    if (backward) {
        TAKE(arena, Nq, Nk, &x->dP, &x->dS, &x->dZ);
        TAKE(arena, Nq, Dv, &x->dO);
        TAKE(arena, Nq, 1, &x->dL, &x->D);
    }
    if (map == AGI_VJP) {
        TAKE(arena, Nq, Dk, &x->dQ);
        TAKE(arena, Nk, Dk, &x->dK);
        TAKE(arena, Nk, Dv, &x->dV);
    }
    if (tangent) {
        TAKE(arena, Nq, Nk, &x->tB, &x->tZ, &x->tS, &x->tP, &x->tR);
        TAKE(arena, Nq, Dk, &x->tQ);
        TAKE(arena, Nk, Dk, &x->tK);
        TAKE(arena, Nk, Dv, &x->tV);
        TAKE(arena, Nq, Dv, &x->tO);
        TAKE(arena, Nq, 1, &x->mu);
    }
    if (map == AGI_JVP_JVP) {
        TAKE(arena, Nq, Nk, &x->sB, &x->sZ, &x->sS, &x->sP, &x->sR);
        TAKE(arena, Nq, Nk, &x->stZ, &x->stS, &x->PW, &x->RW);
        TAKE(arena, Nq, Dk, &x->sQ);
        TAKE(arena, Nk, Dk, &x->sK);
        TAKE(arena, Nk, Dv, &x->sV);
        TAKE(arena, Nq, Dv, &x->stO);
        TAKE(arena, Nq, 1, &x->smu, &x->nu);
    }
    if (map == AGI_VJP_JVP) {
        TAKE(arena, Nq, Nk, &x->tdP, &x->tdS, &x->tdZ);
        TAKE(arena, Nq, Dv, &x->tdO);
        TAKE(arena, Nq, 1, &x->tdL, &x->tD);
        TAKE(arena, Nq, Dk, &x->tdQ);
        TAKE(arena, Nk, Dk, &x->tdK);
        TAKE(arena, Nk, Dv, &x->tdV);
    }
}

/* ---- Loading ---- */

static double load_sink(const head *x, const ag_tensor *sink)
{
    const int64_t at = x->call->plan->p.heads == 1 ? 0 : x->h * sink->strides[1];
    return agi_load(x->call->plan->p.aux_dtype, sink->data, at);
}

void agi_reference_begin_head(head *x, const agi_call *call, int64_t b, int64_t h)
{
    const ag_problem *p = &call->plan->p;
    const bool sink = agi_has(p, AG_SINK);
    const bool tangent = x->tQ != NULL && sink && call->a.tsink.data != NULL;
    const bool second = x->sQ != NULL && sink && call->a.ssink.data != NULL;
    x->call = call;
    agi_sequence_of(&x->seq, call, b);
    x->h = h;
    x->n_q = x->seq.n_q;
    x->n_k = x->seq.n_k;
    x->Nk = p->kv_len;
    x->Dk = p->dim_qk;
    x->Dv = p->dim_v;
    x->scale = p->scale;
    x->softcap = p->softcap;
    x->s = sink ? load_sink(x, &call->a.sink) : -INFINITY;
    x->ts = tangent ? load_sink(x, &call->a.tsink) : 0;
    x->ss = second ? load_sink(x, &call->a.ssink) : 0;
}

/* Loads rows of one head of a view into a dense matrix; an absent tensor is zero. On an axis of size 1 the
 * index is 0, so that its stride has no effect. */
static void load_rows(double *X, const ag_tensor *t, ag_dtype dtype, int64_t b, int64_t h, int64_t row0,
                      int64_t n_rows, int64_t n_cols)
{
    for (int64_t i = 0; i < n_rows && X != NULL; i++) {
        for (int64_t c = 0; c < n_cols; c++) {
            const int64_t at =
                b * t->strides[0] + h * t->strides[1] + (row0 + i) * t->strides[2] + c * t->strides[3];
            X[i * n_cols + c] = t->data == NULL ? 0 : agi_load(dtype, t->data, at);
        }
    }
}

/* Adds the low half of O or tO, if it is given. */
static void add_low_half(const head *x, double *X, const ag_tensor *low)
{
    const ag_dtype dtype = x->call->plan->p.out_dtype;
    const double scale = agi_low_scale(dtype);
    for (int64_t i = 0; i < x->n_q && low->data != NULL; i++) {
        for (int64_t c = 0; c < x->Dv; c++) {
            const int64_t at = x->seq.view * low->strides[0] + x->h * low->strides[1] +
                               (x->seq.q0 + i) * low->strides[2] + c * low->strides[3];
            X[i * x->Dv + c] += agi_load(dtype, low->data, at) / scale;
        }
    }
}

static void load_query_rows(head *x, double *X, const ag_tensor *t, ag_dtype dtype, int64_t n_cols)
{
    if (!agi_cancelled(x->call->exec)) {
        load_rows(X, t, dtype, x->seq.view, x->h, x->seq.q0, x->n_q, n_cols);
    }
}

static void load_key_rows(head *x, double *X, const ag_tensor *t, int64_t n_cols)
{
    const ag_problem *p = &x->call->plan->p;
    if (!agi_cancelled(x->call->exec)) {
        load_rows(X, t, p->dtype, x->seq.view, x->h / (p->heads / p->kv_heads), x->seq.k0, x->n_k, n_cols);
    }
}

static void clear(double *X, int64_t n)
{
    if (X != NULL) {
        memset(X, 0, (size_t)n * sizeof X[0]);
    }
}

void agi_reference_load_keys(head *x)
{
    const ag_args *a = &x->call->a;
    load_key_rows(x, x->K, &a->k, x->Dk);
    load_key_rows(x, x->V, &a->v, x->Dv);
    load_key_rows(x, x->tK, &a->tk, x->Dk);
    load_key_rows(x, x->tV, &a->tv, x->Dv);
    load_key_rows(x, x->sK, &a->sk, x->Dk);
    load_key_rows(x, x->sV, &a->sv, x->Dv);
    clear(x->dK, x->n_k * x->Dk);
    clear(x->dV, x->n_k * x->Dv);
    clear(x->tdK, x->n_k * x->Dk);
    clear(x->tdV, x->n_k * x->Dv);
}

void agi_reference_load_queries(head *x)
{
    const ag_args *a = &x->call->a;
    const ag_problem *p = &x->call->plan->p;
    load_query_rows(x, x->Q, &a->q, p->dtype, x->Dk);
    load_query_rows(x, x->tQ, &a->tq, p->dtype, x->Dk);
    load_query_rows(x, x->sQ, &a->sq, p->dtype, x->Dk);
    load_query_rows(x, x->dO, &a->d_o, p->out_dtype, x->Dv);
    load_query_rows(x, x->dL, &a->d_lse, AG_F64, 1);
    load_query_rows(x, x->tdO, &a->td_o, p->out_dtype, x->Dv);
    load_query_rows(x, x->tdL, &a->td_lse, AG_F64, 1);
    if (x->call->map == AGI_VJP || x->call->map == AGI_VJP_JVP || x->call->map == AGI_JVP_JVP ||
        agi_given_o(x->call)) {
        load_query_rows(x, x->O, &a->o, p->out_dtype, x->Dv);
        add_low_half(x, x->O, &a->o_low);
        load_query_rows(x, x->L, &a->lse, AG_F64, 1);
    }
    if (x->call->map == AGI_VJP_JVP) {
        load_query_rows(x, x->tO, &a->to, p->out_dtype, x->Dv);
        add_low_half(x, x->tO, &a->to_low);
    }
    if (x->call->map == AGI_VJP_JVP || x->call->map == AGI_JVP_JVP) {
        load_query_rows(x, x->mu, &a->mu, AG_F64, 1);
        load_query_rows(x, x->smu, &a->smu, AG_F64, 1);
    }
}

/* ---- Storing ---- */

void agi_store_rows(agi_output out, int64_t b, int64_t h, int64_t row0, int64_t n_rows, int64_t n_cols,
                    const double *values, double fill)
{
    const int64_t *stride = out.t->strides;
    for (int64_t i = 0; i < n_rows && out.t->data != NULL; i++) {
        for (int64_t c = 0; c < n_cols; c++) {
            const int64_t at = b * stride[0] + h * stride[1] + (row0 + i) * stride[2] + c * stride[3];
            const double exact = values == NULL ? fill : values[i * n_cols + c];
            const double value = out.low_half ? agi_low_half(out.dtype, exact) : exact;
            const double before = out.accumulate ? agi_load(out.dtype, out.t->data, at) : 0;
            agi_store(out.dtype, out.t->data, at, out.accumulate ? before + value : value);
        }
    }
}

/* An output whose rows are queries or keys. */
typedef struct {
    size_t tensor, values; /* offsets in ag_args and in head */
    agi_map map;
    uint32_t accumulate;
    agi_shape shape;
    int32_t dtype; /* a dtype, OUT_DTYPE, LOW_HALF or GRAD_DTYPE */
    double fill;   /* the value of rows that belong to no sequence */
} row_output;

enum { OUT_DTYPE = -1, GRAD_DTYPE = -2, LOW_HALF = -3 };

#define AT(tensor, values) offsetof(ag_args, tensor), offsetof(head, values)

static const row_output row_outputs[] = {
    {AT(o, O), AGI_FORWARD, AG_ACC_O, AGI_SHAPE_O, OUT_DTYPE, 0},
    {AT(o_low, O), AGI_FORWARD, 0, AGI_SHAPE_O, LOW_HALF, 0},
    {AT(lse, L), AGI_FORWARD, AG_ACC_LSE, AGI_SHAPE_ROW, AG_F64, -INFINITY},
    {AT(o, O), AGI_JVP, AG_ACC_O, AGI_SHAPE_O, OUT_DTYPE, 0},
    {AT(o_low, O), AGI_JVP, 0, AGI_SHAPE_O, LOW_HALF, 0},
    {AT(lse, L), AGI_JVP, AG_ACC_LSE, AGI_SHAPE_ROW, AG_F64, -INFINITY},
    {AT(to, tO), AGI_JVP, AG_ACC_TO, AGI_SHAPE_O, OUT_DTYPE, 0},
    {AT(to_low, tO), AGI_JVP, 0, AGI_SHAPE_O, LOW_HALF, 0},
    {AT(mu, mu), AGI_JVP, AG_ACC_MU, AGI_SHAPE_ROW, AG_F64, 0},
    {AT(dq, dQ), AGI_VJP, AG_ACC_DQ, AGI_SHAPE_Q, GRAD_DTYPE, 0},
    {AT(dk, dK), AGI_VJP, AG_ACC_DK, AGI_SHAPE_K, GRAD_DTYPE, 0},
    {AT(dv, dV), AGI_VJP, AG_ACC_DV, AGI_SHAPE_V, GRAD_DTYPE, 0},
    {AT(tdq, tdQ), AGI_VJP_JVP, AG_ACC_TDQ, AGI_SHAPE_Q, GRAD_DTYPE, 0},
    {AT(tdk, tdK), AGI_VJP_JVP, AG_ACC_TDK, AGI_SHAPE_K, GRAD_DTYPE, 0},
    {AT(tdv, tdV), AGI_VJP_JVP, AG_ACC_TDV, AGI_SHAPE_V, GRAD_DTYPE, 0},
    {AT(sto, stO), AGI_JVP_JVP, AG_ACC_STO, AGI_SHAPE_O, OUT_DTYPE, 0},
    {AT(nu, nu), AGI_JVP_JVP, AG_ACC_NU, AGI_SHAPE_ROW, AG_F64, 0},
};

enum { N_ROW_OUTPUTS = sizeof row_outputs / sizeof row_outputs[0] };

static bool of_keys(const row_output *r)
{
    return r->shape == AGI_SHAPE_K || r->shape == AGI_SHAPE_V;
}

/* Does the call write it? A jvp that is given O and L does not write them. */
static bool is_written(const agi_call *call, const row_output *r)
{
    const bool of_forward = r->values == offsetof(head, O) || r->values == offsetof(head, L);
    return r->map == call->map && !(of_forward && agi_given_o(call));
}

static agi_output output_of(const agi_call *call, const row_output *r)
{
    const ag_problem *p = &call->plan->p;
    return (agi_output){
        (const ag_tensor *)(const void *)((const char *)&call->a + r->tensor),
        r->dtype == OUT_DTYPE || r->dtype == LOW_HALF ? p->out_dtype
        : r->dtype == GRAD_DTYPE                      ? p->grad_dtype
                                                      : r->dtype,
        (call->a.accumulate & r->accumulate) != 0,
        r->dtype == LOW_HALF,
    };
}

/* Stores the rows of the sequence and, unless it is packed, the padding after its end. */
static void store(const head *x, const row_output *r, int64_t h, int64_t row0, int64_t n)
{
    const double *values;
    int64_t size[4];
    if (agi_cancelled(x->call->exec)) {
        return;
    }
    memcpy(&values, (const char *)x + r->values, sizeof values);
    agi_shape_of(&x->call->plan->p, r->shape, size);
    const agi_output out = output_of(x->call, r);
    agi_store_rows(out, x->seq.view, h, row0, n, size[3], values, 0);
    if (!agi_has(&x->call->plan->p, AG_PACKED)) {
        agi_store_rows(out, x->seq.view, h, n, size[2] - n, size[3], NULL, r->fill);
    }
}

void agi_reference_store_queries(const head *x)
{
    for (int r = 0; r < N_ROW_OUTPUTS; r++) {
        if (is_written(x->call, &row_outputs[r]) && !of_keys(&row_outputs[r])) {
            store(x, &row_outputs[r], x->h, x->seq.q0, x->n_q);
        }
    }
}

void agi_reference_store_keys(const head *x)
{
    const ag_problem *p = &x->call->plan->p;
    for (int r = 0; r < N_ROW_OUTPUTS; r++) {
        if (is_written(x->call, &row_outputs[r]) && of_keys(&row_outputs[r])) {
            store(x, &row_outputs[r], x->h / (p->heads / p->kv_heads), x->seq.k0, x->n_k);
        }
    }
}

/* Packed arrays may have rows after the last sequence. */
void agi_store_packed_tails(const agi_call *call)
{
    const ag_problem *p = &call->plan->p;
    for (int r = 0; r < N_ROW_OUTPUTS && agi_has(p, AG_PACKED); r++) {
        int64_t size[4];
        const int64_t end = (of_keys(&row_outputs[r]) ? call->a.k_packed : call->a.q_packed)[p->batch];
        agi_shape_of(p, row_outputs[r].shape, size);
        for (int64_t h = 0; h < size[1] && is_written(call, &row_outputs[r]); h++) {
            agi_store_rows(output_of(call, &row_outputs[r]), 0, h, end, size[2] - end, size[3], NULL,
                           row_outputs[r].fill);
        }
    }
}
