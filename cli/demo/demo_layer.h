/* The self-attention layer of the demo: one of the library's, in float64, with access to every variable of
 * it. Q, K, V and C = concat(O_h) are [token][head][channel]. */
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

/* What the loss is a function of. Also holds its gradients (dX, dWq ...), directions (tX, tWq ...) and
 * the tangents of the gradients. */
struct inputs {
    double X[ROWS];
    double Wq[SQUARE], Wk[SQUARE], Wv[SQUARE], Wo[SQUARE];
};

enum { INPUTS = sizeof(struct inputs) / sizeof(double) }; /* how many numbers that is */

/* What the layer computes on the way. L is the logarithm of each row's sum of exponentials; in cotangents
 * it is not used: the loss does not depend on L. */
struct activations {
    double Q[ROWS], K[ROWS], V[ROWS];
    double L[HEADS * TOKENS];
    double C[ROWS];
    double Y[ROWS];
};

/* What attention computes on the way, head by head. */
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

/* Reads da->Y, writes the rest of da (but L) and dx. */
void layer_vjp(struct layer *layer, const struct inputs *x, struct activations *da, struct inputs *dx);

/* Along tx: the tangent of Y and, as dY moves by tY too, those of the gradients. */
void layer_along(struct layer *layer, const struct inputs *x, const struct inputs *tx, const double *dY,
                 double *tY, struct inputs *tdx);

void layer_trace(struct layer *layer, const struct activations *a, const struct activations *da,
                 struct heads *heads);

#endif
