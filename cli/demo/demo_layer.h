/* The self-attention layer of the demo: a layer of the library, in float64, with access to all its variables.
 * Q, K, V and C = concat(O_h) are [token][head][channel]. */
#ifndef ATTNGRAD_CLI_DEMO_LAYER_H
#define ATTNGRAD_CLI_DEMO_LAYER_H

#include "attngrad_nn.h"

enum {
    TOKENS = 3,
    HEADS = 2,
    DIM = 2,             /* d_k = d_v */
    MODEL = HEADS * DIM, /* d_model */
    ROWS = TOKENS * MODEL,
    SQUARE = MODEL * MODEL,
    SCORES = TOKENS * TOKENS
};

/* The variables that the loss is a function of. Also used for its gradients (dX, dWq ...), directions (tX,
 * tWq ...) and the tangents of the gradients. */
struct inputs {
    double X[ROWS];
    double Wq[SQUARE], Wk[SQUARE], Wv[SQUARE], Wo[SQUARE];
};

enum { INPUTS = sizeof(struct inputs) / sizeof(double) }; /* number of variables */

/* Intermediate results of the layer. L is the logarithm of each row's sum of exponentials; it is not used in
 * cotangents, as the loss does not depend on L. */
struct activations {
    double Q[ROWS], K[ROWS], V[ROWS];
    double L[HEADS * TOKENS];
    double C[ROWS];
    double Y[ROWS];
};

/* Intermediate results of attention, head by head. */
struct heads {
    double Z[HEADS][SCORES], S[HEADS][SCORES], P[HEADS][SCORES];
    double dP[HEADS][SCORES], dS[HEADS][SCORES];
    double D[HEADS][TOKENS];
    double J[SCORES]; /* the softmax Jacobian of the first row of the first head */
};

struct layer {
    ag_layer *layer;
    void *workspace, *saved, *t_saved, *d_saved;
    size_t bytes;     /* of the workspace */
    ag_status status; /* of the first call that failed; the maps do nothing from then on */
};

/* The layer must be destroyed even if its status is not AG_OK. */
void layer_create(struct layer *layer);
void layer_destroy(struct layer *layer);

/* Writes all of a. */
void layer_forward(struct layer *layer, const struct inputs *x, struct activations *a);

/* Reads da->Y, writes dx and the rest of da except L. */
void layer_vjp(struct layer *layer, const struct inputs *x, struct activations *da, struct inputs *dx);

/* Writes all of ta, the tangents along tx: ta->L is the tangent of L. */
void layer_jvp(struct layer *layer, const struct inputs *x, const struct inputs *tx, struct activations *ta);

/* Computes the tangent of Y along tx and the tangents of the gradients, where dY changes by tY, too. */
void layer_along(struct layer *layer, const struct inputs *x, const struct inputs *tx, const double *dY,
                 double *tY, struct inputs *tdx);

ag_tensor rows_of(const double *rows); /* the view of Q, K, V, C or a derivative of them */

void layer_trace(struct layer *layer, const struct activations *a, const struct activations *da,
                 struct heads *heads);

#endif
