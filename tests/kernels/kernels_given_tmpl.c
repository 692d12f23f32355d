/* Tests of the kernels of jvp_jvp, and of jvp that is given lse: tangent_weights, second_score_tangents and
 * second_weights. */
#include "kernels_tiles.h"

/* ---- tangent_weights ---- */

static void draw_tangent_weights(struct trial *t)
{
    draw_tile(t);
    make_tile(t, P, false, weight);
    make_tile(t, U, true, uniform);
    make_lanes(t, SHIFT, false, uniform);
    make_lanes(t, SUM, true, uniform);
    set_nan_where(t, U, P, 0);
}

static void call_tangent_weights(const agi_kernels *k, struct trial *t)
{
    k->tangent_weights(argument(t, P), argument(t, U), t->ld, t->nj, t->W, argument(t, SHIFT),
                       argument(t, SUM));
}

/* A sum that began with SUM of lane i and had nj numbers added, each with an error of its own. */
static void expect_sum(struct trial *t, int64_t i, wide added, wide magnitude, wide error)
{
    const wide before = input(t, SUM, 0, i);
    expect(t, SUM, 0, i, before + added, error + (wide)(t->nj + 1) * EPS * (fabsl(before) + magnitude));
}

static void expect_tangent_weights(struct trial *t)
{
    for (int64_t i = 0; i < t->W; i++) {
        const wide r = input(t, SHIFT, 0, i);
        wide sum = 0, magnitude = 0, error = 0;
        for (int64_t j = 0; j < t->nj; j++) {
            const wide p = input(t, P, j, i), u = p > 0 ? input(t, U, j, i) : 0;
            const wide result = p * (u - r), bound = 2 * EPS * p * (fabsl(u) + fabsl(r));
            expect(t, U, j, i, result, bound);
            sum += result;
            magnitude += fabsl(result);
            error += bound;
        }
        expect_sum(t, i, sum, magnitude, error);
    }
}

/* ---- second_score_tangents ---- */

/* Without softcap there is no F and no G, and Y is not read. */
static void draw_second_score_tangents(struct trial *t)
{
    const bool softcap = sometimes(t);
    draw_tile(t);
    t->scale = t->bench ? 1 : (real)between(t, 0.1, 0.9);
    t->factor = sometimes(t) ? 2 : 1;
    make_tile(t, Z, true, uniform);
    make_tile(t, Y, false, softcap ? uniform : unset);
    if (softcap) {
        make_tile(t, F, false, weight);
        make_tile(t, G, false, uniform);
        set_nan_where(t, Z, F, 0);
        set_nan_where(t, G, F, 0);
    }
}

static void call_second_score_tangents(const agi_kernels *k, struct trial *t)
{
    k->second_score_tangents(argument(t, Z), argument(t, F), argument(t, G), argument(t, Y), t->ld, t->nj,
                             t->W, t->scale, (real)t->factor);
}

static void expect_second_score_tangents(struct trial *t)
{
    for (int64_t j = 0; j < t->nj; j++) {
        for (int64_t i = 0; i < t->W; i++) {
            const wide f = present(t, F) ? input(t, F, j, i) : 1, scale = (wide)t->scale;
            const wide z = f > 0 ? scale * (wide)t->factor * f * input(t, Z, j, i) : 0;
            const wide g = present(t, G) && f > 0 ? scale * input(t, G, j, i) * input(t, Y, j, i) : 0;
            expect(t, Z, j, i, z + g, 2 * EPS * (fabsl(z) + fabsl(g)));
        }
    }
}

/* ---- second_weights ---- */

static void draw_second_weights(struct trial *t)
{
    draw_tile(t);
    make_tile(t, P, false, weight);
    make_tile(t, U, true, uniform);
    make_tile(t, Y, true, uniform);
    make_tile(t, Z, true, uniform);
    make_lanes(t, MU, false, uniform);
    make_lanes(t, SMU, false, uniform);
    make_lanes(t, SUM, true, uniform);
    set_nan_where(t, U, P, 0);
    set_nan_where(t, Y, P, 0);
    set_nan_where(t, Z, P, 0);
}

static void call_second_weights(const agi_kernels *k, struct trial *t)
{
    k->second_weights(argument(t, P), argument(t, U), argument(t, Y), argument(t, Z), t->ld, t->nj, t->W,
                      argument(t, MU), argument(t, SMU), argument(t, SUM));
}

static void expect_second_weights(struct trial *t)
{
    for (int64_t i = 0; i < t->W; i++) {
        const wide mu = input(t, MU, 0, i), smu = input(t, SMU, 0, i);
        wide sum = 0, magnitude = 0, error = 0;
        for (int64_t j = 0; j < t->nj; j++) {
            const wide p = input(t, P, j, i), u = p > 0 ? input(t, U, j, i) : 0;
            const wide y = p > 0 ? input(t, Y, j, i) : 0, z = p > 0 ? input(t, Z, j, i) : 0;
            const wide u_size = fabsl(u) + fabsl(mu), y_size = fabsl(y) + fabsl(smu);
            const wide result = p * ((u - mu) * (y - smu) + z),
                       bound = 4 * EPS * p * (u_size * y_size + fabsl(z));
            expect(t, U, j, i, p * (u - mu), 2 * EPS * p * u_size);
            expect(t, Y, j, i, p * (y - smu), 2 * EPS * p * y_size);
            expect(t, Z, j, i, result, bound);
            sum += result;
            magnitude += fabsl(result);
            error += bound;
        }
        expect_sum(t, i, sum, magnitude, error);
    }
}
