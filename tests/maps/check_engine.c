/* The check engine itself: one wrong element of one output is found by the check of that output and by no
 * other check of its kind, and its index is reported; parts, random cases, their text and failing allocations
 * behave as attngrad_check.h says. */
#include "check/error_rule.h"
#include "check/finite_differences.h"
#include "check/identities.h"
#include "check/random_case.h"
#include "check/rng.h"
#include "test.h"

#include <math.h>

static const char *const texts[] = {
    "b2 h4 kv2 q5 k6 d4 dv3 f64 causal",
    "b3 h2 q4 k5 d4 f64 packed=9,11 sink",
    "b2 h2 q5 k6 d4 f64 bias=1hqk mask=b11k table=3 softcap=2",
};
enum { TEXTS = sizeof texts / sizeof texts[0] };

static int make(struct arrays *x, const char *text)
{
    ag_check_case c = {.problem = AG_PROBLEM_INIT, .seed = 3};
    return CHECK_OK(ag_problem_parse(text, &c.problem)) && CHECK_OK(agc_arrays_of_case(x, &c, NULL)) &&
           CHECK_OK(agc_arrays_run_all(x));
}

/* A random element of t that belongs to a sequence: its place, and its index in the data. */
static int64_t pick(const struct arrays *x, enum tensor t, struct rng *r, int64_t place[4])
{
    int64_t element;
    do {
        element = agc_rng_range(r, 0, x->count[t] - 1);
        agc_arrays_position(x, t, element, place);
    } while (place[0] < 0);
    CHECK_INT(agc_arrays_index(x, t, place[0], place[1], place[2], place[3]), element);
    return element;
}

/* Only the results about t failed, and their worst element is at place. */
static void check_blamed(const ag_check_report *report, enum tensor t, const int64_t place[4],
                         const char *text)
{
    for (int n = 0; n < report->count; n++) {
        const ag_check_result *r = &report->results[n];
        char found[128];
        ag_check_place(r, found, sizeof found);
        const char *name = strrchr(r->name, ' ') + 1;
        CHECK(ag_check_passed(r) == (strcmp(name, agc_tensor_info[t].name) != 0), "%s: wrong %s: %s %s", text,
              agc_tensor_info[t].name, r->name, ag_check_passed(r) ? "passed" : "failed");
        if (!ag_check_passed(r)) {
            CHECK(strcmp(r->tensor, agc_tensor_info[t].name) == 0 &&
                      memcmp(r->worst, place, sizeof r->worst) == 0,
                  "%s: %s[%lld, %lld, %lld, %lld] is wrong, not %s", text, agc_tensor_info[t].name,
                  (long long)place[0], (long long)place[1], (long long)place[2], (long long)place[3], found);
        }
    }
}

/* Each derivative in turn, one element of it off by a hundredth of the largest. */
static void test_finite_differences(const char *text)
{
    struct arrays x;
    struct rng r;
    if (!make(&x, text)) {
        return;
    }
    agc_rng_init(&r, 1, 0);
    for (enum tensor t = 0; t < T_COUNT; t++) {
        if (agc_tensor_info[t].role != ROLE_OUTPUT || x.data[t] == NULL || t == T_O || t == T_LSE ||
            t == T_SMU) { /* smu is a mu: jvp along another direction */
            continue;
        }
        ag_check_report report = {.count = 0};
        int64_t place[4], element = pick(&x, t, &r, place);
        double *value = agc_arrays_f64(&x, t) + element, kept = *value;
        *value += 0.01 * agc_largest(agc_arrays_f64(&x, t), x.count[t]);
        CHECK_OK(agc_finite_differences(&x, NULL, &report));
        check_blamed(&report, t, place, text);
        CHECK_INT(ag_check_failures(&report), 1);
        *value = kept;
    }
    agc_arrays_destroy(&x);
}

static const ag_check_result *find(const ag_check_report *report, const char *name)
{
    for (int n = 0; n < report->count; n++) {
        if (strcmp(report->results[n].name, name) == 0) {
            return &report->results[n];
        }
    }
    test_need(0, name);
    return NULL;
}

/* A wrong gradient breaks the adjoint identity, a sum that blames no element; NaN is found at its place. */
static void test_identities(const char *text)
{
    struct arrays x;
    struct rng r;
    int64_t place[4];
    if (!make(&x, text)) {
        return;
    }
    agc_rng_init(&r, 2, 0);
    for (int broken = 0; broken < 3; broken++) { /* nothing, a wrong value, NaN */
        ag_check_report report = {.count = 0};
        double *value = agc_arrays_f64(&x, T_DV) + pick(&x, T_DV, &r, place), kept = *value;
        *value = broken == 0 ? kept : broken == 1 ? kept + 1e-3 : NAN;
        CHECK_OK(agc_identities(&x, NULL, &report));
        const ag_check_result *adjoint = find(&report, "adjoint"),
                              *finite = find(&report, "not finite: values");
        CHECK_INT(ag_check_passed(adjoint), broken == 0);
        CHECK(adjoint->tensor == NULL, "%s: adjoint blames %s", text, adjoint->tensor);
        CHECK_INT(ag_check_passed(finite), broken != 2);
        if (broken == 2) {
            CHECK(strcmp(finite->tensor, "dv") == 0 && memcmp(finite->worst, place, sizeof place) == 0,
                  "%s: NaN is not found", text);
        }
        *value = kept;
    }
    agc_arrays_destroy(&x);
}

/* One element of each output in turn is off by more than the largest: the rule names it. */
static void test_error_rule(const char *text)
{
    struct arrays x;
    struct rng r;
    if (!make(&x, text)) {
        return;
    }
    agc_rng_init(&r, 3, 0);
    for (enum tensor t = 0; t < T_COUNT; t++) {
        ag_check_report report = {.count = 0};
        int64_t place[4];
        if (agc_tensor_info[t].role != ROLE_OUTPUT || x.data[t] == NULL) {
            continue;
        }
        double *value = agc_arrays_f64(&x, t) + pick(&x, t, &r, place), kept = *value;
        *value = isfinite(kept) ? kept + 1 + agc_largest(agc_arrays_f64(&x, t), x.count[t]) : 0;
        CHECK_OK(agc_error_rule_results(&x, 1, &report));
        check_blamed(&report, t, place, text);
        *value = kept;
    }
    agc_arrays_destroy(&x);
}

static void count_parts(const ag_check_report *report, int count[3])
{
    count[0] = count[1] = count[2] = 0;
    for (int n = 0; n < report->count; n++) {
        const char *name = report->results[n].name;
        count[strncmp(name, "differences", 11) == 0 ? 0 : strncmp(name, "rounding", 8) == 0 ? 2 : 1]++;
    }
}

/* Each part alone gives the results that it adds to the whole; a refused problem gives none. */
static void test_parts(void)
{
    ag_check_case c = {.problem = AG_PROBLEM_INIT, .seed = 3};
    ag_check_report report = {.count = 0};
    int all[3], own[3];
    CHECK_OK(ag_problem_parse("h2 q5 d4 f32 causal", &c.problem));
    CHECK_OK(ag_check_problem(&c, NULL, &report));
    CHECK_INT(ag_check_failures(&report), 0);
    CHECK(strstr(report.plan, "threads") != NULL, "plan '%s'", report.plan);
    count_parts(&report, all);
    for (int part = 0; part < 3; part++) {
        ag_check_options options = {.parts = 1u << part};
        CHECK_OK(ag_check_problem(&c, &options, &report));
        count_parts(&report, own);
        for (int n = 0; n < 3; n++) {
            CHECK_INT(own[n], n == part ? all[n] : 0);
        }
        CHECK(all[part] > 0, "part %d has no check", part);
    }
    c.problem.dim_qk = 0;
    CHECK_STATUS(ag_check_problem(&c, NULL, &report), AG_INVALID_PROBLEM);
    CHECK_INT(report.count, 0);
}

struct progress {
    const char *parts[8];
    int count;
    double share;
};

static void note_progress(void *ctx, const char *part, double share)
{
    struct progress *p = ctx;
    CHECK(share >= p->share && share <= 1, "%s: share %g after %g", part, share, p->share);
    if (p->count == 0 || (p->count < 8 && strcmp(p->parts[p->count - 1], part) != 0)) {
        p->parts[p->count++] = part;
    }
    p->share = share;
}

/* The caller is told of every part in its order, with a share of the time that rises. */
static void test_progress(void)
{
    static const char *const wanted[] = {"maps", "differences", "identities", "rounding"};
    ag_check_case c = {.problem = AG_PROBLEM_INIT, .seed = 3};
    ag_check_report report = {.count = 0};
    struct progress progress = {.count = 0};
    const ag_check_options options = {.progress = note_progress, .ctx = &progress};
    CHECK_OK(ag_problem_parse("h2 q60 d40 f32 causal", &c.problem));
    CHECK_OK(ag_check_problem(&c, &options, &report));
    CHECK_INT(progress.count, 4);
    for (int n = 0; n < progress.count && n < 4; n++) {
        CHECK(strcmp(progress.parts[n], wanted[n]) == 0, "part %d is %s", n, progress.parts[n]);
    }
    CHECK(progress.share > 0.99, "at the end: %g", progress.share);
    progress = (struct progress){.count = 0};
    CHECK_OK(ag_check_problem(&c, NULL, &report));
    CHECK_INT(progress.count, 0);
}

/* The same seed and index give the same case, another index another one. */
static void test_random(void)
{
    ag_check_case c;
    char first[512], again[512], other[512];
    for (ag_check_size size = AG_CHECK_SMALL; size <= AG_CHECK_LARGE; size++) {
        ag_check_random(&c, 7, 1, size);
        ag_check_command(&c, first, sizeof first);
        ag_check_random(&c, 7, 1, size);
        ag_check_command(&c, again, sizeof again);
        ag_check_random(&c, 7, 2, size);
        ag_check_command(&c, other, sizeof other);
        CHECK(strcmp(first, again) == 0, "'%s' and '%s'", first, again);
        CHECK(strcmp(first, other) != 0, "'%s' twice", first);
    }
}

/* The message and the argument of the last failure. */
static void check_message(const char *message, const char *field)
{
    CHECK(strstr(ag_check_last_message(), message) != NULL, "'%s' does not say '%s'", ag_check_last_message(),
          message);
    CHECK(strcmp(ag_check_last_field(), field) == 0, "field '%s' instead of '%s'", ag_check_last_field(),
          field);
}

/* The results are the first ones of `all`. */
static void check_beginning(const ag_check_report *report, const ag_check_report *all, int64_t allocation)
{
    int same = report->count <= all->count;
    for (int n = 0; n < report->count && same; n++) {
        const ag_check_result *a = &report->results[n], *b = &all->results[n];
        same = strcmp(a->name, b->name) == 0 && memcmp(&a->residual, &b->residual, sizeof a->residual) == 0;
    }
    CHECK(same, "allocation %lld fails: the %d results so far are not the first of %d", (long long)allocation,
          (int)report->count, (int)all->count);
}

/* Whichever allocation fails, the call ends with AG_NO_MEMORY, its message and the results so far; the sanitizers see
 * that it leaks nothing. Then the same call works. */
static void test_no_memory(const char *text, int lengths)
{
    ag_check_case c = {.problem = AG_PROBLEM_INIT, .seed = 3, .lengths = lengths};
    ag_check_report all, report = {.count = 0};
    ag_status status = AG_NO_MEMORY;
    int64_t allocations = 0;
    CHECK_OK(ag_problem_parse(text, &c.problem));
    CHECK_OK(ag_check_problem(&c, NULL, &all));
    while (status == AG_NO_MEMORY && allocations < 100000) {
        agc_memory_fail_after(allocations);
        ag_problem_parse("an older failure", &(ag_problem)AG_PROBLEM_INIT);
        status = ag_check_problem(&c, NULL, &report);
        CHECK(status == AG_NO_MEMORY || status == AG_OK, "allocation %lld fails: %s", (long long)allocations,
              ag_status_string(status));
        if (status == AG_NO_MEMORY) {
            check_message("no memory for ", "");
        }
        check_beginning(&report, &all, allocations++);
    }
    agc_memory_fail_after(-1);
    printf("%s: %lld allocations\n", text, (long long)allocations - 1);
    CHECK(allocations > 100, "only %lld allocations", (long long)allocations);
    CHECK_INT(report.count, all.count);
    CHECK_INT(ag_check_failures(&report), 0);
}

/* Arrays larger than the machine's memory are refused by name and size, before the time of a check is spent. */
static void test_too_large(void)
{
    ag_check_case c = {.problem = AG_PROBLEM_INIT, .seed = 3};
    ag_check_report report;
    CHECK_OK(ag_problem_parse("q300000 d1 f32", &c.problem));
    CHECK_STATUS(ag_check_problem(&c, NULL, &report), AG_NO_MEMORY);
    check_message("no memory for the matrices of one head, queries times keys: 6866467 MiB", "");
    CHECK_INT(report.count, 0);
    CHECK(agc_alloc("x", INT64_MAX, 16) == NULL, "2^67 bytes allocated");
    check_message("no memory for x: 140737488355328 MiB", "");
}

/* A report that is full says so, and is not taken for one that passed. */
static void test_full_report(void)
{
    ag_check_report report = {.count = 0};
    for (int n = 0; n < AG_CHECK_MAX_RESULTS; n++) {
        agc_results_add(&report, 0, 1, "check %d", n);
    }
    CHECK_OK(agc_results_status(&report));
    CHECK_INT(ag_check_failures(&report), 0);
    agc_results_add(&report, 0, 1, "one more");
    agc_results_not_applicable(&report, "no reason", "one more");
    CHECK_INT(report.count, AG_CHECK_MAX_RESULTS);
    CHECK_INT(report.omitted, 2);
    CHECK_INT(ag_check_failures(&report), 2);
    CHECK_STATUS(agc_results_status(&report), AG_NO_MEMORY);
    check_message("the report has room for 96 results: 2 more were omitted", "");
}

/* A check of nothing must not look like one that passed. */
static void test_wrong_arguments(void)
{
    ag_check_case c = {.problem = AG_PROBLEM_INIT, .seed = 1};
    ag_check_report report = {.count = 0};
    const ag_check_options unknown = {.parts = AG_CHECK_ALL + 1};
    CHECK_OK(ag_problem_parse(texts[0], &c.problem));
    CHECK_STATUS(ag_check_problem(&c, &unknown, &report), AG_INVALID_ARGUMENT);
    check_message("options.parts is 0x8", "options.parts");
    CHECK_STATUS(ag_check_problem(NULL, NULL, &report), AG_INVALID_ARGUMENT);
    check_message("c is NULL", "c");
    CHECK_STATUS(ag_check_problem(&c, NULL, NULL), AG_INVALID_ARGUMENT);
    check_message("report is NULL", "report");
    c.problem.heads = -1;
    CHECK_STATUS(ag_check_problem(&c, NULL, &report), AG_INVALID_PROBLEM); /* libattngrad's message */
    check_message("heads", "heads");
}

int main(void)
{
    for (int n = 0; n < TEXTS; n++) {
        test_finite_differences(texts[n]);
        test_identities(texts[n]);
        test_error_rule(texts[n]);
    }
    test_parts();
    test_progress();
    test_wrong_arguments();
    test_random();
    test_no_memory("b2 h2 q3 k4 d2 f32 bias mask table=2,3 sink alibi=slopes packed=5,6", 0);
    test_no_memory("b2 h2 q3 k4 d2 f32", 1);
    test_no_memory("q3 k4 d2 f64", 0);
    test_too_large();
    test_full_report();
    return test_summary();
}
