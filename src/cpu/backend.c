/* The backend's table: which instruction set, which real. */
#include <stdio.h>

#include "core/cpu_info.h"
#include "core/status.h"
#include "cpu/drivers/backward.h"
#include "cpu/cpu.h"
#include "cpu/drivers/run.h"
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
    if (plan->flags & AG_ROUND_NAMED) {
        return agi_fail(AG_UNSUPPORTED, "options: AG_ROUND_NAMED is the reference backend's");
    }
    if (plan->isa != AG_ISA_AUTO && !agi_cpu_supports(plan->isa)) {
        return agi_fail(AG_UNSUPPORTED, "isa %s: this processor does not have it", set_names[plan->isa]);
    }
    if (plan->isa == AG_ISA_AUTO || plan->isa == AG_ISA_AMX) {
        plan->isa = best_isa(plan);
    }
    return AG_OK;
}

static size_t workspace(const ag_plan *plan, agi_map map)
{
    return is_f64(plan) ? agi_cpu_workspace_f64(plan, map) : agi_cpu_workspace_f32(plan, map);
}

static ag_status run(const agi_call *call, const ag_exec *exec, void *memory)
{
    return is_f64(call->plan) ? agi_cpu_run_f64(call, exec, memory) : agi_cpu_run_f32(call, exec, memory);
}

/* What the maps run on: AMX is not for every problem of a plan that has it. */
static const char *set_of_maps(const ag_plan *plan)
{
    const bool vectors = plan->isa == AG_ISA_AMX && agi_amx_of(plan, AGI_VJP) == NULL;
    return set_names[vectors ? AG_ISA_AVX512 : plan->isa];
}

static void describe(const ag_plan *plan, char *text, size_t size)
{
    const agi_schedule x = agi_schedule_of(plan, AGI_VJP);
    snprintf(text, size, "%s, float%d inside, tile %lldx%lld", set_of_maps(plan), is_f64(plan) ? 64 : 32,
             (long long)x.rows, (long long)x.block);
}

const agi_backend agi_cpu_backend = {
    .id = AG_BACKEND_CPU,
    .name = "cpu",
    .accept = accept,
    .workspace = workspace,
    .run = run,
    .gemm = &agi_cpu_gemm,
    .describe = describe,
};
