/* The errors of the four source documents, one function each, in the order of docs/errata.md. Each function
 * computes what the document prints and the correction, and compares both with central differences of
 * attention itself, or with attention in float64 if no gradient is at issue (and the correction with the
 * library, if it is one of its outputs). The printed form must be far off or have an impossible shape, the
 * correction must be close. The formulas are written in plain matrix products, independent of the library,
 * with the names of docs/math.md. */
#include "check/stencil.h"
#include "test.h"

#include <math.h>

/* ---- Small matrices, by value ------------------------------------------------------------------ */

enum { MAT_MAX = 64, HEADS = 2, BATCH = 3 };

/* rows = 0: a product or reshape that does not exist. */
typedef struct mat {
    int rows, cols;
    double a[MAT_MAX];
} mat;

static mat zeros(int rows, int cols)
{
    mat m = {0};
    m.rows = rows;
    m.cols = cols;
    return m;
}

static double at(const mat *m, int i, int j)
{
    return m->a[i * m->cols + j];
}

static mat mul(mat x, mat y)
{
    if (x.cols != y.rows) {
        return zeros(0, 0);
    }
    mat out = zeros(x.rows, y.cols);
    for (int i = 0; i < x.rows; i++) {
        for (int j = 0; j < y.cols; j++) {
            for (int k = 0; k < x.cols; k++) {
                out.a[i * y.cols + j] += at(&x, i, k) * at(&y, k, j);
            }
        }
    }
    return out;
}

static mat transpose(mat x)
{
    mat out = zeros(x.cols, x.rows);
    for (int i = 0; i < x.rows; i++) {
        for (int j = 0; j < x.cols; j++) {
            out.a[j * x.rows + i] = at(&x, i, j);
        }
    }
    return out;
}

/* x + factor * y */
static mat add(mat x, double factor, mat y)
{
    for (int k = 0; k < x.rows * x.cols; k++) {
        x.a[k] += factor * y.a[k];
    }
    return x;
}

static mat scaled(double factor, mat x)
{
    for (int k = 0; k < x.rows * x.cols; k++) {
        x.a[k] *= factor;
    }
    return x;
}

/* Elementwise product. */
static mat times(mat x, mat y)
{
    for (int k = 0; k < x.rows * x.cols; k++) {
        x.a[k] *= y.a[k];
    }
    return x;
}

static mat filled(int rows, int cols, double value)
{
    mat m = zeros(rows, cols);
    for (int k = 0; k < rows * cols; k++) {
        m.a[k] = value;
    }
    return m;
}

static mat identity(int n)
{
    mat m = zeros(n, n);
    for (int i = 0; i < n; i++) {
        m.a[i * n + i] = 1;
    }
    return m;
}

/* Each row's sum, repeated in all of its columns. */
static mat rowsums(mat x)
{
    return mul(x, filled(x.cols, x.cols, 1));
}

static mat row_of(const mat *x, int i)
{
    mat out = zeros(1, x->cols);
    for (int j = 0; j < x->cols; j++) {
        out.a[j] = at(x, i, j);
    }
    return out;
}

static mat diagonal_of(mat x)
{
    mat out = zeros(1, x.rows);
    for (int i = 0; i < x.rows; i++) {
        out.a[i] = at(&x, i, i);
    }
    return out;
}

static mat columns(mat x, int first, int count)
{
    mat out = zeros(x.rows, count);
    for (int i = 0; i < x.rows; i++) {
        for (int j = 0; j < count; j++) {
            out.a[i * count + j] = at(&x, i, first + j);
        }
    }
    return out;
}

static mat side_by_side(mat x, mat y)
{
    mat out = zeros(x.rows, x.cols + y.cols);
    for (int i = 0; i < x.rows; i++) {
        for (int j = 0; j < out.cols; j++) {
            out.a[i * out.cols + j] = j < x.cols ? at(&x, i, j) : at(&y, i, j - x.cols);
        }
    }
    return out;
}

static mat reshaped(mat x, int rows, int cols)
{
    if (rows * cols != x.rows * x.cols) {
        return zeros(0, 0);
    }
    x.rows = rows;
    x.cols = cols;
    return x;
}

static double inner(mat x, mat y)
{
    double sum = 0;
    for (int k = 0; k < x.rows * x.cols; k++) {
        sum += x.a[k] * y.a[k];
    }
    return sum;
}

/* Largest difference over largest magnitude; infinite if the shapes differ, if a difference is not finite, or if truth
 * is all zeros, which would show nothing. */
static double deviation(mat x, mat truth)
{
    double worst = 0, magnitude = 0;
    if (x.rows != truth.rows || x.cols != truth.cols) {
        return INFINITY;
    }
    for (int k = 0; k < x.rows * x.cols; k++) {
        double difference = fabs(x.a[k] - truth.a[k]);
        if (!(difference < INFINITY)) {
            return INFINITY;
        }
        worst = fmax(worst, difference);
        magnitude = fmax(magnitude, fabs(truth.a[k]));
    }
    return magnitude > 0 ? worst / magnitude : INFINITY;
}

static uint64_t random_state;

/* Uniform in (-1, 1), from a fixed seed: every run has the same values. */
static mat drawn(int rows, int cols)
{
    mat m = zeros(rows, cols);
    for (int k = 0; k < rows * cols; k++) {
        random_state = random_state * 6364136223846793005u + 1442695040888963407u;
        m.a[k] = (double)(random_state >> 11) * 0x1p-52 - 1;
    }
    return m;
}

/* The gradient of loss(all) by finite differences in each element of *x, which is a part of *all. Its error is
 * h^4 / 480 times the fifth derivative, plus rounding of about 1e-16 / h. */
static mat differences(double (*loss)(const void *), const void *all, mat *x)
{
    const double h = 2e-3;
    mat out = zeros(x->rows, x->cols);
    for (int k = 0; k < x->rows * x->cols; k++) {
        double kept = x->a[k];
        for (int p = 0; p < STENCIL_POINTS; p++) {
            x->a[k] = kept + agc_stencil[p].at * h;
            out.a[k] += agc_stencil[p].weight / h * loss(all);
        }
        x->a[k] = kept;
    }
    return out;
}

/* ---- One head ---------------------------------------------------------------------------------- */

typedef struct head {
    mat Q, K, V, dO;
    double scale;
} head;

typedef struct head_grads {
    mat P, dP, dS, dQ, dK, dV;
} head_grads;

static head draw_head(int nq, int nk, int dk, int dv)
{
    head x = {drawn(nq, dk), drawn(nk, dk), drawn(nk, dv), drawn(nq, dv), 1 / sqrt(dk)};
    return x;
}

static mat softmax(mat S)
{
    for (int i = 0; i < S.rows; i++) {
        double *row = S.a + i * S.cols;
        double max = row[0], sum = 0;
        for (int j = 1; j < S.cols; j++) {
            max = fmax(max, row[j]);
        }
        for (int j = 0; j < S.cols; j++) {
            row[j] = exp(row[j] - max);
            sum += row[j];
        }
        for (int j = 0; j < S.cols; j++) {
            row[j] /= sum;
        }
    }
    return S;
}

static mat head_weights(const head *x)
{
    return softmax(scaled(x->scale, mul(x->Q, transpose(x->K))));
}

static double head_loss(const void *all)
{
    const head *x = all;
    return inner(x->dO, mul(head_weights(x), x->V));
}

/* dS = P o (dP - rowsum(P o dP)) */
static mat softmax_vjp(mat P, mat dP)
{
    return times(P, add(dP, -1, rowsums(times(P, dP))));
}

static head_grads head_vjp(const head *x)
{
    head_grads g;
    g.P = head_weights(x);
    g.dP = mul(x->dO, transpose(x->V));
    g.dS = softmax_vjp(g.P, g.dP);
    g.dQ = scaled(x->scale, mul(g.dS, x->K));
    g.dK = scaled(x->scale, mul(transpose(g.dS), x->Q));
    g.dV = mul(transpose(g.P), x->dO);
    return g;
}

/* ---- The library on one head ------------------------------------------------------------------- */

static ag_tensor view(const mat *m)
{
    return ag_bhnd(m->a, 1, m->rows, m->cols);
}

/* ag_forward, and ag_vjp if there is a cotangent. 0 if any call failed. */
static int run_library(const ag_problem *problem, const ag_args *args)
{
    ag_plan *plan = NULL;
    size_t bytes = 0;
    if (!CHECK_OK(ag_plan_create(&plan, problem, NULL))) {
        return 0;
    }
    int done = CHECK_OK(ag_plan_workspace(plan, AG_MAP_FORWARD | AG_MAP_VJP, &bytes));
    void *workspace = malloc(bytes + 1);
    test_need(workspace != NULL, "no memory for the workspace");
    done = done && CHECK_OK(ag_forward(plan, args, NULL, workspace, bytes));
    if (done && args->d_o.data != NULL) {
        done = CHECK_OK(ag_vjp(plan, args, NULL, workspace, bytes));
    }
    free(workspace);
    ag_plan_destroy(plan);
    return done;
}

/* O and the three gradients as ag_forward and ag_vjp give them; empty matrices if these fail. */
typedef struct library_grads {
    mat O, dQ, dK, dV;
} library_grads;

static library_grads library_vjp(const head *x)
{
    library_grads g = {zeros(x->dO.rows, x->dO.cols), zeros(x->Q.rows, x->Q.cols),
                       zeros(x->K.rows, x->K.cols), zeros(x->V.rows, x->V.cols)};
    mat lse = zeros(x->Q.rows, 1);
    ag_problem p = AG_PROBLEM_INIT;
    ag_args args = {.struct_size = sizeof args};
    p.dtype = AG_F64;
    p.flags = AG_SCALE;
    p.scale = x->scale;
    p.batch = p.heads = 1;
    p.q_len = x->Q.rows;
    p.kv_len = x->K.rows;
    p.dim_qk = x->Q.cols;
    p.dim_v = x->V.cols;
    args.q = view(&x->Q), args.k = view(&x->K), args.v = view(&x->V), args.d_o = view(&x->dO);
    args.o = view(&g.O), args.lse = view(&lse);
    args.dq = view(&g.dQ), args.dk = view(&g.dK), args.dv = view(&g.dV);
    if (!run_library(&p, &args)) {
        g.O = g.dQ = g.dK = g.dV = zeros(0, 0);
    }
    return g;
}

/* With K = V = I and scale 1 the scores are Q, the weights O, and dQ is dS. */
static head scores_as_head(mat S, mat dP)
{
    head x = {S, identity(S.cols), identity(S.cols), dP, 1};
    return x;
}

static mat library_ds(mat S, mat dP)
{
    head x = scores_as_head(S, dP);
    return library_vjp(&x).dQ;
}

/* ---- The layer: two heads and the output projection -------------------------------------------- */

typedef struct layer {
    mat Xq, Xk, Xv;
    mat Wq[HEADS], Wk[HEADS], Wv[HEADS]; /* one block of columns per head */
    mat Wo[HEADS];                       /* one block of rows per head */
    mat dY;
    double scale;
} layer;

typedef struct layer_grads {
    head x[HEADS];
    head_grads g[HEADS];
    mat dWq[HEADS], dWk[HEADS], dWv[HEADS];
    mat dXq;
} layer_grads;

static layer draw_layer(int nq, int nk, int width, int dk, int dv)
{
    layer l;
    l.Xq = drawn(nq, width), l.Xk = drawn(nk, width), l.Xv = drawn(nk, width);
    l.dY = drawn(nq, width);
    l.scale = 1 / sqrt(dk);
    for (int h = 0; h < HEADS; h++) {
        l.Wq[h] = drawn(width, dk), l.Wk[h] = drawn(width, dk);
        l.Wv[h] = drawn(width, dv), l.Wo[h] = drawn(dv, width);
    }
    return l;
}

static head head_of(const layer *l, int h)
{
    head x = {mul(l->Xq, l->Wq[h]), mul(l->Xk, l->Wk[h]), mul(l->Xv, l->Wv[h]),
              mul(l->dY, transpose(l->Wo[h])), l->scale};
    return x;
}

/* <dY, Y>, with Y = concat(O_1, O_2) Wo taken block by block. */
static double layer_loss(const void *all)
{
    const layer *l = all;
    double sum = 0;
    for (int h = 0; h < HEADS; h++) {
        head x = head_of(l, h);
        sum += inner(l->dY, mul(mul(head_weights(&x), x.V), l->Wo[h]));
    }
    return sum;
}

static layer_grads layer_vjp(const layer *l)
{
    layer_grads g;
    g.dXq = zeros(l->Xq.rows, l->Xq.cols);
    for (int h = 0; h < HEADS; h++) {
        g.x[h] = head_of(l, h);
        g.g[h] = head_vjp(&g.x[h]);
        g.dWq[h] = mul(transpose(l->Xq), g.g[h].dQ);
        g.dWk[h] = mul(transpose(l->Xk), g.g[h].dK);
        g.dWv[h] = mul(transpose(l->Xv), g.g[h].dV);
        g.dXq = add(g.dXq, 1, mul(g.g[h].dQ, transpose(l->Wq[h])));
    }
    return g;
}

/* ---- Document 000 ------------------------------------------------------------------------------ */

/* What a slip measured: the printed form's smallest deviation, the correction's largest. */
typedef struct result {
    double printed, corrected;
} result;

/* Printed: dW^K = gamma K^T P_h G^T Q W^Q d((W^K)^T). K and Q are the layer's inputs; P_h selects the columns of
 * head h, so that P_h G^T is the transpose of this head's dS. The last factor is stray: a differential is no matrix to
 * multiply with, so (W^K)^T is taken for it. The result is [width, width]: a wrong shape if d_k = 2, wrong values if
 * d_k = 4 = width. */
static result stray_factor_in_dwk(void)
{
    result r = {INFINITY, 0};
    static const int dks[2] = {2, 4};
    for (int c = 0; c < 2; c++) {
        layer l = draw_layer(3, 5, 4, dks[c], 3);
        layer_grads g = layer_vjp(&l);
        for (int h = 0; h < HEADS; h++) {
            mat truth = differences(layer_loss, &l, &l.Wk[h]);
            mat fixed = scaled(l.scale, mul(mul(transpose(l.Xk), transpose(g.g[h].dS)), mul(l.Xq, l.Wq[h])));
            r.printed = fmin(r.printed, deviation(mul(fixed, transpose(l.Wk[h])), truth));
            r.corrected = fmax(r.corrected, deviation(fixed, truth));
        }
    }
    return r;
}

/* Printed: the gradient of W^v = diag(W^V_1, W^V_2) is A^T dY (W^O)^T, A = (P_1 V, P_2 V), a full matrix.
 * Only the diagonal blocks are parameters; the others must stay zero. */
static result block_diagonal_wv(void)
{
    layer l = draw_layer(3, 5, 4, 2, 3);
    layer_grads g = layer_vjp(&l);
    mat A = side_by_side(mul(g.g[0].P, l.Xv), mul(g.g[1].P, l.Xv));
    mat Wo_t = side_by_side(transpose(l.Wo[0]), transpose(l.Wo[1]));
    mat printed = mul(mul(transpose(A), l.dY), Wo_t);
    mat truth = zeros(printed.rows, printed.cols), fixed = truth;
    for (int h = 0; h < HEADS; h++) {
        mat block = differences(layer_loss, &l, &l.Wv[h]);
        mat ours = mul(mul(mul(transpose(l.Xv), transpose(g.g[h].P)), l.dY), transpose(l.Wo[h]));
        for (int i = 0; i < block.rows; i++) {
            for (int j = 0; j < block.cols; j++) {
                int k = (h * block.rows + i) * truth.cols + h * block.cols + j;
                truth.a[k] = at(&block, i, j);
                fixed.a[k] = at(&ours, i, j);
            }
        }
    }
    result r = {deviation(printed, truth), deviation(fixed, truth)};
    return r;
}

/* A of document 000 for one head: the weights times the unprojected values. */
static mat weighted_inputs(const layer *l, int h)
{
    head x = head_of(l, h);
    return mul(head_weights(&x), l->Xv);
}

/* Printed: df = tr(W^O dY^T d(A) W^v) while W^v changes. A does not contain W^v, so d(A) = 0. */
static result d_before_a_constant(void)
{
    layer l = draw_layer(3, 5, 4, 2, 3), moved = l;
    mat tW = drawn(4, 3), truth = zeros(1, 1), printed = truth, fixed = truth;
    moved.Wv[0] = add(l.Wv[0], 1, tW);
    mat A = weighted_inputs(&l, 0);
    mat tA = add(weighted_inputs(&moved, 0), -1, A);
    truth.a[0] = inner(differences(layer_loss, &l, &l.Wv[0]), tW);
    printed.a[0] = inner(l.dY, mul(mul(tA, l.Wv[0]), l.Wo[0]));
    fixed.a[0] = inner(l.dY, mul(mul(A, tW), l.Wo[0]));
    result r = {deviation(printed, truth), deviation(fixed, truth)};
    return r;
}

static mat float_softmax(mat S, int shifted)
{
    float max = (float)S.a[0], sum = 0;
    for (int j = 1; j < S.cols; j++) {
        max = fmaxf(max, (float)S.a[j]);
    }
    for (int j = 0; j < S.cols; j++) {
        sum += expf((float)S.a[j] - (shifted ? max : 0));
    }
    for (int j = 0; j < S.cols; j++) {
        S.a[j] = (double)(expf((float)S.a[j] - (shifted ? max : 0)) / sum);
    }
    return S;
}

/* The weights of one row of three float32 scores, by ag_forward with K = V = I. */
static mat library_float_weights(mat S)
{
    float q[3] = {(float)S.a[0], (float)S.a[1], (float)S.a[2]}, o[3] = {0};
    float eye[9] = {1, 0, 0, 0, 1, 0, 0, 0, 1};
    ag_problem p = AG_PROBLEM_INIT;
    ag_args args = {.struct_size = sizeof args};
    p.dtype = AG_F32;
    p.flags = AG_SCALE;
    p.scale = 1;
    p.batch = p.heads = p.q_len = 1;
    p.kv_len = p.dim_qk = 3;
    args.q = ag_bhnd(q, 1, 1, 3), args.o = ag_bhnd(o, 1, 1, 3);
    args.k = args.v = ag_bhnd(eye, 1, 3, 3);
    if (!run_library(&p, &args)) {
        return zeros(0, 0);
    }
    for (int j = 0; j < 3; j++) {
        S.a[j] = (double)o[j];
    }
    return S;
}

/* Printed: exp A over its row sums. The largest float32 is exp(88.72...): a score of 89 gives
 * infinity over infinity. Shifted by the row maximum it is the same function. */
static result unshifted_exp(void)
{
    mat S = {1, 3, {89.0, 88.5, 87.0}};
    mat truth = softmax(S);
    result r = {deviation(float_softmax(S, 0), truth), deviation(float_softmax(S, 1), truth)};
    r.corrected = fmax(r.corrected, deviation(library_float_weights(S), truth));
    return r;
}

/* Printed: the differential keeps head h alone. Right for W_h; an input feeds every head. */
static result one_head_for_inputs(void)
{
    layer l = draw_layer(3, 5, 4, 2, 3);
    layer_grads g = layer_vjp(&l);
    mat truth = differences(layer_loss, &l, &l.Xq);
    mat printed = mul(g.g[0].dQ, transpose(l.Wq[0]));
    result r = {deviation(printed, truth), deviation(g.dXq, truth)};
    return r;
}

/* f = <dP, softmax(S)>: the loss as a function of the scores. */
typedef struct scores {
    mat S, dP;
} scores;

static scores draw_scores(int nq, int nk)
{
    scores x = {scaled(2, drawn(nq, nk)), drawn(nq, nk)};
    return x;
}

static double scores_loss(const void *all)
{
    const scores *x = all;
    return inner(x->dP, softmax(x->S));
}

static mat reciprocal(mat x)
{
    for (int k = 0; k < x.rows * x.cols; k++) {
        x.a[k] = 1 / x.a[k];
    }
    return x;
}

/* Document 000's df/dA with I the all-ones matrix of n x n; its E is our exp(S), its A our S. */
static mat ones_formula(const scores *x, int n)
{
    mat E = x->S, I = filled(n, n, 1);
    for (int k = 0; k < E.rows * E.cols; k++) {
        E.a[k] = exp(E.a[k]);
    }
    mat Y = mul(E, I);
    if (Y.rows == 0) {
        return Y;
    }
    Y = reciprocal(Y);
    mat G = times(x->dP, times(E, Y));
    return add(G, -1, times(mul(times(G, Y), transpose(I)), E));
}

/* Printed: I is n x n with n the number of queries. exp(A) I needs the number of keys. */
static result ones_matrix_of_queries(void)
{
    scores x = draw_scores(3, 5);
    mat truth = differences(scores_loss, &x, &x.S);
    result r = {deviation(ones_formula(&x, 3), truth), deviation(ones_formula(&x, 5), truth)};
    return r;
}

/* ---- Document 001 ------------------------------------------------------------------------------ */

/* Printed: Omega K and Omega^t Q for softmax(Q K^t) V. With a scale inside softmax, which training
 * code has, one factor scale goes into the scores and one before both products. */
static result attention_without_scale(void)
{
    result r = {INFINITY, 0};
    head x = draw_head(3, 5, 2, 4), bare = x;
    bare.scale = 1;
    mat dQ = differences(head_loss, &x, &x.Q), dK = differences(head_loss, &x, &x.K);
    head_grads printed = head_vjp(&bare), fixed = head_vjp(&x);
    r.printed = fmin(deviation(printed.dQ, dQ), deviation(printed.dK, dK));
    r.corrected = fmax(deviation(fixed.dQ, dQ), deviation(fixed.dK, dK));
    /* The parameter serves the document's own case too: scale = 1. */
    r.corrected = fmax(r.corrected, deviation(library_vjp(&bare).dQ, differences(head_loss, &bare, &bare.Q)));
    r.corrected = fmax(r.corrected, deviation(library_vjp(&x).dQ, dQ));
    return r;
}

/* ---- Document 002: formulas -------------------------------------------------------------------- */

/* Printed: dS = dA o A - A dA^T A. Of A dA^T only the diagonal belongs there. */
static result triple_product(void)
{
    scores x = draw_scores(3, 5);
    mat A = softmax(x.S), truth = differences(scores_loss, &x, &x.S);
    mat printed = add(times(x.dP, A), -1, mul(mul(A, transpose(x.dP)), A));
    result r = {deviation(printed, truth), deviation(softmax_vjp(A, x.dP), truth)};
    r.corrected = fmax(r.corrected, deviation(library_ds(x.S, x.dP), truth));
    return r;
}

/* J[j][k] = dA_j / dS_k of one row of scores, by differences of each A_j. */
static mat true_jacobian(mat row)
{
    mat J = zeros(row.cols, row.cols);
    for (int j = 0; j < row.cols; j++) {
        scores x = {row, zeros(1, row.cols)};
        x.dP.a[j] = 1;
        mat g = differences(scores_loss, &x, &x.S);
        for (int k = 0; k < row.cols; k++) {
            J.a[j * row.cols + k] = g.a[k];
        }
    }
    return J;
}

/* diag(A) - A^T A of one row of weights. */
static mat jacobian(mat A)
{
    return add(times(identity(A.cols), mul(filled(A.cols, 1, 1), A)), -1, mul(transpose(A), A));
}

/* The library's: row j of dS if every row has the same scores and dA is the identity. */
static mat library_jacobian(mat row)
{
    return library_ds(mul(filled(row.cols, 1, 1), row), identity(row.cols));
}

/* Printed: dA_i / dS_i = A_i (I - A_i^T). As a matrix product, A_i the row of weights and A_i^T the
 * column subtracted from each column of I, it is a row of n elements, A_ik - |A_i|^2: neither the Jacobian
 * nor its diagonal. (Elementwise, with A_i as column and A_i^T as row, it would be right.) */
static result row_times_matrix(void)
{
    mat row = scaled(2, drawn(1, 5)), A = softmax(row), truth = true_jacobian(row);
    mat printed = mul(A, add(identity(5), -1, mul(transpose(A), filled(1, 5, 1))));
    result r = {fmin(deviation(printed, truth), deviation(printed, diagonal_of(truth))),
                fmax(deviation(jacobian(A), truth), deviation(library_jacobian(row), truth))};
    return r;
}

/* Printed: dK = Q^T dS / sqrt(d_k). It is [d_k, n_k]; if n_k = d_k, it is the transpose. */
static result dk_not_transposed(void)
{
    result r = {INFINITY, 0};
    static const int dks[2] = {2, 5};
    for (int c = 0; c < 2; c++) {
        head x = draw_head(3, 5, dks[c], 4);
        head_grads g = head_vjp(&x);
        mat truth = differences(head_loss, &x, &x.K);
        r.printed = fmin(r.printed, deviation(scaled(x.scale, mul(transpose(x.Q), g.dS)), truth));
        r.corrected = fmax(r.corrected, deviation(g.dK, truth));
        r.corrected = fmax(r.corrected, deviation(library_vjp(&x).dK, truth));
    }
    return r;
}

/* Printed: A o (dA - sum over i of A_i dA_i), i the rows: one value per column. */
static result sum_over_rows(void)
{
    scores x = draw_scores(4, 4);
    mat A = softmax(x.S), truth = differences(scores_loss, &x, &x.S);
    mat sums = mul(filled(4, 4, 1), times(A, x.dP));
    result r = {deviation(times(A, add(x.dP, -1, sums)), truth), deviation(softmax_vjp(A, x.dP), truth)};
    return r;
}

/* Printed: dS = dA J. Each row has its own Jacobian. */
static result one_jacobian_for_all_rows(void)
{
    result r = {INFINITY, 0};
    scores x = draw_scores(3, 5);
    mat A = softmax(x.S), truth = differences(scores_loss, &x, &x.S);
    for (int i = 0; i < 3; i++) {
        mat J = jacobian(row_of(&A, i));
        r.printed = fmin(r.printed, deviation(mul(x.dP, J), truth));
        r.corrected = fmax(r.corrected, deviation(mul(row_of(&x.dP, i), J), row_of(&truth, i)));
    }
    return r;
}

/* Printed: dA o A is the Jacobian's diagonal, the second term what is off it. The second term has
 * -A_j^2 on the diagonal as well. */
static result diagonal_terms(void)
{
    mat row = scaled(2, drawn(1, 5)), A = softmax(row), truth = true_jacobian(row);
    mat outer = mul(transpose(A), A), eye = identity(5);
    mat off_diagonal = times(outer, add(filled(5, 5, 1), -1, eye));
    mat diagonal = times(eye, mul(filled(5, 1, 1), A));
    result r = {deviation(add(diagonal, -1, off_diagonal), truth),
                deviation(add(diagonal, -1, outer), truth)};
    return r;
}

/* Printed: scores Q K^T in one place, gradients with 1 / sqrt(d_k) as in the others. */
static result scores_without_scale(void)
{
    head x = draw_head(3, 5, 2, 4), bare = x;
    bare.scale = 1;
    mat dQ = differences(head_loss, &x, &x.Q), O = mul(head_weights(&x), x.V);
    mat printed = scaled(x.scale, mul(head_vjp(&bare).dS, x.K));
    library_grads lib = library_vjp(&x);
    result r = {fmin(deviation(mul(head_weights(&bare), x.V), lib.O), deviation(printed, dQ)),
                fmax(deviation(O, lib.O), deviation(head_vjp(&x).dQ, dQ))};
    return r;
}

/* ---- Document 002: code ------------------------------------------------------------------------ */

/* Printed: dS = dA * A; dS -= mean(dS, axis=-1). */
static result mean_subtracted(void)
{
    scores x = draw_scores(3, 5);
    mat A = softmax(x.S), truth = differences(scores_loss, &x, &x.S);
    mat G = times(A, x.dP);
    mat fixed = add(G, -1, times(rowsums(G), A));
    result r = {deviation(add(G, -1.0 / 5, rowsums(G)), truth), deviation(fixed, truth)};
    return r;
}

/* Printed: dV = A.transpose(0, 1, 2, 3) dO: the axes in their own order, so A dO. */
static result transpose_that_is_none(void)
{
    result r = {INFINITY, 0};
    static const int nqs[2] = {3, 5};
    for (int c = 0; c < 2; c++) {
        head x = draw_head(nqs[c], 5, 2, 4);
        mat A = head_weights(&x), truth = differences(head_loss, &x, &x.V);
        r.printed = fmin(r.printed, deviation(mul(A, x.dO), truth));
        r.corrected = fmax(r.corrected, deviation(mul(transpose(A), x.dO), truth));
        r.corrected = fmax(r.corrected, deviation(library_vjp(&x).dV, truth));
    }
    return r;
}

/* A batch whose queries are query_b Wq. */
typedef struct projected {
    head x[BATCH];
    mat query[BATCH], Wq;
} projected;

static double projected_loss(const void *all)
{
    const projected *p = all;
    double sum = 0;
    for (int b = 0; b < BATCH; b++) {
        head x = p->x[b];
        x.Q = mul(p->query[b], p->Wq);
        sum += head_loss(&x);
    }
    return sum;
}

/* Printed: np.dot(query.T, dQ) with query [batch, n, width]. query.T is [width, n, batch]; dot contracts
 * its batch with the positions of dQ. That exists only if batch = n, and has four axes,
 *     W[w, p, b, m] = sum over k of query[k, p, w] dQ[b, k, m],
 * and its trace, the sum over p = b, is not the gradient either. */
static result three_axes_reversed(void)
{
    projected p;
    p.Wq = drawn(4, 2);
    mat printed = zeros(4, 2), fixed = printed, dQ[BATCH];
    for (int b = 0; b < BATCH; b++) {
        p.query[b] = drawn(BATCH, 4);
        p.x[b] = draw_head(BATCH, 5, 2, 3);
        p.x[b].Q = mul(p.query[b], p.Wq);
        dQ[b] = head_vjp(&p.x[b]).dQ;
        fixed = add(fixed, 1, mul(transpose(p.query[b]), dQ[b]));
    }
    for (int k = 0; k < BATCH; k++) {
        for (int b = 0; b < BATCH; b++) {
            printed = add(printed, 1, mul(transpose(row_of(&p.query[k], b)), row_of(&dQ[b], k)));
        }
    }
    mat truth = differences(projected_loss, &p, &p.Wq);
    result r = {deviation(printed, truth), deviation(fixed, truth)};
    return r;
}

/* Printed: W -= learning_rate * dW, then dX = dQ W^T. */
static result updated_weights(void)
{
    layer l = draw_layer(3, 5, 4, 2, 3);
    layer_grads g = layer_vjp(&l);
    mat truth = differences(layer_loss, &l, &l.Xq), printed = zeros(3, 4);
    for (int h = 0; h < HEADS; h++) {
        mat updated = add(l.Wq[h], -0.1, g.dWq[h]);
        printed = add(printed, 1, mul(g.g[h].dQ, transpose(updated)));
    }
    result r = {deviation(printed, truth), deviation(g.dXq, truth)};
    return r;
}

/* Printed: dK.reshape(batch, seq_length, d_model) with seq_length = dO.shape[1], the queries'. */
static result keys_reshaped_as_queries(void)
{
    layer l = draw_layer(3, 5, 4, 2, 3);
    layer_grads g = layer_vjp(&l);
    mat dKx = side_by_side(g.g[0].dK, g.g[1].dK);
    mat Wk_t = transpose(side_by_side(l.Wk[0], l.Wk[1]));
    mat truth = differences(layer_loss, &l, &l.Xk);
    result r = {deviation(mul(reshaped(dKx, 3, dKx.cols), Wk_t), truth),
                deviation(mul(reshaped(dKx, 5, dKx.cols), Wk_t), truth)};
    return r;
}

/* Printed: dO_h is a block of columns of dY. But Y = concat(O_h) W^O comes between. */
static result no_output_projection(void)
{
    result r = {INFINITY, 0};
    layer l = draw_layer(3, 5, 4, 2, 2);
    layer_grads g = layer_vjp(&l);
    for (int h = 0; h < HEADS; h++) {
        mat truth = differences(layer_loss, &l, &l.Wq[h]);
        head x = head_of(&l, h);
        x.dO = columns(l.dY, 2 * h, 2);
        r.printed = fmin(r.printed, deviation(mul(transpose(l.Xq), head_vjp(&x).dQ), truth));
        r.corrected = fmax(r.corrected, deviation(g.dWq[h], truth));
    }
    return r;
}

/* ---- Document 003 ------------------------------------------------------------------------------ */

/* Printed: dQ = (dL/dA) K, with A the softmax's output: its Jacobian and 1 / sqrt(d_k) are missing. */
static result weights_gradient_as_dq(void)
{
    head x = draw_head(3, 5, 2, 4);
    head_grads g = head_vjp(&x);
    mat truth = differences(head_loss, &x, &x.Q);
    result r = {deviation(mul(g.dP, x.K), truth), deviation(g.dQ, truth)};
    r.corrected = fmax(r.corrected, deviation(library_vjp(&x).dQ, truth));
    return r;
}

/* Printed: dK = (dL/dA)^T Q. */
static result weights_gradient_as_dk(void)
{
    head x = draw_head(3, 5, 2, 4);
    head_grads g = head_vjp(&x);
    mat truth = differences(head_loss, &x, &x.K);
    result r = {deviation(mul(transpose(g.dP), x.Q), truth), deviation(g.dK, truth)};
    r.corrected = fmax(r.corrected, deviation(library_vjp(&x).dK, truth));
    return r;
}

/* Printed: dL/dK = dL/dZ dZ/dK with dZ/dK = Q^T. The product exists only if n_k = d_k, and even
 * then is not dK; meant is dL/dZ^T Q, with dL/dZ = dS / sqrt(d_k) as document 003's Z has no scale. */
static result matrix_for_four_indices(void)
{
    result r = {INFINITY, 0};
    static const int nks[2] = {5, 3};
    for (int c = 0; c < 2; c++) {
        head x = draw_head(nks[c], nks[c], 3, 4);
        mat dZ = scaled(x.scale, head_vjp(&x).dS), truth = differences(head_loss, &x, &x.K);
        r.printed = fmin(r.printed, deviation(mul(dZ, transpose(x.Q)), truth));
        r.corrected = fmax(r.corrected, deviation(mul(transpose(dZ), x.Q), truth));
    }
    return r;
}

/* ---- All of them ------------------------------------------------------------------------------- */

typedef struct slip {
    const char *document, *name;
    result (*run)(void);
    double tolerance;
} slip;

#define CLOSE 1e-8       /* float64 against differences */
#define CLOSE_FLOAT 1e-6 /* float32 against float64 */
#define CLEARLY_OFF 1e-2

static const slip slips[] = {
    {"000", "stray_factor_in_dwk", stray_factor_in_dwk, CLOSE},
    {"000", "block_diagonal_wv", block_diagonal_wv, CLOSE},
    {"000", "d_before_a_constant", d_before_a_constant, CLOSE},
    {"000", "unshifted_exp", unshifted_exp, CLOSE_FLOAT},
    {"000", "one_head_for_inputs", one_head_for_inputs, CLOSE},
    {"000", "ones_matrix_of_queries", ones_matrix_of_queries, CLOSE},
    {"001", "attention_without_scale", attention_without_scale, CLOSE},
    {"002", "triple_product", triple_product, CLOSE},
    {"002", "row_times_matrix", row_times_matrix, CLOSE},
    {"002", "dk_not_transposed", dk_not_transposed, CLOSE},
    {"002", "sum_over_rows", sum_over_rows, CLOSE},
    {"002", "one_jacobian_for_all_rows", one_jacobian_for_all_rows, CLOSE},
    {"002", "diagonal_terms", diagonal_terms, CLOSE},
    {"002", "scores_without_scale", scores_without_scale, CLOSE},
    {"002", "mean_subtracted", mean_subtracted, CLOSE},
    {"002", "transpose_that_is_none", transpose_that_is_none, CLOSE},
    {"002", "three_axes_reversed", three_axes_reversed, CLOSE},
    {"002", "updated_weights", updated_weights, CLOSE},
    {"002", "keys_reshaped_as_queries", keys_reshaped_as_queries, CLOSE},
    {"002", "no_output_projection", no_output_projection, CLOSE},
    {"003", "weights_gradient_as_dq", weights_gradient_as_dq, CLOSE},
    {"003", "weights_gradient_as_dk", weights_gradient_as_dk, CLOSE},
    {"003", "matrix_for_four_indices", matrix_for_four_indices, CLOSE},
};

int main(void)
{
    printf("deviation from the truth over its largest entry; inf: no such shape, or not finite\n");
    for (size_t k = 0; k < sizeof slips / sizeof slips[0]; k++) {
        const slip *s = &slips[k];
        random_state = 20240919;
        result r = s->run();
        printf("%s  %-26s printed %-9.3g corrected %.3g\n", s->document, s->name, r.printed, r.corrected);
        CHECK(r.printed > CLEARLY_OFF, "%s: the printed form deviates by only %.3g", s->name, r.printed);
        CHECK(r.corrected < s->tolerance, "%s: the correction deviates by %.3g", s->name, r.corrected);
    }
    return test_summary();
}
