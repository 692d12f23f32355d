/* NaN and infinities in queries, keys and values reach only the rows that see them: in one tile, among several tiles
 * and head sizes, and with masks; what nobody sees has no effect at all. */
#include "device.h"
#include "outputs.h"

#include <math.h>
#include <stdbool.h>

/* ---- One bad key in a short sequence ---- */

/* Key `key` gets this value in K or V: rows before it, which do not see it, keep their bits, and
 * if `spreads`, rows that see it become it. For K every backend promises that; for V the reference
 * alone, because a product over a tile meets 0 times infinity. */
static void one_bad_key(enum tensor t, double value, int spreads, const char *text)
{
    struct arrays x;
    void *clean[T_COUNT];
    const int64_t key = 4;
    ag_options options = AG_OPTIONS_INIT;
    options.backend = t == T_V ? AG_BACKEND_REFERENCE : AG_BACKEND_AUTO;
    make_arrays(&x, text, &options, 71);
    CHECK_OK(agc_arrays_run(&x, AG_MAP_FORWARD));
    keep_outputs(&x, clean);
    const size_t at = (size_t)agc_arrays_index(&x, t, 0, 0, key, 1) * element_size(&x, t);
    ag_convert((char *)x.data[t] + at, x.dtype[t], &value, AG_F64, 1);
    CHECK_OK(agc_arrays_run(&x, AG_MAP_FORWARD));
    for (int64_t i = 0; i < x.p->q_len; i++) {
        const size_t o = (size_t)agc_arrays_index(&x, T_O, 0, 0, i, 0) * element_size(&x, T_O);
        const size_t row = (size_t)x.p->dim_v * element_size(&x, T_O), lse = (size_t)i * sizeof(double);
        if (i < key) {
            CHECK(memcmp((char *)x.data[T_O] + o, (char *)clean[T_O] + o, row) == 0 &&
                      memcmp((char *)x.data[T_LSE] + lse, (char *)clean[T_LSE] + lse, sizeof(double)) == 0,
                  "'%s': %g in %s[%d] changed row %d, which does not see it", text, value,
                  agc_tensor_info[t].name, (int)key, (int)i);
        } else if (spreads) {
            const size_t second = o + element_size(&x, T_O);
            const double got = element_value(&x, T_O, (char *)x.data[T_O] + second);
            CHECK(isnan(value) ? isnan(got) : got == value, "'%s': %g in %s[%d] gave O[%d][1] = %g", text,
                  value, agc_tensor_info[t].name, (int)key, (int)i, got);
        }
    }
    free_outputs(clean);
    agc_arrays_destroy(&x);
}

static void nan_reaches_only_who_sees_it(void)
{
    static const char *const texts[] = {"q7 k7 d3 f64 causal", "q7 k7 d3 f32 causal sink",
                                        "q7 k7 d3 bf16 causal alibi", "q7 k7 d3 f16 window=-1,0"};
    for (size_t n = 0; n < sizeof texts / sizeof texts[0]; n++) {
        one_bad_key(T_K, NAN, 1, texts[n]);
        one_bad_key(T_V, NAN, 1, texts[n]);
        one_bad_key(T_V, INFINITY, 1, texts[n]);
        one_bad_key(T_V, -INFINITY, 1, texts[n]);
        one_bad_key(T_K, INFINITY, 0, texts[n]);
        one_bad_key(T_K, -INFINITY, 0, texts[n]);
    }
}

/* ---- One bad key or query among several tiles ---- */

enum { BAD_KEY = 130, UNSEEN_KEY = 250, UNSEEN_QUERY = 70 };

/* The mask hides BAD_KEY from two queries of three, one key more from all, and all keys from one query. */
static void mask_rows(struct arrays *x)
{
    const int64_t *size = x->size[T_MASK];
    uint8_t *const mask = x->data[T_MASK];
    for (int64_t n = 0; n < x->count[T_MASK]; n++) {
        const int64_t j = n % size[3], i = n / size[3] % size[2];
        mask[n] = i != UNSEEN_QUERY && j != UNSEEN_KEY && (j != BAD_KEY || i % 3 == 0);
    }
}

/* Row n of the tensor is NaN, in every head. */
static void spoil_row(struct arrays *x, enum tensor t, int64_t n)
{
    const double nan = NAN;
    for (int64_t e = 0; e < x->size[t][1] * x->size[t][3] && x->data[t] != NULL; e++) {
        const int64_t at = agc_arrays_index(x, t, 0, e / x->size[t][3], n, e % x->size[t][3]);
        ag_convert((char *)x->data[t] + (size_t)at * element_size(x, t), x->dtype[t], &nan, AG_F64, 1);
    }
}

/* Row i of head h of the output: is it NaN, if it sees the bad key, or else as it was? */
static int is_row_right(const struct arrays *x, enum tensor t, const void *clean, int64_t h, int64_t i,
                        bool sees)
{
    const size_t size = element_size(x, t);
    int right = 1;
    for (int64_t c = 0; c < x->size[t][3]; c++) {
        const size_t at = (size_t)agc_arrays_index(x, t, 0, h, i, c) * size;
        const char *got = (const char *)x->data[t] + at;
        right &= sees ? isnan(element_value(x, t, got)) : memcmp(got, (const char *)clean + at, size) == 0;
    }
    return right;
}

static bool sees_bad_key(const struct arrays *x, int64_t h, int64_t i)
{
    const bool causal = i >= BAD_KEY || !(x->p->flags & AG_CAUSAL);
    const bool mask = x->data[T_MASK] == NULL || (i % 3 == 0 && i != UNSEEN_QUERY);
    if (x->data[T_BIAS] == NULL) {
        return causal && mask;
    }
    const size_t at = (size_t)agc_arrays_index(x, T_BIAS, 0, h, i, BAD_KEY) * element_size(x, T_BIAS);
    return causal && mask && element_value(x, T_BIAS, (char *)x->data[T_BIAS] + at) != -HUGE_VAL;
}

/* forward: NaN in K reaches all rows that see the key, and no other. */
static void bad_key_among_tiles(const char *text)
{
    static const enum tensor outputs[] = {T_O, T_LSE};
    struct arrays x;
    void *clean[T_COUNT];
    make_arrays(&x, text, NULL, 73);
    if (x.data[T_MASK] != NULL) {
        mask_rows(&x);
    }
    CHECK_OK(agc_arrays_run(&x, AG_MAP_FORWARD));
    keep_outputs(&x, clean);
    spoil_row(&x, T_K, BAD_KEY);
    CHECK_OK(agc_arrays_run(&x, AG_MAP_FORWARD));
    for (int64_t n = 0; n < 2 * x.p->heads * x.p->q_len; n++) {
        const enum tensor t = outputs[n % 2];
        const int64_t i = n / 2 % x.p->q_len, h = n / 2 / x.p->q_len;
        const bool sees = sees_bad_key(&x, h, i);
        CHECK(is_row_right(&x, t, clean[t], h, i, sees),
              "'%s': NaN in K[%d], row %d of head %d of %s, which %s it", text, BAD_KEY, (int)i, (int)h,
              agc_tensor_info[t].name, sees ? "sees" : "does not see");
    }
    free_outputs(clean);
    agc_arrays_destroy(&x);
}

/* All maps: NaN in a key that no query sees, and in a query that sees no key, has no effect. */
static void what_nobody_sees(const char *text)
{
    static const enum tensor of_keys[] = {T_K, T_V, T_TK, T_TV, T_SK, T_SV};
    static const enum tensor of_queries[] = {T_Q, T_D_O, T_TQ, T_TD_O, T_SQ};
    struct arrays x;
    void *clean[T_COUNT];
    make_arrays(&x, text, NULL, 77);
    if (x.data[T_MASK] != NULL) {
        mask_rows(&x);
    }
    CHECK_OK(agc_arrays_run_all(&x));
    keep_outputs(&x, clean);
    for (int n = 0; n < 6; n++) {
        spoil_row(&x, of_keys[n], UNSEEN_KEY);
    }
    for (int n = 0; n < 5 && x.data[T_MASK] != NULL; n++) {
        spoil_row(&x, of_queries[n], UNSEEN_QUERY);
    }
    CHECK_OK(agc_arrays_run_all(&x));
    for (enum tensor t = 0; t < T_COUNT; t++) {
        if (is_output(&x, t, ALL_MAPS)) {
            same_tensor(&x, t, x.data[t], clean[t], text);
        }
    }
    free_outputs(clean);
    agc_arrays_destroy(&x);
}

/* Keys from 200 on are hidden by causal alone. If AG_TEST_COUNT is small: forward of the first head sizes; all maps of
 * one problem. */
static void bad_rows_among_tiles(void)
{
    static const char *const problems[] = {
        "h2 kv1 q200 k300 d64 causal bf16",
        "h2 kv1 q200 k300 d64 mask=11qk bf16",
        "h1 q200 k300 d128 mask=11qk causal f16",
        "h1 q200 k300 d256 causal bf16",
        "h1 q200 k300 d64 causal f32",
        "h1 q200 k300 d128 causal bf16",
        "h1 q200 k300 d128 mask=11qk bf16",
        "h1 q200 k300 d64 mask=11qk causal f32",
        "h1 q200 k300 d128 causal f32",
        "h1 q200 k300 d64 mask=11qk causal sink f16",
        "h1 q200 k300 d256 mask=11qk causal f16",
        "h1 q200 k300 d256 causal f32",
        "h1 q200 k300 d64 mask=11qk causal f64",
        "h1 q200 k300 d128 causal f64",
        "h1 q200 k300 d64 causal softcap=4 bf16",
        "h1 q200 k300 d128 causal bias=11qk dropout=0.2 f16",
        "h1 q200 k300 d64 mask=11qk bias=11qk bf16",
    };
    enum { PROBLEMS = sizeof problems / sizeof problems[0] };
    const bool few = test_count(1000) < 1000;
    for (int n = 0; n < PROBLEMS && !(few && n >= 5); n++) {
        bad_key_among_tiles(problems[n]);
    }
    for (int n = few ? 1 : 0; n < PROBLEMS && !(few && n >= 2); n++) {
        what_nobody_sees(problems[n]);
    }
}

/* ---- Queries ---- */

/* A NaN in one query row stays in its row. */
static void nan_in_a_query(void)
{
    struct arrays x;
    make_arrays(&x, "b2 h2 q5 k6 d3 f64", NULL, 73);
    agc_arrays_f64(&x, T_Q)[agc_arrays_index(&x, T_Q, 1, 0, 2, 1)] = NAN;
    CHECK_OK(agc_arrays_run(&x, AG_MAP_FORWARD));
    for (int64_t row = 0; row < 20; row++) {
        const int bad = row == (1 * 2 + 0) * 5 + 2;
        CHECK(bad == (isnan(agc_arrays_f64(&x, T_LSE)[row]) ? 1 : 0) &&
                  bad == (isnan(agc_arrays_f64(&x, T_O)[row * 3]) ? 1 : 0),
              "row %d: O %g, lse %g", (int)row, agc_arrays_f64(&x, T_O)[row * 3],
              agc_arrays_f64(&x, T_LSE)[row]);
    }
    agc_arrays_destroy(&x);
}

int main(void)
{
    nan_reaches_only_who_sees_it();
    nan_in_a_query();
    bad_rows_among_tiles();
    return test_maps_summary();
}
