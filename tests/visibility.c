/* Time follows what a mask or a bias leaves visible: no map may be slow on rows that see nothing. Processor times
 * of one thread, the least of some rounds, two calls at a time in turns; the limits leave room for a busy machine. */
#include <math.h>
#include <time.h>

#include "arrays.h"
#include "test.h"

enum { ROUNDS = 3, N = 2048 };

static const struct {
    const char *name;
    uint32_t map;
} maps[] = {
    {"forward", AG_MAP_FORWARD}, {"vjp", AG_MAP_VJP}, {"jvp", AG_MAP_JVP}, {"vjp_jvp", AG_MAP_VJP_JVP}};

/* ---- Which pairs are visible ---- */

typedef int (*visible)(int64_t i, int64_t j);

static int all(int64_t i, int64_t j)
{
    (void)i;
    (void)j;
    return 1;
}

static int upper_half(int64_t i, int64_t j)
{
    (void)j;
    return i < N / 2;
}

/* The visible pairs of the call, by its mask, or by its bias where there is none. */
static void show(struct arrays *x, visible sees)
{
    const enum tensor t = x->data[T_MASK] != NULL ? T_MASK : T_BIAS;
    double *values = arrays_alloc(x->count[t], sizeof *values);
    for (int64_t n = 0; n < x->count[t]; n++) {
        const int seen = sees(n / x->p->kv_len, n % x->p->kv_len);
        values[n] = t == T_MASK ? seen : seen ? 0.25 : -INFINITY;
    }
    arrays_write(x, t, values);
    free(values);
}

/* ---- Time ---- */

static double seconds(struct arrays *x, uint32_t map)
{
    const clock_t start = clock();
    CHECK_OK(arrays_run(x, map));
    return (double)(clock() - start) / CLOCKS_PER_SEC;
}

/* The map's time with the pairs of `sees`, as a part of that with all pairs. */
static double share(const char *text, uint32_t map, visible sees)
{
    struct arrays part, whole;
    double least[2] = {INFINITY, INFINITY};
    ag_problem problem = AG_PROBLEM_INIT;
    ag_options options = AG_OPTIONS_INIT;
    options.threads = 1;
    CHECK_OK(ag_problem_parse(text, &problem));
    test_need(arrays_create(&part, &problem, &options, 1) == AG_OK, "a plan");
    test_need(arrays_create(&whole, &problem, &options, 1) == AG_OK, "a plan");
    show(&part, sees);
    show(&whole, all);
    CHECK_OK(arrays_run_all(&part));
    CHECK_OK(arrays_run_all(&whole));
    for (int round = 0; round < ROUNDS; round++) {
        least[0] = fmin(least[0], seconds(&part, map));
        least[1] = fmin(least[1], seconds(&whole, map));
    }
    arrays_destroy(&part);
    arrays_destroy(&whole);
    return least[0] / least[1];
}

static void test_time(const char *words, visible sees, double limit)
{
    static const char *const dtypes[] = {"f32", "bf16"};
    for (int d = 0; d < 2; d++) {
        for (int m = 0; m < 4; m++) {
            char text[128];
            snprintf(text, sizeof text, "h1 q%d k%d d64 %s %s", N, N, words, dtypes[d]);
            const double got = share(text, maps[m].map, sees);
            printf("%-44s %-8s %.2f of the time\n", text, maps[m].name, got);
            CHECK(got < limit, "%s: %s takes %.2f of the time with every pair visible, the limit is %.2f",
                  text, maps[m].name, got, limit);
        }
    }
}

int main(void)
{
    /* Rows whose lse is the sink's logit: do they see a key? */
    test_time("mask=11qk sink", upper_half, 1.3);
    test_time("bias=11qk sink", upper_half, 1.3);
    return test_summary();
}
