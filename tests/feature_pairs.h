/* Problems with every feature alone and with every pair of features, for the tests that must hold on all
 * of them: of one tile, or of several. A feature is one or two words of a problem's text, or something of its call. */
#ifndef AG_TEST_FEATURE_PAIRS_H
#define AG_TEST_FEATURE_PAIRS_H

#include "check/random_case.h"
#include "check/results.h"
#include "test.h"

/* How large the problems are. Windows, tables and offsets grow with the sequences, so that each cuts through them. */
enum feature_size { ONE_TILE, SEVERAL_TILES, FEATURE_SIZES };

struct feature {
    const char *kind; /* two of one kind exclude each other */
    const char *words[FEATURE_SIZES];
    int lengths, offsets;
};

static const struct feature features[] = {
    {"heads", {"h4 kv2", "h4 kv2"}, 0, 0},
    {"heads", {"h3 kv1", "h3 kv1"}, 0, 0},
    {"values", {"dv6", "dv6"}, 0, 0},
    {"causal", {"causal", "causal"}, 0, 0},
    {"align", {"align=bottom-right", "align=bottom-right"}, 0, 0},
    {"window", {"window=2,1", "window=90,30"}, 0, 0},
    {"window", {"window=-1,0", "window=-1,150"}, 0, 0},
    {"scale", {"scale=-0.7", "scale=-0.7"}, 0, 0},
    {"softcap", {"softcap=1.5", "softcap=1.5"}, 0, 0},
    {"dropout", {"dropout=0.3", "dropout=0.3"}, 0, 0},
    {"sink", {"sink", "sink"}, 0, 0},
    {"bias", {"bias", "bias"}, 0, 0},
    {"bias", {"bias=1hq1", "bias=1hq1"}, 0, 0},
    {"bias", {"bias=b11k", "bias=b11k"}, 0, 0},
    {"mask", {"mask", "mask"}, 0, 0},
    {"mask", {"mask=1h1k", "mask=1h1k"}, 0, 0},
    {"table", {"table=2", "table=60"}, 0, 0},
    {"table", {"table=5,4", "table=200,30"}, 0, 0},
    {"table", {"table=3,shared", "table=90,shared"}, 0, 0},
    {"alibi", {"alibi", "alibi"}, 0, 0},
    {"alibi", {"alibi=slopes", "alibi=slopes"}, 0, 0},
    {"lengths", {"packed=9,8", "packed=110,450"}, 0, 0},
    {"lengths", {"", ""}, 1, 0},
    {"offsets", {"", ""}, 0, 1},
};
enum { FEATURES = sizeof features / sizeof features[0] };

static const struct {
    const char *words;
    int64_t q_offset, k_offset; /* of the feature "offsets" */
} feature_base[FEATURE_SIZES] = {{"b2 q5 k6 d4", 3, 1}, {"b2 q70 k300 d12", 80, 20}};

/* Why two features do not go together, or NULL. */
static inline const char *features_exclude(const struct feature *a, const struct feature *b)
{
    if (a != b && strcmp(a->kind, b->kind) == 0) {
        return "two of one kind";
    }
    if ((a->offsets && strcmp(b->kind, "align") == 0) || (b->offsets && strcmp(a->kind, "align") == 0)) {
        return "bottom-right alignment allows no offset";
    }
    return NULL;
}

/* Which problems features_each makes. */
struct feature_problems {
    enum feature_size size;
    const char *dtype;
    int third; /* 1: pairs with a third feature that divides the work in another way: groups of heads, lengths */
    int max; /* about as many problems at most, spread over the list */
};

enum { MAX_TOGETHER = 3, PAIRS = FEATURES * (FEATURES + 1) / 2 };

static inline int is_work_feature(const struct feature *f)
{
    return strcmp(f->kind, "heads") == 0 || strcmp(f->kind, "lengths") == 0;
}

/* The next such feature after number *last, in turn. */
static inline const struct feature *next_work_feature(int *last)
{
    do {
        *last = (*last + 1) % FEATURES;
    } while (!is_work_feature(&features[*last]));
    return &features[*last];
}

/* Base words, and those of the features. */
static inline void features_case(ag_check_case *s, const struct feature_problems *list,
                                 const struct feature *const *together, int count)
{
    char text[256], words[128] = "";
    ag_problem problem = AG_PROBLEM_INIT;
    const char *heads = "h2";
    memset(s, 0, sizeof *s);
    for (int n = 0; n < count; n++) {
        const struct feature *f = together[n];
        snprintf(words + strlen(words), sizeof words - strlen(words), " %s", f->words[list->size]);
        heads = strcmp(f->kind, "heads") == 0 ? "" : heads;
        s->lengths |= f->lengths;
        s->q_offset += f->offsets ? feature_base[list->size].q_offset : 0;
        s->k_offset += f->offsets ? feature_base[list->size].k_offset : 0;
    }
    snprintf(text, sizeof text, "%s %s %s%s", feature_base[list->size].words, heads, list->dtype, words);
    CHECK_OK(ag_problem_parse(text, &problem));
    s->problem = problem;
}

/* Says why not, once: in the lists without a third feature. */
static inline int go_together(const struct feature_problems *list, const struct feature *a,
                              const struct feature *b)
{
    const char *reason = features_exclude(a, b);
    if (reason != NULL && !list->third) {
        printf("no such problem: %s '%s' and %s '%s': %s\n", a->kind, a->words[list->size], b->kind,
               b->words[list->size], reason);
    }
    return reason == NULL;
}

/* The features of the list's problem (a, b); gives their number, 0 if there is no such problem. a == b: one feature
 * alone. */
static inline int features_together(const struct feature_problems *list, int a, int b, int *last,
                                    const struct feature *together[MAX_TOGETHER])
{
    if (!go_together(list, &features[a], &features[b])) {
        return 0;
    }
    together[0] = &features[a];
    together[1] = &features[b];
    if (!list->third) {
        return a == b ? 1 : 2;
    }
    if (a == b || is_work_feature(&features[a]) || is_work_feature(&features[b])) {
        return 0; /* no triple */
    }
    together[2] = next_work_feature(last);
    return 3;
}

/* One problem of how many is run: 1 means all. */
static inline int features_step(const struct feature_problems *list)
{
    const int max = test_count(list->max);
    return (PAIRS + max - 1) / max;
}

/* Runs test on each feature alone and on each pair that goes together, or on the triples, each with its own seed;
 * gives the number of problems. */
static inline int features_each(const struct feature_problems *list, void (*test)(const ag_check_case *s))
{
    const int step = features_step(list);
    int runs = 0, n = 0, last = 0;
    for (int a = 0; a < FEATURES; a++) {
        for (int b = a; b < FEATURES; b++) {
            ag_check_case s;
            const struct feature *together[MAX_TOGETHER];
            const int count = features_together(list, a, b, &last, together);
            if (count == 0 || n++ % step != 0) {
                continue;
            }
            features_case(&s, list, together, count);
            s.seed = (uint64_t)(++runs);
            test(&s);
        }
    }
    return runs;
}

/* All of one tile, in float64. */
static const struct feature_problems small_pairs = {ONE_TILE, "f64", 0, PAIRS};

/* One check for each result; a failure names the command that repeats it. environment: what stands before it. */
static inline void features_report(const ag_check_case *s, const char *environment, ag_status status,
                                   const ag_check_report *results)
{
    char command[1024], place[128];
    ag_check_command(s, command, sizeof command);
    CHECK(status == AG_OK, "%s attngrad check %s: %s", environment, command, ag_last_message());
    for (int n = 0; n < results->count; n++) {
        const ag_check_result *r = &results->results[n];
        if (r->not_applicable == NULL) {
            ag_check_place(r, place, sizeof place);
            CHECK(ag_check_passed(r), "%s attngrad check %s: %s: %g, limit %g %s", environment, command,
                  r->name, r->residual, r->limit, place);
        }
    }
}

#endif
