/* One problem on the emulated table sm90: its maps by the error rule. Problems of each feature set. */
#ifndef AG_TEST_HOPPER_PROBLEMS_H
#define AG_TEST_HOPPER_PROBLEMS_H

#include <math.h>

#include "check/error_rule.h"
#include "check/random_case.h"
#include "cuda/hopper_sets.h"
#include "emulated_backend.h"
#include "kernels.h"
#include "sparse_mask.h"
#include "test.h"

/* The call of a problem, besides its text. */
enum {
    WITH_LENGTHS = 1,
    WITH_LOW = 2,
    WITH_OFFSETS = 4,
    NOT_A_NUMBER = 8,
    INVARIANT = 16,
    SHORT_RINGS = 32,
    FORWARD_ALONE = 64,
    LARGE_TANGENTS = 128, /* tS of 1e4 */
    COMMON_TANGENT = 256, /* tS of 1e3, nearly the same for all keys: tO is small */
    WITHOUT_TK = 512,     /* tangents that are absent */
    WITHOUT_TQ_TV = 1024,
    FIRST_ORDER = 2048, /* forward and vjp alone */
    MASK_BY_TILES =
        4096, /* the mask's tiles of 64 x 64 are empty, full or mixed; queries and keys that nobody sees are NaN */
    MASK_EMPTY = 8192,
    MASK_FULL = 16384,
    FAR_BIAS = 32768, /* the bias of one query is -1e9 for every key */
    HIDING_BIAS =
        65536, /* the bias hides every third key, all keys of every seventh query, and half of the other pairs */
    MASK_SPARSE = 1 << 17, /* about one of eight tiles of 128 x 128 is seen; with MASK_BY_TILES's NaN */
    MASK_OF_HEAD_EMPTY = 1 << 18, /* beside these: the second head of the mask sees nothing */
    WITHOUT_TERMS = 1 << 19,      /* tangents of bias and table are absent */
    MASK_OF_HALVES = 1 << 20,     /* with MASK_BY_TILES: mixed tiles show nothing to their last 32 queries */
    HEAVY_SINK = 1 << 21 /* beside the sink the keys' weights are lost in float32, but not their gradients */
};

struct hopper_problem {
    const char *text;
    uint32_t with;
};

/* Rows of a tensor from `first` to `end` - 1 become NaN, in every head of the first sequence. */
static inline void spoil_rows(struct arrays *x, enum tensor t, int64_t first, int64_t end)
{
    const ag_problem *p = ag_plan_problem(x->plan);
    const bool keys = t == T_K || t == T_V || t == T_TK || t == T_TV;
    const bool values = t == T_V || t == T_TV || t == T_D_O || t == T_TD_O;
    void *const data = x->data[t];
    for (int64_t h = 0; h < (keys ? p->kv_heads : p->heads); h++) {
        for (int64_t n = first; n < end; n++) {
            for (int64_t c = 0; c < (values ? p->dim_v : p->dim_qk); c++) {
                const int64_t at = agc_arrays_index(x, t, 0, h, n, c);
                if (p->dtype == AG_F32) {
                    ((float *)data)[at] = NAN;
                } else {
                    ((uint16_t *)data)[at] = 0x7fff;
                }
            }
        }
    }
}

/* Rows of one side that the other does not see are not read: they may be NaN. With causal these are keys after the last
 * query; with alignment to the bottom right queries before the first key; with HIDING_BIAS those that it hides. */
static inline void spoil_hidden_rows(struct arrays *x, uint32_t with)
{
    static const enum tensor of_keys[] = {T_K, T_V, T_TK, T_TV}, of_queries[] = {T_Q, T_D_O, T_TQ, T_TD_O};
    const ag_problem *p = ag_plan_problem(x->plan);
    const bool bottom_right = p->align == AG_ALIGN_BOTTOM_RIGHT;
    for (int n = 0; n < 4; n++) {
        if (bottom_right) {
            spoil_rows(x, of_queries[n], 0, p->q_len - p->kv_len);
        } else {
            spoil_rows(x, of_keys[n], p->q_len, p->kv_len);
        }
        for (int64_t i = 0; i < p->q_len && with & HIDING_BIAS; i += 7) {
            spoil_rows(x, of_queries[n], i, i + 1);
        }
        for (int64_t j = 0; j < p->kv_len && with & HIDING_BIAS; j += 3) {
            spoil_rows(x, of_keys[n], j, j + 1);
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
    static const enum tensor terms[] = {T_TBIAS, T_TTABLE};
    const ag_problem *p = ag_plan_problem(x->plan);
    for (int n = 0; n < 2 && with & WITHOUT_TERMS; n++) {
        if (x->data[terms[n]] != NULL) {
            memset(x->data[terms[n]], 0, (size_t)x->count[terms[n]] * ag_dtype_size(p->aux_dtype));
        }
    }
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
    if (with & WITHOUT_TERMS) {
        x->args.tbias.data = x->args.ttable.data = NULL;
    }
}

/* In bfloat16. */
enum { MINUS_1E9 = 0xce6e };

static inline void lower_bias(struct arrays *x)
{
    const ag_problem *p = ag_plan_problem(x->plan);
    uint16_t *const bias = x->data[T_BIAS];
    for (int64_t j = 0; j < p->kv_len; j++) {
        bias[agc_arrays_index(x, T_BIAS, 0, 0, p->q_len / 2, j)] = MINUS_1E9;
    }
}
/* To 25, in bfloat16. */
static inline void raise_sink(struct arrays *x)
{
    for (int64_t n = 0; n < x->count[T_SINK]; n++) {
        ((uint16_t *)x->data[T_SINK])[n] = 0x41c8;
    }
}
static inline void hide_by_bias(struct arrays *x)
{
    const ag_problem *p = ag_plan_problem(x->plan);
    uint16_t *const bias = x->data[T_BIAS];
    const int64_t *size = x->size[T_BIAS];
    for (int64_t n = 0; n < x->count[T_BIAS]; n++) {
        const int64_t j = n % size[3], i = n / size[3] % size[2];
        if (j % 3 == 0 || i % 7 == 0 || (i * 31 + j * 17 + i * j) % 2 == 0) {
            bias[n] = p->dtype == AG_F16 ? 0xfc00 : 0xff80; /* minus infinity */
        }
    }
}
static inline bool has_far_bias(const struct arrays *x)
{
    const ag_problem *p = ag_plan_problem(x->plan);
    return p->flags & AG_BIAS && p->dtype == AG_BF16 &&
           ((const uint16_t *)x->data[T_BIAS])[agc_arrays_index(x, T_BIAS, 0, 0, p->q_len / 2, 0)] ==
               MINUS_1E9;
}
/* ---- Masks by tiles ---- */

enum { TILE_EMPTY, TILE_FULL, TILE_MIXED, TILE_KINDS };

/* The second row and the third column of tiles are empty; one element in 50 of a mixed tile is hidden, or seen. */
static inline bool shows_pair(uint32_t with, int64_t head, int64_t i, int64_t j)
{
    const int64_t row = i / 64, column = j / 64, kind = (row + column + head) % TILE_KINDS;
    const bool rare = (i * 31 + j * 17 + i * j) % 50 == 0;
    if (with & MASK_OF_HEAD_EMPTY && head == 1) {
        return false;
    }
    if (with & (MASK_EMPTY | MASK_FULL)) {
        return (with & MASK_FULL) != 0;
    }
    if (with & MASK_SPARSE) {
        return shows_sparse_pair(head, i, j);
    }
    if (row == 1 || column == 2 || kind == TILE_EMPTY) {
        return false;
    }
    if (with & MASK_OF_HALVES && kind == TILE_MIXED && i % 64 >= 32) {
        return false;
    }
    return kind == TILE_FULL || rare != (row % 4 == 0);
}
static inline void fill_mask_by_tiles(struct arrays *x, uint32_t with)
{
    const int64_t *size = x->size[T_MASK];
    uint8_t *const mask = x->data[T_MASK];
    for (int64_t n = 0; n < x->count[T_MASK]; n++) {
        const int64_t j = n % size[3], i = n / size[3] % size[2], head = n / size[3] / size[2];
        mask[n] = shows_pair(with, head, i, j) ? (uint8_t)(1 + n % 255) : 0;
    }
}
/* Is row n of the first sequence, a query or a key, hidden from all of the other side by the mask alone? */
static inline bool is_masked_row(const struct arrays *x, bool key, int64_t n)
{
    const ag_problem *p = ag_plan_problem(x->plan);
    const uint8_t *const mask = x->data[T_MASK];
    bool seen = false;
    for (int64_t h = 0; h < p->heads; h++) {
        for (int64_t other = 0; other < (key ? p->q_len : p->kv_len); other++) {
            seen |= mask[agc_arrays_index(x, T_MASK, 0, h, key ? other : n, key ? n : other)] != 0;
        }
    }
    return !seen;
}

static inline void make_hopper_problem(struct arrays *x, const struct hopper_problem *problem, uint64_t seed)
{
    ag_check_case c = {.problem = AG_PROBLEM_INIT, .seed = seed};
    CHECK_OK(ag_problem_parse(problem->text, &c.problem));
    c.lengths = (problem->with & WITH_LENGTHS) != 0;
    c.low_halves = (problem->with & WITH_LOW) != 0;
    c.offsets = (problem->with & WITH_OFFSETS) != 0;
    ag_options options = AG_OPTIONS_INIT;
    options.flags = problem->with & INVARIANT ? AG_INVARIANT : 0;
    test_need(agc_arrays_of_case(x, &c, &options) == AG_OK, "a plan");
    enlarge_tangents(x, problem->with);
    clear_tangents(x, problem->with);
    if (problem->with & FAR_BIAS) {
        lower_bias(x);
    }
    if (problem->with & HEAVY_SINK) {
        raise_sink(x);
    }
    if (problem->with & HIDING_BIAS) {
        hide_by_bias(x);
    }
    if (problem->with & (MASK_BY_TILES | MASK_EMPTY | MASK_FULL | MASK_SPARSE)) {
        fill_mask_by_tiles(x, problem->with);
    }
}
/* NaN in all rows of the first sequence that the mask hides. */
static inline void spoil_masked_rows(struct arrays *x)
{
    static const enum tensor of_keys[] = {T_K, T_V, T_TK, T_TV}, of_queries[] = {T_Q, T_D_O, T_TQ, T_TD_O};
    const ag_problem *p = ag_plan_problem(x->plan);
    const int64_t keys = x->k_packed != NULL ? x->k_packed[1] : p->kv_len;
    const int64_t queries = x->q_packed != NULL ? x->q_packed[1] : p->q_len;
    for (int64_t j = 0; j < keys; j++) {
        for (int n = 0; n < 4 && is_masked_row(x, true, j); n++) {
            spoil_rows(x, of_keys[n], j, j + 1);
        }
    }
    for (int64_t i = 0; i < queries; i++) {
        for (int n = 0; n < 4 && is_masked_row(x, false, i); n++) {
            spoil_rows(x, of_queries[n], i, i + 1);
        }
    }
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

/* Those of a problem. */
static inline uint32_t features_of(const ag_problem *p)
{
    return (p->softcap > 0 ? AGI_HAS_SOFTCAP : 0u) | (p->dropout > 0 ? AGI_HAS_DROPOUT : 0u) |
           (p->flags & AG_BIAS ? AGI_HAS_BIAS : 0u) | (p->flags & AG_MASK ? AGI_HAS_MASK : 0u) |
           (p->flags & (AG_ALIBI | AG_SLOPES | AG_TABLE) ? AGI_HAS_RELATIVE : 0u);
}

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
        "h2 kv1 q140 k144 d64 bf16 causal", "b2 h1 q70 k150 d64 f16 sink",
        "h2 q66 k140 d128 bf16 window=60,20", "b2 h2 kv1 q70 k131 d100 f16 packed=110,190"};
    snprintf(text, size, "%s", problems[number]);
    add_feature_words(text, size, hopper_sets[set].features, number % 2);
}

/* ---- Results ---- */

/* The results that are checked, as bits by tensor. */
#define RESULT(t) (UINT64_C(1) << (t))
#define FORWARD_RESULTS (RESULT(T_O) | RESULT(T_LSE) | RESULT(T_O_LOW))
#define VJP_RESULTS                                                                                          \
    (RESULT(T_DQ) | RESULT(T_DK) | RESULT(T_DV) | RESULT(T_DSINK) | RESULT(T_DBIAS) | RESULT(T_DTABLE))
#define VJP_JVP_RESULTS                                                                                      \
    (RESULT(T_TDQ) | RESULT(T_TDK) | RESULT(T_TDV) | RESULT(T_TDSINK) | RESULT(T_TDBIAS) | RESULT(T_TDTABLE))
#define JVP_RESULTS (RESULT(T_TO) | RESULT(T_MU) | RESULT(T_TO_LOW))
#define ALL_RESULTS (FORWARD_RESULTS | VJP_RESULTS | JVP_RESULTS | VJP_JVP_RESULTS)

static inline uint64_t results_of(const struct hopper_problem *problem)
{
    return problem->with & FORWARD_ALONE ? FORWARD_RESULTS
           : problem->with & FIRST_ORDER ? FORWARD_RESULTS | VJP_RESULTS
                                         : ALL_RESULTS;
}

/* jvp, which writes O and lse too, comes before forward: theirs are forward's. */
static inline ag_status run_hopper_maps(struct arrays *x, const struct hopper_problem *problem)
{
    if (problem->with & FORWARD_ALONE) {
        return agc_arrays_run(x, AG_MAP_FORWARD);
    }
    static const uint32_t maps[] = {AG_MAP_JVP, AG_MAP_FORWARD, AG_MAP_VJP, AG_MAP_VJP_JVP};
    const bool first = (problem->with & FIRST_ORDER) != 0;
    ag_status status = AG_OK;
    for (int n = first ? 1 : 0; n < (first ? 3 : 4) && status == AG_OK; n++) {
        status = agc_arrays_run(x, maps[n]);
    }
    return status;
}

/* On problems as small as these the rule allows errors as large as the results in bfloat16. Gradients of ordinary
 * numbers come within some roundings of 16 bits: what a kernel leaves out or takes twice shows. Scores of 1e9 have no
 * digits left of the products. */
static inline bool is_near(const struct arrays *x, const struct error_entry *e)
{
    const uint64_t gradients = (VJP_RESULTS | VJP_JVP_RESULTS) & ~(RESULT(T_DSINK) | RESULT(T_TDSINK));
    const double near = ag_plan_problem(x->plan)->dtype == AG_F16 ? 0x1p-9 : 0x1p-6;
    return !(gradients & RESULT(e->t)) || has_far_bias(x) || e->error <= near * e->truth;
}

static inline struct error_truth truth_of(const struct arrays *x)
{
    struct error_truth truth;
    test_need(agc_error_truth_create(&truth, x, 1) == AG_OK, "the truth");
    return truth;
}

/* How many of these results are out of the rule; each is printed if loud. */
static inline int count_wrong(const struct error_truth *truth, const struct arrays *x, uint64_t results,
                              const char *text, bool loud)
{
    struct error_entry entries[T_COUNT];
    int count = 0, wrong = 0;
    CHECK_OK(agc_error_entries(truth, x, entries, &count));
    for (int n = 0; n < count; n++) {
        const struct error_entry *e = &entries[n];
        int64_t at[4] = {0, 0, 0, 0};
        if (!(results & RESULT(e->t)) || (agc_error_entry_passed(e) && is_near(x, e))) {
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
    return wrong;
}
/* By a truth that is needed once. */
static inline int count_wrong_results(const struct arrays *x, uint64_t results, const char *text, bool loud)
{
    struct error_truth truth = truth_of(x);
    const int wrong = count_wrong(&truth, x, results, text, loud);
    agc_error_truth_destroy(&truth);
    return wrong;
}

#endif
