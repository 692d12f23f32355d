/* Positions per sequence: q_offsets and k_offsets. A sequence has the same bits as in a call in which all sequences
 * have its offsets; and all outputs, those that are sums over sequences too, keep the error rule. */
#include "device.h"
#include "every_isa.h"
#include "outputs.h"

static int passed(const struct error_entry *e, ag_dtype dtype)
{
    (void)dtype;
    return agc_error_entry_passed(e);
}

/* Compares the rows of sequence b. */
static void same_sequence(const struct arrays *x, const struct arrays *y, enum tensor t, int64_t b,
                          const char *label)
{
    const size_t size = element_size(x, t);
    for (int64_t n = 0; n < x->count[t]; n++) {
        int64_t position[4];
        agc_arrays_position(x, t, n, position);
        const char *got = (const char *)x->data[t] + (size_t)n * size;
        const char *wanted = (const char *)y->data[t] + (size_t)n * size;
        if (position[0] == b && memcmp(got, wanted, size) != 0) {
            CHECK(0, "%s: sequence %lld: %s element %lld is %.17g instead of %.17g", label, (long long)b,
                  agc_tensor_info[t].name, (long long)n, element_value(x, t, got),
                  element_value(x, t, wanted));
            return;
        }
    }
    CHECK(1, "%s", label);
}

/* All sequences of y get the offsets that sequence b has in x. */
static void check_sequence(const struct runner *r, const struct arrays *x, int64_t b)
{
    struct arrays y;
    ag_options options = r->options;
    options.threads = 2;
    if (!CHECK_OK(agc_arrays_clone_as(&y, x, x->given.dtype, &options))) {
        return;
    }
    y.args.q_offsets = y.args.k_offsets = NULL;
    y.args.q_offset = x->q_offsets[b];
    y.args.k_offset = x->k_offsets[b];
    CHECK_OK(agc_arrays_run_all(&y));
    for (enum tensor t = 0; t < T_COUNT; t++) {
        if (agc_tensor_info[t].role == ROLE_OUTPUT && agc_tensor_info[t].shape <= SHAPE_ROW &&
            x->data[t] != NULL) {
            same_sequence(x, &y, t, b, r->environment);
        }
    }
    agc_arrays_destroy(&y);
}

static void check(const ag_check_case *s, const struct runner *r, struct error_truth *truth,
                  const struct arrays *x)
{
    CHECK(x->q_offsets != NULL && x->k_offsets != NULL, "no offsets");
    check_error_entries(s, r, truth, x, passed);
    for (int64_t b = 0; b < x->p->batch; b++) {
        check_sequence(r, x, b);
    }
}

int main(void)
{
    enum { LARGE = 2 }; /* the text of several tiles */
    static const char *const texts[] = {
        "b3 h2 q24 k40 d16 causal",
        "b3 h4 kv2 q30 k40 d16 dv12 window=7,3 sink bias=11qk dropout=0.2",
        "b2 h2 q210 k330 d32 causal",
        "b3 h2 q20 k33 d8 packed=50,70 causal table=5 softcap=3 alibi dropout=0.1",
    };
    static const char *const dtypes[] = {"f64", "f32", "f16", "bf16"};
    find_runners(1);
    for (size_t n = 0; n < sizeof texts / sizeof texts[0]; n++) {
        for (int dtype = 0; dtype < 4; dtype++) {
            char text[128];
            if (n == LARGE && dtype != 1 && test_count(1000) < 500) {
                printf("the large problem in %s: not run, AG_TEST_COUNT asks for little\n", dtypes[dtype]);
                continue;
            }
            ag_check_case s = {.problem = AG_PROBLEM_INIT, .seed = 7 + n, .offsets = 1};
            snprintf(text, sizeof text, "%s %s", texts[n], dtypes[dtype]);
            if (CHECK_OK(ag_problem_parse(text, &s.problem))) {
                every_isa(&s, 2, NULL, check);
            }
        }
    }
    report_runners();
    return test_maps_summary();
}
