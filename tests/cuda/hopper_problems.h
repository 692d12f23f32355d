/* One problem on the emulated table sm90: forward and vjp by the error rule. */
#ifndef AG_TEST_HOPPER_PROBLEMS_H
#define AG_TEST_HOPPER_PROBLEMS_H

#include "check/error_rule.h"
#include "check/random_case.h"
#include "emulated_backend.h"
#include "kernels.h"
#include "test.h"

/* The call of a problem, besides its text. */
enum { WITH_LENGTHS = 1, WITH_LOW = 2, WITH_OFFSETS = 4, NOT_A_NUMBER = 8, FORWARD_ALONE = 16 };

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

static inline ag_status run_hopper_maps(struct arrays *x, const struct hopper_problem *problem)
{
    const ag_status status = agc_arrays_run(x, AG_MAP_FORWARD);
    return status == AG_OK && !(problem->with & FORWARD_ALONE) ? agc_arrays_run(x, AG_MAP_VJP) : status;
}

/* Results of these maps that are out of the rule; each is printed if loud. */
static inline int count_wrong_results(struct arrays *x, const struct hopper_problem *problem, bool loud)
{
    const char *text = problem->text;
    struct error_entry entries[T_COUNT];
    struct error_truth truth;
    int count = 0, wrong = 0;
    test_need(agc_error_truth_create(&truth, x, 1) == AG_OK, "the truth");
    CHECK_OK(agc_error_entries(&truth, x, entries, &count));
    for (int n = 0; n < count; n++) {
        const struct error_entry *e = &entries[n];
        const bool of_forward = e->t == T_O || e->t == T_LSE || e->t == T_O_LOW;
        const bool of_vjp = !(problem->with & FORWARD_ALONE) &&
                            (e->t == T_DQ || e->t == T_DK || e->t == T_DV || e->t == T_DSINK);
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
