/* Tests of the kernels that do not work on scores: products, scores_by_dot, store_rows, log2_array, dots, transpose and
 * dropout. */
#include "core/philox.h"
#include "kernels_tiles.h"

/* ---- product ---- */

/* A with either of its two strides the larger one, and NaN between its elements. */
static void draw_a(struct trial *t)
{
    const bool transposed = sometimes(t);
    const int64_t rows = transposed ? t->K : t->M, columns = transposed ? t->M : t->K;
    const int64_t stride = sometimes(t) ? 3 : 1, width = columns > 0 ? (columns - 1) * stride + 1 : 0;
    make_array(t, A, false, rows, width, width + (sometimes(t) ? 5 : 0), uniform);
    t->ars = transposed ? stride : t->a[A].ld;
    t->aks = transposed ? t->a[A].ld : stride;
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t i = 0; i < width; i++) {
            if (i % stride != 0) {
                *input_ptr(t, A, r, i) = (real)NAN;
            }
        }
    }
}

static void draw_product(struct trial *t)
{
    t->M = t->bench ? 128 : agc_rng_range(&t->random, 1, 20);
    t->N = t->bench ? PANEL : t->k->lanes * agc_rng_range(&t->random, 1, 16);
    t->K = t->bench ? 64 : agc_rng_range(&t->random, 0, 70);
    t->add = sometimes(t);
    draw_a(t);
    make_array(t, B, false, t->K, t->N, t->N + (sometimes(t) ? 7 : 0), uniform);
    make_array(t, C, true, t->M, t->N, t->N + (sometimes(t) ? 3 : 0), t->add ? uniform : unset);
}

static void call_product(const agi_kernels *k, struct trial *t)
{
    k->product(t->M, t->N, t->K, argument(t, A), t->ars, t->aks, argument(t, B), t->a[B].ld, argument(t, C),
               t->a[C].ld, t->add);
}

/* Ranges of any length, even 0: their prefetch may end in the middle of the product, or not be finished by it. */
static void call_product_prefetch(const agi_kernels *k, struct trial *t)
{
    const uintptr_t a = (uintptr_t)argument(t, A), b = (uintptr_t)argument(t, B);
    agi_prefetch_list ahead = {.n = (int)(t->K % 4),
                               .ranges = {{a, a + 40}, {b, b}, {b, b + 200 * (uintptr_t)t->N}}};
    k->product_prefetch(t->M, t->N, t->K, argument(t, A), t->ars, t->aks, argument(t, B), t->a[B].ld,
                        argument(t, C), t->a[C].ld, t->add, &ahead);
    CHECK(t->N < 4 * k->lanes || t->M * t->K < 20 || ahead.n == 0 || ahead.first > 0 ||
              ahead.ranges[0].at > a,
          "%s product_prefetch prefetches nothing", k->name);
}

static void expect_product(struct trial *t)
{
    for (int64_t r = 0; r < t->M; r++) {
        for (int64_t i = 0; i < t->N; i++) {
            wide sum = t->add ? input(t, C, r, i) : 0, magnitude = fabsl(sum);
            for (int64_t k = 0; k < t->K; k++) {
                const wide term = (wide)input_ptr(t, A, 0, 0)[r * t->ars + k * t->aks] * input(t, B, k, i);
                sum += term;
                magnitude += fabsl(term);
            }
            expect(t, C, r, i, sum, 4 * EPS * magnitude);
        }
    }
}

/* Each element is one sum over k in order: one row and one vector at a time give the same bits. */
static void product_alone(struct trial *t)
{
    const int64_t lanes = t->k->lanes;
    real c[64];
    for (int64_t r = 0; r < t->M; r++) {
        for (int64_t i = 0; i < t->N; i += lanes) {
            memcpy(c, input_ptr(t, C, r, i), (size_t)lanes * sizeof(real));
            t->k->product(1, lanes, t->K, argument(t, A) + r * t->ars, t->ars, t->aks, argument(t, B) + i,
                          t->a[B].ld, c, lanes, t->add);
            CHECK(memcmp(c, argument(t, C) + r * t->a[C].ld + i, (size_t)lanes * sizeof(real)) == 0,
                  "%s product %lld x %lld x %lld: the bits of row %lld, columns %lld change with M and N",
                  t->k->name, (long long)t->M, (long long)t->N, (long long)t->K, (long long)r, (long long)i);
        }
    }
}

static double product_work(const struct trial *t)
{
    return 2.0 * (double)(t->M * t->N * t->K);
}

/* ---- scores_by_dot ---- */

static void draw_scores_by_dot(struct trial *t)
{
    draw_tile(t);
    t->M = t->bench ? 1 : agc_rng_range(&t->random, 1, t->W < 4 ? t->W : 4);
    t->K = t->bench ? 64 : t->k->lanes * agc_rng_range(&t->random, 1, 6);
    t->add = sometimes(t);
    make_array(t, A, false, t->nj, t->K, t->K + (sometimes(t) ? 5 : 0), uniform);
    make_array(t, B, false, t->M, t->K, t->K + (sometimes(t) ? 3 : 0), uniform);
    make_array(t, T, true, t->nj, t->W, t->ld, t->add ? uniform : unset);
}

static void call_scores_by_dot(const agi_kernels *k, struct trial *t)
{
    k->scores_by_dot(argument(t, T), t->ld, t->nj, t->W, argument(t, A), t->a[A].ld, argument(t, B),
                     t->a[B].ld, t->M, t->K, t->add);
}

static void expect_scores_by_dot(struct trial *t)
{
    for (int64_t j = 0; j < t->nj; j++) {
        for (int64_t i = 0; i < t->W; i++) {
            wide sum = t->add ? input(t, T, j, i) : 0, magnitude = fabsl(sum);
            for (int64_t c = 0; c < t->K && i < t->M; c++) {
                sum += input(t, A, j, c) * input(t, B, i, c);
                magnitude += fabsl(input(t, A, j, c) * input(t, B, i, c));
            }
            expect(t, T, j, i, sum, 4 * EPS * magnitude);
        }
    }
}

/* One key at a time gives the same bits. */
static void scores_by_dot_alone(struct trial *t)
{
    real row[PANEL];
    const size_t size = (size_t)t->W * sizeof(real);
    for (int64_t j = 0; j < t->nj; j++) {
        memcpy(row, input_ptr(t, T, j, 0), size);
        t->k->scores_by_dot(row, PANEL, 1, t->W, argument(t, A) + j * t->a[A].ld, t->K, argument(t, B),
                            t->a[B].ld, t->M, t->K, t->add);
        CHECK(memcmp(row, argument(t, T) + j * t->ld, size) == 0,
              "%s scores_by_dot: key %lld of %lld alone has other bits", t->k->name, (long long)j,
              (long long)t->nj);
    }
}

static double scores_by_dot_work(const struct trial *t)
{
    return 2.0 * (double)(t->nj * t->M * t->K);
}

/* ---- store_rows, dots, transpose ---- */

enum { MAX_ROWS = 5 };

static void draw_rows(struct trial *t)
{
    t->M = t->bench ? 1 : agc_rng_range(&t->random, 0, MAX_ROWS);
    t->n = t->bench ? 4096 : agc_rng_range(&t->random, 0, 600);
    t->add = sometimes(t);
    t->factor = between(t, -2, 2);
    make_array(t, A, false, t->M, t->n, t->n + (sometimes(t) ? 3 : 0), uniform);
}

static double row_elements(const struct trial *t)
{
    return (double)t->n;
}

/* factor_of: the factor of row r. factor_step: 0 if all rows have the same factor, as in about every third trial. */
static int64_t factor_step(const struct trial *t)
{
    return t->n % 3 != 0;
}

static double factor_of(const struct trial *t, int64_t r)
{
    return t->factor + 0.3 * (double)(r * factor_step(t));
}

static void draw_store_rows(struct trial *t)
{
    draw_rows(t);
    make_array(t, C, true, t->M, t->n, t->n + (sometimes(t) ? 5 : 0), t->add ? uniform : unset);
}

static void call_store_rows(const agi_kernels *k, struct trial *t)
{
    double factor[MAX_ROWS];
    for (int64_t r = 0; r < MAX_ROWS; r++) {
        factor[r] = factor_of(t, r);
    }
    k->store_rows(argument(t, C), t->a[C].ld, argument(t, A), t->a[A].ld, t->M, t->n, factor, factor_step(t),
                  t->add);
}

static void expect_store_rows(struct trial *t)
{
    for (int64_t r = 0; r < t->M; r++) {
        for (int64_t i = 0; i < t->n; i++) {
            const double to = t->add ? (double)*input_ptr(t, C, r, i) : 0,
                         from = (double)*input_ptr(t, A, r, i);
            expect(t, C, r, i, (wide)(real)(to + factor_of(t, r) * from), 0);
        }
    }
}

/* In place it gives the same bits. */
static void store_in_place(struct trial *t)
{
    double factor = t->factor;
    real row[600], twin[600];
    const size_t size = (size_t)t->n * sizeof(real);
    if (t->M == 0) {
        return;
    }
    memcpy(row, input_ptr(t, A, 0, 0), size);
    memcpy(twin, input_ptr(t, A, 0, 0), size);
    t->k->store_rows(row, t->n, row, t->n, 1, t->n, &factor, 0, t->add);
    t->k->store_rows(twin, t->n, input_ptr(t, A, 0, 0), t->n, 1, t->n, &factor, 0, t->add);
    CHECK(memcmp(row, twin, size) == 0, "%s store_rows of %lld numbers in place: other bits", t->k->name,
          (long long)t->n);
}

/* Sums of weights: near 1 and over the whole range of normal numbers; also infinity and NaN, which log2 returns. */
static void draw_log2_array(struct trial *t)
{
    t->n = t->bench ? 64 : agc_rng_range(&t->random, 0, 40);
    for (int64_t i = 0; i < t->n; i++) {
        const double near = 1 + between(t, -1, 1) * exp2(between(t, -52, 0) - 1);
        t->inputs[i] = sometimes(t) ? near : exp2(between(t, -1021, 1023));
        t->inputs[i] = t->bench || agc_rng_range(&t->random, 0, 9) > 0 ? t->inputs[i]
                       : sometimes(t)                                  ? INFINITY
                                                                       : NAN;
    }
}

static void call_log2_array(const agi_kernels *k, struct trial *t)
{
    t->results[t->n] = 7; /* must not be overwritten */
    k->log2_array(t->results, t->inputs, t->n);
}

static void expect_log2_array(struct trial *t)
{
    CHECK(t->results[t->n] == 7, "%s log2_array: writes after %lld numbers", t->k->name, (long long)t->n);
    for (int64_t i = 0; i < t->n; i++) {
        const double x = t->inputs[i], y = t->results[i];
        const wide truth = log2l((wide)x), error = fabsl((wide)y - truth);
        const bool right = x < INFINITY ? error <= 5e-16L * fabsl(truth) : x == y || (isnan(x) && isnan(y));
        CHECK(right, "%s log2_array: %.17g has %.17g instead of %.17g", t->k->name, x, y, (double)truth);
    }
}

static void draw_dots(struct trial *t)
{
    draw_rows(t);
    make_array(t, B, false, t->M, t->n, t->n + (sometimes(t) ? 5 : 0), uniform);
}

static void call_dots(const agi_kernels *k, struct trial *t)
{
    for (int64_t r = 0; r <= t->M; r++) {
        t->results[r] = 7; /* the last one must not be overwritten */
    }
    k->dots(t->results, argument(t, A), t->a[A].ld, argument(t, B), t->a[B].ld, t->M, t->n);
}

static void expect_dots(struct trial *t)
{
    CHECK(t->results[t->M] == 7, "%s dots: writes after %lld rows", t->k->name, (long long)t->M);
    for (int64_t r = 0; r < t->M; r++) {
        wide sum = 0, magnitude = 0;
        for (int64_t i = 0; i < t->n; i++) {
            sum += input(t, A, r, i) * input(t, B, r, i);
            magnitude += fabsl(input(t, A, r, i) * input(t, B, r, i));
        }
        CHECK(fabsl((wide)t->results[r] - sum) <= 4 * (wide)DBL_EPSILON * magnitude,
              "%s dots: row %lld of %lld numbers is %g", t->k->name, (long long)r, (long long)t->n,
              t->results[r]);
    }
}

static int64_t whole_vectors(const agi_kernels *k, int64_t n)
{
    return (n + k->lanes - 1) / k->lanes * k->lanes;
}

static void draw_transpose(struct trial *t)
{
    t->n = t->bench ? PANEL : agc_rng_range(&t->random, 0, PANEL);
    t->K = t->bench ? 64 : agc_rng_range(&t->random, 1, 70);
    make_array(t, A, false, t->n, t->K, t->K + (sometimes(t) ? 3 : 0), uniform);
    make_array(t, C, true, t->K, whole_vectors(t->k, t->n), PANEL, unset);
}

/* A kernel pads with zeros to whole vectors of its own width. The scalar table's are shorter: the rest of the zeros
 * is written here. */
static void call_transpose(const agi_kernels *k, struct trial *t)
{
    k->transpose(argument(t, C), argument(t, A), t->a[A].ld, t->n, t->K);
    for (int64_t r = whole_vectors(k, t->n); r < t->a[C].width; r++) {
        for (int64_t i = 0; i < t->K; i++) {
            argument(t, C)[i * PANEL + r] = 0;
        }
    }
}

static void expect_transpose(struct trial *t)
{
    for (int64_t r = 0; r < t->a[C].width; r++) {
        for (int64_t i = 0; i < t->K; i++) {
            expect(t, C, i, r, r < t->n ? input(t, A, r, i) : 0, 0);
        }
    }
}

static double transposed_elements(const struct trial *t)
{
    return (double)(t->n * t->K);
}

/* ---- dropout ---- */

/* Philox at counter (g / 4, p, head, sequence), word g % 4. */
static uint32_t dropout_word(const struct trial *t, int64_t j, int64_t i)
{
    const uint64_t g = (uint64_t)(t->g0 + j), p = (uint64_t)(t->p0 + i);
    const uint32_t counter[4] = {(uint32_t)(g / 4), (uint32_t)p, t->head, t->sequence};
    const uint32_t key[2] = {(uint32_t)t->seed, (uint32_t)(t->seed >> 32)};
    uint32_t word[4];
    agi_philox4x32_10(counter, key, word);
    return word[g % 4];
}

/* The threshold is one of the words itself, the smallest that is kept. */
static void draw_dropout(struct trial *t)
{
    const int64_t far = sometimes(t) ? INT64_C(1) << 40 : 200;
    draw_tile(t);
    t->g0 = agc_rng_range(&t->random, -far, far);
    t->p0 = agc_rng_range(&t->random, -far, far);
    t->seed = agc_rng_next(&t->random);
    t->head = (uint32_t)agc_rng_next(&t->random);
    t->sequence = (uint32_t)agc_rng_next(&t->random);
    t->threshold =
        dropout_word(t, agc_rng_range(&t->random, 0, t->nj - 1), agc_rng_range(&t->random, 0, t->W - 1));
    t->scale = (real)between(t, 1, 3);
    make_tile(t, M, true, unset);
}

static void call_dropout(const agi_kernels *k, struct trial *t)
{
    k->dropout(argument(t, M), t->ld, t->nj, t->W, t->g0, t->p0, t->head, t->sequence, t->seed, t->threshold,
               t->scale);
}

static void expect_dropout(struct trial *t)
{
    for (int64_t j = 0; j < t->nj; j++) {
        for (int64_t i = 0; i < t->W; i++) {
            expect(t, M, j, i, dropout_word(t, j, i) < t->threshold ? 0 : (wide)t->scale, 0);
        }
    }
}
