/* The checks of the worked example: its derivatives against finite differences, and identities that hold
 * up to rounding. Both go through the whole layer, so they test attention's maps inside it. */
#include "check/stencil.h"
#include "demo_example.h"

#include <math.h>
#include <string.h>

/* With step h = 2e-3, finite differences have a truncation error near h^4 / 16 = 1e-12 and a rounding error
 * near 2^-52 / h = 1e-13, each times a small constant, so that 1e-10 is a safe limit. An identity compares
 * two sums of some 100 products: 1e-14 is 45 roundings. */
static const double STEP = 2e-3;
static const double DIFFERENCE_LIMIT = 1e-10;
static const double IDENTITY_LIMIT = 1e-14;

struct context {
    struct layer *layer;
    struct example *example;
};

/* ---- Finite differences ------------------------------------------------------------------------ */

/* A function of the inputs, with at most INPUTS results. */
typedef void (*function)(const struct context *c, const struct inputs *x, double *result);

static void loss(const struct context *c, const struct inputs *x, double *result)
{
    struct activations a;
    *result = example_loss(c->layer, c->example->T, x, &a);
}

static void output(const struct context *c, const struct inputs *x, double *result)
{
    struct activations a;
    layer_forward(c->layer, x, &a);
    memcpy(result, a.Y, sizeof a.Y);
}

static void gradient(const struct context *c, const struct inputs *x, double *result)
{
    struct activations a, da;
    struct inputs dx;
    example_gradient(c->layer, c->example->T, x, &a, &da, &dx);
    memcpy(result, &dx, sizeof dx);
}

/* Differentiates f, which has n results, at the example's inputs along direction, by finite differences. */
static void differentiate(const struct context *c, function f, int n, const double *direction, double *result)
{
    memset(result, 0, (size_t)n * sizeof *result);
    for (int p = 0; p < STENCIL_POINTS; p++) {
        double x[INPUTS], value[INPUTS];
        struct inputs moved;
        memcpy(x, &c->example->x, sizeof x);
        for (int m = 0; m < INPUTS; m++) {
            x[m] += agc_stencil[p].at * STEP * direction[m];
        }
        memcpy(&moved, x, sizeof moved);
        f(c, &moved, value);
        for (int m = 0; m < n; m++) {
            result[m] += agc_stencil[p].weight / STEP * value[m];
        }
    }
}

/* ---- Residuals --------------------------------------------------------------------------------- */

/* The larger of the two; unlike fmax it keeps a NaN, which then fails its check. */
static double worse(double a, double b)
{
    return isnan(a) || a >= b ? a : b;
}

/* The largest difference, relative to the largest |element| of a. */
static double distance(const double *a, const double *b, int n)
{
    double largest = 0, difference = 0;
    for (int m = 0; m < n; m++) {
        largest = worse(largest, fabs(a[m]));
        difference = worse(difference, fabs(a[m] - b[m]));
    }
    return difference / largest;
}

static double dot(const double *a, const double *b, int n)
{
    double sum = 0;
    for (int m = 0; m < n; m++) {
        sum += a[m] * b[m];
    }
    return sum;
}

static double absolute_dot(const double *a, const double *b, int n)
{
    double sum = 0;
    for (int m = 0; m < n; m++) {
        sum += fabs(a[m] * b[m]);
    }
    return sum;
}

/* How far <a, b> is from <c, d>, relative to the sum of the absolute values of all terms. */
static double dots_differ(const double *a, const double *b, int n, const double *c, const double *d, int m)
{
    return fabs(dot(a, b, n) - dot(c, d, m)) / (absolute_dot(a, b, n) + absolute_dot(c, d, m));
}

/* ---- First order ------------------------------------------------------------------------------- */

/* Compares every element of every gradient with the finite difference of the loss. */
static void check_gradients(const struct context *c)
{
    struct example *e = c->example;
    double differences[INPUTS] = {0}, dx[INPUTS];
    for (int n = 0; n < INPUTS; n++) {
        double direction[INPUTS] = {0};
        direction[n] = 1;
        differentiate(c, loss, 1, direction, &differences[n]);
    }
    memcpy(dx, &e->dx, sizeof dx);
    const char *names[] = {"dWq", "dWk", "dWv", "dWo"};
    agc_results_add(&e->checks, distance(dx, differences, ROWS), DIFFERENCE_LIMIT,
                    "dX: finite differences of f");
    for (int w = 0; w < 4; w++) {
        int first = ROWS + w * SQUARE;
        double residual = distance(dx + first, differences + first, SQUARE);
        agc_results_add(&e->checks, residual, DIFFERENCE_LIMIT, "%s: finite differences of f", names[w]);
    }
}

/* Checks that the softmax Jacobian gives dS, and that the score gradients of a row sum to 0, as its weights
 * always sum to 1. */
static void check_softmax(struct example *e)
{
    static const double ones[SCORES] = {1, 1, 1, 1, 1, 1, 1, 1, 1};
    const double *dS = &e->heads.dS[0][0];
    double sum = 0;
    for (int row = 0; row < HEADS * TOKENS; row++) {
        const double *r = dS + row * TOKENS;
        sum = worse(sum, fabs(dot(r, ones, TOKENS)) / absolute_dot(r, ones, TOKENS));
    }
    agc_results_add(&e->checks, distance(dS, e->dP_J, TOKENS), IDENTITY_LIMIT,
                    "dS: row 0 of head 0 = dP_0 J");
    agc_results_add(&e->checks, sum, IDENTITY_LIMIT, "dS: every row sums to 0");
}

/* ---- Directions -------------------------------------------------------------------------------- */

/* The derivatives along one direction t: tY from jvp, and H t from vjp_jvp, where H is the Hessian of f. */
struct along {
    double t[INPUTS], tY[ROWS], Ht[INPUTS];
};

static void run_along(const struct context *c, double frequency, struct along *s)
{
    const struct example *e = c->example;
    struct inputs tx, tdx;
    example_direction(frequency, &tx);
    memcpy(s->t, &tx, sizeof tx);
    layer_along(c->layer, &e->x, &tx, e->da.Y, s->tY, &tdx); /* tdY = tY, as dY = Y - T */
    memcpy(s->Ht, &tdx, sizeof s->Ht);
}

static void check_directions(const struct context *c)
{
    const struct example *e = c->example;
    ag_check_report *list = &c->example->checks;
    struct along t, u;
    double dx[INPUTS], differences[INPUTS];
    run_along(c, 1.0, &t);
    run_along(c, 2.3, &u);
    memcpy(dx, &e->dx, sizeof dx);
    differentiate(c, output, ROWS, t.t, differences);
    agc_results_add(list, distance(t.tY, differences, ROWS), DIFFERENCE_LIMIT,
                    "jvp: tY, finite differences of Y");
    differentiate(c, gradient, INPUTS, t.t, differences);
    agc_results_add(list, distance(t.Ht, differences, INPUTS), DIFFERENCE_LIMIT,
                    "vjp_jvp: H t, differences of gradients");
    agc_results_add(list, dots_differ(e->da.Y, t.tY, ROWS, dx, t.t, INPUTS), IDENTITY_LIMIT,
                    "adjoint: <dY, tY> = <gradients, t>");
    agc_results_add(list, dots_differ(u.t, t.Ht, INPUTS, t.t, u.Ht, INPUTS), IDENTITY_LIMIT,
                    "symmetry: <u, H t> = <t, H u>");
}

void example_check(struct layer *layer, struct example *example)
{
    struct context context = {layer, example};
    check_gradients(&context);
    check_softmax(example);
    check_directions(&context);
}
