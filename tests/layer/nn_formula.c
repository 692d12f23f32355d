/* Compares the layer with its formulas, written out once more: plain loops over indices in float64, one
 * output element at a time, no matrix product, no online softmax, every gradient as the sum over all paths to
 * it. In every dtype, for the configuration of the documentation (d_model 128, 4 heads, batch 32, sequence 10)
 * and others; the truth is the formula at the same rounded inputs. */
#include "nn.h"

typedef struct {
    nn_config c;
    double limit; /* of |error| / |truth|, in Frobenius norms */
} formula_case;

static const formula_case cases[] = {
    {{"f64 b32 h4 q10 d32", AG_LAYER_SELF, 128, 0, 0, 0, 0}, 1e-14},
    {{"f32 b32 h4 q10 d32", AG_LAYER_SELF, 128, 0, 0, 0, 0}, 2e-6},
    {{"bf16 out=f32 grad=f32 b32 h4 q10 d32", AG_LAYER_SELF, 128, 0, 0, 0, 0}, 1e-2},
    {{"f16 out=f32 grad=f32 b32 h4 q10 d32", AG_LAYER_SELF, 128, 0, 0, 0, 0}, 1.5e-3},
    {{"f64 b3 h4 kv2 q6 k9 d5 dv3 causal", AG_LAYER_BIASES, 10, 7, 6, 11, 1}, 1e-14},
    {{"f32 b3 h4 kv2 q6 k9 d5 dv3 causal", AG_LAYER_BIASES, 10, 7, 6, 11, 1}, 2e-6},
    {{"bf16 b3 h4 kv2 q6 k9 d5 dv3 causal", AG_LAYER_BIASES, 10, 7, 6, 11, 1}, 2e-2},
    {{"f16 b3 h4 kv2 q6 k9 d5 dv3 causal", AG_LAYER_BIASES, 10, 7, 6, 11, 1}, 4e-3},
    {{"f64 b2 h3 q7 k5 d4", AG_LAYER_SHARED_KV | AG_LAYER_BIAS_V, 9, 5, 8, 0, 1}, 1e-14},
};

/* ---- The inputs as float64 arrays ---- */

typedef struct {
    const nn_model *m;
    int64_t B, H, Hk, Nq, Nk, Dk, Dv, Wq, Wk, Wv, Wy;
    double *x[3], *w[4], *b[4];         /* x[1], x[2] may be x[0]; a bias may be NULL */
    double *q, *k, *v, *P, *C, *y, *dy; /* C: the outputs of all heads, concatenated */
    double *dx[3], *dw[4], *db[4];      /* dx[1] may be dx[0] */
    double *dq, *dk, *dv, *dC;
} formula;

static double *zeros(int64_t n)
{
    return nn_alloc((size_t)n * sizeof(double));
}

static double *to_float64(const nn_model *m, int kind, int array)
{
    double *to = zeros(m->count[array]);
    for (int64_t i = 0; i < m->count[array]; i++) {
        to[i] = nn_get(m, kind, array, i);
    }
    return to;
}

static int64_t n_q(const formula *f, int64_t b)
{
    return f->m->q_lengths ? f->m->q_lengths[b] : f->Nq;
}

static int64_t n_k(const formula *f, int64_t b)
{
    return f->m->kv_lengths ? f->m->kv_lengths[b] : f->Nk;
}

static void begin(formula *f, const nn_model *m, const nn_config *c)
{
    const ag_problem *p = m->p;
    *f = (formula){.m = m,
                   .B = p->batch,
                   .H = p->heads,
                   .Hk = p->kv_heads,
                   .Nq = p->q_len,
                   .Nk = p->kv_len,
                   .Dk = p->dim_qk,
                   .Dv = p->dim_v,
                   .Wy = c->d_model};
    f->Wq = c->q_width ? c->q_width : c->d_model;
    f->Wk = c->k_width ? c->k_width : f->Wq;
    f->Wv = c->v_width ? c->v_width : f->Wk;
    for (int s = 0; s < 3; s++) {
        f->x[s] = m->count[s] > 0 ? to_float64(m, VALUE, s) : f->x[s > 0 ? s - 1 : 0];
        f->dx[s] = m->count[s] > 0 ? zeros(m->count[s]) : f->dx[s > 0 ? s - 1 : 0];
    }
    double *params = to_float64(m, VALUE, PARAMS), *d_params = zeros(m->count[PARAMS]);
    for (int64_t i = 0; i < ag_layer_param_count(m->layer); i++) {
        ag_param_view view = AG_PARAM_VIEW_INIT;
        CHECK_OK(ag_layer_param(m->layer, i, &view));
        const int which = (int)(strchr("qkvo", view.name[1]) - "qkvo");
        *(view.name[0] == 'w' ? &f->w[which] : &f->b[which]) = params + view.offset;
        *(view.name[0] == 'w' ? &f->dw[which] : &f->db[which]) = d_params + view.offset;
    }
    f->q = zeros(f->B * f->Nq * f->H * f->Dk), f->dq = zeros(f->B * f->Nq * f->H * f->Dk);
    f->k = zeros(f->B * f->Nk * f->Hk * f->Dk), f->dk = zeros(f->B * f->Nk * f->Hk * f->Dk);
    f->v = zeros(f->B * f->Nk * f->Hk * f->Dv), f->dv = zeros(f->B * f->Nk * f->Hk * f->Dv);
    f->C = zeros(f->B * f->Nq * f->H * f->Dv), f->dC = zeros(f->B * f->Nq * f->H * f->Dv);
    f->P = zeros(f->B * f->H * f->Nq * f->Nk);
    f->y = zeros(m->count[Y]), f->dy = to_float64(m, D, Y);
}

static void end(formula *f)
{
    double *const memory[] = {f->w[0], f->dw[0], f->q,  f->dq, f->k, f->dk, f->v,
                              f->dv,   f->C,     f->dC, f->P,  f->y, f->dy};
    for (size_t i = 0; i < sizeof memory / sizeof memory[0]; i++) {
        free(memory[i]);
    }
    for (int s = 0; s < 3; s++) {
        if (f->m->count[s] > 0) {
            free(f->x[s]);
            free(f->dx[s]);
        }
    }
}

/* ---- Forward ---- */

typedef struct {
    int64_t N, in, out; /* rows of a sequence, widths */
    const double *x, *w, *b;
    double *r;
    double *dx, *dw, *db;
    const double *dr;
    int64_t (*length)(const formula *f, int64_t b);
} projection;

/* r = x w + b, in the valid rows */
static void project(const formula *f, const projection *l)
{
    for (int64_t b = 0; b < f->B; b++) {
        for (int64_t i = 0; i < l->length(f, b); i++) {
            for (int64_t o = 0; o < l->out; o++) {
                double sum = l->b ? l->b[o] : 0;
                for (int64_t c = 0; c < l->in; c++) {
                    sum += l->x[(b * l->N + i) * l->in + c] * l->w[c * l->out + o];
                }
                l->r[(b * l->N + i) * l->out + o] = sum;
            }
        }
    }
}

static double *weight(const formula *f, int64_t b, int64_t h, int64_t i, int64_t j)
{
    return &f->P[((b * f->H + h) * f->Nq + i) * f->Nk + j];
}

static const double *of_key(const formula *f, const double *x, int64_t b, int64_t h, int64_t j, int64_t width)
{
    return &x[((b * f->Nk + j) * f->Hk + h / (f->H / f->Hk)) * width];
}

static const double *of_query(const formula *f, const double *x, int64_t b, int64_t h, int64_t i,
                              int64_t width)
{
    return &x[((b * f->Nq + i) * f->H + h) * width];
}

static double inner(const double *a, const double *b, int64_t n)
{
    double sum = 0;
    for (int64_t c = 0; c < n; c++) {
        sum += a[c] * b[c];
    }
    return sum;
}

static void attend_row(const formula *f, int64_t b, int64_t h, int64_t i)
{
    const int64_t n_visible = f->m->p->flags & AG_CAUSAL && i + 1 < n_k(f, b) ? i + 1 : n_k(f, b);
    const double *q = of_query(f, f->q, b, h, i, f->Dk);
    double max = -INFINITY, total = 0;
    for (int64_t j = 0; j < n_visible; j++) {
        *weight(f, b, h, i, j) = inner(q, of_key(f, f->k, b, h, j, f->Dk), f->Dk) / sqrt((double)f->Dk);
        max = fmax(max, *weight(f, b, h, i, j));
    }
    for (int64_t j = 0; j < n_visible; j++) {
        total += exp(*weight(f, b, h, i, j) - max);
    }
    for (int64_t j = 0; j < n_visible; j++) {
        *weight(f, b, h, i, j) = exp(*weight(f, b, h, i, j) - max) / total;
    }
    for (int64_t c = 0; c < f->Dv; c++) {
        double sum = 0;
        for (int64_t j = 0; j < n_visible; j++) {
            sum += *weight(f, b, h, i, j) * of_key(f, f->v, b, h, j, f->Dv)[c];
        }
        f->C[((b * f->Nq + i) * f->H + h) * f->Dv + c] = sum;
    }
}

/* ---- Backward ---- */

static void project_backward(const formula *f, const projection *l)
{
    for (int64_t b = 0; b < f->B; b++) {
        for (int64_t i = 0; i < l->length(f, b); i++) {
            const double *x = l->x + (b * l->N + i) * l->in, *dr = l->dr + (b * l->N + i) * l->out;
            for (int64_t o = 0; o < l->out; o++) {
                for (int64_t c = 0; c < l->in; c++) {
                    l->dx[(b * l->N + i) * l->in + c] += dr[o] * l->w[c * l->out + o];
                    l->dw[c * l->out + o] += x[c] * dr[o];
                }
                if (l->db) {
                    l->db[o] += dr[o];
                }
            }
        }
    }
}

/* dS_ij = sum_l dP_il (P_il [j = l] - P_il P_ij): the softmax Jacobian itself. */
static double score_gradient(const formula *f, int64_t b, int64_t h, int64_t i, int64_t j)
{
    const double *dC = of_query(f, f->dC, b, h, i, f->Dv);
    double sum = 0;
    for (int64_t l = 0; l < f->Nk; l++) {
        const double dP = inner(dC, of_key(f, f->v, b, h, l, f->Dv), f->Dv);
        sum += dP * *weight(f, b, h, i, l) * ((l == j ? 1 : 0) - *weight(f, b, h, i, j));
    }
    return sum;
}

static void attend_row_backward(const formula *f, int64_t b, int64_t h, int64_t i)
{
    const double *q = of_query(f, f->q, b, h, i, f->Dk), *dC = of_query(f, f->dC, b, h, i, f->Dv);
    double *dq = f->dq + (q - f->q);
    for (int64_t j = 0; j < f->Nk; j++) {
        const double dS = score_gradient(f, b, h, i, j) / sqrt((double)f->Dk);
        const double *k = of_key(f, f->k, b, h, j, f->Dk), *v = of_key(f, f->v, b, h, j, f->Dv);
        for (int64_t c = 0; c < f->Dk; c++) {
            dq[c] += dS * k[c];
            f->dk[k - f->k + c] += dS * q[c];
        }
        for (int64_t c = 0; c < f->Dv; c++) {
            f->dv[v - f->v + c] += *weight(f, b, h, i, j) * dC[c];
        }
    }
}

/* ---- The comparison ---- */

static void run_rows(const formula *f, void (*row)(const formula *f, int64_t b, int64_t h, int64_t i))
{
    for (int64_t b = 0; b < f->B; b++) {
        for (int64_t h = 0; h < f->H; h++) {
            for (int64_t i = 0; i < n_q(f, b); i++) {
                row(f, b, h, i);
            }
        }
    }
}

static void run_formula(formula *f)
{
    const int64_t HDk = f->H * f->Dk, HkDk = f->Hk * f->Dk, HkDv = f->Hk * f->Dv, HDv = f->H * f->Dv;
    const projection projections[4] = {
        {f->Nq, f->Wq, HDk, f->x[0], f->w[0], f->b[0], f->q, f->dx[0], f->dw[0], f->db[0], f->dq, n_q},
        {f->Nk, f->Wk, HkDk, f->x[1], f->w[1], f->b[1], f->k, f->dx[1], f->dw[1], f->db[1], f->dk, n_k},
        {f->Nk, f->Wv, HkDv, f->x[2], f->w[2], f->b[2], f->v, f->dx[2], f->dw[2], f->db[2], f->dv, n_k},
        {f->Nq, HDv, f->Wy, f->C, f->w[3], f->b[3], f->y, f->dC, f->dw[3], f->db[3], f->dy, n_q}};
    for (int l = 0; l < 3; l++) {
        project(f, &projections[l]);
    }
    run_rows(f, attend_row);
    project(f, &projections[3]);
    project_backward(f, &projections[3]);
    run_rows(f, attend_row_backward);
    for (int l = 0; l < 3; l++) {
        project_backward(f, &projections[l]);
    }
}

static void compare(const nn_model *m, const formula_case *c, int kind, int array, const char *name,
                    int64_t first, const double *truth, int64_t n)
{
    double error2 = 0, norm2 = 0; /* squared norms of the error and of the truth */
    for (int64_t i = 0; i < n; i++) {
        const double e = nn_get(m, kind, array, first + i) - truth[i];
        error2 += e * e;
        norm2 += truth[i] * truth[i];
    }
    /* The exact gradient of bk is zero, as bk adds the same to all scores of a row: its error has no relative measure
     * and is compared with a norm of 10. */
    CHECK(sqrt(error2) <= c->limit * fmax(sqrt(norm2), strcmp(name, "bk") == 0 ? 10 : 0),
          "%s: %s%s is off by %.3g of %.3g", c->c.text, kind == D ? "d" : "", name, sqrt(error2),
          sqrt(norm2));
}

static void compare_all(const nn_model *m, const formula_case *c, const formula *f)
{
    compare(m, c, VALUE, Y, "y", 0, f->y, m->count[Y]);
    for (int s = 0; s < 3; s++) {
        if (m->count[s] > 0) {
            compare(m, c, D, s, nn_names[s], 0, f->dx[s], m->count[s]);
        }
    }
    for (int64_t i = 0; i < ag_layer_param_count(m->layer); i++) {
        ag_param_view view = AG_PARAM_VIEW_INIT;
        CHECK_OK(ag_layer_param(m->layer, i, &view));
        compare(m, c, D, PARAMS, view.name, view.offset, f->dw[0] + view.offset, view.count);
    }
}

int main(void)
{
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        nn_model m;
        formula f;
        nn_make(&m, &cases[i].c, 2, 3 + i);
        begin(&f, &m, &cases[i].c);
        run_formula(&f);
        CHECK_OK(nn_run(&m, AG_MAP_FORWARD));
        CHECK_OK(nn_run(&m, AG_MAP_VJP));
        compare_all(&m, &cases[i], &f);
        end(&f);
        nn_free(&m);
    }
    return test_summary();
}
