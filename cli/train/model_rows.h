/* The arithmetic of the model outside its attention layers: matrix products, norm, shift, cross-entropy.
 * Plain loops in float32 over rows. The shapes alone determine how work is divided, and each element is summed
 * by one task in a fixed order: the same bits for any number of threads. */
#ifndef ATTNGRAD_CLI_MODEL_ROWS_H
#define ATTNGRAD_CLI_MODEL_ROWS_H

#include "thread_pool.h"

/* c[m][n] = a b, with b [k][n] dense and a[i][p] at a + i a_row + p a_col. */
struct product {
    float *c;
    const float *a, *b;
    int64_t m, k, n, a_row, a_col;
};
void rows_multiply(struct thread_pool *pool, const struct product *product);

/* The root-mean-square norm, row by row: r = 1 / sqrt(mean x^2 + 1e-6), y = gain o x r. */
struct norm {
    int64_t rows, width;
    const float *x, *gain;
    float *y, *r;
    const float *dy; /* from here on: for backward only */
    float *dx;       /* added to */
    float *dgain;    /* written */
    float *partial;  /* [rows_tasks(rows)][width]: scratch */
};
int64_t rows_tasks(int64_t rows); /* number of tasks that the rows are divided into */
void rows_norm(struct thread_pool *pool, const struct norm *norm);
void rows_norm_backward(struct thread_pool *pool, const struct norm *norm);

/* M = (1 - shift) o N + shift o N', with N' the previous row, zero at the beginning of a sequence. */
struct shift {
    int64_t rows, width, context; /* context: rows of a sequence */
    const float *n, *shift;
    float *m;
    const float *dm; /* from here on: for backward only */
    float *dn;       /* added to */
    float *dshift;   /* written */
    float *partial;  /* like that of the norm */
};
void rows_shift(struct thread_pool *pool, const struct shift *shift);
void rows_shift_backward(struct thread_pool *pool, const struct shift *shift);

/* Cross-entropy of softmax(logits) with one target per row. The logits become the probabilities. */
struct entropy {
    int64_t rows, classes;
    float *logits;
    const int16_t *targets;
    double *losses; /* [rows] */
    int64_t *best;  /* [rows]: the class of the largest logit, the first of equals */
};
void rows_entropy(struct thread_pool *pool, const struct entropy *entropy);

/* The logits, which now hold the probabilities p, become factor (p - one_hot(target)). */
void rows_entropy_backward(struct thread_pool *pool, const struct entropy *entropy, float factor);

#endif
