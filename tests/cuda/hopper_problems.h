/* One problem on the emulated table sm90: forward, vjp and jvp by the error rule. */
#ifndef AG_TEST_HOPPER_PROBLEMS_H
#define AG_TEST_HOPPER_PROBLEMS_H

#include "check/error_rule.h"
#include "check/random_case.h"
#include "emulated_backend.h"
#include "kernels.h"
#include "test.h"

/* The call of a problem, besides its text. */
enum {
    WITH_LENGTHS = 1,
    WITH_LOW = 2,
    WITH_OFFSETS = 4,
    NOT_A_NUMBER = 8,
    LARGE_TANGENTS = 16, /* tS of 1e4 */
    COMMON_TANGENT = 32, /* tS of 1e3, nearly the same for all keys: tO is small */
    WITHOUT_TK = 64,     /* tangents that are absent */
    WITHOUT_TQ_TV = 128
};

struct hopper_problem {
    const char *text;
    uint32_t with;
};

/* Keys and values that no query sees are not read: they may be NaN. Here those from the last key on that is seen. */
static inline void spoil_hidden_values(struct arrays *x)
{
    static const enum tensor spoilt[] = {T_K, T_V, T_TK, T_TV};
    const ag_problem *p = ag_plan_problem(x->plan);
    const int64_t seen = p->q_len < p->kv_len ? p->q_len : p->kv_len;
    for (int n = 0; n < 4; n++) {
        uint16_t *const data = x->data[spoilt[n]];
        const int64_t channels = n % 2 == 0 ? p->dim_qk : p->dim_v;
        for (int64_t i = seen * channels; i < p->kv_len * channels; i++) {
            data[agc_arrays_index(x, spoilt[n], 0, 0, i / channels, i % channels)] = 0x7fff;
        }
    }
}

/* 16-bit numbers times 2^13. */
static inline void enlarge(uint16_t *x, int64_t count, ag_dtype dtype)
{
    for (int64_t i = 0; i < count; i++) {
        x[i] = (uint16_t)(x[i] + (x[i] & 0x7fff ? 13 << (dtype == AG_F16 ? 10 : 7) : 0));
    }
}

/* For one head. */
static inline void enlarge_tangents(struct arrays *x, uint32_t with)
{
    const ag_problem *p = ag_plan_problem(x->plan);
    const uint16_t one = p->dtype == AG_F16 ? 0x3c00 : 0x3f80;
    uint16_t *const k = x->data[T_K], *const tq = x->data[T_TQ];
    if (with & LARGE_TANGENTS) {
        enlarge(tq, p->q_len * p->dim_qk, p->dtype);
    }
    for (int64_t j = 0; j < p->kv_len && with & COMMON_TANGENT; j++) {
        k[agc_arrays_index(x, T_K, 0, 0, j, 0)] = one;
    }
    for (int64_t i = 0; i < p->q_len && with & COMMON_TANGENT; i++) {
        uint16_t *const first = &tq[agc_arrays_index(x, T_TQ, 0, 0, i, 0)];
        *first = one;
        enlarge(first, 1, p->dtype);
    }
}

/* Tangents that are absent count as zeros: so the truth has them, before the call loses them. */
static inline void clear_tangents(struct arrays *x, uint32_t with)
{
    const ag_problem *p = ag_plan_problem(x->plan);
    if (with & WITHOUT_TK) {
        memset(x->data[T_TK], 0, (size_t)(p->batch * p->kv_heads * p->kv_len * p->dim_qk) * 2);
    }
    if (with & WITHOUT_TQ_TV) {
        memset(x->data[T_TQ], 0, (size_t)(p->batch * p->heads * p->q_len * p->dim_qk) * 2);
        memset(x->data[T_TV], 0, (size_t)(p->batch * p->kv_heads * p->kv_len * p->dim_v) * 2);
    }
}
static inline void remove_tangents(struct arrays *x, uint32_t with)
{
    if (with & WITHOUT_TK) {
        x->args.tk.data = NULL;
    }
    if (with & WITHOUT_TQ_TV) {
        x->args.tq.data = x->args.tv.data = NULL;
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
    if (problem->with & NOT_A_NUMBER) {
        spoil_hidden_values(x);
    }
    enlarge_tangents(x, problem->with);
    clear_tangents(x, problem->with);
}

/* Prints a result that is out of the rule. */
static inline void print_wrong(const struct arrays *x, const char *text, const struct error_entry *e)
{
    int64_t at[4] = {0, 0, 0, 0};
    if (e->worst >= 0) {
        agc_arrays_position(x, e->t, e->worst, at);
    }
    printf("'%s': %s: error %.2e, limit %.2e, truth %.2e, worst at %lld %lld %lld %lld\n", text,
           agc_tensor_info[e->t].name, e->error, e->limit, e->truth, (long long)at[0], (long long)at[1],
           (long long)at[2], (long long)at[3]);
}

/* Runs a map and counts its results that are out of the rule, each printed if loud. A map that fails is one. */
static inline int count_wrong_results(const struct error_truth *truth, struct arrays *x, uint32_t map,
                                      const char *text, bool loud)
{
    struct error_entry entries[T_COUNT];
    int count = 0, wrong = 0;
    if (agc_arrays_run(x, map) != AG_OK || agc_error_entries(truth, x, entries, &count) != AG_OK) {
        return 1;
    }
    for (int n = 0; n < count; n++) {
        const struct error_entry *e = &entries[n];
        if (agc_tensor_info[e->t].writers & map && !agc_error_entry_passed(e)) {
            wrong++;
            if (loud) {
                print_wrong(x, text, e);
            }
        }
    }
    return wrong;
}

/* The same for the maps that the table has. */
static inline int run_hopper_maps(struct arrays *x, const struct hopper_problem *problem, bool loud)
{
    static const uint32_t maps[] = {AG_MAP_JVP, AG_MAP_FORWARD, AG_MAP_VJP};
    struct error_truth truth;
    int wrong = 0;
    test_need(agc_error_truth_create(&truth, x, 1) == AG_OK, "the truth");
    remove_tangents(x, problem->with);
    for (int n = 0; n < 3; n++) {
        wrong += count_wrong_results(&truth, x, maps[n], problem->text, loud);
    }
    agc_error_truth_destroy(&truth);
    return wrong;
}

#endif
