/* What the CUDA backend keeps in a plan. */
#ifndef AGI_CUDA_PLAN_H
#define AGI_CUDA_PLAN_H

#include "core/backend.h"
#include "cuda/device.h"
#include "cuda/kernel_list.h"

/* In ag_plan.backend_data. */
typedef struct {
    const agi_cuda_driver *cu;
    CUdevice device;
    agi_cuda_device device_info;

    /* The plan's tables, copied to the device; 0: absent. They belong to the context in which the plan was made. */
    CUcontext tables_context; /* NULL: no table */
    CUdeviceptr buckets, slopes;

    CUkernel kernels[AGI_CUDA_N_KERNELS]; /* NULL: of another number format or table than the plan's */
} agi_cuda_plan;

static inline const agi_cuda_plan *agi_cuda_plan_of(const ag_plan *plan)
{
    return plan->backend_data;
}

#endif
