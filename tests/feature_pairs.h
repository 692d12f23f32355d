/* Problems with every feature alone and with every pair of features, for the tests that must hold on all
 * of them. A feature is one or two words of a problem's text, or something of its call. */
#ifndef AG_TEST_FEATURE_PAIRS_H
#define AG_TEST_FEATURE_PAIRS_H

#include "check/random_case.h"
#include "check/results.h"
#include "test.h"

struct feature {
    const char *kind; /* two of one kind exclude each other */
    const char *words;
    int lengths, offsets;
};

static const struct feature features[] = {
    {"heads", "h4 kv2", 0, 0},
    {"heads", "h3 kv1", 0, 0},
    {"values", "dv6", 0, 0},
    {"causal", "causal", 0, 0},
    {"align", "align=bottom-right", 0, 0},
    {"window", "window=2,1", 0, 0},
    {"window", "window=-1,0", 0, 0},
    {"scale", "scale=-0.7", 0, 0},
    {"softcap", "softcap=1.5", 0, 0},
    {"dropout", "dropout=0.3", 0, 0},
    {"sink", "sink", 0, 0},
    {"bias", "bias", 0, 0},
    {"bias", "bias=1hq1", 0, 0},
    {"bias", "bias=b11k", 0, 0},
    {"mask", "mask", 0, 0},
    {"mask", "mask=1h1k", 0, 0},
    {"table", "table=2", 0, 0},
    {"table", "table=5,4", 0, 0},
    {"table", "table=3,shared", 0, 0},
    {"alibi", "alibi", 0, 0},
    {"alibi", "alibi=slopes", 0, 0},
    {"lengths", "packed=9,8", 0, 0},
    {"lengths", "", 1, 0},
    {"offsets", "", 0, 1},
};
enum { FEATURES = sizeof features / sizeof features[0] };

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

/* Base words, and those of a and b; a == b: one feature alone. */
static inline void features_case(ag_check_case *s, const struct feature *a, const struct feature *b)
{
    char text[256];
    ag_problem problem = AG_PROBLEM_INIT;
    const char *heads = strcmp(a->kind, "heads") == 0 || strcmp(b->kind, "heads") == 0 ? "" : "h2";
    snprintf(text, sizeof text, "b2 %s q5 k6 d4 f64 %s %s", heads, a->words, a == b ? "" : b->words);
    memset(s, 0, sizeof *s);
    CHECK_OK(ag_problem_parse(text, &problem));
    s->problem = problem;
    s->lengths = a->lengths || b->lengths;
    s->q_offset = a->offsets || b->offsets ? 3 : 0;
    s->k_offset = a->offsets || b->offsets ? 1 : 0;
}

/* Runs test on each feature and on each pair that goes together, with its own seed. */
static inline void features_each(void (*test)(const ag_check_case *s))
{
    int runs = 0, left = test_count(FEATURES * FEATURES);
    for (int a = 0; a < FEATURES; a++) {
        for (int b = a; b < FEATURES && left > 0; b++, left--) {
            ag_check_case s;
            const char *reason = features_exclude(&features[a], &features[b]);
            if (reason != NULL) {
                printf("no such problem: %s '%s' and %s '%s': %s\n", features[a].kind, features[a].words,
                       features[b].kind, features[b].words, reason);
                continue;
            }
            features_case(&s, &features[a], &features[b]);
            s.seed = (uint64_t)(++runs);
            test(&s);
        }
    }
    printf("%d problems\n", runs);
}

/* One check for each result; a failure names the command that repeats it. */
static inline void features_report(const ag_check_case *s, ag_status status, const ag_check_report *results)
{
    char command[1024], place[128];
    ag_check_command(s, command, sizeof command);
    CHECK(status == AG_OK, "attngrad check %s: %s", command, ag_last_message());
    for (int n = 0; n < results->count; n++) {
        const ag_check_result *r = &results->results[n];
        if (r->not_applicable == NULL) {
            ag_check_place(r, place, sizeof place);
            CHECK(ag_check_passed(r), "attngrad check %s: %s: %g, limit %g %s", command, r->name, r->residual,
                  r->limit, place);
        }
    }
}

#endif
