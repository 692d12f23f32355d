/* The entries that go from products to weights: inputs, calls and expected results of scores, mask_band,
 * softmax, softmax_tangent and weights. */
#include "kernels_tiles.h"

#define LOG2_E_WIDE 1.4426950408889634073599246810018921374L

/* Powers of two by which a column may exceed its shift before the shift follows. */
enum { MAX_LAG = 8 };

/* ---- scores ---- */

static void draw_scores(struct trial *t)
{
    draw_tile(t);
    t->scale = t->bench ? (real)(1 / LOG2_E_WIDE) : (real)between(t, 0.1, 10);
    t->softcap = sometimes(t) ? (real)between(t, 0.5, 30) : 0;
    make_tile(t, T, true, number);
    if (sometimes(t)) {
        make_tile(t, X, false, number_or_masked);
        spoil(t, T, X, (real)-INFINITY);
    }
    if (sometimes(t)) {
        make_tile(t, F, true, number);
    }
    if (sometimes(t)) {
        make_tile(t, G, true, number);
    }
}

static void call_scores(const agi_kernels *k, struct trial *t)
{
    k->scores(at(t, T), at(t, X), at(t, F), at(t, G), t->ld, t->nj, t->W, t->scale, t->softcap);
}

/* phi(z) = c tanh(z / c) into *s, its error into *e; phi' and phi'' where they are wanted. */
static void expect_softcap(struct trial *t, int64_t j, int64_t i, wide z, wide *s, wide *e)
{
    const wide c = (wide)t->softcap, th = tanhl(z / c), th_error = 2 * EPS * fabsl(th);
    const wide phi1 = 1 / (coshl(z / c) * coshl(z / c));
    const wide phi1_error = phi1 * (EXP2_ERROR + 4 * EPS * (1 + fabsl(z / c))) + REAL_MIN;
    *s = c * th;
    *e = c * th_error + EPS * fabsl(*s);
    if (there(t, F)) {
        expect(t, F, j, i, phi1, phi1_error);
    }
    if (there(t, G)) {
        expect(t, G, j, i, -2 / c * th * phi1,
               2 / c * (th_error * phi1 + fabsl(th) * phi1_error + 2 * EPS * fabsl(th) * phi1));
    }
}

static void expect_score(struct trial *t, int64_t j, int64_t i)
{
    const wide z = (wide)t->scale * in(t, T, j, i);
    wide s = z, e = EPS * fabsl(z);
    if (t->softcap > 0) {
        expect_softcap(t, j, i, z, &s, &e);
    }
    if (there(t, X) && is_infinite(in(t, X, j, i))) {
        expect(t, T, j, i, -INFINITY, 0);
        if (t->softcap > 0 && there(t, F)) {
            expect(t, F, j, i, 0, 0);
        }
        if (t->softcap > 0 && there(t, G)) {
            expect(t, G, j, i, 0, INFINITY);
        }
        return;
    }
    if (there(t, X)) {
        e += EPS * (fabsl(s) + fabsl(in(t, X, j, i)));
        s += in(t, X, j, i);
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
    make_tile(t, T, true, number_or_nan);
}

static void call_mask_band(const agi_kernels *k, struct trial *t)
{
    k->mask_band(at(t, T), t->ld, t->nj, t->W, t->low, t->high);
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

/* Lanes in the middle of their sums and lanes that have seen nothing; some of either see nothing now. */
static void draw_online(struct trial *t)
{
    draw_tile(t);
    t->c = sometimes(t) ? (real)between(t, 0.05, 1.5) : 1;
    make_tile(t, T, true, score);
    make_lanes(t, TOP, true, t->bench ? zero : score);
    make_lanes(t, SUM, true, positive);
    make_lanes(t, ALPHA, true, nothing);
    for (int64_t i = 0; i < t->W; i++) {
        if (*given(t, TOP, 0, i) == -INFINITY) {
            *given(t, SUM, 0, i) = 0;
        }
        const bool sees_none = !t->bench && agc_rng_chance(&t->random, 0.1);
        for (int64_t j = 0; sees_none && j < t->nj; j++) {
            *given(t, T, j, i) = (real)-INFINITY;
        }
    }
}

static void draw_softmax(struct trial *t)
{
    draw_online(t);
    if (sometimes(t)) {
        *given(t, T, agc_rng_range(&t->random, 0, t->nj - 1), agc_rng_range(&t->random, 0, t->W - 1)) =
            (real)NAN;
    }
}

static void call_softmax(const agi_kernels *k, struct trial *t)
{
    t->result =
        k->softmax(at(t, T), t->ld, t->nj, t->W, t->c, at(t, TOP), at(t, SUM), at(t, ALPHA)) ? 1.0 : 0.0;
}

/* A lane with NaN: its sum is NaN, and so is the weight; the rest may be anything. */
static bool expect_nan_lane(struct trial *t, int64_t i)
{
    bool found = false;
    for (int64_t j = 0; j < t->nj; j++) {
        found |= isnan(*given(t, T, j, i));
    }
    for (int64_t j = 0; found && j < t->nj; j++) {
        expect(t, T, j, i, NAN, isnan(*given(t, T, j, i)) ? 0 : INFINITY);
    }
    if (found) {
        expect(t, SUM, 0, i, NAN, 0);
        expect(t, TOP, 0, i, 0, INFINITY);
        expect(t, ALPHA, 0, i, 0, INFINITY);
        t->result_bound = INFINITY;
    }
    return found;
}

/* The shift of a lane follows its column's maximum, or stays where the maximum is no more than MAX_LAG
 * above it. Gives the number of the highest row where it follows, else -1. */
static int64_t expect_shift(struct trial *t, int64_t i)
{
    const wide before = in(t, TOP, 0, i), after = out(t, TOP, 0, i);
    wide top = -INFINITY;
    int64_t highest = -1;
    for (int64_t j = 0; j < t->nj; j++) {
        const wide x = (wide)t->c * in(t, T, j, i);
        highest = x > top ? j : highest;
        top = x > top ? x : top;
    }
    if (top > before && (after != before || top > before + MAX_LAG)) {
        expect(t, TOP, 0, i, top, EPS * fabsl(top));
        return highest;
    }
    expect(t, TOP, 0, i, before, 0);
    return -1;
}

/* Weights, sum and factor of a lane, from the shift that the kernel chose. */
static void expect_lane(struct trial *t, int64_t i, bool grew)
{
    const wide before = in(t, TOP, 0, i), after = out(t, TOP, 0, i), shift = is_infinite(after) ? 0 : after;
    const wide alpha = grew ? exp2l(before - after) : 1, l = in(t, SUM, 0, i);
    const wide alpha_error = grew ? exp2_bound(before - after, EPS * fabsl(before - after)) : 0;
    wide sum = l * alpha, error = l * alpha_error;
    for (int64_t j = 0; j < t->nj; j++) {
        const wide x = (wide)t->c * in(t, T, j, i) - shift;
        const wide d = exp2_bound(x, EPS * (fabsl(x + shift) + fabsl(x)));
        expect(t, T, j, i, exp2l(x), d);
        sum += exp2l(x);
        error += d;
    }
    expect(t, ALPHA, 0, i, alpha, alpha_error);
    expect(t, SUM, 0, i, sum, error + 8 * EPS * sum);
}

/* Sums are multiplied only in a lane that had seen something. */
static void expect_rescaled(struct trial *t, int64_t i, bool grew)
{
    t->result_truth = grew && !is_infinite(in(t, TOP, 0, i)) ? 1 : t->result_truth;
}

static void expect_softmax(struct trial *t)
{
    for (int64_t i = 0; i < t->W; i++) {
        if (!expect_nan_lane(t, i)) {
            const bool grew = expect_shift(t, i) >= 0;
            expect_lane(t, i, grew);
            expect_rescaled(t, i, grew);
        }
    }
}

static void draw_softmax_tangent(struct trial *t)
{
    draw_online(t);
    make_tile(t, U, true, number);
    spoil(t, U, T, (real)-INFINITY);
    make_lanes(t, SHIFT, true, number);
    make_lanes(t, TSUM, true, number);
    make_lanes(t, DELTA, true, nothing);
    for (int64_t i = 0; i < t->W; i++) {
        if (*given(t, TOP, 0, i) == -INFINITY) {
            *given(t, SHIFT, 0, i) = *given(t, TSUM, 0, i) = 0;
        }
    }
}

static void call_softmax_tangent(const agi_kernels *k, struct trial *t)
{
    t->result = k->softmax_tangent(at(t, T), at(t, U), t->ld, t->nj, t->W, t->c, at(t, TOP), at(t, SUM),
                                   at(t, SHIFT), at(t, TSUM), at(t, ALPHA), at(t, DELTA))
                    ? 1.0
                    : 0.0;
}

/* U, r, a and delta of a lane whose other numbers have been expected. */
static void expect_tangent_lane(struct trial *t, int64_t i, int64_t highest)
{
    const wide r = in(t, SHIFT, 0, i), after = highest >= 0 ? in(t, U, highest, i) : r, delta = r - after;
    const wide l = in(t, SUM, 0, i), a = in(t, TSUM, 0, i);
    const wide alpha = t->a[ALPHA].truth[i], alpha_error = t->a[ALPHA].bound[i];
    const wide moved = fabsl(a) + fabsl(delta) * l;
    wide sum = (a + delta * l) * alpha, size = moved * alpha, error = moved * alpha_error;
    for (int64_t j = 0; j < t->nj; j++) {
        const wide p = t->a[T].truth[j * t->W + i], d = t->a[T].bound[j * t->W + i];
        const wide u = p > 0 ? in(t, U, j, i) - after : 0;
        expect(t, U, j, i, p * u, fabsl(u) * (d + 2 * EPS * p));
        sum += p * u;
        size += fabsl(p * u);
        error += fabsl(u) * d;
    }
    expect(t, SHIFT, 0, i, after, 0);
    expect(t, DELTA, 0, i, delta, EPS * fabsl(delta));
    expect(t, TSUM, 0, i, sum, error + 8 * EPS * size);
}

static void expect_softmax_tangent(struct trial *t)
{
    for (int64_t i = 0; i < t->W; i++) {
        const int64_t highest = expect_shift(t, i);
        expect_lane(t, i, highest >= 0);
        expect_tangent_lane(t, i, highest);
        expect_rescaled(t, i, highest >= 0);
    }
}

/* What both softmaxes compute has the same bits: jvp's O is forward's. */
static void softmax_again(struct trial *t)
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

/* From below the least power to a little above 1, some infinite, some NaN, some beyond all numbers. */
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

/* 2^(T - 2) again and again goes to 0.3. */
static real two(struct trial *t)
{
    (void)t;
    return 2;
}

static void draw_weights(struct trial *t)
{
    draw_tile(t);
    const bool bare = sometimes(t); /* 2^T and nothing else: the bare error of the power */
    t->c = bare || t->bench ? 1 : (real)between(t, 0.5, 1.5);
    make_tile(t, T, true, exponent);
    make_lanes(t, HIGH, false, bare ? zero : t->bench ? two : number);
    make_lanes(t, LOW, false, bare ? zero : small);
}

static void call_weights(const agi_kernels *k, struct trial *t)
{
    k->weights(at(t, T), t->ld, t->nj, t->W, t->c, at(t, HIGH), at(t, LOW));
}

static void expect_weights(struct trial *t)
{
    for (int64_t j = 0; j < t->nj; j++) {
        for (int64_t i = 0; i < t->W; i++) {
            const wide high = in(t, HIGH, 0, i), low = in(t, LOW, 0, i), s = (wide)t->c * in(t, T, j, i);
            const wide x = s - high - low;
            const wide d = EPS * ((t->c == 1 ? 0 : fabsl(s)) + (high == 0 ? 0 : 2 * fabsl(x)));
            const bool beyond = exp2l(x) > (wide)REAL_MAX;
            expect(t, T, j, i, beyond ? INFINITY : exp2l(x), beyond ? 0 : exp2_bound(x, d));
        }
    }
}
