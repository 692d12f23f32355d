/* The fake CUDA driver: see fake_driver.h. Compiled as libcuda.so.1; with FAKE_INCOMPLETE it lacks a function, as a
 * driver of CUDA 11 does; with FAKE_NO_DEVICES it finds no device; with FAKE_COMPUTES its kernels run by emulation.
 * FAKE_VERSION is the version that it reports, 13000 for 13.0. The environment's FAKE_PROCESSORS is the number of
 * multiprocessors of each device, else 8. */
#define _GNU_SOURCE /* nanosleep, getpid, MADV_DONTFORK */
#include "fake_driver.h"

#include "cuda/hopper_params.h"
#ifdef FAKE_COMPUTES
#include "kernels.h"
#endif

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

enum { MAX_STACK = 8, MAX_BLOCKS = 1024, MAX_GRAPH = 256, MAX_KERNELS = 1024, PAGE = 65536 };
enum { MAX_PARAMETER = 4096, TENSOR_MAP_ALIGNMENT = 128 };

EXPORT struct fake_driver ag_fake_driver;

struct CUctx_st {
    CUdevice device;
};
static struct CUctx_st contexts[FAKE_DEVICES][2] = {{{0}, {0}}, {{1}, {1}}};
static _Thread_local CUcontext stack[MAX_STACK];
static _Thread_local int depth;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* ---- The script ---- */

/* As the driver does: a process that fork made after cuInit cannot use it. */
static atomic_int process; /* that called cuInit; 0: none */

static CUresult check_process(void)
{
    const int first = atomic_load(&process);
    if (first == 0 || first == (int)getpid()) {
        return 0;
    }
    atomic_fetch_add(&ag_fake_driver.asked_after_fork, 1);
    return AGI_CU_NOT_INITIALIZED;
}

static CUresult scripted(const char *symbol)
{
    const CUresult result = check_process();
    if (result != 0) {
        return result;
    }
    const char *fails = atomic_load(&ag_fake_driver.fails);
    return fails != NULL && strcmp(fails, symbol) == 0 ? atomic_load(&ag_fake_driver.result) : 0;
}

/* Of a function that needs a current context. */
static CUresult on_context(const char *symbol)
{
    const int lost = atomic_load(&ag_fake_driver.lost);
    if (lost != 0) {
        return lost;
    }
    if (depth == 0) {
        atomic_fetch_add(&ag_fake_driver.wrong_context, 1);
        return FAKE_INVALID_CONTEXT;
    }
    return scripted(symbol);
}

/* ---- Devices and contexts ---- */

EXPORT CUresult cuInit(unsigned flags)
{
    (void)flags;
#ifdef FAKE_NO_DEVICES
    return FAKE_NO_DEVICE;
#else
    const CUresult result = check_process();
    atomic_store(&process, result == 0 ? (int)getpid() : atomic_load(&process));
    return result;
#endif
}

EXPORT CUresult cuDriverGetVersion(int *version)
{
    *version = atomic_load(&ag_fake_driver.version);
    return 0;
}

EXPORT CUresult cuGetErrorName(CUresult result, const char **name)
{
    *name = result == FAKE_NO_DEVICE           ? "CUDA_ERROR_NO_DEVICE"
            : result == AGI_CU_OUT_OF_MEMORY   ? "CUDA_ERROR_OUT_OF_MEMORY"
            : result == AGI_CU_NOT_INITIALIZED ? "CUDA_ERROR_NOT_INITIALIZED"
            : result == FAKE_ILLEGAL_ADDRESS   ? "CUDA_ERROR_ILLEGAL_ADDRESS"
            : result == FAKE_LAUNCH_FAILED     ? "CUDA_ERROR_LAUNCH_FAILED"
            : result == FAKE_IN_CAPTURE        ? "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"
            : result == FAKE_INVALID_IMAGE     ? "CUDA_ERROR_INVALID_IMAGE"
                                               : NULL;
    return *name == NULL;
}

EXPORT CUresult cuGetErrorString(CUresult result, const char **text)
{
    const char *name;
    *text = cuGetErrorName(result, &name) == 0 ? "the fake driver's words" : NULL;
    return *text == NULL;
}

EXPORT CUresult cuDeviceGetCount(int *count)
{
    *count = FAKE_DEVICES;
    return check_process();
}

EXPORT CUresult cuDeviceGetName(char *name, int size, CUdevice device)
{
    snprintf(name, (size_t)size, "Fake GPU %d", device);
    return check_process();
}

EXPORT CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device)
{
    *bytes = (size_t)(device + 1) << 30;
    return 0;
}

EXPORT CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device)
{
    const int capability = atomic_load(&ag_fake_driver.capability[device]);
    *value = attribute == AGI_CU_SHARED_LIMIT ? (capability == 90 ? 232448 : 101376)
             : attribute == AGI_CU_MAJOR      ? capability / 10
             : attribute == AGI_CU_MINOR      ? capability % 10
                                              : atomic_load(&ag_fake_driver.processors);
    return 0;
}

EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    const CUresult result = scripted("cuDevicePrimaryCtxRetain");
    if (result == 0) {
        atomic_fetch_add(&ag_fake_driver.retained[device], 1);
        *context = &contexts[device][0];
    }
    return result;
}

EXPORT CUresult cuCtxGetCurrent(CUcontext *context)
{
    *context = depth > 0 ? stack[depth - 1] : NULL;
    return check_process();
}

EXPORT CUresult cuCtxGetDevice(CUdevice *device)
{
    if (depth == 0) {
        return FAKE_INVALID_CONTEXT;
    }
    *device = stack[depth - 1]->device;
    return 0;
}

EXPORT CUresult cuCtxPushCurrent_v2(CUcontext context)
{
    if (check_process() != 0 || context == NULL || depth == MAX_STACK) {
        return FAKE_INVALID_CONTEXT;
    }
    stack[depth++] = context;
    atomic_fetch_add(&ag_fake_driver.pushed, 1);
    return 0;
}

EXPORT CUresult cuCtxSetCurrent(CUcontext context)
{
    depth = depth == 0 ? 1 : depth;
    stack[depth - 1] = context;
    return 0;
}

EXPORT CUresult cuCtxPopCurrent_v2(CUcontext *context)
{
    if (depth == 0) {
        return FAKE_INVALID_CONTEXT;
    }
    *context = stack[--depth];
    atomic_fetch_add(&ag_fake_driver.popped, 1);
    return 0;
}

/* ---- Memory ---- */

static struct {
    CUdeviceptr begin;
    size_t bytes;
    CUdevice device;
} blocks[MAX_BLOCKS];

/* Pages of their own, which a forked process does not have, as it has none of a device. */
static CUdeviceptr allocate(CUdevice device, size_t bytes)
{
    const size_t pages = (bytes + PAGE) / PAGE * PAGE;
    void *memory = mmap(NULL, pages, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED || madvise(memory, pages, MADV_DONTFORK) != 0) {
        abort();
    }
    pthread_mutex_lock(&lock);
    for (int i = 0; i < MAX_BLOCKS; i++) {
        if (blocks[i].begin == 0) {
            blocks[i].begin = (CUdeviceptr)(uintptr_t)memory;
            blocks[i].bytes = bytes;
            blocks[i].device = device;
            break;
        }
    }
    pthread_mutex_unlock(&lock);
    return (CUdeviceptr)(uintptr_t)memory;
}

static void release(CUdeviceptr memory)
{
    pthread_mutex_lock(&lock);
    for (int i = 0; i < MAX_BLOCKS; i++) {
        if (blocks[i].begin == memory) {
            blocks[i].begin = 0;
            munmap((void *)(uintptr_t)memory, (blocks[i].bytes + PAGE) / PAGE * PAGE);
        }
    }
    pthread_mutex_unlock(&lock);
}

/* The device that owns the address; -1: the host. */
static CUdevice owner_of(CUdeviceptr address)
{
    CUdevice device = -1;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < MAX_BLOCKS; i++) {
        if (blocks[i].begin != 0 && address - blocks[i].begin < blocks[i].bytes) {
            device = blocks[i].device;
        }
    }
    pthread_mutex_unlock(&lock);
    return device;
}

/* The launches of the last capture. */
struct captured {
    const char *name;
    CUlaunchConfig config;
    AGI_ALIGNED(TENSOR_MAP_ALIGNMENT) char parameter[MAX_PARAMETER];
};
static struct {
    bool active;
    CUstream stream;
    struct captured launches[MAX_GRAPH];
    int n;
} graph;

EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *memory, size_t bytes)
{
    const CUresult result = graph.active ? FAKE_IN_CAPTURE : on_context("cuMemAlloc_v2");
    if (result == 0) {
        *memory = allocate(stack[depth - 1]->device, bytes);
        atomic_fetch_add(&ag_fake_driver.allocations, 1);
    }
    return result;
}

EXPORT CUresult cuMemFree_v2(CUdeviceptr memory)
{
    const CUresult result = on_context("cuMemFree_v2");
    if (result == 0) {
        release(memory);
        atomic_fetch_sub(&ag_fake_driver.allocations, 1);
    }
    return result;
}

EXPORT CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t bytes)
{
    const CUresult result = graph.active ? FAKE_IN_CAPTURE : on_context("cuMemcpyHtoD_v2");
    if (result == 0) {
        memcpy((void *)(uintptr_t)to, from, bytes);
    }
    return result;
}

EXPORT CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t bytes)
{
    const CUresult result = graph.active ? FAKE_IN_CAPTURE : on_context("cuMemcpyDtoH_v2");
    if (result == 0) {
        memcpy(to, (const void *)(uintptr_t)from, bytes);
    }
    return result;
}

EXPORT CUresult cuCtxSynchronize(void)
{
    return graph.active ? FAKE_IN_CAPTURE : on_context("cuCtxSynchronize");
}

EXPORT CUresult cuStreamSynchronize(CUstream stream)
{
    (void)stream;
    return graph.active ? FAKE_IN_CAPTURE : on_context("cuStreamSynchronize");
}

EXPORT CUresult cuPointerGetAttributes(unsigned n, CUpointer_attribute *attributes, void **values,
                                       CUdeviceptr address)
{
    const CUdevice device = owner_of(address);
    for (unsigned i = 0; i < n; i++) {
        const int value = attributes[i] == AGI_CU_POINTER_MEMORY_TYPE
                              ? (device < 0 ? 0 : AGI_CU_MEMORY_OF_DEVICE)
                          : attributes[i] == AGI_CU_POINTER_DEVICE ? device
                                                                   : 0;
        memcpy(values[i], &value, sizeof value);
    }
    return scripted("cuPointerGetAttributes");
}

EXPORT CUresult cuTensorMapEncodeTiled(CUtensorMap *map, CUtensorMapDataType type, uint32_t rank, void *data,
                                       const uint64_t *size, const uint64_t *strides, const uint32_t *box,
                                       const uint32_t *every, CUtensorMapInterleave interleave,
                                       CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion,
                                       CUtensorMapFloatOOBfill fill)
{
    agi_cuda_box_view view = {.data = data, .rows = (int32_t)box[1]};
    bool right = rank == 4 && box[0] == 64 && swizzle == AGI_CU_TENSOR_SWIZZLE_128B &&
                 (uintptr_t)map % 64 == 0 && (uintptr_t)data % 16 == 0 && box[1] <= 256;
    (void)interleave, (void)promotion, (void)fill;
    view.dtype = type == AGI_CU_TENSOR_FLOAT16 ? AG_F16 : AG_BF16;
    for (int axis = 0; axis < 4; axis++) {
        view.size[axis] = (int64_t)size[3 - axis];
        right = right && size[axis] > 0 && size[axis] <= UINT32_MAX && every[axis] == 1;
    }
    for (int axis = 0; axis < 3; axis++) {
        view.strides[axis] = (int64_t)strides[2 - axis] / 2;
        right = right && strides[axis] > 0 && strides[axis] % 16 == 0 && strides[axis] < (uint64_t)1 << 40;
    }
    memcpy(map, &view, sizeof view); /* as the emulation reads it */
    return right ? scripted("cuTensorMapEncodeTiled") : FAKE_INVALID_VALUE;
}

/* ---- Images and kernels ---- */

struct CUlib_st {
    int unused;
};
struct CUkern_st {
    char name[64];
};
static struct CUlib_st the_library;
static struct CUkern_st kernels[MAX_KERNELS]; /* those that were asked for */
static int n_kernels;

EXPORT CUresult cuLibraryLoadData(CUlibrary *library, const void *image, CUjit_option *options, void **values,
                                  unsigned n, CUlibraryOption *library_options, void **library_values,
                                  unsigned n_library)
{
    const uint32_t fatbin = 0xBA55ED50; /* how every fatbin begins */
    (void)options, (void)values, (void)n, (void)library_options, (void)library_values, (void)n_library;
    if (memcmp(image, &fatbin, sizeof fatbin) != 0) {
        return FAKE_INVALID_IMAGE;
    }
    const CUresult result = scripted("cuLibraryLoadData");
    if (result == 0) {
        atomic_fetch_add(&ag_fake_driver.images, 1);
        *library = &the_library;
    }
    return result;
}

EXPORT CUresult cuLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name)
{
    if (library != &the_library) {
        return FAKE_INVALID_IMAGE;
    }
    const CUresult result = scripted("cuLibraryGetKernel");
    if (result != 0) {
        return result;
    }
    pthread_mutex_lock(&lock);
    int n = 0;
    while (n < n_kernels && strcmp(kernels[n].name, name) != 0) {
        n++;
    }
    if (n == n_kernels) {
        snprintf(kernels[n_kernels++].name, sizeof kernels[0].name, "%s", name);
    }
    pthread_mutex_unlock(&lock);
    *kernel = &kernels[n];
    return 0;
}

#ifndef FAKE_INCOMPLETE
EXPORT CUresult cuKernelSetAttribute(CUfunction_attribute attribute, int value, CUkernel kernel,
                                     CUdevice device)
{
    (void)attribute, (void)value, (void)kernel, (void)device;
    return scripted("cuKernelSetAttribute");
}
#endif

/* Runs the kernel, one at a time, as the emulation has one state. */
static CUresult compute(const char *name, const CUlaunchConfig *config, const void *parameter)
{
#ifdef FAKE_COMPUTES
    static pthread_mutex_t computing = PTHREAD_MUTEX_INITIALIZER;
    int32_t n = 0;
    while (n < AGI_CUDA_N_KERNELS && strcmp(agi_cuda_kernels[n].name, name) != 0) {
        n++;
    }
    if (n == AGI_CUDA_N_KERNELS || (unsigned)agi_cuda_kernels[n].threads != config->block_x ||
        (unsigned)agi_cuda_kernels[n].shared != config->shared_bytes) {
        return FAKE_INVALID_VALUE;
    }
    const agi_cuda_entry launch = {n, config->grid_x, parameter, 0, (int32_t)config->n_attributes};
    pthread_mutex_lock(&computing);
    const ag_status status = emulate_launch_kernel(NULL, &launch);
    pthread_mutex_unlock(&computing);
    return status == AG_OK ? 0 : FAKE_LAUNCH_FAILED;
#else
    const agi_cuda_upload *p = parameter;
    (void)config;
    if (strcmp(name, "upload") == 0) {
        memcpy(p->to, p->values, (size_t)p->count * sizeof p->values[0]);
    }
    return 0;
#endif
}

/* How many bytes the kernel's parameter has. */
static size_t parameter_bytes(const char *name)
{
    static const struct {
        const char *begins;
        size_t bytes;
    } list[] = {
        {"upload", sizeof(agi_cuda_upload)},
        {"merge", sizeof(agi_cuda_merge)},
        {"hopper_relative", sizeof(agi_hopper_before)},
        {"hopper_classes", sizeof(agi_hopper_before)},
        {"hopper_live", sizeof(agi_hopper_before)},
        {"hopper_forward_f32", sizeof(agi_hopper_planes)},
        {"hopper_forward", sizeof(agi_hopper_forward)},
        {"hopper_jvp", sizeof(agi_hopper_jvp)},
        {"hopper_ring", sizeof(agi_hopper_ring)},
        {"hopper_statistics", sizeof(agi_hopper_ring)},
        {"hopper_second", sizeof(agi_hopper_second_ring)},
        {"hopper_td", sizeof(agi_hopper_second)},
        {"hopper_dbias", sizeof(agi_hopper_dbias)},
        {"hopper_dkdv_bf16_d256", sizeof(agi_hopper_wide)},
        {"hopper_dkdv_f16_d256", sizeof(agi_hopper_wide)},
        {"hopper_dq_bf16_d256", sizeof(agi_hopper_wide)},
        {"hopper_dq_f16_d256", sizeof(agi_hopper_wide)},
        {"hopper_d", sizeof(agi_hopper_backward)},
    };
    for (size_t n = 0; n < sizeof list / sizeof list[0]; n++) {
        if (strncmp(name, list[n].begins, strlen(list[n].begins)) == 0) {
            return list[n].bytes;
        }
    }
    return sizeof(agi_cuda_params);
}

static CUresult capture(const char *name, const CUlaunchConfig *config, const void *parameter)
{
    const size_t bytes = parameter_bytes(name);
    if (graph.n == MAX_GRAPH || bytes > MAX_PARAMETER) {
        return FAKE_INVALID_VALUE;
    }
    struct captured *c = &graph.launches[graph.n++];
    c->name = name;
    c->config = *config;
    memcpy(c->parameter, parameter, bytes);
    return 0;
}

static void record(const char *name, CUstream stream)
{
    pthread_mutex_lock(&lock);
    const int n = ag_fake_driver.launches++;
    snprintf(ag_fake_driver.names[n % FAKE_NAMES], sizeof ag_fake_driver.names[0], "%s", name);
    pthread_mutex_unlock(&lock);
    atomic_fetch_add(&ag_fake_driver.launched_on[stack[depth - 1]->device], 1);
    atomic_store(&ag_fake_driver.last_stream, stream);
}

EXPORT CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **params,
                                 void **extra)
{
    const CUresult result = on_context("cuLaunchKernelEx");
    const struct CUkern_st *kernel = (const struct CUkern_st *)(const void *)function;
    (void)extra;
    if (result != 0 || kernel == NULL || config->grid_x == 0) {
        return result != 0 ? result : FAKE_INVALID_VALUE;
    }
    record(kernel->name, config->stream);
    ag_fake_driver.uploads += strcmp(kernel->name, "upload") == 0;
    return graph.active && config->stream == graph.stream ? capture(kernel->name, config, params[0])
                                                          : compute(kernel->name, config, params[0]);
}

/* ---- Modules, which the command's probe of the peak uses; its kernel takes a millisecond ---- */

EXPORT CUresult cuModuleLoadData(void **module, const void *text)
{
    *module = &the_library;
    return strstr(text, ".entry probe(") != NULL ? 0 : FAKE_INVALID_IMAGE;
}

EXPORT CUresult cuModuleGetFunction(CUfunction *function, void *module, const char *name)
{
    *function = NULL;
    return module == &the_library && strcmp(name, "probe") == 0 ? 0 : FAKE_NOT_FOUND;
}

EXPORT CUresult cuModuleUnload(void *module)
{
    return module == &the_library ? 0 : FAKE_INVALID_VALUE;
}

EXPORT CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                               unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,
                               CUstream stream, void **params, void **extra)
{
    const struct timespec millisecond = {0, 1000000};
    (void)function, (void)grid_y, (void)grid_z, (void)block_x, (void)block_y, (void)block_z;
    (void)shared, (void)stream, (void)params, (void)extra;
    nanosleep(&millisecond, NULL);
    return grid_x > 0 ? on_context("cuLaunchKernel") : FAKE_INVALID_VALUE;
}

/* ---- What programs do with a driver ---- */

static CUresult begin_capture(CUstream stream)
{
    graph.active = true;
    graph.stream = stream;
    graph.n = 0;
    return 0;
}

static CUresult end_capture(void)
{
    graph.active = false;
    return 0;
}

static CUresult replay(void)
{
    CUresult result = 0;
    for (int i = 0; i < graph.n && result == 0; i++) {
        const struct captured *c = &graph.launches[i];
        result = compute(c->name, &c->config, c->parameter);
    }
    return result;
}

/* The same by the driver's own functions. A graph is that of the last capture. */
EXPORT CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned flags, int priority)
{
    (void)flags, (void)priority;
    *stream = (CUstream)(void *)&graph;
    return on_context("cuStreamCreateWithPriority");
}

EXPORT CUresult cuStreamBeginCapture_v2(CUstream stream, int mode)
{
    (void)mode;
    return begin_capture(stream);
}

EXPORT CUresult cuStreamEndCapture(CUstream stream, void **captured)
{
    *captured = &graph;
    return stream == graph.stream ? end_capture() : FAKE_INVALID_VALUE;
}

EXPORT CUresult cuGraphInstantiateWithFlags(void **exec, void *captured, unsigned long long flags)
{
    *exec = captured;
    return flags == 0 && captured == &graph ? 0 : FAKE_INVALID_VALUE;
}

EXPORT CUresult cuGraphLaunch(void *exec, CUstream stream)
{
    (void)stream;
    return exec == &graph ? replay() : FAKE_INVALID_VALUE;
}

EXPORT CUresult cuGraphDestroy(void *captured)
{
    return captured == &graph ? 0 : FAKE_INVALID_VALUE;
}

EXPORT CUresult cuGraphExecDestroy(void *exec)
{
    return exec == &graph ? 0 : FAKE_INVALID_VALUE;
}

static CUcontext context_of(CUdevice device, int which)
{
    return &contexts[device][which];
}

__attribute__((constructor)) static void begin(void)
{
    atomic_store(&ag_fake_driver.version, FAKE_VERSION);
    for (int d = 0; d < FAKE_DEVICES; d++) {
        atomic_store(&ag_fake_driver.capability[d], 90);
    }
    const char *processors = getenv("FAKE_PROCESSORS");
    atomic_store(&ag_fake_driver.processors, processors != NULL ? atoi(processors) : 8);
    ag_fake_driver.begin_capture = begin_capture;
    ag_fake_driver.end_capture = end_capture;
    ag_fake_driver.replay = replay;
    ag_fake_driver.context_of = context_of;
    ag_fake_driver.allocate = allocate;
    ag_fake_driver.release = release;
}
