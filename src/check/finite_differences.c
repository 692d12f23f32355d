/* Finite differences of all derivatives of attention, by the stencil of stencil.h. The step h is STEP divided
 * by the rate at which scores change (bounds.h). Relative to the output's bound, the truncation error is then
 * about STEP^4 / 500 = 3e-14 and the rounding error about eps / STEP = 1e-13. A check passes if the
 * difference is at most LIMIT times the larger of the output and FLOOR times its bound, that is, at least
 * 1e-12 of the bound. The largest residual of 20000 random problems is 1e-10. */
#include "check/finite_differences.h"

#include "check/disjoint_rows.h"
#include "check/progress.h"
#include "check/rng.h"
#include "check/stencil.h"
#include "check/bounds.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char DIFFERENCES[] = "finite differences"; /* what memory is for, in a message */
static const double STEP = 0x1p-9;
static const double LIMIT = 1e-9;
static const double FLOOR = 1e-3; /* of the bound */

enum {
    MAX_SLOTS = 32, /* elements tested of all that reach the same rows, at most */
    MIN_SLOTS = 3,
    WORK = 1000 * 1000 * 500 /* multiplications spent on one variable, unless MIN_SLOTS needs more */
};

const struct stencil_point agc_stencil[STENCIL_POINTS] = {
    {0.5, 8.0 / 6}, {-0.5, -8.0 / 6}, {1, -1.0 / 6}, {-1, 1.0 / 6}};

struct differences {
    const struct arrays *x; /* the point at which derivatives are taken */
    struct arrays y;        /* the perturbed copy */
    struct bounds bounds;
    ag_check_report *results;
};

/* Divides the largest |difference - derivative| by the larger of the derivative and FLOOR times its bound; 0
 * if they agree exactly, whatever the bound. */
static double residual_of(const struct differences *g, enum tensor t, double worst)
{
    double size = fmax(agc_largest(agc_arrays_f64(g->x, t), g->x->count[t]), FLOOR * g->bounds.unit[t]);
    return worst == 0 ? 0 : worst / size;
}

/* worst: the largest |difference - derivative| of t. */
static void add_result(struct differences *g, enum tensor t, struct worst worst)
{
    worst.residual = residual_of(g, t, worst.residual);
    agc_results_add_worst(g->results, g->x, &worst, LIMIT, "differences %s", agc_tensor_info[t].name);
}

static void compare(struct differences *g, enum tensor t, const double *differences)
{
    const double *derivative = agc_arrays_f64(g->x, t);
    struct worst worst = WORST_NONE;
    for (int64_t n = 0; n < g->x->count[t]; n++) {
        agc_worst_note(&worst, fabs(differences[n] - derivative[n]), t, n);
    }
    add_result(g, t, worst);
}

/* sum += weight * values; the lse of a row that sees nothing is minus infinity at every step. */
static void accumulate(double *sum, double weight, const double *values, int64_t count)
{
    for (int64_t n = 0; n < count; n++) {
        sum[n] += values[n] == -INFINITY ? 0 : weight * values[n];
    }
}

/* ---- Along the tangents ------------------------------------------------------------------------ */

/* y = x + h * tangent for variables, and for cotangents. */
static void move(struct differences *g, double h)
{
    for (int f = 0; f < FAMILY_COUNT; f++) {
        int variable = f < FAMILY_VARIABLES;
        enum tensor to_move = variable ? agc_families[f].x : agc_families[f].d;
        enum tensor tangent = variable ? agc_families[f].t : agc_families[f].td;
        const double *from = agc_arrays_f64(g->x, to_move), *by = agc_arrays_f64(g->x, tangent);
        double *to = agc_arrays_f64(&g->y, to_move);
        for (int64_t n = 0; n < g->x->count[to_move]; n++) {
            to[n] = from[n] + h * by[n];
        }
    }
}

/* sums[f] becomes the difference of the output of family f: dq .. dsink, o and lse. */
static ag_status along_tangents(struct differences *g, double *sums[FAMILY_COUNT])
{
    double h = STEP / g->bounds.tangent_rate;
    ag_status status = AG_OK;
    for (int s = 0; s < STENCIL_POINTS && status == AG_OK; s++) {
        move(g, agc_stencil[s].at * h);
        status = agc_arrays_run(&g->y, AG_MAP_FORWARD);
        if (status == AG_OK) {
            status = agc_arrays_run(&g->y, AG_MAP_VJP);
        }
        for (int f = 0; f < FAMILY_COUNT && status == AG_OK; f++) {
            enum tensor t = f < FAMILY_VARIABLES ? agc_families[f].d : agc_families[f].x;
            accumulate(sums[f], agc_stencil[s].weight / h, agc_arrays_f64(&g->y, t), g->x->count[t]);
        }
    }
    move(g, 0);
    return status;
}

static ag_status check_tangents(struct differences *g)
{
    double *sums[FAMILY_COUNT];
    ag_status status = AG_OK;
    for (int f = 0; f < FAMILY_COUNT; f++) {
        sums[f] = agc_alloc_zeros(DIFFERENCES, g->x->count[agc_families[f].x]);
        status = sums[f] != NULL ? status : AG_NO_MEMORY;
    }
    status = status == AG_OK ? along_tangents(g, sums) : status;
    for (int f = FAMILY_COUNT - 1; f >= 0; f--) {
        enum tensor t = f < FAMILY_VARIABLES ? agc_families[f].td : agc_families[f].t;
        if (status == AG_OK && g->x->data[t] != NULL) {
            compare(g, t, sums[f]);
        }
        free(sums[f]);
    }
    return status;
}

/* ---- Along the second direction ---------------------------------------------------------------- */

/* y = x + h * s for variables; the tangents stay. */
static void move_along_s(struct differences *g, double h)
{
    for (int f = 0; f < FAMILY_VARIABLES; f++) {
        const enum tensor t = agc_families[f].x;
        const double *from = agc_arrays_f64(g->x, t), *by = agc_arrays_f64(g->x, agc_families[f].s);
        double *to = agc_arrays_f64(&g->y, t);
        for (int64_t n = 0; n < g->x->count[t]; n++) {
            to[n] = from[n] + h * by[n];
        }
    }
}

/* sto and nu become the differences of to and mu. */
static ag_status along_second(struct differences *g, double *sto, double *nu)
{
    const double h = STEP / g->bounds.second_rate;
    ag_status status = AG_OK;
    for (int s = 0; s < STENCIL_POINTS && status == AG_OK; s++) {
        move_along_s(g, agc_stencil[s].at * h);
        status = agc_arrays_run(&g->y, AG_MAP_JVP);
        const double weight = agc_stencil[s].weight / h;
        accumulate(sto, weight, agc_arrays_f64(&g->y, T_TO), g->x->count[T_TO]);
        accumulate(nu, weight, agc_arrays_f64(&g->y, T_MU), g->x->count[T_MU]);
    }
    move_along_s(g, 0);
    return status;
}

static ag_status check_second(struct differences *g)
{
    double *sto = agc_alloc_zeros(DIFFERENCES, g->x->count[T_STO]);
    double *nu = agc_alloc_zeros(DIFFERENCES, g->x->count[T_NU]);
    ag_status status = sto != NULL && nu != NULL ? along_second(g, sto, nu) : AG_NO_MEMORY;
    if (status == AG_OK) {
        compare(g, T_STO, sto);
        compare(g, T_NU, nu);
    }
    free(sto);
    free(nu);
    return status;
}

/* ---- Element by element ------------------------------------------------------------------------ */

/* loss[set] += weight * (<d_o, o> + <d_lse, lse>) over the rows of each set. */
static void add_loss(const struct differences *g, const struct disjoint_rows *rows, double weight,
                     double *loss)
{
    const double *o = agc_arrays_f64(&g->y, T_O), *lse = agc_arrays_f64(&g->y, T_LSE);
    const double *d_o = agc_arrays_f64(g->x, T_D_O), *d_lse = agc_arrays_f64(g->x, T_D_LSE);
    int64_t channels = g->x->p->dim_v;
    for (int64_t r = 0; r < g->x->count[T_LSE]; r++) {
        double row = lse[r] == -INFINITY ? 0 : d_lse[r] * lse[r];
        if (rows->row_set[r] < 0) {
            continue;
        }
        for (int64_t c = 0; c < channels; c++) {
            row += d_o[r * channels + c] * o[r * channels + c];
        }
        loss[rows->row_set[r]] += weight * row;
    }
}

/* Perturbs the element with this slot of every set at once; sums[set] becomes the difference of the set's loss. */
static ag_status perturb(struct differences *g, int family, const struct disjoint_rows *rows, int64_t slot,
                         double *sums)
{
    enum tensor t = agc_families[family].x;
    const double *from = agc_arrays_f64(g->x, t);
    double *to = agc_arrays_f64(&g->y, t);
    double h = STEP / fmax(g->bounds.rate[family], 1e-30);
    ag_status status = AG_OK;
    for (int64_t n = 0; n < rows->sets; n++) {
        sums[n] = 0;
    }
    for (int s = 0; s < STENCIL_POINTS && status == AG_OK; s++) {
        for (int64_t n = 0; n < g->x->count[t]; n++) {
            to[n] = from[n] + (rows->slot[n] == slot ? agc_stencil[s].at * h : 0);
        }
        status = agc_arrays_run(&g->y, AG_MAP_FORWARD);
        add_loss(g, rows, agc_stencil[s].weight / h, sums);
    }
    memcpy(to, from, (size_t)g->x->count[t] * sizeof *to);
    return status;
}

/* The number of slots to test of a variable that has as many. */
static int64_t slots_in_time(const struct arrays *x)
{
    const ag_problem *p = x->p;
    double forward = (double)x->count[T_LSE] * (double)p->kv_len * (double)(p->dim_qk + p->dim_v);
    int64_t slots = forward * 4 * MAX_SLOTS > WORK ? (int64_t)(WORK / (forward * 4)) : MAX_SLOTS;
    return slots < MIN_SLOTS ? MIN_SLOTS : slots;
}

/* Finds the worst |difference - gradient| of the tested slots: all slots are divided into equal parts, and
 * one slot of each part is tested. */
static ag_status test_slots(struct differences *g, int family, const struct disjoint_rows *rows,
                            struct worst *worst)
{
    struct rng r;
    enum tensor t = agc_families[family].d;
    const double *gradient = agc_arrays_f64(g->x, t);
    double *sums = agc_alloc_zeros(DIFFERENCES, rows->sets);
    int64_t in_time = slots_in_time(g->x), tests = in_time < rows->slots ? in_time : rows->slots;
    ag_status status = sums != NULL ? AG_OK : AG_NO_MEMORY;
    agc_rng_init(&r, g->x->seed, (uint64_t)(T_FREE_STREAM + family));
    for (int64_t n = 0; n < tests && status == AG_OK; n++) {
        int64_t first = n * rows->slots / tests, next = (n + 1) * rows->slots / tests;
        int64_t slot = agc_rng_range(&r, first, next - 1);
        status = perturb(g, family, rows, slot, sums);
        for (int64_t e = 0; e < g->x->count[t]; e++) {
            if (rows->slot[e] == slot) {
                agc_worst_note(worst, fabs(sums[rows->set[e]] - gradient[e]), t, e);
            }
        }
    }
    free(sums);
    return status;
}

static ag_status check_gradient(struct differences *g, int family)
{
    struct disjoint_rows rows;
    enum tensor t = agc_families[family].d;
    struct worst worst = WORST_NONE;
    ag_status status = agc_disjoint_rows_create(&rows, g->x, agc_families[family].x);
    if (status != AG_OK) {
        return status;
    }
    status = test_slots(g, family, &rows, &worst);
    agc_disjoint_rows_destroy(&rows);
    if (status == AG_OK) {
        add_result(g, t, worst);
    }
    return status;
}

ag_status agc_finite_differences(const struct arrays *x, const ag_options *options, ag_check_report *results)
{
    struct differences g;
    ag_status status = agc_arrays_clone_as(&g.y, x, AG_F64, options);
    if (status != AG_OK) {
        return status;
    }
    g.x = x;
    g.results = results;
    status = agc_bounds_of(&g.bounds, x);
    for (int f = 0; f < FAMILY_VARIABLES && status == AG_OK; f++) {
        if (x->data[agc_families[f].x] != NULL) {
            status = check_gradient(&g, f);
        }
    }
    if (status == AG_OK) {
        status = check_tangents(&g);
    }
    if (status == AG_OK && agc_arrays_has_second_direction(x)) {
        status = check_second(&g);
    }
    agc_arrays_destroy(&g.y);
    return status;
}

double agc_finite_differences_work(const struct arrays *x)
{
    int64_t variables = 0;
    for (int f = 0; f < FAMILY_VARIABLES; f++) {
        variables += x->data[agc_families[f].x] != NULL;
    }
    const double forward = agc_work_of_plan(x->plan, AG_MAP_FORWARD),
                 vjp = agc_work_of_plan(x->plan, AG_MAP_VJP);
    const double second = agc_arrays_has_second_direction(x) ? agc_work_of_plan(x->plan, AG_MAP_JVP) : 0;
    return STENCIL_POINTS * ((double)(variables * slots_in_time(x) + 1) * forward + vjp + second);
}
