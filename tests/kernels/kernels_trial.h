/* One trial of a kernel: its arrays, each between guards, with NaN wherever nothing may be read; the results of plain
 * loops in long double, and the allowed errors. */
#ifndef AG_KERNELS_TRIAL_H
#define AG_KERNELS_TRIAL_H

#include <math.h>

#include "cpu/vec/kernels/kernels.h"
#include "check/rng.h"
#include "test.h"

typedef long double wide;

#ifdef AGI_REAL64
#define EPS ((wide)DBL_EPSILON)
#define EXP2_ERROR 1e-15L
#else
#define EPS ((wide)FLT_EPSILON)
#define EXP2_ERROR 2e-7L
#endif

/* The arrays of all kernels, with the names of kernels.h, except for four arrays of one element per lane: TOP is m, SUM
 * is l or sum, SHIFT is r, TSUM is a. */
/* clang-format off */
#define TRIAL_NAMES(NAME)                                                                                    \
    NAME(A) NAME(B) NAME(C) NAME(T) NAME(U) NAME(X) NAME(F) NAME(G) NAME(P) NAME(M) NAME(DP) NAME(TDP)       \
    NAME(TOP) NAME(SUM) NAME(SHIFT) NAME(TSUM) NAME(ALPHA) NAME(DELTA) NAME(HIGH) NAME(LOW) NAME(MU)         \
    NAME(D) NAME(TD) NAME(Y) NAME(Z) NAME(SMU)
enum {
#define TRIAL_NUMBER(name) name,
    TRIAL_NAMES(TRIAL_NUMBER)
    TRIAL_ARRAYS
};
static const char *const array_name[] = {
#define TRIAL_TEXT(name) #name,
    TRIAL_NAMES(TRIAL_TEXT)
};
/* clang-format on */

/* [rows][width] with ld elements from row to row. Its block of memory is `lead` elements, the array without the gap
 * after its last row, and `trail` elements. */
struct array {
    int64_t rows, width, ld;
    int64_t lead, trail;
    bool written;
    real *before, *after, *scalar; /* blocks: before the call, after it, after the call of the scalar table */
    wide *truth, *bound;           /* [rows][width]: what a written array must hold, and the allowed error */
};

struct trial {
    struct rng random;
    const agi_kernels *k;
    bool bench; /* a benchmark: a tile of usual shape, values that do not grow in repeated calls */
    struct array a[TRIAL_ARRAYS];

    int64_t nj, W, ld; /* of a tile */
    int64_t M, N, K;   /* of a product; */
    int64_t ars, aks;  /*   strides of A */
    int64_t n;         /* of rows */
    int64_t low, high; /* a band */
    int64_t g0, p0;    /* positions */
    uint32_t head, sequence, threshold;
    uint64_t seed;
    real scale, softcap, c;
    double factor;
    bool add;

    double result, scalar_result; /* what the call returned, if it returns a number */
    wide result_truth, result_bound;
    double inputs[64], results[65]; /* for kernels that read or write float64 */
};

/* ---- Drawing ---- */

static double between(struct trial *t, double low, double high)
{
    return low + (high - low) * agc_rng_uniform(&t->random);
}

/* For optional arrays and options: never in a benchmark, which measures the plain case. */
static bool sometimes(struct trial *t)
{
    return !t->bench && agc_rng_chance(&t->random, 0.5);
}

/* Uniformly distributed in [-2, 2). */
static real uniform(struct trial *t)
{
    return (real)between(t, -2, 2);
}

/* An element that others are multiplied by. */
static real factor(struct trial *t)
{
    return t->bench ? 1 : (real)between(t, 0.01, 1);
}

/* An element that the kernel must not read. */
static real unset(struct trial *t)
{
    (void)t;
    return (real)NAN;
}

/* ---- Arrays ---- */

static int64_t block_size(const struct array *a)
{
    return a->lead + (a->rows > 0 ? (a->rows - 1) * a->ld + a->width : 0) + a->trail;
}

/* Makes array n of the trial; its elements are drawn, the rest of its block is NaN. In half of the trials
 * it has no guard after it and ends where its memory ends, so that sanitizers detect reads past the end. */
static void make_array(struct trial *t, int n, bool written, int64_t rows, int64_t width, int64_t ld,
                       real (*draw)(struct trial *))
{
    struct array *a = &t->a[n];
    *a = (struct array){.rows = rows, .width = width, .ld = ld, .written = written};
    a->lead = t->bench ? 0 : agc_rng_range(&t->random, 1, 20);
    a->trail = agc_rng_chance(&t->random, 0.5) ? 40 : 0;
    const size_t size = (size_t)block_size(a), inner = (size_t)(rows * width);
    a->before = malloc((size + 1) * sizeof *a->before);
    a->after = malloc(size * sizeof *a->after + (size == 0));
    a->scalar = malloc((size + 1) * sizeof *a->scalar);
    a->truth = malloc((inner + 1) * sizeof *a->truth);
    a->bound = malloc((inner + 1) * sizeof *a->bound);
    test_need(a->before && a->after && a->scalar && a->truth && a->bound, "memory");
    for (size_t i = 0; i < size; i++) {
        a->before[i] = (real)NAN;
    }
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t i = 0; i < width; i++) {
            a->before[a->lead + r * ld + i] = draw(t);
        }
    }
}

/* make_tile: a tile of the trial's shape; make_lanes: one element per lane. */
static void make_tile(struct trial *t, int n, bool written, real (*draw)(struct trial *))
{
    make_array(t, n, written, t->nj, t->W, t->ld, draw);
}

static void make_lanes(struct trial *t, int n, bool written, real (*draw)(struct trial *))
{
    make_array(t, n, written, 1, t->W, t->W, draw);
}

static bool present(const struct trial *t, int n)
{
    return t->a[n].before != NULL;
}

/* input_ptr, input: an element of array n before the call; output: after it. */
static real *input_ptr(struct trial *t, int n, int64_t j, int64_t i)
{
    struct array *a = &t->a[n];
    return a->before + a->lead + j * a->ld + i;
}

static wide input(struct trial *t, int n, int64_t j, int64_t i)
{
    return (wide)*input_ptr(t, n, j, i);
}

static wide output(const struct trial *t, int n, int64_t j, int64_t i)
{
    const struct array *a = &t->a[n];
    return (wide)a->after[a->lead + j * a->ld + i];
}

/* Array n as an argument of a call. */
static real *argument(const struct trial *t, int n)
{
    return present(t, n) ? t->a[n].after + t->a[n].lead : NULL;
}

/* Sets what array n must hold; a bound of infinity allows anything. */
static void expect(struct trial *t, int n, int64_t j, int64_t i, wide truth, wide bound)
{
    const struct array *a = &t->a[n];
    a->truth[j * a->width + i] = truth;
    a->bound[j * a->width + i] = bound;
}

static void free_arrays(struct trial *t)
{
    for (int n = 0; n < TRIAL_ARRAYS; n++) {
        free(t->a[n].before);
        free(t->a[n].after);
        free(t->a[n].scalar);
        free(t->a[n].truth);
        free(t->a[n].bound);
    }
}

static void copy_arrays(struct trial *t)
{
    for (int n = 0; n < TRIAL_ARRAYS; n++) {
        if (present(t, n)) {
            memcpy(t->a[n].after, t->a[n].before, (size_t)block_size(&t->a[n]) * sizeof(real));
        }
    }
}

/* Keeps the results of the scalar table. */
static void keep_scalar(struct trial *t)
{
    t->scalar_result = t->result;
    for (int n = 0; n < TRIAL_ARRAYS; n++) {
        if (present(t, n)) {
            memcpy(t->a[n].scalar, t->a[n].after, (size_t)block_size(&t->a[n]) * sizeof(real));
        }
    }
}

/* All elements must stay as they were, unless a later expect() says otherwise. */
static void expect_unchanged(struct trial *t)
{
    for (int n = 0; n < TRIAL_ARRAYS; n++) {
        for (int64_t j = 0; present(t, n) && j < t->a[n].rows; j++) {
            for (int64_t i = 0; i < t->a[n].width; i++) {
                expect(t, n, j, i, input(t, n, j, i), 0);
            }
        }
    }
    t->result_truth = 0;
    t->result_bound = 0;
}

/* ---- Comparing ---- */

/* Not isinf: valgrind computes in double, in which the largest long double is infinite. */
static bool is_infinite(wide x)
{
    return fabsl(x) > (wide)REAL_MAX;
}

static bool is_near(wide got, wide truth, wide bound)
{
    return is_infinite(bound) || got == truth || (isnan(got) && isnan(truth)) || fabsl(got - truth) <= bound;
}

/* Checks that guards, gaps and arrays that are only read did not change by a bit. */
static void check_untouched(const struct trial *t, const char *entry, int n)
{
    const struct array *a = &t->a[n];
    for (int64_t i = 0; i < block_size(a); i++) {
        const int64_t from = i - a->lead, row = a->ld > 0 ? from / a->ld : 0;
        const bool inside = from >= 0 && row < a->rows && from - row * a->ld < a->width;
        if (!(inside && a->written) && memcmp(a->before + i, a->after + i, sizeof(real)) != 0) {
            CHECK(false, "%s %s: %s of %lld x %lld, ld %lld: number %lld, %s, became %g", t->k->name, entry,
                  array_name[n], (long long)a->rows, (long long)a->width, (long long)a->ld, (long long)from,
                  inside ? "an input" : "outside the array", (double)a->after[i]);
            return;
        }
    }
    CHECK(true, "untouched");
}

/* Compares a written array with the truth and with the scalar table's. */
static void check_written(const struct trial *t, const char *entry, int n)
{
    const struct array *a = &t->a[n];
    for (int64_t j = 0; j < a->rows; j++) {
        for (int64_t i = 0; i < a->width; i++) {
            const wide got = output(t, n, j, i), truth = a->truth[j * a->width + i];
            const wide bound = a->bound[j * a->width + i];
            const wide scalar = (wide)a->scalar[a->lead + j * a->ld + i];
            if (!is_near(got, truth, bound) || !is_near(got, scalar, 2 * bound)) {
                CHECK(false,
                      "%s %s: %s of %lld x %lld: [%lld][%lld] is %.17Lg, not %.17Lg (scalar %.17Lg) "
                      "within %.3Lg",
                      t->k->name, entry, array_name[n], (long long)a->rows, (long long)a->width, (long long)j,
                      (long long)i, got, truth, scalar, bound);
                return;
            }
        }
    }
    CHECK(true, "as expected");
}

static void check_arrays(const struct trial *t, const char *entry)
{
    for (int n = 0; n < TRIAL_ARRAYS; n++) {
        if (present(t, n)) {
            check_untouched(t, entry, n);
            if (t->a[n].written) {
                check_written(t, entry, n);
            }
        }
    }
    CHECK(is_near((wide)t->result, t->result_truth, t->result_bound) &&
              is_near((wide)t->result, (wide)t->scalar_result, 2 * t->result_bound),
          "%s %s: the result is %.17g, not %.17Lg (scalar %.17g) within %.3Lg", t->k->name, entry, t->result,
          t->result_truth, t->scalar_result, t->result_bound);
}

#endif
