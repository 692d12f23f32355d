/* The list of the worked example's variables. */
#include "demo_steps.h"

/* heads, rows, columns, head_stride, row_stride, by_head */
static const struct layout number = {0, 0, 0, 0, 0, false};
static const struct layout row = {0, TOKENS, 0, 0, 1, false};
static const struct layout tokens = {0, TOKENS, MODEL, 0, MODEL, false};
static const struct layout projected = {0, TOKENS, MODEL, 0, MODEL, true};
static const struct layout weights = {0, MODEL, MODEL, 0, MODEL, false};
static const struct layout statistic = {0, HEADS, TOKENS, 0, TOKENS, false};
static const struct layout jacobian = {0, TOKENS, TOKENS, 0, TOKENS, false};
static const struct layout scores = {HEADS, TOKENS, TOKENS, SCORES, TOKENS, false};
static const struct layout head_views = {HEADS, TOKENS, DIM, DIM, MODEL, false};

#define AT(field) offsetof(struct example, field)

const struct step demo_steps[] = {
    {"Forward", "X", NULL, "the input, one row per token", AT(x.X), &tokens},
    {NULL, "Wq", NULL, "weights to be learned: for the queries", AT(x.Wq), &weights},
    {NULL, "Wk", NULL, "for the keys", AT(x.Wk), &weights},
    {NULL, "Wv", NULL, "for the values", AT(x.Wv), &weights},
    {NULL, "Q", "X Wq", "queries: what each token looks for", AT(a.Q), &projected},
    {NULL, "K", "X Wk", "keys: what each token offers", AT(a.K), &projected},
    {NULL, "V", "X Wv", "values: what each token passes on", AT(a.V), &projected},
    {NULL, "Z", "Q K^T / sqrt(d_k)", "row i: how well query i fits each key", AT(heads.Z), &scores},
    {NULL, "S", "Z", "no bias, softcap or mask to add here", AT(heads.S), &scores},
    {NULL, "L", "log rowsum(exp(S))", "a row per head, a column per query", AT(a.L), &statistic},
    {NULL, "P", "exp(S - L)", "softmax: weights, each row sums to 1", AT(heads.P), &scores},
    {NULL, "O", "P V", "each row a weighted mean of values", AT(a.C), &head_views},
    {NULL, "C", "concat(O_0, O_1)", "the heads side by side", AT(a.C), &projected},
    {NULL, "Wo", NULL, "weights that mix the heads", AT(x.Wo), &weights},
    {NULL, "Y", "C Wo", "the layer's output", AT(a.Y), &tokens},
    {NULL, "T", NULL, "the output that we would like", AT(T), &tokens},
    {NULL, "f", "sum((Y - T)^2) / 2", "the loss", AT(f), &number},

    {"Backward: dA is the derivative of f by A, for every A above", "dY", "Y - T", "f = sum((Y - T)^2) / 2",
     AT(da.Y), &tokens},
    {NULL, "dWo", "C^T dY", "Y = C Wo", AT(dx.Wo), &weights},
    {NULL, "dC", "dY Wo^T", "Y = C Wo", AT(da.C), &projected},
    {NULL, "dO", "columns of dC", "C = concat(O_0, O_1)", AT(da.C), &head_views},
    {NULL, "dV", "P^T dO", "O = P V, head by head", AT(da.V), &projected},
    {NULL, "dP", "dO V^T", "O = P V", AT(heads.dP), &scores},
    {NULL, "D", "rowsum(dO o O)", "= rowsum(P o dP); o: entry by entry", AT(heads.D), &statistic},
    {NULL, "dS", "P o (dP - D)", "P = exp(S - L), each row by itself", AT(heads.dS), &scores},
    {NULL, "dQ", "dS K / sqrt(d_k)", "Z = Q K^T / sqrt(d_k), S = Z", AT(da.Q), &projected},
    {NULL, "dK", "dS^T Q / sqrt(d_k)", "Z = Q K^T / sqrt(d_k), S = Z", AT(da.K), &projected},
    {NULL, "dWq", "X^T dQ", "Q = X Wq", AT(dx.Wq), &weights},
    {NULL, "dWk", "X^T dK", "K = X Wk", AT(dx.Wk), &weights},
    {NULL, "dWv", "X^T dV", "V = X Wv", AT(dx.Wv), &weights},
    {NULL, "dX", "dQ Wq^T + dK Wk^T + dV Wv^T", "X is used three times", AT(dx.X), &tokens},

    {"The softmax Jacobian of row 0 of head 0", "J", "diag(P_0) - P_0^T P_0",
     "derivative of the row of P by that of S", AT(heads.J), &jacobian},
    {NULL, "dP_J", "dP_0 J", "the same as row 0 of dS above", AT(dP_J), &row},
};

const struct step demo_update[] = {
    {"One step of gradient descent, after all gradients", "rate", NULL, "the length of the step", AT(rate),
     &number},
    {NULL, "Wq_new", "Wq - rate dWq", "downhill, against the gradient", AT(new.Wq), &weights},
    {NULL, "Wk_new", "Wk - rate dWk", "likewise", AT(new.Wk), &weights},
    {NULL, "Wv_new", "Wv - rate dWv", "likewise", AT(new.Wv), &weights},
    {NULL, "Wo_new", "Wo - rate dWo", "likewise", AT(new.Wo), &weights},
    {NULL, "f_new", "f at the new weights", "lower than f above", AT(new_f), &number},
};

const int demo_steps_count = sizeof demo_steps / sizeof demo_steps[0];
const int demo_update_count = sizeof demo_update / sizeof demo_update[0];

const double *step_values(const struct step *step, const struct example *example)
{
    return (const void *)((const char *)example + step->offset);
}

int step_shape(const struct step *step, int64_t shape[3])
{
    const struct layout *l = step->layout;
    const int sizes[3] = {l->heads, l->rows, l->columns};
    int dimensions = 0;
    for (int n = 0; n < 3; n++) {
        if (sizes[n] > 0) {
            shape[dimensions++] = sizes[n];
        }
    }
    return dimensions;
}
