/* The problems of the table sm90: by emulation, and on a GPU. */
#ifndef AG_TEST_HOPPER_LIST_H
#define AG_TEST_HOPPER_LIST_H

#include "hopper_problems.h"
#include "outputs.h"

static const struct hopper_problem hopper_list[] = {
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
    /* vjp_jvp with features: rings and bands of blocks, lengths, hidden rows that are NaN, absent tangents */
    {"h4 kv2 q200 k400 d64 bf16 softcap=2", SHORT_RINGS},
    {"b2 h2 kv1 q80 k200 d128 bf16 softcap=3 causal", NOT_A_NUMBER},
    {"b3 h2 kv1 q100 k140 d128 f16 packed=230,270 softcap=4 causal sink", 0},
    {"h1 q70 k130 d64 f16 softcap=5", WITHOUT_TK | INVARIANT},
    {"h1 q150 k300 d64 f16 alibi", SHORT_RINGS},
    {"h2 kv1 q80 k200 d64 bf16 table=200,30 causal align=bottom-right", SHORT_RINGS},
    {"h1 q70 k150 d128 bf16 alibi table=20", WITHOUT_TERMS},
    {"b3 h2 kv1 q100 k140 d64 bf16 packed=230,270 dropout=0.2 causal", 0},
    {"h2 kv1 q200 k80 d64 f16 dropout=0.4 causal align=bottom-right", NOT_A_NUMBER},
    {"h1 q90 k140 d128 f16 dropout=0.1 grad=f32 window=60,30", 0},
    {"b2 h2 kv1 q100 k300 d128 f16 bias=b1qk sink", HIDING_BIAS | WITH_LENGTHS},
    {"h2 kv1 q140 k148 d64 bf16 bias=11qk sink dropout=0.3", HIDING_BIAS | SHORT_RINGS},
    {"h2 kv1 q140 k148 d64 f16 bias=11qk causal", HIDING_BIAS | NOT_A_NUMBER},
    {"b2 h1 q70 k140 d128 bf16 bias=11qk causal", HIDING_BIAS | NOT_A_NUMBER},
    {"h1 q70 k130 d128 bf16 bias=11qk", WITHOUT_TERMS | WITHOUT_TQ_TV},
    {"h1 q140 k200 d128 bf16 bias=1hqk aux=f32 causal dropout=0.2", 0},
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
    /* a sink that outweighs the keys: rows that see some of them, beside such that see none */
    {"h1 q70 k90 d64 bf16 sink mask=11qk", HEAVY_SINK},
    {"h1 q70 k90 d128 bf16 sink mask=11qk", HEAVY_SINK | INVARIANT},
    {"h2 kv1 q140 k148 d64 bf16 bias=11qk sink", HEAVY_SINK | HIDING_BIAS},
    {"h1 q70 k130 d128 bf16 bias=11qk mask=11qk sink causal", HEAVY_SINK},
    /* vjp_jvp with masks, every tile mixed: rings and bands, axes that are the same all along, absent tangents */
    {"h4 kv2 q200 k400 d64 bf16 mask=1hqk", SHORT_RINGS},
    {"b2 h2 kv1 q100 k150 d128 f16 mask=b1qk causal align=bottom-right", WITHOUT_TK},
    {"b3 h2 kv1 q100 k140 d128 bf16 packed=230,270 mask=b11k sink", 0},
    {"h2 q140 k270 d64 f16 mask=11q1 window=90,40 grad=f32", SHORT_RINGS},
    {"b2 h1 q70 k148 d100 bf16 mask=11qk causal", WITH_OFFSETS},
    {"h2 kv1 q140 k148 d64 bf16 bias=11qk mask=1hqk causal", HIDING_BIAS | NOT_A_NUMBER},
    {"b2 h2 q100 k300 d128 f16 bias=b1qk mask=11qk sink", HIDING_BIAS | WITH_LENGTHS},
    {"h1 q70 k130 d128 bf16 bias=11qk aux=f32 mask=11qk", WITHOUT_TERMS | WITHOUT_TQ_TV},
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
enum { N_PROBLEMS = sizeof hopper_list / sizeof hopper_list[0] };

/* Masks that are empty, full or mixed by tiles. */
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
    {"h2 kv1 q2150 k200 d128 bf16 mask=1hqk causal", MASK_BY_TILES},
    /* vjp and vjp_jvp in one kernel: several rings and groups of blocks, few steps, heads and sequences without any, a
     * scale that makes zeros negative, the last key of a block alone */
    {"h2 q600 k640 d128 bf16 mask=11qk", MASK_SPARSE},
    {"h4 kv2 q520 k640 d64 f16 mask=1hqk", MASK_SPARSE | MASK_OF_HEAD_EMPTY},
    {"h2 kv1 q400 k900 d128 f16 mask=1hqk causal align=bottom-right", MASK_SPARSE | SHORT_RINGS},
    {"b2 h2 q300 k900 d64 bf16 mask=b1qk", MASK_SPARSE | SHORT_RINGS},
    {"b3 h2 q330 k600 d64 bf16 mask=b1qk", MASK_BY_TILES | SHORT_RINGS | WITH_LENGTHS},
    {"b2 h1 q300 k560 d128 bf16 mask=11qk window=150,60", MASK_BY_TILES | SHORT_RINGS | WITH_OFFSETS},
    {"h2 q270 k400 d64 bf16 mask=1hqk scale=-0.3", MASK_BY_TILES | MASK_OF_HEAD_EMPTY},
    {"h3 kv1 q260 k385 d100 bf16 mask=1hqk grad=f32", MASK_BY_TILES | MASK_OF_HEAD_EMPTY},
    {"b2 h4 kv2 q200 k500 d128 f16 mask=bhqk sink", MASK_BY_TILES | SHORT_RINGS},
    {"b3 h2 kv1 q200 k400 d128 f16 packed=330,800 mask=11qk bias=1hqk", MASK_BY_TILES | SHORT_RINGS},
    {"h2 kv1 q270 k408 d64 bf16 bias=1hqk mask=1hqk causal", MASK_BY_TILES | MASK_OF_HEAD_EMPTY},
    {"b2 h2 q200 k400 d64 f16 mask=b1q1", MASK_BY_TILES},
    {"h2 q200 k400 d128 bf16 mask=1111", MASK_FULL},
    {"h2 q200 k400 d64 bf16 mask=1h11", MASK_FULL | MASK_OF_HEAD_EMPTY},
    {"h2 q200 k400 d128 bf16 mask=11qk sink", MASK_EMPTY},
    {"h1 q40 k520 d128 f16 mask=11qk", MASK_BY_TILES},
    /* tiles of 32 queries, as vjp_jvp has them at head sizes above 64: of which a class shows the other half alone */
    {"h2 kv1 q230 k400 d128 bf16 mask=11qk", MASK_BY_TILES | MASK_OF_HALVES},
    {"b2 h1 q200 k528 d100 f16 mask=b1qk causal align=bottom-right",
     MASK_BY_TILES | MASK_OF_HALVES | SHORT_RINGS},
    {"b3 h2 kv1 q90 k300 d128 f16 packed=200,700 mask=bhqk", MASK_BY_TILES | MASK_OF_HALVES},
    {"b2 h2 q270 k400 d128 f16 mask=1hqk scale=-0.3", MASK_SPARSE | MASK_OF_HEAD_EMPTY | WITH_LENGTHS},
    {"h2 kv1 q200 k264 d128 bf16 bias=1hqk mask=11qk sink", MASK_BY_TILES | MASK_OF_HALVES},
    {"h2 q140 k272 d64 f16 bias=11qk mask=1hqk grad=f32", MASK_BY_TILES | MASK_OF_HEAD_EMPTY},
    {"h2 kv1 q200 k300 d64 bf16 mask=1hq1", MASK_BY_TILES},
    {"h2 q170 k300 d128 bf16 mask=11qk", MASK_BY_TILES | WITHOUT_TK},
};
enum { N_TILED_MASKS = sizeof tiled_masks / sizeof tiled_masks[0] };

/* ---- The numbers of a problem ----
 *
 * First the list, then the problems of the feature sets; then these once more, with vjp in two kernels. */

enum { N_OF_SETS = N_HOPPER_SETS * N_SET_PROBLEMS, N_NUMBERS = N_PROBLEMS + 2 * N_OF_SETS };

/* Sets p to the problem; the text of one of a set goes to `text`. */
static inline void hopper_problem_of(int number, char *text, size_t size, struct hopper_problem *p)
{
    if (number < N_PROBLEMS) {
        *p = hopper_list[number];
        return;
    }
    const int n = (number - N_PROBLEMS) % N_OF_SETS, set = n / N_SET_PROBLEMS;
    const int once_more = number - N_PROBLEMS >= N_OF_SETS;
    format_set_problem(text, size, set, n % N_SET_PROBLEMS);
    *p = (struct hopper_problem){text, once_more ? INVARIANT | FIRST_ORDER : 0};
}

/* Its maps by the error rule. */
static inline void check_hopper_problem(const struct hopper_problem *problem, int number)
{
    struct arrays x;
    make_hopper_problem(&x, problem, (uint64_t)number);
    if (problem->with & NOT_A_NUMBER) {
        spoil_hidden_rows(&x, problem->with);
    }
    remove_tangents(&x, problem->with);
    struct error_truth truth = truth_of(&x);
    if (!(problem->with & (FORWARD_ALONE | FIRST_ORDER)) && CHECK_OK(agc_arrays_run(&x, AG_MAP_JVP))) {
        const int wrong = count_wrong(&truth, &x, FORWARD_RESULTS | JVP_RESULTS, problem->text, true);
        CHECK(wrong == 0, "%d: '%s': %d results of jvp out of the rule", number, problem->text, wrong);
    }
    if (CHECK_OK(run_hopper_maps(&x, problem))) {
        const int wrong = count_wrong(&truth, &x, results_of(problem), problem->text, true);
        CHECK(wrong == 0, "%d: '%s': %d results out of the rule", number, problem->text, wrong);
    }
    agc_error_truth_destroy(&truth);
    agc_arrays_destroy(&x);
}

/* The arrays of a problem of tiled_masks, whose hidden rows are NaN. */
static inline void make_tiled_mask(struct arrays *x, const struct hopper_problem *problem)
{
    make_hopper_problem(x, problem, 3);
    spoil_masked_rows(x);
    remove_tangents(x, problem->with);
    memset(x->data[T_DQ], 0x55, (size_t)x->count[T_DQ] * sizeof(uint16_t)); /* to be written in any case */
    memset(x->data[T_TDQ], 0x55, (size_t)x->count[T_TDQ] * sizeof(uint16_t));
}

static inline void run_masked_maps(struct arrays *x, const uint32_t maps[2])
{
    for (int n = 0; n < 2; n++) {
        CHECK_OK(agc_arrays_run(x, maps[n]));
    }
}
/* Two maps by the error rule. */
static inline void check_masked_maps(const struct error_truth *truth, struct arrays *x, const char *text,
                                     const uint32_t maps[2], uint64_t results)
{
    run_masked_maps(x, maps);
    const int wrong = count_wrong(truth, x, results, text, true);
    CHECK(wrong == 0, "'%s': %d results out of the rule", text, wrong);
}

static const uint32_t masked_first_order[2] = {AG_MAP_FORWARD, AG_MAP_VJP},
                      masked_tangents[2] = {AG_MAP_JVP, AG_MAP_VJP_JVP};

#endif
