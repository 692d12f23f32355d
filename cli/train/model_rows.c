/* The loops of model_rows.h. */
#include "model_rows.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

enum { ROWS_PER_TASK = 32 };
static const float norm_epsilon = 1e-6F;

int64_t rows_tasks(int64_t rows)
{
    return (rows + ROWS_PER_TASK - 1) / ROWS_PER_TASK;
}

static int64_t end_of(int64_t task, int64_t rows)
{
    const int64_t end = (task + 1) * ROWS_PER_TASK;
    return end < rows ? end : rows;
}

/* ---- Products ---- */

/* c[i] = sum over p of a[i][p] b[p], four rows of b at a time; the order of the sums is fixed. */
static void multiply_row(const struct product *product, int64_t i)
{
    float *c = product->c + i * product->n;
    const float *a = product->a + i * product->a_row;
    const int64_t n = product->n, stride = product->a_col;
    int64_t p = 0;
    memset(c, 0, (size_t)n * sizeof *c);
    for (; p + 4 <= product->k; p += 4) {
        const float *b = product->b + p * n;
        const float a0 = a[p * stride], a1 = a[(p + 1) * stride], a2 = a[(p + 2) * stride],
                    a3 = a[(p + 3) * stride];
        for (int64_t j = 0; j < n; j++) {
            c[j] += (a0 * b[j] + a1 * b[n + j]) + (a2 * b[2 * n + j] + a3 * b[3 * n + j]);
        }
    }
    for (; p < product->k; p++) {
        for (int64_t j = 0; j < n; j++) {
            c[j] += a[p * stride] * product->b[p * n + j];
        }
    }
}

static void multiply_task(void *arg, int64_t task)
{
    const struct product *product = arg;
    for (int64_t i = task * ROWS_PER_TASK; i < end_of(task, product->m); i++) {
        multiply_row(product, i);
    }
}

void rows_multiply(struct thread_pool *pool, const struct product *product)
{
    struct product copy = *product;
    pool_run(pool, rows_tasks(product->m), multiply_task, &copy);
}

/* Adds up the tasks' partial sums over rows, in the order of the tasks. */
static void sum_partial(float *to, const float *partial, int64_t rows, int64_t width)
{
    memset(to, 0, (size_t)width * sizeof *to);
    for (int64_t task = 0; task < rows_tasks(rows); task++) {
        for (int64_t c = 0; c < width; c++) {
            to[c] += partial[task * width + c];
        }
    }
}

/* ---- Norm ---- */

static void norm_task(void *arg, int64_t task)
{
    const struct norm *n = arg;
    for (int64_t i = task * ROWS_PER_TASK; i < end_of(task, n->rows); i++) {
        const float *x = n->x + i * n->width;
        float *y = n->y + i * n->width;
        float sum = 0;
        for (int64_t c = 0; c < n->width; c++) {
            sum += x[c] * x[c];
        }
        n->r[i] = 1 / sqrtf(sum / (float)n->width + norm_epsilon);
        for (int64_t c = 0; c < n->width; c++) {
            y[c] = n->gain[c] * x[c] * n->r[i];
        }
    }
}

void rows_norm(struct thread_pool *pool, const struct norm *norm)
{
    struct norm copy = *norm;
    pool_run(pool, rows_tasks(norm->rows), norm_task, &copy);
}

/* With u = gain o dy: dx += r u - r^3 x <u, x> / width; dgain = sum over the rows of dy o x r. */
static void norm_backward_task(void *arg, int64_t task)
{
    const struct norm *n = arg;
    float *dgain = n->partial + task * n->width;
    memset(dgain, 0, (size_t)n->width * sizeof *dgain);
    for (int64_t i = task * ROWS_PER_TASK; i < end_of(task, n->rows); i++) {
        const float *x = n->x + i * n->width, *dy = n->dy + i * n->width;
        float *dx = n->dx + i * n->width;
        const float r = n->r[i];
        float projection = 0;
        for (int64_t c = 0; c < n->width; c++) {
            projection += n->gain[c] * dy[c] * x[c];
            dgain[c] += dy[c] * x[c] * r;
        }
        projection *= r * r / (float)n->width;
        for (int64_t c = 0; c < n->width; c++) {
            dx[c] += r * (n->gain[c] * dy[c] - projection * x[c]);
        }
    }
}

void rows_norm_backward(struct thread_pool *pool, const struct norm *norm)
{
    struct norm copy = *norm;
    pool_run(pool, rows_tasks(norm->rows), norm_backward_task, &copy);
    sum_partial(norm->dgain, norm->partial, norm->rows, norm->width);
}

/* ---- Shift ---- */

static void shift_task(void *arg, int64_t task)
{
    const struct shift *s = arg;
    const int64_t width = s->width;
    for (int64_t i = task * ROWS_PER_TASK; i < end_of(task, s->rows); i++) {
        const float *n = s->n + i * width;
        float *m = s->m + i * width;
        const bool first = i % s->context == 0;
        for (int64_t c = 0; c < width; c++) {
            const float previous = first ? 0 : n[c - width];
            m[c] = n[c] + s->shift[c] * (previous - n[c]);
        }
    }
}

void rows_shift(struct thread_pool *pool, const struct shift *shift)
{
    struct shift copy = *shift;
    pool_run(pool, rows_tasks(shift->rows), shift_task, &copy);
}

/* dN += (1 - shift) o dM + shift o dM of the next row; dshift = sum over the rows of dM o (N' - N). */
static void shift_backward_task(void *arg, int64_t task)
{
    const struct shift *s = arg;
    const int64_t width = s->width;
    float *dshift = s->partial + task * width;
    memset(dshift, 0, (size_t)width * sizeof *dshift);
    for (int64_t i = task * ROWS_PER_TASK; i < end_of(task, s->rows); i++) {
        const float *n = s->n + i * width, *dm = s->dm + i * width;
        float *dn = s->dn + i * width;
        const bool first = i % s->context == 0, last = (i + 1) % s->context == 0;
        for (int64_t c = 0; c < width; c++) {
            const float previous = first ? 0 : n[c - width], next_dm = last ? 0 : dm[c + width];
            dn[c] += dm[c] + s->shift[c] * (next_dm - dm[c]);
            dshift[c] += dm[c] * (previous - n[c]);
        }
    }
}

void rows_shift_backward(struct thread_pool *pool, const struct shift *shift)
{
    struct shift copy = *shift;
    pool_run(pool, rows_tasks(shift->rows), shift_backward_task, &copy);
    sum_partial(shift->dshift, shift->partial, shift->rows, shift->width);
}

/* ---- Cross-entropy ---- */

static void entropy_task(void *arg, int64_t task)
{
    const struct entropy *e = arg;
    for (int64_t i = task * ROWS_PER_TASK; i < end_of(task, e->rows); i++) {
        float *z = e->logits + i * e->classes;
        int64_t best = 0;
        for (int64_t v = 1; v < e->classes; v++) {
            best = z[v] > z[best] ? v : best;
        }
        const float max = z[best], target_logit = z[e->targets[i]];
        float sum = 0;
        for (int64_t v = 0; v < e->classes; v++) {
            z[v] = expf(z[v] - max);
            sum += z[v];
        }
        for (int64_t v = 0; v < e->classes; v++) {
            z[v] /= sum;
        }
        /* cppcheck-suppress invalidFunctionArg ; the sum is at least 1: the largest logit adds exp(0) */
        e->losses[i] = log((double)sum) + (double)max - (double)target_logit;
        e->best[i] = best;
    }
}

void rows_entropy(struct thread_pool *pool, const struct entropy *entropy)
{
    struct entropy copy = *entropy;
    pool_run(pool, rows_tasks(entropy->rows), entropy_task, &copy);
}

struct entropy_backward {
    const struct entropy *entropy;
    float factor;
};

static void entropy_backward_task(void *arg, int64_t task)
{
    const struct entropy_backward *job = arg;
    const struct entropy *e = job->entropy;
    for (int64_t i = task * ROWS_PER_TASK; i < end_of(task, e->rows); i++) {
        float *p = e->logits + i * e->classes;
        p[e->targets[i]] -= 1;
        for (int64_t v = 0; v < e->classes; v++) {
            p[v] *= job->factor;
        }
    }
}

void rows_entropy_backward(struct thread_pool *pool, const struct entropy *entropy, float factor)
{
    struct entropy_backward job = {entropy, factor};
    pool_run(pool, rows_tasks(entropy->rows), entropy_backward_task, &job);
}
