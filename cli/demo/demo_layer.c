/* The demo's layer: a layer of the library with its buffers, and copies of the saved variables for printing. */
#include "demo_layer.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* ---- The layer and its buffers ----------------------------------------------------------------- */

static void record_status(struct layer *layer, ag_status status)
{
    if (layer->status == AG_OK) {
        layer->status = status;
    }
}

/* If a buffer cannot be allocated, the map that needs it will refuse it. */
static void create_buffers(struct layer *layer)
{
    uint32_t maps = AG_MAP_FORWARD | AG_MAP_VJP | AG_MAP_JVP | AG_MAP_VJP_JVP;
    size_t saved = 0, d_saved = 0;
    record_status(layer, ag_layer_workspace(layer->layer, maps, &layer->bytes));
    record_status(layer, ag_layer_saved(layer->layer, AG_SAVED, &saved));
    record_status(layer, ag_layer_saved(layer->layer, AG_D_SAVED, &d_saved));
    layer->workspace = malloc(layer->bytes);
    layer->saved = malloc(saved);
    layer->t_saved = malloc(saved);
    layer->d_saved = malloc(d_saved);
}

void layer_create(struct layer *layer)
{
    ag_problem problem = AG_PROBLEM_INIT;
    ag_options options = AG_OPTIONS_INIT;
    ag_layer_desc desc = AG_LAYER_DESC_INIT;
    *layer = (struct layer){0};
    problem.dtype = AG_F64;
    problem.batch = 1;
    problem.heads = HEADS;
    problem.q_len = problem.kv_len = TOKENS;
    problem.dim_qk = DIM;
    options.backend = AG_BACKEND_REFERENCE; /* the one that can be traced */
    options.threads = 1;
    desc.attention = &problem;
    desc.d_model = MODEL;
    desc.flags = AG_LAYER_SELF;
    record_status(layer, ag_layer_create(&layer->layer, &desc, &options));
    if (layer->status == AG_OK) {
        create_buffers(layer);
    }
}

void layer_destroy(struct layer *layer)
{
    ag_layer_destroy(layer->layer);
    free(layer->workspace);
    free(layer->saved);
    free(layer->t_saved);
    free(layer->d_saved);
}

/* ---- The maps ---------------------------------------------------------------------------------- */

/* Wq, Wk, Wv and Wo are contiguous in struct inputs: they form the layer's array of parameters. */
static void *weights_of(const struct inputs *x)
{
    return (void *)((uintptr_t)x + offsetof(struct inputs, Wq));
}

static ag_layer_args arguments(const struct layer *layer, const struct inputs *x, double *Y)
{
    ag_layer_args args = AG_LAYER_ARGS_INIT;
    args.params = weights_of(x);
    args.x_q = x->X;
    args.y = Y;
    args.saved = layer->saved;
    args.t_saved = layer->t_saved;
    args.d_saved = layer->d_saved;
    return args;
}

typedef ag_status (*map)(const ag_layer *, const ag_layer_args *, const ag_exec *, void *, size_t);

static void run(struct layer *layer, map function, const ag_layer_args *args)
{
    if (layer->status == AG_OK) {
        layer->status = function(layer->layer, args, NULL, layer->workspace, layer->bytes);
    }
}

/* Copies a view to [token][head][channel] or, with one channel, to [head][token]: the strides are those of `to`. */
static void copy_view(double *to, const ag_tensor *from, int channels, int head_stride, int token_stride)
{
    for (int i = 0; i < TOKENS; i++) {
        for (int h = 0; h < HEADS; h++) {
            for (int c = 0; c < channels; c++) {
                const double *data = from->data;
                to[h * head_stride + i * token_stride + c] =
                    data[h * from->strides[1] + i * from->strides[2] + c * from->strides[3]];
            }
        }
    }
}

static void copy_saved(struct layer *layer, ag_saved which, void *buffer, struct activations *a)
{
    ag_saved_views views = {.struct_size = sizeof views};
    if (layer->status != AG_OK) {
        return;
    }
    layer->status = ag_layer_saved_views(layer->layer, which, buffer, &views);
    copy_view(a->Q, &views.q, DIM, DIM, MODEL);
    copy_view(a->K, &views.k, DIM, DIM, MODEL);
    copy_view(a->V, &views.v, DIM, DIM, MODEL);
    copy_view(a->C, &views.o, DIM, DIM, MODEL);
    if (which == AG_SAVED) {
        copy_view(a->L, &views.lse, 1, TOKENS, 1);
    }
}

void layer_forward(struct layer *layer, const struct inputs *x, struct activations *a)
{
    ag_layer_args args = arguments(layer, x, a->Y);
    memset(a, 0, sizeof *a);
    run(layer, ag_layer_forward, &args);
    copy_saved(layer, AG_SAVED, layer->saved, a);
}

void layer_vjp(struct layer *layer, const struct inputs *x, struct activations *da, struct inputs *dx)
{
    double Y[ROWS];
    ag_layer_args args = arguments(layer, x, Y);
    memset(dx, 0, sizeof *dx);
    args.dy = da->Y;
    args.dx_q = dx->X;
    args.d_params = weights_of(dx);
    run(layer, ag_layer_forward, &args);
    run(layer, ag_layer_vjp, &args);
    copy_saved(layer, AG_D_SAVED, layer->d_saved, da);
}

void layer_jvp(struct layer *layer, const struct inputs *x, const struct inputs *tx, struct activations *ta)
{
    double Y[ROWS];
    ag_layer_args args = arguments(layer, x, Y);
    memset(ta, 0, sizeof *ta);
    args.tx_q = tx->X;
    args.t_params = weights_of(tx);
    args.ty = ta->Y;
    run(layer, ag_layer_jvp, &args);
    copy_saved(layer, AG_SAVED, layer->t_saved, ta);
}

void layer_along(struct layer *layer, const struct inputs *x, const struct inputs *tx, const double *dY,
                 double *tY, struct inputs *tdx)
{
    double Y[ROWS];
    ag_layer_args args = arguments(layer, x, Y);
    memset(tY, 0, ROWS * sizeof *tY);
    memset(tdx, 0, sizeof *tdx);
    args.tx_q = tx->X;
    args.t_params = weights_of(tx);
    args.ty = tY;
    args.dy = dY;
    args.tdy = tY;
    args.tdx_q = tdx->X;
    args.td_params = weights_of(tdx);
    run(layer, ag_layer_jvp, &args);
    run(layer, ag_layer_vjp, &args);
    run(layer, ag_layer_vjp_jvp, &args);
}

/* ---- Attention's own variables ----------------------------------------------------------------- */

ag_tensor rows_of(const double *rows)
{
    return ag_bnhd(rows, HEADS, TOKENS, DIM);
}

void layer_trace(struct layer *layer, const struct activations *a, const struct activations *da,
                 struct heads *heads)
{
    ag_args args = {.struct_size = sizeof args};
    args.q = rows_of(a->Q), args.k = rows_of(a->K), args.v = rows_of(a->V);
    args.o = rows_of(a->C), args.lse = ag_bhnd(a->L, HEADS, TOKENS, 1);
    args.d_o = rows_of(da->C);
    for (int h = 0; h < HEADS && layer->status == AG_OK; h++) {
        ag_trace_args trace = {.struct_size = sizeof trace, .head = h};
        trace.Z = heads->Z[h], trace.S = heads->S[h], trace.P = heads->P[h];
        trace.dP = heads->dP[h], trace.dS = heads->dS[h], trace.D = heads->D[h];
        trace.J = h == 0 ? heads->J : NULL;
        layer->status =
            ag_trace(ag_layer_plan(layer->layer), AG_MAP_VJP, &args, &trace, layer->workspace, layer->bytes);
    }
}
