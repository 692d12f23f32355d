/* The cpu backend's table of functions; each chooses the version for float32 or float64. */
#include "core/status.h"
#include "cpu/cpu.h"
#include "cpu/facts.h"
#include "cpu/isa.h"
#include "cpu/gemm/cpu_gemm.h"

static bool is_f64(const ag_plan *plan)
{
    return plan->p.dtype == AG_F64;
}

static ag_status accept(ag_plan *plan)
{
    if (plan->flags & AG_ROUND_INTERMEDIATES) {
        return agi_fail_field(AG_UNSUPPORTED, "options.flags",
                              "options: AG_ROUND_INTERMEDIATES is the reference backend's");
    }
    plan->isa = agi_cpu_choose_isa(plan);
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

static ag_status run(const agi_call *call, void *memory)
{
    return is_f64(call->plan) ? agi_cpu_run_f64(call, memory) : agi_cpu_run_f32(call, memory);
}

static void fill_info(const ag_plan *plan, ag_plan_info *info)
{
    const agi_cpu_facts *facts = plan->backend_data;
    info->isa = facts->isa;
    info->tile_queries = facts->tile_queries;
    info->tile_keys = facts->tile_keys;
    info->compute_dtype = is_f64(plan) ? AG_F64 : AG_F32;
    info->deterministic = 1;
}

const agi_backend agi_cpu_backend = {
    .id = AG_BACKEND_CPU,
    .name = "cpu",
    .abilities = AGI_CAN_JVP_JVP | AGI_CAN_GIVEN_O | AGI_CAN_SEQUENCE_OFFSETS | AGI_CAN_INVARIANT,
    .isas = agi_cpu_isas,
    .n_isas = AGI_N_CPU_ISAS,
    .accept = accept,
    .destroy = destroy,
    .workspace = workspace,
    .run = run,
    .gemm = &agi_cpu_gemm,
    .info = fill_info,
};
