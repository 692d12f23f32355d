/* Tests of the kernels that turn products into weights: scores, mask_band, softmax, softmax_tangent and weights. */
#include "kernels_tiles.h"

#define LOG2_E_WIDE 1.4426950408889634073599246810018921374L

/* m stays as long as no score exceeds it by more than this, in base-2 exponents: a weight is at most 2^8. */
enum { MAX_LAG = 8 };

/* ---- scores ---- */

static void draw_scores(struct trial *t)
{
    draw_tile(t);
    /* In a benchmark scale log2(e) = 1: repeated in place, the kernel does not change T. */
    t->scale = t->bench ? (real)(1 / LOG2_E_WIDE) : (real)between(t, 0.1, 10);
    t->softcap = sometimes(t) ? (real)between(t, 0.5, 30) : 0;
    make_tile(t, T, true, uniform);
    if (sometimes(t)) {
        make_tile(t, X, false, uniform_or_masked);
        set_nan_where(t, T, X, (real)-INFINITY);
    }
    if (sometimes(t)) {
        make_tile(t, F, true, uniform);
    }
    if (sometimes(t)) {
        make_tile(t, G, true, uniform);
    }
}

static void call_scores(const agi_kernels *k, struct trial *t)
{
    k->scores(argument(t, T), argument(t, X), argument(t, F), argument(t, G), t->ld, t->nj, t->W, t->scale,
              t->softcap);
}

/* phi(z) = c tanh(z / c) into *s, its error into *e; also expects phi' in F and phi'' in G, if present. */
static void expect_softcap(struct trial *t, int64_t j, int64_t i, wide z, wide *s, wide *e)
{
    const wide c = (wide)t->softcap, th = tanhl(z / c), th_error = 2 * EPS * fabsl(th);
    const wide phi1 = 1 / (coshl(z / c) * coshl(z / c));
    const wide phi1_error = phi1 * (EXP2_ERROR + 4 * EPS * (1 + fabsl(z / c))) + REAL_MIN;
    *s = c * th;
    *e = c * th_error + EPS * fabsl(*s);
    if (present(t, F)) {
        expect(t, F, j, i, phi1, phi1_error);
    }
    if (present(t, G)) {
        expect(t, G, j, i, -2 / c * th * phi1,
               2 / c * (th_error * phi1 + fabsl(th) * phi1_error + 2 * EPS * fabsl(th) * phi1));
    }
}

static void expect_score(struct trial *t, int64_t j, int64_t i)
{
    const wide z = (wide)t->scale * input(t, T, j, i);
    wide s = z, e = EPS * fabsl(z);
    if (t->softcap > 0) {
        expect_softcap(t, j, i, z, &s, &e);
    }
    if (present(t, X) && is_infinite(input(t, X, j, i))) {
        expect(t, T, j, i, -INFINITY, 0);
        if (t->softcap > 0 && present(t, F)) {
            expect(t, F, j, i, 0, 0);
        }
        if (t->softcap > 0 && present(t, G)) {
            expect(t, G, j, i, 0, INFINITY);
        }
        return;
    }
    if (present(t, X)) {
        e += EPS * (fabsl(s) + fabsl(input(t, X, j, i)));
        s += input(t, X, j, i);
    }
    expect(t, T, j, i, LOG2_E_WIDE * s, LOG2_E_WIDE * (e + 2 * EPS * fabsl(s)));
}

static void expect_scores(struct trial *t)
{
    for (int64_t j = 0; j < t->nj; j++) {
        for (int64_t i = 0; i < t->W; i++) {
            expect_score(t, j, i);
        }
    }
}

/* ---- mask_band ---- */

static void draw_mask_band(struct trial *t)
{
    draw_tile(t);
    t->low = sometimes(t) ? INT64_MIN / 4 : agc_rng_range(&t->random, -150, 150);
    t->high = sometimes(t) ? INT64_MAX / 4 : agc_rng_range(&t->random, -150, 150);
    make_tile(t, T, true, uniform_or_nan);
}

static void call_mask_band(const agi_kernels *k, struct trial *t)
{
    k->mask_band(argument(t, T), t->ld, t->nj, t->W, t->low, t->high);
}

static void expect_mask_band(struct trial *t)
{
    for (int64_t j = 0; j < t->nj; j++) {
        for (int64_t i = 0; i < t->W; i++) {
            if (j - i < t->low || j - i > t->high) {
                expect(t, T, j, i, -INFINITY, 0);
            }
        }
    }
}

/* ---- softmax, softmax_tangent ---- */

static real score(struct trial *t)
{
    return t->bench                          ? (real)between(t, -8, 0)
           : agc_rng_chance(&t->random, 0.2) ? (real)-INFINITY
                                             : (real)between(t, -20, 20);
}

static real zero(struct trial *t)
{
    (void)t;
    return 0;
}

static real positive(struct trial *t)
{
    return (real)between(t, 0.5, 100);
}

/* Lanes that continue a running softmax and lanes that start one (TOP = -infinity); in both, some see no key of this
 * tile. */
static void draw_online(struct trial *t)
{
    draw_tile(t);
    t->c = sometimes(t) ? (real)between(t, 0.05, 1.5) : 1;
    make_tile(t, T, true, score);
    make_lanes(t, TOP, true, t->bench ? zero : score);
    make_lanes(t, SUM, true, positive);
    make_lanes(t, ALPHA, true, unset);
    for (int64_t i = 0; i < t->W; i++) {
        if (*input_ptr(t, TOP, 0, i) == -INFINITY) {
            *input_ptr(t, SUM, 0, i) = 0;
        }
        const bool sees_none = !t->bench && agc_rng_chance(&t->random, 0.1);
        for (int64_t j = 0; sees_none && j < t->nj; j++) {
            *input_ptr(t, T, j, i) = (real)-INFINITY;
        }
    }
}

static void draw_softmax(struct trial *t)
{
    draw_online(t);
    if (sometimes(t)) {
        *input_ptr(t, T, agc_rng_range(&t->random, 0, t->nj - 1), agc_rng_range(&t->random, 0, t->W - 1)) =
            (real)NAN;
    }
}

static void call_softmax(const agi_kernels *k, struct trial *t)
{
    t->result = k->softmax(argument(t, T), t->ld, t->nj, t->W, t->c, argument(t, TOP), argument(t, SUM),
                           argument(t, ALPHA))
                    ? 1.0
                    : 0.0;
}

/* A lane with a NaN score: its sum and the weight of that score are NaN; the rest may be anything. */
static bool expect_nan_lane(struct trial *t, int64_t i)
{
    bool found = false;
    for (int64_t j = 0; j < t->nj; j++) {
        found |= isnan(*input_ptr(t, T, j, i));
    }
    for (int64_t j = 0; found && j < t->nj; j++) {
        expect(t, T, j, i, NAN, isnan(*input_ptr(t, T, j, i)) ? 0 : INFINITY);
    }
    if (found) {
        expect(t, SUM, 0, i, NAN, 0);
        expect(t, TOP, 0, i, 0, INFINITY);
        expect(t, ALPHA, 0, i, 0, INFINITY);
        t->result_bound = INFINITY;
    }
    return found;
}

/* The running maximum m (TOP) of a lane moves to the largest new score, or stays if no score exceeds it by more than
 * MAX_LAG. Returns the row of that largest score if m moved, else -1. */
static int64_t expect_running_max(struct trial *t, int64_t i)
{
    const wide before = input(t, TOP, 0, i), after = output(t, TOP, 0, i);
    wide top = -INFINITY;
    int64_t argmax = -1;
    for (int64_t j = 0; j < t->nj; j++) {
        const wide x = (wide)t->c * input(t, T, j, i);
        argmax = x > top ? j : argmax;
        top = x > top ? x : top;
    }
    if (top > before && (after != before || top > before + MAX_LAG)) {
        expect(t, TOP, 0, i, top, EPS * fabsl(top));
        return argmax;
    }
    expect(t, TOP, 0, i, before, 0);
    return -1;
}

/* Weights, SUM and ALPHA of a lane, from the running maximum that the kernel chose. grew: whether it moved. */
static void expect_lane(struct trial *t, int64_t i, bool grew)
{
    const wide before = input(t, TOP, 0, i), after = output(t, TOP, 0, i),
               shift = is_infinite(after) ? 0 : after;
    const wide alpha = grew ? exp2l(before - after) : 1, l = input(t, SUM, 0, i);
    const wide alpha_error = grew ? exp2_bound(before - after, EPS * fabsl(before - after)) : 0;
    wide sum = l * alpha, error = l * alpha_error;
    for (int64_t j = 0; j < t->nj; j++) {
        const wide x = (wide)t->c * input(t, T, j, i) - shift;
        const wide d = exp2_bound(x, EPS * (fabsl(x + shift) + fabsl(x)));
        expect(t, T, j, i, exp2l(x), d);
        sum += exp2l(x);
        error += d;
    }
    expect(t, ALPHA, 0, i, alpha, alpha_error);
    expect(t, SUM, 0, i, sum, error + 8 * EPS * sum);
}

/* The kernel returns whether any sum has to be rescaled: m grew in a lane that had already seen a key. */
static void expect_rescaled(struct trial *t, int64_t i, bool grew)
{
    t->result_truth = grew && !is_infinite(input(t, TOP, 0, i)) ? 1 : t->result_truth;
}

static void expect_softmax(struct trial *t)
{
    for (int64_t i = 0; i < t->W; i++) {
        if (!expect_nan_lane(t, i)) {
            const bool grew = expect_running_max(t, i) >= 0;
            expect_lane(t, i, grew);
            expect_rescaled(t, i, grew);
        }
    }
}

static void draw_softmax_tangent(struct trial *t)
{
    draw_online(t);
    make_tile(t, U, true, uniform);
    set_nan_where(t, U, T, (real)-INFINITY);
    make_lanes(t, SHIFT, true, uniform);
    make_lanes(t, TSUM, true, uniform);
    make_lanes(t, DELTA, true, unset);
    for (int64_t i = 0; i < t->W; i++) {
        if (*input_ptr(t, TOP, 0, i) == -INFINITY) {
            *input_ptr(t, SHIFT, 0, i) = *input_ptr(t, TSUM, 0, i) = 0;
        }
    }
}

static void call_softmax_tangent(const agi_kernels *k, struct trial *t)
{
    t->result = k->softmax_tangent(argument(t, T), argument(t, U), t->ld, t->nj, t->W, t->c, argument(t, TOP),
                                   argument(t, SUM), argument(t, SHIFT), argument(t, TSUM),
                                   argument(t, ALPHA), argument(t, DELTA))
                    ? 1.0
                    : 0.0;
}

/* U, SHIFT (r), TSUM (a) and DELTA of a lane, after expect_lane has set the expected weights and ALPHA. */
static void expect_tangent_lane(struct trial *t, int64_t i, int64_t argmax)
{
    const wide r = input(t, SHIFT, 0, i), after = argmax >= 0 ? input(t, U, argmax, i) : r, delta = r - after;
    const wide l = input(t, SUM, 0, i), a = input(t, TSUM, 0, i);
    const wide alpha = t->a[ALPHA].truth[i], alpha_error = t->a[ALPHA].bound[i];
    const wide moved = fabsl(a) + fabsl(delta) * l;
    wide sum = (a + delta * l) * alpha, magnitude = moved * alpha, error = moved * alpha_error;
    for (int64_t j = 0; j < t->nj; j++) {
        const wide p = t->a[T].truth[j * t->W + i], d = t->a[T].bound[j * t->W + i];
        const wide u = p > 0 ? input(t, U, j, i) - after : 0;
        expect(t, U, j, i, p * u, fabsl(u) * (d + 2 * EPS * p));
        sum += p * u;
        magnitude += fabsl(p * u);
        error += fabsl(u) * d;
    }
    expect(t, SHIFT, 0, i, after, 0);
    expect(t, DELTA, 0, i, delta, EPS * fabsl(delta));
    expect(t, TSUM, 0, i, sum, error + 8 * EPS * magnitude);
}

static void expect_softmax_tangent(struct trial *t)
{
    for (int64_t i = 0; i < t->W; i++) {
        const int64_t argmax = expect_running_max(t, i);
        expect_lane(t, i, argmax >= 0);
        expect_tangent_lane(t, i, argmax);
        expect_rescaled(t, i, argmax >= 0);
    }
}

/* softmax_tangent gives the same bits as softmax in what both compute: jvp's O is forward's. */
static void same_as_softmax(struct trial *t)
{
    struct trial plain = *t;
    const int shared[] = {T, TOP, SUM, ALPHA};
    for (size_t s = 0; s < sizeof shared / sizeof shared[0]; s++) {
        const size_t bytes = (size_t)block_size(&t->a[shared[s]]) * sizeof(real);
        plain.a[shared[s]].after = malloc(bytes);
        test_need(plain.a[shared[s]].after != NULL, "memory");
        memcpy(plain.a[shared[s]].after, t->a[shared[s]].before, bytes);
    }
    call_softmax(t->k, &plain);
    CHECK(plain.result == t->result, "%s softmax gives %g, with tangents %g", t->k->name, plain.result,
          t->result);
    for (size_t s = 0; s < sizeof shared / sizeof shared[0]; s++) {
        real *after = plain.a[shared[s]].after;
        CHECK(memcmp(after, t->a[shared[s]].after, (size_t)block_size(&t->a[shared[s]]) * sizeof(real)) == 0,
              "%s softmax: %s has other bits with tangents", t->k->name, array_name[shared[s]]);
        free(after);
    }
}

/* ---- weights ---- */

/* Exponents of a weight: most are finite, from 1.1 log2(REAL_MIN), where 2^x underflows, up to 8; some are -infinity,
 * some NaN, some so large that 2^x overflows. */
static real exponent(struct trial *t)
{
    const double least = (double)log2l((wide)REAL_MIN);
    if (t->bench) {
        return (real)between(t, -20, 0);
    }
    const double kind = between(t, 0, 1);
    return kind < 0.1    ? (real)-INFINITY
           : kind < 0.12 ? (real)NAN
           : kind < 0.14 ? (real)(3 * -least)
                         : (real)between(t, kind < 0.6 ? 1.1 * least : -8, 8);
}

static real small(struct trial *t)
{
    return (real)between(t, -1e-6, 1e-6);
}

/* For the benchmark, which repeats the kernel in place: x -> 2^(x - 2) converges to 0.31, a normal number. */
static real fixed_two(struct trial *t)
{
    (void)t;
    return 2;
}

static void draw_weights(struct trial *t)
{
    draw_tile(t);
    const bool bare = sometimes(t); /* 2^T alone: the error of exp2 itself */
    t->c = bare || t->bench ? 1 : (real)between(t, 0.5, 1.5);
    make_tile(t, T, true, exponent);
    make_lanes(t, HIGH, false, bare ? zero : t->bench ? fixed_two : uniform);
    make_lanes(t, LOW, false, bare ? zero : small);
}

static void call_weights(const agi_kernels *k, struct trial *t)
{
    k->weights(argument(t, T), t->ld, t->nj, t->W, t->c, argument(t, HIGH), argument(t, LOW));
}

static void expect_weights(struct trial *t)
{
    for (int64_t j = 0; j < t->nj; j++) {
        for (int64_t i = 0; i < t->W; i++) {
            const wide high = input(t, HIGH, 0, i), low = input(t, LOW, 0, i),
                       s = (wide)t->c * input(t, T, j, i);
            const wide x = s - high - low;
            const wide d = EPS * ((t->c == 1 ? 0 : fabsl(s)) + (high == 0 ? 0 : 2 * fabsl(x)));
            const bool overflows = exp2l(x) > (wide)REAL_MAX;
            expect(t, T, j, i, overflows ? INFINITY : exp2l(x), overflows ? 0 : exp2_bound(x, d));
        }
    }
}
