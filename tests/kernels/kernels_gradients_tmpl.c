/* The entries that work on weights and gradients: inputs, calls and expected results of score_tangents,
 * score_gradients, score_gradient_tangents, softcap_gradients and multiply. */
#include "kernels_tiles.h"

/* ---- score_tangents ---- */

static void draw_score_tangents(struct trial *t)
{
    draw_tile(t);
    t->scale = (real)between(t, 0.1, 0.9);
    make_tile(t, U, true, number);
    if (sometimes(t)) {
        make_tile(t, F, false, factor);
    }
    if (sometimes(t)) {
        make_tile(t, G, true, number);
    }
    if (t->bench || sometimes(t)) {
        make_tile(t, X, false, number);
    }
}

static void call_score_tangents(const agi_kernels *k, struct trial *t)
{
    k->score_tangents(at(t, U), at(t, F), at(t, G), at(t, X), t->ld, t->nj, t->W, t->scale);
}

static void expect_score_tangents(struct trial *t)
{
    for (int64_t j = 0; j < t->nj; j++) {
        for (int64_t i = 0; i < t->W; i++) {
            const wide u = (wide)t->scale * in(t, U, j, i), f = there(t, F) ? in(t, F, j, i) : 1;
            const wide x = there(t, X) ? in(t, X, j, i) : 0;
            expect(t, U, j, i, f * u + x, 2 * EPS * (fabsl(f * u) + fabsl(x)));
            if (there(t, G)) {
                const wide g = in(t, G, j, i) * u;
                expect(t, G, j, i, g, 2 * EPS * fabsl(g));
            }
        }
    }
}

/* ---- score_gradients, score_gradient_tangents ---- */

static void draw_score_gradients(struct trial *t)
{
    draw_tile(t);
    make_tile(t, P, false, weight);
    make_tile(t, DP, true, number);
    make_lanes(t, D, false, number);
    spoil(t, DP, P, 0);
    if (sometimes(t)) {
        make_tile(t, M, false, dropped);
    }
}

static void call_score_gradients(const agi_kernels *k, struct trial *t)
{
    k->score_gradients(at(t, DP), at(t, P), at(t, M), t->ld, t->nj, t->W, at(t, D));
}

static void expect_score_gradients(struct trial *t)
{
    for (int64_t j = 0; j < t->nj; j++) {
        for (int64_t i = 0; i < t->W; i++) {
            const wide p = in(t, P, j, i), m = there(t, M) ? in(t, M, j, i) : 1;
            const wide dp = p > 0 ? in(t, DP, j, i) * m : 0, row = in(t, D, 0, i);
            expect(t, DP, j, i, p * (dp - row), 3 * EPS * p * (fabsl(dp) + fabsl(row)));
        }
    }
}

static void draw_score_gradient_tangents(struct trial *t)
{
    draw_score_gradients(t);
    t->a[P].written = true;
    make_tile(t, U, true, number);
    make_tile(t, TDP, true, number);
    make_lanes(t, MU, false, number);
    make_lanes(t, TD, false, number);
    spoil(t, U, P, 0);
    spoil(t, TDP, P, 0);
}

static void call_score_gradient_tangents(const agi_kernels *k, struct trial *t)
{
    k->score_gradient_tangents(at(t, P), at(t, U), at(t, DP), at(t, TDP), at(t, M), t->ld, t->nj, t->W,
                               at(t, MU), at(t, D), at(t, TD));
}

static void expect_score_gradient_tangents(struct trial *t)
{
    expect_score_gradients(t);
    for (int64_t j = 0; j < t->nj; j++) {
        for (int64_t i = 0; i < t->W; i++) {
            const wide p = in(t, P, j, i), m = there(t, M) ? in(t, M, j, i) : 1;
            const wide mu = in(t, MU, 0, i), row = in(t, D, 0, i), trow = in(t, TD, 0, i);
            const wide u = p > 0 ? in(t, U, j, i) : 0, dp = p > 0 ? in(t, DP, j, i) * m : 0;
            const wide tdp = p > 0 ? in(t, TDP, j, i) * m : 0;
            const wide size = (fabsl(u) + fabsl(mu)) * (fabsl(dp) + fabsl(row)) + fabsl(tdp) + fabsl(trow);
            expect(t, TDP, j, i, p * ((u - mu) * (dp - row) + tdp - trow), 5 * EPS * p * size);
            expect(t, U, j, i, p * (u - mu) * m, 3 * EPS * p * m * (fabsl(u) + fabsl(mu)));
            expect(t, P, j, i, p * m, EPS * p * m);
        }
    }
}

/* ---- softcap_gradients ---- */

static void draw_softcap_gradients(struct trial *t)
{
    draw_tile(t);
    make_tile(t, F, false, weight);
    make_tile(t, DP, true, number);
    spoil(t, DP, F, 0);
    if (sometimes(t)) {
        make_tile(t, TDP, true, number);
        make_tile(t, G, false, number);
        spoil(t, TDP, F, 0);
        spoil(t, G, F, 0);
    }
}

static void call_softcap_gradients(const agi_kernels *k, struct trial *t)
{
    k->softcap_gradients(at(t, DP), at(t, TDP), at(t, F), at(t, G), t->ld, t->nj, t->W);
}

static void expect_softcap_gradients(struct trial *t)
{
    for (int64_t j = 0; j < t->nj; j++) {
        for (int64_t i = 0; i < t->W; i++) {
            const wide f = in(t, F, j, i), d = f > 0 ? in(t, DP, j, i) : 0;
            expect(t, DP, j, i, f * d, EPS * fabsl(f * d));
            if (there(t, TDP)) {
                const wide td = f > 0 ? f * in(t, TDP, j, i) : 0, g = f > 0 ? d * in(t, G, j, i) : 0;
                expect(t, TDP, j, i, td + g, 2 * EPS * (fabsl(td) + fabsl(g)));
            }
        }
    }
}

/* ---- multiply ---- */

static void draw_multiply(struct trial *t)
{
    draw_tile(t);
    make_tile(t, T, true, number);
    make_tile(t, M, false, factor);
}

static void call_multiply(const agi_kernels *k, struct trial *t)
{
    k->multiply(at(t, T), at(t, M), t->ld, t->nj, t->W);
}

static void expect_multiply(struct trial *t)
{
    for (int64_t j = 0; j < t->nj; j++) {
        for (int64_t i = 0; i < t->W; i++) {
            expect(t, T, j, i, (wide)(real)(*given(t, T, j, i) * *given(t, M, j, i)), 0);
        }
    }
}
