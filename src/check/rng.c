/* xoshiro256**: see rng.h. */
#include "check/rng.h"

#include <math.h>

static uint64_t splitmix64(uint64_t *state)
{
    uint64_t z = (*state += UINT64_C(0x9e3779b97f4a7c15));
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

void agc_rng_init(struct rng *r, uint64_t seed, uint64_t stream)
{
    uint64_t state = stream;
    state = splitmix64(&state) ^ seed;
    for (int i = 0; i < 4; i++) {
        r->s[i] = splitmix64(&state);
    }
}

static uint64_t rotate_left(uint64_t x, int n)
{
    return (x << n) | (x >> (64 - n));
}

uint64_t agc_rng_next(struct rng *r)
{
    uint64_t *s = r->s;
    uint64_t result = rotate_left(s[1] * 5, 7) * 9;
    uint64_t t = s[1] << 17;
    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = rotate_left(s[3], 45);
    return result;
}

double agc_rng_uniform(struct rng *r)
{
    return (double)(agc_rng_next(r) >> 11) * 0x1p-53;
}

int64_t agc_rng_range(struct rng *r, int64_t low, int64_t high)
{
    return low + (int64_t)(agc_rng_uniform(r) * (double)(high - low + 1));
}

int agc_rng_chance(struct rng *r, double probability)
{
    return agc_rng_uniform(r) < probability;
}

double agc_rng_normal(struct rng *r)
{
    double radius = sqrt(-2.0 * log(1.0 - agc_rng_uniform(r))); /* 1 - u is never 0 */
    return radius * cos(6.283185307179586 * agc_rng_uniform(r));
}
