/* Makes the CPU backend's part of a plan: see plan.h. The only file that knows which implementations of the
 * maps there are. */
#include "cpu/plan.h"

#include <math.h>

#include "cpu/drivers/backward.h"
#include "cpu/drivers/given.h"
#include "cpu/drivers/rows.h"
#include "cpu/implementations.h"

/* The fastest first; the last one can run every plan. */
static const agi_implementation *const implementations[] = {
#if AGI_HAS_AMX
    &agi_amx_implementation,
#endif
    &REAL(agi_vec_implementation),
};

static const agi_implementation *implementation_of(const ag_plan *plan)
{
    int i = 0;
    while (implementations[i]->serves != NULL && !implementations[i]->serves(plan)) {
        i++;
    }
    return implementations[i];
}

/* The instruction set of the vector kernels; a processor with AMX also has AVX-512. */
static ag_isa vector_isa(const ag_plan *plan)
{
    return plan->isa == AG_ISA_AMX ? AG_ISA_AVX512 : plan->isa;
}

const agi_kernels *REAL(agi_kernels_of)(const ag_plan *plan)
{
    switch (vector_isa(plan)) {
#if defined(__x86_64__)
    case AG_ISA_AVX512: return &REAL(agi_kernels_avx512);
    case AG_ISA_AVX2: return &REAL(agi_kernels_avx2);
#elif defined(__aarch64__)
    case AG_ISA_NEON: return &REAL(agi_kernels_neon);
#endif
    default: return &REAL(agi_kernels_scalar);
    }
}

/* Scores with a negative scale are not plain: the masks write -infinity before the scale is applied, and it must stay
 * -infinity. Nor are those whose scale rounds to 0. */
static agi_features features_of(const ag_problem *p)
{
    const bool pair_mask = agi_has(p, AG_MASK | AG_BIAS | AG_TABLE), softcap = p->softcap > 0;
    return (agi_features){.plain = !pair_mask && !agi_has(p, AG_ALIBI | AG_SLOPES) && !softcap &&
                                   agi_to_real(p->scale) > 0,
                          .pair_mask = pair_mask,
                          .softcap = softcap,
                          .dropout = p->dropout > 0};
}

/* How many times as fast as vectors an instruction set runs the maps, about. */
static double speed_over_vectors(ag_isa isa)
{
    return isa == AG_ISA_AMX ? 4 : 1;
}

ag_status REAL(agi_cpu_plan_make)(ag_plan *plan)
{
    ag_status status = AG_OK;
    agi_cpu_plan *cpu = agi_plan_alloc(plan, "the plan", sizeof *cpu, &status);
    if (cpu == NULL) {
        return status;
    }
    const agi_implementation *implementation = implementation_of(plan);
    *cpu = (agi_cpu_plan){.k = REAL(agi_kernels_of)(plan),
                          .row_ops = implementation->row_ops,
                          .backward_ops = implementation->backward_ops,
                          .given_ops = implementation->given_ops,
                          .features = features_of(&plan->p)};
    cpu->Dk_pad = agi_round_up(plan->p.dim_qk, cpu->k->lanes);
    cpu->Dv_pad = agi_round_up(plan->p.dim_v, cpu->k->lanes);
    cpu->rows = REAL(agi_row_schedule_of)(plan, cpu->row_ops->max_queries, cpu->row_ops->min_blocks);
    cpu->given = REAL(agi_row_schedule_of)(plan, cpu->given_ops->max_queries, cpu->given_ops->min_blocks);
    for (int map = 0; map < AGI_N_MAPS; map++) {
        cpu->backward[map] = REAL(agi_backward_schedule_of)(cpu, plan, (agi_map)map);
    }
    cpu->facts = (agi_cpu_facts){implementation->isa == AG_ISA_AUTO ? vector_isa(plan) : implementation->isa,
                                 TILE_ROWS, cpu->backward[AGI_VJP].max.block};
    for (int map = 0; map < AGI_N_MAPS; map++) {
        cpu->cost[map] = REAL(agi_cost_of)(plan, (agi_map)map) / speed_over_vectors(cpu->facts.isa);
    }
    plan->backend_data = cpu;
    return AG_OK;
}
