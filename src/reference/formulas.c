/* The formulas: forward, vjp, jvp, vjp_jvp and jvp_jvp of one head, in the order and under the names of
 * docs/math.md. Each line of a derivative quotes the line that it differentiates.
 *
 * Masked pairs are left out by selection, never by adding a large negative number: no value of a masked pair, even
 * if it is NaN, reaches a sum. A row with no visible key and no sink has L = -infinity and contributes to nothing.
 *
 * With AG_ROUND_INTERMEDIATES, the baseline of the error rule, every intermediate is rounded after its line. */
#include <math.h>
#include <string.h>

#include "core/number.h"
#include "reference/head.h"

/* ---- Products ---- */

static double dot(const double *a, const double *b, int64_t D)
{
    double sum = 0;
    for (int64_t c = 0; c < D; c++) {
        sum += a[c] * b[c];
    }
    return sum;
}

/* C += a A B^T, over all pairs. A [n_q][D], B [n_k][D]. Four sums at a time, each in the order of the channels: an
 * addition need not wait for the last one's result. */
static void add_dots(const head *x, double *C, double a, const double *A, const double *B, int64_t D)
{
    EACH_ROW(x, i) {
        double *to = C + i * x->Nk;
        int64_t j = 0;
        for (; j + 4 <= x->n_k; j += 4) {
            const double *b = B + j * D;
            double sum0 = 0, sum1 = 0, sum2 = 0, sum3 = 0;
            for (int64_t c = 0; c < D; c++) {
                sum0 += A[i * D + c] * b[c];
                sum1 += A[i * D + c] * b[D + c];
                sum2 += A[i * D + c] * b[2 * D + c];
                sum3 += A[i * D + c] * b[3 * D + c];
            }
            to[j] += a * sum0;
            to[j + 1] += a * sum1;
            to[j + 2] += a * sum2;
            to[j + 3] += a * sum3;
        }
        for (; j < x->n_k; j++) {
            to[j] += a * dot(A + i * D, B + j * D, D);
        }
    }
}

/* Y += a C B, over the visible pairs. B [n_k][D], Y [n_q][D]. */
static void add_rows(const head *x, double *Y, double a, const double *C, const double *B, int64_t D)
{
    EACH_PAIR(x, i, j, ij) {
        if (x->visible[ij]) {
            for (int64_t c = 0; c < D; c++) {
                Y[i * D + c] += a * C[ij] * B[j * D + c];
            }
        }
    }
}

/* Y += a C^T A, over the visible pairs. A [n_q][D], Y [n_k][D]. */
static void add_columns(const head *x, double *Y, double a, const double *C, const double *A, int64_t D)
{
    EACH_PAIR(x, i, j, ij) {
        if (x->visible[ij]) {
            for (int64_t c = 0; c < D; c++) {
                Y[j * D + c] += a * C[ij] * A[i * D + c];
            }
        }
    }
}

static void clear(double *X, int64_t n)
{
    memset(X, 0, (size_t)n * sizeof X[0]);
}

static void clear_pairs(const head *x, double *C)
{
    EACH_ROW(x, i) {
        clear(C + i * x->Nk, x->Nk);
    }
}

/* ---- Rounding of the intermediates, for the error rule's baseline ---- */

static void round_to(const head *x, ag_dtype dtype, double *C)
{
    if (x->call->plan->flags & AG_ROUND_INTERMEDIATES) {
        EACH_PAIR(x, i, j, ij) {
            C[ij] = agi_round(dtype, C[ij]);
        }
    }
}

static void round_pairs(const head *x, double *C)
{
    round_to(x, x->call->plan->p.dtype, C);
}

/* Scores are kept in float32 at least, as every implementation does. */
static void round_scores(const head *x, double *C)
{
    round_to(x, x->call->plan->p.dtype == AG_F64 ? AG_F64 : AG_F32, C);
}

/* Rounds a matrix [n_q][D], such as Q or O. */
static void round_rows(const head *x, double *X, int64_t D)
{
    for (int64_t e = 0; e < x->n_q * D && x->call->plan->flags & AG_ROUND_INTERMEDIATES; e++) {
        X[e] = agi_round(x->call->plan->p.dtype, X[e]);
    }
}

/* ---- The softcap phi and its derivatives ---- */

double agi_phi(const head *x, double z)
{
    const double c = x->softcap;
    return c == 0 ? z : c * tanh(z / c);
}

/* 1 - tanh^2 = 1 / cosh^2, in a form that does not cancel near the cap. */
double agi_phi1(const head *x, double z)
{
    const double sech = x->softcap == 0 ? 1 : 1 / cosh(z / x->softcap);
    return sech * sech;
}

double agi_phi2(const head *x, double z)
{
    const double c = x->softcap;
    return c == 0 ? 0 : -2 * tanh(z / c) * agi_phi1(x, z) / c;
}

/* ---- Forward ---- */

static void scores(head *x)
{
    /* Z = scale * Q K^T */
    clear_pairs(x, x->Z);
    add_dots(x, x->Z, x->scale, x->Q, x->K, x->Dk);
    round_scores(x, x->Z);

    /* S = phi(Z) + B; masked entries -infinity */
    EACH_PAIR(x, i, j, ij) {
        x->S[ij] = x->visible[ij] ? agi_phi(x, x->Z[ij]) + x->B[ij] : -INFINITY;
    }
    round_scores(x, x->S);
}

/* L = log( sum_j exp(S) + exp(s) ), shifted by the maximum so that nothing overflows */
static void row_logarithms(head *x)
{
    EACH_ROW(x, i) {
        const double *S = x->S + i * x->Nk;
        double m = x->s, sum = 0;
        for (int64_t j = 0; j < x->n_k; j++) {
            m = S[j] > m || isnan(S[j]) ? S[j] : m;
        }
        for (int64_t j = 0; j < x->n_k; j++) {
            sum += S[j] == -INFINITY ? 0 : exp(S[j] - m);
        }
        sum += x->s == -INFINITY ? 0 : exp(x->s - m);
        x->L[i] = m == -INFINITY ? -INFINITY : m + log(sum);
    }
}

static void weights(head *x)
{
    /* P = exp(S - L), and Ps = exp(s - L), the sink's share */
    EACH_PAIR(x, i, j, ij) {
        x->P[ij] = x->S[ij] == -INFINITY ? 0 : exp(x->S[ij] - x->L[i]);
    }
    EACH_ROW(x, i) {
        x->Ps[i] = x->s == -INFINITY ? 0 : exp(x->s - x->L[i]);
    }
    round_pairs(x, x->P);

    /* R = P o M */
    EACH_PAIR(x, i, j, ij) {
        x->R[ij] = x->P[ij] * x->M[ij];
    }
    round_pairs(x, x->R);
}

void agi_reference_forward(head *x)
{
    scores(x);
    row_logarithms(x);
    weights(x);

    /* O = R V */
    clear(x->O, x->n_q * x->Dv);
    add_rows(x, x->O, 1, x->R, x->V, x->Dv);
    round_rows(x, x->O, x->Dv);
}

/* ---- vjp: the forward's lines, from the last to the first ---- */

/* Does row i have an output? Not if it sees no key: L is then the sink's logit s, or -infinity without a sink. But O
 * and L may come from more keys than those of this call (see ag_merge): then L != s. */
static bool has_output(const head *x, int64_t i)
{
    return x->sees[i] || x->L[i] != x->s;
}

/* O = R V, R = P o M, P = exp(S - L)   ->   dP, D, dS, dZ */
static void score_cotangents(head *x)
{
    /* D = rowsum(dO o O) - dL, which is rowsum(P o dP) - dL: the derivative through the row's normalisation */
    EACH_ROW(x, i) {
        x->D[i] = (has_output(x, i) ? dot(x->dO + i * x->Dv, x->O + i * x->Dv, x->Dv) : 0) - x->dL[i];
    }

    /* O = R V, R = P o M    ->   dP = (dO V^T) o M */
    clear_pairs(x, x->dP);
    add_dots(x, x->dP, 1, x->dO, x->V, x->Dv);
    EACH_PAIR(x, i, j, ij) {
        x->dP[ij] = x->visible[ij] ? x->dP[ij] * x->M[ij] : 0;
    }
    round_pairs(x, x->dP);

    /* P = exp(S - L)        ->   dS = P o (dP - D): computed once, used for dQ and dK */
    EACH_PAIR(x, i, j, ij) {
        x->dS[ij] = x->visible[ij] ? x->P[ij] * (x->dP[ij] - x->D[i]) : 0;
    }
    round_pairs(x, x->dS);

    /* S = phi(Z) + B        ->   dZ = dS o phi'(Z) */
    EACH_PAIR(x, i, j, ij) {
        x->dZ[ij] = x->visible[ij] ? x->dS[ij] * agi_phi1(x, x->Z[ij]) : 0;
    }
    round_pairs(x, x->dZ);
}

void agi_reference_vjp(head *x)
{
    scores(x);
    weights(x); /* with the L that was given */
    score_cotangents(x);

    /* Z = scale * Q K^T     ->   dQ = scale * dZ K */
    clear(x->dQ, x->n_q * x->Dk);
    add_rows(x, x->dQ, x->scale, x->dZ, x->K, x->Dk);
    round_rows(x, x->dQ, x->Dk);

    /* Z = scale * Q K^T     ->   dK = scale * dZ^T Q, summed over the heads of the group */
    add_columns(x, x->dK, x->scale, x->dZ, x->Q, x->Dk);

    /* O = R V               ->   dV = R^T dO, likewise */
    add_columns(x, x->dV, 1, x->R, x->dO, x->Dv);

    /* S = phi(Z) + B        ->   dB = dS, summed over the axes along which B was broadcast */
    agi_reference_add_bias_gradient(x, x->dS);

    /* L = log( ... + exp(s) )   ->   ds = - sum_i Ps D */
    for (int64_t i = 0; i < x->n_q && x->sum_sink != NULL; i++) {
        x->sum_sink[x->h] -= x->Ps[i] * x->D[i];
    }
}

/* ---- jvp: the forward's lines, each followed by its tangent ---- */

/* The tangents along one direction, as the formulas below call them; jvp_jvp has a second direction, s. */
typedef struct {
    const double *tQ, *tK, *tB, *mu;
    double *tZ, *tS, *tP, *tR;
} direction;

static direction along_t(const head *x)
{
    return (direction){x->tQ, x->tK, x->tB, x->mu, x->tZ, x->tS, x->tP, x->tR};
}

static direction along_s(const head *x)
{
    return (direction){x->sQ, x->sK, x->sB, x->smu, x->sZ, x->sS, x->sP, x->sR};
}

static void score_tangents(const head *x, direction y)
{
    /* Z = scale * Q K^T     ->   tZ = scale * (tQ K^T + Q tK^T) */
    clear_pairs(x, y.tZ);
    add_dots(x, y.tZ, x->scale, y.tQ, x->K, x->Dk);
    add_dots(x, y.tZ, x->scale, x->Q, y.tK, x->Dk);
    round_scores(x, y.tZ);

    /* S = phi(Z) + B        ->   tS = tZ o phi'(Z) + tB */
    EACH_PAIR(x, i, j, ij) {
        y.tS[ij] = x->visible[ij] ? y.tZ[ij] * agi_phi1(x, x->Z[ij]) + y.tB[ij] : 0;
    }
    round_scores(x, y.tS);
}

static void weight_tangents(const head *x, direction y)
{
    /* P = exp(S - L)        ->   tP = P o (tS - mu) */
    EACH_PAIR(x, i, j, ij) {
        y.tP[ij] = x->visible[ij] ? x->P[ij] * (y.tS[ij] - y.mu[i]) : 0;
    }
    round_pairs(x, y.tP);

    /* R = P o M             ->   tR = tP o M */
    EACH_PAIR(x, i, j, ij) {
        y.tR[ij] = y.tP[ij] * x->M[ij];
    }
}

void agi_reference_jvp(head *x)
{
    if (agi_given_o(x->call)) {
        scores(x);
        weights(x); /* with the L that was given */
    } else {
        agi_reference_forward(x);
    }
    score_tangents(x, along_t(x));

    /* L = log( sum exp(S) + exp(s) )   ->   mu = rowsum(P o tS) + Ps ts */
    EACH_ROW(x, i) {
        x->mu[i] = x->Ps[i] * x->ts;
        for (int64_t j = 0; j < x->n_k; j++) {
            x->mu[i] += x->P[i * x->Nk + j] * x->tS[i * x->Nk + j];
        }
    }
    weight_tangents(x, along_t(x));

    /* O = R V, R = P o M    ->   tO = (tP o M) V + R tV */
    clear(x->tO, x->n_q * x->Dv);
    add_rows(x, x->tO, 1, x->tR, x->V, x->Dv);
    add_rows(x, x->tO, 1, x->R, x->tV, x->Dv);
    round_rows(x, x->tO, x->Dv);
}

/* ---- vjp_jvp: the vjp's lines, each followed by its tangent ---- */

static void score_cotangent_tangents(head *x)
{
    /* dP = (dO V^T) o M     ->   tdP = (dO tV^T + tdO V^T) o M */
    clear_pairs(x, x->tdP);
    add_dots(x, x->tdP, 1, x->dO, x->tV, x->Dv);
    add_dots(x, x->tdP, 1, x->tdO, x->V, x->Dv);
    EACH_PAIR(x, i, j, ij) {
        x->tdP[ij] = x->visible[ij] ? x->tdP[ij] * x->M[ij] : 0;
    }
    round_pairs(x, x->tdP);

    /* D = rowsum(dO o O) - dL   ->   tD = rowsum(tO o dO + O o tdO) - tdL */
    EACH_ROW(x, i) {
        const int64_t row = i * x->Dv;
        const double sums = dot(x->tO + row, x->dO + row, x->Dv) + dot(x->O + row, x->tdO + row, x->Dv);
        x->tD[i] = (has_output(x, i) ? sums : 0) - x->tdL[i];
    }

    /* dS = P o (dP - D)     ->   tdS = P o ( (tS - mu) o (dP - D) + tdP - tD ) */
    EACH_PAIR(x, i, j, ij) {
        const double tangent = (x->tS[ij] - x->mu[i]) * (x->dP[ij] - x->D[i]) + x->tdP[ij] - x->tD[i];
        x->tdS[ij] = x->visible[ij] ? x->P[ij] * tangent : 0;
    }
    round_pairs(x, x->tdS);

    /* dZ = dS o phi'(Z)     ->   tdZ = tdS o phi'(Z) + dS o phi''(Z) o tZ */
    EACH_PAIR(x, i, j, ij) {
        const double tangent =
            x->tdS[ij] * agi_phi1(x, x->Z[ij]) + x->dS[ij] * agi_phi2(x, x->Z[ij]) * x->tZ[ij];
        x->tdZ[ij] = x->visible[ij] ? tangent : 0;
    }
    round_pairs(x, x->tdZ);
}

void agi_reference_vjp_jvp(head *x)
{
    scores(x);
    weights(x);
    score_tangents(x, along_t(x));
    weight_tangents(x, along_t(x)); /* with the mu that was given */
    score_cotangents(x);
    score_cotangent_tangents(x);

    /* dQ = scale * dZ K     ->   tdQ = scale * (tdZ K + dZ tK) */
    clear(x->tdQ, x->n_q * x->Dk);
    add_rows(x, x->tdQ, x->scale, x->tdZ, x->K, x->Dk);
    add_rows(x, x->tdQ, x->scale, x->dZ, x->tK, x->Dk);
    round_rows(x, x->tdQ, x->Dk);

    /* dK = scale * dZ^T Q   ->   tdK = scale * (tdZ^T Q + dZ^T tQ) */
    add_columns(x, x->tdK, x->scale, x->tdZ, x->Q, x->Dk);
    add_columns(x, x->tdK, x->scale, x->dZ, x->tQ, x->Dk);

    /* dV = R^T dO           ->   tdV = (tP o M)^T dO + R^T tdO */
    add_columns(x, x->tdV, 1, x->tR, x->dO, x->Dv);
    add_columns(x, x->tdV, 1, x->R, x->tdO, x->Dv);

    /* dB = dS               ->   tdB = tdS, reduced like dB */
    agi_reference_add_bias_gradient(x, x->tdS);

    /* ds = - sum_i Ps D     ->   tds = - sum_i ( Ps (ts - mu) D + Ps tD ) */
    for (int64_t i = 0; i < x->n_q && x->sum_sink != NULL; i++) {
        const double tangent = has_output(x, i) ? x->ts - x->mu[i] : 0; /* a row without keys has mu = ts */
        x->sum_sink[x->h] -= x->Ps[i] * tangent * x->D[i] + x->Ps[i] * x->tD[i];
    }
}

/* ---- jvp_jvp: the jvp's lines, each followed by its tangent along s ---- */

static void second_score_tangents(head *x)
{
    /* tZ = scale * (tQ K^T + Q tK^T)   ->   stZ = scale * (tQ sK^T + sQ tK^T) */
    clear_pairs(x, x->stZ);
    add_dots(x, x->stZ, x->scale, x->tQ, x->sK, x->Dk);
    add_dots(x, x->stZ, x->scale, x->sQ, x->tK, x->Dk);
    round_scores(x, x->stZ);

    /* tS = tZ o phi'(Z) + tB   ->   stS = stZ o phi'(Z) + tZ o phi''(Z) o sZ */
    EACH_PAIR(x, i, j, ij) {
        const double tangent =
            x->stZ[ij] * agi_phi1(x, x->Z[ij]) + x->tZ[ij] * agi_phi2(x, x->Z[ij]) * x->sZ[ij];
        x->stS[ij] = x->visible[ij] ? tangent : 0;
    }
    round_scores(x, x->stS);
}

/* The tangent of tP = P o (tS - mu) is P o W - P nu, with W = (tS - mu) o (sS - smu) + stS. Its second term is summed
 * as nu O, so that a part of the keys gives its share. */
static void second_weight_tangents(head *x)
{
    EACH_PAIR(x, i, j, ij) {
        const double W = (x->tS[ij] - x->mu[i]) * (x->sS[ij] - x->smu[i]) + x->stS[ij];
        x->PW[ij] = x->visible[ij] ? x->P[ij] * W : 0;
    }
    round_pairs(x, x->PW);
    EACH_PAIR(x, i, j, ij) {
        x->RW[ij] = x->PW[ij] * x->M[ij];
    }

    /* mu = rowsum(P o tS) + Ps ts   ->   nu = rowsum(P o W) + Ps (ts - mu) (ss - smu) */
    EACH_ROW(x, i) {
        x->nu[i] = has_output(x, i) ? x->Ps[i] * (x->ts - x->mu[i]) * (x->ss - x->smu[i]) : 0;
        for (int64_t j = 0; j < x->n_k; j++) {
            x->nu[i] += x->PW[i * x->Nk + j];
        }
    }
}

void agi_reference_jvp_jvp(head *x)
{
    scores(x);
    weights(x); /* with the L that was given, and mu and smu below */
    score_tangents(x, along_t(x));
    score_tangents(x, along_s(x));
    weight_tangents(x, along_t(x));
    weight_tangents(x, along_s(x));
    second_score_tangents(x);
    second_weight_tangents(x);

    /* tO = (tP o M) V + R tV   ->   stO = (P o W o M) V - nu O + (tP o M) sV + (sP o M) tV */
    EACH_ROW(x, i) {
        for (int64_t c = 0; c < x->Dv; c++) {
            x->stO[i * x->Dv + c] = has_output(x, i) ? -x->nu[i] * x->O[i * x->Dv + c] : 0;
        }
    }
    add_rows(x, x->stO, 1, x->RW, x->V, x->Dv);
    add_rows(x, x->stO, 1, x->tR, x->sV, x->Dv);
    add_rows(x, x->stO, 1, x->sR, x->tV, x->Dv);
    round_rows(x, x->stO, x->Dv);
}
