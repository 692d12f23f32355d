/* Shared by the tests of kernels on score tiles: random shapes, masked pairs, NaN in place of what they must not read,
 * the error bound of exp2. */
#ifndef AG_KERNELS_TILES_H
#define AG_KERNELS_TILES_H

#include "kernels_trial.h"

static void draw_tile(struct trial *t)
{
    const int64_t lanes = t->k->lanes;
    t->nj = t->bench ? 128 : agc_rng_range(&t->random, 1, 130);
    t->W = t->bench ? PANEL : lanes * agc_rng_range(&t->random, 1, PANEL / lanes);
    t->ld = t->bench ? PANEL : t->W + agc_rng_range(&t->random, 0, 10);
}

static real uniform_or_masked(struct trial *t)
{
    return agc_rng_chance(&t->random, 0.2) ? (real)-INFINITY : uniform(t);
}

static real uniform_or_nan(struct trial *t)
{
    return agc_rng_chance(&t->random, 0.1) ? (real)NAN : uniform(t);
}

/* A weight, some of them 0. */
static real weight(struct trial *t)
{
    return !t->bench && agc_rng_chance(&t->random, 0.2) ? 0 : factor(t);
}

static real dropped(struct trial *t)
{
    return agc_rng_chance(&t->random, 0.3) ? 0 : (real)1.25;
}

/* Sets the elements of array n to NaN where array `where` has `value`: they must have no effect. */
static void set_nan_where(struct trial *t, int n, int where, real value)
{
    for (int64_t j = 0; present(t, n) && j < t->nj; j++) {
        for (int64_t i = 0; i < t->W; i++) {
            if (*input_ptr(t, where, j, i) == value) {
                *input_ptr(t, n, j, i) = (real)NAN;
            }
        }
    }
}

/* The max error of 2^x if the error of x is at most d (0.7: ln 2, rounded up). Powers below the smallest normal number
 * may be 0; 2^-infinity is 0. */
static wide exp2_bound(wide x, wide d)
{
    return is_infinite(x) ? 0 : exp2l(x) * (EXP2_ERROR + 0.7L * d) + REAL_MIN;
}

static double tile_elements(const struct trial *t)
{
    return (double)(t->nj * t->W);
}

#endif
