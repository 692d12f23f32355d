/* Random numbers for checks: xoshiro256** seeded by splitmix64, so that a check can be repeated from its seed
 * on any machine. Not the generator of dropout, which is part of the library's contract. */
#ifndef ATTNGRAD_CHECK_RNG_H
#define ATTNGRAD_CHECK_RNG_H

#include <stdint.h>

struct rng {
    uint64_t s[4];
};

/* Different streams of one seed are independent. */
void agc_rng_init(struct rng *r, uint64_t seed, uint64_t stream);

uint64_t agc_rng_next(struct rng *r);                            /* 64 random bits */
double agc_rng_uniform(struct rng *r);                           /* in [0, 1) */
int64_t agc_rng_range(struct rng *r, int64_t low, int64_t high); /* low .. high, both included */
int agc_rng_chance(struct rng *r, double probability);           /* 1 with that probability */
double agc_rng_normal(struct rng *r);                            /* mean 0, variance 1 */

#endif
