/* Asks the driver for tensor maps: see boxes.h. It is host work of 0.1 us, without a context. */
#include "cuda/boxes.h"

ag_status agi_cuda_make_map(const void *driver, const agi_cuda_box_view *view, agi_cuda_tensor_map *map)
{
    const agi_cuda_driver *cu = driver;
    const int type = view->dtype == AG_F16 ? AGI_CU_TENSOR_FLOAT16 : AGI_CU_TENSOR_BFLOAT16;
    const uint32_t box[4] = {64, (uint32_t)view->rows, 1, 1}, every[4] = {1, 1, 1, 1};
    uint64_t size[4], strides[3]; /* the driver counts from the channels on, strides in bytes */
    for (int axis = 0; axis < 4; axis++) {
        size[axis] = (uint64_t)view->size[3 - axis];
    }
    for (int axis = 0; axis < 3; axis++) {
        strides[axis] = 2 * (uint64_t)view->strides[2 - axis];
    }
    const CUresult result =
        cu->TensorMapEncodeTiled((CUtensorMap *)(void *)map, type, 4, view->data, size, strides, box, every,
                                 0, AGI_CU_TENSOR_SWIZZLE_128B, AGI_CU_TENSOR_L2_256B, 0);
    return result == 0 ? AG_OK : agi_cuda_fail(cu, result, "a tensor map");
}
