/* The backend's table: which instruction set, which real. */
#include "core/status.h"
#include "cpu/drivers/backward.h"
#include "cpu/cpu.h"
#include "cpu/isa.h"
#include "cpu/drivers/run.h"
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
    if (plan->isa == AG_ISA_AUTO || plan->isa == AG_ISA_AMX) {
        plan->isa = agi_cpu_best_isa(plan);
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

/* Not every problem of a plan that has AMX runs on it. */
static ag_isa isa_of_maps(const ag_plan *plan)
{
    return plan->isa == AG_ISA_AMX && agi_amx_of(plan, AGI_VJP) == NULL ? AG_ISA_AVX512 : plan->isa;
}

static void info(const ag_plan *plan, ag_plan_info *facts)
{
    const agi_schedule x = agi_schedule_of(plan, AGI_VJP);
    facts->isa = isa_of_maps(plan);
    facts->tile_queries = x.rows;
    facts->tile_keys = x.block;
    facts->compute_dtype = is_f64(plan) ? AG_F64 : AG_F32;
    facts->deterministic = 1;
}

const agi_backend agi_cpu_backend = {
    .id = AG_BACKEND_CPU,
    .name = "cpu",
    .isas = agi_cpu_isas,
    .n_isas = AGI_N_CPU_ISAS,
    .accept = accept,
    .workspace = workspace,
    .run = run,
    .matmul = agi_cpu_matmul,
    .info = info,
};
