/* The table sm90 on the processor, by the error rule: features and pairs of features over several tiles, random
 * problems with the features of each set; schedules of the emulation, short rings, AG_INVARIANT.
 *
 * cuda_hopper_random [SEED [STEP [NUMBER]]]: one problem of STEP, which ones by SEED; NUMBER: this problem alone. */
#include "check/summary.h"
#include "cuda/schedule.h"
#include "emulated_cases.h"
#include "feature_pairs.h"
#include "hopper_problems.h"

enum { N_PAIRS = FEATURES * FEATURES, N_RANDOM = 400 };
static const uint32_t maps[] = {AG_MAP_FORWARD, AG_MAP_VJP, AG_MAP_JVP, AG_MAP_VJP_JVP};
static int problems, on_table;

/* Is there a set with all of these features? */
static bool has_set(uint32_t wanted)
{
    bool found = wanted == 0;
    for (int n = 0; n < N_HOPPER_SETS; n++) {
        found |= (wanted & ~hopper_sets[n].features) == 0;
    }
    return found;
}

/* Leaves these features alone. */
static void keep_features(ag_problem *p, uint32_t kept)
{
    p->softcap = kept & AGI_HAS_SOFTCAP ? p->softcap : 0;
    p->dropout = kept & AGI_HAS_DROPOUT ? p->dropout : 0;
    if (!(kept & AGI_HAS_BIAS)) {
        p->flags &= ~(uint32_t)AG_BIAS;
        memset(p->bias_size, 0, sizeof p->bias_size);
    }
    if (!(kept & AGI_HAS_MASK)) {
        p->flags &= ~(uint32_t)AG_MASK;
        memset(p->mask_size, 0, sizeof p->mask_size);
    }
    if (!(kept & AGI_HAS_RELATIVE)) {
        p->flags &= ~(uint32_t)(AG_TABLE | AG_ALIBI | AG_SLOPES);
        p->table_radius = p->table_buckets = p->table_heads = 0;
    }
}

/* Head sizes that the table has. */
static int64_t fit(int64_t channels, uint32_t wanted)
{
    const int64_t most = wanted == 0 ? 256 : 128;
    return channels <= most ? channels : channels % most + 1;
}

static void draw_random(ag_check_case *c, uint64_t seed, int number)
{
    const int set = number / 4 % (N_HOPPER_SETS + 1);
    ag_problem *p = &c->problem;
    ag_check_random(c, seed, (uint64_t)number, number % 4 == 0 ? AG_CHECK_LARGE : AG_CHECK_SMALL);
    if (p->dtype == AG_F64 || (p->dtype == AG_F32 && number % 3 != 0)) {
        p->dtype = number % 2 == 0 ? AG_BF16 : AG_F16;
    }
    keep_features(p, set == N_HOPPER_SETS ? 0 : hopper_sets[set].features);
    p->dim_qk = fit(p->dim_qk, features_of(p));
    p->dim_v = fit(p->dim_v, features_of(p));
}

/* Features number / FEATURES and number % FEATURES; both kernels of each map by the number of channels. Returns whether
 * there is such a problem, and a set for it. */
static bool draw_pair(ag_check_case *c, uint64_t seed, int number)
{
    const uint64_t variant = (uint64_t)number + seed;
    const struct feature_problems list = {SEVERAL_TILES, variant % 2 == 0 ? "bf16" : "f16", 0, PAIRS};
    const struct feature *together[MAX_TOGETHER];
    const int a = number / FEATURES, b = number % FEATURES;
    int last = 0;
    const int count = a <= b && features_exclude(&features[a], &features[b]) == NULL
                          ? features_together(&list, a, b, &last, together)
                          : 0;
    if (count == 0) {
        return false;
    }
    features_case(c, &list, together, count);
    c->seed = seed;
    c->problem.dim_qk = variant / 2 % 2 == 0 ? c->problem.dim_qk : 100;
    return has_set(features_of(&c->problem));
}

static void check_case(uint64_t seed, int number)
{
    ag_check_case c = {.problem = AG_PROBLEM_INIT};
    struct error_truth truth;
    struct arrays x;
    ag_options options = AG_OPTIONS_INIT;
    options.flags = number % 3 == 0 ? AG_INVARIANT : 0;
    if (number < N_PAIRS && !draw_pair(&c, seed, number)) {
        return;
    }
    if (number >= N_PAIRS) {
        draw_random(&c, seed, number);
    }
    if (!CHECK_OK(agc_arrays_of_case(&x, &c, &options))) {
        return;
    }
    problems++;
    on_table += agi_hopper_choose(x.plan, AGI_hopper_forward, emulated_shared_limit).kernel >= 0;
    emulate_schedule_number((unsigned)number + (unsigned)seed);
    emulated_ring_most = number % 2 == 0 ? 2 : 64;
    for (int n = 0; n < 4; n++) {
        CHECK_OK(agc_arrays_run(&x, maps[n]));
    }
    if (CHECK_OK(agc_error_truth_create(&truth, &x, 1))) {
        check_case_results(&c, &truth, &x, maps[0] | maps[1] | maps[2] | maps[3], number);
        agc_error_truth_destroy(&truth);
    }
    agc_arrays_destroy(&x);
}

int main(int argc, char **argv)
{
    const uint64_t seed = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
    const int step = argc > 2 ? atoi(argv[2]) : 1, only = argc > 3 ? atoi(argv[3]) : -1;
    test_need(step > 0, "STEP is below 1");
    printf("seed %llu, one problem of %d\n", (unsigned long long)seed, step);
    emulated_hopper = true;
    for (int n = 0; n < N_PAIRS + N_RANDOM; n++) {
        if (only >= 0 ? n == only : (uint64_t)n % (uint64_t)step == seed % (uint64_t)step) {
            check_case(seed, n);
        }
    }
    printf("%d of %d problems on the table sm90\n", on_table, problems);
    CHECK(only >= 0 || 2 * on_table > problems, "most problems are not on the table");
    return test_summary();
}
