/* Shared by the tests of the AMX table: arrays between guards; wrong elements, counted and reported at once. */
#ifndef AG_KERNELS_AMX_MEMORY_H
#define AG_KERNELS_AMX_MEMORY_H

#include "core/number.h"
#include "cpu/amx/kernels/amx_kernels.h"
#include "kernels_trial.h"

enum { AMX_GUARD = 256 };

/* ---- Memory with guards ---- */

struct guarded {
    unsigned char *memory;
    size_t bytes;
};

/* Allocates n elements, filled with 0xa5 like the guards around them. */
static struct guarded guarded_alloc(int64_t n, size_t size)
{
    struct guarded g = {.bytes = (size_t)n * size};
    g.memory = malloc(g.bytes + 2 * AMX_GUARD);
    test_need(g.memory != NULL, "memory");
    memset(g.memory, 0xa5, g.bytes + 2 * AMX_GUARD);
    return g;
}

static uint16_t *bf16_of(const struct guarded *g)
{
    return (uint16_t *)(void *)(g->memory + AMX_GUARD);
}

static float *floats_of(const struct guarded *g)
{
    return (float *)(void *)(g->memory + AMX_GUARD);
}

/* Checks that the guards are untouched. */
static void check_and_free(struct guarded *g, const char *what)
{
    size_t wrong = 0;
    for (size_t b = 0; b < AMX_GUARD; b++) {
        wrong += g->memory[b] != 0xa5 || g->memory[AMX_GUARD + g->bytes + b] != 0xa5;
    }
    CHECK(wrong == 0, "amx %s: %zu bytes around the array were written", what, wrong);
    free(g->memory);
}

/* Random bfloat16 in [-2, 2). bf16_at returns one as a double. */
static struct guarded random_bf16(struct rng *r, int64_t n)
{
    const struct guarded g = guarded_alloc(n, sizeof(uint16_t));
    for (int64_t i = 0; i < n; i++) {
        agi_store(AG_BF16, bf16_of(&g), i, 4 * agc_rng_uniform(r) - 2);
    }
    return g;
}

static double bf16_at(const uint16_t *p, int64_t i)
{
    return agi_load(AG_BF16, p, i);
}

static struct guarded random_floats(struct rng *r, int64_t n, double low, double high)
{
    const struct guarded g = guarded_alloc(n, sizeof(float));
    for (int64_t i = 0; i < n; i++) {
        floats_of(&g)[i] = (float)(low + (high - low) * agc_rng_uniform(r));
    }
    return g;
}

/* The number of wrong results, and the first of them. */
struct faults {
    int64_t count, first;
    double got, wanted;
};

static void expect_near(struct faults *f, int64_t at, double got, double wanted, double bound)
{
    if (!(fabs(got - wanted) <= bound)) {
        if (f->count++ == 0) {
            *f = (struct faults){1, at, got, wanted};
        }
    }
}

static void report(const struct faults *f, const char *what)
{
    CHECK(f->count == 0, "amx %s: %lld numbers are wrong, number %lld is %.9g, not %.9g", what,
          (long long)f->count, (long long)f->first, f->got, f->wanted);
}

#endif
