/* The kernels of the table sm90 by the error rule, on the processor: dtypes, head sizes, every feature that they serve,
 * every set of score features, tiles that are cut on each side; copies that arrive early or late, the first or the last
 * warp ahead.
 *
 * cuda_hopper_emulated [SCHEDULES [NUMBER]]: how many of the four schedules each problem runs under, another one first
 * for each; this problem alone. */
#include "hopper_problems.h"
#include "outputs.h"

static const struct hopper_problem problems[] = {
    {"h1 q200 k300 d64 bf16", 0},
    {"h1 q140 k270 d128 bf16", WITH_LOW},
    {"h1 q200 k230 d64 f16 causal", WITH_LOW},
    {"h1 q140 k140 d128 f16 causal", 0},
    {"h2 kv1 q130 k300 d128 bf16 causal align=bottom-right", 0},
    {"h2 kv1 q200 k260 d64 bf16 window=40,9", 0},
    {"h1 q260 k90 d128 f16 window=-1,20 sink", WITH_LOW},
    {"b3 h1 q200 k240 d64 bf16 causal", WITH_LENGTHS},
    {"b3 h1 q70 k150 d128 f16 sink", WITH_LENGTHS | WITH_LOW},
    {"b3 h2 q120 k150 d64 f16 packed=210,290", WITH_LOW},
    {"b3 h1 q100 k140 d128 bf16 causal packed=230,270 sink", 0},
    {"h1 q70 k130 d40 dv24 bf16", WITH_LOW},
    {"h1 q70 k70 d100 dv128 f16 causal", 0},
    {"h1 q66 k120 d20 dv13 bf16", WITH_LOW},
    {"h1 q70 k140 d128 dv70 f16 out=f32", 0}, /* dK in boxes, dV row by row */
    {"h1 q70 k120 d64 bf16 out=f32 causal", 0},
    {"b2 h1 q70 k120 d64 bf16 window=30,0", WITH_OFFSETS},
    {"h1 q100 k70 d64 f16 scale=-0.3", 0},
    {"h1 q80 k200 d64 bf16 causal", NOT_A_NUMBER},
    {"h1 q65 k200 d128 f16 causal", NOT_A_NUMBER},
    /* gradients that are not stored in pairs */
    {"h2 kv1 q100 k150 d33 dv17 bf16 causal", 0},
    {"b2 h1 q70 k200 d97 dv128 f16", WITH_LENGTHS},
    {"h1 q90 k140 d64 f16 grad=f32 window=60,30", 0},
    {"b2 h1 q90 k140 d128 bf16 grad=f32 packed=160,250", 0},
    /* vjp and vjp_jvp in two kernels */
    {"h1 q200 k300 d64 bf16", INVARIANT},
    {"h2 kv1 q130 k300 d128 bf16 causal align=bottom-right", INVARIANT},
    {"b3 h1 q200 k240 d64 f16 causal", WITH_LENGTHS | INVARIANT},
    {"b3 h1 q100 k140 d128 f16 causal packed=230,270 sink", INVARIANT},
    {"h1 q65 k200 d128 f16 causal", NOT_A_NUMBER | INVARIANT},
    /* rings of blocks of keys: several at once, several per head, more blocks than tiles of queries */
    {"b2 h4 kv2 q200 k250 d128 bf16", 0},
    {"h2 q300 k500 d64 f16", SHORT_RINGS},
    {"b3 h1 q260 k600 d128 bf16", SHORT_RINGS | WITH_LENGTHS},
    {"h1 q40 k520 d128 f16", 0},
    {"b2 h4 kv1 q150 k400 d64 bf16 causal", 0},
    {"h2 q200 k560 d128 bf16 window=150,60", 0},
    /* bands of several groups of blocks */
    {"h1 q500 k560 d128 bf16 causal", SHORT_RINGS},
    {"h2 kv1 q400 k600 d64 f16 window=300,60", SHORT_RINGS},
    {"b3 h1 q330 k560 d128 f16 causal align=bottom-right", SHORT_RINGS | WITH_LENGTHS},
    {"h2 kv1 q200 k70 d64 f16 causal align=bottom-right", NOT_A_NUMBER},
    {"h1 q220 k90 d128 bf16 causal align=bottom-right", NOT_A_NUMBER},
    /* Several tiles for a block: of several heads and lengths, of one tile of keys, without any key, by rows. */
    {"b2 h2 q260 k200 d128 bf16", FORWARD_ALONE},
    {"b3 h2 q200 k240 d64 f16 causal sink", FORWARD_ALONE | WITH_LENGTHS | WITH_LOW},
    {"b3 h2 q200 k240 d64 bf16 causal sink", FORWARD_ALONE | WITH_LENGTHS | WITH_LOW | INVARIANT},
    {"h3 q450 k150 d64 f16 window=20,9", FORWARD_ALONE | INVARIANT},
    {"b2 h3 q130 k70 d128 f16", FORWARD_ALONE | WITH_LOW},
    {"h3 q450 k150 d64 bf16 window=20,9", FORWARD_ALONE},
    {"h2 kv1 q450 k150 d128 bf16 window=20,0 sink", FORWARD_ALONE},
    {"b6 h2 q190 k150 d64 bf16 packed=420,500 causal", FORWARD_ALONE | WITH_LOW},
    {"b5 h2 q190 k150 d128 f16 packed=420,500 out=f32", FORWARD_ALONE},
    {"h1 q70 k200 d64 bf16", LARGE_TANGENTS},
    {"h1 q70 k200 d128 f16 causal", LARGE_TANGENTS | WITH_LOW},
    {"h1 q130 k200 d64 f16 sink", LARGE_TANGENTS},
    {"h1 q70 k170 d128 bf16 causal", COMMON_TANGENT},
    {"h1 q130 k300 d64 bf16 window=50,20 sink", COMMON_TANGENT},
    {"h1 q70 k200 d128 f16", COMMON_TANGENT | WITH_LOW},
    {"b2 h2 kv1 q70 k90 d64 bf16 causal", WITHOUT_TK},
    {"h2 q66 k100 d128 f16", WITHOUT_TQ_TV},
    {"h2 q66 k100 d64 bf16", WITHOUT_TQ_TV | INVARIANT},
    {"h2 kv1 q70 k90 d128 f16 causal", WITHOUT_TK | INVARIANT},
    {"b2 h1 q70 k120 d64 bf16 window=30,0 dropout=0.2", WITH_OFFSETS},
    {"b2 h2 q60 k120 d64 f16 alibi=slopes", WITH_OFFSETS},
    /* head sizes above 128 */
    {"h1 q140 k200 d256 bf16", FIRST_ORDER | WITH_LOW},
    {"h2 kv1 q130 k170 d160 f16 causal", FIRST_ORDER},
    {"h1 q200 k90 d200 dv256 bf16 window=40,9 sink", FIRST_ORDER},
    {"b3 h1 q150 k140 d256 f16 causal", FIRST_ORDER | WITH_LENGTHS | WITH_LOW},
    {"b3 h2 kv1 q100 k140 d192 dv136 bf16 causal packed=230,270 sink", FIRST_ORDER},
    {"h1 q70 k130 d130 dv20 f16 out=f32", FIRST_ORDER},
    {"h1 q65 k200 d256 bf16 causal", FIRST_ORDER | NOT_A_NUMBER},
    {"h1 q200 k150 d256 f16 causal align=bottom-right", FIRST_ORDER | NOT_A_NUMBER},
    {"b2 h1 q70 k90 d200 bf16 window=30,0", FIRST_ORDER | WITH_OFFSETS | INVARIANT},
    {"h6 q66 k90 d256 bf16", FORWARD_ALONE},
    {"b3 h1 q100 k140 d128 bf16 dropout=0.5 bias=1h1k", WITH_LENGTHS},
    {"b2 h2 kv1 q70 k150 d64 f16 bias=b1q1 mask sink", WITH_LENGTHS | WITH_LOW},
    /* bias that the copy engine reads: tiles of several heads and blocks, cut ones, axes that are the same all along */
    {"h2 kv1 q300 k264 d128 bf16 bias=1hqk causal", 0},
    {"b2 h2 q140 k208 d128 f16 bias=b1qk mask=11qk", WITH_LENGTHS},
    {"b3 h1 q120 k144 d64 bf16 packed=250,300 bias=11qk", 0},
    {"b2 h2 q150 k264 d64 f16 dropout=0.2 bias=bhqk", 0},
    /* forward: many tiles of it, packed sequences, rows that no copy can read, pairs and keys that it alone hides */
    {"b2 h3 q330 k200 d128 f16 bias=1hqk window=70,40", FORWARD_ALONE | WITH_LOW},
    {"b3 h2 q150 k104 d128 bf16 packed=300,200 bias=bhqk dropout=0.2", FORWARD_ALONE},
    {"b2 h2 kv1 q150 k392 d64 f16 bias=11qk mask=11qk", FORWARD_ALONE | WITH_LENGTHS | HIDING_BIAS},
    {"h2 q200 k296 d128 bf16 bias=1hqk sink", FORWARD_ALONE | HIDING_BIAS},
    {"h2 q140 k265 d128 bf16 bias=1hqk", FORWARD_ALONE | HIDING_BIAS},
    {"b2 h2 q140 k200 d100 f16 bias=bhqk aux=f32 dropout=0.3", FORWARD_ALONE},
    {"b4 h3 q260 k136 d40 bf16 bias=b1qk causal", FORWARD_ALONE | INVARIANT},
    {"h1 q70 k72 d64 bf16 bias=11qk", FAR_BIAS},
    {"h1 q70 k72 d64 bf16 bias=11qk", FAR_BIAS | INVARIANT},
    /* the gradient of a bias that sequences or heads share: walks in one part and in two, empty and cut tiles */
    {"b5 h2 q70 k66 d64 bf16 bias=11qk", FIRST_ORDER},
    {"b9 h1 q66 k70 d128 f16 bias=1hqk causal", FIRST_ORDER | WITH_LENGTHS},
    {"b2 h6 kv2 q210 k140 d40 f16 bias=b1qk", FIRST_ORDER},
    {"b3 h4 kv1 q130 k150 d128 bf16 bias=11qk mask=b1qk", FIRST_ORDER},
    {"b2 h3 q200 k144 d64 f16 bias=1hqk mask=bhqk causal", FIRST_ORDER | INVARIANT},
    {"b5 h2 q70 k100 d100 bf16 bias=1hqk dropout=0.3 causal", FIRST_ORDER | WITH_OFFSETS},
    {"b3 h4 kv2 q66 k100 d64 f16 packed=150,230 bias=11qk aux=f32 sink", FIRST_ORDER},
    {"b3 h2 q200 k130 d24 bf16 bias=bhqk window=40,9", FIRST_ORDER | WITH_LENGTHS},
    {"b9 h1 q70 k70 d64 bf16 bias=11qk", FIRST_ORDER | FAR_BIAS | INVARIANT},
    {"b2 h2 kv1 q80 k200 d64 f16 bias=11qk causal", FIRST_ORDER | NOT_A_NUMBER},
    /* masks that are read 16 keys at a time, but for the last ones */
    {"b2 h2 kv1 q150 k160 d128 bf16 mask=bhqk", 0},
    {"b3 h1 q100 k144 d64 f16 packed=230,270 mask=b11k", 0},
    /* float32, two planes: the other maps, which take its O and lse, are portable */
    {"h1 q200 k300 d64 f32", 0},
    {"h1 q140 k270 d128 f32 causal", 0},
    {"h1 q300 k200 d64 f32", FORWARD_ALONE},
    {"b2 h2 kv1 q130 k300 d128 f32 causal align=bottom-right", FORWARD_ALONE},
    {"h4 kv2 q200 k260 d64 f32 window=40,9 sink", FORWARD_ALONE},
    {"h1 q260 k90 d128 f32 window=-1,20 sink", FORWARD_ALONE},
    {"b3 h1 q200 k240 d64 f32 causal", WITH_LENGTHS},
    {"b3 h2 q70 k150 d128 f32 sink", FORWARD_ALONE | WITH_LENGTHS},
    {"b3 h1 q100 k140 d128 f32 causal packed=230,270 sink", 0},
    {"b6 h2 q190 k150 d64 f32 packed=420,500", FORWARD_ALONE},
    {"h1 q70 k130 d40 dv23 f32", FORWARD_ALONE},
    {"h1 q70 k70 d100 dv128 f32 causal", FORWARD_ALONE},
    {"h1 q66 k120 d13 dv20 f32", FORWARD_ALONE},
    {"b2 h1 q70 k120 d64 f32 window=30,0", FORWARD_ALONE | WITH_OFFSETS},
    {"h1 q100 k70 d64 f32 scale=-0.3", FORWARD_ALONE},
    {"h1 q80 k200 d64 f32 causal", NOT_A_NUMBER},
    {"h1 q65 k200 d128 f32 causal", FORWARD_ALONE | NOT_A_NUMBER},
    {"h1 q40 k60 d128 f32", FORWARD_ALONE | INVARIANT},
    {"h1 q450 k150 d64 f32 window=20,9", FORWARD_ALONE},
};
enum { N_PROBLEMS = sizeof problems / sizeof problems[0] };

static void check_problem(const struct hopper_problem *problem, int number, int schedule)
{
    struct arrays x;
    make_hopper_problem(&x, problem, (uint64_t)number);
    emulate_schedule(schedule & 1, (schedule >> 1) % EMULATE_ORDERS);
    if (problem->with & NOT_A_NUMBER) {
        spoil_hidden_rows(&x);
    }
    remove_tangents(&x, problem->with);
    if (!(problem->with & (FORWARD_ALONE | FIRST_ORDER)) && CHECK_OK(agc_arrays_run(&x, AG_MAP_JVP))) {
        const int wrong = count_wrong_results(&x, FORWARD_RESULTS | JVP_RESULTS, problem->text, true);
        CHECK(wrong == 0, "%d: '%s' under schedule %d: %d results of jvp out of the rule", number,
              problem->text, schedule, wrong);
    }
    if (CHECK_OK(run_hopper_maps(&x, problem))) {
        const int wrong = count_wrong_results(&x, results_of(problem), problem->text, true);
        CHECK(wrong == 0, "%d: '%s' under schedule %d: %d results out of the rule", number, problem->text,
              schedule, wrong);
    }
    agc_arrays_destroy(&x);
}

/* However many blocks share the tiles, results have the same bits. */
static void check_grids(const struct hopper_problem *problem)
{
    static const int32_t processors[] = {2, 1000};
    const int32_t usual = emulated_processors;
    struct arrays x;
    void *kept[T_COUNT];
    make_hopper_problem(&x, problem, 11);
    CHECK_OK(agc_arrays_run(&x, AG_MAP_FORWARD));
    keep_outputs(&x, kept);
    for (int n = 0; n < 2; n++) {
        emulated_processors = processors[n];
        CHECK_OK(agc_arrays_run(&x, AG_MAP_FORWARD));
        same_tensor(&x, T_O, x.data[T_O], kept[T_O], problem->text);
        same_tensor(&x, T_LSE, x.data[T_LSE], kept[T_LSE], problem->text);
    }
    emulated_processors = usual;
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

static const struct hopper_problem tiled_masks[] = {
    {"h2 kv1 q200 k400 d64 bf16 mask=11qk", MASK_BY_TILES},
    {"h2 q270 k320 d128 f16 mask=1hqk sink", MASK_BY_TILES | WITH_LOW},
    {"b2 h1 q130 k300 d128 bf16 mask=b1qk causal align=bottom-right", MASK_BY_TILES},
    {"b3 h2 kv1 q200 k272 d64 f16 mask=11qk causal", MASK_BY_TILES | WITH_LENGTHS},
    {"b3 h1 q140 k256 d128 bf16 mask=b1qk packed=300,500", MASK_BY_TILES},
    {"b2 h2 q140 k336 d64 bf16 mask=bh1k", MASK_BY_TILES},
    {"h2 q330 k130 d128 f16 mask=1hq1", MASK_BY_TILES},
    {"h1 q200 k448 d128 bf16 bias=11qk mask=11qk", MASK_BY_TILES},
    {"h2 kv1 q140 k320 d64 f16 bias=1h1k mask=11qk window=150,70", MASK_BY_TILES},
    {"h1 q200 k272 d128 bf16 mask=11qk sink", MASK_EMPTY},
    {"h1 q140 k200 d64 f16 mask=11qk", MASK_EMPTY},
    {"h1 q140 k272 d128 f16 mask=11qk causal", MASK_FULL},
    {"b3 h1 q200 k256 d128 bf16 mask=11qk causal", MASK_BY_TILES | WITH_LENGTHS | INVARIANT},
    /* more tiles in a row than a warp has lanes */
    {"h2 kv1 q2150 k70 d64 bf16 mask=1hqk", MASK_BY_TILES},
    {"h1 q70 k2200 d64 f16 mask=11qk", MASK_BY_TILES},
};
enum { N_TILED_MASKS = sizeof tiled_masks / sizeof tiled_masks[0] };

/* Maps by the error rule; and with the bits that they have if no tile is left out. */
static void check_skipping(struct arrays *x, const char *text, const uint32_t maps[2], uint64_t results)
{
    void *kept[T_COUNT];
    for (int all = 0; all < 2; all++) {
        emulate_change_classes(all ? CLASSES_ALL_MIXED : CLASSES_AS_MADE);
        for (int n = 0; n < 2 && maps[n] != 0; n++) {
            CHECK_OK(agc_arrays_run(x, maps[n]));
        }
        emulate_change_classes(CLASSES_AS_MADE);
        if (!all) {
            const int wrong = count_wrong_results(x, results, text, true);
            CHECK(wrong == 0, "'%s': %d results out of the rule", text, wrong);
            keep_outputs(x, kept);
        }
    }
    for (int t = 0; t < T_COUNT; t++) {
        if (results & RESULT(t) && x->data[t] != NULL) {
            same_tensor(x, (enum tensor)t, x->data[t], kept[t], text);
        }
    }
    free_outputs(kept);
}
static void check_tiled_mask(const struct hopper_problem *problem, int schedule, bool with_jvp)
{
    static const uint32_t first[2] = {AG_MAP_FORWARD, AG_MAP_VJP}, tangents[2] = {AG_MAP_JVP};
    struct arrays x;
    make_hopper_problem(&x, problem, 3);
    spoil_masked_rows(&x);
    emulate_schedule(schedule & 1, (schedule >> 1) % EMULATE_ORDERS);
    check_skipping(&x, problem->text, first, FORWARD_RESULTS | VJP_RESULTS);
    if (with_jvp) {
        check_skipping(&x, problem->text, tangents, FORWARD_RESULTS | JVP_RESULTS);
    }
    agc_arrays_destroy(&x);
}

/* Problems of the list, then those of the feature sets; then these once more, with vjp in two kernels. With a mask it
 * is so in any case. */
static void check_number(int number, int schedule)
{
    const int of_sets = N_HOPPER_SETS * N_SET_PROBLEMS;
    char text[256];
    struct hopper_problem of_set = {text, 0};
    if (number < N_PROBLEMS) {
        check_problem(&problems[number], number, schedule);
    } else {
        const int n = (number - N_PROBLEMS) % of_sets;
        const bool once_more = number - N_PROBLEMS >= of_sets;
        of_set.with = once_more ? INVARIANT | FIRST_ORDER : 0;
        format_set_problem(text, sizeof text, n / N_SET_PROBLEMS, n % N_SET_PROBLEMS);
        if (!once_more || !(hopper_sets[n / N_SET_PROBLEMS].features & AGI_HAS_MASK)) {
            check_problem(&of_set, number, schedule);
        }
    }
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

int main(int argc, char **argv)
{
    const int schedules = argc > 1 ? atoi(argv[1]) : 1, only = argc > 2 ? atoi(argv[2]) : -1;
    emulated_hopper = true;
    for (int n = 0; n < N_PROBLEMS + 2 * N_HOPPER_SETS * N_SET_PROBLEMS; n++) {
        for (int s = 0; s < schedules && (only < 0 || n == only); s++) {
            check_number(n, (n + n / 4 + s) % 4);
        }
    }
    for (int n = 0; n < N_TILED_MASKS * schedules; n++) {
        if (only < 0 || only == N_PROBLEMS + 2 * N_HOPPER_SETS * N_SET_PROBLEMS + n % N_TILED_MASKS) {
            check_tiled_mask(&tiled_masks[n % N_TILED_MASKS], (n + n / N_TILED_MASKS) % 4,
                             schedules > 1 || n % 2 == 0);
        }
    }
    if (only < 0) {
        check_grids(&(struct hopper_problem){"h5 q130 k70 d128 bf16", 0});
        check_grids(&(struct hopper_problem){"b3 h1 q200 k240 d64 f16 causal", WITH_LENGTHS});
        check_grids(&(struct hopper_problem){"b3 h1 q200 k240 d64 f32 causal", WITH_LENGTHS});
        check_grids(&(struct hopper_problem){"h3 q130 k70 d256 f16 causal", 0});
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
        check_all_maps("h1 q70 k90 d128 bf16 scale=300");
        check_all_maps("h1 q66 k70 d100 f16 scale=300 causal");
        check_all_maps("h1 q70 k130 d64 f32 scale=300");
        check_all_maps("h1 q66 k70 d100 f32 scale=300 causal");
        check_all_maps("h1 q66 k70 d160 bf16 scale=300");
        for (uint32_t absent = 1; absent < 16; absent *= 2) {
            check_absent("h1 q70 k80 d64 bf16 causal", absent);
            check_absent("h1 q70 k80 d128 f16", ~absent);
        }
        const int ran = emulate_report(AGI_CUDA_N_PORTABLE, AGI_CUDA_N_KERNELS);
        CHECK_INT(ran, AGI_CUDA_N_KERNELS - AGI_CUDA_N_PORTABLE);
    }
    return test_summary();
}
