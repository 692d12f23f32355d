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

/* Adds rows of b times numbers of a to a row of c: four rows of b at a time, in this order. */
static void multiply_row(const struct product *x, int64_t i)
{
    float *c = x->c + i * x->n;
    const float *a = x->a + i * x->a_row;
    const int64_t n = x->n, step = x->a_col;
    int64_t p = 0;
    memset(c, 0, (size_t)n * sizeof *c);
    for (; p + 4 <= x->k; p += 4) {
        const float *b = x->b + p * n;
        const float a0 = a[p * step], a1 = a[(p + 1) * step], a2 = a[(p + 2) * step], a3 = a[(p + 3) * step];
        for (int64_t j = 0; j < n; j++) {
            c[j] += (a0 * b[j] + a1 * b[n + j]) + (a2 * b[2 * n + j] + a3 * b[3 * n + j]);
        }
    }
    for (; p < x->k; p++) {
        for (int64_t j = 0; j < n; j++) {
            c[j] += a[p * step] * x->b[p * n + j];
        }
    }
}

static void multiply_task(void *arg, int64_t task)
{
    const struct product *x = arg;
    for (int64_t i = task * ROWS_PER_TASK; i < end_of(task, x->m); i++) {
        multiply_row(x, i);
    }
}

void rows_multiply(struct thread_pool *pool, const struct product *x)
{
    struct product mine = *x;
    pool_run(pool, rows_tasks(x->m), multiply_task, &mine);
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

void rows_norm(struct thread_pool *pool, const struct norm *x)
{
    struct norm mine = *x;
    pool_run(pool, rows_tasks(x->rows), norm_task, &mine);
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
        float along = 0;
        for (int64_t c = 0; c < n->width; c++) {
            along += n->gain[c] * dy[c] * x[c];
            dgain[c] += dy[c] * x[c] * r;
        }
        along *= r * r / (float)n->width;
        for (int64_t c = 0; c < n->width; c++) {
            dx[c] += r * (n->gain[c] * dy[c] - along * x[c]);
        }
    }
}

void rows_norm_backward(struct thread_pool *pool, const struct norm *x)
{
    struct norm mine = *x;
    pool_run(pool, rows_tasks(x->rows), norm_backward_task, &mine);
    sum_partial(x->dgain, x->partial, x->rows, x->width);
}

/* ---- Shift ---- */

static void shift_task(void *arg, int64_t task)
{
    const struct shift *x = arg;
    const int64_t width = x->width;
    for (int64_t i = task * ROWS_PER_TASK; i < end_of(task, x->rows); i++) {
        const float *n = x->n + i * width;
        float *m = x->m + i * width;
        const bool first = i % x->context == 0;
        for (int64_t c = 0; c < width; c++) {
            const float before = first ? 0 : n[c - width];
            m[c] = n[c] + x->shift[c] * (before - n[c]);
        }
    }
}

void rows_shift(struct thread_pool *pool, const struct shift *x)
{
    struct shift mine = *x;
    pool_run(pool, rows_tasks(x->rows), shift_task, &mine);
}

/* dN += (1 - shift) o dM + shift o dM of the next row; dshift = sum over the rows of dM o (N' - N). */
static void shift_backward_task(void *arg, int64_t task)
{
    const struct shift *x = arg;
    const int64_t width = x->width;
    float *dshift = x->partial + task * width;
    memset(dshift, 0, (size_t)width * sizeof *dshift);
    for (int64_t i = task * ROWS_PER_TASK; i < end_of(task, x->rows); i++) {
        const float *n = x->n + i * width, *dm = x->dm + i * width;
        float *dn = x->dn + i * width;
        const bool first = i % x->context == 0, last = (i + 1) % x->context == 0;
        for (int64_t c = 0; c < width; c++) {
            const float before = first ? 0 : n[c - width], after = last ? 0 : dm[c + width];
            dn[c] += dm[c] + x->shift[c] * (after - dm[c]);
            dshift[c] += dm[c] * (before - n[c]);
        }
    }
}

void rows_shift_backward(struct thread_pool *pool, const struct shift *x)
{
    struct shift mine = *x;
    pool_run(pool, rows_tasks(x->rows), shift_backward_task, &mine);
    sum_partial(x->dshift, x->partial, x->rows, x->width);
}

/* ---- Cross-entropy ---- */

static void entropy_task(void *arg, int64_t task)
{
    const struct entropy *x = arg;
    for (int64_t i = task * ROWS_PER_TASK; i < end_of(task, x->rows); i++) {
        float *z = x->logits + i * x->classes;
        int64_t best = 0;
        for (int64_t v = 1; v < x->classes; v++) {
            best = z[v] > z[best] ? v : best;
        }
        const float max = z[best], of_target = z[x->targets[i]];
        float sum = 0;
        for (int64_t v = 0; v < x->classes; v++) {
            z[v] = expf(z[v] - max);
            sum += z[v];
        }
        for (int64_t v = 0; v < x->classes; v++) {
            z[v] /= sum;
        }
        /* cppcheck-suppress invalidFunctionArg ; the sum has a one in it, as there are classes */
        x->losses[i] = log((double)sum) + (double)max - (double)of_target;
        x->best[i] = best;
    }
}

void rows_entropy(struct thread_pool *pool, const struct entropy *x)
{
    struct entropy mine = *x;
    pool_run(pool, rows_tasks(x->rows), entropy_task, &mine);
}

struct entropy_backward {
    const struct entropy *x;
    float factor;
};

static void entropy_backward_task(void *arg, int64_t task)
{
    const struct entropy_backward *job = arg;
    const struct entropy *x = job->x;
    for (int64_t i = task * ROWS_PER_TASK; i < end_of(task, x->rows); i++) {
        float *p = x->logits + i * x->classes;
        p[x->targets[i]] -= 1;
        for (int64_t v = 0; v < x->classes; v++) {
            p[v] *= job->factor;
        }
    }
}

void rows_entropy_backward(struct thread_pool *pool, const struct entropy *x, float factor)
{
    struct entropy_backward job = {x, factor};
    pool_run(pool, rows_tasks(x->rows), entropy_backward_task, &job);
}
