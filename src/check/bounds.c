/* Bounds from the norms of the inputs: see bounds.h. */
#include "check/bounds.h"

#include "check/disjoint_rows.h"

#include <math.h>
#include <stdlib.h>

double agc_largest(const double *values, int64_t count)
{
    double max = 0;
    for (int64_t n = 0; n < count; n++) {
        if (isfinite(values[n]) && fabs(values[n]) > max) {
            max = fabs(values[n]);
        }
    }
    return max;
}

void agc_note_differences(struct worst *w, const struct bounds *s, enum tensor t, const double *got,
                          const double *wanted, int64_t count)
{
    for (int64_t n = 0; n < count; n++) {
        if (got[n] != wanted[n]) {
            agc_worst_note(w, fabs(got[n] - wanted[n]) / s->unit[t], t, n);
        }
    }
}

static double largest_of(const struct arrays *x, enum tensor t)
{
    return agc_largest(agc_arrays_f64(x, t), x->count[t]);
}

static double norm(const double *values, int64_t count)
{
    double sum = 0;
    for (int64_t n = 0; n < count; n++) {
        sum += values[n] * values[n];
    }
    return sqrt(sum);
}

/* The largest norm of a row, at least 1e-30, as it is used as a divisor. 1e-30 if there is no such tensor. */
static double longest_row(const struct arrays *x, enum tensor t)
{
    double max = 1e-30;
    int64_t channels = x->size[t][3];
    for (int64_t n = 0; x->data[t] != NULL && n < x->count[t]; n += channels) {
        max = fmax(max, norm(agc_arrays_f64(x, t) + n, channels));
    }
    return max;
}

/* For each row a bound of what it adds to the loss: |dO| |v| + |dL|, plus the same of their tangents. NULL if there
 * is no memory. */
static double *row_weights(const struct arrays *x, double v)
{
    int64_t rows = x->count[T_LSE], channels = x->p->dim_v;
    double *weights = agc_alloc("bounds of the rows", rows, sizeof *weights);
    const double *d_o = agc_arrays_f64(x, T_D_O), *td_o = agc_arrays_f64(x, T_TD_O);
    const double *d_lse = agc_arrays_f64(x, T_D_LSE), *td_lse = agc_arrays_f64(x, T_TD_LSE);
    for (int64_t r = 0; weights != NULL && r < rows; r++) {
        double norms = norm(d_o + r * channels, channels) + norm(td_o + r * channels, channels);
        weights[r] = norms * v / (1 - x->p->dropout) + fabs(d_lse[r]) + fabs(td_lse[r]);
    }
    return weights;
}

/* Finds the largest sum of weights over the rows that one element of a variable reaches (disjoint_rows.h). */
static ag_status reach(const struct arrays *x, enum tensor variable, const double *weights, double *max)
{
    struct disjoint_rows g;
    ag_status status = agc_disjoint_rows_create(&g, x, variable);
    if (status != AG_OK) {
        return status;
    }
    double *sums = agc_alloc_zeros("sums over disjoint rows", g.sets);
    for (int64_t r = 0; sums != NULL && r < x->count[T_LSE]; r++) {
        if (g.row_set[r] >= 0) {
            sums[g.row_set[r]] += weights[r];
        }
    }
    *max = sums != NULL ? agc_largest(sums, g.sets) : 0;
    status = sums != NULL ? AG_OK : AG_NO_MEMORY;
    free(sums);
    agc_disjoint_rows_destroy(&g);
    return status;
}

/* The units of the gradients and of their tangents. */
static ag_status bound_gradients(struct bounds *s, const struct arrays *x, const double *weights)
{
    ag_status status = AG_OK;
    for (int f = 0; f < FAMILY_VARIABLES && status == AG_OK; f++) {
        const struct family *m = &agc_families[f];
        double max = 0;
        if (x->data[m->x] != NULL) {
            status = reach(x, m->x, weights, &max);
            s->unit[m->d] = s->score * s->rate[f] * max;
            s->unit[m->td] = s->unit[m->d] * s->tangent_rate;
        }
    }
    return status;
}

/* The rate per step along the tangents of the six variables. */
static double rate_along(const struct arrays *x, const enum tensor t[FAMILY_VARIABLES], double scale)
{
    const double q = longest_row(x, T_Q), k = longest_row(x, T_K), v = longest_row(x, T_V);
    const double tq = longest_row(x, t[0]), tk = longest_row(x, t[1]), tv = longest_row(x, t[2]);
    return 1 + scale * (tq * k + q * tk) + tq / q + tk / k + tv / v + largest_of(x, t[3]) +
           largest_of(x, t[4]) + largest_of(x, t[5]);
}

static void set_rates(struct bounds *s, const struct arrays *x, double scale)
{
    enum tensor along_t[FAMILY_VARIABLES], along_s[FAMILY_VARIABLES];
    for (int f = 0; f < FAMILY_VARIABLES; f++) {
        along_t[f] = agc_families[f].t;
        along_s[f] = agc_families[f].s;
    }
    s->tangent_rate = rate_along(x, along_t, scale);
    s->second_rate = agc_arrays_has_second_direction(x) ? rate_along(x, along_s, scale) : 0;
}

ag_status agc_bounds_of(struct bounds *s, const struct arrays *x)
{
    double q = longest_row(x, T_Q), k = longest_row(x, T_K), v = longest_row(x, T_V);
    double cap = x->p->softcap; /* its derivatives grow with powers of 1 / cap */
    double scale = fabs(x->p->scale) * (cap > 0 ? fmax(1, 2 / cap) : 1);
    s->score = 1 + largest_of(x, T_LSE) + fabs(x->p->scale) * q * k;
    s->rate[0] = scale * k;
    s->rate[1] = scale * q;
    s->rate[2] = 1 / v;
    s->rate[3] = s->rate[4] = s->rate[5] = 1;
    set_rates(s, x, scale);
    for (enum tensor t = 0; t < T_COUNT; t++) {
        s->unit[t] = 0;
    }
    s->unit[T_O] = s->score * v / (1 - x->p->dropout);
    s->unit[T_TO] = s->unit[T_O] * s->tangent_rate;
    s->unit[T_LSE] = s->score;
    s->unit[T_MU] = s->score * s->tangent_rate;
    s->unit[T_SMU] = s->score * s->second_rate;
    s->unit[T_STO] = s->unit[T_TO] * s->second_rate;
    s->unit[T_NU] = s->unit[T_MU] * s->second_rate;
    double *weights = row_weights(x, v);
    ag_status status = weights != NULL ? bound_gradients(s, x, weights) : AG_NO_MEMORY;
    free(weights);
    return status;
}
