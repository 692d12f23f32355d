/* What runs the maps on this machine: the reference, and the CPU backend on each instruction set. A test that compares
 * all of them with one truth computes that truth once. If the environment forces a backend or an instruction set, that
 * one alone; so with AG_TEST_ISA, which names the one of an emulated processor, as that is slow. */
#ifndef AG_TEST_EVERY_ISA_H
#define AG_TEST_EVERY_ISA_H

#include "check/error_rule.h"
#include "check/random_case.h"
#include "test.h"

enum { MAX_RUNNERS = 8 };

struct runner {
    char environment[48]; /* what forces it: "ATTNGRAD_ISA=avx2" */
    ag_options options;
    int runs; /* problems that it was tested on */
};
static struct runner runners[MAX_RUNNERS];
static int runner_count;

static inline void add_runner(const char *variable, const char *name, ag_backend backend, ag_isa isa)
{
    test_need(runner_count < MAX_RUNNERS, "more instruction sets than MAX_RUNNERS");
    struct runner *r = &runners[runner_count++];
    snprintf(r->environment, sizeof r->environment, "%s=%s", variable, name);
    r->options = (ag_options)AG_OPTIONS_INIT;
    r->options.backend = backend;
    r->options.isa = isa;
}

static inline int add_forced_runner(const char *variable)
{
    const char *value = getenv(variable);
    if (value == NULL || value[0] == '\0') {
        return 0;
    }
    add_runner(variable, value, AG_BACKEND_AUTO, AG_ISA_AUTO);
    return 1;
}

/* wanted: its name, or NULL for all. */
static inline void add_isa_runners(const char *wanted)
{
    for (int32_t n = 0; n < ag_backend_isa_count(AG_BACKEND_CPU); n++) {
        ag_isa_info isa = {.struct_size = sizeof isa};
        CHECK_OK(ag_backend_isa(AG_BACKEND_CPU, n, &isa));
        if (wanted != NULL && strcmp(isa.name, wanted) != 0) {
            continue;
        }
        if (isa.available) {
            add_runner("ATTNGRAD_ISA", isa.name, AG_BACKEND_CPU, isa.isa);
        } else {
            printf("%s: not run, this machine or this build does not have it\n", isa.name);
        }
    }
    CHECK(runner_count > 0, "no instruction set '%s' here", wanted != NULL ? wanted : "any");
}

/* with_reference: for a test of the formulas, not of tiles alone. */
static inline void find_runners(int with_reference)
{
    const char *wanted = getenv("AG_TEST_ISA");
    if (add_forced_runner("ATTNGRAD_BACKEND") || add_forced_runner("ATTNGRAD_ISA")) {
        return;
    }
    if (with_reference && wanted == NULL) {
        add_runner("ATTNGRAD_BACKEND", "reference", AG_BACKEND_REFERENCE, AG_ISA_AUTO);
    }
    add_isa_runners(wanted);
}

/* A plan on r and random arrays; 0 if the problem falls back to another instruction set, which is tested by itself:
 * AMX is for bfloat16 and more than a few keys. */
static inline int runner_arrays(const struct runner *r, const ag_check_case *s, int32_t threads,
                                struct arrays *x)
{
    ag_plan_info info = {.struct_size = sizeof info};
    ag_options options = r->options;
    options.threads = threads;
    if (!CHECK_OK(agc_arrays_of_case(x, s, &options)) || !CHECK_OK(ag_plan_info_get(x->plan, &info))) {
        return 0;
    }
    if (options.isa != AG_ISA_AUTO && info.isa != options.isa) {
        CHECK(options.isa == AG_ISA_AMX, "%s became %s", r->environment, info.isa_name);
        agc_arrays_destroy(x);
        return 0;
    }
    return 1;
}

/* Runs the four maps of one problem on each runner and gives the results, with the truth that they share, to check.
 * change, which may be NULL, changes the inputs. */
static inline void every_isa(const ag_check_case *s, int32_t threads, void (*change)(struct arrays *x),
                             void (*check)(const ag_check_case *s, const struct runner *r,
                                           const struct error_truth *truth, const struct arrays *x))
{
    struct error_truth truth;
    int has_truth = 0;
    for (struct runner *r = runners; r < runners + runner_count; r++) {
        struct arrays x;
        if (!runner_arrays(r, s, threads, &x)) {
            continue;
        }
        if (change != NULL) {
            change(&x);
        }
        has_truth = has_truth || CHECK_OK(agc_error_truth_create(&truth, &x, threads));
        if (CHECK_OK(agc_arrays_run_all(&x)) && has_truth) {
            check(s, r, &truth, &x);
            r->runs++;
        }
        agc_arrays_destroy(&x);
    }
    if (has_truth) {
        agc_error_truth_destroy(&truth);
    }
}

/* How many problems each has run; one that has run none fails. */
static inline void report_runners(void)
{
    for (const struct runner *r = runners; r < runners + runner_count; r++) {
        printf("%s: %d problems\n", r->environment, r->runs);
        CHECK(r->runs > 0, "%s ran nothing", r->environment);
    }
}

/* The error rule, one check per output. within: what an entry must keep, error_entry_passed or more. */
static inline void check_error_entries(const ag_check_case *s, const struct runner *r,
                                       const struct error_truth *truth, const struct arrays *x,
                                       int (*within)(const struct error_entry *e, ag_dtype dtype))
{
    struct error_entry entries[T_COUNT];
    char command[1024];
    int count;
    CHECK_OK(agc_error_entries(truth, x, entries, &count));
    ag_check_command(s, command, sizeof command);
    for (int n = 0; n < count; n++) {
        const struct error_entry *e = &entries[n];
        CHECK(within(e, x->given.dtype),
              "%s attngrad check %s: %s: |x - truth| %g > %g; unfused %g, A %g, |truth| %g", r->environment,
              command, agc_tensor_info[e->t].name, e->error, e->limit, e->baseline, e->size, e->truth);
    }
    CHECK(count >= 10, "%s: %d outputs compared", command, count);
}

#endif
