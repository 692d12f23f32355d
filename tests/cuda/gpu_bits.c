/* On a GPU: repeated calls give the same bits, at sizes at which the blocks of a launch do not run at once, so that a
 * missing barrier or a sum whose order is left open would show. Every map, dtype and kind of sum.
 *
 * gpu_bits --dtype DTYPE: the lists below; gpu_bits PROBLEM...: these. */
#include "outputs.h"

enum { REPEATS = 4 };

static void check_repeats(const char *text)
{
    struct arrays x;
    void *kept[T_COUNT];
    make_arrays(&x, text, NULL, 5);
    test_need(agc_on_device(x.plan), "the plan is not on a GPU: ATTNGRAD_BACKEND=cuda");
    CHECK_OK(agc_arrays_run_all(&x));
    keep_outputs(&x, kept);
    for (int n = 1; n < REPEATS; n++) {
        CHECK_OK(agc_arrays_run_all(&x));
        for (enum tensor t = 0; t < T_COUNT; t++) {
            if (is_output(&x, t, ALL_MAPS)) {
                same_tensor(&x, t, x.data[t], kept[t], text);
            }
        }
    }
    free_outputs(kept);
    agc_arrays_destroy(&x);
}

static const char *const problems[] = {
    "h4 kv2 q8192 d64 causal",
    "h2 q8192 d128 sink",
    "h2 q8192 d32 window=1000,0 table=40 softcap=5",
    "b2 h2 q2048 k8192 d64 bias=1hqk dropout=0.1",
    "b3 h2 q6000 k8000 d48 dv80 packed=12000,16000 alibi",
    "h1 q8192 d256",
    "b2 h2 kv1 q4000 d160 causal",
    "h8 kv1 q1 k20000 d128",
};
enum { N_PROBLEMS = sizeof problems / sizeof problems[0] };

/* Of 16 bits, whose vjp is one kernel on the table sm90: blocks of keys add to sums of all queries in turn. */
static const char *const rings[] = {
    /* more keys than a group of blocks has: higher groups wait for lower ones */
    "h2 q17000 d64",
    "h1 q17000 d128",
    /* each set of score features in rings of blocks */
    "h2 q3000 k3072 d128 softcap=5",
    "h2 kv1 q3000 k3072 d64 alibi table=50",
    "h2 q3000 k3072 d128 bias=1hqk",
    "h2 q3000 k3072 d64 bias=11qk dropout=0.2",
    "h2 q3000 k3072 d128 dropout=0.2",
    "h2 q3000 k3072 d64 mask=1hqk window=-1,500",
    "h1 q3000 k3072 d128 bias=11qk mask=11qk",
};
enum { N_RINGS = sizeof rings / sizeof rings[0] };

static void check_list(const char *const *list, int count, const char *dtype)
{
    char text[128];
    for (int n = 0; n < count; n++) {
        snprintf(text, sizeof text, "%s %s", list[n], dtype);
        check_repeats(text);
    }
}

int main(int argc, char **argv)
{
    test_need(argc > 1, "gpu_bits --dtype DTYPE, or gpu_bits PROBLEM...");
    if (strcmp(argv[1], "--dtype") == 0 && argc == 3) {
        check_list(problems, N_PROBLEMS, argv[2]);
        check_list(rings, strstr(argv[2], "16") == NULL ? 0 : N_RINGS, argv[2]);
        return test_summary();
    }
    for (int n = 1; n < argc; n++) {
        check_repeats(argv[n]);
    }
    return test_summary();
}
