/* Merging the results of two disjoint sets of keys:
 *
 *     L = logaddexp(L1, L2),  w_k = exp(L_k - L),  O = sum w_k O_k
 *     mu = sum w_k mu_k,  tO = sum w_k (tO_k + (mu_k - mu) O_k);  smu and sO likewise
 *     nu = sum w_k (nu_k + (mu_k - mu) (smu_k - smu))
 *     stO = sum w_k (stO_k + (mu_k - mu) sO_k + (smu_k - smu) tO_k + (nu_k - nu + (mu_k - mu) (smu_k - smu)) O_k)
 *
 * A part without keys has L_k = -infinity and w_k = 0, and is left out by selection. O_k and tO_k are the sums of both
 * halves if the low ones are given. */
#include <math.h>

#include "core/number.h"
#include "reference/head.h"

typedef struct {
    const ag_plan *plan;
    const ag_merge_args *m;
    agi_exec *exec;
} merge_job;

typedef struct {
    int64_t b, h, i, c;
} place;

static int64_t at(const ag_tensor *t, place x)
{
    return x.b * t->strides[0] + x.h * t->strides[1] + x.i * t->strides[2] + x.c * t->strides[3];
}

static double element(const ag_tensor *t, ag_dtype dtype, place x)
{
    return t->data == NULL ? 0 : agi_load(dtype, t->data, at(t, x));
}

static void store(const ag_tensor *t, ag_dtype dtype, place x, double value)
{
    if (t->data != NULL) {
        agi_store(dtype, t->data, at(t, x), value);
    }
}

/* An element of O or tO: both halves, if the low one is given. */
static double sum_of_halves(const ag_tensor *t, const ag_tensor *low, ag_dtype dtype, place x)
{
    const double high = element(t, dtype, x);
    return low->data == NULL ? high : high + element(low, dtype, x) / agi_low_scale(dtype);
}

/* Stores an element of O or tO, and what rounding takes from it. */
static void store_halves(const ag_tensor *t, const ag_tensor *low, ag_dtype dtype, place x, double value)
{
    store(t, dtype, x, value);
    if (low->data != NULL) {
        store(low, dtype, x, agi_low_half(dtype, value));
    }
}

/* w * value, but 0 for a weight of zero even if the value is not finite. */
static double weighted(double w, double value)
{
    return w == 0 ? 0 : w * value;
}

/* The row's numbers of one set of keys: its weight w_k, then mu_k - mu, smu_k - smu, and the factor of O_k in stO. */
typedef struct {
    double w, t, s, ts;
} part;

static double mean_over_sets(const part *a, double first, const part *b, double second)
{
    return weighted(a->w, first) + weighted(b->w, second);
}

/* Sets the numbers of both sets, and stores lse, mu, smu and nu of the result. */
static void merge_rows(const ag_merge_args *m, place x, part *a, part *b)
{
    const double L1 = element(&m->lse1, AG_F64, x), L2 = element(&m->lse2, AG_F64, x);
    const double mu1 = element(&m->mu1, AG_F64, x), mu2 = element(&m->mu2, AG_F64, x);
    const double smu1 = element(&m->smu1, AG_F64, x), smu2 = element(&m->smu2, AG_F64, x);
    const double nu1 = element(&m->nu1, AG_F64, x), nu2 = element(&m->nu2, AG_F64, x);
    const double larger = L1 > L2 || isnan(L1) ? L1 : L2, smaller = larger == L1 ? L2 : L1;
    const double L = larger == -INFINITY ? -INFINITY : larger + log1p(exp(smaller - larger));
    a->w = L1 == -INFINITY ? 0 : exp(L1 - L);
    b->w = L2 == -INFINITY ? 0 : exp(L2 - L);
    const double mu = mean_over_sets(a, mu1, b, mu2), smu = mean_over_sets(a, smu1, b, smu2);
    a->t = mu1 - mu, a->s = smu1 - smu;
    b->t = mu2 - mu, b->s = smu2 - smu;
    const double nu = mean_over_sets(a, nu1 + a->t * a->s, b, nu2 + b->t * b->s);
    a->ts = nu1 - nu + a->t * a->s;
    b->ts = nu2 - nu + b->t * b->s;
    store(&m->lse, AG_F64, x, L);
    store(&m->mu, AG_F64, x, mu);
    store(&m->smu, AG_F64, x, smu);
    store(&m->nu, AG_F64, x, nu);
}

/* One element of O, tO, sO and stO of a set of keys. */
typedef struct {
    double O, tO, sO, stO;
} outputs;

/* The share of a set in each output of the result. */
static outputs share(const part *k, outputs x)
{
    const double stO = x.stO + k->t * x.sO + k->s * x.tO + k->ts * x.O;
    return (outputs){weighted(k->w, x.O), weighted(k->w, x.tO + k->t * x.O),
                     weighted(k->w, x.sO + k->s * x.O), weighted(k->w, stO)};
}

static void merge_row(const merge_job *job, place x)
{
    const ag_merge_args *m = job->m;
    const ag_dtype dtype = job->plan->p.out_dtype;
    part a, b;
    merge_rows(m, x, &a, &b);
    for (; x.c < job->plan->p.dim_v; x.c++) {
        const outputs first = share(&a, (outputs){sum_of_halves(&m->o1, &m->o_low1, dtype, x),
                                                  sum_of_halves(&m->to1, &m->to_low1, dtype, x),
                                                  element(&m->so1, dtype, x), element(&m->sto1, dtype, x)});
        const outputs second = share(&b, (outputs){sum_of_halves(&m->o2, &m->o_low2, dtype, x),
                                                   sum_of_halves(&m->to2, &m->to_low2, dtype, x),
                                                   element(&m->so2, dtype, x), element(&m->sto2, dtype, x)});
        store_halves(&m->o, &m->o_low, dtype, x, first.O + second.O);
        store_halves(&m->to, &m->to_low, dtype, x, first.tO + second.tO);
        store(&m->so, dtype, x, first.sO + second.sO);
        store(&m->sto, dtype, x, first.stO + second.stO);
    }
}

static void merge_head(void *arg, int64_t item, int64_t scratch_index)
{
    const merge_job *job = arg;
    int64_t size[4];
    (void)scratch_index;
    agi_shape_of(&job->plan->p, AGI_SHAPE_ROW, size);
    for (int64_t i = 0; i < size[2] && !agi_cancelled(job->exec); i++) {
        merge_row(job, (place){item / size[1], item % size[1], i, 0});
    }
}

ag_status agi_reference_merge(const ag_plan *plan, const ag_merge_args *args, agi_exec *exec)
{
    merge_job job = {plan, args, exec};
    int64_t size[4];
    agi_shape_of(&plan->p, AGI_SHAPE_ROW, size);
    const double elements = (double)size[0] * (double)size[1] * (double)size[2] * (double)plan->p.dim_v;
    const agi_loop heads = {size[0] * size[1], 256 * elements, merge_head,
                            &job}; /* each is converted twice */
    return agi_parallel_for(plan, exec, &heads);
}
