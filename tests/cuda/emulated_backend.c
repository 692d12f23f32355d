/* The kernels of src/cuda as a backend on the processor: the launches of a call are those of the CUDA backend, and each
 * runs by emulation. In programs that link it in the place of the cpu backend, tests of the maps run unchanged. */
#include "emulated_backend.h"

#include <stdlib.h>

#include "cuda/launches.h"
#include "kernels.h"

int32_t emulated_shared_limit = 232448, emulated_processors = 5;
bool emulated_hopper;
int32_t emulated_ring_most = 64;

static agi_cuda_setting device_of(const ag_plan *plan)
{
    return (agi_cuda_setting){emulated_shared_limit,
                              emulated_processors,
                              plan->buckets,
                              plan->slopes,
                              emulated_ring_most,
                              emulated_hopper ? emulate_make_map : NULL,
                              NULL};
}

static ag_status accept(ag_plan *plan)
{
    (void)plan;
    emulated_hopper |= getenv("EMULATED_HOPPER") != NULL;
    return AG_OK;
}

static ag_status run(const agi_call *call, void *workspace)
{
    const agi_cuda_setting device = device_of(call->plan);
    return agi_cuda_launch_map(call, &device, workspace, (agi_cuda_emitter){emulate_launch_kernel, NULL});
}

static ag_status merge(const ag_plan *plan, const ag_merge_args *args, agi_exec *exec)
{
    (void)exec;
    return agi_cuda_launch_merge(plan, args, (agi_cuda_emitter){emulate_launch_kernel, NULL});
}

static void fill_info(const ag_plan *plan, ag_plan_info *info)
{
    info->compute_dtype = plan->p.dtype == AG_F64 ? AG_F64 : AG_F32;
    info->deterministic = 1;
}

const agi_backend agi_emulated_backend = {
    .id = AG_BACKEND_CPU,
    .name = "cpu",
    .abilities = AGI_CAN_JVP_JVP | AGI_CAN_GIVEN_O | AGI_CAN_SEQUENCE_OFFSETS | AGI_CAN_INVARIANT,
    .accept = accept,
    .workspace = agi_cuda_workspace,
    .run = run,
    .merge = merge,
    .info = fill_info,
};
