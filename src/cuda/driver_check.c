/* A test of driver.h against the toolkit's cuda.h, if there is one: sizes, offsets, constants and the types of the
 * functions by static assertions; their symbols when it runs. */
#define CUresult agi_result
#define CUdevice agi_device
#define CUdeviceptr agi_deviceptr
#define CUlaunchConfig agi_launch_config
#define CUlaunchAttribute agi_launch_attribute
#define CUcontext agi_context
#define CUstream agi_stream
#define CUlibrary agi_library
#define CUkernel agi_kernel
#define CUfunction agi_function
#define CUdevice_attribute agi_device_attribute
#define CUfunction_attribute agi_function_attribute
#define CUpointer_attribute agi_pointer_attribute
#define CUjit_option agi_jit_option
#define CUlibraryOption agi_library_option
#define CUtensorMap agi_tensor_map
#define CUtensorMap_st agi_tensor_map_st
#define CUtensorMapDataType agi_tensor_type
#define CUtensorMapInterleave agi_tensor_interleave
#define CUtensorMapSwizzle agi_tensor_swizzle
#define CUtensorMapL2promotion agi_tensor_promotion
#define CUtensorMapFloatOOBfill agi_tensor_fill
#include "cuda/driver.h"
#include "cuda/hopper_params.h"
#undef CUresult
#undef CUdevice
#undef CUdeviceptr
#undef CUlaunchConfig
#undef CUlaunchAttribute
#undef CUcontext
#undef CUstream
#undef CUlibrary
#undef CUkernel
#undef CUfunction
#undef CUdevice_attribute
#undef CUfunction_attribute
#undef CUpointer_attribute
#undef CUjit_option
#undef CUlibraryOption
#undef CUtensorMap
#undef CUtensorMap_st
#undef CUtensorMapDataType
#undef CUtensorMapInterleave
#undef CUtensorMapSwizzle
#undef CUtensorMapL2promotion
#undef CUtensorMapFloatOOBfill
#include <cuda.h>

#include <stdio.h>
#include <string.h>

#define SAME(ours, theirs) _Static_assert((long)(ours) == (long)(theirs), #ours " is not " #theirs)
SAME(sizeof(agi_result), sizeof(CUresult));
SAME(sizeof(agi_device), sizeof(CUdevice));
SAME(sizeof(agi_deviceptr), sizeof(CUdeviceptr));
SAME(sizeof(agi_device_attribute), sizeof(CUdevice_attribute));
SAME(sizeof(agi_function_attribute), sizeof(CUfunction_attribute));
SAME(sizeof(agi_pointer_attribute), sizeof(CUpointer_attribute));
SAME(sizeof(agi_launch_config), sizeof(CUlaunchConfig));
SAME(offsetof(agi_launch_config, grid_x), offsetof(CUlaunchConfig, gridDimX));
SAME(offsetof(agi_launch_config, grid_y), offsetof(CUlaunchConfig, gridDimY));
SAME(offsetof(agi_launch_config, grid_z), offsetof(CUlaunchConfig, gridDimZ));
SAME(offsetof(agi_launch_config, block_x), offsetof(CUlaunchConfig, blockDimX));
SAME(offsetof(agi_launch_config, block_y), offsetof(CUlaunchConfig, blockDimY));
SAME(offsetof(agi_launch_config, block_z), offsetof(CUlaunchConfig, blockDimZ));
SAME(offsetof(agi_launch_config, shared_bytes), offsetof(CUlaunchConfig, sharedMemBytes));
SAME(offsetof(agi_launch_config, stream), offsetof(CUlaunchConfig, hStream));
SAME(offsetof(agi_launch_config, attributes), offsetof(CUlaunchConfig, attrs));
SAME(offsetof(agi_launch_config, n_attributes), offsetof(CUlaunchConfig, numAttrs));
SAME(sizeof(agi_launch_attribute), sizeof(CUlaunchAttribute));
SAME(offsetof(agi_launch_attribute, id), offsetof(CUlaunchAttribute, id));
SAME(offsetof(agi_launch_attribute, value), offsetof(CUlaunchAttribute, value));
SAME(offsetof(agi_launch_attribute, value.cooperative), offsetof(CUlaunchAttribute, value.cooperative));
SAME(AGI_CU_COOPERATIVE, CU_LAUNCH_ATTRIBUTE_COOPERATIVE);
SAME(AGI_CU_OUT_OF_MEMORY, CUDA_ERROR_OUT_OF_MEMORY);
SAME(AGI_CU_NOT_INITIALIZED, CUDA_ERROR_NOT_INITIALIZED);
SAME(AGI_CU_MAJOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
SAME(AGI_CU_MINOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
SAME(AGI_CU_PROCESSORS, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
SAME(AGI_CU_SHARED_LIMIT, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
SAME(AGI_CU_MAX_DYNAMIC_SHARED, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES);
SAME(AGI_CU_POINTER_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_MEMORY_TYPE);
SAME(AGI_CU_POINTER_IS_MANAGED, CU_POINTER_ATTRIBUTE_IS_MANAGED);
SAME(AGI_CU_POINTER_DEVICE, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL);
SAME(AGI_CU_MEMORY_OF_DEVICE, CU_MEMORYTYPE_DEVICE);
SAME(sizeof(agi_cuda_tensor_map), sizeof(CUtensorMap));
SAME(_Alignof(agi_cuda_tensor_map) % _Alignof(CUtensorMap), 0);
SAME(sizeof(agi_tensor_type), sizeof(CUtensorMapDataType));
SAME(sizeof(agi_tensor_swizzle), sizeof(CUtensorMapSwizzle));
SAME(AGI_CU_TENSOR_FLOAT16, CU_TENSOR_MAP_DATA_TYPE_FLOAT16);
SAME(AGI_CU_TENSOR_BFLOAT16, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16);
SAME(AGI_CU_TENSOR_SWIZZLE_128B, CU_TENSOR_MAP_SWIZZLE_128B);
SAME(AGI_CU_TENSOR_L2_256B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B);
SAME(0, CU_TENSOR_MAP_INTERLEAVE_NONE);
SAME(0, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);

/* Here the list's types are those of cuda.h. */
#define SAME_TYPE(name, symbol, parameters)                                                                  \
    _Static_assert(_Generic(&cu##name, CUresult(CUDAAPI *) parameters : 1, default : 0),                     \
                   symbol " has other parameters");
AGI_CUDA_FUNCTIONS(SAME_TYPE)

/* cuda.h renames a function to the symbol of its newest version. */
#define TEXT(x) #x
#define SYMBOL_OF(function) TEXT(function)
static const char *const symbols[][2] = {
#define BOTH(name, symbol, parameters) {symbol, SYMBOL_OF(cu##name)},
    AGI_CUDA_FUNCTIONS(BOTH)
#undef BOTH
};

int main(void)
{
    int wrong = 0, count = sizeof symbols / sizeof symbols[0];
    for (int i = 0; i < count; i++) {
        if (strcmp(symbols[i][0], symbols[i][1]) != 0) {
            printf("%s of driver.h is %s in cuda.h\n", symbols[i][0], symbols[i][1]);
            wrong++;
        }
    }
    printf("%d checks passed, %d failed\n", count - wrong, wrong);
    return wrong != 0;
}
