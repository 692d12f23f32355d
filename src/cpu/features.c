/* Mask, bias, table, ALiBi and dropout on a tile, and the way back from dS to the sums. */
#include <math.h>
#include <string.h>

#include "../core/number.h"
#include "tile.h"

/* A broadcast array's strides: 0 along the axes of size 1. */
static void effective(const int64_t size[4], const int64_t given[4], int64_t stride[4])
{
    for (int axis = 0; axis < 4; axis++) {
        stride[axis] = size[axis] == 1 ? 0 : given[axis];
    }
}

/* The first element of this head's tile in a broadcast array. */
static int64_t corner(const agi_head *x, const int64_t stride[4], int64_t i0, int64_t j0)
{
    return x->seq.b * stride[0] + x->h * stride[1] + i0 * stride[2] + j0 * stride[3];
}

static void add_bias(const agi_head *x, const ag_tensor *t, int64_t i0, int64_t ni, int64_t j0, int64_t nj,
                     real *X, int64_t ld)
{
    const ag_problem *p = &x->call->plan->p;
    int64_t stride[4];
    effective(p->bias_size, t->strides, stride);
    const int64_t at = corner(x, stride, i0, j0);
    for (int64_t i = 0; i < ni; i++) {
        for (int64_t j = 0; j < nj; j++) {
            X[j * ld + i] += (real)agi_load(p->aux_dtype, t->data, at + i * stride[2] + j * stride[3]);
        }
    }
}

/* Column of the table for g_j - p_i. */
static int64_t bucket(const ag_plan *plan, int64_t distance)
{
    const int64_t R = plan->p.table_radius;
    const int64_t place = agi_max(-R, agi_min(R, distance)) + R;
    return plan->buckets == NULL ? place : plan->buckets[place];
}

static void add_table(const agi_head *x, const ag_tensor *t, int64_t i0, int64_t ni, int64_t j0, int64_t nj,
                      real *X, int64_t ld)
{
    const ag_problem *p = &x->call->plan->p;
    const int64_t row = p->table_heads == 1 ? 0 : x->h * t->strides[1];
    const int64_t offset = (j0 + x->call->a.k_offset) - (i0 + x->seq.shift);
    const int64_t stride = p->table_buckets == 1 ? 0 : t->strides[3];
    /* The same distance gives the same number: one load for a diagonal. */
    for (int64_t d = 1 - ni; d < nj; d++) {
        const real value =
            (real)agi_load(p->aux_dtype, t->data, row + bucket(x->call->plan, offset + d) * stride);
        for (int64_t i = agi_max(0, -d); i < ni && i + d < nj; i++) {
            X[(i + d) * ld + i] += value;
        }
    }
}

static void add_alibi(const agi_head *x, int64_t i0, int64_t ni, int64_t j0, int64_t nj, real *X, int64_t ld)
{
    const double slope = x->call->plan->slopes[x->h];
    const int64_t offset = (j0 + x->call->a.k_offset) - (i0 + x->seq.shift);
    for (int64_t j = 0; j < nj; j++) {
        for (int64_t i = 0; i < ni; i++) {
            X[j * ld + i] -= (real)(slope * fabs((double)(offset + j - i)));
        }
    }
}

static void hide_masked(const agi_head *x, int64_t i0, int64_t ni, int64_t j0, int64_t nj, real *X,
                        int64_t ld)
{
    const ag_tensor *t = &x->call->a.mask;
    int64_t stride[4];
    effective(x->call->plan->p.mask_size, t->strides, stride);
    const uint8_t *mask = (const uint8_t *)t->data + corner(x, stride, i0, j0);
    for (int64_t i = 0; i < ni; i++) {
        for (int64_t j = 0; j < nj; j++) {
            X[j * ld + i] = mask[i * stride[2] + j * stride[3]] ? X[j * ld + i] : (real)-INFINITY;
        }
    }
}

/* Of bias and table alone: X must not be NaN where the band hides, which only -infinity can undo. */
static bool find_unseen(int64_t ni, int64_t nj, agi_band band, const real *X, int64_t ld, uint8_t *unseen)
{
    bool any = false;
    for (int64_t j = 0; j < nj; j++) {
        int64_t from, to;
        agi_queries_of(band, j, j + 1, ni, &from, &to);
        unseen[j] = 1;
        for (int64_t i = from; i < to; i++) {
            unseen[j] &= X[j * ld + i] == (real)-INFINITY;
        }
        any |= unseen[j];
    }
    return any;
}

static void clear_rows(real *X, int64_t nj, int64_t ld)
{
    for (int64_t j = 0; j < nj; j++) {
        memset(X + j * ld, 0, PANEL * sizeof(real));
    }
}

bool agi_additive(const agi_head *x, int64_t i0, int64_t ni, int64_t j0, int64_t nj, real *X, real *tX,
                  int64_t ld, uint8_t *unseen)
{
    const ag_args *a = &x->call->a;
    const ag_problem *p = &x->call->plan->p;
    clear_rows(X, nj, ld);
    if (agi_has(p, AG_BIAS)) {
        add_bias(x, &a->bias, i0, ni, j0, nj, X, ld);
    }
    if (agi_has(p, AG_TABLE)) {
        add_table(x, &a->table, i0, ni, j0, nj, X, ld);
    }
    if (agi_has(p, AG_ALIBI | AG_SLOPES)) {
        add_alibi(x, i0, ni, j0, nj, X, ld);
    }
    if (agi_has(p, AG_MASK)) {
        hide_masked(x, i0, ni, j0, nj, X, ld);
    }
    if (tX != NULL) {
        clear_rows(tX, nj, ld);
        if (agi_has(p, AG_BIAS) && a->tbias.data != NULL) {
            add_bias(x, &a->tbias, i0, ni, j0, nj, tX, ld);
        }
        if (agi_has(p, AG_TABLE) && a->ttable.data != NULL) {
            add_table(x, &a->ttable, i0, ni, j0, nj, tX, ld);
        }
    }
    return x->hides && find_unseen(ni, nj, agi_band_at(x, i0, j0), X, ld, unseen);
}

void agi_dropout_tile(const agi_head *x, int64_t i0, int64_t W, int64_t j0, int64_t nj, real *M, int64_t ld)
{
    const ag_problem *p = &x->call->plan->p;
    const ag_args *a = &x->call->a;
    x->k->dropout(M, ld, nj, W, j0 + a->k_offset, i0 + x->seq.shift, (uint32_t)(x->h + p->head_offset),
                  (uint32_t)(x->seq.b + a->batch_offset), a->seed, (uint32_t)floor(p->dropout * 0x1p32),
                  (real)(1 / (1 - p->dropout)));
}

/* ---- The way back ---- */

static void add_bias_sums(const agi_head *x, const agi_sums *sums, int64_t i0, int64_t ni, int64_t j0,
                          int64_t nj, const real *dS, int64_t ld)
{
    const int64_t at = corner(x, sums->strides, i0, j0), si = sums->strides[2], sj = sums->strides[3];
    for (int64_t i = 0; i < ni; i++) {
        for (int64_t j = 0; j < nj; j++) {
            const int64_t place = at + i * si + j * sj;
            const double value = (double)dS[j * ld + i];
            if (sums->full != NULL) {
                agi_store(sums->dtype, sums->full, place, agi_load(sums->dtype, sums->full, place) + value);
            } else {
                sums->small[place] += value;
            }
        }
    }
}

static void add_table_sums(const agi_head *x, double *table, int64_t i0, int64_t ni, int64_t j0, int64_t nj,
                           const real *dS, int64_t ld)
{
    const int64_t offset = (j0 + x->call->a.k_offset) - (i0 + x->seq.shift);
    for (int64_t d = 1 - ni; d < nj; d++) {
        double sum = 0;
        for (int64_t i = agi_max(0, -d); i < ni && i + d < nj; i++) {
            sum += (double)dS[(i + d) * ld + i];
        }
        table[bucket(x->call->plan, offset + d)] += sum;
    }
}

void agi_add_sums(const agi_head *x, const agi_sums *sums, int64_t i0, int64_t ni, int64_t j0, int64_t nj,
                  const real *dS, int64_t ld)
{
    if (sums->full != NULL || sums->small != NULL) {
        add_bias_sums(x, sums, i0, ni, j0, nj, dS, ld);
    }
    if (sums->table != NULL) {
        add_table_sums(x, sums->table, i0, ni, j0, nj, dS, ld);
    }
}
