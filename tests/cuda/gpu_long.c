/* On a GPU: values and bits at lengths at which blocks of vjp wait for each other in several groups, and at which the
 * reference, whose matrices have a number for each pair of query and key, would take too long. So the processor's
 * kernels stand for it, which the error rule holds at shorter lengths: in float64 for the truth, in the problem's dtype
 * for the baseline. What is left of the rule is |x - truth| <= max(2 |baseline - truth|, floor |truth|), in float32
 * twice that: without the rule's 8 eps A nothing is left for what tensor cores cut off in so long sums. It is applied
 * to each result as a whole and, with twice the limit, to each 64 of its rows: one wrong tile cannot hide.
 *
 * gpu_long --dtype DTYPE: the lists below; gpu_long PROBLEM...: these, all maps. */
#include "check/error_rule.h"
#include "outputs.h"
#include "sparse_mask.h"

#include <math.h>
#include <stdbool.h>

enum { REPEATS = 3, THREADS = 8, ROWS = 64, FIRST_ORDER = AG_MAP_FORWARD | AG_MAP_VJP };
enum { SECOND_ORDER = ALL_MAPS & ~AG_MAP_JVP_JVP };

static void run_maps(struct arrays *x, uint32_t maps)
{
    for (int map = 0; map < MAPS; map++) {
        if (maps & map_bit[map]) {
            CHECK_OK(agc_arrays_run(x, map_bit[map]));
        }
    }
}

/* ---- Bits ---- */

static void check_repeats(struct arrays *x, uint32_t maps, const char *text)
{
    void *kept[T_COUNT];
    run_maps(x, maps);
    keep_outputs(x, kept);
    for (int n = 1; n < REPEATS; n++) {
        run_maps(x, maps);
        for (enum tensor t = 0; t < T_COUNT; t++) {
            if (is_output(x, t, maps)) {
                same_tensor(x, t, x->data[t], kept[t], text);
            }
        }
    }
    free_outputs(kept);
}

/* ---- Values ---- */

struct result {
    const char *text;
    enum tensor t;
    double floor, factor;           /* factor: of the limit */
    double *got, *baseline, *truth; /* in the order [b][h][n][c] */
};

static double distance(const double *a, const double *b, int64_t count)
{
    double sum = 0;
    for (int64_t n = 0; n < count; n++) {
        const double d = a[n] == b[n] ? 0 : a[n] - b[n];
        sum += d * d;
    }
    return sqrt(sum);
}

static double norm(const double *a, int64_t count)
{
    double sum = 0;
    for (int64_t n = 0; n < count; n++) {
        sum += isfinite(a[n]) ? a[n] * a[n] : 0;
    }
    return sqrt(sum);
}

/* The elements from `first` on; the error over its limit. */
static double check_part(const struct result *r, int64_t first, int64_t count, double factor,
                         const char *what)
{
    const double error = distance(r->got + first, r->truth + first, count);
    const double baseline = distance(r->baseline + first, r->truth + first, count);
    const double truth = norm(r->truth + first, count);
    const double limit = factor * r->factor * fmax(2 * baseline, r->floor * truth);
    CHECK(error <= limit,
          "'%s': %s, %s from element %lld: error %.2e, limit %.2e, baseline's %.2e, truth %.2e", r->text,
          agc_tensor_info[r->t].name, what, (long long)first, error, limit, baseline, truth);
    return error == 0 ? 0 : error / limit;
}

static void check_result(const struct result *r, const int64_t size[4])
{
    double worst = 0;
    const int64_t heads = size[0] * size[1], row = size[3], head = size[2] * row;
    const double whole = check_part(r, 0, heads * head, 1, "all");
    for (int64_t first = 0; first < heads * head; first += ROWS * row) {
        const int64_t rest = head - first % head, count = rest < ROWS * row ? rest : ROWS * row;
        worst = fmax(worst, check_part(r, first, count, 2, "64 rows"));
        first -= ROWS * row - count; /* the next head begins a part of its own */
    }
    printf("'%s': %s: error over limit %.2f, worst part %.2f\n", r->text, agc_tensor_info[r->t].name, whole,
           worst);
}

/* The same call on the processor. */
static void run_on_host(struct arrays *y, const struct arrays *x, ag_dtype dtype, uint32_t maps)
{
    ag_options options = AG_OPTIONS_INIT;
    options.backend = AG_BACKEND_CPU;
    options.threads = THREADS;
    test_need(agc_arrays_clone_as(y, x, dtype, &options) == AG_OK, ag_last_message());
    run_maps(y, maps);
}

/* Results that have rows: in gradients of sinks nearly everything cancels, and what that costs only the whole rule
 * knows. */
static void check_values(const struct arrays *x, uint32_t maps, const char *text)
{
    struct arrays truth, baseline;
    run_on_host(&truth, x, AG_F64, maps);
    run_on_host(&baseline, x, x->given.dtype, maps);
    for (enum tensor t = 0; t < T_COUNT; t++) {
        if (is_output(x, t, maps) && x->size[t][2] > 1) {
            const struct result r = {.text = text,
                                     .t = t,
                                     .floor = agc_error_floor(x->given.dtype),
                                     .factor = x->given.dtype == AG_F32 ? 2 : 1,
                                     .got = test_read(x, t),
                                     .baseline = test_read(&baseline, t),
                                     .truth = test_read(&truth, t)};
            check_result(&r, x->size[t]);
            free(r.got);
            free(r.baseline);
            free(r.truth);
        }
    }
    agc_arrays_destroy(&truth);
    agc_arrays_destroy(&baseline);
}

/* ---- Problems ---- */

static void check_problem(const char *text, uint32_t maps, bool sparse)
{
    struct arrays x;
    ag_problem p = AG_PROBLEM_INIT;
    test_need(ag_problem_parse(text, &p) == AG_OK && agc_arrays_create(&x, &p, NULL, 7) == AG_OK,
              ag_last_message());
    if (sparse) {
        make_mask_sparse(&x);
    }
    test_need(agc_on_device(x.plan), "the plan is not on a GPU: ATTNGRAD_BACKEND=cuda");
    check_repeats(&x, maps, text);
    check_values(&x, maps, text);
    agc_arrays_destroy(&x);
}

struct long_problem {
    const char *text;
    uint32_t maps;
};
static const struct long_problem problems[] = {
    {"h2 kv1 q9000 d64 causal", SECOND_ORDER},
    {"h1 q9000 d128 causal", SECOND_ORDER},
    {"h2 q9000 d64 window=1500,0 sink", FIRST_ORDER},
    {"h1 q9000 d128 window=700,300", FIRST_ORDER},
    {"h1 q17000 d64 causal", FIRST_ORDER},
    {"h1 q17000 d128 causal", FIRST_ORDER},
    {"h4 kv2 q3000 d256", FIRST_ORDER},
    {"h2 q5000 d200 dv256 causal", FIRST_ORDER},
};

/* Each set of score features, over many tiles of queries and blocks of keys. */
static const struct long_problem features[] = {
    {"h1 q3000 k3072 d128 softcap=5", SECOND_ORDER},
    {"h2 kv1 q3000 d64 alibi table=50 causal", SECOND_ORDER},
    {"h1 q3000 k3072 d64 bias=11qk", SECOND_ORDER},
    {"h1 q3000 k3072 d128 mask=11qk window=-1,500", FIRST_ORDER},
    {"h1 q3000 d128 dropout=0.2 causal", SECOND_ORDER},
    {"h2 q3000 k3072 d64 bias=11qk dropout=0.2", FIRST_ORDER},
};

/* Most tiles of the mask are empty; more keys than a group of blocks has. */
static const struct long_problem sparse_masks[] = {
    {"h1 q9000 d64 mask=11qk", FIRST_ORDER},
    {"h1 q4000 k9008 d128 mask=11qk causal align=bottom-right", FIRST_ORDER},
    {"h1 q70 k200000 d64 mask=11qk", FIRST_ORDER}, /* lists of steps in dozens of groups */
};

/* Of 16 bits, whose vjp and vjp_jvp are one kernel each on the table sm90: every query sees every key, and there are
 * more keys than a group of blocks has, so that higher groups wait for lower ones. */
static const struct long_problem rings[] = {
    {"h2 q17000 d64", FIRST_ORDER},
    {"h1 q17000 d128", FIRST_ORDER},
    {"h1 q9000 d64", SECOND_ORDER},
    {"h1 q9000 d128", SECOND_ORDER},
};

#define CHECK_LIST(list, dtype, sparse) check_list(list, sizeof list / sizeof list[0], dtype, sparse)
static void check_list(const struct long_problem *list, size_t count, const char *dtype, bool sparse)
{
    char text[128];
    for (size_t n = 0; n < count; n++) {
        snprintf(text, sizeof text, "%s %s", list[n].text, dtype);
        check_problem(text, list[n].maps, sparse);
    }
}

int main(int argc, char **argv)
{
    test_need(argc > 1, "gpu_long --dtype DTYPE, or gpu_long PROBLEM...");
    if (strcmp(argv[1], "--dtype") == 0 && argc == 3) {
        CHECK_LIST(problems, argv[2], false);
        CHECK_LIST(features, argv[2], false);
        CHECK_LIST(sparse_masks, argv[2], true);
        if (strstr(argv[2], "16") != NULL) {
            CHECK_LIST(rings, argv[2], false);
        }
        return test_summary();
    }
    for (int n = 1; n < argc; n++) {
        check_problem(argv[n], SECOND_ORDER, false);
    }
    return test_summary();
}
