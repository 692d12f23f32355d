/* Finds the kernels of a plan in their images: see find_kernels.h. */
#include "cuda/find_kernels.h"

#include <string.h>

#include "cuda/images.h"

/* Images are named by kernel family and format, "rowwise_bf16"; the one of all formats is "common". */
static bool serves(int n, ag_isa isa, ag_dtype dtype)
{
    const char *format = strrchr(agi_cuda_kernels[n].image, '_');
    const bool in_table = n < AGI_CUDA_N_PORTABLE || isa == AG_ISA_SM90;
    return in_table && (format == NULL || strcmp(format + 1, ag_dtype_name(dtype)) == 0);
}

/* More than 48 KiB must be asked for, per kernel and device. */
static ag_status allow_shared_memory(const agi_cuda_plan *plan, int n)
{
    enum { WITHOUT_ASKING = 48 * 1024 };
    const int32_t bytes = agi_cuda_kernels[n].shared;
    if (bytes <= WITHOUT_ASKING || bytes > plan->device_info.shared_limit) {
        return AG_OK; /* one that needs more than the device has is never launched there */
    }
    const CUresult result =
        plan->cu->KernelSetAttribute(AGI_CU_MAX_DYNAMIC_SHARED, bytes, plan->kernels[n], plan->device);
    return result == 0 ? AG_OK : agi_cuda_fail(plan->cu, result, agi_cuda_kernels[n].name);
}

ag_status agi_cuda_find_kernels(agi_cuda_plan *plan, ag_isa isa, ag_dtype dtype)
{
    ag_status status = AG_OK;
    for (int n = 0; n < AGI_CUDA_N_KERNELS && status == AG_OK; n++) {
        const agi_cuda_kernel *kernel = &agi_cuda_kernels[n];
        if (serves(n, isa, dtype)) {
            status = agi_cuda_find_kernel(plan->cu, kernel->image, kernel->name, &plan->kernels[n]);
            status = status == AG_OK ? allow_shared_memory(plan, n) : status;
        }
    }
    return status;
}
