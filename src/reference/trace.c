/* The trace: runs the formulas of one map for one head and copies the intermediates to the caller. */
#include <string.h>

#include "reference/head.h"

/* The offsets of an array in the trace and of the variable in the head that is copied to it. */
typedef struct {
    size_t trace, value;
} traced;

#define TRACED(name) offsetof(ag_trace_args, name), offsetof(head, name)

static const traced matrices[] = {{TRACED(Z)},  {TRACED(B)},  {TRACED(S)},   {TRACED(P)},   {TRACED(M)},
                                  {TRACED(R)},  {TRACED(dP)}, {TRACED(dS)},  {TRACED(dZ)},  {TRACED(tZ)},
                                  {TRACED(tS)}, {TRACED(tP)}, {TRACED(tdP)}, {TRACED(tdS)}, {TRACED(tdZ)},
                                  {TRACED(sZ)}, {TRACED(sS)}, {TRACED(sP)},  {TRACED(stZ)}, {TRACED(stS)}};
static const traced rows[] = {{TRACED(L)},  {TRACED(Ps)},  {TRACED(D)}, {TRACED(mu)},
                              {TRACED(tD)}, {TRACED(smu)}, {TRACED(nu)}};

static double *field(const void *of, size_t offset)
{
    double *pointer;
    memcpy(&pointer, (const char *)of + offset, sizeof pointer);
    return pointer;
}

static void clear(double *to, int64_t n_rows, int64_t n_columns)
{
    memset(to, 0, (size_t)n_rows * (size_t)n_columns * sizeof to[0]);
}

static void store_matrices(const head *x, const ag_trace_args *t, int64_t Nq)
{
    for (size_t m = 0; m < sizeof matrices / sizeof matrices[0]; m++) {
        double *to = field(t, matrices[m].trace);
        const double *from = field(x, matrices[m].value);
        if (to != NULL) {
            clear(to, Nq, x->Nk);
            EACH_PAIR(x, i, j, ij) {
                to[ij] = from == NULL ? 0 : from[ij];
            }
        }
    }
}

static void store_rows(const head *x, const ag_trace_args *t, int64_t Nq)
{
    for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
        double *to = field(t, rows[r].trace);
        const double *from = field(x, rows[r].value);
        if (to != NULL) {
            clear(to, Nq, 1);
            EACH_ROW(x, i) {
                to[i] = from == NULL ? 0 : from[i];
            }
        }
    }
}

static void store_softcap(const head *x, double *to, double (*derivative)(const head *, double), int64_t Nq)
{
    if (to != NULL) {
        clear(to, Nq, x->Nk);
        EACH_PAIR(x, i, j, ij) {
            to[ij] = x->visible[ij] ? derivative(x, x->Z[ij]) : 0;
        }
    }
}

/* stP = P o (W - nu), of which the formulas have P o W: see second_weight_tangents. */
static void store_second_weights(const head *x, double *to, int64_t Nq)
{
    if (to != NULL) {
        clear(to, Nq, x->Nk);
        EACH_PAIR(x, i, j, ij) {
            to[ij] = x->PW != NULL && x->visible[ij] ? x->PW[ij] - x->P[ij] * x->nu[i] : 0;
        }
    }
}

/* The Jacobian of the softmax of row i: J = diag(P_i) - P_i^T P_i, which is symmetric. Without a cotangent of L,
 * dS_i = dP_i J. */
static void store_jacobian(const head *x, double *J, int64_t i)
{
    if (J == NULL) {
        return;
    }
    clear(J, x->Nk, x->Nk);
    const double *P = x->P + i * x->Nk;
    for (int64_t j = 0; j < x->n_k && i < x->n_q; j++) {
        for (int64_t k = 0; k < x->n_k; k++) {
            J[j * x->Nk + k] = (j == k ? P[j] : 0) - P[j] * P[k];
        }
    }
}

ag_status agi_reference_trace(const agi_call *call, const ag_trace_args *t, void *workspace)
{
    const int64_t Nq = call->plan->p.q_len;
    agi_reference_layout layout;
    agi_arena arena = agi_arena_begin(workspace);
    agi_reference_lay_out(&layout, &arena, call->plan, call->map);
    head *x = &layout.heads[0];
    agi_reference_begin_head(x, call, t->batch, t->head);
    agi_reference_load_keys(x);
    agi_reference_load_queries(x);
    agi_reference_run_head(x);
    store_matrices(x, t, Nq);
    store_rows(x, t, Nq);
    store_softcap(x, t->phi1, agi_phi1, Nq);
    store_softcap(x, t->phi2, agi_phi2, Nq);
    store_second_weights(x, t->stP, Nq);
    store_jacobian(x, t->J, t->jacobian_row);
    return AG_OK;
}
