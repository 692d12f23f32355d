/* The worked example: its numbers, everything that follows from them, and the checks on it. */
#ifndef ATTNGRAD_CLI_DEMO_EXAMPLE_H
#define ATTNGRAD_CLI_DEMO_EXAMPLE_H

#include "demo_layer.h"
#include "check/results.h"

#include <stdbool.h>

struct example {
    struct inputs x; /* X, Wq, Wk, Wv, Wo */
    double T[ROWS];  /* the target that Y is compared with */
    struct activations a;
    double f;              /* the loss: half the squared distance of Y to T */
    struct activations da; /* da.Y = dY, da.C = dC and so on */
    struct inputs dx;
    struct heads heads;
    double dP_J[TOKENS]; /* the first row of dP times J */

    ag_check_report checks;

    double rate;       /* of the one step of gradient descent */
    struct inputs new; /* the weights after that step; X is data and does not change */
    double new_f;
};

/* Runs the example, without its checks. Errors are left in layer->status. */
void example_run(struct layer *layer, struct example *e);

/* Returns f for any inputs and fills in the activations a. */
double example_loss(struct layer *layer, const double *T, const struct inputs *x, struct activations *a);

/* Computes the gradient dx of f at any inputs, with the activations and their cotangents. */
void example_gradient(struct layer *layer, const double *T, const struct inputs *x, struct activations *a,
                      struct activations *da, struct inputs *dx);

/* A direction for all inputs at once, of length 1. */
void example_direction(double frequency, struct inputs *t);

/* Fills e->checks. (demo_checks.c) */
void example_check(struct layer *layer, struct example *e);

/* Whether every check passed and the step lowered the loss. */
bool example_passed(const struct example *e);

#endif
