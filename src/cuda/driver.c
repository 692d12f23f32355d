/* Opens the driver, enters contexts, launches kernels: see driver.h. The only process state is the driver's table, made
 * once, whether the process was forked since, and the primary contexts, retained once and never released: another
 * library may still use them. */
#include "cuda/driver.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "core/status.h"

/* ---- The driver's functions ---- */

static struct {
    pthread_once_t once;
    agi_cuda_driver driver;
    char problem[200]; /* why there is no driver; "": there is one */
    atomic_bool is_open;
    atomic_bool forked; /* in a child of a process that has used the driver */
} opened = {.once = PTHREAD_ONCE_INIT};

static const struct {
    const char *symbol;
    size_t offset; /* in agi_cuda_driver */
} functions[] = {
#define ROW(name, symbol, parameters) {symbol, offsetof(agi_cuda_driver, name)},
    AGI_CUDA_FUNCTIONS(ROW)
#undef ROW
};

/* The first function that the driver lacks; NULL: it has all of them. */
static const char *find_functions(void *library)
{
    const char *missing = NULL;
    for (size_t i = 0; i < sizeof functions / sizeof functions[0]; i++) {
        void *address = dlsym(library, functions[i].symbol);
        memcpy((char *)&opened.driver + functions[i].offset, &address, sizeof address);
        missing = missing == NULL && address == NULL ? functions[i].symbol : missing;
    }
    return missing;
}

/* The driver's words for a result. */
static void name_result(const agi_cuda_driver *cu, CUresult result, char *text, size_t size)
{
    const char *name = NULL, *sentence = NULL;
    cu->GetErrorName(result, &name);
    cu->GetErrorString(result, &sentence);
    if (name == NULL || sentence == NULL) {
        snprintf(text, size, "error %d", result);
    } else {
        snprintf(text, size, "%s (%s)", name, sentence);
    }
}

/* In the child of a fork. */
static void note_fork(void)
{
    atomic_store(&opened.forked, true);
}

/* From a driver on which cuInit was called this means a fork, which another library's use of it may have preceded. */
static void note_result(CUresult result)
{
    if (result == AGI_CU_NOT_INITIALIZED) {
        note_fork();
    }
}

static void find_devices(void)
{
    agi_cuda_driver *cu = &opened.driver;
    char reason[160] = "the driver counts none";
    CUresult result = cu->Init(0);
    if (result == 0) {
        result = cu->DeviceGetCount(&cu->n_devices);
    }
    if (result != 0) {
        name_result(cu, result, reason, sizeof reason);
        note_result(result);
    }
    if (result != 0 || cu->n_devices < 1) {
        snprintf(opened.problem, sizeof opened.problem, "no CUDA device: %s", reason);
    }
}

/* Images need a driver of at least the major version of the nvcc that compiled them, and some functions that the
 * library calls came with CUDA 12. The driver knows its version before cuInit. */
enum { NEEDED_MAJOR = AGI_CUDA_TOOLKIT_MAJOR > 12 ? AGI_CUDA_TOOLKIT_MAJOR : 12 };

static bool is_too_old(void)
{
    agi_cuda_driver *cu = &opened.driver;
    const bool is_known = cu->DriverGetVersion != NULL && cu->DriverGetVersion(&cu->version) == 0;
    return is_known && cu->version / 1000 < NEEDED_MAJOR;
}

/* Names also NVIDIA's own number of the first driver of that version, if this file knows it. */
static void refuse_old_driver(void)
{
    const int version = opened.driver.version;
    const char *number = NEEDED_MAJOR == 12 ? ", driver 525" : NEEDED_MAJOR == 13 ? ", driver 580" : "";
    snprintf(opened.problem, sizeof opened.problem,
             "the driver is too old: it is of CUDA %d.%d, and the kernels of this library need one of CUDA "
             "%d%s or newer",
             version / 1000, version % 1000 / 10, NEEDED_MAJOR, number);
}

static void open_driver(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL); /* never closed: it starts threads */
    if (library == NULL) {
        snprintf(opened.problem, sizeof opened.problem, "no CUDA driver: %s", dlerror());
        return;
    }
    const char *missing = find_functions(library);
    if (is_too_old()) {
        refuse_old_driver();
    } else if (missing != NULL) {
        snprintf(opened.problem, sizeof opened.problem, "the CUDA driver has no %s", missing);
    } else {
        find_devices();
    }
    if (opened.problem[0] == '\0') {
        pthread_atfork(NULL, NULL, note_fork);
        atomic_store(&opened.is_open, true);
    }
}

bool agi_cuda_is_forked(void)
{
    return atomic_load(&opened.forked);
}

const agi_cuda_driver *agi_cuda_driver_if_open(void)
{
    return atomic_load(&opened.is_open) && !agi_cuda_is_forked() ? &opened.driver : NULL;
}

const agi_cuda_driver *agi_cuda_driver_if_any(void)
{
    pthread_once(&opened.once, open_driver);
    return opened.problem[0] == '\0' && !agi_cuda_is_forked() ? &opened.driver : NULL;
}

ag_status agi_cuda_check_process(void)
{
    return !agi_cuda_is_forked()
               ? AG_OK
               : agi_fail(AG_DEVICE, "cuda: this process was forked from one that had used the CUDA driver, "
                                     "and cannot use it: start it by exec or spawn");
}

ag_status agi_cuda_open(const agi_cuda_driver **driver)
{
    *driver = agi_cuda_driver_if_any();
    const ag_status status = agi_cuda_check_process();
    if (*driver != NULL || status != AG_OK) {
        return status;
    }
    return agi_fail_field(AG_UNSUPPORTED, "options.backend", "cuda: %s", opened.problem);
}

ag_status agi_cuda_fail(const agi_cuda_driver *cu, CUresult result, const char *what)
{
    char words[200];
    note_result(result);
    const ag_status status = agi_cuda_check_process();
    if (status != AG_OK) {
        return status;
    }
    name_result(cu, result, words, sizeof words);
    return agi_fail(result == AGI_CU_OUT_OF_MEMORY ? AG_NO_MEMORY : AG_DEVICE, "cuda: %s: %s", what, words);
}

/* ---- Contexts ---- */

/* *context becomes NULL if the thread has none. */
static CUresult current_context(const agi_cuda_driver *cu, CUcontext *context, CUdevice *device)
{
    *context = NULL;
    const CUresult result = cu->CtxGetCurrent(context);
    return result == 0 && *context != NULL ? cu->CtxGetDevice(device) : result;
}

ag_status agi_cuda_current_device(const agi_cuda_driver *cu, CUdevice *device)
{
    CUcontext context;
    *device = 0;
    const CUresult result = current_context(cu, &context, device);
    return result == 0 ? AG_OK : agi_cuda_fail(cu, result, "current context");
}

static CUresult primary_context(const agi_cuda_driver *cu, CUdevice device, CUcontext *context)
{
    enum { MAX_DEVICES = 64, INVALID_DEVICE = 101 };
    static pthread_mutex_t retaining = PTHREAD_MUTEX_INITIALIZER;
    static CUcontext primary[MAX_DEVICES];
    if (device < 0 || device >= MAX_DEVICES) {
        return INVALID_DEVICE;
    }
    pthread_mutex_lock(&retaining);
    const CUresult result =
        primary[device] == NULL ? cu->DevicePrimaryCtxRetain(&primary[device], device) : 0;
    *context = primary[device];
    pthread_mutex_unlock(&retaining);
    return result;
}

ag_status agi_cuda_enter(const agi_cuda_driver *cu, CUdevice device, agi_cuda_scope *scope)
{
    CUdevice current = -1;
    scope->pushed = false;
    const ag_status status = agi_cuda_check_process();
    if (status != AG_OK) {
        return status;
    }
    CUresult result = current_context(cu, &scope->context, &current);
    if (result == 0 && (scope->context == NULL || current != device)) {
        result = primary_context(cu, device, &scope->context);
        if (result == 0) {
            result = cu->CtxPushCurrent(scope->context);
            scope->pushed = result == 0;
        }
    }
    return result == 0 ? AG_OK : agi_cuda_fail(cu, result, "context");
}

void agi_cuda_leave(const agi_cuda_driver *cu, const agi_cuda_scope *scope)
{
    CUcontext popped;
    if (scope->pushed) {
        cu->CtxPopCurrent(&popped);
    }
}

/* ---- Launch ---- */

ag_status agi_cuda_enqueue(const agi_cuda_driver *cu, const agi_cuda_launch *launch, CUstream stream,
                           const void *params, const char *name)
{
    CUlaunchAttribute together = {.id = AGI_CU_COOPERATIVE, .value.cooperative = 1};
    const CUlaunchConfig config = {.grid_x = launch->grid[0],
                                   .grid_y = launch->grid[1],
                                   .grid_z = launch->grid[2],
                                   .block_x = launch->threads,
                                   .block_y = 1,
                                   .block_z = 1,
                                   .shared_bytes = launch->shared_bytes,
                                   .stream = stream,
                                   .attributes = &together,
                                   .n_attributes = launch->together};
    void *list[] = {(void *)(uintptr_t)params};
    const CUresult result = cu->LaunchKernelEx(&config, (CUfunction)launch->kernel, list, NULL);
    return result == 0 ? AG_OK : agi_cuda_fail(cu, result, name);
}
