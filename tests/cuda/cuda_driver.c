/* The driver's part of the CUDA backend on the fake driver: when it is opened, contexts pushed and popped, failures
 * of the driver, graph capture, threads. Kernels are launched by copying lists, which needs no map. */
#include "cuda/device.h"
#include "fake.h"

#include <pthread.h>

enum { BATCH = 3 };

static const int64_t lengths[BATCH] = {5, 0, 7};

/* A call whose lengths are in host memory: forward copies them by a kernel that the fake driver runs. */
static void begin(struct device_call *u, CUdevice device, const int64_t *q_lengths)
{
    call_begin(u, "b3 q8 d16 f32", device);
    u->a.q_lengths = q_lengths;
}

/* ---- When the driver is opened ---- */

static void opened_on_request_only(void)
{
    ag_plan *plan = NULL;
    ag_problem p = AG_PROBLEM_INIT;
    ag_info info = {.struct_size = offsetof(ag_info, devices)};
    CHECK(fake_if_open() == NULL, "the driver is open before anything was called");
    CHECK_OK(ag_problem_parse("q4 d4 f32", &p));
    CHECK_OK(ag_plan_create(&plan, &p, NULL));
    ag_plan_destroy(plan);
    CHECK_OK(ag_info_get(&info));
    CHECK(ag_backend_count() == 3 && ag_backend_isa_count(AG_BACKEND_CUDA) == 2, "other backends");
    CHECK(fake_if_open() == NULL, "a plan for the host, or ag_info without devices, opened the driver");
    info.struct_size = sizeof info;
    CHECK_OK(ag_info_get(&info));
    CHECK(fake_if_open() != NULL, "ag_info with devices did not open the driver");
    CHECK(strcmp(info.devices, "0: Fake GPU 0, sm90, 1 GiB; 1: Fake GPU 1, sm90, 2 GiB") == 0,
          "devices is '%s'", info.devices);
    CHECK_INT(atomic_load(&fake_state()->retained[0]), 0);
}

/* ---- Contexts ---- */

/* Runs with `current` (NULL: none) as the thread's context. A context is pushed, and popped again, if pushes is 1. */
static void run_in(const struct device_call *u, CUcontext current, int pushes, const char *what)
{
    const agi_cuda_driver *cu = fake_functions();
    struct fake_driver *fake = fake_state();
    CUcontext after = NULL;
    if (current != NULL) {
        cu->CtxPushCurrent(current);
    }
    const int pushed = atomic_load(&fake->pushed), launched = atomic_load(&fake->launched_on[u->device]);
    memset(call_lists(u), 0, sizeof lengths);
    CHECK_OK(call_forward(u, NULL));
    CHECK(atomic_load(&fake->launched_on[u->device]) > launched, "%s: not launched on device %d", what,
          u->device);
    CHECK(atomic_load(&fake->pushed) == pushed + pushes, "%s: pushed %d", what,
          atomic_load(&fake->pushed) - pushed);
    CHECK(memcmp(call_lists(u), lengths, sizeof lengths) == 0, "%s: the list was not copied", what);
    cu->CtxGetCurrent(&after);
    CHECK(after == current, "%s: another context is current", what);
    if (current != NULL) {
        cu->CtxPopCurrent(&after);
    }
    CHECK(atomic_load(&fake->pushed) == atomic_load(&fake->popped), "%s: %d pushed, %d popped", what,
          atomic_load(&fake->pushed), atomic_load(&fake->popped));
}

static void contexts(void)
{
    struct fake_driver *fake = fake_state();
    struct device_call u;
    begin(&u, 1, lengths);
    run_in(&u, NULL, 1, "no context");
    run_in(&u, fake->context_of(1, 0), 0, "the primary context");
    run_in(&u, fake->context_of(1, 1), 0, "another context of the device");
    run_in(&u, fake->context_of(0, 0), 1, "a context of another device");
    CHECK_INT(atomic_load(&fake->retained[1]), 1);
    CHECK_INT(atomic_load(&fake->wrong_context), 0);
    call_end(&u);
}

/* Without options.device, a plan is the current context's device's. */
static void current_device(void)
{
    const agi_cuda_driver *cu = fake_functions();
    ag_plan *plan = NULL;
    CUcontext popped;
    for (int device = 0; device < FAKE_DEVICES; device++) {
        char text[16];
        cu->CtxPushCurrent(fake_state()->context_of(device, 0));
        CHECK_OK(make_cuda_plan(&plan, "q8 d16 f32", 0));
        snprintf(text, sizeof text, "device %d", device);
        CHECK(strstr(ag_plan_describe(plan), text) != NULL, "it runs on '%s'", ag_plan_describe(plan));
        ag_plan_destroy(plan);
        cu->CtxPopCurrent(&popped);
    }
    CHECK_OK(make_cuda_plan(&plan, "q8 d16 f32", 0));
    CHECK(strstr(ag_plan_describe(plan), "device 0") != NULL, "it runs on '%s'", ag_plan_describe(plan));
    ag_plan_destroy(plan);
}

static void streams(void)
{
    struct device_call u;
    begin(&u, 0, lengths);
    CUstream const given[] = {NULL, (CUstream)(uintptr_t)2, (CUstream)(void *)&u};
    for (int n = 0; n < 3; n++) {
        CHECK_OK(call_forward(&u, given[n]));
        CHECK(atomic_load(&fake_state()->last_stream) == given[n], "launched on another stream");
    }
    call_end(&u);
}

/* ---- Failures of the driver ---- */

static void failed_launch(void)
{
    struct fake_driver *fake = fake_state();
    struct device_call u;
    begin(&u, 0, lengths);
    fake_fails("cuLaunchKernelEx", FAKE_LAUNCH_FAILED);
    CHECK_STATUS(call_forward(&u, NULL), AG_DEVICE);
    message_has("", "CUDA_ERROR_LAUNCH_FAILED (the fake driver's words)");
    fake_fails("cuLaunchKernelEx", AGI_CU_OUT_OF_MEMORY);
    CHECK_STATUS(call_forward(&u, NULL), AG_NO_MEMORY);
    fake_fails("cuLaunchKernelEx", 4711);
    CHECK_STATUS(call_forward(&u, NULL), AG_DEVICE);
    message_has("", "error 4711");
    fake_fails(NULL, 0);
    CHECK_OK(call_forward(&u, NULL));
    CHECK_INT(atomic_load(&fake->pushed), atomic_load(&fake->popped));
    call_end(&u);
}

/* After a fault every call on the context fails: ours say so, each time, and plans can still be destroyed. */
static void lost_device(void)
{
    struct fake_driver *fake = fake_state();
    ag_plan *with_tables = NULL, *later = NULL;
    struct device_call u;
    begin(&u, 0, lengths);
    CHECK_OK(make_cuda_plan(&with_tables, "b3 q8 d16 f32 table=2,3", 1));
    atomic_store(&fake->lost, FAKE_ILLEGAL_ADDRESS);
    for (int n = 0; n < 3; n++) {
        CHECK_STATUS(call_forward(&u, NULL), AG_DEVICE);
        message_has("", "CUDA_ERROR_ILLEGAL_ADDRESS");
    }
    CHECK_STATUS(make_cuda_plan(&later, "b3 q8 d16 f32 table=2,3", 1), AG_DEVICE);
    CHECK(later == NULL, "a plan on a lost device");
    ag_plan_destroy(with_tables);
    atomic_store(&fake->lost, 0);
    CHECK_INT(atomic_load(&fake->pushed), atomic_load(&fake->popped));
    atomic_store(&fake->allocations, 0); /* the lost device's memory is gone with it */
    call_end(&u);
}

static void no_context(void)
{
    ag_plan *plan = NULL;
    fake_fails("cuDevicePrimaryCtxRetain", AGI_CU_OUT_OF_MEMORY);
    CHECK_STATUS(make_cuda_plan(&plan, "q8 d16 f32 alibi", 1), AG_NO_MEMORY);
    message_has("", "context: CUDA_ERROR_OUT_OF_MEMORY");
    fake_fails(NULL, 0);
}

static void bad_images(void)
{
    ag_plan *plan = NULL;
    fake_fails("cuLibraryLoadData", FAKE_INVALID_IMAGE);
    CHECK_STATUS(make_cuda_plan(&plan, "q8 d16 f32", 1), AG_DEVICE);
    message_has("", "CUDA_ERROR_INVALID_IMAGE");
    fake_fails(NULL, 0);
    CHECK_INT(atomic_load(&fake_state()->images), 0);
}

/* ---- Capture ---- */

/* The graph keeps the values of the call, and replays them. */
static void capture(void)
{
    struct fake_driver *fake = fake_state();
    CUstream stream = (CUstream)(void *)fake;
    ag_plan *with_tables = NULL;
    int64_t list[BATCH];
    struct device_call u;
    memcpy(list, lengths, sizeof list);
    begin(&u, 0, list);
    fake->begin_capture(stream);
    CHECK_OK(call_forward(&u, stream));
    CHECK_STATUS(make_cuda_plan(&with_tables, "q8 d16 f32 alibi", 1), AG_DEVICE);
    message_has("", "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED");
    fake->end_capture();
    CHECK(call_lists(&u)[0] == 0, "a captured launch ran");
    memset(list, 0xff, sizeof list);
    for (int n = 0; n < 2; n++) {
        memset(call_lists(&u), 0, sizeof list);
        fake->replay();
        CHECK(memcmp(call_lists(&u), lengths, sizeof lengths) == 0, "a replay has other lengths");
    }
    call_end(&u);
}

/* ---- Threads ---- */

enum { THREADS = 8, IMAGES = 5 /* four families in float32, and common */, ROUNDS = 50 };

static void *run_many(void *arg)
{
    const int64_t thread = *(const int64_t *)arg;
    for (int64_t n = 0; n < ROUNDS; n++) {
        const int64_t list[BATCH] = {thread, n % 8, (thread + n) % 8};
        struct device_call u;
        call_begin(&u, "b3 q8 d16 f32 alibi", (CUdevice)(thread + n) % FAKE_DEVICES);
        u.a.q_lengths = list;
        CHECK_OK(call_forward(&u, NULL));
        CHECK(memcmp(call_lists(&u), list, sizeof list) == 0, "thread %d: another list", (int)thread);
        call_end(&u);
    }
    return NULL;
}

static void threads(void)
{
    struct fake_driver *fake = fake_state();
    pthread_t running[THREADS];
    int64_t numbers[THREADS];
    for (int n = 0; n < THREADS; n++) {
        numbers[n] = n;
        test_need(pthread_create(&running[n], NULL, run_many, &numbers[n]) == 0, "no thread");
    }
    for (int n = 0; n < THREADS; n++) {
        pthread_join(running[n], NULL);
    }
    CHECK_INT(atomic_load(&fake->pushed), atomic_load(&fake->popped));
    CHECK_INT(atomic_load(&fake->wrong_context), 0);
    CHECK_INT(atomic_load(&fake->images), IMAGES);
    CHECK_INT(atomic_load(&fake->retained[0]), 1);
    CHECK_INT(atomic_load(&fake->retained[1]), 1);
    CHECK_INT(atomic_load(&fake->allocations), 0);
}

/* A GPU that does not fit into the list is counted, not cut. */
static void list_without_room(void)
{
    char text[50];
    agi_cuda_list_devices(text, sizeof text);
    CHECK(strcmp(text, "0: Fake GPU 0, sm90, 1 GiB; and 1 more") == 0, "devices is '%s'", text);
}

int main(void)
{
    opened_on_request_only();
    list_without_room();
    bad_images();
    no_context();
    contexts();
    current_device();
    streams();
    failed_launch();
    lost_device();
    capture();
    threads();
    return test_summary();
}
