/* Tests of the conversions to and from 16-bit formats: an element must be stored as factor times the input, a
 * product that is exact or rounded to float64, rounded as agi_store rounds, and loaded as agi_load does. */
#include "core/number.h"
#include "kernels_trial.h"

enum { NARROW_GUARD = 32, NARROW_MAX = 600 };

/* A number of the narrow format, or the middle between two neighbours: a tie in rounding. */
static double narrow_or_tie(struct rng *r, ag_dtype dtype)
{
    const uint16_t bits[2] = {(uint16_t)agc_rng_next(r), 0};
    const double x = agi_load(dtype, bits, 0);
    const uint16_t next_bits[2] = {(uint16_t)(bits[0] + 1), 0};
    const double next = agi_load(dtype, next_bits, 0);
    return agc_rng_chance(r, 0.5) || !isfinite(next) ? x : x / 2 + next / 2;
}

/* Inputs of every kind: ordinary, subnormal, too large, infinite, NaN. */
static real narrow_input(struct rng *r, ag_dtype dtype)
{
    const double kind = agc_rng_uniform(r), sign = agc_rng_chance(r, 0.5) ? -1 : 1;
    return (real)(kind < 0.4    ? narrow_or_tie(r, dtype)
                  : kind < 0.6  ? sign * (agc_rng_uniform(r) + 0.5)
                  : kind < 0.9  ? sign * exp2(300 * agc_rng_uniform(r) - 150)
                  : kind < 0.92 ? sign * 65520 *
                                      (1 + (agc_rng_uniform(r) - 0.5) * 0x1p-10) /* where float16 overflows */
                  : kind < 0.94 ? sign * 0x1.ffp127 * (1 + (agc_rng_uniform(r) - 0.5) * 0x1p-10)
                  : kind < 0.96 ? sign * (double)INFINITY
                  : kind < 0.98 ? (double)NAN
                                : sign * 0.0);
}

/* The exact product, rounded once. In float64 the product may be rounded to a tie; here it is moved one place towards
 * its exact value, so that it is on the right side of the tie. */
static uint16_t narrow_exact(ag_dtype dtype, double from, double factor)
{
    const double product = factor * from, lost = fma(factor, from, -product);
    uint16_t bits;
    agi_store(dtype, &bits, 0,
              lost == 0 || isnan(lost) ? product : nextafter(product, lost < 0 ? -INFINITY : INFINITY));
    return bits;
}

static void check_narrow(const agi_kernels *k, ag_dtype dtype, uint64_t seed)
{
    static const double factors[] = {1, 1 + 0x1p-40, 1 - 0x1p-40, 0x1p-20, -1, 1.0 / 3};
    struct rng r;
    agc_rng_init(&r, seed, (uint64_t)dtype);
    const int64_t n = agc_rng_range(&r, 0, NARROW_MAX);
    const double factor = factors[agc_rng_range(&r, 0, 5)];
    real *from = malloc((size_t)(n + 1) * sizeof *from);
    uint16_t to[NARROW_MAX + 2 * NARROW_GUARD], wanted[NARROW_MAX + 2 * NARROW_GUARD];
    test_need(from != NULL, "memory");
    memset(to, 0xa5, sizeof to);
    memset(wanted, 0xa5, sizeof wanted);
    for (int64_t i = 0; i < n; i++) {
        from[i] = narrow_input(&r, dtype);
        agi_store(dtype, wanted + NARROW_GUARD, i, factor * (double)from[i]);
    }
    (dtype == AG_BF16 ? k->store_bf16 : k->store_f16)(to + NARROW_GUARD, from, n, factor);
    const char *name = dtype == AG_BF16 ? "store_bf16" : "store_f16";
    for (int64_t i = 0; i < NARROW_MAX + 2 * NARROW_GUARD; i++) {
        const int64_t at = i - NARROW_GUARD;
        const bool inside = at >= 0 && at < n;
        const bool both_nan = inside && isnan(agi_load(dtype, to, i)) && isnan(agi_load(dtype, wanted, i));
        const bool exact = inside && to[i] == narrow_exact(dtype, (double)from[at], factor);
        if (to[i] != wanted[i] && !both_nan && !exact) {
            CHECK(false, "%s %s: number %lld of %lld, from %a times %a: %#x, not %#x", k->name, name,
                  (long long)at, (long long)n, inside ? (double)from[at] : 0.0, factor, to[i], wanted[i]);
            free(from);
            return;
        }
    }
    CHECK(true, "%s", name);
    free(from);
}

/* Is `low` the low half of the product that was stored as `high`? Its own rounding error is half a unit in its last
 * place, or of the smallest number of the format. Kernels may take 48 bits of the factor. */
static bool is_low_half(ag_dtype dtype, double product, double high, double low)
{
    const double rest = product - high, unit = dtype == AG_BF16 ? 0x1p-8 : 0x1p-11;
    const double smallest = dtype == AG_BF16 ? 0x1p-133 : 0x1p-24;
    if (!isfinite(rest)) {
        return low == 0;
    }
    const double wanted = rest * agi_low_scale(dtype);
    const double of_factor = 0x1p-47 * fabs(product) * agi_low_scale(dtype);
    return fabs(low - wanted) <= 1.001 * unit * fabs(wanted) + smallest + of_factor;
}

static void check_low(const agi_kernels *k, ag_dtype dtype, uint64_t seed)
{
    static const double factors[] = {1, 1 - 0x1p-40, 0x1p-20, -1, 1.0 / 3};
    struct rng r;
    agc_rng_init(&r, seed, 100 + (uint64_t)dtype);
    const int64_t n = agc_rng_range(&r, 0, NARROW_MAX);
    const double factor = factors[agc_rng_range(&r, 0, 4)];
    real from[NARROW_MAX];
    uint16_t high[NARROW_MAX], low[NARROW_MAX + 1];
    int64_t wrong = 0;
    for (int64_t i = 0; i < n; i++) {
        from[i] = narrow_input(&r, dtype);
    }
    low[n] = 0xa5a5;
    (dtype == AG_BF16 ? k->store_bf16 : k->store_f16)(high, from, n, factor);
    (dtype == AG_BF16 ? k->store_low_bf16 : k->store_low_f16)(low, from, n, factor);
    for (int64_t i = 0; i < n; i++) {
        wrong +=
            !is_low_half(dtype, factor * (double)from[i], agi_load(dtype, high, i), agi_load(dtype, low, i));
    }
    CHECK(wrong == 0 && low[n] == 0xa5a5, "%s: %lld of %lld low halves in %s are wrong", k->name,
          (long long)wrong, (long long)n, ag_dtype_name(dtype));
}

/* All numbers of the format, `stride` elements apart. */
static void check_widened(const agi_kernels *k, ag_dtype dtype, int64_t stride)
{
    enum { ALL = 1 << 16, MAX_STRIDE = 3 };
    uint16_t *from = calloc(ALL * MAX_STRIDE, sizeof *from);
    real *to = malloc(ALL * sizeof *to);
    int64_t wrong = 0;
    test_need(from != NULL && to != NULL, "memory");
    for (int64_t i = 0; i < ALL; i++) {
        from[i * stride] = (uint16_t)i;
    }
    (dtype == AG_BF16 ? k->load_bf16 : k->load_f16)(to, from, stride, ALL);
    for (int64_t i = 0; i < ALL; i++) {
        const double truth = agi_load(dtype, from, i * stride);
        wrong += (double)to[i] != truth && !(isnan((double)to[i]) && isnan(truth));
        wrong += truth == 0 && signbit((double)to[i]) != signbit(truth);
    }
    CHECK(wrong == 0, "%s %s: %lld numbers with a stride of %lld are loaded wrong", k->name,
          dtype == AG_BF16 ? "load_bf16" : "load_f16", (long long)wrong, (long long)stride);
    free(from);
    free(to);
}
