/* The five maps of the layer. A projection is R = A W + b: before attention A is an input and R is Q, K or V, after it
 * A is C and R is Y. Its derivatives are
 *
 *     vjp      dA = sum dR W^T               dW = A^T dR              db = 1^T dR
 *     jvp      tR = tA W + A tW + tb
 *     vjp_jvp  tdA = sum tdR W^T + dR tW^T   tdW = tA^T dR + A^T tdR  tdb = 1^T tdR
 *     jvp_jvp  stR = stA W + tA sW + sA tW   (stA of an input is zero)
 *
 * with dA summed over the projections that read A. Each left side is one sum of products, rounded once. */
#include "nn/layer.h"

/* One kind of variable (primal, t, d, td, s or st) of all projections. NULL: an input is zero, an output not wanted. */
typedef struct {
    const void *in[AGI_N_PROJECTIONS];  /* A, indexed by the projection whose input it is */
    const void *out[AGI_N_PROJECTIONS]; /* R */
    const void *params;
    bool gradient; /* stored in grad_dtype, except for C and Y, which have out_dtype */
} variables;

typedef struct {
    const agi_layer_call *call;
    variables x, t, d, td, s, st;
    int n_ops; /* pending ops: independent of each other, to be run in one parallel region */
    agi_gemm_op ops[AGI_MAX_OPS];
    ag_status status; /* of the first step that failed; no step runs after it */
} layer_run;

/* ---- Matrices ---- */

static ag_dtype activation_dtype(const layer_run *r, const variables *v, agi_projection w)
{
    const ag_problem *p = &r->call->layer->plan->p;
    return w == AGI_O ? p->out_dtype : v->gradient ? p->grad_dtype : p->dtype;
}

static ag_dtype param_dtype(const layer_run *r, const variables *v)
{
    const ag_problem *p = &r->call->layer->plan->p;
    return v->gradient ? p->grad_dtype : p->dtype;
}

static agi_matrix dense(const void *data, ag_dtype dtype, int64_t rows, int64_t cols)
{
    return (agi_matrix){
        .data = data, .dtype = dtype, .rows = rows, .cols = cols, .row_stride = cols, .col_stride = 1};
}

static bool of_keys(agi_projection w)
{
    return w == AGI_K || w == AGI_V;
}

/* A matrix of activations: only rows within their sequence's length are valid. */
static agi_matrix activations(const layer_run *r, agi_projection w, const void *data, ag_dtype dtype,
                              int64_t cols)
{
    const ag_layer *layer = r->call->layer;
    const ag_problem *p = &layer->plan->p;
    const ag_args *a = &r->call->attention.a;
    const int64_t *packed = of_keys(w) ? a->k_packed : a->q_packed;
    agi_matrix m = dense(data, dtype, of_keys(w) ? layer->k_rows : layer->q_rows, cols);
    if (agi_has(p, AG_PACKED)) {
        m.group = m.rows;
        m.lengths = &packed[p->batch];
    } else {
        m.group = of_keys(w) ? p->kv_len : p->q_len;
        m.lengths = of_keys(w) ? a->kv_lengths : a->q_lengths;
    }
    return m;
}

static agi_matrix in(const layer_run *r, const variables *v, agi_projection w)
{
    const agi_weights *x = &r->call->layer->projection[w];
    return activations(r, w, v->in[x->input], activation_dtype(r, v, w), x->rows);
}

static agi_matrix out(const layer_run *r, const variables *v, agi_projection w)
{
    return activations(r, w, v->out[w], activation_dtype(r, v, w), r->call->layer->projection[w].cols);
}

/* A column of ones, in a dtype that the fast products accept. Multiplied by a bias it gives that bias in
 * every row; transposed, it sums rows. */
static agi_matrix ones(const layer_run *r, agi_projection w)
{
    static const double one64 = 1;
    static const float one32 = 1;
    static const uint16_t one_bf16 = 0x3f80;
    const ag_dtype dtype = r->call->layer->plan->p.dtype;
    agi_matrix m = dtype == AG_F64    ? activations(r, w, &one64, AG_F64, 1)
                   : dtype == AG_BF16 ? activations(r, w, &one_bf16, AG_BF16, 1)
                                      : activations(r, w, &one32, AG_F32, 1);
    m.row_stride = 0;
    return m;
}

static const void *param_at(const layer_run *r, const variables *v, int64_t offset)
{
    if (v->params == NULL || offset < 0) {
        return NULL;
    }
    return (const char *)v->params + offset * (int64_t)ag_dtype_size(param_dtype(r, v));
}

static agi_matrix weights(const layer_run *r, const variables *v, agi_projection w)
{
    const agi_weights *x = &r->call->layer->projection[w];
    return dense(param_at(r, v, x->weights), param_dtype(r, v), x->rows, x->cols);
}

static agi_matrix bias(const layer_run *r, const variables *v, agi_projection w)
{
    const agi_weights *x = &r->call->layer->projection[w];
    return dense(param_at(r, v, x->bias), param_dtype(r, v), 1, x->cols);
}

static agi_matrix transposed(agi_matrix m)
{
    m.transposed = true;
    return m;
}

/* ---- Sums of products ---- */

/* Adds the product a b to the op's sum; does nothing if one of them is absent, which means zero. */
static void add(agi_gemm_op *op, agi_matrix a, agi_matrix b)
{
    if (a.data != NULL && b.data != NULL) {
        op->products[op->n_products++] = (agi_product){a, b};
    }
}

/* Begins an op that computes `to` as a sum, which is empty at first; if `to` is absent, the op is a dummy
 * that never runs. The only place that casts away const from an array that the caller gave as an output. */
static agi_gemm_op *begin(layer_run *r, agi_matrix to, uint32_t accumulate)
{
    agi_gemm_op *op = &r->ops[r->n_ops];
    r->n_ops += to.data != NULL;
    *op = (agi_gemm_op){.c = (void *)(uintptr_t)to.data,
                        .dtype = to.dtype,
                        .accumulate = (r->call->a.accumulate & accumulate) != 0,
                        .m = to.rows,
                        .n = to.cols};
    return op;
}

/* Runs the pending ops. */
static void finish(layer_run *r)
{
    if (r->status == AG_OK) {
        r->status =
            agi_gemm(r->ops, r->n_ops, r->call->layer->plan, r->call->attention.exec, &r->call->space.gemm);
    }
    r->n_ops = 0;
}

/* R = A W + b */
static void project(layer_run *r, agi_projection w)
{
    agi_gemm_op *op = begin(r, out(r, &r->x, w), w == AGI_O ? AG_LAYER_ACC_Y : 0);
    add(op, in(r, &r->x, w), weights(r, &r->x, w));
    add(op, ones(r, w), bias(r, &r->x, w));
}

/* tR = tA W + A tW + tb */
static void project_tangent(layer_run *r, agi_projection w)
{
    agi_gemm_op *op = begin(r, out(r, &r->t, w), w == AGI_O ? AG_LAYER_ACC_TY : 0);
    add(op, in(r, &r->t, w), weights(r, &r->x, w));
    add(op, in(r, &r->x, w), weights(r, &r->t, w));
    add(op, ones(r, w), bias(r, &r->t, w));
}

/* stR = stA W + tA sW + sA tW */
static void project_second_tangent(layer_run *r, agi_projection w)
{
    agi_gemm_op *op = begin(r, out(r, &r->st, w), w == AGI_O ? AG_LAYER_ACC_STY : 0);
    add(op, in(r, &r->st, w), weights(r, &r->x, w));
    add(op, in(r, &r->t, w), weights(r, &r->s, w));
    add(op, in(r, &r->s, w), weights(r, &r->t, w));
}

/* dA = sum dR W^T; tdA = sum tdR W^T + dR tW^T. w is the projection whose input A is. */
static void input_gradient(layer_run *r, agi_projection w)
{
    const agi_weights *projections = r->call->layer->projection;
    const bool second = r->call->map == AGI_VJP_JVP;
    const uint32_t first_bit = second ? AG_LAYER_ACC_TDX_Q : AG_LAYER_ACC_DX_Q;
    if (projections[w].input != w) {
        return;
    }
    agi_gemm_op *op = begin(r, in(r, second ? &r->td : &r->d, w), w == AGI_O ? 0 : first_bit << w);
    for (int u = 0; u < AGI_N_PROJECTIONS; u++) {
        const agi_projection reader = (agi_projection)u;
        if (projections[reader].input == w) {
            add(op, out(r, second ? &r->td : &r->d, reader), transposed(weights(r, &r->x, reader)));
            if (second) {
                add(op, out(r, &r->d, reader), transposed(weights(r, &r->t, reader)));
            }
        }
    }
}

/* dW = A^T dR, db = 1^T dR; tdW = tA^T dR + A^T tdR, tdb = 1^T tdR */
static void param_gradients(layer_run *r, agi_projection w)
{
    const bool second = r->call->map == AGI_VJP_JVP;
    const uint32_t bit = second ? AG_LAYER_ACC_TD_PARAMS : AG_LAYER_ACC_D_PARAMS;
    const variables *d = second ? &r->td : &r->d;
    agi_gemm_op *op = begin(r, weights(r, d, w), bit);
    if (second) {
        add(op, transposed(in(r, &r->t, w)), out(r, &r->d, w));
    }
    add(op, transposed(in(r, &r->x, w)), out(r, d, w));
    add(begin(r, bias(r, d, w), bit), transposed(ones(r, w)), out(r, d, w));
}

/* ---- The maps ---- */

static void attend(layer_run *r, const agi_call *attention)
{
    if (r->status == AG_OK) {
        r->status = attention->plan->backend->run(attention, r->call->space.attention);
    }
}

static void forward(layer_run *r)
{
    project(r, AGI_Q);
    project(r, AGI_K);
    project(r, AGI_V);
    finish(r);
    attend(r, &r->call->attention);
    project(r, AGI_O);
    finish(r);
}

static void jvp(layer_run *r)
{
    for (agi_projection w = AGI_Q; w <= AGI_V; w++) {
        project(r, w);
        project_tangent(r, w);
    }
    finish(r);
    attend(r, &r->call->attention);
    project(r, AGI_O);
    project_tangent(r, AGI_O);
    finish(r);
}

/* vjp and vjp_jvp: the same steps in the same order. */
static void backward(layer_run *r)
{
    input_gradient(r, AGI_O);
    param_gradients(r, AGI_O);
    finish(r);
    attend(r, &r->call->attention);
    for (agi_projection w = AGI_Q; w <= AGI_V; w++) {
        input_gradient(r, w);
        param_gradients(r, w);
    }
    finish(r);
}

/* The second tangent of C has two parts: attention's jvp along the second tangents of Q, K and V, and its jvp_jvp,
 * which is added to it. */
static void jvp_jvp(layer_run *r)
{
    for (agi_projection w = AGI_Q; w <= AGI_V; w++) {
        project_second_tangent(r, w);
    }
    finish(r);
    if (r->call->has_st) {
        attend(r, &r->call->along_st);
    }
    attend(r, &r->call->attention);
    project_second_tangent(r, AGI_O);
    finish(r);
}

static variables gather(const void *q, const void *k, const void *v, const agi_activations *inner,
                        const void *y, const void *params)
{
    void *const *at = inner->at;
    return (variables){
        .in = {q, k, v, at[AGI_O]}, .out = {at[AGI_Q], at[AGI_K], at[AGI_V], y}, .params = params};
}

static ag_status run(agi_map map, const ag_layer *layer, const ag_layer_args *args, const ag_exec *exec,
                     void *workspace, size_t bytes)
{
    agi_layer_call call;
    const ag_status status = agi_layer_check(&call, layer, map, args, exec, workspace, bytes);
    if (status != AG_OK) {
        return status;
    }
    const ag_layer_args *a = &call.a;
    layer_run r = {.call = &call,
                   .x = gather(a->x_q, a->x_k, a->x_v, &call.saved, a->y, a->params),
                   .t = gather(a->tx_q, a->tx_k, a->tx_v, &call.t_saved, a->ty, a->t_params),
                   .d = gather(a->dx_q, a->dx_k, a->dx_v, &call.d_saved, a->dy, a->d_params),
                   .td = gather(a->tdx_q, a->tdx_k, a->tdx_v, &call.space.td, a->tdy, a->td_params),
                   .s = gather(a->sx_q, a->sx_k, a->sx_v, &call.s_saved, NULL, a->s_params),
                   .st = gather(NULL, NULL, NULL, &call.space.st, a->sty, NULL)};
    r.d.gradient = r.td.gradient = true;
    switch (map) {
    case AGI_FORWARD: forward(&r); break;
    case AGI_JVP: jvp(&r); break;
    case AGI_JVP_JVP: jvp_jvp(&r); break;
    default: backward(&r); break;
    }
    return agi_exec_status(&call.exec, r.status);
}

ag_status ag_layer_forward(const ag_layer *layer, const ag_layer_args *args, const ag_exec *exec,
                           void *workspace, size_t bytes)
{
    return run(AGI_FORWARD, layer, args, exec, workspace, bytes);
}

ag_status ag_layer_vjp(const ag_layer *layer, const ag_layer_args *args, const ag_exec *exec, void *workspace,
                       size_t bytes)
{
    return run(AGI_VJP, layer, args, exec, workspace, bytes);
}

ag_status ag_layer_jvp(const ag_layer *layer, const ag_layer_args *args, const ag_exec *exec, void *workspace,
                       size_t bytes)
{
    return run(AGI_JVP, layer, args, exec, workspace, bytes);
}

ag_status ag_layer_vjp_jvp(const ag_layer *layer, const ag_layer_args *args, const ag_exec *exec,
                           void *workspace, size_t bytes)
{
    return run(AGI_VJP_JVP, layer, args, exec, workspace, bytes);
}

ag_status ag_layer_jvp_jvp(const ag_layer *layer, const ag_layer_args *args, const ag_exec *exec,
                           void *workspace, size_t bytes)
{
    return run(AGI_JVP_JVP, layer, args, exec, workspace, bytes);
}
