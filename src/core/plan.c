/* Plan creation: checks the problem, reads options and environment, chooses the backend, copies what
 * the caller may free, asks for the workspace sizes. The environment is read here and nowhere else. */
#define _GNU_SOURCE
#include "plan.h"

#include <errno.h>
#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "backend.h"
#include "pool.h"
#include "status.h"

/* ---- Options and environment ---- */

static void *default_alloc(void *ctx, size_t size)
{
    (void)ctx;
    return malloc(size);
}

static void default_release(void *ctx, void *memory)
{
    (void)ctx;
    free(memory);
}

int32_t agi_processors(void)
{
#if defined(__linux__)
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) > 0) {
        return CPU_COUNT(&set) > AGI_MAX_THREADS ? AGI_MAX_THREADS : CPU_COUNT(&set);
    }
#endif
    const long n = sysconf(_SC_NPROCESSORS_ONLN);
    return n < 1 ? 1 : n > AGI_MAX_THREADS ? AGI_MAX_THREADS : (int32_t)n;
}

/* What threads = 0 means: ATTNGRAD_THREADS, else one a processor. */
static ag_status default_threads(int32_t *threads)
{
    const char *text = getenv("ATTNGRAD_THREADS");
    if (text == NULL || *text == '\0') {
        *threads = agi_processors();
        return AG_OK;
    }
    char *end;
    errno = 0;
    const long n = strtol(text, &end, 10);
    if (errno != 0 || *end != '\0' || n < 1 || n > AGI_MAX_THREADS) {
        return agi_fail_field(AG_INVALID_PROBLEM, "ATTNGRAD_THREADS",
                              "environment: ATTNGRAD_THREADS is '%.40s': must be from 1 to %d", text,
                              AGI_MAX_THREADS);
    }
    *threads = (int32_t)n;
    return AG_OK;
}

/* The place of the variable's value in a list of names: 1 for the first, 0 where it is not set. */
static ag_status choose_by_name(const char *variable, const char *const names[], int n, int32_t *choice)
{
    const char *text = getenv(variable);
    *choice = 0;
    if (text == NULL || *text == '\0') {
        return AG_OK;
    }
    for (int i = 0; i < n; i++) {
        if (strcmp(text, names[i]) == 0) {
            *choice = i + 1;
            return AG_OK;
        }
    }
    return agi_fail_field(AG_INVALID_PROBLEM, variable, "environment: %s is '%.40s': no such name", variable,
                          text);
}

static ag_status complete_from_environment(ag_options *o)
{
    static const char *const backends[] = {"reference", "cpu", "cuda"};
    static const char *const sets[] = {"scalar", "avx2", "avx512", "amx", "neon"};
    ag_status status = AG_OK;
    if (o->backend == AG_BACKEND_AUTO) {
        status = choose_by_name("ATTNGRAD_BACKEND", backends, 3, &o->backend);
    }
    if (status == AG_OK && o->isa == AG_ISA_AUTO && o->backend != AG_BACKEND_REFERENCE) {
        status = choose_by_name("ATTNGRAD_ISA", sets, 5, &o->isa);
    }
    if (status == AG_OK && o->threads == 0) {
        status = default_threads(&o->threads);
    }
    return status;
}

static ag_status check_options(const ag_options *o)
{
    if (o->flags & ~(uint32_t)AG_ROUND_INTERMEDIATES) {
        return agi_fail_field(AG_INVALID_PROBLEM, "options.flags", "options: flags is 0x%lx: unknown bits",
                              (unsigned long)o->flags);
    }
    if (o->backend < AG_BACKEND_AUTO || o->backend > AG_BACKEND_CUDA) {
        return agi_fail_field(AG_INVALID_PROBLEM, "options.backend",
                              "options: backend is %d: no such backend", (int)o->backend);
    }
    if (o->isa < AG_ISA_AUTO || o->isa > AG_ISA_NEON) {
        return agi_fail_field(AG_INVALID_PROBLEM, "options.isa",
                              "options: isa is %d: no such instruction set", (int)o->isa);
    }
    if (o->threads < 0 || o->threads > AGI_MAX_THREADS) {
        return agi_fail_field(AG_INVALID_PROBLEM, "options.threads",
                              "options: threads is %d: must be from 0 to %d", (int)o->threads,
                              AGI_MAX_THREADS);
    }
    if (o->reserved != 0) {
        return agi_fail_field(AG_INVALID_PROBLEM, "options.reserved", "options: reserved is %d: must be zero",
                              (int)o->reserved);
    }
    if ((o->alloc == NULL) != (o->release == NULL)) {
        return agi_fail_field(AG_INVALID_PROBLEM, o->alloc == NULL ? "options.alloc" : "options.release",
                              "options: %s is NULL: give both alloc and release, or neither",
                              o->alloc == NULL ? "alloc" : "release");
    }
    return AG_OK;
}

static ag_status complete_options(ag_options *o, const ag_options *given)
{
    const ag_options none = AG_OPTIONS_INIT;
    ag_status status =
        agi_read_struct(o, sizeof *o, given == NULL ? &none : given, "options", AG_INVALID_PROBLEM);
    if (status == AG_OK) {
        status = check_options(o);
    }
    if (status == AG_OK) {
        status = complete_from_environment(o);
    }
    if (status == AG_OK && o->alloc == NULL) {
        o->alloc = default_alloc;
        o->release = default_release;
    }
    return status;
}

/* ---- The plan's own copies ---- */

void *agi_plan_alloc(const ag_plan *plan, size_t size, ag_status *status)
{
    void *memory = plan->alloc(plan->alloc_ctx, size);
    if (memory == NULL) {
        *status = agi_fail(AG_NO_MEMORY, "plan: no memory for %zu bytes", size);
    }
    return memory;
}

static ag_status copy_buckets(ag_plan *plan)
{
    ag_status status = AG_OK;
    if (plan->p.buckets != NULL) {
        const size_t size = (size_t)(2 * plan->p.table_radius + 1) * sizeof plan->buckets[0];
        plan->buckets = agi_plan_alloc(plan, size, &status);
        if (plan->buckets != NULL) {
            memcpy(plan->buckets, plan->p.buckets, size);
        }
    }
    plan->p.buckets = plan->buckets;
    return status;
}

/* ALiBi's default: 2^(-8(h+1)/H); where H is no power of two, the slopes of the largest power n below
 * it, then every other slope of 2n. */
static double default_slope(int64_t h, int64_t H)
{
    int64_t n = 1;
    while (2 * n <= H) {
        n *= 2;
    }
    return h < n ? exp2(-8.0 * (double)(h + 1) / (double)n)
                 : exp2(-4.0 * (double)(2 * (h - n) + 1) / (double)n);
}

static ag_status copy_slopes(ag_plan *plan)
{
    ag_status status = AG_OK;
    const int64_t H = plan->p.heads;
    if (agi_has(&plan->p, AG_ALIBI | AG_SLOPES)) {
        plan->slopes = agi_plan_alloc(plan, (size_t)H * sizeof plan->slopes[0], &status);
        for (int64_t h = 0; h < H && plan->slopes != NULL; h++) {
            plan->slopes[h] = agi_has(&plan->p, AG_SLOPES) ? plan->p.alibi_slopes[h] : default_slope(h, H);
        }
    }
    plan->p.alibi_slopes = plan->slopes;
    return status;
}

/* ---- The backend ---- */

/* The one that was asked for; else the fastest. Nothing falls back to a slower one in silence: only what
 * the reference alone can do, rounding the intermediates, chooses it. */
static ag_status choose_backend(ag_plan *plan, ag_backend wanted)
{
    if (wanted == AG_BACKEND_AUTO && plan->flags & AG_ROUND_INTERMEDIATES) {
        wanted = AG_BACKEND_REFERENCE;
    }
    for (int i = 0; agi_backends[i] != NULL; i++) {
        if (wanted == AG_BACKEND_AUTO || wanted == agi_backends[i]->id) {
            plan->backend = agi_backends[i];
            return agi_backends[i]->accept(plan);
        }
    }
    return agi_fail_field(AG_UNSUPPORTED, "options.backend", "backend %d is not built into this library",
                          (int)wanted);
}

static ag_status size_workspaces(ag_plan *plan)
{
    for (agi_map map = AGI_FORWARD; map < AGI_N_MAPS; map++) {
        plan->bytes[map] = plan->backend->workspace(plan, map);
        if (plan->bytes[map] == SIZE_MAX) {
            return agi_fail_field(AG_UNSUPPORTED, "q_len",
                                  "q_len %lld x kv_len %lld: the %s backend's workspace exceeds all memory",
                                  (long long)plan->p.q_len, (long long)plan->p.kv_len, plan->backend->name);
        }
    }
    return AG_OK;
}

static void describe(ag_plan *plan)
{
    char detail[96] = "";
    plan->backend->describe(plan, detail, sizeof detail);
    snprintf(plan->description, sizeof plan->description, "%s%s%s, %d thread%s, deterministic",
             plan->backend->name, detail[0] ? ", " : "", detail, (int)plan->threads,
             plan->threads == 1 ? "" : "s");
}

/* ---- Public ---- */

static ag_status build(ag_plan *plan, const ag_options *o)
{
    plan->threads = o->threads;
    plan->isa = o->isa;
    plan->flags = o->flags;
    ag_status status = copy_buckets(plan);
    if (status == AG_OK) {
        status = copy_slopes(plan);
    }
    if (status == AG_OK) {
        status = choose_backend(plan, o->backend);
    }
    if (status == AG_OK) {
        status = size_workspaces(plan);
    }
    if (status == AG_OK) {
        describe(plan);
    }
    return status;
}

static void release_all(ag_plan *plan)
{
    if (plan->backend != NULL && plan->backend->destroy != NULL) {
        plan->backend->destroy(plan);
    }
    void *const memory[] = {plan->buckets, plan->slopes, plan};
    void (*const release)(void *, void *) = plan->release;
    void *const ctx = plan->alloc_ctx;
    for (int i = 0; i < 3; i++) {
        if (memory[i] != NULL) {
            release(ctx, memory[i]);
        }
    }
}

ag_status ag_plan_create(ag_plan **plan, const ag_problem *problem, const ag_options *options)
{
    ag_plan made = {.buckets = NULL};
    ag_options o;
    if (plan == NULL) {
        return agi_fail_field(AG_INVALID_ARGUMENT, "plan", "ag_plan_create: plan is NULL");
    }
    *plan = NULL;
    ag_status status = complete_options(&o, options);
    if (status == AG_OK) {
        status = agi_problem_complete(&made.p, problem);
    }
    if (status == AG_OK) {
        status = agi_problem_check_arrays(&made.p);
    }
    if (status != AG_OK) {
        return status;
    }
    made.alloc_ctx = o.alloc_ctx;
    made.alloc = o.alloc;
    made.release = o.release;
    ag_plan *kept = agi_plan_alloc(&made, sizeof *kept, &status);
    if (kept == NULL) {
        return status;
    }
    *kept = made;
    status = build(kept, &o);
    if (status != AG_OK) {
        release_all(kept);
        return status;
    }
    agi_pool_acquire(kept->threads);
    *plan = kept;
    return AG_OK;
}

void ag_plan_destroy(ag_plan *plan)
{
    if (plan != NULL) {
        agi_pool_release();
        release_all(plan);
    }
}

const char *ag_plan_describe(const ag_plan *plan)
{
    return plan == NULL ? "no plan" : plan->description;
}

const ag_problem *ag_plan_problem(const ag_plan *plan)
{
    return plan == NULL ? NULL : &plan->p;
}

ag_status ag_plan_workspace(const ag_plan *plan, uint32_t maps, size_t *bytes)
{
    if (plan == NULL || bytes == NULL) {
        return agi_fail_field(AG_INVALID_ARGUMENT, plan == NULL ? "plan" : "bytes",
                              "ag_plan_workspace: %s is NULL", plan == NULL ? "plan" : "bytes");
    }
    if (maps & AG_MAP_JVP_JVP) {
        return agi_fail_field(AG_UNSUPPORTED, "maps",
                              "ag_plan_workspace: maps has AG_MAP_JVP_JVP, which is reserved");
    }
    if (maps == 0 || maps >> AGI_N_MAPS != 0) {
        return agi_fail_field(AG_INVALID_ARGUMENT, "maps",
                              "ag_plan_workspace: maps is 0x%lx: must be bits of AG_MAP_*",
                              (unsigned long)maps);
    }
    *bytes = 0;
    for (int map = 0; map < AGI_N_MAPS; map++) {
        if (maps >> map & 1 && plan->bytes[map] > *bytes) {
            *bytes = plan->bytes[map];
        }
    }
    return AG_OK;
}
