/* Compares each kernel of each table of vector kernels that this processor can run with plain loops in long double
 * and with the scalar table, for many shapes; also the AMX table. Compiled twice, with real = float and real = double.
 * With --bench it times the same calls instead. Its parts are in kernels_*_tmpl.c. */
#include <time.h>

#include "core/cpu_info.h"
#include "kernels_given_tmpl.c"
#include "kernels_gradients_tmpl.c"
#include "kernels_narrow_tmpl.c"
#include "kernels_rows_tmpl.c"
#include "kernels_scores_tmpl.c"
#if defined(__x86_64__) && !defined(AGI_REAL64)
#define HAS_AMX_TABLE 1
#include "kernels_amx_tmpl.c"
#else
#define HAS_AMX_TABLE 0
#endif

/* ---- The kernels of a table ---- */

static const struct entry {
    const char *name;
    void (*draw)(struct trial *);
    void (*call)(const agi_kernels *, struct trial *);
    void (*expect)(struct trial *); /* sees the results, too: a kernel may choose its running maximum */
    double (*work)(const struct trial *);
    void (*check_bits)(struct trial *); /* another call that must give the same bits; or NULL */
} entries[] = {
    {"product", draw_product, call_product, expect_product, product_work, product_alone},
    {"product_prefetch", draw_product, call_product_prefetch, expect_product, product_work, product_alone},
    {"scores_by_dot", draw_scores_by_dot, call_scores_by_dot, expect_scores_by_dot, scores_by_dot_work,
     scores_by_dot_alone},
    {"scores", draw_scores, call_scores, expect_scores, tile_elements, NULL},
    {"mask_band", draw_mask_band, call_mask_band, expect_mask_band, tile_elements, NULL},
    {"softmax", draw_softmax, call_softmax, expect_softmax, tile_elements, NULL},
    {"softmax_tangent", draw_softmax_tangent, call_softmax_tangent, expect_softmax_tangent, tile_elements,
     same_as_softmax},
    {"weights", draw_weights, call_weights, expect_weights, tile_elements, NULL},
    {"score_tangents", draw_score_tangents, call_score_tangents, expect_score_tangents, tile_elements, NULL},
    {"tangent_weights", draw_tangent_weights, call_tangent_weights, expect_tangent_weights, tile_elements,
     NULL},
    {"second_score_tangents", draw_second_score_tangents, call_second_score_tangents,
     expect_second_score_tangents, tile_elements, NULL},
    {"second_weights", draw_second_weights, call_second_weights, expect_second_weights, tile_elements, NULL},
    {"score_gradients", draw_score_gradients, call_score_gradients, expect_score_gradients, tile_elements,
     NULL},
    {"score_gradient_tangents", draw_score_gradient_tangents, call_score_gradient_tangents,
     expect_score_gradient_tangents, tile_elements, NULL},
    {"softcap_gradients", draw_softcap_gradients, call_softcap_gradients, expect_softcap_gradients,
     tile_elements, NULL},
    {"multiply", draw_multiply, call_multiply, expect_multiply, tile_elements, NULL},
    {"store_rows", draw_store_rows, call_store_rows, expect_store_rows, row_elements, store_in_place},
    {"log2_array", draw_log2_array, call_log2_array, expect_log2_array, row_elements, NULL},
    {"dots", draw_dots, call_dots, expect_dots, row_elements, NULL},
    {"transpose", draw_transpose, call_transpose, expect_transpose, transposed_elements, NULL},
    {"dropout", draw_dropout, call_dropout, expect_dropout, tile_elements, NULL},
};
enum { ENTRIES = sizeof entries / sizeof entries[0] };

static const struct {
    ag_isa isa;
    const agi_kernels *k;
} tables[] = {
    {AG_ISA_SCALAR, &REAL(agi_kernels_scalar)},
#if defined(__x86_64__)
    {AG_ISA_AVX2, &REAL(agi_kernels_avx2)},
    {AG_ISA_AVX512, &REAL(agi_kernels_avx512)},
#elif defined(__aarch64__)
    {AG_ISA_NEON, &REAL(agi_kernels_neon)},
#endif
};
enum { TABLES = sizeof tables / sizeof tables[0] };

static void begin(struct trial *t, const agi_kernels *k, int entry, uint64_t seed, bool bench)
{
    *t = (struct trial){.k = k, .bench = bench};
    agc_rng_init(&t->random, seed, (uint64_t)entry);
    entries[entry].draw(t);
}

/* ---- Checking ---- */

static void check(const agi_kernels *k, int entry, uint64_t seed)
{
    struct trial t;
    begin(&t, k, entry, seed, false);
    copy_arrays(&t);
    entries[entry].call(&REAL(agi_kernels_scalar), &t);
    keep_scalar(&t);
    copy_arrays(&t);
    entries[entry].call(k, &t);
    expect_unchanged(&t);
    entries[entry].expect(&t);
    check_arrays(&t, entries[entry].name);
    if (entries[entry].check_bits != NULL) {
        entries[entry].check_bits(&t);
    }
    free_arrays(&t);
}

/* AG_TEST_ISA, set when the tests run on an emulated processor (qemu, valgrind), names the instruction set that a plan
 * must choose there. */
static void check_choice(const char *wanted)
{
    ag_problem p = AG_PROBLEM_INIT;
    ag_plan *plan = NULL;
    CHECK_OK(ag_problem_parse("q1 d1 f32", &p));
    CHECK_OK(ag_plan_create(&plan, &p, NULL));
    ag_plan_info info = {.struct_size = sizeof info};
    CHECK_OK(ag_plan_info_get(plan, &info));
    CHECK(strcmp(info.isa_name, wanted) == 0, "a plan takes '%s', not '%s'", info.isa_name, wanted);
    ag_plan_destroy(plan);
}

static int check_all(void)
{
    const char *wanted = getenv("AG_TEST_ISA");
    if (wanted != NULL) {
        check_choice(wanted);
    }
    for (int n = 0; n < TABLES; n++) {
        if (!agi_cpu_supports(tables[n].isa)) {
            printf("%s: not tested, this processor cannot run it\n", tables[n].k->name);
            continue;
        }
        for (int entry = 0; entry < ENTRIES; entry++) {
            for (int seed = 0; seed < test_count(200); seed++) {
                check(tables[n].k, entry, (uint64_t)seed);
            }
        }
        for (int seed = 0; seed < test_count(200); seed++) {
            check_narrow(tables[n].k, AG_BF16, (uint64_t)seed);
            check_narrow(tables[n].k, AG_F16, (uint64_t)seed);
            check_low(tables[n].k, AG_BF16, (uint64_t)seed);
            check_low(tables[n].k, AG_F16, (uint64_t)seed);
        }
        for (int64_t stride = 1; stride <= 3; stride += 2) {
            check_widened(tables[n].k, AG_BF16, stride);
            check_widened(tables[n].k, AG_F16, stride);
        }
    }
#if HAS_AMX_TABLE
    check_amx(test_count(200));
#endif
    return test_summary();
}

/* ---- Timing ---- */

static double now(void)
{
    struct timespec time;
    timespec_get(&time, TIME_UTC);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* Work per second, in units of 10^9, the best of 100 rounds of at least 1 ms. */
static double rate(const agi_kernels *k, int entry)
{
    struct trial t;
    double best = INFINITY;
    int64_t calls = 1;
    begin(&t, k, entry, 1, true);
    copy_arrays(&t);
    for (int round = 0; round < 100;) {
        const double start = now();
        for (int64_t n = 0; n < calls; n++) {
            entries[entry].call(k, &t);
        }
        const double seconds = now() - start;
        if (seconds < 0.001) {
            calls *= 2;
            continue;
        }
        best = seconds / (double)calls < best ? seconds / (double)calls : best;
        round++;
    }
    const double work = entries[entry].work(&t);
    free_arrays(&t);
    return work / best * 1e-9;
}

static int bench_all(void)
{
    printf("float%d, one thread; products: GFLOP/s, the rest: 10^9 elements per second\n%-24s",
           (int)(8 * sizeof(real)), "");
    for (int n = 0; n < TABLES; n++) {
        printf("%10s", tables[n].k->name);
    }
    for (int entry = 0; entry < ENTRIES; entry++) {
        printf("\n%-24s", entries[entry].name);
        for (int n = 0; n < TABLES; n++) {
            if (agi_cpu_supports(tables[n].isa)) {
                printf("%10.2f", rate(tables[n].k, entry));
            } else {
                printf("%10s", "-");
            }
        }
    }
    printf("\n");
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "--bench") == 0) {
        return bench_all();
    }
    if (argc > 1) {
        printf("usage: %s [--bench]\n", argv[0]);
        return 2;
    }
    return check_all();
}
