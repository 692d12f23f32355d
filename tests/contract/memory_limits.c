/* Memory for long sequences, heads of 131,072 positions: the size of each map's workspace; with --run the maps in a
 * window of 1,024 keys, and the peak memory of the process. */
#define _POSIX_C_SOURCE 200809L
#include <sys/resource.h>

#include "outputs.h"

static const struct {
    const char *text;
    uint32_t flags; /* of the plan */
    size_t max_mib; /* of the workspace of each map, */
    size_t per_thread;
} limits[] = {
    {"q131072 d64 f32", 0, 64, 0},
    {"q131072 d64 f32 causal", 0, 64, 0},
    {"q131072 d64 f32 window=1024,0", 0, 64, 0},
    {"q131072 d64 bf16", 0, 96, 0},
    {"q131072 d64 f32", AG_INVARIANT, 64, 0},
    {"q131072 d64 f32 causal", AG_INVARIANT, 64, 0},
    {"q131072 d64 f32 window=1024,0", AG_INVARIANT, 64, 0},
    {"q131072 d64 bf16", AG_INVARIANT, 96, 0},
    {"b2 h2 q16384 d64 f32", AG_INVARIANT, 64, 0},
    {"h15 q131072 d64 f32", 0, 0, 40}, /* a dQ of 32 MiB for each head at work */
    {"h15 q131072 d64 f32", AG_INVARIANT, 0, 40},
    {"b3 h5 q131072 d64 bf16", AG_INVARIANT, 0, 44},
    {"h16 q131072 d64 f32", AG_INVARIANT, 0, 40},
};
static const int threads[] = {1, 2, 8};

static ag_plan *make_plan(const char *text, uint32_t flags, int number_of_threads)
{
    ag_problem p = AG_PROBLEM_INIT;
    ag_options options = AG_OPTIONS_INIT;
    ag_plan *plan = NULL;
    options.backend = AG_BACKEND_CPU;
    options.threads = number_of_threads;
    options.flags = flags;
    CHECK_OK(ag_problem_parse(text, &p));
    CHECK_OK(ag_plan_create(&plan, &p, &options));
    test_need(plan != NULL, "no plan");
    return plan;
}

static void check_queries(void)
{
    for (size_t n = 0; n < sizeof limits / sizeof limits[0]; n++) {
        for (size_t t = 0; t < sizeof threads / sizeof threads[0]; t++) {
            const size_t max_mib = limits[n].max_mib + limits[n].per_thread * (size_t)threads[t];
            ag_plan *plan = make_plan(limits[n].text, limits[n].flags, threads[t]);
            for (uint32_t map = AG_MAP_FORWARD; map <= AG_MAP_JVP_JVP; map <<= 1) {
                size_t bytes = 0;
                CHECK_OK(ag_plan_workspace(plan, map, &bytes));
                CHECK(bytes > 0 && bytes < max_mib << 20,
                      "'%s', flags %u, map %u, %d threads: a workspace of %zu bytes, not under %zu MiB",
                      limits[n].text, (unsigned)limits[n].flags, (unsigned)map, threads[t], bytes, max_mib);
            }
            ag_plan_destroy(plan);
        }
    }
}

/* The most memory that this process has held so far, in bytes. */
static size_t peak(void)
{
    struct rusage usage;
    test_need(getrusage(RUSAGE_SELF, &usage) == 0, "getrusage");
    return (size_t)usage.ru_maxrss << 10;
}

/* Inputs, outputs and workspace are all that may be held, but for the program itself, its threads' stacks
 * and what the C library keeps. */
static void check_run(const char *text)
{
    const size_t slack = (size_t)4 << 20, program = peak();
    struct arrays x;
    ag_options options = AG_OPTIONS_INIT;
    options.backend = AG_BACKEND_CPU;
    options.threads = 2;
    make_arrays(&x, text, &options, 1);
    size_t allowed =
        program + x.workspace_bytes + tensor_bytes(&x, T_STO) + slack; /* with so, as large as sto */
    for (enum tensor t = 0; t < T_COUNT; t++) {
        allowed += tensor_bytes(&x, t);
    }
    CHECK(peak() <= allowed, "'%s': %zu bytes held before any map, %zu allowed", text, peak(), allowed);
    CHECK_OK(agc_arrays_run_all(&x));
    CHECK(peak() <= allowed, "'%s': %zu bytes held, %zu allowed", text, peak(), allowed);
    printf("'%s': at most %.1f MiB held, %.1f allowed, %.1f of them workspace\n", text,
           (double)peak() / 0x1p20, (double)allowed / 0x1p20, (double)x.workspace_bytes / 0x1p20);
    agc_arrays_destroy(&x);
}

int main(int argc, char **argv)
{
    if (argc > 2 || (argc == 2 && strcmp(argv[1], "--run") != 0)) {
        printf("usage: %s [--run]\n", argv[0]);
        return 2;
    }
    if (argc == 2) {
        check_run("q131072 d64 f32 window=1024,0");
    } else {
        check_queries();
    }
    return test_summary();
}
