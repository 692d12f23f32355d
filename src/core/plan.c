/* Plan creation: checks the problem and the options, copies the arrays that the caller may free, and has a
 * backend accept the plan and compute its workspace sizes. */
#include "core/plan.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/choose.h"
#include "core/options.h"
#include "core/pool.h"
#include "core/status.h"
#include "core/structs.h"

/* ---- The plan's own copies ---- */

void *agi_plan_alloc(const ag_plan *plan, const char *what, size_t size, ag_status *status)
{
    void *memory = plan->alloc(plan->alloc_ctx, size);
    if (memory == NULL) {
        *status = agi_fail(AG_NO_MEMORY, "no memory for %s: %.0f MiB", what, ceil((double)size / 0x1p20));
    }
    return memory;
}

static ag_status copy_buckets(ag_plan *plan)
{
    ag_status status = AG_OK;
    if (plan->p.buckets != NULL) {
        const size_t size = (size_t)(2 * plan->p.table_radius + 1) * sizeof plan->buckets[0];
        plan->buckets = agi_plan_alloc(plan, "buckets", size, &status);
        if (plan->buckets != NULL) {
            memcpy(plan->buckets, plan->p.buckets, size);
        }
    }
    plan->p.buckets = plan->buckets;
    return status;
}

/* The default ALiBi slope of head h: 2^(-8(h+1)/H). If H is no power of two, the slopes of the largest power
 * of two n below it, then every other slope of 2n. */
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
        plan->slopes = agi_plan_alloc(plan, "alibi_slopes", (size_t)H * sizeof plan->slopes[0], &status);
        for (int64_t h = 0; h < H && plan->slopes != NULL; h++) {
            plan->slopes[h] = agi_has(&plan->p, AG_SLOPES) ? plan->p.alibi_slopes[h] : default_slope(h, H);
        }
    }
    plan->p.alibi_slopes = plan->slopes;
    return status;
}

/* ---- Workspace sizes, info and description ---- */

bool agi_can_run(const ag_plan *plan, agi_map map)
{
    return map != AGI_JVP_JVP || (plan->backend->abilities & AGI_CAN_JVP_JVP) != 0;
}

static ag_status size_workspaces(ag_plan *plan)
{
    for (agi_map map = AGI_FORWARD; map < AGI_N_MAPS; map++) {
        plan->bytes[map] = agi_can_run(plan, map) ? plan->backend->workspace(plan, map) : 0;
        if (plan->bytes[map] == SIZE_MAX) {
            return agi_fail_field(AG_UNSUPPORTED, "q_len",
                                  "q_len %lld x kv_len %lld: the %s backend's workspace exceeds all memory",
                                  (long long)plan->p.q_len, (long long)plan->p.kv_len, plan->backend->name);
        }
    }
    return AG_OK;
}

static void complete_info(ag_plan *plan)
{
    ag_plan_info *info = &plan->info;
    info->struct_size = sizeof *info;
    info->backend = plan->backend->id;
    info->threads = plan->threads;
    plan->backend->info(plan, info);
    snprintf(info->backend_name, sizeof info->backend_name, "%s", plan->backend->name);
    for (int i = 0; i < plan->backend->n_isas; i++) {
        if (plan->backend->isas[i].id == info->isa) {
            snprintf(info->isa_name, sizeof info->isa_name, "%s", plan->backend->isas[i].name);
        }
    }
}

static void describe(ag_plan *plan)
{
    const ag_plan_info *info = &plan->info;
    char tile[48] = "", place[144];
    if (info->tile_queries > 0) {
        snprintf(tile, sizeof tile, ", tile %lldx%lld", (long long)info->tile_queries,
                 (long long)info->tile_keys);
    }
    if (plan->backend->describe_place != NULL) {
        plan->backend->describe_place(plan, place, sizeof place);
    } else {
        snprintf(place, sizeof place, "%d thread%s", (int)info->threads, info->threads == 1 ? "" : "s");
    }
    snprintf(plan->description, sizeof plan->description, "%s%s%s, float%d inside%s%s, %s%s",
             info->backend_name, info->isa_name[0] ? ", " : "", info->isa_name,
             (int)(8 * ag_dtype_size(info->compute_dtype)),
             plan->flags & AG_ROUND_INTERMEDIATES ? ", intermediates rounded" : "", tile, place,
             info->deterministic ? ", deterministic" : "");
}

/* ---- Public ---- */

static ag_status build(ag_plan *plan, const agi_request *request)
{
    ag_status status = copy_buckets(plan);
    if (status == AG_OK) {
        status = copy_slopes(plan);
    }
    if (status == AG_OK) {
        status = agi_choose_backend(plan, agi_backends, request);
    }
    if (status == AG_OK) {
        status = size_workspaces(plan);
    }
    if (status == AG_OK) {
        complete_info(plan);
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
    agi_request request;
    if (plan == NULL) {
        return agi_fail_field(AG_INVALID_ARGUMENT, "plan", "plan is NULL");
    }
    *plan = NULL;
    ag_status status = agi_options_complete(&o, &request, options);
    if (status == AG_OK) {
        status = agi_problem_complete(&made.p, problem);
    }
    if (status == AG_OK) {
        status = agi_problem_check_arrays(&made.p);
    }
    if (status != AG_OK) {
        return status;
    }
    made.threads = o.threads;
    made.flags = o.flags;
    made.device = o.device;
    made.alloc_ctx = o.alloc_ctx;
    made.alloc = o.alloc;
    made.release = o.release;
    ag_plan *kept = agi_plan_alloc(&made, "the plan", sizeof *kept, &status);
    if (kept == NULL) {
        return status;
    }
    *kept = made;
    status = build(kept, &request);
    if (status != AG_OK) {
        release_all(kept);
        return status;
    }
    if (!agi_on_device(kept->backend)) {
        agi_pool_acquire(kept->threads);
    }
    *plan = kept;
    return AG_OK;
}

void ag_plan_destroy(ag_plan *plan)
{
    if (plan != NULL) {
        if (!agi_on_device(plan->backend)) {
            agi_pool_release();
        }
        release_all(plan);
    }
}

const char *ag_plan_describe(const ag_plan *plan)
{
    return plan == NULL ? "no plan" : plan->description;
}

ag_status ag_plan_info_get(const ag_plan *plan, ag_plan_info *info)
{
    if (plan == NULL) {
        return agi_fail_field(AG_INVALID_ARGUMENT, "plan", "plan is NULL");
    }
    ag_plan_info full = plan->info;
    return agi_write_struct(info, &full, sizeof full, "info");
}

const ag_problem *ag_plan_problem(const ag_plan *plan)
{
    return plan == NULL ? NULL : &plan->p;
}

ag_status ag_plan_workspace(const ag_plan *plan, uint32_t maps, size_t *bytes)
{
    if (plan == NULL || bytes == NULL) {
        return agi_fail_field(AG_INVALID_ARGUMENT, plan == NULL ? "plan" : "bytes", "%s is NULL",
                              plan == NULL ? "plan" : "bytes");
    }
    if (maps & AG_MAP_JVP_JVP && !agi_can_run(plan, AGI_JVP_JVP)) {
        return agi_fail_field(AG_UNSUPPORTED, "maps", "maps has AG_MAP_JVP_JVP, which the %s backend lacks",
                              plan->backend->name);
    }
    if (maps == 0 || maps >> AGI_N_MAPS != 0) {
        return agi_fail_field(AG_INVALID_ARGUMENT, "maps", "maps is 0x%lx: must be bits of AG_MAP_*",
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
