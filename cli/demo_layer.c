/* The four maps of the demo's layer. Each line of a derivative map quotes the line of the forward that
 * it differentiates; with C = A B they are
 *     vjp      dA = dC B^T,                   dB = A^T dC
 *     jvp      tC = tA B + A tB
 *     vjp_jvp  tdA = tdC B^T + dC tB^T,       tdB = tA^T dC + A^T tdC */
#include "demo_layer.h"

#include <stdlib.h>
#include <string.h>

/* ---- Products ---------------------------------------------------------------------------------- */

/* c += a b for a [n][k], b [k][m], both given by their strides, so that either may be a transpose. */
static void add_product(double *c, int n, int k, int m, const double *a, int a_row, int a_column,
                        const double *b, int b_row, int b_column)
{
    for (int i = 0; i < n; i++) {
        for (int j = 0; j < m; j++) {
            for (int l = 0; l < k; l++) {
                c[i * m + j] += a[i * a_row + l * a_column] * b[l * b_row + j * b_column];
            }
        }
    }
}

/* rows += a w, with rows and a [TOKENS][MODEL], w [MODEL][MODEL] */
static void add_aw(double *rows, const double *a, const double *w)
{
    add_product(rows, TOKENS, MODEL, MODEL, a, MODEL, 1, w, MODEL, 1);
}

/* rows += c w^T */
static void add_cwt(double *rows, const double *c, const double *w)
{
    add_product(rows, TOKENS, MODEL, MODEL, c, MODEL, 1, w, 1, MODEL);
}

/* w += a^T c */
static void add_atc(double *w, const double *a, const double *c)
{
    add_product(w, MODEL, TOKENS, MODEL, a, 1, MODEL, c, MODEL, 1);
}

/* ---- Attention --------------------------------------------------------------------------------- */

static void keep(struct layer *layer, ag_status status)
{
    if (layer->status == AG_OK) {
        layer->status = status;
    }
}

void layer_create(struct layer *layer)
{
    ag_problem problem = AG_PROBLEM_INIT;
    ag_options options = AG_OPTIONS_INIT;
    *layer = (struct layer){0};
    problem.dtype = AG_F64;
    problem.batch = 1;
    problem.heads = HEADS;
    problem.q_len = problem.kv_len = TOKENS;
    problem.dim_qk = DIM;
    options.backend = AG_BACKEND_REFERENCE; /* the one that can be traced */
    options.threads = 1;
    keep(layer, ag_plan_create(&layer->plan, &problem, &options));
    if (layer->status == AG_OK) {
        uint32_t maps = AG_MAP_FORWARD | AG_MAP_VJP | AG_MAP_JVP | AG_MAP_VJP_JVP;
        keep(layer, ag_plan_workspace(layer->plan, maps, &layer->bytes));
        layer->workspace = malloc(layer->bytes);
    }
}

void layer_destroy(struct layer *layer)
{
    ag_plan_destroy(layer->plan);
    free(layer->workspace);
}

static ag_tensor rows_of(const double *rows)
{
    return ag_bnhd(rows, HEADS, TOKENS, DIM);
}

static ag_tensor statistic_of(const double *L)
{
    return ag_bhnd(L, HEADS, TOKENS, 1);
}

/* The arguments of attention inside the layer, for each of its maps; what a map does not need is NULL. */
static ag_args arguments(const struct activations *a, const struct activations *da,
                         const struct activations *ta, const struct activations *tda)
{
    ag_args args = {.struct_size = sizeof args};
    args.q = rows_of(a->Q), args.k = rows_of(a->K), args.v = rows_of(a->V);
    args.o = rows_of(a->C), args.lse = statistic_of(a->L);
    if (da) {
        args.d_o = rows_of(da->C);
        args.dq = rows_of(da->Q), args.dk = rows_of(da->K), args.dv = rows_of(da->V);
    }
    if (ta) {
        args.tq = rows_of(ta->Q), args.tk = rows_of(ta->K), args.tv = rows_of(ta->V);
        args.to = rows_of(ta->C), args.mu = statistic_of(ta->L);
    }
    if (tda) {
        args.td_o = rows_of(tda->C);
        args.tdq = rows_of(tda->Q), args.tdk = rows_of(tda->K), args.tdv = rows_of(tda->V);
    }
    return args;
}

typedef ag_status (*map)(const ag_plan *, const ag_args *, const ag_exec *, void *, size_t);

static void attend(struct layer *layer, map run, ag_args args)
{
    if (layer->status == AG_OK) {
        layer->status = run(layer->plan, &args, NULL, layer->workspace, layer->bytes);
    }
}

/* ---- The maps ---------------------------------------------------------------------------------- */

void layer_forward(struct layer *layer, const struct inputs *x, struct activations *a)
{
    memset(a, 0, sizeof *a);
    add_aw(a->Q, x->X, x->Wq);                                 /* Q = X Wq */
    add_aw(a->K, x->X, x->Wk);                                 /* K = X Wk */
    add_aw(a->V, x->X, x->Wv);                                 /* V = X Wv */
    attend(layer, ag_forward, arguments(a, NULL, NULL, NULL)); /* C = concat(attention(Q_h, K_h, V_h)) */
    add_aw(a->Y, a->C, x->Wo);                                 /* Y = C Wo */
}

/* Clears what a backward map writes: all but Y, which it reads. */
static void clear_but_Y(struct activations *da)
{
    struct activations clear = {.L = {0}};
    memcpy(clear.Y, da->Y, sizeof clear.Y);
    *da = clear;
}

void layer_vjp(struct layer *layer, const struct inputs *x, const struct activations *a,
               struct activations *da, struct inputs *dx)
{
    clear_but_Y(da);
    memset(dx, 0, sizeof *dx);
    add_atc(dx->Wo, a->C, da->Y);                        /* Y = C Wo:   dWo = C^T dY */
    add_cwt(da->C, da->Y, x->Wo);                        /*             dC  = dY Wo^T */
    attend(layer, ag_vjp, arguments(a, da, NULL, NULL)); /* attention:  dQ, dK, dV */
    add_atc(dx->Wv, x->X, da->V);                        /* V = X Wv:   dWv = X^T dV */
    add_cwt(dx->X, da->V, x->Wv);                        /*             dX += dV Wv^T */
    add_atc(dx->Wk, x->X, da->K);                        /* K = X Wk:   dWk = X^T dK */
    add_cwt(dx->X, da->K, x->Wk);                        /*             dX += dK Wk^T */
    add_atc(dx->Wq, x->X, da->Q);                        /* Q = X Wq:   dWq = X^T dQ */
    add_cwt(dx->X, da->Q, x->Wq);                        /*             dX += dQ Wq^T */
}

/* C = A W:  tC = tA W + A tW */
static void tangent(double *tC, const double *A, const double *tA, const double *W, const double *tW)
{
    add_aw(tC, tA, W);
    add_aw(tC, A, tW);
}

void layer_jvp(struct layer *layer, const struct inputs *x, const struct inputs *tx,
               const struct activations *a, struct activations *ta)
{
    memset(ta, 0, sizeof *ta);
    tangent(ta->Q, x->X, tx->X, x->Wq, tx->Wq);
    tangent(ta->K, x->X, tx->X, x->Wk, tx->Wk);
    tangent(ta->V, x->X, tx->X, x->Wv, tx->Wv);
    ag_args args = arguments(a, NULL, ta, NULL);
    args.o.data = args.lse.data = NULL; /* known already */
    attend(layer, ag_jvp, args);
    tangent(ta->Y, a->C, ta->C, x->Wo, tx->Wo);
}

/* One product C = A W of the layer, with all that its second-order map reads. */
struct product {
    const double *A, *tA, *W, *tW, *dC, *tdC;
};

/* tdW = tA^T dC + A^T tdC,  tdA += tdC W^T + dC tW^T */
static void gradient_tangents(double *tdW, double *tdA, struct product p)
{
    add_atc(tdW, p.tA, p.dC);
    add_atc(tdW, p.A, p.tdC);
    add_cwt(tdA, p.tdC, p.W);
    add_cwt(tdA, p.dC, p.tW);
}

void layer_vjp_jvp(struct layer *layer, const struct dual *at, struct activations *tda, struct inputs *tdx)
{
    const struct inputs *x = at->x, *tx = at->tx;
    const struct activations *a = at->a, *ta = at->ta, *da = at->da;
    clear_but_Y(tda);
    memset(tdx, 0, sizeof *tdx);
    gradient_tangents(tdx->Wo, tda->C, (struct product){a->C, ta->C, x->Wo, tx->Wo, da->Y, tda->Y});
    attend(layer, ag_vjp_jvp, arguments(a, da, ta, tda));
    gradient_tangents(tdx->Wv, tdx->X, (struct product){x->X, tx->X, x->Wv, tx->Wv, da->V, tda->V});
    gradient_tangents(tdx->Wk, tdx->X, (struct product){x->X, tx->X, x->Wk, tx->Wk, da->K, tda->K});
    gradient_tangents(tdx->Wq, tdx->X, (struct product){x->X, tx->X, x->Wq, tx->Wq, da->Q, tda->Q});
}

void layer_trace(struct layer *layer, const struct activations *a, const struct activations *da,
                 struct heads *heads)
{
    ag_args args = arguments(a, da, NULL, NULL);
    for (int h = 0; h < HEADS && layer->status == AG_OK; h++) {
        ag_trace_args trace = {.struct_size = sizeof trace, .head = h};
        trace.Z = heads->Z[h], trace.S = heads->S[h], trace.P = heads->P[h];
        trace.dP = heads->dP[h], trace.dS = heads->dS[h], trace.D = heads->D[h];
        trace.J = h == 0 ? heads->J : NULL;
        layer->status = ag_trace(layer->plan, AG_MAP_VJP, &args, &trace, layer->workspace, layer->bytes);
    }
}
