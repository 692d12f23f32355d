/* The backend's table: which instruction set, which real. */
#include <stdio.h>

#include "core/cpu_info.h"
#include "core/status.h"
#include "cpu/cpu.h"
#include "cpu/facts.h"
#include "cpu/gemm/cpu_gemm.h"

static bool is_f64(const ag_plan *plan)
{
    return plan->p.dtype == AG_F64;
}

static const char *const set_names[] = {"auto", "scalar", "avx2", "avx512", "amx", "neon"};

/* The best set that is built in and that this processor has. AMX is for bfloat16 alone. */
static ag_isa best_isa(const ag_plan *plan)
{
    static const ag_isa from_best[] = {AG_ISA_AMX, AG_ISA_AVX512, AG_ISA_AVX2, AG_ISA_NEON};
    for (int i = plan->p.dtype == AG_BF16 ? 0 : 1; i < 4; i++) {
        if (agi_cpu_supports(from_best[i])) {
            return from_best[i];
        }
    }
    return AG_ISA_SCALAR;
}

static ag_status accept(ag_plan *plan)
{
    if (plan->flags & AG_ROUND_INTERMEDIATES) {
        return agi_fail_field(AG_UNSUPPORTED, "options.flags",
                              "options: AG_ROUND_INTERMEDIATES is the reference backend's");
    }
    if (plan->isa != AG_ISA_AUTO && !agi_cpu_supports(plan->isa)) {
        return agi_fail_field(AG_UNSUPPORTED, "options.isa", "isa %s: this processor does not have it",
                              set_names[plan->isa]);
    }
    if (plan->isa == AG_ISA_AUTO || plan->isa == AG_ISA_AMX) {
        plan->isa = best_isa(plan);
    }
    return is_f64(plan) ? agi_cpu_plan_make_f64(plan) : agi_cpu_plan_make_f32(plan);
}

static void destroy(ag_plan *plan)
{
    if (plan->backend_data != NULL) {
        plan->release(plan->alloc_ctx, plan->backend_data);
    }
}

static size_t workspace(const ag_plan *plan, agi_map map)
{
    return is_f64(plan) ? agi_cpu_workspace_f64(plan, map) : agi_cpu_workspace_f32(plan, map);
}

static ag_status run(const agi_call *call, const ag_exec *exec, void *memory)
{
    return is_f64(call->plan) ? agi_cpu_run_f64(call, exec, memory) : agi_cpu_run_f32(call, exec, memory);
}

static void describe(const ag_plan *plan, char *text, size_t size)
{
    const agi_cpu_facts *x = plan->backend_data;
    snprintf(text, size, "%s, float%d inside, tile %lldx%lld", x->kernels, is_f64(plan) ? 64 : 32,
             (long long)x->tile_queries, (long long)x->tile_keys);
}

const agi_backend agi_cpu_backend = {
    .id = AG_BACKEND_CPU,
    .name = "cpu",
    .accept = accept,
    .destroy = destroy,
    .workspace = workspace,
    .run = run,
    .gemm = &agi_cpu_gemm,
    .describe = describe,
};
