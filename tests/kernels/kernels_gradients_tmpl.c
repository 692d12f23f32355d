/* Tests of the kernels on weights and gradients: score_tangents, score_gradients, score_gradient_tangents,
 * softcap_gradients and multiply. */
#include "kernels_tiles.h"

/* ---- score_tangents ---- */

static void draw_score_tangents(struct trial *t)
{
    draw_tile(t);
    t->scale = (real)between(t, 0.1, 0.9);
    make_tile(t, U, true, uniform);
    if (sometimes(t)) {
        make_tile(t, F, false, factor);
    }
    if (sometimes(t)) {
        make_tile(t, G, true, uniform);
    }
    if (t->bench || sometimes(t)) {
        make_tile(t, X, false, uniform);
    }
}

static void call_score_tangents(const agi_kernels *k, struct trial *t)
{
    k->score_tangents(argument(t, U), argument(t, F), argument(t, G), argument(t, X), t->ld, t->nj, t->W,
                      t->scale);
}

static void expect_score_tangents(struct trial *t)
{
    for (int64_t j = 0; j < t->nj; j++) {
        for (int64_t i = 0; i < t->W; i++) {
            const wide u = (wide)t->scale * input(t, U, j, i), f = present(t, F) ? input(t, F, j, i) : 1;
            const wide x = present(t, X) ? input(t, X, j, i) : 0;
            expect(t, U, j, i, f * u + x, 2 * EPS * (fabsl(f * u) + fabsl(x)));
            if (present(t, G)) {
                const wide g = input(t, G, j, i) * u;
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
    make_tile(t, DP, true, uniform);
    make_lanes(t, D, false, uniform);
    set_nan_where(t, DP, P, 0);
    if (sometimes(t)) {
        make_tile(t, M, false, dropped);
    }
}

static void call_score_gradients(const agi_kernels *k, struct trial *t)
{
    k->score_gradients(argument(t, DP), argument(t, P), argument(t, M), t->ld, t->nj, t->W, argument(t, D));
}

static void expect_score_gradients(struct trial *t)
{
    for (int64_t j = 0; j < t->nj; j++) {
        for (int64_t i = 0; i < t->W; i++) {
            const wide p = input(t, P, j, i), m = present(t, M) ? input(t, M, j, i) : 1;
            const wide dp = p > 0 ? input(t, DP, j, i) * m : 0, D_i = input(t, D, 0, i);
            expect(t, DP, j, i, p * (dp - D_i), 3 * EPS * p * (fabsl(dp) + fabsl(D_i)));
        }
    }
}

static void draw_score_gradient_tangents(struct trial *t)
{
    draw_score_gradients(t);
    t->a[P].written = true;
    make_tile(t, U, true, uniform);
    make_tile(t, TDP, true, uniform);
    make_lanes(t, MU, false, uniform);
    make_lanes(t, TD, false, uniform);
    set_nan_where(t, U, P, 0);
    set_nan_where(t, TDP, P, 0);
}

static void call_score_gradient_tangents(const agi_kernels *k, struct trial *t)
{
    k->score_gradient_tangents(argument(t, P), argument(t, U), argument(t, DP), argument(t, TDP),
                               argument(t, M), t->ld, t->nj, t->W, argument(t, MU), argument(t, D),
                               argument(t, TD));
}

static void expect_score_gradient_tangents(struct trial *t)
{
    expect_score_gradients(t);
    for (int64_t j = 0; j < t->nj; j++) {
        for (int64_t i = 0; i < t->W; i++) {
            const wide p = input(t, P, j, i), m = present(t, M) ? input(t, M, j, i) : 1;
            const wide mu = input(t, MU, 0, i), D_i = input(t, D, 0, i), tD_i = input(t, TD, 0, i);
            const wide u = p > 0 ? input(t, U, j, i) : 0, dp = p > 0 ? input(t, DP, j, i) * m : 0;
            const wide tdp = p > 0 ? input(t, TDP, j, i) * m : 0;
            const wide magnitude =
                (fabsl(u) + fabsl(mu)) * (fabsl(dp) + fabsl(D_i)) + fabsl(tdp) + fabsl(tD_i);
            expect(t, TDP, j, i, p * ((u - mu) * (dp - D_i) + tdp - tD_i), 5 * EPS * p * magnitude);
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
    make_tile(t, DP, true, uniform);
    set_nan_where(t, DP, F, 0);
    if (sometimes(t)) {
        make_tile(t, TDP, true, uniform);
        make_tile(t, G, false, uniform);
        set_nan_where(t, TDP, F, 0);
        set_nan_where(t, G, F, 0);
    }
}

static void call_softcap_gradients(const agi_kernels *k, struct trial *t)
{
    k->softcap_gradients(argument(t, DP), argument(t, TDP), argument(t, F), argument(t, G), t->ld, t->nj,
                         t->W);
}

static void expect_softcap_gradients(struct trial *t)
{
    for (int64_t j = 0; j < t->nj; j++) {
        for (int64_t i = 0; i < t->W; i++) {
            const wide f = input(t, F, j, i), d = f > 0 ? input(t, DP, j, i) : 0;
            expect(t, DP, j, i, f * d, EPS * fabsl(f * d));
            if (present(t, TDP)) {
                const wide td = f > 0 ? f * input(t, TDP, j, i) : 0, g = f > 0 ? d * input(t, G, j, i) : 0;
                expect(t, TDP, j, i, td + g, 2 * EPS * (fabsl(td) + fabsl(g)));
            }
        }
    }
}

/* ---- multiply ---- */

static void draw_multiply(struct trial *t)
{
    draw_tile(t);
    make_tile(t, T, true, uniform);
    make_tile(t, M, false, factor);
}

static void call_multiply(const agi_kernels *k, struct trial *t)
{
    k->multiply(argument(t, T), argument(t, M), t->ld, t->nj, t->W);
}

static void expect_multiply(struct trial *t)
{
    for (int64_t j = 0; j < t->nj; j++) {
        for (int64_t i = 0; i < t->W; i++) {
            expect(t, T, j, i, (wide)(real)(*input_ptr(t, T, j, i) * *input_ptr(t, M, j, i)), 0);
        }
    }
}
