/* The CUDA driver, found at run time: no CUDA library is linked, and no CUDA header is needed. Declares the part of
 * the driver's stable binary interface that is used, by the names of cuda.h; driver_check.c compares it with cuda.h.
 * Knows no attention. */
#ifndef AGI_CUDA_DRIVER_H
#define AGI_CUDA_DRIVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "attngrad.h"

typedef int CUresult; /* 0: success */
typedef int CUdevice; /* the number of the device */
typedef unsigned long long CUdeviceptr;
typedef struct CUctx_st *CUcontext;
typedef struct CUstream_st *CUstream;
typedef struct CUlib_st *CUlibrary;
typedef struct CUkern_st *CUkernel;
typedef struct CUfunc_st *CUfunction;
typedef struct CUtensorMap_st CUtensorMap; /* 128 bytes: agi_cuda_tensor_map */
typedef int CUtensorMapDataType, CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion,
    CUtensorMapFloatOOBfill;
typedef int CUdevice_attribute, CUfunction_attribute, CUpointer_attribute, CUjit_option, CUlibraryOption;

enum {
    AGI_CU_OUT_OF_MEMORY = 2,
    AGI_CU_NOT_INITIALIZED = 3,
    AGI_CU_PROCESSORS = 16, /* attributes of a device */
    AGI_CU_MAJOR = 75,
    AGI_CU_MINOR = 76,
    AGI_CU_SHARED_LIMIT = 97,
    AGI_CU_MAX_DYNAMIC_SHARED = 8,  /* an attribute of a kernel */
    AGI_CU_POINTER_MEMORY_TYPE = 2, /* attributes of a pointer */
    AGI_CU_POINTER_IS_MANAGED = 8,
    AGI_CU_POINTER_DEVICE = 9,
    AGI_CU_MEMORY_OF_DEVICE = 2, /* a memory type */
    AGI_CU_TENSOR_FLOAT16 = 6,   /* of tensor maps */
    AGI_CU_TENSOR_BFLOAT16 = 9,
    AGI_CU_TENSOR_SWIZZLE_128B = 3,
    AGI_CU_TENSOR_L2_256B = 3
};

/* An attribute of a launch. */
enum { AGI_CU_COOPERATIVE = 2 }; /* all blocks are on the device at once, or the launch fails */
typedef struct {
    int id;
    char padding[4];
    union {
        int cooperative;
        char bytes[64];
    } value;
} CUlaunchAttribute;

typedef struct {
    unsigned grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes;
    CUstream stream;
    CUlaunchAttribute *attributes;
    unsigned n_attributes;
} CUlaunchConfig;

/* X(name, symbol, parameters): every function of the driver that the library calls; cuda.h has it as cu##name. The
 * symbols without the suffix _ptsz take the stream NULL as the legacy default stream, never as the per-thread one. */
#define AGI_CUDA_FUNCTIONS(X)                                                                                \
    X(Init, "cuInit", (unsigned))                                                                            \
    X(DriverGetVersion, "cuDriverGetVersion", (int *))                                                       \
    X(GetErrorName, "cuGetErrorName", (CUresult, const char **))                                             \
    X(GetErrorString, "cuGetErrorString", (CUresult, const char **))                                         \
    X(DeviceGetCount, "cuDeviceGetCount", (int *))                                                           \
    X(DeviceGetName, "cuDeviceGetName", (char *, int, CUdevice))                                             \
    X(DeviceTotalMem, "cuDeviceTotalMem_v2", (size_t *, CUdevice))                                           \
    X(DeviceGetAttribute, "cuDeviceGetAttribute", (int *, CUdevice_attribute, CUdevice))                     \
    X(DevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", (CUcontext *, CUdevice))                           \
    X(CtxGetCurrent, "cuCtxGetCurrent", (CUcontext *))                                                       \
    X(CtxGetDevice, "cuCtxGetDevice", (CUdevice *))                                                          \
    X(CtxPushCurrent, "cuCtxPushCurrent_v2", (CUcontext))                                                    \
    X(CtxPopCurrent, "cuCtxPopCurrent_v2", (CUcontext *))                                                    \
    X(LibraryLoadData, "cuLibraryLoadData",                                                                  \
      (CUlibrary *, const void *, CUjit_option *, void **, unsigned, CUlibraryOption *, void **, unsigned))  \
    X(LibraryGetKernel, "cuLibraryGetKernel", (CUkernel *, CUlibrary, const char *))                         \
    X(KernelSetAttribute, "cuKernelSetAttribute", (CUfunction_attribute, int, CUkernel, CUdevice))           \
    X(LaunchKernelEx, "cuLaunchKernelEx", (const CUlaunchConfig *, CUfunction, void **, void **))            \
    X(MemAlloc, "cuMemAlloc_v2", (CUdeviceptr *, size_t))                                                    \
    X(MemFree, "cuMemFree_v2", (CUdeviceptr))                                                                \
    X(MemcpyHtoD, "cuMemcpyHtoD_v2", (CUdeviceptr, const void *, size_t))                                    \
    X(StreamSynchronize, "cuStreamSynchronize", (CUstream))                                                  \
    X(TensorMapEncodeTiled, "cuTensorMapEncodeTiled",                                                        \
      (CUtensorMap *, CUtensorMapDataType, uint32_t, void *, const uint64_t *, const uint64_t *,             \
       const uint32_t *, const uint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle,                        \
       CUtensorMapL2promotion, CUtensorMapFloatOOBfill))                                                     \
    X(PointerGetAttributes, "cuPointerGetAttributes", (unsigned, CUpointer_attribute *, void **, CUdeviceptr))

typedef struct {
#define AGI_CUDA_FIELD(name, symbol, parameters) CUresult(*name) parameters;
    AGI_CUDA_FUNCTIONS(AGI_CUDA_FIELD)
#undef AGI_CUDA_FIELD
    int version;   /* 13000: CUDA 13.0 */
    int n_devices; /* at least 1 */
} agi_cuda_driver;

/* Opens the driver, once per process; later calls return what the first one found. AG_UNSUPPORTED, with the reason:
 * there is no driver, it is too old for this library, or it has no device. AG_DEVICE: see below. Any thread may call
 * it. */
ag_status agi_cuda_open(const agi_cuda_driver **driver);

/* A child of a process that has used the driver, which fork made, cannot use it: it is then not asked anything, so that
 * plans for the host go on, and what needs it gets AG_DEVICE; else AG_OK. */
bool agi_cuda_is_forked(void);
ag_status agi_cuda_check_process(void);

/* agi_cuda_open without a message: NULL if there is no driver that can be used. */
const agi_cuda_driver *agi_cuda_driver_if_any(void);

/* NULL too if nobody has opened it yet. */
const agi_cuda_driver *agi_cuda_driver_if_open(void);

/* The status of a result that is not success, with the message "what: NAME (text)" in the driver's words:
 * AG_NO_MEMORY if the device has no memory left, else AG_DEVICE. */
ag_status agi_cuda_fail(const agi_cuda_driver *cu, CUresult result, const char *what);

/* The device of the calling thread's current context; 0 if it has none. */
ag_status agi_cuda_current_device(const agi_cuda_driver *cu, CUdevice *device);

/* Makes a context of the device current on this thread until agi_cuda_leave: the one that is current already, if it is
 * on the device, else the device's primary context, which PyTorch, JAX and CuPy use too. */
typedef struct {
    CUcontext context;
    bool pushed;
} agi_cuda_scope;
ag_status agi_cuda_enter(const agi_cuda_driver *cu, CUdevice device, agi_cuda_scope *scope);
void agi_cuda_leave(const agi_cuda_driver *cu, const agi_cuda_scope *scope);

/* Enqueues a kernel on a stream of the current context; allocates nothing, waits for nothing. Each kernel of the
 * library has one parameter, a struct, which is copied before the call returns. */
typedef struct {
    CUkernel kernel;
    unsigned grid[3], threads, shared_bytes;
    bool together; /* all blocks are on the device at once: a cooperative launch */
} agi_cuda_launch;
ag_status agi_cuda_enqueue(const agi_cuda_driver *cu, const agi_cuda_launch *launch, CUstream stream,
                           const void *params, const char *name);

#endif
