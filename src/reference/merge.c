/* Merging the results of two disjoint sets of keys:
 *
 *     L = logaddexp(L1, L2),  w_k = exp(L_k - L),  O = sum w_k O_k
 *     mu = sum w_k mu_k,  tO = sum w_k (tO_k + (mu_k - mu) O_k)
 *
 * A part without keys has L_k = -infinity and w_k = 0, and is left out by selection. */
#include <math.h>

#include "core/number.h"
#include "reference/head.h"

typedef struct {
    const ag_plan *plan;
    const ag_merge_args *m;
} merge_job;

static int64_t at(const ag_tensor *t, int64_t b, int64_t h, int64_t i, int64_t c)
{
    return b * t->strides[0] + h * t->strides[1] + i * t->strides[2] + c * t->strides[3];
}

static double element(const ag_tensor *t, ag_dtype dtype, int64_t b, int64_t h, int64_t i, int64_t c)
{
    return t->data == NULL ? 0 : agi_load(dtype, t->data, at(t, b, h, i, c));
}

/* w * value, but 0 for a weight of zero even if the value is not finite. */
static double weighted(double w, double value)
{
    return w == 0 ? 0 : w * value;
}

static void merge_row(const merge_job *job, int64_t b, int64_t h, int64_t i)
{
    const ag_merge_args *m = job->m;
    const ag_dtype dtype = job->plan->p.out_dtype;
    const double L1 = element(&m->lse1, AG_F64, b, h, i, 0), L2 = element(&m->lse2, AG_F64, b, h, i, 0);
    const double mu1 = element(&m->mu1, AG_F64, b, h, i, 0), mu2 = element(&m->mu2, AG_F64, b, h, i, 0);
    const double larger = L1 > L2 || isnan(L1) ? L1 : L2, smaller = larger == L1 ? L2 : L1;
    const double L = larger == -INFINITY ? -INFINITY : larger + log1p(exp(smaller - larger));
    const double w1 = L1 == -INFINITY ? 0 : exp(L1 - L), w2 = L2 == -INFINITY ? 0 : exp(L2 - L);
    const double mu = weighted(w1, mu1) + weighted(w2, mu2);
    for (int64_t c = 0; c < job->plan->p.dim_v; c++) {
        const double O1 = element(&m->o1, dtype, b, h, i, c), O2 = element(&m->o2, dtype, b, h, i, c);
        const double tO1 = element(&m->to1, dtype, b, h, i, c), tO2 = element(&m->to2, dtype, b, h, i, c);
        agi_store(dtype, m->o.data, at(&m->o, b, h, i, c), weighted(w1, O1) + weighted(w2, O2));
        if (m->to.data != NULL) {
            agi_store(dtype, m->to.data, at(&m->to, b, h, i, c),
                      weighted(w1, tO1 + (mu1 - mu) * O1) + weighted(w2, tO2 + (mu2 - mu) * O2));
        }
    }
    agi_store(AG_F64, m->lse.data, at(&m->lse, b, h, i, 0), L);
    if (m->mu.data != NULL) {
        agi_store(AG_F64, m->mu.data, at(&m->mu, b, h, i, 0), mu);
    }
}

static void merge_head(void *arg, int64_t item, int64_t scratch_index)
{
    const merge_job *job = arg;
    int64_t size[4];
    (void)scratch_index;
    agi_shape_of(&job->plan->p, AGI_SHAPE_ROW, size);
    for (int64_t i = 0; i < size[2]; i++) {
        merge_row(job, item / size[1], item % size[1], i);
    }
}

ag_status agi_reference_merge(const ag_plan *plan, const ag_merge_args *args, const ag_exec *exec)
{
    merge_job job = {plan, args};
    int64_t size[4];
    agi_shape_of(&plan->p, AGI_SHAPE_ROW, size);
    return agi_parallel_for(plan, exec, size[0] * size[1], merge_head, &job);
}
