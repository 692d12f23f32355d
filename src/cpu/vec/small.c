/* Heads with at most WIDTH queries and WIDTH keys, as many as fit in a cache line (16 floats, 8 doubles): forward and
 * vjp without blocks, spans and tiles, whose bookkeeping takes longer than such a head's arithmetic. The kernels are
 * called in the order of the general path, so that the bits are the same. Score tiles are T[key][query], WIDTH elements
 * per row. */
#include "cpu/vec/vec.h"

#include <math.h>

enum { WIDTH = AGI_CACHE_LINE / (int)sizeof(real) };

/* ---- Which heads ---- */

/* Is the tensor present, with adjacent channels? */
static bool has_contiguous_rows(const ag_tensor *t)
{
    return t->data != NULL && t->strides[3] == 1;
}

bool REAL(agi_small_call)(const agi_call *call)
{
    const ag_problem *p = &call->plan->p;
    const agi_cpu_plan *cpu = agi_cpu_plan_of(call->plan);
    const ag_args *a = &call->a;
    const bool reals = p->dtype == REAL_DTYPE && p->out_dtype == REAL_DTYPE && p->grad_dtype == REAL_DTYPE;
    const bool whole_vectors = p->dim_qk == cpu->Dk_pad && p->dim_v == cpu->Dv_pad;
    const bool bare =
        cpu->features.plain && !cpu->features.dropout && !agi_has(p, AG_CAUSAL | AG_WINDOW | AG_SINK);
    const bool forward = call->map == AGI_FORWARD && has_contiguous_rows(&a->o);
    const bool vjp = call->map == AGI_VJP && p->heads == p->kv_heads && has_contiguous_rows(&a->o) &&
                     has_contiguous_rows(&a->d_o) && has_contiguous_rows(&a->dq) &&
                     has_contiguous_rows(&a->dk) && has_contiguous_rows(&a->dv);
    return reals && whole_vectors && bare && a->accumulate == 0 && (forward || vjp) &&
           has_contiguous_rows(&a->q) && has_contiguous_rows(&a->k) && has_contiguous_rows(&a->v);
}

static bool is_small(const agi_head *x)
{
    const ag_problem *p = &x->call->plan->p;
    const agi_sequence *s = &x->seq;
    const bool unpadded = agi_has(p, AG_PACKED) || (s->n_q == p->q_len && s->n_k == p->kv_len);
    return unpadded && s->n_q > MAX_SHORT_Q && s->n_k > 0 && s->n_q <= WIDTH && s->n_k <= WIDTH;
}

/* ---- Rows, used in place ---- */

typedef struct {
    real *p;
    int64_t ld;
} rows;

static rows query_rows(const agi_head *x, const ag_tensor *t)
{
    return (rows){(real *)t->data + agi_row_offset(agi_query_slice(x, t, REAL_DTYPE, 1), 0), t->strides[2]};
}

/* The caller's stride of a single row is unchecked and may be huge: 0 instead, so that no address overflows. */
static rows key_rows(const agi_head *x, const ag_tensor *t)
{
    return (rows){(real *)t->data + agi_row_offset(agi_key_slice(x, t, 1), 0),
                  x->seq.n_k == 1 ? 0 : t->strides[2]};
}

/* ---- Forward ---- */

/* T = keys queries^T, as the general path computes it. */
static void score_product(const agi_head *x, rows keys, int64_t D, const real *queries, real *T)
{
    REAL(agi_score_product)
    (x, (agi_rows){keys.p, keys.ld}, x->seq.n_k, D, queries, (agi_rows){NULL, 0}, x->seq.n_q, T, WIDTH,
     false);
}

bool REAL(agi_small_forward)(agi_row_scratch *s, const agi_head *x)
{
    if (!is_small(x)) {
        return false;
    }
    const agi_vec_row_scratch *v = s->own;
    const agi_kernels *k = x->k;
    const ag_args *a = &x->call->a;
    const int64_t Nq = x->seq.n_q, Nk = x->seq.n_k, W = agi_round_up(Nq, k->lanes);
    const rows Q = query_rows(x, &a->q), K = key_rows(x, &a->k), V = key_rows(x, &a->v),
               O = query_rows(x, &a->o);
    real *QT = v->panel[0].QT, m[WIDTH], l[WIDTH], alpha[WIDTH];
    double sum[WIDTH], inverse[WIDTH], log2_sum[WIDTH];
    k->prefetch_write(O.p, O.ld, Nq, x->Dv);
    for (int64_t i = 0; i < W; i++) {
        m[i] = (real)-INFINITY;
        l[i] = 0;
    }

    /* S^T = K Q^T, P = 2^(c S - m), O = P V, both not yet divided by l */
    k->transpose(QT, Q.p, Q.ld, Nq, x->Dk);
    score_product(x, K, x->Dk, QT, v->T);
    k->softmax(v->T, WIDTH, Nk, W, x->c, m, l, alpha);
    k->product(Nq, x->Dv, Nk, v->T, 1, WIDTH, V.p, V.ld, O.p, O.ld, false);

    /* O /= l, L = ln 2 (m + log2 l) */
    for (int64_t i = 0; i < W; i++) {
        sum[i] = (double)l[i];
    }
    k->log2_array(log2_sum, sum, W); /* whole vectors: the padding is not used */
    for (int64_t i = 0; i < Nq; i++) {
        inverse[i] = sum[i] == 0 ? 0 : 1 / sum[i];
        agi_store_stat(x, &a->lse, false, i, sum[i] == 0 ? -INFINITY : ((double)m[i] + log2_sum[i]) * LN_2);
    }
    k->store_rows(O.p, O.ld, O.p, O.ld, Nq, x->Dv, inverse, 1, false);
    return true;
}

/* ---- Vjp ---- */

/* Per query: log2(e) L = high + low, and D. */
typedef struct {
    real high[WIDTH], low[WIDTH], D[WIDTH];
} statistics;

/* False if some lse is -infinity, though all keys are visible here (all scores of the query were -infinity, or the lse
 * is not ours): the general path handles that. */
static bool load_statistics(const agi_head *x, int64_t W, rows dO, rows O, statistics *to)
{
    const ag_args *a = &x->call->a;
    const int64_t Nq = x->seq.n_q;
    double D[WIDTH];
    x->k->dots(D, dO.p, dO.ld, O.p, O.ld, Nq, x->Dv);
    for (int64_t i = Nq; i < W; i++) { /* weights 0 in the lanes after the last query */
        to->high[i] = (real)INFINITY;
        to->low[i] = to->D[i] = 0;
    }
    for (int64_t i = 0; i < Nq; i++) {
        const double L = agi_load_stat(x, &a->lse, i);
        if (L == -INFINITY) {
            return false;
        }
        agi_split_log(L, &to->high[i], &to->low[i]);
        to->D[i] = (real)(D[i] - agi_load_stat(x, &a->d_lse, i));
    }
    return true;
}

bool REAL(agi_small_vjp)(agi_backward_scratch *s, const agi_head *x)
{
    if (!is_small(x)) {
        return false;
    }
    const agi_vec_backward_scratch *v = s->own;
    const agi_kernels *k = x->k;
    const ag_args *a = &x->call->a;
    const int64_t Nq = x->seq.n_q, Nk = x->seq.n_k, W = agi_round_up(Nq, k->lanes);
    const rows Q = query_rows(x, &a->q), dO = query_rows(x, &a->d_o), O = query_rows(x, &a->o);
    const rows K = key_rows(x, &a->k), V = key_rows(x, &a->v);
    const rows dQ = query_rows(x, &a->dq), dK = key_rows(x, &a->dk), dV = key_rows(x, &a->dv);
    real *QT = v->QT, *dOT = v->dOT, *P = v->scores.P, *dS = v->scores.dS;
    statistics row;
    /* Another core may own these cache lines: a store would wait until it gave them up. */
    k->prefetch_write(dQ.p, dQ.ld, Nq, x->Dk);
    k->prefetch_write(dK.p, dK.ld, Nk, x->Dk);
    k->prefetch_write(dV.p, dV.ld, Nk, x->Dv);
    if (!load_statistics(x, W, dO, O, &row)) {
        return false;
    }

    /* S^T = K Q^T, P = 2^(c S - log2(e) L) */
    k->transpose(QT, Q.p, Q.ld, Nq, x->Dk);
    score_product(x, K, x->Dk, QT, P);
    k->weights(P, WIDTH, Nk, W, x->c, row.high, row.low);

    /* dP^T = V dO^T, dS = P o (dP - D) */
    k->transpose(dOT, dO.p, dO.ld, Nq, x->Dv);
    score_product(x, V, x->Dv, dOT, dS);
    k->score_gradients(dS, P, NULL, WIDTH, Nk, W, row.D);

    /* dV = P^T dO, dK = scale dS^T Q, dQ = scale dS K */
    k->product(Nk, x->Dv, Nq, P, WIDTH, 1, dO.p, dO.ld, dV.p, dV.ld, false);
    k->product(Nk, x->Dk, Nq, dS, WIDTH, 1, Q.p, Q.ld, dK.p, dK.ld, false);
    k->product(Nq, x->Dk, Nk, dS, 1, WIDTH, K.p, K.ld, dQ.p, dQ.ld, false);
    k->store_rows(dK.p, dK.ld, dK.p, dK.ld, Nk, x->Dk, &x->scale, 0, false);
    k->store_rows(dQ.p, dQ.ld, dQ.p, dQ.ld, Nq, x->Dk, &x->scale, 0, false);
    return true;
}
