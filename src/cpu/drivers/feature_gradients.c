/* The gradients that are sums over sequences, heads or splits: bias, table, sink. */
#include <string.h>

#include "core/number.h"
#include "cpu/drivers/backward.h"

bool REAL(agi_bias_is_full)(const ag_problem *p)
{
    return p->bias_size[2] == p->q_len && p->bias_size[3] == p->kv_len;
}

bool REAL(agi_bias_needs_copy)(const ag_problem *p)
{
    const bool is_sum = (p->bias_size[0] == 1 && p->batch > 1) || (p->bias_size[1] == 1 && p->heads > 1);
    return REAL(agi_bias_is_full)(p) && is_sum && p->aux_dtype != REAL_DTYPE;
}

void REAL(agi_begin_sums)(const agi_backward_job *w, int64_t part, const agi_head *x, agi_sums *sums)
{
    const ag_problem *p = &w->call->plan->p;
    const int64_t *size = p->bias_size;
    int64_t dense[4] = {size[1] * size[2] * size[3], size[2] * size[3], size[3], 1};
    memset(sums, 0, sizeof *sums);
    if (w->dbias->data != NULL) {
        const bool full = REAL(agi_bias_is_full)(p), copy = full && REAL(agi_bias_needs_copy)(p);
        sums->full = !full ? NULL : copy ? (void *)w->shared.bias_full : w->dbias->data;
        sums->dtype = copy ? REAL_DTYPE : p->aux_dtype;
        sums->broadcast = full ? NULL : w->shared.bias_broadcast + part * agi_count(size);
        for (int axis = 0; axis < 4; axis++) {
            sums->strides[axis] = size[axis] == 1 ? 0 : full && !copy ? w->dbias->strides[axis] : dense[axis];
        }
    }
    if (w->dtable->data != NULL) {
        sums->table = w->shared.table + (x->h * w->schedule->parts + part) * p->table_buckets;
    }
}

/* Offset of element e of a tensor, with e counted as in a dense array. */
static int64_t element_offset(const ag_tensor *t, const int64_t size[4], int64_t e)
{
    int64_t at = 0;
    for (int axis = 3; axis >= 0; axis--) {
        at += size[axis] == 1 ? 0 : e % size[axis] * t->strides[axis];
        e /= size[axis];
    }
    return at;
}

static void put(const ag_tensor *t, ag_dtype dtype, int64_t at, bool accumulate, double value)
{
    agi_store(dtype, t->data, at, accumulate ? agi_load(dtype, t->data, at) + value : value);
}

enum { POLL_ELEMENTS = 1 << 14 }; /* elements that are cleared or stored before a call may be cancelled */

static void clear(const agi_backward_job *w, void *sum, int64_t n, size_t size)
{
    for (int64_t e = 0; e < n && !agi_cancelled(w->call->exec); e += POLL_ELEMENTS) {
        memset((char *)sum + (size_t)e * size, 0, (size_t)agi_min(POLL_ELEMENTS, n - e) * size);
    }
}

void REAL(agi_clear_sums)(const agi_backward_job *w)
{
    const ag_problem *p = &w->call->plan->p;
    const int64_t parts = w->schedule->parts, n = agi_count(p->bias_size);
    if (w->dtable->data != NULL) {
        clear(w, w->shared.table, p->heads * parts * p->table_buckets, sizeof(double));
    }
    if (w->dsink->data != NULL) {
        clear(w, w->shared.sink, p->batch * p->heads * parts, sizeof(double));
    }
    if (w->dbias->data == NULL) {
        return;
    }
    if (!REAL(agi_bias_is_full)(p)) {
        clear(w, w->shared.bias_broadcast, parts * n, sizeof(double));
    } else if (REAL(agi_bias_needs_copy)(p)) {
        clear(w, w->shared.bias_full, n, sizeof(real));
    } else if (!(w->call->a.accumulate & w->acc_dbias)) {
        const int64_t Nk = p->bias_size[3], stride = w->dbias->strides[3];
        for (int64_t row = 0; row < n && !agi_cancelled(w->call->exec);
             row += Nk) { /* element_offset divides: call it once per row */
            const int64_t at = element_offset(w->dbias, p->bias_size, row);
            for (int64_t j = 0; j < Nk; j++) {
                put(w->dbias, p->aux_dtype, at + j * stride, false, 0);
            }
        }
    }
}

/* The sum of `count` elements that are `stride` apart. */
static double strided_sum(const double *x, int64_t count, int64_t stride)
{
    double sum = 0;
    for (int64_t i = 0; i < count; i++) {
        sum += x[i * stride];
    }
    return sum;
}

/* Elements first .. end - 1 of the gradient of the bias. */
static void store_bias_elements(const agi_backward_job *w, int64_t first, int64_t end)
{
    const ag_problem *p = &w->call->plan->p;
    const bool accumulate = (w->call->a.accumulate & w->acc_dbias) != 0, full = REAL(agi_bias_is_full)(p);
    for (int64_t e = first; e < end; e++) {
        const double sum =
            full ? (double)w->shared.bias_full[e]
                 : strided_sum(w->shared.bias_broadcast + e, w->schedule->parts, agi_count(p->bias_size));
        put(w->dbias, p->aux_dtype, element_offset(w->dbias, p->bias_size, e), accumulate, sum);
    }
}

static void store_bias_gradient(const agi_backward_job *w)
{
    const ag_problem *p = &w->call->plan->p;
    const int64_t n = agi_count(p->bias_size);
    if (REAL(agi_bias_is_full)(p) && !REAL(agi_bias_needs_copy)(p)) {
        return; /* it was summed in its place */
    }
    for (int64_t e = 0; e < n && !agi_cancelled(w->call->exec); e += POLL_ELEMENTS) {
        store_bias_elements(w, e, agi_min(e + POLL_ELEMENTS, n));
    }
}

static void store_table_gradient(const agi_backward_job *w)
{
    const ag_problem *p = &w->call->plan->p;
    const int64_t size[4] = {1, p->table_heads, 1, p->table_buckets}, nb = p->table_buckets;
    /* A table that all heads share: the sums of all heads and parts are [heads * parts][nb]. */
    const int64_t count = p->table_heads == 1 ? p->heads * w->schedule->parts : w->schedule->parts;
    const bool accumulate = (w->call->a.accumulate & w->acc_dtable) != 0;
    for (int64_t e = 0; e < p->table_heads * nb; e++) {
        const double *first = w->shared.table + e / nb * w->schedule->parts * nb + e % nb;
        put(w->dtable, p->aux_dtype, element_offset(w->dtable, size, e), accumulate,
            strided_sum(first, count, nb));
    }
}

static void store_sink_gradient(const agi_backward_job *w)
{
    const ag_problem *p = &w->call->plan->p;
    const int64_t size[4] = {1, p->heads, 1, 1}, parts = w->schedule->parts;
    const bool accumulate = (w->call->a.accumulate & w->acc_dsink) != 0;
    for (int64_t h = 0; h < p->heads; h++) {
        double sum = 0;
        for (int64_t b = 0; b < p->batch; b++) {
            sum += strided_sum(w->shared.sink + (b * p->heads + h) * parts, parts, 1);
        }
        put(w->dsink, p->aux_dtype, element_offset(w->dsink, size, h), accumulate, sum);
    }
}

void REAL(agi_store_sums)(const agi_backward_job *w)
{
    if (w->dbias->data != NULL) {
        store_bias_gradient(w);
    }
    if (w->dtable->data != NULL) {
        store_table_gradient(w);
    }
    if (w->dsink->data != NULL) {
        store_sink_gradient(w);
    }
}
