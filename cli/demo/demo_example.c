/* The numbers of the worked example, and its computation: forward, loss, backward, trace, one step of
 * gradient descent. The weights are updated last, after every gradient was computed. */
#include "demo_example.h"

#include <math.h>
#include <string.h>

/* Each line is a row of its matrix. */
/* clang-format off */
static const struct inputs given = {
    .X = {
         1.0,  0.5, -0.5,  0.0,
         0.0,  1.0,  0.5, -1.0,
        -1.0,  0.0,  1.0,  0.5,
    },
    .Wq = {
         1.0, -0.5,  0.5,  0.0,
         0.5,  1.0,  0.0, -0.5,
        -1.0,  0.5,  1.0,  0.5,
         0.0, -1.0,  0.5,  1.0,
    },
    .Wk = {
         0.5,  1.0, -1.0,  0.5,
         1.0,  0.0,  0.5, -0.5,
        -0.5,  0.5,  1.0,  0.0,
         0.5, -1.0,  0.0,  1.0,
    },
    .Wv = {
         1.0,  0.0,  0.5, -1.0,
        -0.5,  1.0,  0.0,  0.5,
         0.0,  0.5, -1.0,  1.0,
         1.0, -0.5,  0.5,  0.0,
    },
    .Wo = {
         0.5, -1.0,  0.0,  1.0,
         1.0,  0.5, -0.5,  0.0,
         0.0,  1.0,  0.5, -0.5,
        -0.5,  0.0,  1.0,  0.5,
    },
};

static const double target[ROWS] = {
     0.5,  0.0, -0.5,  1.0,
     0.0,  0.5,  1.0, -0.5,
    -1.0,  0.5,  0.0,  0.5,
};
/* clang-format on */

static const double learning_rate = 0.1;

double example_loss(struct layer *layer, const double *T, const struct inputs *x, struct activations *a)
{
    double sum = 0;
    layer_forward(layer, x, a);
    for (int n = 0; n < ROWS; n++) {
        sum += (a->Y[n] - T[n]) * (a->Y[n] - T[n]);
    }
    return sum / 2;
}

void example_gradient(struct layer *layer, const double *T, const struct inputs *x, struct activations *a,
                      struct activations *da, struct inputs *dx)
{
    layer_forward(layer, x, a);
    for (int n = 0; n < ROWS; n++) {
        da->Y[n] = a->Y[n] - T[n];
    }
    layer_vjp(layer, x, da, dx);
}

void example_direction(double frequency, struct inputs *t)
{
    double values[INPUTS], squares = 0;
    for (int n = 0; n < INPUTS; n++) {
        values[n] = sin(frequency * (n + 1));
        squares += values[n] * values[n];
    }
    for (int n = 0; n < INPUTS; n++) {
        values[n] /= sqrt(squares);
    }
    memcpy(t, values, sizeof values);
}

static void descend(double *new_w, const double *w, const double *dw, double rate)
{
    for (int n = 0; n < SQUARE; n++) {
        new_w[n] = w[n] - rate * dw[n];
    }
}

static void step(struct example *e)
{
    e->rate = learning_rate;
    memcpy(e->new.X, e->x.X, sizeof e->new.X);
    descend(e->new.Wq, e->x.Wq, e->dx.Wq, e->rate);
    descend(e->new.Wk, e->x.Wk, e->dx.Wk, e->rate);
    descend(e->new.Wv, e->x.Wv, e->dx.Wv, e->rate);
    descend(e->new.Wo, e->x.Wo, e->dx.Wo, e->rate);
}

void example_run(struct layer *layer, struct example *e)
{
    struct activations after;
    memset(e, 0, sizeof *e);
    e->x = given;
    memcpy(e->T, target, sizeof e->T);
    e->f = example_loss(layer, e->T, &e->x, &e->a);
    example_gradient(layer, e->T, &e->x, &e->a, &e->da, &e->dx);
    layer_trace(layer, &e->a, &e->da, &e->heads);
    for (int j = 0; j < TOKENS; j++) {
        for (int l = 0; l < TOKENS; l++) {
            e->dP_J[j] += e->heads.dP[0][l] * e->heads.J[l * TOKENS + j];
        }
    }
    step(e);
    e->new_f = example_loss(layer, e->T, &e->new, &after);
}

bool example_passed(const struct example *e)
{
    return agc_results_count(&e->checks).failed == 0 && e->new_f < e->f;
}
