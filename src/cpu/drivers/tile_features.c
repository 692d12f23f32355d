/* Mask, bias, table, ALiBi and dropout on a tile, and the gradients of bias and table from dS. */
#include <math.h>
#include <string.h>

#include "core/number.h"
#include "cpu/drivers/tile.h"

/* The strides of an array that is broadcast along its axes of size 1: 0 there. */
static void broadcast_strides(const int64_t size[4], const int64_t given[4], int64_t stride[4])
{
    for (int axis = 0; axis < 4; axis++) {
        stride[axis] = size[axis] == 1 ? 0 : given[axis];
    }
}

/* Offset of the first element of this head's tile. */
static int64_t corner_offset(const agi_head *x, const int64_t stride[4], int64_t i0, int64_t j0)
{
    return x->seq.b * stride[0] + x->h * stride[1] + i0 * stride[2] + j0 * stride[3];
}

static void add_bias(const agi_head *x, const ag_tensor *t, int64_t i0, int64_t ni, int64_t j0, int64_t nj,
                     real *X, int64_t ld)
{
    const ag_problem *p = &x->call->plan->p;
    int64_t stride[4];
    broadcast_strides(p->bias_size, t->strides, stride);
    const int64_t at = corner_offset(x, stride, i0, j0);
    for (int64_t i = 0; i < ni; i++) {
        for (int64_t j = 0; j < nj; j++) {
            X[j * ld + i] += (real)agi_load(p->aux_dtype, t->data, at + i * stride[2] + j * stride[3]);
        }
    }
}

/* Column of the table for the distance g_j - p_i. */
static int64_t bucket(const ag_plan *plan, int64_t distance)
{
    const int64_t R = plan->p.table_radius;
    const int64_t clipped = agi_max(-R, agi_min(R, distance)) + R;
    return plan->buckets == NULL ? clipped : plan->buckets[clipped];
}

static void add_table(const agi_head *x, const ag_tensor *t, int64_t i0, int64_t ni, int64_t j0, int64_t nj,
                      real *X, int64_t ld)
{
    const ag_problem *p = &x->call->plan->p;
    const int64_t head = p->table_heads == 1 ? 0 : x->h * t->strides[1];
    const int64_t offset = (j0 + x->seq.k_shift) - (i0 + x->seq.shift);
    const int64_t stride = p->table_buckets == 1 ? 0 : t->strides[3];
    /* Pairs on one diagonal have one distance, so one table entry. */
    for (int64_t d = 1 - ni; d < nj; d++) {
        const real value =
            (real)agi_load(p->aux_dtype, t->data, head + bucket(x->call->plan, offset + d) * stride);
        for (int64_t i = agi_max(0, -d); i < ni && i + d < nj; i++) {
            X[(i + d) * ld + i] += value;
        }
    }
}

static void add_alibi(const agi_head *x, int64_t i0, int64_t ni, int64_t j0, int64_t nj, real *X, int64_t ld)
{
    const double slope = x->call->plan->slopes[x->h];
    const int64_t offset = (j0 + x->seq.k_shift) - (i0 + x->seq.shift);
    for (int64_t j = 0; j < nj; j++) {
        for (int64_t i = 0; i < ni; i++) {
            /* in double, rounded once: it may be by far the largest term of a score */
            X[j * ld + i] = (real)((double)X[j * ld + i] - slope * fabs((double)(offset + j - i)));
        }
    }
}

static void add_features(const agi_head *x, int64_t i0, int64_t ni, int64_t j0, int64_t nj, real *X,
                         int64_t ld)
{
    const ag_problem *p = &x->call->plan->p;
    if (agi_has(p, AG_BIAS)) {
        add_bias(x, &x->call->a.bias, i0, ni, j0, nj, X, ld);
    }
    if (agi_has(p, AG_TABLE)) {
        add_table(x, &x->call->a.table, i0, ni, j0, nj, X, ld);
    }
    if (agi_has(p, AG_ALIBI | AG_SLOPES)) {
        add_alibi(x, i0, ni, j0, nj, X, ld);
    }
}

static void apply_mask(const agi_head *x, int64_t i0, int64_t ni, int64_t j0, int64_t nj, real *X, int64_t ld)
{
    const ag_tensor *t = &x->call->a.mask;
    int64_t stride[4];
    broadcast_strides(x->call->plan->p.mask_size, t->strides, stride);
    const uint8_t *mask = (const uint8_t *)t->data + corner_offset(x, stride, i0, j0);
    for (int64_t i = 0; i < ni; i++) {
        for (int64_t j = 0; j < nj; j++) {
            X[j * ld + i] = mask[i * stride[2] + j * stride[3]] ? X[j * ld + i] : (real)-INFINITY;
        }
    }
}

/* ---- Tiles in which every pair is masked ---- */

enum { BLOCK = 128 }; /* bytes that are compared at once */

/* A mask or a bias, and what masks a pair in it, repeated: 0 in a mask, -infinity in a bias. */
typedef struct {
    const char *corner; /* the tile's first element */
    int64_t size;       /* of an element, in bytes */
    int64_t strides[2]; /* from query to query, from key to key */
    char pattern[BLOCK];
} mask_array;

/* dtype: that of a bias; a mask has bytes. */
static mask_array mask_array_of(const agi_head *x, const ag_tensor *t, const int64_t size[4], ag_dtype dtype,
                                int64_t i0, int64_t j0)
{
    const bool mask = t == &x->call->a.mask;
    mask_array h = {.size = mask ? 1 : dtype == AG_F64 ? 8 : dtype == AG_F32 ? 4 : 2};
    int64_t stride[4];
    broadcast_strides(size, t->strides, stride);
    h.corner = (const char *)t->data + corner_offset(x, stride, i0, j0) * h.size;
    h.strides[0] = stride[2];
    h.strides[1] = stride[3];
    for (int64_t e = 0; !mask && e < BLOCK / h.size; e++) {
        agi_store(dtype, h.pattern, e, -INFINITY);
    }
    return h;
}

/* The first of keys j .. to - 1 that the array does not mask for query i; `to` if there is none. */
static int64_t skip_masked(const mask_array *h, int64_t i, int64_t j, int64_t to)
{
    const char *row = h->corner + i * h->strides[0] * h->size;
    if (h->strides[1] != 1) {
        for (; j < to && memcmp(row + j * h->strides[1] * h->size, h->pattern, (size_t)h->size) == 0; j++) {
            if (h->strides[1] == 0) {
                return to;
            }
        }
        return j;
    }
    for (int64_t n = BLOCK / h->size; n > 0; n /= 2) {
        while (j + n <= to && memcmp(row + j * h->size, h->pattern, (size_t)(n * h->size)) == 0) {
            j += n;
        }
    }
    return j;
}

/* What is added to one score. */
static real additive_of(const agi_head *x, int64_t i, int64_t j)
{
    real X[1] = {0};
    add_features(x, i, 1, j, 1, X, 1);
    return X[0];
}

bool REAL(agi_all_masked)(const agi_head *x, int64_t i0, int64_t ni, int64_t j0, int64_t nj)
{
    const ag_problem *p = &x->call->plan->p;
    const agi_band band = REAL(agi_band_at)(x, i0, j0);
    mask_array masks[2];
    int n = 0;
    if (!x->has.pair_mask) {
        return false;
    }
    if (agi_has(p, AG_MASK)) {
        masks[n++] = mask_array_of(x, &x->call->a.mask, p->mask_size, AG_F32, i0, j0);
    }
    if (agi_has(p, AG_BIAS) &&
        !agi_has(p, AG_TABLE)) { /* -infinity plus a NaN of the table is NaN, which masks nothing */
        masks[n++] = mask_array_of(x, &x->call->a.bias, p->bias_size, p->aux_dtype, i0, j0);
    }
    for (int64_t i = 0; i < ni; i++) {
        int64_t j, to;
        agi_keys_of(band, i, i + 1, nj, &j, &to);
        while (j < to) {
            int64_t next = j;
            for (int h = 0; h < n; h++) {
                next = skip_masked(&masks[h], i, next, to);
            }
            if (next == j && additive_of(x, i0 + i, j0 + j) != (real)-INFINITY) {
                return false;
            }
            j = agi_max(next, j + 1);
        }
    }
    return true;
}

bool REAL(agi_sees_no_key)(const agi_head *x, int64_t i, double L)
{
    int64_t from, to;
    if (L == -INFINITY || L != x->sink) {
        return L == -INFINITY;
    }
    /* The query sees no key, or only keys of negligible weight. */
    REAL(agi_key_range)(x, i, 1, &from, &to);
    return from >= to || REAL(agi_all_masked)(x, i, 1, from, to - from);
}

int64_t REAL(agi_trim_masked)(const agi_head *x, int64_t i0, int64_t ni, int64_t *j0, int64_t end)
{
    const int64_t step = 64; /* keys per look: about as many as a panel has queries */
    while (*j0 < end && REAL(agi_all_masked)(x, i0, ni, *j0, agi_min(step, end - *j0))) {
        *j0 += agi_min(step, end - *j0);
    }
    while (end - *j0 > step && REAL(agi_all_masked)(x, i0, ni, end - step, step)) {
        end -= step;
    }
    return agi_max(0, end - *j0);
}

/* Looks at pairs inside the band only. Returns whether any key is masked for all queries. */
static bool find_masked_keys(int64_t ni, int64_t nj, agi_band band, const real *X, int64_t ld,
                             uint8_t *masked_keys)
{
    bool any = false;
    for (int64_t j = 0; j < nj; j++) {
        int64_t from, to;
        agi_queries_of(band, j, j + 1, ni, &from, &to);
        masked_keys[j] = 1;
        for (int64_t i = from; i < to; i++) {
            masked_keys[j] &= X[j * ld + i] == (real)-INFINITY;
        }
        any |= masked_keys[j];
    }
    return any;
}

static void clear_rows(real *X, int64_t nj, int64_t ld)
{
    for (int64_t j = 0; j < nj; j++) {
        memset(X + j * ld, 0, PANEL * sizeof(real));
    }
}

void REAL(agi_additive_tangent)(const agi_head *x, const ag_tensor *bias, const ag_tensor *table, int64_t i0,
                                int64_t ni, int64_t j0, int64_t nj, real *tX, int64_t ld)
{
    const ag_problem *p = &x->call->plan->p;
    clear_rows(tX, nj, ld);
    if (agi_has(p, AG_BIAS) && bias->data != NULL) {
        add_bias(x, bias, i0, ni, j0, nj, tX, ld);
    }
    if (agi_has(p, AG_TABLE) && table->data != NULL) {
        add_table(x, table, i0, ni, j0, nj, tX, ld);
    }
}

bool REAL(agi_additive)(const agi_head *x, int64_t i0, int64_t ni, int64_t j0, int64_t nj, real *X, real *tX,
                        int64_t ld, uint8_t *masked_keys)
{
    const ag_args *a = &x->call->a;
    const ag_problem *p = &x->call->plan->p;
    clear_rows(X, nj, ld);
    add_features(x, i0, ni, j0, nj, X, ld);
    if (agi_has(p, AG_MASK)) {
        apply_mask(x, i0, ni, j0, nj, X, ld);
    }
    if (tX != NULL) {
        REAL(agi_additive_tangent)(x, &a->tbias, &a->ttable, i0, ni, j0, nj, tX, ld);
    }
    return x->has.pair_mask && find_masked_keys(ni, nj, REAL(agi_band_at)(x, i0, j0), X, ld, masked_keys);
}

void REAL(agi_dropout_tile)(const agi_head *x, int64_t i0, int64_t W, int64_t j0, int64_t nj, real *M,
                            int64_t ld)
{
    const ag_problem *p = &x->call->plan->p;
    const ag_args *a = &x->call->a;
    x->k->dropout(M, ld, nj, W, j0 + x->seq.k_shift, i0 + x->seq.shift, (uint32_t)(x->h + p->head_offset),
                  (uint32_t)(x->seq.b + a->batch_offset), a->seed, (uint32_t)floor(p->dropout * 0x1p32),
                  (real)(1 / (1 - p->dropout)));
}

/* ---- Gradients ---- */

static void add_bias_sums(const agi_head *x, const agi_sums *sums, int64_t i0, int64_t ni, int64_t j0,
                          int64_t nj, const real *dS, int64_t ld)
{
    const int64_t at = corner_offset(x, sums->strides, i0, j0), si = sums->strides[2], sj = sums->strides[3];
    for (int64_t i = 0; i < ni; i++) {
        for (int64_t j = 0; j < nj; j++) {
            const int64_t e = at + i * si + j * sj;
            const double value = (double)dS[j * ld + i];
            if (sums->full != NULL) {
                agi_store(sums->dtype, sums->full, e, agi_load(sums->dtype, sums->full, e) + value);
            } else {
                sums->broadcast[e] += value;
            }
        }
    }
}

static void add_table_sums(const agi_head *x, double *table, int64_t i0, int64_t ni, int64_t j0, int64_t nj,
                           const real *dS, int64_t ld)
{
    const int64_t offset = (j0 + x->seq.k_shift) - (i0 + x->seq.shift);
    for (int64_t d = 1 - ni; d < nj; d++) {
        double sum = 0;
        for (int64_t i = agi_max(0, -d); i < ni && i + d < nj; i++) {
            sum += (double)dS[(i + d) * ld + i];
        }
        table[bucket(x->call->plan, offset + d)] += sum;
    }
}

void REAL(agi_add_sums)(const agi_head *x, const agi_sums *sums, int64_t i0, int64_t ni, int64_t j0,
                        int64_t nj, const real *dS, int64_t ld)
{
    if (sums->full != NULL || sums->broadcast != NULL) {
        add_bias_sums(x, sums, i0, ni, j0, nj, dS, ld);
    }
    if (sums->table != NULL) {
        add_table_sums(x, sums->table, i0, ni, j0, nj, dS, ld);
    }
}
