/* SGD with momentum and AdamW over a list of flat arrays, computed in float64 by blocks, each result rounded
 * once. A step first reads every gradient for the norm, which is one sum in a fixed order. Then it computes
 * all results and, only if all of them are finite, computes them again and writes them. */
#include <float.h>
#include <math.h>
#include <string.h>

#include "nn/layer.h"
#include "core/number.h"
#include "core/status.h"
#include "core/structs.h"

/* ---- Checks ---- */

/* What a call needs of each parameter: its gradient and, in a step, its value and `states` states. */
typedef struct {
    const char *call;
    bool update;
    int states;
} requirements;

static bool misaligned(const void *data, ag_dtype dtype)
{
    return (uintptr_t)data % ag_dtype_size(dtype) != 0;
}

static ag_status bad_param(const requirements *needs, int64_t i, const char *field, const char *rule)
{
    agi_fail_field(AG_INVALID_ARGUMENT, field, "%s: %s of parameter %lld %s", needs->call, field,
                   (long long)i, rule);
    return agi_fail_within(AG_INVALID_ARGUMENT, "list");
}

static ag_status check_array(const requirements *needs, int64_t i, const char *field, const void *data,
                             ag_dtype dtype)
{
    if (data == NULL) {
        return bad_param(needs, i, field, "is NULL");
    }
    return misaligned(data, dtype) ? bad_param(needs, i, field, "is not aligned to its elements") : AG_OK;
}

static ag_status check_updated(const requirements *needs, int64_t i, const ag_param *p)
{
    if (p->dtype != AG_F32 && p->dtype != AG_F64) {
        return bad_param(needs, i, "dtype", "must be AG_F32 or AG_F64");
    }
    if (p->flags & ~(uint32_t)AG_PARAM_NO_DECAY) {
        return bad_param(needs, i, "flags", "has unknown bits");
    }
    if (p->copy != NULL && ag_dtype_size(p->copy_dtype) == 0) {
        return bad_param(needs, i, "copy_dtype", "is no dtype");
    }
    ag_status status = p->count > 0 ? check_array(needs, i, "value", p->value, p->dtype) : AG_OK;
    if (status == AG_OK && p->count > 0 && needs->states > 0) {
        status = check_array(needs, i, "state1", p->state1, p->dtype);
    }
    if (status == AG_OK && p->count > 0 && needs->states > 1) {
        status = check_array(needs, i, "state2", p->state2, p->dtype);
    }
    if (status == AG_OK && p->copy != NULL) {
        status = check_array(needs, i, "copy", p->copy, p->copy_dtype);
    }
    return status;
}

static ag_status check_list(const requirements *needs, const ag_param *list, int64_t n)
{
    if (n < 0 || (n > 0 && list == NULL)) {
        return agi_fail_field(AG_INVALID_ARGUMENT, n < 0 ? "n" : "list",
                              "%s: list is %p with %lld parameters", needs->call, (const void *)list,
                              (long long)n);
    }
    ag_status status = AG_OK;
    for (int64_t i = 0; i < n && status == AG_OK; i++) {
        if (list[i].count < 0) {
            status = bad_param(needs, i, "count", "is negative");
        } else if (ag_dtype_size(list[i].grad_dtype) == 0) {
            status = bad_param(needs, i, "grad_dtype", "is no dtype");
        } else if (list[i].count > 0) {
            status = check_array(needs, i, "grad", list[i].grad, list[i].grad_dtype);
        }
        if (status == AG_OK && needs->update) {
            status = check_updated(needs, i, &list[i]);
        }
    }
    return status == AG_OK && needs->update ? agi_check_overlaps(needs->call, list, n, needs->states)
                                            : status;
}

/* Checks a field of the optimiser's struct: min <= value < max. */
static ag_status check_real(const char *call, const char *name, double value, double min, double max)
{
    return value >= min && value < max
               ? AG_OK
               : agi_fail_field(AG_INVALID_ARGUMENT, name, "%s: %s is %g: must be at least %g and below %g",
                                call, name, value, min, max);
}

/* ---- Loading and storing of blocks; float32 without a call per element ---- */

enum { BLOCK = 256 };

static int64_t block_size(const ag_param *p, int64_t first)
{
    return p->count - first < BLOCK ? p->count - first : BLOCK;
}

static void load(double *to, ag_dtype dtype, const void *from, int64_t first, int64_t n)
{
    const float *const narrow = dtype == AG_F32 ? from : NULL;
    for (int64_t i = 0; i < n && from == NULL; i++) {
        to[i] = 0;
    }
    for (int64_t i = 0; i < n && narrow != NULL; i++) {
        to[i] = (double)narrow[first + i];
    }
    for (int64_t i = 0; i < n && from != NULL && narrow == NULL; i++) {
        to[i] = agi_load(dtype, from, first + i);
    }
}

static void store(const double *from, ag_dtype dtype, void *to, int64_t first, int64_t n)
{
    float *const narrow = dtype == AG_F32 ? to : NULL;
    for (int64_t i = 0; i < n && narrow != NULL; i++) {
        narrow[first + i] = (float)from[i];
    }
    for (int64_t i = 0; i < n && to != NULL && narrow == NULL; i++) {
        agi_store(dtype, to, first + i, from[i]);
    }
}

/* ---- Gradients ---- */

/* Statistics of all gradients, each divided by the loss scale. */
typedef struct {
    double largest; /* largest absolute value */
    double root;    /* the norm is largest * root, so that no square overflows */
    int64_t non_finite;
} gradient_stats;

static double divisor(double loss_scale)
{
    return loss_scale == 0 ? 1 : loss_scale;
}

/* Adds one array: in the first pass to the largest and to the number of elements that are not finite; in the second
 * (sum not NULL) to the sum of squares. */
static void add_array(const ag_param *p, double scale, gradient_stats *stats, double *sum)
{
    double g[BLOCK];
    for (int64_t first = 0; first < p->count; first += BLOCK) {
        const int64_t n = block_size(p, first);
        load(g, p->grad_dtype, p->grad, first, n);
        for (int64_t i = 0; i < n && sum == NULL; i++) {
            const double magnitude = fabs(g[i] / scale);
            stats->non_finite += !(magnitude < INFINITY);
            stats->largest = magnitude > stats->largest ? magnitude : stats->largest;
        }
        for (int64_t i = 0; i < n && sum != NULL; i++) {
            const double part = g[i] / scale / stats->largest;
            *sum += part * part;
        }
    }
}

static gradient_stats measure(const ag_param *list, int64_t n, double loss_scale)
{
    gradient_stats stats = {0, 0, 0};
    double sum = 0;
    for (int64_t i = 0; i < n; i++) {
        add_array(&list[i], divisor(loss_scale), &stats, NULL);
    }
    for (int64_t i = 0; i < n && stats.largest > 0; i++) {
        add_array(&list[i], divisor(loss_scale), &stats, &sum);
    }
    stats.root = sqrt(sum);
    return stats;
}

ag_status ag_grad_norm(const ag_param *list, int64_t n, double loss_scale, double *norm, int64_t *non_finite)
{
    const requirements needs = {"ag_grad_norm", false, 0};
    if (norm == NULL || non_finite == NULL) {
        return agi_fail_field(AG_INVALID_ARGUMENT, norm == NULL ? "norm" : "non_finite",
                              "ag_grad_norm: %s is NULL", norm == NULL ? "norm" : "non_finite");
    }
    ag_status status = check_list(&needs, list, n);
    if (status == AG_OK) {
        status = check_real(needs.call, "loss_scale", loss_scale, 0, INFINITY);
    }
    if (status == AG_OK) {
        const gradient_stats stats = measure(list, n, loss_scale);
        *norm = stats.largest * stats.root;
        *non_finite = stats.non_finite;
    }
    return status;
}

/* ---- Updates ---- */

/* A block of one array: w, m, v are read and written, g is only read. */
typedef struct {
    int64_t n;
    double w[BLOCK], g[BLOCK], m[BLOCK], v[BLOCK];
} block;

/* The parameters of an update. */
typedef struct {
    double rate, decay, scale, clip; /* the gradient is divided by scale, multiplied by clip 2^exponent */
    int exponent;
    double momentum;
    double beta1, beta2, epsilon, correction1, correction2;
} coefficients;

typedef void (*update)(block *x, const coefficients *k);

static void update_sgd(block *x, const coefficients *k)
{
    for (int64_t i = 0; i < x->n; i++) {
        x->m[i] = k->momentum * x->m[i] + (x->g[i] + k->decay * x->w[i]);
        x->w[i] -= k->rate * x->m[i];
    }
}

static void update_adamw(block *x, const coefficients *k)
{
    for (int64_t i = 0; i < x->n; i++) {
        x->m[i] = k->beta1 * x->m[i] + (1 - k->beta1) * x->g[i];
        x->v[i] = k->beta2 * x->v[i] + (1 - k->beta2) * x->g[i] * x->g[i];
        const double step = x->m[i] / k->correction1 / (sqrt(x->v[i] / k->correction2) + k->epsilon);
        x->w[i] -= k->rate * (k->decay * x->w[i] + step);
    }
}

/* The copy is rounded from the stored value, not from the float64 result, so that converting the stored value
 * gives the same. */
static void store_copy(const ag_param *p, int64_t first, int64_t n)
{
    if (p->copy != NULL) {
        char *to = (char *)p->copy + (size_t)first * ag_dtype_size(p->copy_dtype);
        ag_convert(to, p->copy_dtype, (const char *)p->value + (size_t)first * ag_dtype_size(p->dtype),
                   p->dtype, n);
    }
}

/* Is x finite once stored? For values and states, which are float32 or float64. */
static bool fits(ag_dtype dtype, double x)
{
    return dtype == AG_F32 ? isfinite((float)x) : isfinite(x);
}

/* The smallest value that a format rounds to infinity. */
static double overflow_of(ag_dtype dtype)
{
    switch (dtype) {
    case AG_F64: return INFINITY;
    case AG_F32: return 0x1.ffffffp127;
    case AG_F16: return 65520;
    default: return 0x1.ffp127;
    }
}

static bool copy_fits(const ag_param *p, double w)
{
    return p->copy == NULL || fabs(agi_round(p->dtype, w)) < overflow_of(p->copy_dtype);
}

/* Number of elements of the block that would not be finite once stored. */
static int64_t count_bad(const block *x, const ag_param *p, int states)
{
    int64_t bad = 0;
    for (int64_t i = 0; i < x->n; i++) {
        const bool good = fits(p->dtype, x->w[i]) && copy_fits(p, x->w[i]) &&
                          (states < 1 || fits(p->dtype, x->m[i])) && (states < 2 || fits(p->dtype, x->v[i]));
        bad += !good;
    }
    return bad;
}

/* Unscales and clips the gradient. A clip factor that would underflow is applied as clip 2^exponent: the
 * multiplication by the power of two is exact, or rounds the result once. */
static void scale_gradient(block *x, const coefficients *k)
{
    for (int64_t i = 0; i < x->n; i++) {
        x->g[i] = x->g[i] / k->scale * k->clip;
    }
    for (int64_t i = 0; i < x->n && k->exponent != 0; i++) {
        x->g[i] = ldexp(x->g[i], k->exponent);
    }
}

/* Updates one array; or, unless `writes`, only returns how many of its elements would not be finite. */
static int64_t update_param(const ag_param *p, update run, const coefficients *k, int states, bool writes)
{
    coefficients mine = *k;
    int64_t bad = 0;
    mine.decay = p->flags & AG_PARAM_NO_DECAY ? 0 : k->decay;
    void *const m = states > 0 ? p->state1 : NULL, *const v = states > 1 ? p->state2 : NULL;
    for (int64_t first = 0; first < p->count; first += BLOCK) {
        block x;
        x.n = block_size(p, first);
        load(x.w, p->dtype, p->value, first, x.n);
        load(x.g, p->grad_dtype, p->grad, first, x.n);
        load(x.m, p->dtype, m, first, x.n);
        load(x.v, p->dtype, v, first, x.n);
        scale_gradient(&x, &mine);
        run(&x, &mine);
        if (!writes) {
            bad += count_bad(&x, p, states);
            continue;
        }
        store(x.w, p->dtype, p->value, first, x.n);
        store(x.m, p->dtype, m, first, x.n);
        store(x.v, p->dtype, v, first, x.n);
        store_copy(p, first, x.n);
    }
    return bad;
}

/* ---- A step ---- */

/* How gradients are clipped and unscaled. */
typedef struct {
    double max_norm, loss_scale;
} gradient_options;

/* The factor clip 2^exponent is 1, or reduces the norm to max_norm, even if the norm overflows or the factor as one
 * number would be subnormal or zero. */
static void set_clip(coefficients *k, const gradient_stats *stats, double max_norm)
{
    const double norm = stats->largest * stats->root;
    const bool clips = max_norm != 0 && !(norm <= max_norm);
    k->clip = !clips ? 1 : norm < INFINITY ? max_norm / norm : max_norm / stats->largest / stats->root;
    k->exponent = 0;
    if (k->clip < DBL_MIN) {
        /* Divided by 4, clip is below 1: no gradient overflows when it is multiplied by it. */
        int e_max, e_largest, e_root;
        k->clip =
            frexp(max_norm, &e_max) / frexp(stats->largest, &e_largest) / frexp(stats->root, &e_root) / 4;
        k->exponent = e_max - e_largest - e_root + 2;
    }
}

/* Measures the gradients, computes all results, and writes them if they are finite. */
static ag_status step(const requirements *needs, update run, coefficients *k, gradient_options how,
                      const ag_param *list, int64_t n, ag_step_report *report, bool *applied)
{
    const gradient_stats stats = measure(list, n, how.loss_scale);
    ag_step_report r = {.clip = 1, .norm = stats.largest * stats.root, .non_finite = stats.non_finite};
    if (r.non_finite == 0) {
        k->scale = divisor(how.loss_scale);
        set_clip(k, &stats, how.max_norm);
        r.clip = ldexp(k->clip, k->exponent);
        for (int64_t i = 0; i < n; i++) {
            r.non_finite += update_param(&list[i], run, k, needs->states, false);
        }
    }
    r.applied = r.non_finite == 0;
    const ag_status status = report == NULL ? AG_OK : agi_write_struct(report, &r, sizeof r, "report");
    for (int64_t i = 0; i < n && r.applied && status == AG_OK; i++) {
        update_param(&list[i], run, k, needs->states, true);
    }
    *applied = status == AG_OK && r.applied;
    return status;
}

/* Unlike other structs, an optimiser's may not be shorter than ours, as the library counts the steps in it. */
static ag_status read_optimiser(void *ours, size_t size, const void *theirs, const char *name)
{
    const ag_status status = agi_read_struct(ours, size, theirs, name, AG_INVALID_ARGUMENT);
    uint32_t given[2] = {0, 0};
    if (status == AG_OK) {
        memcpy(given, theirs, sizeof given);
        if (given[0] < size || given[1] != 0) {
            return agi_fail_field(AG_INVALID_ARGUMENT, name,
                                  "%s: struct_size is %lu, reserved %lu: must be %zu and 0", name,
                                  (unsigned long)given[0], (unsigned long)given[1], size);
        }
    }
    return status;
}

static ag_status check_common(const char *call, double rate, double decay, double max_norm, double loss_scale)
{
    ag_status status = check_real(call, "rate", rate, 0, INFINITY);
    if (status == AG_OK) {
        status = check_real(call, "weight_decay", decay, 0, INFINITY);
    }
    if (status == AG_OK) {
        status = check_real(call, "max_norm", max_norm, 0, INFINITY);
    }
    return status == AG_OK ? check_real(call, "loss_scale", loss_scale, 0, INFINITY) : status;
}

ag_status ag_sgd_step(ag_sgd *sgd, const ag_param *list, int64_t n, ag_step_report *report)
{
    ag_sgd o;
    ag_status status = read_optimiser(&o, sizeof o, sgd, "sgd");
    if (status != AG_OK) {
        return status;
    }
    const requirements needs = {"ag_sgd_step", true, o.momentum > 0 ? 1 : 0};
    coefficients k = {.rate = o.rate, .decay = o.weight_decay, .momentum = o.momentum};
    status = check_common(needs.call, o.rate, o.weight_decay, o.max_norm, o.loss_scale);
    if (status == AG_OK) {
        status = check_real(needs.call, "momentum", o.momentum, 0, 1);
    }
    if (status != AG_OK) {
        return agi_fail_within(status, "sgd");
    }
    status = check_list(&needs, list, n);
    if (status == AG_OK) {
        const gradient_options how = {o.max_norm, o.loss_scale};
        bool applied = false;
        status = step(&needs, update_sgd, &k, how, list, n, report, &applied);
        sgd->steps += applied;
    }
    return status;
}

static ag_status fill_and_check_adamw(ag_adamw *o, const char *call)
{
    o->beta1 = o->beta1 == 0 ? 0.9 : o->beta1;
    o->beta2 = o->beta2 == 0 ? 0.999 : o->beta2;
    o->epsilon = o->epsilon == 0 ? 1e-8 : o->epsilon;
    ag_status status = check_common(call, o->rate, o->weight_decay, o->max_norm, o->loss_scale);
    if (status == AG_OK) {
        status = check_real(call, "beta1", o->beta1, 0, 1);
    }
    if (status == AG_OK) {
        status = check_real(call, "beta2", o->beta2, 0, 1);
    }
    if (status == AG_OK) {
        status = check_real(call, "epsilon", o->epsilon, 0, INFINITY);
    }
    if (status == AG_OK && o->steps < 0) {
        status = agi_fail_field(AG_INVALID_ARGUMENT, "steps", "%s: steps is %lld: must not be negative", call,
                                (long long)o->steps);
    }
    return status == AG_OK ? AG_OK : agi_fail_within(status, "adamw");
}

ag_status ag_adamw_step(ag_adamw *adamw, const ag_param *list, int64_t n, ag_step_report *report)
{
    const requirements needs = {"ag_adamw_step", true, 2};
    ag_adamw o;
    ag_status status = read_optimiser(&o, sizeof o, adamw, "adamw");
    if (status == AG_OK) {
        status = fill_and_check_adamw(&o, needs.call);
    }
    if (status == AG_OK) {
        status = check_list(&needs, list, n);
    }
    if (status != AG_OK) {
        return status;
    }
    const double t = (double)o.steps + 1;
    coefficients k = {.rate = o.rate,
                      .decay = o.weight_decay,
                      .beta1 = o.beta1,
                      .beta2 = o.beta2,
                      .epsilon = o.epsilon,
                      .correction1 = 1 - pow(o.beta1, t),
                      .correction2 = 1 - pow(o.beta2, t)};
    const gradient_options how = {o.max_norm, o.loss_scale};
    bool applied = false;
    status = step(&needs, update_adamw, &k, how, list, n, report, &applied);
    adamw->steps += applied;
    return status;
}
