/* AG_INVARIANT: each sequence with one kv head and its query heads gives the same bits in a batch, padded and packed,
 * among other heads, as alone. So the bits do not depend on the order of batch and heads, on how they are split or
 * joined, nor on padding. The five maps, jvp that is given o and lse, and outputs that accumulate. */
#include "device.h"
#include "outputs.h"

enum { BATCH = 5 };

/* Of one batch. Sequences of 5 to 16 queries and few keys are small heads; of less than 24 keys AMX's tiles are padding
 * for the most part. */
struct lengths {
    int64_t q[BATCH], k[BATCH];
};

/* What jvp that is given o and lse writes, with the layout of the tensor `like`. */
enum { GIVEN_TO, GIVEN_TO_LOW, GIVEN_MU, GIVEN_OUTPUTS };
static const enum tensor like[GIVEN_OUTPUTS] = {T_TO, T_TO_LOW, T_MU};
static const char *const given_name[GIVEN_OUTPUTS] = {"to (o given)", "to_low (o given)", "mu (o given)"};

struct results {
    struct arrays x;
    void *given[GIVEN_OUTPUTS]; /* NULL: the problem has no such output */
};

static void make(struct results *r, const char *text, int32_t threads)
{
    ag_options options = AG_OPTIONS_INIT;
    options.flags = AG_INVARIANT;
    options.threads = threads;
    make_arrays(&r->x, text, &options, 7);
    CHECK_OK(agc_arrays_add_low_halves(&r->x));
    for (int n = 0; n < GIVEN_OUTPUTS; n++) {
        const int present = r->x.data[like[n]] != NULL;
        r->given[n] = present ? test_alloc(r->x.count[like[n]], element_size(&r->x, like[n])) : NULL;
    }
}

static void destroy(struct results *r)
{
    for (int n = 0; n < GIVEN_OUTPUTS; n++) {
        free(r->given[n]);
    }
    agc_arrays_destroy(&r->x);
}

/* Once more, added to the results. First the maps that read what others wrote, as that changes then; low halves do not
 * go together with it. */
static void add_results(const struct arrays *x)
{
    enum { READ = AG_ACC_O | AG_ACC_LSE | AG_ACC_TO | AG_ACC_MU };
    static const int order[MAPS] = {1, 3, 4, 0, 2};
    ag_args a = x->args;
    for (int n = 0; n < MAPS; n++) {
        const int writes_read = order[n] == 0 || order[n] == 2;
        a.accumulate = writes_read ? READ : 0x3ffff & ~(uint32_t)READ;
        if (writes_read) {
            a.o_low.data = a.to_low.data = NULL;
        }
        CHECK_OK(call_map(order[n], x->plan, &a, NULL, x->workspace, x->workspace_bytes));
    }
}

/* Which outputs are compared: of all maps, each of which ran once, or twice with results that accumulate; or of forward
 * alone. */
enum what { ONCE, ACCUMULATED, FORWARD_ALONE };

/* The maps, then jvp that is given o and lse. */
static void run(struct results *r, enum what what)
{
    if (what == FORWARD_ALONE) {
        CHECK_OK(agc_arrays_run(&r->x, AG_MAP_FORWARD));
        return;
    }
    ag_args a = r->x.args;
    CHECK_OK(agc_arrays_run_all(&r->x));
    a.flags |= AG_GIVEN_O;
    a.to.data = r->given[GIVEN_TO];
    a.to_low.data = r->given[GIVEN_TO_LOW];
    a.mu.data = r->given[GIVEN_MU];
    CHECK_OK(agc_run_map(r->x.plan, AG_MAP_JVP, &a, r->x.workspace, r->x.workspace_bytes));
    if (what == ACCUMULATED) {
        add_results(&r->x);
    }
}

/* Which part of a batch a problem of one sequence and one kv head is. */
struct part {
    int64_t b, hk, heads_per_kv;
};

static int has_key_rows(enum tensor t)
{
    return agc_tensor_info[t].shape == SHAPE_K || agc_tensor_info[t].shape == SHAPE_V;
}

/* Element (h, i, c) of the part's tensor t, as an element of the batch's. */
static int64_t in_batch(const struct arrays *batch, enum tensor t, const struct part *p, int64_t h, int64_t i,
                        int64_t c)
{
    return agc_arrays_index(batch, t, p->b, has_key_rows(t) ? p->hk : p->hk * p->heads_per_kv + h, i, c);
}

static void copy_input(const struct arrays *batch, struct arrays *alone, enum tensor t, const struct part *p)
{
    const int64_t *n = alone->size[t];
    const size_t size = element_size(alone, t);
    for (int64_t e = 0; e < n[1] * n[2] * n[3]; e++) {
        const int64_t c = e % n[3], i = e / n[3] % n[2], h = e / n[3] / n[2];
        memcpy((char *)alone->data[t] + (size_t)agc_arrays_index(alone, t, 0, h, i, c) * size,
               (const char *)batch->data[t] + (size_t)in_batch(batch, t, p, h, i, c) * size, size);
    }
}

static void compare(const struct arrays *batch, const void *got, const struct arrays *alone,
                    const void *wanted, enum tensor t, const char *name, const struct part *p,
                    const char *label)
{
    const int64_t *n = alone->size[t];
    const size_t size = element_size(alone, t);
    for (int64_t e = 0; e < n[1] * n[2] * n[3]; e++) {
        const int64_t c = e % n[3], i = e / n[3] % n[2], h = e / n[3] / n[2];
        const char *x = (const char *)got + (size_t)in_batch(batch, t, p, h, i, c) * size;
        const char *y = (const char *)wanted + (size_t)agc_arrays_index(alone, t, 0, h, i, c) * size;
        if (memcmp(x, y, size) != 0) {
            CHECK(0, "%s: %s[%d][%d][%d][%d] of kv head %d is %.17g instead of %.17g", label, name, (int)p->b,
                  (int)h, (int)i, (int)c, (int)p->hk, element_value(batch, t, x), element_value(alone, t, y));
            return;
        }
    }
    CHECK(1, "%s", label);
}

static void compare_all(const struct results *batch, const struct results *alone, const struct part *p,
                        enum what what, const char *label)
{
    const uint32_t maps = what == FORWARD_ALONE ? AG_MAP_FORWARD : ALL_MAPS;
    for (enum tensor t = 0; t < T_COUNT; t++) {
        if (is_output(&alone->x, t, maps) && agc_tensor_info[t].shape <= SHAPE_ROW) {
            compare(&batch->x, batch->x.data[t], &alone->x, alone->x.data[t], t, agc_tensor_info[t].name, p,
                    label);
        }
    }
    for (int n = 0; n < GIVEN_OUTPUTS && what != FORWARD_ALONE; n++) {
        if (alone->given[n] != NULL) {
            compare(&batch->x, batch->given[n], &alone->x, alone->given[n], like[n], given_name[n], p, label);
        }
    }
}

/* A problem: heads_per_kv query heads for each of kv_heads; `rest` are its other words. */
struct problem {
    int64_t kv_heads, heads_per_kv;
    const char *rest;
    enum what what;
};

static void check_part(const struct results *batch, const struct problem *problem, const struct part *p,
                       const char *label)
{
    const int64_t n_q = agc_arrays_q_length(&batch->x, p->b), n_k = agc_arrays_k_length(&batch->x, p->b);
    struct results alone;
    char text[256];
    snprintf(text, sizeof text, "h%d kv1 q%d k%d head_offset=%d %s", (int)p->heads_per_kv, (int)n_q, (int)n_k,
             (int)(p->hk * p->heads_per_kv), problem->rest);
    make(&alone, text, 2);
    alone.x.args.batch_offset = p->b;
    if (batch->x.args.q_offsets != NULL) {
        alone.x.args.q_offset = batch->x.args.q_offsets[p->b];
        alone.x.args.k_offset = batch->x.args.k_offsets[p->b];
    }
    for (enum tensor t = 0; t < T_COUNT; t++) {
        if (alone.x.data[t] != NULL && agc_tensor_info[t].writers == 0) {
            copy_input(&batch->x, &alone.x, t, p);
        }
    }
    run(&alone, problem->what);
    compare_all(batch, &alone, p, problem->what, label);
    destroy(&alone);
}

static void set_lengths(struct arrays *x, const struct lengths *n)
{
    if (x->q_packed != NULL) {
        for (int b = 0; b < BATCH; b++) {
            x->q_packed[b + 1] = x->q_packed[b] + n->q[b];
            x->k_packed[b + 1] = x->k_packed[b] + n->k[b];
        }
        return;
    }
    x->args.q_lengths = x->q_lengths = test_alloc(BATCH, sizeof(int64_t));
    x->args.kv_lengths = x->kv_lengths = test_alloc(BATCH, sizeof(int64_t));
    memcpy(x->q_lengths, n->q, sizeof n->q);
    memcpy(x->kv_lengths, n->k, sizeof n->k);
}

static void sum_and_max(const int64_t *n, int64_t *sum, int64_t *max)
{
    *sum = *max = 0;
    for (int b = 0; b < BATCH; b++) {
        *sum += n[b];
        *max = n[b] > *max ? n[b] : *max;
    }
}

static void check_batch(const struct problem *problem, const struct lengths *n, int packed)
{
    int64_t q_sum, q_max, k_sum, k_max;
    struct results batch;
    char text[256], total[64] = "", label[320];
    sum_and_max(n->q, &q_sum, &q_max);
    sum_and_max(n->k, &k_sum, &k_max);
    if (packed) {
        snprintf(total, sizeof total, "packed=%d,%d", (int)q_sum + 3, (int)k_sum + 2);
    }
    snprintf(text, sizeof text, "b5 h%d kv%d q%d k%d %s %s", (int)(problem->kv_heads * problem->heads_per_kv),
             (int)problem->kv_heads, (int)q_max + 5, (int)k_max + 9, total, problem->rest);
    snprintf(label, sizeof label, "'%s'", text);
    make(&batch, text, 3);
    set_lengths(&batch.x, n);
    if (batch.x.p->flags & AG_CAUSAL && batch.x.p->align == AG_ALIGN_TOP_LEFT) {
        CHECK_OK(agc_arrays_random_offsets(&batch.x, 20));
    }
    run(&batch, problem->what);
    for (int64_t b = 0; b < BATCH; b++) {
        for (int64_t hk = 0; hk < problem->kv_heads && n->q[b] > 0; hk++) {
            const struct part p = {b, hk, problem->heads_per_kv};
            check_part(&batch, problem, &p, label);
        }
    }
    destroy(&batch);
}

/* ---- Long sequences ------------------------------------------------------------------------------ */

enum { LONG = 2400, SHIFT = 64, LONG_OUTPUTS = 6 };
static const enum tensor long_output[LONG_OUTPUTS] = {T_DQ, T_DK, T_DV, T_TDQ, T_TDK, T_TDV};

static ag_tensor *tensor_in(ag_args *a, enum tensor t)
{
    return (ag_tensor *)(void *)((char *)a + agc_tensor_info[t].offset);
}

/* Heads that overlap in the arrays of x, which has one: head h has LONG rows from first + h * step on. The results of
 * one head after another go to memory; without dsink and tdsink, which the promise is not about. */
static ag_args overlapping_heads(const struct arrays *x, int64_t first, int64_t step,
                                 char *const memory[LONG_OUTPUTS])
{
    ag_args a = x->args;
    a.dsink.data = a.tdsink.data = NULL;
    for (enum tensor t = 0; t < T_COUNT; t++) {
        ag_tensor *view = tensor_in(&a, t);
        const int64_t row = agc_tensor_info[t].shape <= SHAPE_ROW ? view->strides[2] : 0;
        if (view->data != NULL) {
            view->data = (char *)view->data + (size_t)(first * row) * element_size(x, t);
            view->strides[1] = step * row;
        }
    }
    for (int n = 0; n < LONG_OUTPUTS; n++) {
        ag_tensor *view = tensor_in(&a, long_output[n]);
        view->data = memory[n];
        view->strides[1] = LONG * view->strides[2];
    }
    return a;
}

/* vjp and vjp_jvp of several heads, the last of which has the rows from SHIFT on. */
static void run_long_heads(const struct arrays *x, int64_t heads, const ag_options *options,
                           char *const memory[LONG_OUTPUTS])
{
    const int64_t step = heads == 1 ? 0 : SHIFT / (heads - 1);
    const ag_args a = overlapping_heads(x, SHIFT - step * (heads - 1), step, memory);
    ag_problem p = x->given;
    ag_plan *plan = NULL;
    size_t bytes = 0;
    p.heads = p.kv_heads = heads;
    p.q_len = p.kv_len = LONG;
    test_need(ag_plan_create(&plan, &p, options) == AG_OK, "no plan for long heads");
    CHECK_OK(ag_plan_workspace(plan, AG_MAP_VJP | AG_MAP_VJP_JVP, &bytes));
    void *workspace = test_alloc((int64_t)bytes, 1);
    CHECK_OK(agc_run_map(plan, AG_MAP_VJP, &a, workspace, bytes));
    CHECK_OK(agc_run_map(plan, AG_MAP_VJP_JVP, &a, workspace, bytes));
    free(workspace);
    ag_plan_destroy(plan);
}

/* vjp of 1 and 3 kv heads of this length runs as chains of spans, of 65 as groups. In a window, as the number of pairs
 * does not matter. */
static void chains_and_groups(void)
{
    enum { SIZE = LONG * 64 * sizeof(float), FEW = 3, MANY = 65 }; /* SIZE: bytes of one head's output */
    struct arrays x;
    char *alone[LONG_OUTPUTS], *many[LONG_OUTPUTS];
    ag_problem p = AG_PROBLEM_INIT;
    ag_options options = AG_OPTIONS_INIT;
    options.flags = AG_INVARIANT;
    options.threads = 3;
    CHECK_OK(ag_problem_parse("h1 q2464 d64 window=300,0 sink f32", &p));
    test_need(agc_arrays_create(&x, &p, &options, 7) == AG_OK, "no arrays for a long sequence");
    CHECK_OK(agc_arrays_run(&x, AG_MAP_JVP));
    for (int n = 0; n < LONG_OUTPUTS; n++) {
        alone[n] = test_alloc(1, SIZE);
        many[n] = test_alloc(MANY, SIZE);
    }
    run_long_heads(&x, 1, &options, alone);
    for (int64_t heads = FEW; heads <= MANY; heads += MANY - FEW) {
        run_long_heads(&x, heads, &options, many);
        for (int n = 0; n < LONG_OUTPUTS; n++) {
            CHECK(memcmp(many[n] + (heads - 1) * SIZE, alone[n], SIZE) == 0,
                  "%s of the last of %d long heads", agc_tensor_info[long_output[n]].name, (int)heads);
        }
    }
    for (int n = 0; n < LONG_OUTPUTS; n++) {
        free(alone[n]);
        free(many[n]);
    }
    agc_arrays_destroy(&x);
}

/* ---- The problems -------------------------------------------------------------------------------- */

static const struct lengths tiny = {{1, 10, 4, 16, 7}, {8, 1, 16, 7, 30}};
static const struct lengths tiles = {{3, 300, 65, 193, 0}, {500, 130, 24, 700, 20}};
static const struct lengths one_tile = {{40, 64, 200, 1, 30}, {50, 64, 300, 64, 9}};
static const struct lengths spans = {{70, 200, 1, 130, 9}, {300, 1500, 2300, 520, 40}};
static const struct lengths short_q = {{1, 70, 4, 30, 0}, {9000, 8200, 13000, 4000, 16500}};
static const struct lengths splits = {{6200, 300, 40, 0, 200}, {300, 64, 700, 10, 31}};
static const struct lengths both = {{6200, 500, 40, 0, 200}, {200, 1500, 700, 10, 31}};

enum { FEATURES = 6 };
static const char *const features[FEATURES] = {
    "",
    "causal",
    "causal align=bottom-right window=60,-1 sink",
    "dropout=0.3 softcap=4",
    "table=40 sink bias=b1q1",
    "bias mask=1h1k window=90,30",
};
static const char *const dtypes[] = {"f64", "f32", "f16", "bf16"};

/* How much is run: by AG_TEST_COUNT. */
enum amount { LITTLE, SOME, ALL };

/* The first of dtypes that is run: bfloat16 if the test that forces nothing runs the others. */
static int first_dtype(void)
{
    return test_on_best_vectors() ? 3 : 0;
}

/* ALL: every feature in every dtype; SOME: a third of these pairs, with every feature and every dtype among them;
 * LITTLE: a feature of each dtype, and several tiles in float32 alone. */
static void features_and_dtypes(enum amount amount)
{
    char rest[128];
    for (int d = first_dtype(); d < 4; d++) {
        for (int f = 0; f < FEATURES; f++) {
            const int wanted = amount == ALL || (amount == SOME ? (f + d) % 3 == 0 : f == d);
            snprintf(rest, sizeof rest, "d16 dv32 %s %s", features[f], dtypes[d]);
            const struct problem grouped = {2, 2, rest, f % 2 == 1 ? ACCUMULATED : ONCE},
                                 many = {4, 1, rest, f % 2 == 0 ? ACCUMULATED : ONCE};
            if (wanted) {
                check_batch(&many, &tiny, 0);
                check_batch(&many, &tiny, 1);
            }
            if (amount == LITTLE ? f == 1 && d == 1 : wanted) {
                check_batch(f % 2 == 0 ? &many : &grouped, &tiles, f % 2);
            }
            if (amount == ALL) {
                check_batch(f % 2 == 0 ? &grouped : &many, &tiles, f % 2);
            }
        }
    }
}

/* Sequences of one tile, for which a GPU has kernels of their own, beside longer ones: forward. LITTLE: two of the
 * three features. */
static void one_tile_beside_many(enum amount amount)
{
    static const char *const words[] = {"", "causal sink", "causal align=bottom-right window=20,7"};
    static const char *const sizes[] = {"d16", "d64", "d128"};
    char rest[128];
    for (int d = first_dtype(); d < 4; d++) {
        for (int n = 0; n < 9; n++) {
            snprintf(rest, sizeof rest, "%s %s %s", sizes[n / 3], words[n % 3], dtypes[d]);
            const struct problem single = {1, 1, rest, FORWARD_ALONE};
            if (amount != LITTLE || (n + n / 3 + d) % 3 != 0) {
                check_batch(&single, &one_tile, (n + d) % 2);
            }
        }
    }
}

/* Large heads have short spans; 20 groups or 5, alone 1. SOME: each dtype with one of two features. */
static void long_sequences(enum amount amount)
{
    char rest[128];
    for (int d = first_dtype() | 1; d < 4; d += 2) {
        for (int f = 0; f < 2; f++) {
            if (amount == SOME && f != d / 2) {
                continue;
            }
            snprintf(rest, sizeof rest, "d128 dv144 %s %s", features[f], dtypes[d]);
            const struct problem many = {4, 1, rest, ONCE}, grouped = {1, 2, rest, ONCE};
            check_batch(&many, &spans, f);
            check_batch(&grouped, &spans, !f);
            snprintf(rest, sizeof rest, "d8 %s %s", features[2 * f], dtypes[d]);
            check_batch(&many, &splits, f);
            check_batch(&grouped, &splits, !f);
            check_batch(&many, &short_q, f);
        }
    }
}

/* A sequence whose queries are split, in a batch that runs as chains; and with a table, which no chain has. SOME:
 * bfloat16 alone. */
static void splits_of_queries(enum amount amount)
{
    char rest[128];
    for (int d = amount == SOME ? 3 : first_dtype() | 1; d < 4; d += 2) {
        snprintf(rest, sizeof rest, "d128 dv144 causal sink %s", dtypes[d]);
        const struct problem chained = {1, 2, rest, ONCE};
        check_batch(&chained, &both, d == 1);
        snprintf(rest, sizeof rest, "d8 %s %s", features[4], dtypes[d]);
        const struct problem table = {2, 1, rest, ONCE};
        check_batch(&table, &splits, d == 1);
    }
}

int main(void)
{
    const int count = test_count(1000);
    const enum amount amount = count < 500 ? LITTLE : count < 1000 ? SOME : ALL;
    if (first_dtype() > 0) {
        printf(
            "bf16 only: the test without ATTNGRAD_ISA runs the other dtypes on the same instruction set\n");
    }
    features_and_dtypes(amount);
    one_tile_beside_many(amount);
    if (amount == LITTLE) {
        printf("most features of each dtype, long sequences: not run, AG_TEST_COUNT asks for little\n");
    } else {
        if (first_dtype() == 0) {
            chains_and_groups();
        }
        long_sequences(amount);
        splits_of_queries(amount);
    }
    return test_maps_summary();
}
