/* Faults planted into the emulation of Hopper's verbs must be found: results out of the error rule, or a block that
 * can never end, under at least one schedule. Without a fault nothing may be found. Each problem runs in a process of
 * its own, as the emulation ends the process of a block that cannot go on.
 *
 * And faults planted into what the kernels of a feature set are given: each feature in each kernel. */
#define _POSIX_C_SOURCE 200809L /* fork */
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "hopper_problems.h"

enum { N_PROBLEMS = 3 };

static const struct hopper_problem first_order[N_PROBLEMS] = {
    {"h1 q100 k500 d64 bf16 causal align=bottom-right", WITH_LOW},
    {"h1 q130 k900 d128 bf16", WITH_LOW},
    {"h1 q70 k130 d40 bf16", 0},
};
/* Hidden rows of the stream that are NaN, many tiles of it, channels that do not exist. */
static const struct hopper_problem streamed_queries[N_PROBLEMS] = {
    {"h1 q200 k150 d100 bf16 causal align=bottom-right", NOT_A_NUMBER},
    {"h1 q500 k70 d128 bf16", 0},
    {"h1 q70 k80 d40 bf16", 0},
};
static const struct hopper_problem streamed_keys[N_PROBLEMS] = {
    {"h1 q160 k200 d100 bf16 causal", NOT_A_NUMBER},
    {"h1 q70 k800 d128 bf16", 0},
    {"h1 q70 k80 d40 bf16", 0},
};

/* Several blocks of keys that wait for each other, and several tiles of queries. */
static const struct hopper_problem key_blocks[N_PROBLEMS] = {
    {"h1 q260 k200 d100 f16 causal align=bottom-right", NOT_A_NUMBER},
    {"h1 q200 k400 d128 f16", 0},
    {"h1 q200 k260 d40 f16", 0},
};
/* The same with bias and dropout. */
static const struct hopper_problem biased_blocks[N_PROBLEMS] = {
    {"h1 q260 k200 d100 bf16 bias=11qk causal align=bottom-right", NOT_A_NUMBER},
    {"h1 q200 k400 d128 f16 bias=11qk dropout=0.2", 0},
    {"h1 q200 k260 d40 f16 bias=11qk dropout=0.2", 0},
};
/* The same with masks whose tiles are empty, full or mixed. */
static const struct hopper_problem masked_blocks[N_PROBLEMS] = {
    {"h1 q260 k330 d100 f16 mask=11qk causal align=bottom-right", MASK_BY_TILES},
    {"h1 q200 k400 d128 bf16 bias=11qk mask=11qk", MASK_BY_TILES},
    {"h1 q200 k260 d40 f16 mask=11qk", MASK_BY_TILES},
};
/* Head sizes above 128: many tiles of queries and of keys, hidden rows that are NaN. */
static const struct hopper_problem wide[N_PROBLEMS] = {
    {"h1 q200 k66 d136 bf16 causal align=bottom-right", NOT_A_NUMBER},
    {"h1 q66 k780 d256 bf16", 0},
    {"h1 q66 k70 d130 bf16", 0},
};

/* Forward alone: several tiles for each block. */
static const struct hopper_problem many_tiles[N_PROBLEMS] = {
    {"b2 h5 q130 k100 d128 bf16", FORWARD_ALONE},
    {"h6 q130 k70 d64 bf16", FORWARD_ALONE},
    {"h6 q130 k70 d40 bf16", FORWARD_ALONE | WITH_LOW},
};

/* float32's forward: hidden keys that are NaN, many tiles, rows that are stored by way of the tiles of keys. */
static const struct hopper_problem planes[N_PROBLEMS] = {
    {"h1 q80 k200 d100 f32 causal", FORWARD_ALONE | NOT_A_NUMBER},
    {"h1 q130 k900 d128 f32", FORWARD_ALONE},
    {"h1 q190 k250 d40 dv23 f32", FORWARD_ALONE},
};

/* The gradient of the bias alone: hidden keys that are NaN, a walk in two parts, channels that do not exist. */
static const struct hopper_problem shared_bias[N_PROBLEMS] = {
    {"b2 h2 q130 k150 d100 bf16 bias=11qk causal", NOT_A_NUMBER},
    {"b5 h2 q70 k70 d128 bf16 bias=11qk", 0},
    {"b2 h4 kv2 q200 k70 d40 bf16 bias=b1qk", 0},
};

/* jvp: tiles of bias and tangent that the copy engine brings, hidden keys that are NaN, empty tiles of a mask. */
static const struct hopper_problem jvp_sets[N_PROBLEMS] = {
    {"h1 q100 k504 d100 bf16 bias=11qk causal", NOT_A_NUMBER},
    {"h1 q130 k904 d128 bf16 bias=11qk", WITH_LOW},
    {"h1 q140 k330 d40 bf16 mask=11qk", MASK_BY_TILES},
};

/* What runs with the fault: the kernels of these results; the others run without it. */
static const struct part {
    const char *name;
    const struct hopper_problem *problems;
    uint64_t results;
    bool stores_boxes, waits_for_blocks; /* stores_boxes: or sums that blocks add to one after another */
    bool only_reads_tiles;               /* nothing is stored into a tile that a product reads */
} parts[] = {
    {"forward and vjp", first_order, FORWARD_RESULTS | VJP_RESULTS, true, true, false},
    {"forward's tiles", many_tiles, FORWARD_RESULTS, true, true, false},
    {"float32's forward", planes, FORWARD_RESULTS, false, false, false},
    {"jvp with a bias or a mask", jvp_sets, FORWARD_RESULTS | JVP_RESULTS, true, false, false},
    {"forward and vjp of large heads", wide, FORWARD_RESULTS | VJP_RESULTS, true, false, false},
    {"the gradient of the bias", shared_bias, RESULT(T_DBIAS), false, false, true},
    {"tdkdv", streamed_queries, RESULT(T_TDK) | RESULT(T_TDV), false, false, false},
    {"tdq", streamed_keys, RESULT(T_TDQ), false, false, false},
    {"vjp_jvp in one kernel", key_blocks, RESULT(T_TDQ) | RESULT(T_TDK) | RESULT(T_TDV), true, true, false},
    {"vjp_jvp with a bias", biased_blocks, RESULT(T_TDQ) | RESULT(T_TDK) | RESULT(T_TDV), true, true, false},
    {"vjp_jvp with a mask", masked_blocks, RESULT(T_TDQ) | RESULT(T_TDK) | RESULT(T_TDV), true, true, false},
};
enum { N_PARTS = sizeof parts / sizeof parts[0] };

/* Faults that show in some parts alone. In stored boxes and sums: nothing waits for them; chunks are not exchanged,
 * neither when a box comes nor when a product reads it. In blocks that wait for each other: they do not. */
static bool can_show(int fault, const struct part *part)
{
    enum { NO_FENCES = 5, NO_STORE_WAITS = 7, NO_SWIZZLE = 9, NO_PASSES = 10 };
    return fault == NO_PASSES                               ? part->waits_for_blocks
           : fault == NO_FENCES                             ? !part->only_reads_tiles
           : fault == NO_STORE_WAITS || fault == NO_SWIZZLE ? part->stores_boxes
                                                            : true;
}

/* vjp with the fault, of which dbias is the only result. */
static ag_status run_bias_gradient(struct arrays *x, int fault)
{
    static const enum tensor others[] = {T_DQ, T_DK, T_DV};
    emulate_plant_hopper(0);
    const ag_status status = agc_arrays_run(x, AG_MAP_FORWARD);
    for (int n = 0; n < 3; n++) {
        agc_arrays_tensor(x, others[n])->data = NULL;
    }
    emulate_plant_hopper(fault);
    return status == AG_OK ? agc_arrays_run(x, AG_MAP_VJP) : status;
}

/* Forward and vjp, or jvp, which writes O and lse too, and vjp_jvp. */
static ag_status run_part(struct arrays *x, const struct part *part, int fault)
{
    static const enum tensor second[] = {T_TDQ, T_TDK, T_TDV};
    const bool first = (part->results & FORWARD_RESULTS) != 0;
    if (part->problems == shared_bias) {
        return run_bias_gradient(x, fault);
    }
    if (part->results & JVP_RESULTS) {
        return agc_arrays_run(x, AG_MAP_JVP);
    }
    if (!first) {
        emulate_plant_hopper(0);
    }
    const ag_status status = first ? agc_arrays_run(x, AG_MAP_FORWARD) : agc_arrays_run(x, AG_MAP_JVP);
    if (first || status != AG_OK) {
        const bool more = status == AG_OK && (part->results & VJP_RESULTS) != 0;
        return more ? agc_arrays_run(x, AG_MAP_VJP) : status;
    }
    for (int n = 0; n < 3; n++) {
        if (!(part->results & RESULT(second[n]))) {
            agc_arrays_tensor(x, second[n])->data = NULL;
        }
    }
    emulate_plant_hopper(fault);
    return agc_arrays_run(x, AG_MAP_VJP_JVP);
}

/* A problem that is run more than once. */
struct prepared {
    struct arrays x;
    struct error_truth truth;
    const char *text;
};

static void prepare(struct prepared *to, const struct hopper_problem *problem)
{
    make_hopper_problem(&to->x, problem, 7);
    if (problem->with & NOT_A_NUMBER) {
        spoil_hidden_rows(&to->x, problem->with);
    }
    to->truth = truth_of(&to->x);
    to->text = problem->text;
}
static int count_wrong_of(const struct prepared *problem, uint64_t results)
{
    return count_wrong(&problem->truth, &problem->x, results, problem->text, false);
}
static void destroy_prepared(struct prepared *problem)
{
    agc_error_truth_destroy(&problem->truth);
    agc_arrays_destroy(&problem->x);
}

static void run_alone(struct prepared *problem, int schedule, const struct part *part, int fault)
{
    const struct rlimit seconds = {60, 60}; /* of the processor: a block that neither ends nor stands still */
    setrlimit(RLIMIT_CPU, &seconds);
    emulate_schedule_number((unsigned)schedule);
    const bool ran = run_part(&problem->x, part, fault) == AG_OK;
    _exit(!ran || count_wrong_of(problem, part->results) != 0);
}

/* Was something wrong? */
static bool is_found(struct prepared *problem, int schedule, const struct part *part, int fault)
{
    int status = 0;
    fflush(stdout);
    const pid_t child = fork();
    test_need(child >= 0, "fork");
    if (child == 0) {
        const int null = open("/dev/null", O_WRONLY);
        dup2(null, 2); /* what the emulation says of a block that it ends */
        run_alone(problem, schedule, part, fault);
    }
    test_need(waitpid(child, &status, 0) == child, "waitpid");
    return !WIFEXITED(status) || WEXITSTATUS(status) != 0;
}

static void check_part(const struct part *part)
{
    struct prepared problems[N_PROBLEMS];
    for (int n = 0; n < N_PROBLEMS; n++) {
        prepare(&problems[n], &part->problems[n]);
    }
    for (int fault = 0; emulate_plant_hopper(fault) != NULL; fault++) {
        const char *name = emulate_plant_hopper(fault);
        const bool of_queries = strstr(name, "queries") != NULL, of_tiles = part->problems == many_tiles;
        int found = 0;
        if (fault > 0 && of_queries != of_tiles) {
            continue; /* forward's slots are of its tiles alone, and its other barriers are those of the first part */
        }
        if (!can_show(fault, part)) {
            printf("%s: %s: left out, it stores no boxes, waits for no block or only reads tiles\n",
                   part->name, name);
            continue;
        }
        for (int n = 0; n < EMULATE_SCHEDULES * N_PROBLEMS && (fault == 0 || found == 0); n++) {
            found += is_found(&problems[n % N_PROBLEMS], EMULATE_SCHEDULES - 1 - n / N_PROBLEMS, part, fault);
        }
        printf("%s: %s: %s\n", part->name, name, found ? "found" : "not found");
        CHECK((found > 0) == (fault > 0), "%s: %s: %d problems found something", part->name, name, found);
    }
    for (int n = 0; n < N_PROBLEMS; n++) {
        destroy_prepared(&problems[n]);
    }
}

/* One feature of a set is wrong in one kernel. */
static void check_feature_fault(struct prepared *problem, const char *set, uint32_t feature,
                                const char *kernel)
{
    int wrong = 0;
    emulate_plant_feature(feature, kernel);
    emulate_schedule(0, EMULATE_FORWARDS);
    if (strcmp(kernel, "hopper_jvp") == 0) {
        CHECK_OK(agc_arrays_run(&problem->x, AG_MAP_JVP));
        wrong = count_wrong_of(problem, FORWARD_RESULTS | JVP_RESULTS);
    } else if (CHECK_OK(agc_arrays_run(&problem->x, AG_MAP_FORWARD)) &&
               CHECK_OK(agc_arrays_run(&problem->x, AG_MAP_VJP))) {
        wrong = count_wrong_of(problem, FORWARD_RESULTS | VJP_RESULTS);
    }
    CHECK((wrong > 0) == (feature != 0), "%s, feature %u in %s: %d results are out of the rule", set,
          (unsigned)feature, kernel, wrong);
    emulate_plant_feature(0, "");
}
/* The same in vjp_jvp; the maps before it are right. */
static void check_second_fault(struct prepared *problem, const char *set, uint32_t feature)
{
    int wrong = 0;
    emulate_schedule(0, EMULATE_FORWARDS);
    CHECK_OK(agc_arrays_run(&problem->x, AG_MAP_JVP));
    emulate_plant_feature(feature, "hopper_second_ring");
    if (CHECK_OK(agc_arrays_run(&problem->x, AG_MAP_VJP_JVP))) {
        wrong = count_wrong_of(problem, VJP_JVP_RESULTS);
    }
    CHECK((wrong > 0) == (feature != 0), "%s, feature %u in vjp_jvp: %d results are out of the rule", set,
          (unsigned)feature, wrong);
    emulate_plant_feature(0, "");
}
/* In one of the problems of the set: with vjp in one kernel and, with AG_INVARIANT, in two. */
static void check_set_faults(const char *set, uint32_t features, const char *text)
{
    struct prepared one, two;
    prepare(&one, &(struct hopper_problem){text, 0});
    prepare(&two, &(struct hopper_problem){text, INVARIANT});
    check_feature_fault(&one, set, 0, "");
    check_feature_fault(&two, set, 0, "");
    check_second_fault(&one, set, 0);
    for (uint32_t feature = 1; feature <= features; feature *= 2) {
        if (features & feature) {
            check_feature_fault(&one, set, feature, "hopper_forward");
            check_feature_fault(&one, set, feature, "hopper_jvp");
            check_feature_fault(&one, set, feature, "hopper_ring");
            check_second_fault(&one, set, feature);
            check_feature_fault(&two, set, feature, "hopper_dkdv");
            check_feature_fault(&two, set, feature, "hopper_dq");
            if (features & AGI_HAS_BIAS) {
                check_feature_fault(&one, set, feature, "hopper_dbias");
            }
        }
    }
    if (features & AGI_HAS_BIAS) {
        check_feature_fault(&one, set, WRONG_BIAS_TILE, "hopper_forward");
        check_feature_fault(&one, set, WRONG_BIAS_TILE, "hopper_jvp");
    }
    if (features & (AGI_HAS_BIAS | AGI_HAS_RELATIVE)) {
        check_feature_fault(&one, set, WRONG_TANGENT, "hopper_jvp");
    }
    destroy_prepared(&one);
    destroy_prepared(&two);
}
static void check_feature_faults(void)
{
    char text[256];
    for (int set = 0; set < N_HOPPER_SETS; set++) {
        format_set_problem(text, sizeof text, set, 0);
        check_set_faults(hopper_sets[set].name, hopper_sets[set].features, text);
    }
}

/* Classes of a mask's tiles that are wrong, in vjp_jvp, whose tiles have one or half of one. */
static void check_second_class_faults(const char *text)
{
    struct prepared problem;
    prepare(&problem, &(struct hopper_problem){text, MASK_BY_TILES});
    emulate_schedule(0, EMULATE_FORWARDS);
    CHECK_OK(agc_arrays_run(&problem.x, AG_MAP_JVP));
    for (int kind = CLASSES_AS_MADE; kind < CLASSES_KINDS; kind++) {
        const bool right = kind == CLASSES_AS_MADE || kind == CLASSES_ALL_MIXED;
        emulate_change_classes(kind);
        CHECK_OK(agc_arrays_run(&problem.x, AG_MAP_VJP_JVP));
        emulate_change_classes(CLASSES_AS_MADE);
        const int wrong = count_wrong_of(&problem, VJP_JVP_RESULTS);
        CHECK((wrong > 0) == !right, "'%s', classes of kind %d: %d results of vjp_jvp are out of the rule",
              text, kind, wrong);
    }
    destroy_prepared(&problem);
}

/* The same in forward and vjp. Tiles of forward have two of them, so it need not see each fault; at head sizes above 64
 * those of vjp have one. */
static void check_class_faults(void)
{
    struct prepared problem;
    prepare(&problem, &(struct hopper_problem){"h1 q200 k272 d128 bf16 mask=11qk", MASK_BY_TILES});
    emulate_schedule(0, EMULATE_FORWARDS);
    for (int kind = CLASSES_AS_MADE; kind < CLASSES_KINDS; kind++) {
        const bool right = kind == CLASSES_AS_MADE || kind == CLASSES_ALL_MIXED;
        CHECK_OK(agc_arrays_run(&problem.x, AG_MAP_FORWARD));
        emulate_change_classes(kind);
        CHECK_OK(agc_arrays_run(&problem.x, AG_MAP_VJP));
        const int of_vjp = count_wrong_of(&problem, RESULT(T_DQ) | RESULT(T_DK));
        CHECK_OK(agc_arrays_run(&problem.x, AG_MAP_FORWARD));
        const int of_forward = count_wrong_of(&problem, RESULT(T_O));
        emulate_change_classes(CLASSES_AS_MADE);
        CHECK((of_forward + of_vjp > 0) == !right,
              "classes of kind %d: %d results of forward and %d of vjp are out of the rule", kind, of_forward,
              of_vjp);
    }
    destroy_prepared(&problem);
}

/* vjp or vjp_jvp with lists of steps that are wrong in this way, in a process of its own: blocks may wait for ever. dQ
 * or tdQ begins with other numbers than zeros. */
static void run_visits_alone(struct prepared *problem, int kind, bool second)
{
    const enum tensor of_queries = second ? T_TDQ : T_DQ, of_keys = second ? T_TDK : T_DK;
    struct arrays *x = &problem->x;
    emulate_schedule(1, EMULATE_BACKWARDS);
    emulate_change_visits(kind);
    bool ran = agc_arrays_run(x, second ? AG_MAP_JVP : AG_MAP_FORWARD) == AG_OK;
    memset(x->data[of_queries], 0x55, (size_t)x->count[of_queries] * sizeof(uint16_t));
    ran = ran && agc_arrays_run(x, second ? AG_MAP_VJP_JVP : AG_MAP_VJP) == AG_OK;
    _exit(!ran || count_wrong_of(problem, RESULT(of_queries) | RESULT(of_keys)) != 0);
}
static void check_visit_faults(bool second)
{
    static const struct hopper_problem masked[] = {
        {"h2 kv1 q200 k400 d64 bf16 mask=11qk", MASK_BY_TILES},
        {"h1 q270 k400 d128 f16 mask=11qk causal align=bottom-right", MASK_BY_TILES}};
    struct prepared problems[2];
    for (int n = 0; n < 2; n++) {
        prepare(&problems[n], &masked[n]);
    }
    for (int kind = VISITS_AS_MADE; kind < VISITS_KINDS; kind++) {
        int found = 0;
        for (int n = 0; n < 2; n++) {
            int status = 0;
            fflush(stdout);
            const pid_t child = fork();
            test_need(child >= 0, "fork");
            if (child == 0) {
                dup2(open("/dev/null", O_WRONLY), 2);
                run_visits_alone(&problems[n], kind, second);
            }
            test_need(waitpid(child, &status, 0) == child, "waitpid");
            found += !WIFEXITED(status) || WEXITSTATUS(status) != 0;
        }
        CHECK((found > 0) == (kind != VISITS_AS_MADE), "%s, visits of kind %d: found in %d problems of 2",
              second ? "vjp_jvp" : "vjp", kind, found);
    }
    for (int n = 0; n < 2; n++) {
        destroy_prepared(&problems[n]);
    }
}

int main(void)
{
    emulated_hopper = true;
    check_feature_faults();
    check_class_faults();
    check_second_class_faults("h1 q200 k272 d128 bf16 mask=11qk");
    check_second_class_faults("h1 q200 k272 d64 f16 mask=11qk");
    check_visit_faults(false);
    check_visit_faults(true);
    for (int n = 0; n < N_PARTS; n++) {
        check_part(&parts[n]);
    }
    return test_summary();
}
