/* Masked pairs, by mask, bias or window: NaN in their keys and values has no effect, and no time is spent on them. Time
 * is the processor time of one thread, the minimum over some rounds in which two calls alternate; the limits leave room
 * for a busy machine. */
#include <math.h>
#include <time.h>

#include "outputs.h"

enum { MIN_ROUNDS = 4, MAX_ROUNDS = 32, N = 2048 };

static const struct {
    const char *name;
    uint32_t map;
} maps[] = {
    {"forward", AG_MAP_FORWARD}, {"vjp", AG_MAP_VJP}, {"jvp", AG_MAP_JVP}, {"vjp_jvp", AG_MAP_VJP_JVP}};

/* ---- Which pairs are visible ---- */

typedef int (*visible)(int64_t i, int64_t j);

static int all(int64_t i, int64_t j)
{
    (void)i;
    (void)j;
    return 1;
}

static int upper_half(int64_t i, int64_t j)
{
    (void)j;
    return i < N / 2;
}

static int blocks(int64_t i, int64_t j)
{
    return i / (N / 8) == j / (N / 8);
}

/* Sets the visible pairs by the mask, or by the bias if there is no mask. */
static void set_visible(struct arrays *x, visible sees)
{
    const enum tensor t = x->data[T_MASK] != NULL ? T_MASK : T_BIAS;
    double *values = test_alloc(x->count[t], sizeof *values);
    for (int64_t n = 0; n < x->count[t]; n++) {
        const int seen = sees(n / x->p->kv_len, n % x->p->kv_len);
        values[n] = t == T_MASK ? seen : seen ? 0.25 : -INFINITY;
    }
    agc_arrays_write(x, t, values);
    free(values);
}

/* ---- Time ---- */

static double seconds(struct arrays *x, uint32_t map)
{
    const clock_t start = clock();
    CHECK_OK(agc_arrays_run(x, map));
    return (double)(clock() - start) / CLOCKS_PER_SEC;
}

static void make(struct arrays *x, const char *text, visible sees)
{
    ag_problem problem = AG_PROBLEM_INIT;
    ag_options options = AG_OPTIONS_INIT;
    options.threads = 1;
    CHECK_OK(ag_problem_parse(text, &problem));
    test_need(agc_arrays_create(x, &problem, &options, 1) == AG_OK, "a plan");
    if (sees != NULL) {
        set_visible(x, sees);
    }
    CHECK_OK(agc_arrays_run_all(x));
}

/* Each map's time with some features and the pairs of `sees`, as a fraction of that with other features and all
 * pairs. Other programs disturb single rounds, so a fraction above the limit is measured for longer. */
static void test_time(const char *features, const char *other_features, const char *dtype, visible sees,
                      double limit)
{
    struct arrays part, full;
    char text[128], other[128];
    snprintf(text, sizeof text, "h1 q%d k%d d64 %s %s", N, N, dtype, features);
    snprintf(other, sizeof other, "h1 q%d k%d d64 %s %s", N, N, dtype, other_features);
    make(&part, text, sees);
    make(&full, other, sees == NULL ? NULL : all);
    for (int m = 0; m < 4; m++) {
        double minimum[2] = {INFINITY, INFINITY};
        for (int round = 0; round < MIN_ROUNDS || (round < MAX_ROUNDS && minimum[0] >= limit * minimum[1]);
             round++) {
            minimum[0] = fmin(minimum[0], seconds(&part, maps[m].map));
            minimum[1] = fmin(minimum[1], seconds(&full, maps[m].map));
        }
        const double got = minimum[0] / minimum[1];
        printf("%-40s %-8s %.2f of the time\n", text, maps[m].name, got);
        CHECK(got < limit, "%s: %s takes %.2f of the time of %s with every pair visible, the limit is %.2f",
              text, maps[m].name, got, other, limit);
    }
    agc_arrays_destroy(&part);
    agc_arrays_destroy(&full);
}

/* ---- What is masked has no effect ---- */

/* Some queries and keys take part in no pair: whole tiles, and parts of others. */
typedef struct {
    int64_t first, end;
} rows;

static rows idle_keys, idle_queries;

static int is_idle(enum tensor t, int64_t row)
{
    const rows idle =
        agc_tensor_info[t].shape == SHAPE_K || agc_tensor_info[t].shape == SHAPE_V ? idle_keys : idle_queries;
    return row >= idle.first && row < idle.end;
}

static int without_idle(int64_t i, int64_t j)
{
    return !is_idle(T_Q, i) && !is_idle(T_K, j) && (i + j) % 3 != 0;
}

static void spoil(struct arrays *x)
{
    static const enum tensor spoiled[] = {T_Q, T_K, T_V, T_D_O, T_TQ, T_TK, T_TV, T_TD_O};
    for (size_t s = 0; s < sizeof spoiled / sizeof spoiled[0]; s++) {
        const enum tensor t = spoiled[s];
        double *values = test_read(x, t);
        for (int64_t n = 0; n < x->count[t]; n++) {
            values[n] = is_idle(t, n / x->size[t][3]) ? NAN : values[n];
        }
        agc_arrays_write(x, t, values);
        free(values);
    }
}

static void test_nan(const char *problem, const char *dtype, visible sees, rows queries, rows keys)
{
    struct arrays clean, spoiled;
    char text[128];
    idle_queries = queries;
    idle_keys = keys;
    snprintf(text, sizeof text, "h1 %s %s", problem, dtype);
    make(&clean, text, sees);
    make(&spoiled, text, sees);
    spoil(&spoiled);
    CHECK_OK(agc_arrays_run_all(&spoiled));
    for (enum tensor t = 0; t < T_COUNT; t++) {
        if (agc_tensor_info[t].role == ROLE_OUTPUT && clean.data[t] != NULL) {
            double *a = test_read(&clean, t), *b = test_read(&spoiled, t);
            int64_t wrong = 0;
            for (int64_t n = 0; n < clean.count[t]; n++) {
                wrong += isnan(a[n]) || a[n] != b[n];
            }
            CHECK(wrong == 0, "%s: %s: NaN in what nobody sees changed %lld elements", text,
                  agc_tensor_info[t].name, (long long)wrong);
            free(a);
            free(b);
        }
    }
    agc_arrays_destroy(&clean);
    agc_arrays_destroy(&spoiled);
}

/* Causal, each query `offset` keys ahead: the first 64 queries see some keys of the third group of 32, which hold a new
 * maximum, so that earlier sums are rescaled; V of a key after these is NaN. */
static void test_masked_after_maximum(const char *dtype, int64_t offset)
{
    struct arrays x;
    char text[128];
    snprintf(text, sizeof text, "h1 q128 k192 d64 %s causal", dtype);
    make(&x, text, NULL);
    x.args.q_offset = offset;
    double *k = test_read(&x, T_K), *v = test_read(&x, T_V);
    for (int64_t c = 0; c < 64; c++) {
        for (int64_t j = 64; j < 64 + offset; j++) {
            k[j * 64 + c] *= 30;
        }
        v[(64 + offset) * 64 + c] = NAN;
    }
    agc_arrays_write(&x, T_K, k);
    agc_arrays_write(&x, T_V, v);
    CHECK_OK(agc_arrays_run(&x, AG_MAP_FORWARD));
    CHECK_OK(agc_arrays_run(&x, AG_MAP_JVP));
    double *o = test_read(&x, T_O), *to = test_read(&x, T_TO);
    int64_t wrong = 0;
    for (int64_t n = 0; n < 64 * 64; n++) {
        wrong += !isfinite(o[n]) || !isfinite(to[n]);
    }
    CHECK(wrong == 0, "%s, offset %lld: NaN in a masked V after a new maximum changed %lld elements", text,
          (long long)offset, (long long)wrong);
    free(k);
    free(v);
    free(o);
    free(to);
    agc_arrays_destroy(&x);
}

int main(void)
{
    static const char *const dtypes[] = {"f32", "bf16", "f64", "f16"};
    static const char *const problems[] = {"q210 k330 d24 mask=11qk", "q210 k330 d24 bias=11qk",
                                           "q210 k330 d24 mask=11qk sink", "q210 k330 d24 bias=11qk sink"};
    const rows none = {0, 0}, some = {70, 160};
    for (int d = 0; d < 4; d++) {
        for (int h = 0; h < 4; h++) {
            test_nan(problems[h], dtypes[d], without_idle, some, (rows){64, 256});
            test_nan(problems[h], dtypes[d], without_idle, some,
                     (rows){202, 330}); /* from the middle of a group to the end */
        }
        /* Keys before the first window and after the last, with rows that see 512 keys and more. */
        test_nan("q200 k1000 d32 window=600,0 align=bottom-right sink", dtypes[d], NULL, none,
                 (rows){0, 200});
        test_nan("q200 k1000 d32 window=0,610", dtypes[d], NULL, none, (rows){810, 1000});
        for (int64_t offset = 1; offset < 32; offset += 5) {
            test_masked_after_maximum(dtypes[d], offset);
        }
    }
    if (test_count(1000) < 1000) {
        printf("times: not measured, AG_TEST_COUNT asks for little\n");
    }
    for (int d = 0; d < 2 && test_count(1000) == 1000; d++) {
        /* Half of the rows see no key, and their lse is the sink's logit: to find that out takes little time. */
        test_time("mask=11qk sink", "mask=11qk sink", dtypes[d], upper_half, 1.3);
        test_time("bias=11qk sink", "bias=11qk sink", dtypes[d], upper_half, 1.3);
        /* An eighth of the pairs, in blocks on the diagonal: tiles without any are not computed. */
        test_time("mask=11qk", "mask=11qk", dtypes[d], blocks, 0.5);
        test_time("bias=11qk", "bias=11qk", dtypes[d], blocks, 0.5);
        /* An eighth of the pairs, and of those of a causal problem a quarter. */
        test_time("window=127,127", "", dtypes[d], NULL, 0.5);
        test_time("causal window=255,0", "causal", dtypes[d], NULL, 0.75);
    }
    return test_summary();
}
