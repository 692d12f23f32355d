/* The results of a case on the emulated kernels by the error rule. */
#ifndef AG_TEST_EMULATED_CASES_H
#define AG_TEST_EMULATED_CASES_H

#include "check/error_rule.h"
#include "check/random_case.h"
#include "test.h"

/* Those that one of these maps writes; a failure has the case's number and the command that repeats it. */
static inline void check_case_results(const ag_check_case *c, const struct error_truth *truth,
                                      const struct arrays *x, uint32_t maps, int number)
{
    struct error_entry entries[T_COUNT];
    char text[700];
    int count = 0;
    ag_check_command(c, text, sizeof text);
    CHECK_OK(agc_error_entries(truth, x, entries, &count));
    for (int n = 0; n < count; n++) {
        const struct error_entry *e = &entries[n];
        int64_t at[4] = {0, 0, 0, 0};
        if (!(agc_tensor_info[e->t].writers & maps)) {
            continue;
        }
        if (e->worst >= 0) {
            agc_arrays_position(x, e->t, e->worst, at);
        }
        CHECK(agc_error_entry_passed(e),
              "%d: %s: %s: error %.2e, limit %.2e, truth %.2e, worst at %lld %lld %lld %lld", number, text,
              agc_tensor_info[e->t].name, e->error, e->limit, e->truth, (long long)at[0], (long long)at[1],
              (long long)at[2], (long long)at[3]);
    }
}

#endif
