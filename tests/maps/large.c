/* Problems of more than 2^25 visible pairs, whose spans of keys run at the same time and sum dQ apart: the same bits
 * for every number of threads, and the results of AG_INVARIANT, which cuts them in another way. */
#include "outputs.h"

#include <math.h>

static void run(struct arrays *x, const char *text, int32_t threads, uint32_t flags)
{
    ag_options options = AG_OPTIONS_INIT;
    options.threads = threads;
    options.flags = flags;
    make_arrays(x, text, &options, 3);
    CHECK_OK(agc_arrays_run_all(x));
}

/* The norm of the difference over that of the tensor. */
static double difference(const struct arrays *a, const struct arrays *b, enum tensor t)
{
    double *x = test_read(a, t), *y = test_read(b, t), error = 0, size = 0;
    for (int64_t n = 0; n < a->count[t]; n++) {
        const double d = x[n] == y[n] ? 0 : x[n] - y[n]; /* lse may be minus infinity */
        error += d * d;
        size += isfinite(y[n]) ? y[n] * y[n] : 0;
    }
    free(x);
    free(y);
    return size == 0 ? error : sqrt(error / size);
}

/* If AG_TEST_COUNT is set, not with one thread, which takes no other way through the code. */
static void check(const char *text, double limit)
{
    struct arrays one, several, invariant;
    run(&several, text, 3, 0);
    if (test_count(1000) == 1000) {
        run(&one, text, 1, 0);
        same_outputs(&several, &one, ALL_MAPS, text);
        agc_arrays_destroy(&one);
    }
    run(&invariant, text, 2, AG_INVARIANT);
    for (enum tensor t = 0; t < T_COUNT; t++) {
        if (is_output(&several, t, ALL_MAPS)) {
            const double d = difference(&several, &invariant, t);
            CHECK(d <= limit, "'%s': %s differs by %g", text, agc_tensor_info[t].name, d);
        }
    }
    agc_arrays_destroy(&invariant);
    agc_arrays_destroy(&several);
}

int main(void)
{
    check("h2 q40 k50 d16 f32 causal sink", 1e-4);
    if (test_count(1000) < 500) {
        printf("large problems: not run, AG_TEST_COUNT asks for little\n");
        return test_summary();
    }
    check("h2 kv1 q4200 k4100 d64 f32 sink table=50", 1e-4);
    check("h2 q6000 k6100 d64 f32 causal bias=1h1k", 1e-4);
    check("h3 q4200 k3000 d64 bf16 sink", 1e-2);
    return test_summary();
}
