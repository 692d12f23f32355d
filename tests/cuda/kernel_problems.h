/* Problems that together run every kernel of src/cuda but merge: by emulation, and on a GPU. */
#ifndef AG_TEST_KERNEL_PROBLEMS_H
#define AG_TEST_KERNEL_PROBLEMS_H

#include <stddef.h>
#include <stdio.h>

#include "check/random_case.h"

/* Problems that random ones do not meet: head sizes from each kernel's list, splits of the keys, many tiles. */
static const char *const chosen[] = {
    "b2 h4 kv2 q1 k1100 d64 bf16",
    "h2 q1 k600 d128 f16 sink",
    "b2 h3 q1 k513 d32 f64 causal",
    "h4 kv1 q1 k1030 d20 dv200 bf16",
    "h16 kv1 q1 k700 d64 f64",
    "h2 q64 k64 d64 bf16",
    "h2 q40 k50 d128 f16 causal",
    "h2 q40 k50 d64 f32",
    "h2 q1 k600 d100 f64",
    "b3 h2 q40 k30 d24 bf16 packed=100,80",
    "b2 h2 q33 k64 d24 f32",
    "h1 q130 k70 d256 dv40 bf16",
    "h1 q70 k130 d200 f32",
    "h1 q70 k40 d128 f64",
    "h1 q40 k70 d300 bf16 mask",
    "h1 q33 k40 d512 dv260 f32",
    "h1 q20 k40 d400 f64 softcap=5",
    "h2 q100 k300 d128 f32 causal",
    "h2 kv1 q200 k200 d64 bf16 window=9,4",
    "h1 q150 k260 d128 bf16 dropout=0.3",
    "h2 q260 k100 d64 f16 bias=1hqk",
    "h2 q40 k50 d24 bf16",
    "h2 q40 k50 d128 bf16",
    "h2 q40 k50 d24 f16",
    "h2 q40 k50 d64 f16",
    "h1 q1 k600 d24 bf16",
    "h1 q1 k600 d128 bf16",
    "h2 q1 k520 d256 bf16",
    "h1 q1 k600 d32 f16",
    "h1 q1 k600 d64 f16",
    "h1 q1 k520 d256 f16",
    "h4 kv2 q1 k600 d64 f32 sink",
};
enum { N_CHOSEN = sizeof chosen / sizeof chosen[0] };

/* Few queries with many keys: each number of tiles of queries, limits by query, and calls with more than their texts
 * say. q_offset: where causal begins. */
enum { WITH_LENGTHS = 1, WITH_OFFSETS = 2, WITH_LOW = 4 };
static const struct {
    const char *text;
    int with, q_offset;
} few_queries[] = {
    {"b2 h2 q16 k1100 d64 bf16 causal align=bottom-right", WITH_LOW, 0},
    {"h4 kv2 q3 k600 d128 f16 causal", WITH_LOW, 520},
    {"h3 kv1 q13 k530 d20 f64 sink", 0, 0},
    {"b3 h2 kv1 q16 k700 d40 bf16 packed=30,1200 causal align=bottom-right", 0, 0},
    {"h16 kv1 q2 k600 d64 f16 causal align=bottom-right", 0, 0},
    {"b3 h4 kv2 q16 k600 d128 bf16 sink", WITH_LENGTHS | WITH_LOW, 0},
    {"b3 h2 kv1 q9 k1030 d64 f32 causal align=bottom-right", WITH_LENGTHS, 0},
    {"b2 h2 kv1 q16 k700 d32 f32 causal", WITH_OFFSETS, 0},
    {"b2 h6 kv2 q6 k540 d100 f32 causal align=bottom-right sink", 0, 0},
    {"h2 q4 k1100 d128 bf16 window=530,9", 0, 400},
    {"h2 q16 k900 d64 f64 window=515,3", 0, 300},
    {"b3 h1 q5 k600 d24 dv100 f16 packed=11,1300", WITH_LOW, 0},
};
enum { N_FEW_QUERIES = sizeof few_queries / sizeof few_queries[0] };

/* Each kernel of the maps: dtypes, the head sizes of its list, plain and full. */
static const char *const dtypes[] = {"bf16", "f16", "f32", "f64"};
static const int head_sizes[] = {20, 64, 100, 200, 300};
static const char *const levels[] = {"causal",
                                     "softcap=5 bias=1hqk table=6 alibi mask=11qk dropout=0.2 sink"};
enum { N_DTYPES = 4, N_SIZES = 5, N_LEVELS = 2, N_LISTED = N_DTYPES * N_SIZES * N_LEVELS };

static inline void format_listed(int number, char *text, size_t size)
{
    const int d = head_sizes[number / N_LEVELS % N_SIZES];
    snprintf(text, size, "h2 kv1 q%d k%d d%d dv%d %s %s", d > 128 ? 40 : 70, d > 128 ? 36 : 66, d, d - 7,
             dtypes[number / N_LEVELS / N_SIZES], levels[number % N_LEVELS]);
}

/* All of them, numbered from 0. */
enum { N_FIXED = N_CHOSEN + N_FEW_QUERIES + N_LISTED };

static inline ag_status make_fixed(ag_check_case *c, int number, uint64_t seed)
{
    char text[256];
    const int few = number - N_CHOSEN;
    *c = (ag_check_case){.problem = AG_PROBLEM_INIT, .seed = seed};
    if (few < 0) {
        return ag_problem_parse(chosen[number], &c->problem);
    }
    if (few >= N_FEW_QUERIES) {
        format_listed(few - N_FEW_QUERIES, text, sizeof text);
        return ag_problem_parse(text, &c->problem);
    }
    c->lengths = (few_queries[few].with & WITH_LENGTHS) != 0;
    c->offsets = (few_queries[few].with & WITH_OFFSETS) != 0;
    c->low_halves = (few_queries[few].with & WITH_LOW) != 0;
    c->q_offset = few_queries[few].q_offset;
    return ag_problem_parse(few_queries[few].text, &c->problem);
}

#endif
