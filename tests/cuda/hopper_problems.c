/* The kernels of the table sm90 by the error rule, on the processor: dtypes, head sizes, every feature that they serve,
 * every set of score features, tiles that are cut on each side; copies that arrive early or late, the first or the last
 * warp ahead, the last warps behind.
 *
 * cuda_hopper_emulated [SEED [STEP [NUMBER]]]: of the long lists, of single problems and of tiled masks, one of STEP,
 * which ones by SEED, each under one schedule, another one for the next; if STEP is 1 each under all six. NUMBER: this
 * problem alone. */
#include "hopper_list.h"

/* Under which schedule the problem runs, in rings of which length. */
static void prepare(const struct hopper_problem *problem, int schedule)
{
    emulate_schedule_number((unsigned)schedule);
    emulated_ring_most = problem->with & SHORT_RINGS ? 2 : 64;
}

static void check_problem(const struct hopper_problem *problem, int number, int schedule)
{
    prepare(problem, schedule);
    check_hopper_problem(problem, number);
}

/* Before a run: its results shall not be those of the run before. */
static void spoil_results(struct arrays *x, uint64_t results)
{
    for (int t = 0; t < T_COUNT; t++) {
        if (results & RESULT(t) && x->data[t] != NULL) {
            memset(x->data[t], 0x55, tensor_bytes(x, (enum tensor)t));
        }
    }
}
/* Have these results the same bits as those that were kept? */
static void check_same(const struct arrays *x, void *const *kept, uint64_t results, const char *text)
{
    for (int t = 0; t < T_COUNT; t++) {
        if (results & RESULT(t) && x->data[t] != NULL) {
            same_tensor(x, (enum tensor)t, x->data[t], kept[t], text);
        }
    }
}

/* However many multiprocessors share the tiles of forward, and the blocks of keys of vjp and vjp_jvp in one kernel,
 * which wait for each other, results have the same bits. A ring fits the fewest of them. */
static void check_grids(const struct hopper_problem *problem)
{
    static const int32_t processors[] = {4, 7, 132};
    const int32_t usual = emulated_processors;
    const uint64_t results = results_of(problem);
    struct arrays x;
    void *kept[T_COUNT];
    emulated_ring_most = problem->with & SHORT_RINGS ? 2 : 4;
    make_hopper_problem(&x, problem, 11);
    for (int n = 0; n < 3; n++) {
        emulated_processors = processors[n];
        emulate_schedule(n & 1, n % EMULATE_ORDERS);
        spoil_results(&x, results);
        CHECK_OK(run_hopper_maps(&x, problem));
        if (n == 0) {
            keep_outputs(&x, kept);
        }
        check_same(&x, kept, results, problem->text);
    }
    emulated_processors = usual;
    emulated_ring_most = 64;
    free_outputs(kept);
    agc_arrays_destroy(&x);
}

/* jvp that is given o and lse: the same tangents, bit for bit, and what is given stays. */
static void check_given(const char *text)
{
    const struct hopper_problem problem = {text, 0};
    static const enum tensor all[] = {T_O, T_O_LOW, T_LSE, T_TO, T_TO_LOW, T_MU};
    struct arrays x;
    void *kept[T_COUNT];
    make_hopper_problem(&x, &problem, 11);
    CHECK_OK(agc_arrays_run(&x, AG_MAP_JVP));
    keep_outputs(&x, kept);
    run_given_jvp(&x);
    for (int n = 0; n < 6; n++) {
        if (x.data[all[n]] != NULL) {
            same_tensor(&x, all[n], x.data[all[n]], kept[all[n]], text);
        }
    }
    free_outputs(kept);
    agc_arrays_destroy(&x);
}

/* jvp has the same bits whether the copy engine reads the bias, its tangent, both or, as they are not aligned, none. */
static void check_entries(const char *text)
{
    static const enum tensor results[] = {T_O, T_LSE, T_TO, T_MU}, read[2] = {T_BIAS, T_TBIAS};
    const struct hopper_problem problem = {text, 0};
    struct arrays x;
    void *kept[T_COUNT];
    make_hopper_problem(&x, &problem, 11);
    CHECK_OK(agc_arrays_run(&x, AG_MAP_JVP));
    keep_outputs(&x, kept);
    for (int moved = 1; moved < 4; moved++) {
        uint16_t *copies[2];
        for (int n = 0; n < 2; n++) {
            copies[n] = test_alloc(x.count[read[n]] + 1, sizeof(uint16_t));
            memcpy(copies[n] + 1, x.data[read[n]], (size_t)x.count[read[n]] * sizeof(uint16_t));
            agc_arrays_tensor(&x, read[n])->data = moved >> n & 1 ? copies[n] + 1 : x.data[read[n]];
        }
        CHECK_OK(agc_arrays_run(&x, AG_MAP_JVP));
        for (int n = 0; n < 4; n++) {
            same_tensor(&x, results[n], x.data[results[n]], kept[results[n]], text);
        }
        free(copies[0]);
        free(copies[1]);
    }
    free_outputs(kept);
    agc_arrays_destroy(&x);
}

/* jvp where the bias hides pairs, and every third key from all queries: what they have in tangents may be anything. */
static void check_hiding_bias(const char *text)
{
    static const enum tensor of_keys[] = {T_K, T_V, T_TK, T_TV};
    const struct hopper_problem problem = {text, HIDING_BIAS};
    struct arrays x;
    make_hopper_problem(&x, &problem, 11);
    const ag_problem *p = ag_plan_problem(x.plan);
    const uint16_t *bias = x.data[T_BIAS], least = p->dtype == AG_F16 ? 0xfc00 : 0xff80;
    uint16_t *const tangent = x.data[T_TBIAS];
    for (int64_t n = 0; n < x.count[T_BIAS]; n++) {
        tangent[n] = bias[n] == least ? 0x7fff : tangent[n];
    }
    for (int64_t j = 0; j < p->kv_len; j += 3) {
        for (int n = 0; n < 4; n++) {
            spoil_rows(&x, of_keys[n], j, j + 1);
        }
    }
    if (CHECK_OK(agc_arrays_run(&x, AG_MAP_JVP))) {
        const int wrong = count_wrong_results(&x, FORWARD_RESULTS | JVP_RESULTS, text, true);
        CHECK(wrong == 0, "'%s' with a bias that hides: %d results of jvp out of the rule", text, wrong);
    }
    agc_arrays_destroy(&x);
}

/* vjp in two kernels: a call that returns one gradient alone gives the same bits as one that returns all three. */
static void check_alone(const char *text)
{
    static const enum tensor gradients[] = {T_DQ, T_DK, T_DV};
    const struct hopper_problem problem = {text, INVARIANT};
    struct arrays x;
    void *kept[T_COUNT];
    make_hopper_problem(&x, &problem, 11);
    CHECK_OK(agc_arrays_run(&x, AG_MAP_FORWARD));
    CHECK_OK(agc_arrays_run(&x, AG_MAP_VJP));
    keep_outputs(&x, kept);
    for (int alone = 0; alone < 3; alone++) {
        const enum tensor t = gradients[alone];
        for (int n = 0; n < 3; n++) {
            agc_arrays_tensor(&x, gradients[n])->data = n == alone ? x.data[gradients[n]] : NULL;
        }
        memset(x.data[t], 0x55, (size_t)x.count[t] * sizeof(uint16_t));
        CHECK_OK(agc_arrays_run(&x, AG_MAP_VJP));
        same_tensor(&x, t, x.data[t], kept[t], text);
    }
    free_outputs(kept);
    agc_arrays_destroy(&x);
}

/* ---- Masks by tiles ---- */

/* Maps by the error rule; and with the bits that they have if no tile is left out. */
static void check_skipping(const struct error_truth *truth, struct arrays *x, const char *text,
                           const uint32_t maps[2], uint64_t results)
{
    void *kept[T_COUNT];
    check_masked_maps(truth, x, text, maps, results);
    keep_outputs(x, kept);
    spoil_results(x, results);
    emulate_change_classes(CLASSES_ALL_MIXED);
    run_masked_maps(x, maps);
    emulate_change_classes(CLASSES_AS_MADE);
    check_same(x, kept, results, text);
    free_outputs(kept);
}

static void check_tiled_mask(const struct hopper_problem *problem, int schedule, bool with_tangents)
{
    struct arrays x;
    make_tiled_mask(&x, problem);
    struct error_truth truth = truth_of(&x);
    prepare(problem, schedule);
    check_skipping(&truth, &x, problem->text, masked_first_order, FORWARD_RESULTS | VJP_RESULTS);
    if (with_tangents) {
        check_skipping(&truth, &x, problem->text, masked_tangents,
                       FORWARD_RESULTS | JVP_RESULTS | VJP_JVP_RESULTS);
    }
    agc_error_truth_destroy(&truth);
    agc_arrays_destroy(&x);
}

static void check_number(int number, int schedule)
{
    char text[256];
    struct hopper_problem p;
    hopper_problem_of(number, text, sizeof text, &p);
    check_problem(&p, number, schedule);
}

/* The other maps take what this forward leaves: O and lse, and scores that they compute again. */
static void check_all_maps(const char *text)
{
    struct error_entry entries[T_COUNT];
    struct arrays x;
    ag_problem p = AG_PROBLEM_INIT;
    int count = 0;
    CHECK_OK(ag_problem_parse(text, &p));
    test_need(agc_arrays_create(&x, &p, NULL, 5) == AG_OK, "a plan");
    CHECK_OK(agc_arrays_run_all(&x));
    CHECK_OK(agc_error_rule(&x, 1, entries, &count));
    for (int n = 0; n < count; n++) {
        CHECK(agc_error_entry_passed(&entries[n]), "'%s': %s: error %.2e, limit %.2e", text,
              agc_tensor_info[entries[n].t].name, entries[n].error, entries[n].limit);
    }
    agc_arrays_destroy(&x);
}

/* Tangents that vjp_jvp is not given count as zeros. */
static void check_absent(const char *text, uint32_t absent)
{
    static const enum tensor tensors[] = {T_TQ, T_TK, T_TV, T_TD_O};
    const struct hopper_problem problem = {text, 0};
    struct arrays x;
    make_hopper_problem(&x, &problem, 11);
    for (int n = 0; n < 4; n++) {
        const enum tensor t = tensors[n];
        if (absent >> n & 1) {
            memset(x.data[t], 0, (size_t)x.count[t] * sizeof(uint16_t)); /* for the truth */
            agc_arrays_tensor(&x, t)->data = NULL;
        }
    }
    if (CHECK_OK(run_hopper_maps(&x, &(struct hopper_problem){text, 0}))) {
        const int wrong = count_wrong_results(&x, ALL_RESULTS, text, true);
        CHECK(wrong == 0, "'%s' without tangents %x: %d results out of the rule", text,
              (unsigned)(absent & 15), wrong);
    }
    agc_arrays_destroy(&x);
}

/* Forward's tiles; rings of blocks, of one group and of two; bands, of sequences that differ; the same with masks and
 * with other score features. */
static const struct hopper_problem grids[] = {
    {"h5 q130 k70 d128 bf16", FORWARD_ALONE},
    {"b3 h1 q200 k240 d64 f32 causal", FORWARD_ALONE | WITH_LENGTHS},
    {"h3 q130 k70 d256 f16 causal", FORWARD_ALONE},
    {"b3 h2 kv1 q100 k250 d64 bf16 grad=f32", 0},
    {"h3 q70 k500 d128 f16", SHORT_RINGS},
    {"b3 h1 q200 k270 d64 f16 causal", WITH_LENGTHS},
    {"h3 q260 k400 d128 bf16 window=150,60 grad=f32", SHORT_RINGS},
    {"b3 h1 q130 k250 d64 f16 mask=b1qk", MASK_BY_TILES | FIRST_ORDER},
    {"h3 q200 k500 d128 bf16 mask=1hqk", MASK_BY_TILES | SHORT_RINGS | FIRST_ORDER},
    {"h3 q300 k400 d64 bf16 mask=1hqk grad=f32 causal", MASK_BY_TILES | SHORT_RINGS | FIRST_ORDER},
    {"h3 q70 k260 d64 bf16 softcap=4", 0},
    {"b3 h1 q70 k260 d128 f16 bias=11qk dropout=0.2 causal", 0},
};
enum { N_GRIDS = sizeof grids / sizeof grids[0] };

/* The problems under their numbers: those of hopper_problem_of, then masks by tiles, then grids. */
static void check_by_number(int n, int schedule, bool with_tangents)
{
    if (n < N_NUMBERS) {
        check_number(n, schedule);
    } else if (n < N_NUMBERS + N_TILED_MASKS) {
        check_tiled_mask(&tiled_masks[n - N_NUMBERS], schedule, with_tangents);
    } else {
        check_grids(&grids[n - N_NUMBERS - N_TILED_MASKS]);
    }
}
/* Is it in one of the long lists? */
static bool is_sampled(int n)
{
    return n < N_PROBLEMS || (n >= N_NUMBERS && n < N_NUMBERS + N_TILED_MASKS);
}

static void check_others(void)
{
    check_given("b2 h2 kv1 q70 k80 d64 bf16 causal sink");
    check_given("b3 h1 q100 k140 d128 f16 packed=230,270");
    check_entries("h2 q70 k136 d128 bf16 bias=1hqk");
    check_entries("b2 h1 q140 k200 d64 f16 bias=b1qk causal");
    check_hiding_bias("h2 q140 k296 d128 bf16 bias=1hqk sink");
    check_hiding_bias("h2 q70 k201 d64 f16 bias=1hqk");
    check_alone("h2 kv1 q70 k80 d100 bf16");
    check_alone("h2 kv1 q70 k80 d160 f16");
    check_all_maps("h1 q70 k80 d64 bf16 causal scale=300");
    check_all_maps("h1 q70 k70 d20 f16 scale=300");
    check_all_maps("h1 q70 k70 d64 bf16 scale=300 softcap=50");
    check_all_maps("h1 q70 k90 d128 f16 scale=300 softcap=100 causal");
    check_all_maps("h1 q70 k90 d64 f16 scale=300 alibi table=20");
    check_all_maps("h1 q70 k130 d128 bf16 scale=300 bias=1hqk dropout=0.2");
    check_all_maps("h1 q70 k90 d128 bf16 scale=300");
    check_all_maps("h1 q66 k70 d100 f16 scale=300 causal");
    check_all_maps("h1 q70 k130 d64 f32 scale=300");
    check_all_maps("h1 q66 k70 d100 f32 scale=300 causal");
    check_all_maps("h1 q66 k70 d160 bf16 scale=300");
    for (uint32_t absent = 1; absent < 16; absent *= 2) {
        check_absent("h1 q70 k80 d64 bf16 causal", absent);
        check_absent("h1 q70 k80 d128 f16", ~absent);
    }
}

int main(int argc, char **argv)
{
    const unsigned long seed = argc > 1 ? strtoul(argv[1], NULL, 10) : 1;
    const int step = argc > 2 ? atoi(argv[2]) : 1, only = argc > 3 ? atoi(argv[3]) : -1;
    test_need(step > 0, "STEP is below 1");
    emulated_hopper = true;
    for (int n = 0; n < N_NUMBERS + N_TILED_MASKS + N_GRIDS; n++) {
        const bool drawn = !is_sampled(n) || (unsigned)n % (unsigned)step == seed % (unsigned)step;
        const int schedules = step == 1 && n < N_NUMBERS + N_TILED_MASKS ? EMULATE_SCHEDULES : 1;
        for (int s = 0; s < schedules && (only >= 0 ? n == only : drawn); s++) {
            const unsigned long schedule = seed + (unsigned long)(n + n / EMULATE_SCHEDULES + s);
            check_by_number(n, (int)(schedule % EMULATE_SCHEDULES), step == 1 || schedule % 2 == 0);
        }
    }
    if (only < 0) {
        check_others();
    }
    if (only < 0 && step == 1) {
        const int ran = emulate_report(AGI_CUDA_N_PORTABLE, AGI_CUDA_N_KERNELS);
        CHECK_INT(ran, AGI_CUDA_N_KERNELS - AGI_CUDA_N_PORTABLE);
    }
    return test_summary();
}
