/* One problem on the emulated table sm90: forward and vjp by the error rule. Problems of each feature set. */
#ifndef AG_TEST_HOPPER_PROBLEMS_H
#define AG_TEST_HOPPER_PROBLEMS_H

#include "check/error_rule.h"
#include "check/random_case.h"
#include "cuda/hopper_sets.h"
#include "emulated_backend.h"
#include "kernels.h"
#include "test.h"

/* The call of a problem, besides its text. */
enum { WITH_LENGTHS = 1, WITH_LOW = 2, WITH_OFFSETS = 4, NOT_A_NUMBER = 8 };

struct hopper_problem {
    const char *text;
    uint32_t with;
};

/* Rows of V that no query sees are not read: they may be NaN. Here those from the last key on that is seen. */
static inline void spoil_hidden_values(struct arrays *x)
{
    const ag_problem *p = ag_plan_problem(x->plan);
    const int64_t seen = p->q_len < p->kv_len ? p->q_len : p->kv_len;
    uint16_t *const v = x->data[T_V], *const k = x->data[T_K];
    for (int64_t j = seen; j < p->kv_len; j++) {
        for (int64_t c = 0; c < p->dim_v; c++) {
            v[agc_arrays_index(x, T_V, 0, 0, j, c)] = 0x7fff;
        }
        for (int64_t c = 0; c < p->dim_qk; c++) {
            k[agc_arrays_index(x, T_K, 0, 0, j, c)] = 0x7fff;
        }
    }
}

static inline void make_hopper_problem(struct arrays *x, const struct hopper_problem *problem, uint64_t seed)
{
    ag_check_case c = {.problem = AG_PROBLEM_INIT, .seed = seed};
    CHECK_OK(ag_problem_parse(problem->text, &c.problem));
    c.lengths = (problem->with & WITH_LENGTHS) != 0;
    c.low_halves = (problem->with & WITH_LOW) != 0;
    c.offsets = (problem->with & WITH_OFFSETS) != 0;
    test_need(agc_arrays_of_case(x, &c, NULL) == AG_OK, "a plan");
}

/* ---- Feature sets ---- */

static const struct {
    const char *name;
    uint32_t features;
} hopper_sets[] = {
#define SET_OF_LIST(Y, format, set, features, ...) {#set, features},
    AGI_HOPPER_SETS(SET_OF_LIST, , )
#undef SET_OF_LIST
};
enum { N_HOPPER_SETS = sizeof hopper_sets / sizeof hopper_sets[0] };

/* Adds the words of the features, in one of two variants. */
static inline void add_feature_words(char *text, size_t size, uint32_t set, int variant)
{
    static const struct {
        uint32_t feature;
        const char *words[2];
    } list[] = {
        {AGI_HAS_SOFTCAP, {"softcap=5", "softcap=0.6 scale=-2"}},
        {AGI_HAS_RELATIVE, {"alibi table=20", "table=60,9"}},
        {AGI_HAS_BIAS, {"bias=1hqk", "bias=b1qk aux=f32"}},
        {AGI_HAS_MASK, {"mask=11qk", "mask=bh1k"}},
        {AGI_HAS_DROPOUT, {"dropout=0.3", "dropout=0.02"}},
    };
    for (size_t n = 0; n < sizeof list / sizeof list[0]; n++) {
        const size_t length = strlen(text);
        if (set & list[n].feature) {
            snprintf(text + length, size - length, " %s", list[n].words[variant]);
        }
    }
}

/* The problems of a set, numbered from 0: dtypes, head sizes, other features beside it. */
enum { N_SET_PROBLEMS = 4 };
static inline void format_set_problem(char *text, size_t size, int set, int number)
{
    static const char *const problems[N_SET_PROBLEMS] = {
        "h2 kv1 q140 k133 d64 bf16 causal", "b2 h1 q70 k150 d64 f16 sink",
        "h2 q66 k140 d128 bf16 window=60,20", "b2 h2 kv1 q70 k131 d100 f16 packed=110,190"};
    snprintf(text, size, "%s", problems[number]);
    add_feature_words(text, size, hopper_sets[set].features, number % 2);
}

static inline ag_status run_hopper_maps(struct arrays *x)
{
    const ag_status status = agc_arrays_run(x, AG_MAP_FORWARD);
    return status == AG_OK ? agc_arrays_run(x, AG_MAP_VJP) : status;
}

/* Results of these maps that are out of the rule; each is printed if loud. */
static inline int count_wrong_results(struct arrays *x, const char *text, bool loud)
{
    struct error_entry entries[T_COUNT];
    struct error_truth truth;
    int count = 0, wrong = 0;
    test_need(agc_error_truth_create(&truth, x, 1) == AG_OK, "the truth");
    CHECK_OK(agc_error_entries(&truth, x, entries, &count));
    for (int n = 0; n < count; n++) {
        const struct error_entry *e = &entries[n];
        const bool of_forward = e->t == T_O || e->t == T_LSE || e->t == T_O_LOW;
        const bool of_vjp = e->t == T_DQ || e->t == T_DK || e->t == T_DV || e->t == T_DSINK ||
                            e->t == T_DBIAS || e->t == T_DTABLE;
        int64_t at[4] = {0, 0, 0, 0};
        if (!(of_forward || of_vjp) || agc_error_entry_passed(e)) {
            continue;
        }
        wrong++;
        if (loud && e->worst >= 0) {
            agc_arrays_position(x, e->t, e->worst, at);
        }
        if (loud) {
            printf("'%s': %s: error %.2e, limit %.2e, truth %.2e, worst at %lld %lld %lld %lld\n", text,
                   agc_tensor_info[e->t].name, e->error, e->limit, e->truth, (long long)at[0],
                   (long long)at[1], (long long)at[2], (long long)at[3]);
        }
    }
    agc_error_truth_destroy(&truth);
    return wrong;
}

#endif
