/* The identities of docs/math.md, each stated before its code. */
#include "check/identities.h"

#include "check/rng.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void agc_sum_add(struct sum *s, double sign, const double *a, const double *b, int64_t count)
{
    for (int64_t n = 0; n < count; n++) {
        s->value += sign * a[n] * b[n];
        s->size += fabs(a[n] * b[n]);
    }
}

static void add_plain(struct sum *s, double sign, const double *a, int64_t count)
{
    for (int64_t n = 0; n < count; n++) {
        s->value += sign * a[n];
        s->size += fabs(a[n]);
    }
}

double agc_sum_imbalance(const struct identity *id, const struct sum *s)
{
    return s->value == 0 ? 0 : fabs(s->value) / (s->size * id->bounds.score);
}

/* Adjoint: <dO, tO> + <dL, mu> = <dQ, tQ> + <dK, tK> + <dV, tV> + <dB, tB> + <dT, tT> + <ds, ts>. */
static void adjoint(struct identity *id)
{
    struct sum s = {0, 0};
    for (int f = 0; f < FAMILY_COUNT; f++) {
        const struct family *m = &agc_families[f];
        double sign = f < FAMILY_VARIABLES ? -1 : 1;
        agc_sum_add(&s, sign, agc_arrays_f64(id->x, m->d), agc_arrays_f64(id->x, m->t), id->x->count[m->x]);
    }
    agc_results_add(id->results, agc_sum_imbalance(id, &s), IDENTITY_LIMIT, "adjoint");
}

/* ---- Symmetry of the Hessian ------------------------------------------------------------------- */

static void random_tangents(struct arrays *y)
{
    for (int f = 0; f < FAMILY_VARIABLES; f++) {
        struct rng r;
        enum tensor t = agc_families[f].t;
        double *values = agc_arrays_f64(y, t);
        agc_rng_init(&r, y->seed, (uint64_t)(T_FREE_STREAM + t));
        for (int64_t n = 0; n < y->count[t]; n++) {
            values[n] = agc_rng_normal(&r);
        }
    }
}

/* The Hessian of <dO, O> + <dL, L> times y's tangents. */
static ag_status hessian_product(struct arrays *y)
{
    y->args.td_o.data = y->args.td_lse.data = NULL;
    ag_status status = agc_arrays_run(y, AG_MAP_JVP);
    return status == AG_OK ? agc_arrays_run(y, AG_MAP_VJP_JVP) : status;
}

static void compare_products(struct identity *id, const struct arrays *t, const struct arrays *u)
{
    struct sum s = {0, 0};
    for (int f = 0; f < FAMILY_VARIABLES; f++) {
        const struct family *m = &agc_families[f];
        agc_sum_add(&s, 1, agc_arrays_f64(u, m->t), agc_arrays_f64(t, m->td), t->count[m->x]);
        agc_sum_add(&s, -1, agc_arrays_f64(t, m->t), agc_arrays_f64(u, m->td), t->count[m->x]);
    }
    agc_results_add(id->results, agc_sum_imbalance(id, &s), IDENTITY_LIMIT, "symmetry of the Hessian");
}

/* With tdO = tdL = 0 vjp_jvp is a symmetric linear map of the tangents:
 * <u, vjp_jvp(t)> = <t, vjp_jvp(u)> for any two directions t, u. */
static ag_status symmetry(struct identity *id)
{
    struct arrays t, u;
    ag_status status = agc_arrays_clone_as(&t, id->x, AG_F64, id->options);
    if (status != AG_OK) {
        return status;
    }
    status = agc_arrays_clone_as(&u, id->x, AG_F64, id->options);
    if (status == AG_OK) {
        random_tangents(&u);
        status = hessian_product(&t);
        status = status == AG_OK ? hessian_product(&u) : status;
        if (status == AG_OK) {
            compare_products(id, &t, &u);
        }
        agc_arrays_destroy(&u);
    }
    agc_arrays_destroy(&t);
    return status;
}

/* ---- Sums -------------------------------------------------------------------------------------- */

/* Makes y: x itself if it has a bias, else x with a bias of zero, broadcast to all scores, whose gradient is
 * the sum of all dS. */
static ag_status with_bias(struct arrays *y, const struct identity *id, const int64_t size[4])
{
    ag_problem problem = id->x->given;
    if (!(problem.flags & AG_BIAS)) {
        problem.flags |= AG_BIAS;
        memcpy(problem.bias_size, size, sizeof problem.bias_size);
    }
    return agc_arrays_like(y, id->x, &problem, id->options);
}

static void compare_score_sums(struct identity *id, const struct arrays *y)
{
    struct sum s = {0, 0};
    add_plain(&s, 1, agc_arrays_f64(y, T_DBIAS), y->count[T_DBIAS]);
    add_plain(&s, 1, agc_arrays_f64(y, T_DSINK), y->count[T_DSINK]);
    for (int64_t r = 0; r < y->count[T_LSE]; r++) {
        if (agc_arrays_f64(y, T_LSE)[r] != -INFINITY) {
            add_plain(&s, -1, agc_arrays_f64(y, T_D_LSE) + r, 1);
        }
    }
    s.size += id->bounds.unit[T_DQ]; /* each dS is a difference: its terms may be larger than their sum */
    agc_results_add(id->results, agc_sum_imbalance(id, &s), IDENTITY_LIMIT, "sum of dS");
}

static ag_status run_backward(struct arrays *y)
{
    ag_status status = agc_arrays_run(y, AG_MAP_FORWARD);
    return status == AG_OK ? agc_arrays_run(y, AG_MAP_VJP) : status;
}

/* Adding a constant to all scores and to the sink adds it to L and changes nothing else: sum of dS + sum of
 * ds = sum of dL over the rows whose L is finite. */
static ag_status sum_of_scores(struct identity *id)
{
    static const int64_t one[4] = {1, 1, 1, 1};
    struct arrays y;
    ag_status status = with_bias(&y, id, one);
    if (status != AG_OK) {
        return status;
    }
    status = run_backward(&y);
    if (status == AG_OK) {
        compare_score_sums(id, &y);
    }
    agc_arrays_destroy(&y);
    return status;
}

/* The sum of dK over the keys of sequence b, kv head h, channel c. */
static double key_sum(const struct arrays *y, int64_t b, int64_t h, int64_t c)
{
    double sum = 0;
    for (int64_t j = 0; j < agc_arrays_k_length(y, b); j++) {
        sum += agc_arrays_f64(y, T_DK)[agc_arrays_index(y, T_DK, b, h, j, c)];
    }
    return sum;
}

static void note_key_sums(const struct identity *id, const struct arrays *y, struct worst *worst)
{
    const ag_problem *p = y->p;
    for (int64_t n = 0; n < p->batch * p->kv_heads * p->dim_qk; n++) {
        int64_t c = n % p->dim_qk, h = n / p->dim_qk % p->kv_heads, b = n / p->dim_qk / p->kv_heads;
        double sum = fabs(key_sum(y, b, h, c));
        agc_worst_note(worst, sum == 0 ? 0 : sum / id->bounds.unit[T_DK], T_DK,
                       agc_arrays_index(y, T_DK, b, h, 0, c));
    }
}

/* Adding one vector to every key adds a constant to each row of scores, which does not change the softmax:
 * without softcap, sink and dL the sum of dK over the keys is 0. (It is the gradient of the layer's bk.) */
static ag_status sum_of_keys(struct identity *id)
{
    static const char name[] = "sum of dK over keys";
    const ag_problem *p = id->x->p;
    struct arrays y;
    struct worst worst = WORST_NONE;
    if (p->softcap > 0 || (p->flags & AG_SINK)) {
        agc_results_not_applicable(id->results, p->softcap > 0 ? "softcap" : "sink", name);
        return AG_OK;
    }
    ag_status status = agc_arrays_clone_as(&y, id->x, AG_F64, id->options);
    if (status != AG_OK) {
        return status;
    }
    y.args.d_lse.data = NULL;
    status = run_backward(&y);
    if (status == AG_OK) {
        note_key_sums(id, &y, &worst);
        agc_results_add_sum(id->results, &y, &worst, 2, IDENTITY_LIMIT, name);
    }
    agc_arrays_destroy(&y);
    return status;
}

/* ---- A constant added to each row of the bias -------------------------------------------------- */

/* Adds a random constant to each row of the bias. A row is one (b, h, i) of the bias's own size; returns one
 * number per row, to be freed; NULL if there is no memory. */
static double *add_row_constants(struct arrays *y)
{
    struct rng r;
    int64_t columns = y->size[T_BIAS][3];
    int64_t rows = y->size[T_BIAS][0] * y->size[T_BIAS][1] * y->size[T_BIAS][2];
    double *constants = agc_alloc("constants of the rows", rows, sizeof *constants);
    agc_rng_init(&r, y->seed, 3 * T_FREE_STREAM);
    for (int64_t n = 0; constants != NULL && n < rows; n++) {
        constants[n] = agc_rng_normal(&r);
        for (int64_t j = 0; j < columns; j++) {
            agc_arrays_f64(y, T_BIAS)[n * columns + j] += constants[n];
        }
    }
    return constants;
}

/* Subtracts the constant of its row from y's lse, which should then be x's. */
static void subtract_row_constants(struct arrays *y, const double *constants)
{
    int64_t columns = y->size[T_BIAS][3] > 0 ? y->size[T_BIAS][3] : 1;
    for (int64_t b = 0; b < y->p->batch; b++) {
        for (int64_t h = 0; h < y->p->heads; h++) {
            for (int64_t i = 0; i < agc_arrays_q_length(y, b); i++) {
                int64_t row = agc_arrays_index(y, T_LSE, b, h, i, 0);
                agc_arrays_f64(y, T_LSE)[row] -= constants[agc_arrays_index(y, T_BIAS, b, h, i, 0) / columns];
            }
        }
    }
}

/* Compares every output that x also has with x's. */
static struct worst worst_difference(const struct identity *id, const struct arrays *y)
{
    struct worst worst = WORST_NONE;
    for (enum tensor t = 0; t < T_COUNT; t++) {
        if (agc_tensor_info[t].role == ROLE_OUTPUT && id->x->data[t] != NULL) {
            agc_note_differences(&worst, &id->bounds, t, agc_arrays_f64(y, t), agc_arrays_f64(id->x, t),
                                 y->count[t]);
        }
    }
    return worst;
}

/* Without a sink, a constant added to a row of B leaves O, tO, mu and all gradients and their tangents as
 * they are and shifts L by it. */
static ag_status row_constants(struct identity *id)
{
    static const char name[] = "constant on a row of the bias";
    const ag_problem *p = id->x->p;
    const int64_t rows[4] = {p->batch, p->heads, p->q_len, 1};
    struct arrays y;
    if (p->flags & AG_SINK) {
        agc_results_not_applicable(id->results, "sink", name);
        return AG_OK;
    }
    ag_status status = with_bias(&y, id, rows);
    if (status != AG_OK) {
        return status;
    }
    double *constants = add_row_constants(&y);
    status = constants != NULL ? agc_arrays_run_all(&y) : AG_NO_MEMORY;
    if (status == AG_OK) {
        subtract_row_constants(&y, constants);
        struct worst worst = worst_difference(id, &y);
        agc_results_add_worst(id->results, &y, &worst, IDENTITY_LIMIT, "%s", name);
    }
    free(constants);
    agc_arrays_destroy(&y);
    return status;
}

/* ---- Rows that see no key, and values that are not finite --------------------------------------- */

/* Index of the first of `count` values, from element `first` on, that is not 0; -1 if there is none. */
static int64_t find_nonzero(const struct arrays *x, enum tensor t, int64_t first, int64_t count)
{
    for (int64_t n = first; n < first + count; n++) {
        if (agc_arrays_f64(x, t)[n] != 0) {
            return n;
        }
    }
    return -1;
}

/* Counts one more wrong value. The residual is the number of wrong values; the worst element is the last of them. */
static void count_wrong(struct worst *w, enum tensor t, int64_t element)
{
    agc_worst_note(w, w->residual + 1, t, element);
}

/* A row with L = -inf has O = tO = dQ = tdQ = stO = 0 and mu = nu = 0, exactly. */
static void empty_rows(struct identity *id)
{
    static const enum tensor zero[] = {T_O, T_TO, T_MU, T_DQ, T_TDQ, T_STO, T_NU};
    const struct arrays *x = id->x;
    const int count = agc_arrays_has_second_direction(x) ? 7 : 5;
    struct worst wrong = WORST_NONE;
    for (int64_t r = 0; r < x->count[T_LSE]; r++) {
        for (int n = 0; n < count && agc_arrays_f64(x, T_LSE)[r] == -INFINITY; n++) {
            int64_t channels = x->size[zero[n]][3];
            int64_t element = find_nonzero(x, zero[n], r * channels, channels);
            if (element >= 0) {
                count_wrong(&wrong, zero[n], element);
            }
        }
    }
    agc_results_add_worst(id->results, x, &wrong, 0, "rows without keys: wrong values");
}

/* No output holds NaN or an infinity, except lse, which may be -inf. */
static void finite_outputs(struct identity *id)
{
    struct worst wrong = WORST_NONE;
    for (enum tensor t = 0; t < T_COUNT; t++) {
        const double *values = agc_tensor_info[t].role == ROLE_OUTPUT ? agc_arrays_f64(id->x, t) : NULL;
        for (int64_t n = 0; values != NULL && n < id->x->count[t]; n++) {
            if (!isfinite(values[n]) && !(t == T_LSE && values[n] == -INFINITY)) {
                count_wrong(&wrong, t, n);
            }
        }
    }
    agc_results_add_worst(id->results, id->x, &wrong, 0, "not finite: values");
}

/* jvp computes the same O and L as forward, in addition to the tangents. (x's are jvp's, which ran later.) */
static ag_status jvp_is_forward(struct identity *id)
{
    struct arrays y;
    ag_status status = agc_arrays_clone_as(&y, id->x, AG_F64, id->options);
    if (status != AG_OK) {
        return status;
    }
    status = agc_arrays_run(&y, AG_MAP_FORWARD);
    struct worst worst = WORST_NONE;
    for (enum tensor t = T_O; t <= T_LSE && status == AG_OK; t++) {
        agc_note_differences(&worst, &id->bounds, t, agc_arrays_f64(&y, t), agc_arrays_f64(id->x, t),
                             y.count[t]);
    }
    if (status == AG_OK) {
        agc_results_add_worst(id->results, &y, &worst, IDENTITY_LIMIT, "o, lse of jvp and forward");
    }
    agc_arrays_destroy(&y);
    return status;
}

ag_status agc_identities(const struct arrays *x, const ag_options *options, ag_check_report *results)
{
    ag_status (*const list[])(struct identity *) = {
        jvp_is_forward, agc_identity_given_o,      symmetry,           sum_of_scores,      sum_of_keys,
        row_constants,  agc_identity_permutations, agc_identity_split, agc_identity_second};
    struct identity id = {.x = x, .options = options, .results = results};
    ag_status status = agc_bounds_of(&id.bounds, x);
    if (status != AG_OK) {
        return status;
    }
    finite_outputs(&id);
    empty_rows(&id);
    adjoint(&id);
    for (size_t n = 0; n < sizeof list / sizeof list[0] && status == AG_OK; n++) {
        status = list[n](&id);
    }
    return status;
}
