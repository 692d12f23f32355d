/* The trace, line by line: each matrix must follow by its formula from the tensors and from the matrices
 * before it, with visibility, biases and positions as the contract defines them; and the outputs of the maps
 * must follow from the trace. */
#include "visible.h"

enum { NQ = 7, NK = 9 };

/* Everything that the traces of vjp_jvp and jvp_jvp can give of one head. */
struct traced {
    double Z[NQ][NK], B[NQ][NK], S[NQ][NK], P[NQ][NK], M[NQ][NK], R[NQ][NK];
    double dP[NQ][NK], dS[NQ][NK], dZ[NQ][NK], tZ[NQ][NK], tS[NQ][NK], tP[NQ][NK];
    double tdP[NQ][NK], tdS[NQ][NK], tdZ[NQ][NK], phi1[NQ][NK], phi2[NQ][NK];
    double L[NQ], Ps[NQ], D[NQ], mu[NQ], tD[NQ], J[NK][NK];
    double sZ[NQ][NK], sS[NQ][NK], sP[NQ][NK], stZ[NQ][NK], stS[NQ][NK], stP[NQ][NK], smu[NQ], nu[NQ];
};

static ag_trace_args trace_into(struct traced *t, int64_t b, int64_t h, int64_t jacobian_row)
{
    return (ag_trace_args){.struct_size = sizeof(ag_trace_args),
                           .batch = b,
                           .head = h,
                           .Z = t->Z[0],
                           .B = t->B[0],
                           .S = t->S[0],
                           .P = t->P[0],
                           .M = t->M[0],
                           .R = t->R[0],
                           .dP = t->dP[0],
                           .dS = t->dS[0],
                           .dZ = t->dZ[0],
                           .tZ = t->tZ[0],
                           .tS = t->tS[0],
                           .tP = t->tP[0],
                           .tdP = t->tdP[0],
                           .tdS = t->tdS[0],
                           .tdZ = t->tdZ[0],
                           .phi1 = t->phi1[0],
                           .phi2 = t->phi2[0],
                           .L = t->L,
                           .Ps = t->Ps,
                           .D = t->D,
                           .mu = t->mu,
                           .tD = t->tD,
                           .J = t->J[0],
                           .jacobian_row = jacobian_row,
                           .sZ = t->sZ[0],
                           .sS = t->sS[0],
                           .sP = t->sP[0],
                           .stZ = t->stZ[0],
                           .stS = t->stS[0],
                           .stP = t->stP[0],
                           .smu = t->smu,
                           .nu = t->nu};
}

/* One head of one sequence. */
struct place {
    const struct arrays *x;
    int64_t b, h, hk;
    const char *text;
};

static void near(const struct place *at, const char *name, int64_t i, int64_t j, double got, double wanted)
{
    CHECK(got == wanted || fabs(got - wanted) <= 1e-12 * (1 + fabs(wanted)),
          "'%s': sequence %d, head %d: %s[%d][%d] is %.17g instead of %.17g", at->text, (int)at->b,
          (int)at->h, name, (int)i, (int)j, got, wanted);
}

/* Row i of a tensor of queries times row j of one of keys. */
static double dot(const struct place *at, enum tensor queries, int64_t i, enum tensor keys, int64_t j)
{
    double sum = 0;
    for (int64_t c = 0; c < at->x->size[keys][3]; c++) {
        sum += value_at(at->x, queries, at->b, at->h, i, c) * value_at(at->x, keys, at->b, at->hk, j, c);
    }
    return sum;
}

static double row_dot(const struct place *at, enum tensor one, enum tensor other, int64_t i)
{
    double sum = 0;
    for (int64_t c = 0; c < at->x->p->dim_v; c++) {
        sum += value_at(at->x, one, at->b, at->h, i, c) * value_at(at->x, other, at->b, at->h, i, c);
    }
    return sum;
}

/* What the bias and the table, or their tangents, add to a score. */
static double added(const struct place *at, enum tensor bias, enum tensor table, int64_t i, int64_t j)
{
    const struct arrays *x = at->x;
    double sum = 0;
    if (x->p->flags & AG_BIAS) {
        sum += value_at(x, bias, at->b, at->h, i, j);
    }
    if (x->p->flags & AG_TABLE) {
        const int64_t R = x->p->table_radius,
                      distance = key_position(x, at->b, j) - query_position(x, at->b, i);
        const int64_t place = (distance < -R ? -R : distance > R ? R : distance) + R;
        const int64_t column = x->buckets != NULL ? x->buckets[place] : place;
        sum += value_at(x, table, 0, at->h, 0, column);
    }
    return sum;
}

static double alibi(const struct place *at, int64_t i, int64_t j)
{
    const struct arrays *x = at->x;
    const double distance = fabs((double)(query_position(x, at->b, i) - key_position(x, at->b, j)));
    return x->slopes != NULL ? -x->slopes[at->h] * distance : 0;
}

/* ---- One pair of a query and a key -------------------------------------------------------------- */

static void check_forward(const struct place *at, const struct traced *t, int64_t i, int64_t j)
{
    const double c = at->x->p->softcap, Z = t->Z[i][j], tanh_z = c > 0 ? tanh(Z / c) : 0;
    const double keep_factor = 1 / (1 - at->x->p->dropout);
    near(at, "Z", i, j, Z, at->x->p->scale * dot(at, T_Q, i, T_K, j));
    near(at, "phi'", i, j, t->phi1[i][j], 1 - tanh_z * tanh_z);
    near(at, "phi''", i, j, t->phi2[i][j], c > 0 ? -2 * tanh_z * (1 - tanh_z * tanh_z) / c : 0);
    near(at, "B", i, j, t->B[i][j], added(at, T_BIAS, T_TABLE, i, j) + alibi(at, i, j));
    near(at, "S", i, j, t->S[i][j], (c > 0 ? c * tanh_z : Z) + t->B[i][j]);
    near(at, "P", i, j, t->P[i][j], exp(t->S[i][j] - t->L[i]));
    CHECK(t->M[i][j] == 0 || fabs(t->M[i][j] - keep_factor) <= 1e-15 * keep_factor, "M[%d][%d] is %g", (int)i,
          (int)j, t->M[i][j]);
    near(at, "R", i, j, t->R[i][j], t->P[i][j] * t->M[i][j]);
}

static void check_derivatives(const struct place *at, const struct traced *t, int64_t i, int64_t j)
{
    const double scale = at->x->p->scale, dP_D = t->dP[i][j] - t->D[i], tS_mu = t->tS[i][j] - t->mu[i];
    near(at, "dP", i, j, t->dP[i][j], t->M[i][j] * dot(at, T_D_O, i, T_V, j));
    near(at, "dS", i, j, t->dS[i][j], t->P[i][j] * dP_D);
    near(at, "dZ", i, j, t->dZ[i][j], t->dS[i][j] * t->phi1[i][j]);
    near(at, "tZ", i, j, t->tZ[i][j], scale * (dot(at, T_TQ, i, T_K, j) + dot(at, T_Q, i, T_TK, j)));
    near(at, "tS", i, j, t->tS[i][j], t->tZ[i][j] * t->phi1[i][j] + added(at, T_TBIAS, T_TTABLE, i, j));
    near(at, "tP", i, j, t->tP[i][j], t->P[i][j] * tS_mu);
    near(at, "tdP", i, j, t->tdP[i][j],
         t->M[i][j] * (dot(at, T_D_O, i, T_TV, j) + dot(at, T_TD_O, i, T_V, j)));
    near(at, "tdS", i, j, t->tdS[i][j], t->P[i][j] * (tS_mu * dP_D + t->tdP[i][j] - t->tD[i]));
    near(at, "tdZ", i, j, t->tdZ[i][j],
         t->tdS[i][j] * t->phi1[i][j] + t->dS[i][j] * t->phi2[i][j] * t->tZ[i][j]);
}

/* The lines of jvp_jvp. */
static void check_second(const struct place *at, const struct traced *t, int64_t i, int64_t j)
{
    const double scale = at->x->p->scale, tS_mu = t->tS[i][j] - t->mu[i], sS_smu = t->sS[i][j] - t->smu[i];
    near(at, "sZ", i, j, t->sZ[i][j], scale * (dot(at, T_SQ, i, T_K, j) + dot(at, T_Q, i, T_SK, j)));
    near(at, "sS", i, j, t->sS[i][j], t->sZ[i][j] * t->phi1[i][j] + added(at, T_SBIAS, T_STABLE, i, j));
    near(at, "sP", i, j, t->sP[i][j], t->P[i][j] * sS_smu);
    near(at, "stZ", i, j, t->stZ[i][j], scale * (dot(at, T_TQ, i, T_SK, j) + dot(at, T_SQ, i, T_TK, j)));
    near(at, "stS", i, j, t->stS[i][j],
         t->stZ[i][j] * t->phi1[i][j] + t->tZ[i][j] * t->phi2[i][j] * t->sZ[i][j]);
    near(at, "stP", i, j, t->stP[i][j], t->P[i][j] * (tS_mu * sS_smu + t->stS[i][j] - t->nu[i]));
}

/* Masked pairs: S is minus infinity, and all that follows from it is zero. */
static void check_masked(const struct place *at, const struct traced *t, int64_t i, int64_t j)
{
    const double values[] = {t->P[i][j],   t->M[i][j],  t->R[i][j],  t->dP[i][j],  t->dS[i][j],
                             t->dZ[i][j],  t->tS[i][j], t->tP[i][j], t->tdP[i][j], t->tdS[i][j],
                             t->tdZ[i][j], t->sS[i][j], t->sP[i][j], t->stS[i][j], t->stP[i][j]};
    near(at, "masked S", i, j, t->S[i][j], -(double)INFINITY);
    for (size_t n = 0; n < sizeof values / sizeof values[0]; n++) {
        near(at, "what follows from a masked S", i, j, values[n], 0);
    }
}

/* Pairs outside the sequence: all zero. */
static void check_outside(const struct place *at, const struct traced *t, int64_t i, int64_t j)
{
    const double values[] = {t->Z[i][j],    t->B[i][j],    t->S[i][j],   t->P[i][j],   t->M[i][j],
                             t->R[i][j],    t->dP[i][j],   t->dS[i][j],  t->dZ[i][j],  t->tZ[i][j],
                             t->tS[i][j],   t->tP[i][j],   t->tdP[i][j], t->tdS[i][j], t->tdZ[i][j],
                             t->phi1[i][j], t->phi2[i][j], t->sZ[i][j],  t->sS[i][j],  t->sP[i][j],
                             t->stZ[i][j],  t->stS[i][j],  t->stP[i][j]};
    for (size_t n = 0; n < sizeof values / sizeof values[0]; n++) {
        near(at, "a pair outside the sequence", i, j, values[n], 0);
    }
}

/* ---- One row ------------------------------------------------------------------------------------ */

static void check_row(const struct place *at, const struct traced *t, int64_t i)
{
    const struct arrays *x = at->x;
    const int sink = (x->p->flags & AG_SINK) != 0;
    const double s = sink ? value_at(x, T_SINK, 0, at->h, 0, 0) : -(double)INFINITY;
    const double ts = sink ? value_at(x, T_TSINK, 0, at->h, 0, 0) : 0;
    double sum = sink ? exp(s) : 0, mu = t->Ps[i] * ts;
    for (int64_t j = 0; j < NK; j++) {
        sum += visible(x, at->b, at->h, i, j) ? exp(t->S[i][j]) : 0;
        mu += t->P[i][j] * t->tS[i][j];
    }
    near(at, "L", i, 0, t->L[i], log(sum));
    near(at, "Ps", i, 0, t->Ps[i], sink ? exp(s - t->L[i]) : 0);
    near(at, "mu", i, 0, t->mu[i], mu);
    near(at, "D", i, 0, t->D[i], row_dot(at, T_D_O, T_O, i) - value_at(x, T_D_LSE, at->b, at->h, i, 0));
    near(at, "tD", i, 0, t->tD[i],
         row_dot(at, T_TO, T_D_O, i) + row_dot(at, T_O, T_TD_O, i) -
             value_at(x, T_TD_LSE, at->b, at->h, i, 0));
}

/* nu = rowsum(P o W) + Ps (ts - mu) (ss - smu), in which W is taken from stP = P o (W - nu);
 * stO = (stP o M) V + (tP o M) sV + (sP o M) tV. */
static void check_second_row(const struct place *at, const struct traced *t, int64_t i)
{
    const struct arrays *x = at->x;
    const int sink = (x->p->flags & AG_SINK) != 0;
    const double ts = sink ? value_at(x, T_TSINK, 0, at->h, 0, 0) : 0;
    const double ss = sink ? value_at(x, T_SSINK, 0, at->h, 0, 0) : 0;
    double nu = t->Ps[i] * (ts - t->mu[i]) * (ss - t->smu[i]);
    for (int64_t j = 0; j < NK; j++) {
        nu += t->stP[i][j] + t->P[i][j] * t->nu[i];
    }
    near(at, "smu", i, 0, t->smu[i], value_at(x, T_SMU, at->b, at->h, i, 0));
    near(at, "nu", i, 0, t->nu[i], nu);
    near(at, "nu of the map", i, 0, value_at(x, T_NU, at->b, at->h, i, 0), nu);
    for (int64_t c = 0; c < x->p->dim_v; c++) {
        double stO = 0;
        for (int64_t j = 0; j < agc_arrays_k_length(x, at->b); j++) {
            const double tV = value_at(x, T_TV, at->b, at->hk, j, c);
            const double sV = value_at(x, T_SV, at->b, at->hk, j, c);
            stO += t->M[i][j] * (t->stP[i][j] * value_at(x, T_V, at->b, at->hk, j, c) + t->tP[i][j] * sV +
                                 t->sP[i][j] * tV);
        }
        near(at, "stO", i, c, value_at(x, T_STO, at->b, at->h, i, c), stO);
    }
}

/* O = R V, tO = (tP o M) V + R tV, dQ = scale dZ K, tdQ = scale (tdZ K + dZ tK). */
static void check_outputs(const struct place *at, const struct traced *t, int64_t i)
{
    const struct arrays *x = at->x;
    for (int64_t c = 0; c < x->p->dim_v; c++) {
        double O = 0, tO = 0;
        for (int64_t j = 0; j < agc_arrays_k_length(x, at->b); j++) {
            const double V = value_at(x, T_V, at->b, at->hk, j, c),
                         tV = value_at(x, T_TV, at->b, at->hk, j, c);
            O += t->R[i][j] * V;
            tO += t->tP[i][j] * t->M[i][j] * V + t->R[i][j] * tV;
        }
        near(at, "O", i, c, value_at(x, T_O, at->b, at->h, i, c), O);
        near(at, "tO", i, c, value_at(x, T_TO, at->b, at->h, i, c), tO);
    }
    for (int64_t c = 0; c < x->p->dim_qk; c++) {
        double dQ = 0, tdQ = 0;
        for (int64_t j = 0; j < agc_arrays_k_length(x, at->b); j++) {
            const double K = value_at(x, T_K, at->b, at->hk, j, c),
                         tK = value_at(x, T_TK, at->b, at->hk, j, c);
            dQ += x->p->scale * t->dZ[i][j] * K;
            tdQ += x->p->scale * (t->tdZ[i][j] * K + t->dZ[i][j] * tK);
        }
        near(at, "dQ", i, c, value_at(x, T_DQ, at->b, at->h, i, c), dQ);
        near(at, "tdQ", i, c, value_at(x, T_TDQ, at->b, at->h, i, c), tdQ);
    }
}

static void check_jacobian(const struct place *at, const struct traced *t, int64_t i)
{
    for (int64_t j = 0; j < NK; j++) {
        for (int64_t k = 0; k < NK; k++) {
            near(at, "J", j, k, t->J[j][k], (j == k ? t->P[i][j] : 0) - t->P[i][j] * t->P[i][k]);
        }
    }
}

/* ---- All of a problem --------------------------------------------------------------------------- */

static void check_head(const struct place *at, const struct traced *t)
{
    const struct arrays *x = at->x;
    for (int64_t i = 0; i < NQ; i++) {
        const int64_t n_q = agc_arrays_q_length(x, at->b), n_k = agc_arrays_k_length(x, at->b);
        for (int64_t j = 0; j < NK; j++) {
            if (i >= n_q || j >= n_k) {
                check_outside(at, t, i, j);
            } else if (visible(x, at->b, at->h, i, j)) {
                check_forward(at, t, i, j);
                check_derivatives(at, t, i, j);
                check_second(at, t, i, j);
            } else {
                check_masked(at, t, i, j);
            }
        }
        if (i < n_q) {
            check_row(at, t, i);
            check_outputs(at, t, i);
            check_second_row(at, t, i);
        }
    }
}

/* Lengths of a padded batch of three; packed batches have their own. */
static void set_lengths(struct arrays *x)
{
    static const int64_t q_lengths[] = {7, 3, 5}, kv_lengths[] = {4, 9, 0};
    CHECK_OK(agc_arrays_random_lengths(x));
    memcpy(x->q_lengths, q_lengths, sizeof q_lengths);
    memcpy(x->kv_lengths, kv_lengths, sizeof kv_lengths);
}

/* The trace of vjp_jvp, with the variables that it lacks from the trace of jvp_jvp. */
static void trace_both(struct arrays *x, const ag_trace_args *trace)
{
    ag_trace_args second = {.struct_size = sizeof second,
                            .batch = trace->batch,
                            .head = trace->head,
                            .sZ = trace->sZ,
                            .sS = trace->sS,
                            .sP = trace->sP,
                            .stZ = trace->stZ,
                            .stS = trace->stS,
                            .stP = trace->stP,
                            .smu = trace->smu,
                            .nu = trace->nu};
    CHECK_OK(ag_trace(x->plan, AG_MAP_VJP_JVP, &x->args, trace, x->workspace, x->workspace_bytes));
    for (int64_t ij = 0; ij < NQ * NK; ij++) {
        CHECK(trace->stP[ij] == 0 && trace->sZ[ij] == 0, "vjp_jvp has no second direction");
    }
    CHECK_OK(ag_trace(x->plan, AG_MAP_JVP_JVP, &x->args, &second, x->workspace, x->workspace_bytes));
}

static void check_problem(const char *text, int with_lengths, int64_t q_offset, int64_t k_offset)
{
    struct arrays x;
    ag_options options = AG_OPTIONS_INIT;
    options.backend = AG_BACKEND_REFERENCE;
    make_arrays(&x, text, &options, 401);
    if (with_lengths) {
        set_lengths(&x);
    }
    x.args.q_offset = q_offset;
    x.args.k_offset = k_offset;
    CHECK_OK(agc_arrays_run_all(&x));
    for (int64_t b = 0; b < x.p->batch; b++) {
        for (int64_t h = 0; h < x.p->heads; h++) {
            static struct traced t;
            const struct place at = {&x, b, h, h / (x.p->heads / x.p->kv_heads), text};
            const int64_t row = (b + h) % NQ;
            const ag_trace_args trace = trace_into(&t, b, h, row);
            memset(&t, 0xA5, sizeof t);
            trace_both(&x, &trace);
            check_head(&at, &t);
            check_jacobian(&at, &t, row);
        }
    }
    agc_arrays_destroy(&x);
}

int main(void)
{
    static const char *const features[] = {
        "",
        "causal",
        "window=2,1",
        "window=0,-1",
        "window=-1,0",
        "scale=0.7",
        "softcap=1.5",
        "dropout=0.3",
        "sink",
        "bias=b1qk",
        "mask=1hq1",
        "table=2",
        "table=3,4",
        "table=1,shared",
        "alibi=slopes",
        "causal window=4,-1 softcap=2 dropout=0.2 sink bias=1h1k mask table=2,3,shared alibi=slopes",
    };
    for (size_t n = 0; n < sizeof features / sizeof features[0]; n++) {
        char text[256];
        snprintf(text, sizeof text, "b3 h4 kv2 q7 k9 d5 dv3 f64 %s", features[n]);
        check_problem(text, 0, 0, 0);
        check_problem(text, 1, 0, 0);
        check_problem(text, 0, 3, 5);
        check_problem(text, 1, -4, -2);
        snprintf(text, sizeof text, "b3 h4 kv2 q7 k9 d5 dv3 f64 align=bottom-right %s", features[n]);
        check_problem(text, 1, 0, 0);
        snprintf(text, sizeof text, "b3 h4 kv2 q7 k9 d5 dv3 f64 packed=20,25 align=bottom-right %s",
                 features[n]);
        check_problem(text, 0, 0, 0);
    }
    return test_summary();
}
