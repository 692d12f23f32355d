/* One head of one sequence: all of its variables, as float64 matrices in row-major order. The formulas work
 * on these; the other files of this folder load and store them.
 *
 *     i  query row, 0 .. n_q - 1        B H Hk     sequences, query heads, kv heads
 *     j  key column, 0 .. n_k - 1       Nq Nk      longest lengths: the size of the arrays
 *     dX cotangent of X                 Dk Dv      channels of Q and K, of V and O
 *     tX tangent of X                   sX         tangent of X along a second direction */
#ifndef AGI_REFERENCE_HEAD_H
#define AGI_REFERENCE_HEAD_H

#include "core/arena.h"
#include "core/call.h"

typedef struct head {
    const agi_call *call;
    agi_sequence seq;
    int64_t h;
    int64_t n_q, n_k, Nk, Dk, Dv;
    double scale, softcap; /* softcap 0: none */
    double s, ts, ss;      /* the head's sink logit and its tangents; no sink: -infinity and 0 */

    uint8_t *visible;              /* [Nq][Nk] */
    uint8_t *sees;                 /* [Nq]: does the row see at least one key? */
    double *Q, *K, *V, *O;         /* [Nq][Dk] [Nk][Dk] [Nk][Dv] [Nq][Dv] */
    double *Z, *B, *S, *P, *M, *R; /* [Nq][Nk] */
    double *L, *Ps;                /* [Nq] */

    double *dO, *dL, *D;  /* [Nq][Dv] [Nq] [Nq] */
    double *dP, *dS, *dZ; /* [Nq][Nk] */
    double *dQ, *dK, *dV; /* shaped as Q, K, V; dK and dV are summed over the heads of a group */

    double *tQ, *tK, *tV, *tO;
    double *tB, *tZ, *tS, *tP, *tR; /* [Nq][Nk]; tR = tP o M */
    double *mu;                     /* [Nq] */

    double *sQ, *sK, *sV;
    double *sB, *sZ, *sS, *sP, *sR; /* [Nq][Nk]; sR = sP o M */
    double *smu;                    /* [Nq] */
    double *stZ, *stS, *PW, *RW;    /* [Nq][Nk]; RW = PW o M */
    double *stO, *nu;               /* [Nq][Dv] [Nq] */

    double *tdO, *tdL, *tD;
    double *tdP, *tdS, *tdZ;
    double *tdQ, *tdK, *tdV;

    /* Sums of this map's gradients over heads and sequences: dB or tdB and so on. Shared between heads; NULL:
     * not summed. */
    double *sum_bias, *sum_table, *sum_sink;
} head;

/* Loops over the rows of a head, and over its pairs, with ij the index of (i, j) in a matrix. They end early if the
 * call is cancelled. */
#define EACH_ROW(x, i) for (int64_t i = 0; i < (x)->n_q && !agi_cancelled((x)->call->exec); i++)
#define EACH_PAIR(x, i, j, ij)                                                                               \
    EACH_ROW(x, i)                                                                                           \
        for (int64_t j = 0, ij = i * (x)->Nk; j < (x)->n_k; j++, ij++)

/* formulas.c: the maps of one head. */
void agi_reference_forward(head *x);
void agi_reference_vjp(head *x);
void agi_reference_jvp(head *x);
void agi_reference_vjp_jvp(head *x);
void agi_reference_jvp_jvp(head *x);
double agi_phi(const head *x, double z);
double agi_phi1(const head *x, double z);
double agi_phi2(const head *x, double z);

/* features.c: which pairs see each other, what is added to their scores, which weights are dropped; and the
 * sums of dS (or tdS) into the gradients of bias and table. */
void agi_reference_features(head *x);
void agi_reference_add_bias_gradient(head *x, const double *dS);

/* storage.c: the layout of one head's variables; loads them from the caller's tensors and stores them there. */
void agi_reference_lay_out_head(head *x, agi_arena *arena, const ag_plan *plan, agi_map map);
void agi_reference_begin_head(head *x, const agi_call *call, int64_t b, int64_t h);
void agi_reference_load_keys(head *x);
void agi_reference_load_queries(head *x);
void agi_reference_store_keys(const head *x);
void agi_reference_store_queries(const head *x);
void agi_store_packed_tails(const agi_call *call);

/* Stores rows row0 .. row0 + n_rows - 1 of one head of a view from a dense matrix; if that is NULL, sets them
 * to `fill`. accumulate: adds to the old values, then rounds. */
typedef struct {
    const ag_tensor *t;
    ag_dtype dtype;
    bool accumulate;
    bool low_half; /* what rounding takes from the values is stored, instead of the values */
} agi_output;
void agi_store_rows(agi_output out, int64_t b, int64_t h, int64_t row0, int64_t n_rows, int64_t n_cols,
                    const double *values, double fill);

/* merge.c and trace.c: entries of the backend's table. */
ag_status agi_reference_merge(const ag_plan *plan, const ag_merge_args *args, agi_exec *exec);
ag_status agi_reference_trace(const agi_call *call, const ag_trace_args *trace, void *workspace);

/* Lays out the whole workspace of a map. */
typedef struct {
    head *heads; /* one per thread */
    double *sum_bias, *sum_table, *sum_sink;
} agi_reference_layout;
void agi_reference_lay_out(agi_reference_layout *layout, agi_arena *arena, const ag_plan *plan, agi_map map);

/* Runs one map on one head whose inputs are loaded. */
void agi_reference_run_head(head *x);

#endif
