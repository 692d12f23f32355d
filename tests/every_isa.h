/* What runs the maps on this machine: each backend, on each of its instruction sets if it has any. A test that compares
 * all of them with one truth computes that truth once. If the environment forces a backend or an instruction set, that
 * one alone; so with AG_TEST_ISA, which names the one of an emulated processor, as that is slow. */
#ifndef AG_TEST_EVERY_ISA_H
#define AG_TEST_EVERY_ISA_H

#include "check/error_rule.h"
#include "check/random_case.h"
#include "test.h"

enum { MAX_RUNNERS = 16 };

struct runner {
    char environment[48]; /* what forces it: "ATTNGRAD_ISA=avx2" */
    ag_options options;
    int runs; /* problems that it was tested on */
};
typedef void (*every_isa_check)(const ag_check_case *s, const struct runner *r, struct error_truth *truth,
                                const struct arrays *x);
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

/* The instruction sets of a backend. wanted: the name of one, or NULL for all. */
static inline void add_isa_runners(ag_backend backend, const char *wanted)
{
    for (int32_t n = 0; n < ag_backend_isa_count(backend); n++) {
        ag_isa_info isa = {.struct_size = sizeof isa};
        CHECK_OK(ag_backend_isa(backend, n, &isa));
        if (wanted != NULL && strcmp(isa.name, wanted) != 0) {
            continue;
        }
        if (isa.available) {
            add_runner("ATTNGRAD_ISA", isa.name, backend, isa.isa);
        } else {
            printf("%s: not run, this machine or this build does not have it\n", isa.name);
        }
    }
}

/* with_reference: for a test of the formulas, not of tiles alone. */
static inline void find_runners(int with_reference)
{
    const char *wanted = getenv("AG_TEST_ISA");
    if (add_forced_runner("ATTNGRAD_BACKEND") || add_forced_runner("ATTNGRAD_ISA")) {
        return;
    }
    for (int32_t n = 0; n < ag_backend_count(); n++) {
        ag_backend_info backend = {.struct_size = sizeof backend};
        CHECK_OK(ag_backend_info_get(n, &backend));
        if (backend.backend == AG_BACKEND_CUDA) {
            printf("cuda: not run here: tests/cuda runs its kernels by emulation\n");
            continue;
        }
        const int left_out = backend.backend == AG_BACKEND_REFERENCE && !with_reference;
        if (ag_backend_isa_count(backend.backend) == 0 && wanted == NULL && !left_out) {
            add_runner("ATTNGRAD_BACKEND", backend.name, backend.backend, AG_ISA_AUTO);
        }
        add_isa_runners(backend.backend, wanted);
    }
    CHECK(runner_count > 0, "no instruction set '%s' here", wanted != NULL ? wanted : "any");
}

/* Leaves out an instruction set on which none of the test's problems runs. */
static inline void leave_out_runner(ag_isa isa, const char *reason)
{
    int kept = 0;
    for (int n = 0; n < runner_count; n++) {
        if (runners[n].options.isa == isa) {
            printf("%s: not run, %s\n", runners[n].environment, reason);
        } else {
            runners[kept++] = runners[n];
        }
    }
    runner_count = kept;
}

/* A plan on r with the inputs of the case; 0 if the problem falls back to another instruction set, which is tested by
 * itself: AMX is for bfloat16 and more than a few keys. */
static inline int runner_arrays(const struct runner *r, const struct arrays *inputs, int32_t threads,
                                struct arrays *x)
{
    ag_plan_info info = {.struct_size = sizeof info};
    ag_options options = r->options;
    options.threads = threads;
    if (!CHECK_OK(agc_arrays_clone_as(x, inputs, inputs->given.dtype, &options)) ||
        !CHECK_OK(ag_plan_info_get(x->plan, &info))) {
        return 0;
    }
    if (options.isa != AG_ISA_AUTO && info.isa != options.isa) {
        CHECK(options.isa == AG_ISA_AMX, "%s became %s", r->environment, info.isa_name);
        agc_arrays_destroy(x);
        return 0;
    }
    return 1;
}

/* The maps on every runner, against one truth; check may complete it. */
static inline void run_runners(const ag_check_case *s, int32_t threads, const struct arrays *inputs,
                               every_isa_check check)
{
    struct error_truth truth;
    int has_truth = 0;
    for (struct runner *r = runners; r < runners + runner_count; r++) {
        struct arrays x;
        if (!runner_arrays(r, inputs, threads, &x)) {
            continue;
        }
        has_truth = has_truth || CHECK_OK(agc_error_truth_begin(&truth, inputs, threads));
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

/* Runs the maps of one problem on each runner and gives the results, with the truth that they share, to check.
 * The inputs are drawn once. change, which may be NULL, changes them. */
static inline void every_isa(const ag_check_case *s, int32_t threads, void (*change)(struct arrays *x),
                             every_isa_check check)
{
    struct arrays inputs;
    ag_options options = AG_OPTIONS_INIT;
    options.backend = AG_BACKEND_REFERENCE; /* which takes every problem; it is not run */
    if (!CHECK_OK(agc_arrays_of_case(&inputs, s, &options))) {
        return;
    }
    if (change != NULL) {
        change(&inputs);
    }
    run_runners(s, threads, &inputs, check);
    agc_arrays_destroy(&inputs);
}

/* How many problems each has run; one that has run none fails. */
static inline void report_runners(void)
{
    for (const struct runner *r = runners; r < runners + runner_count; r++) {
        printf("%s: %d problems\n", r->environment, r->runs);
        CHECK(r->runs > 0, "%s ran nothing", r->environment);
    }
}

/* The error rule's entries; gives their number. The truth is completed if some entry does not pass without. */
static inline int error_entries(struct error_truth *truth, const struct arrays *x,
                                int (*within)(const struct error_entry *e, ag_dtype dtype),
                                struct error_entry entries[T_COUNT])
{
    int count, passed = 0;
    CHECK_OK(agc_error_entries(truth, x, entries, &count));
    for (int n = 0; n < count; n++) {
        passed += within(&entries[n], x->given.dtype);
    }
    if (passed < count && !truth->complete && CHECK_OK(agc_error_truth_complete(truth, x))) {
        CHECK_OK(agc_error_entries(truth, x, entries, &count));
    }
    return count;
}

/* The error rule, one check per output. within: what an entry must keep, error_entry_passed or more; an entry that
 * passes must also pass with a larger baseline or limit. */
static inline void check_error_entries(const ag_check_case *s, const struct runner *r,
                                       struct error_truth *truth, const struct arrays *x,
                                       int (*within)(const struct error_entry *e, ag_dtype dtype))
{
    struct error_entry entries[T_COUNT];
    char command[1024];
    const int count = error_entries(truth, x, within, entries);
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
