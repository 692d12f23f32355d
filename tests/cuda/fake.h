/* What the tests on the fake driver share: its state, and small plans and calls. */
#ifndef AG_TEST_FAKE_H
#define AG_TEST_FAKE_H

#include "fake_driver.h"
#include "test.h"

#include <dlfcn.h>

/* The fake driver's state; NULL if nobody has opened the driver yet. */
static inline struct fake_driver *fake_if_open(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOLOAD | RTLD_NOW);
    return library == NULL ? NULL : dlsym(library, FAKE_DRIVER_SYMBOL);
}

/* The same after it was opened. */
static inline struct fake_driver *fake_state(void)
{
    const agi_cuda_driver *cu;
    test_need(agi_cuda_open(&cu) == AG_OK, ag_last_message());
    struct fake_driver *fake = fake_if_open();
    test_need(fake != NULL, "this is not the fake driver: LD_LIBRARY_PATH");
    return fake;
}

static inline const agi_cuda_driver *fake_functions(void)
{
    const agi_cuda_driver *cu = NULL;
    test_need(agi_cuda_open(&cu) == AG_OK, ag_last_message());
    return cu;
}

/* From now on the function fails; NULL: none does. */
static inline void fake_fails(const char *symbol, CUresult result)
{
    struct fake_driver *fake = fake_state();
    atomic_store(&fake->result, result);
    atomic_store(&fake->fails, symbol);
}

/* A plan for CUDA, or NULL. device: as in ag_options. */
static inline ag_status make_cuda_plan(ag_plan **plan, const char *text, int32_t device)
{
    ag_problem p = AG_PROBLEM_INIT;
    ag_options options = AG_OPTIONS_INIT;
    static const int32_t buckets[] = {0, 1, 1, 2, 0};
    options.backend = AG_BACKEND_CUDA;
    options.device = device;
    CHECK_OK(ag_problem_parse(text, &p));
    p.buckets = p.flags & AG_TABLE && p.table_buckets == 3 ? buckets : NULL;
    return ag_plan_create(plan, &p, &options);
}

static inline void message_has(const char *field, const char *text)
{
    CHECK(strcmp(ag_last_field(), field) == 0, "the field is '%s' instead of '%s'", ag_last_field(), field);
    CHECK(strstr(ag_last_message(), text) != NULL, "'%s' does not say '%s'", ag_last_message(), text);
}

/* ---- Calls ---- */

enum { CALL_BYTES = 1 << 16 };

/* A call of forward or merge with all its memory on one device. */
struct device_call {
    ag_plan *plan;
    CUdevice device;
    ag_args a;
    ag_merge_args m;
    void *workspace;
    size_t bytes;
    CUdeviceptr blocks[16];
    int n;
};

static inline void *device_memory(struct device_call *x, CUdevice device, size_t bytes)
{
    x->blocks[x->n] = fake_state()->allocate(device, bytes);
    return (void *)(uintptr_t)x->blocks[x->n++];
}

/* device: its number. Problems of one head, up to 8 queries and keys, 16 channels. */
static inline void call_begin(struct device_call *x, const char *text, CUdevice device)
{
    memset(x, 0, sizeof *x);
    x->device = device;
    test_need(make_cuda_plan(&x->plan, text, device + 1) == AG_OK, ag_last_message());
    x->a.struct_size = sizeof x->a;
    const size_t bytes = CALL_BYTES + (size_t)ag_plan_problem(x->plan)->batch * 8 * 16 * sizeof(double);
    ag_tensor *const tensors[] = {&x->a.q, &x->a.k, &x->a.v, &x->a.o};
    for (int n = 0; n < 4; n++) {
        *tensors[n] = ag_bhnd(device_memory(x, device, bytes), 1, 8, 16);
    }
    x->a.lse = ag_bhnd(device_memory(x, device, bytes), 1, 8, 1);
    if (ag_plan_problem(x->plan)->flags & AG_MASK) {
        x->a.mask = (ag_tensor){device_memory(x, device, bytes), {0, 0, 0, 1}};
    }
    x->m =
        (ag_merge_args){.struct_size = sizeof x->m, .o1 = x->a.q, .o2 = x->a.k, .o = x->a.o, .lse = x->a.lse};
    x->m.lse1 = ag_bhnd(device_memory(x, device, bytes), 1, 8, 1);
    x->m.lse2 = ag_bhnd(device_memory(x, device, bytes), 1, 8, 1);
    CHECK_OK(ag_plan_workspace(x->plan, AG_MAP_FORWARD, &x->bytes));
    x->workspace = device_memory(x, device, x->bytes);
}

static inline ag_status call_forward(const struct device_call *x, void *stream)
{
    ag_exec exec = AG_EXEC_INIT;
    exec.stream = stream;
    return ag_forward(x->plan, &x->a, &exec, x->workspace, x->bytes);
}

/* Where forward copies the lists that are in host memory. */
static inline int64_t *call_lists(const struct device_call *x)
{
    return (int64_t *)(((uintptr_t)x->workspace + 63) / 64 * 64);
}

static inline void call_end(struct device_call *x)
{
    for (int n = 0; n < x->n; n++) {
        fake_state()->release(x->blocks[n]);
    }
    ag_plan_destroy(x->plan);
}

#endif
