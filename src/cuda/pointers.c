/* Asks the driver whose memory a pointer is: see pointers.h. A kernel that is given host memory would end its whole
 * context with an error, so every pointer is asked about before anything is launched: 0.1 us each. */
#include "cuda/pointers.h"

#include "core/status.h"

ag_status agi_cuda_check_pointer(const ag_plan *plan, const char *name, const void *pointer)
{
    const agi_cuda_plan *data = agi_cuda_plan_of(plan);
    unsigned type = 0, managed = 0;
    int device = -1;
    CUpointer_attribute attributes[] = {AGI_CU_POINTER_MEMORY_TYPE, AGI_CU_POINTER_IS_MANAGED,
                                        AGI_CU_POINTER_DEVICE};
    void *values[] = {&type, &managed, &device};
    const ag_status status = agi_cuda_check_process();
    if (status != AG_OK) {
        return status;
    }
    const CUresult result =
        data->cu->PointerGetAttributes(3, attributes, values, (CUdeviceptr)(uintptr_t)pointer);
    if (result != 0) {
        return agi_cuda_fail(data->cu, result, name);
    }
    if (managed == 0 && type != AGI_CU_MEMORY_OF_DEVICE) {
        return agi_fail_field(AG_INVALID_ARGUMENT, name,
                              "%s at %p is host memory: the plan takes memory of cuda device %d", name,
                              pointer, data->device);
    }
    if (managed == 0 && device != data->device) {
        return agi_fail_field(AG_INVALID_ARGUMENT, name,
                              "%s at %p is memory of cuda device %d: the plan takes that of device %d", name,
                              pointer, device, data->device);
    }
    return AG_OK;
}

/* A driver that cannot answer is no reason to refuse host memory. */
ag_status agi_cuda_check_host_pointer(const char *name, const void *pointer)
{
    const agi_cuda_driver *cu = agi_cuda_driver_if_open();
    unsigned type = 0, managed = 0;
    CUpointer_attribute attributes[] = {AGI_CU_POINTER_MEMORY_TYPE, AGI_CU_POINTER_IS_MANAGED};
    void *values[] = {&type, &managed};
    if (cu == NULL || cu->PointerGetAttributes(2, attributes, values, (CUdeviceptr)(uintptr_t)pointer) != 0 ||
        type != AGI_CU_MEMORY_OF_DEVICE || managed != 0) {
        return AG_OK;
    }
    return agi_fail_field(AG_INVALID_ARGUMENT, name,
                          "%s at %p is memory of a cuda device: it must be the host's", name, pointer);
}
