/* What the features of a problem mean for one pair of a query and a key: positions, visibility, biases,
 * dropout; and the sums of score gradients into the gradients of bias and table. */
#include <math.h>

#include "core/number.h"
#include "core/philox.h"
#include "reference/head.h"

/* The offset of element (b, h, i, j) in an array whose axes may be broadcast. */
static int64_t element_offset(const int64_t size[4], const int64_t stride[4], const int64_t index[4])
{
    int64_t at = 0;
    for (int axis = 0; axis < 4; axis++) {
        at += size[axis] == 1 ? 0 : index[axis] * stride[axis];
    }
    return at;
}

static void dense_strides(const int64_t size[4], int64_t stride[4])
{
    stride[3] = 1;
    for (int axis = 2; axis >= 0; axis--) {
        stride[axis] = stride[axis + 1] * size[axis + 1];
    }
}

static int64_t query_position(const head *x, int64_t i)
{
    return i + x->seq.shift;
}

static int64_t key_position(const head *x, int64_t j)
{
    return j + x->seq.k_shift;
}

/* Do causal, window and mask leave the pair visible? */
static bool is_visible(const head *x, int64_t i, int64_t j)
{
    const ag_problem *p = &x->call->plan->p;
    const int64_t p_i = query_position(x, i), g_j = key_position(x, j);
    if (agi_has(p, AG_CAUSAL) && g_j > p_i) {
        return false;
    }
    if (p->window_left >= 0 && g_j < p_i - p->window_left) {
        return false;
    }
    if (p->window_right >= 0 && g_j > p_i + p->window_right) {
        return false;
    }
    if (agi_has(p, AG_MASK)) {
        const ag_tensor *mask = &x->call->a.mask;
        const int64_t index[4] = {x->seq.b, x->h, i, j};
        return ((const uint8_t *)mask->data)[element_offset(p->mask_size, mask->strides, index)] != 0;
    }
    return true;
}

/* Row and column of the relative-position table for a pair. */
static void table_entry(const head *x, int64_t i, int64_t j, int64_t *row, int64_t *column)
{
    const ag_plan *plan = x->call->plan;
    const int64_t R = plan->p.table_radius;
    int64_t distance = key_position(x, j) - query_position(x, i);
    distance = distance < -R ? -R : distance > R ? R : distance;
    *row = plan->p.table_heads == 1 ? 0 : x->h;
    *column = plan->buckets == NULL ? distance + R : plan->buckets[distance + R];
}

/* The sum of bias and table for a pair, or of their tangents. Absent tensors add nothing. */
static double bias_and_table(const head *x, const ag_tensor *bias, const ag_tensor *table, int64_t i,
                             int64_t j)
{
    const ag_problem *p = &x->call->plan->p;
    double sum = 0;
    if (bias->data != NULL && agi_has(p, AG_BIAS)) {
        const int64_t index[4] = {x->seq.b, x->h, i, j};
        sum += agi_load(p->aux_dtype, bias->data, element_offset(p->bias_size, bias->strides, index));
    }
    if (table->data != NULL && agi_has(p, AG_TABLE)) {
        const int64_t size[4] = {1, p->table_heads, 1, p->table_buckets};
        int64_t index[4] = {0, 0, 0, 0};
        table_entry(x, i, j, &index[1], &index[3]);
        sum += agi_load(p->aux_dtype, table->data, element_offset(size, table->strides, index));
    }
    return sum;
}

/* The ALiBi term of B: -slope_h |p_i - g_j|. */
static double alibi(const head *x, int64_t i, int64_t j)
{
    const double *slopes = x->call->plan->slopes;
    return slopes == NULL ? 0 : -slopes[x->h] * fabs((double)(query_position(x, i) - key_position(x, j)));
}

/* M: 0 if dropped, else 1 / (1 - p). Philox counter (g_j / 4, p_i, h, b), word g_j % 4. */
static double dropout(const head *x, int64_t i, int64_t j)
{
    const ag_problem *p = &x->call->plan->p;
    const ag_args *a = &x->call->a;
    if (p->dropout == 0) {
        return 1;
    }
    const uint64_t g_j = (uint64_t)key_position(x, j);
    const uint32_t key[2] = {(uint32_t)a->seed, (uint32_t)(a->seed >> 32)};
    const uint32_t counter[4] = {(uint32_t)(g_j >> 2), (uint32_t)query_position(x, i),
                                 (uint32_t)(x->h + p->head_offset), (uint32_t)(x->seq.b + a->batch_offset)};
    uint32_t word[4];
    agi_philox4x32_10(counter, key, word);
    return (double)word[g_j & 3] < floor(p->dropout * 0x1p32) ? 0 : 1 / (1 - p->dropout);
}

void agi_reference_features(head *x)
{
    const ag_args *a = &x->call->a;
    EACH_ROW(x, i) {
        x->sees[i] = 0;
    }
    EACH_PAIR(x, i, j, ij) {
        x->visible[ij] = is_visible(x, i, j);
        x->B[ij] = x->visible[ij] ? bias_and_table(x, &a->bias, &a->table, i, j) + alibi(x, i, j) : 0;
        if (x->B[ij] == -INFINITY) { /* minus infinity in a bias masks the pair */
            x->visible[ij] = 0;
            x->B[ij] = 0;
        }
        x->M[ij] = x->visible[ij] ? dropout(x, i, j) : 0;
        x->sees[i] |= x->visible[ij];
        if (x->tB != NULL) {
            x->tB[ij] = x->visible[ij] ? bias_and_table(x, &a->tbias, &a->ttable, i, j) : 0;
        }
        if (x->sB != NULL) {
            x->sB[ij] = x->visible[ij] ? bias_and_table(x, &a->sbias, &a->stable, i, j) : 0;
        }
    }
}

void agi_reference_add_bias_gradient(head *x, const double *dS)
{
    const ag_problem *p = &x->call->plan->p;
    int64_t stride[4];
    dense_strides(p->bias_size, stride);
    EACH_PAIR(x, i, j, ij) {
        if (x->visible[ij] && x->sum_bias != NULL) {
            const int64_t index[4] = {x->seq.b, x->h, i, j};
            x->sum_bias[element_offset(p->bias_size, stride, index)] += dS[ij];
        }
        if (x->visible[ij] && x->sum_table != NULL) {
            int64_t row, column;
            table_entry(x, i, j, &row, &column);
            x->sum_table[row * p->table_buckets + column] += dS[ij];
        }
    }
}
