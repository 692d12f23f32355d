/* Copies of host arrays on the device, on the fake driver: every element of every tensor arrives there, and the outputs
 * come back, alone; views that share memory, failures, and a whole check. */
#include "fake.h"

#include "check/stage.h"

#include <attngrad_check.h>

static void make(struct arrays *x, const char *text, int32_t device)
{
    ag_problem p = AG_PROBLEM_INIT;
    ag_options options = AG_OPTIONS_INIT;
    options.backend = AG_BACKEND_CUDA;
    options.device = device;
    CHECK_OK(ag_problem_parse(text, &p));
    test_need(agc_arrays_create(x, &p, &options, 5) == AG_OK, ag_check_last_message());
    CHECK_OK(agc_arrays_add_low_halves(x));
    CHECK_OK(agc_arrays_add_second_direction(x));
}

static ag_tensor *tensor_of(ag_args *args, enum tensor t)
{
    return (ag_tensor *)(void *)((char *)args + agc_tensor_info[t].offset);
}

static CUdevice owner(const void *pointer)
{
    CUpointer_attribute attribute = AGI_CU_POINTER_DEVICE;
    int device = -2;
    void *values[] = {&device};
    fake_functions()->PointerGetAttributes(1, &attribute, values, (CUdeviceptr)(uintptr_t)pointer);
    return device;
}

/* Each tensor is on the device with its contents; there all of them get others, and only those of outputs come back. */
static void one_map(struct arrays *x, uint32_t map, CUdevice device)
{
    struct agc_stage stage;
    ag_args there = x->args;
    void *workspace = NULL;
    for (enum tensor t = 0; t < T_COUNT; t++) {
        memset(x->data[t], (int)t + 1, (size_t)x->count[t] * agc_element_size(x, t));
    }
    CHECK_OK(agc_stage_map(&stage, x->plan, map, &there, &workspace, x->workspace_bytes));
    CHECK_INT(owner(workspace), device);
    CHECK_INT(owner((char *)workspace + x->workspace_bytes - 1), device);
    for (enum tensor t = 0; t < T_COUNT; t++) {
        const size_t bytes = (size_t)x->count[t] * agc_element_size(x, t);
        char *const copy = tensor_of(&there, t)->data;
        CHECK(owner(copy) == device && memcmp(copy, x->data[t], bytes) == 0, "%s is not there",
              agc_tensor_info[t].name);
        memset(copy, 77, bytes);
    }
    CHECK_OK(agc_stage_end(&stage, AG_OK));
    for (enum tensor t = 0; t < T_COUNT; t++) {
        const int written = (agc_tensor_info[t].writers & map) != 0, wanted = written ? 77 : (int)t + 1;
        const char *data = x->data[t];
        CHECK(data[0] == wanted && data[(size_t)x->count[t] * agc_element_size(x, t) - 1] == wanted,
              "%s is %d instead of %d", agc_tensor_info[t].name, data[0], wanted);
    }
}

static void maps(void)
{
    static const char *const texts[] = {
        "b2 h4 kv2 q5 k7 d6 dv3 bf16 bias mask table=2 sink",
        "b2 h4 q5 k7 d6 f16 grad=f32 aux=f32 bias=1hq1 mask=b11k table=1,shared sink "
        "packed=9,11"};
    for (int n = 0; n < 2; n++) {
        struct arrays x;
        make(&x, texts[n], n + 1);
        for (uint32_t map = AG_MAP_FORWARD; map <= AG_MAP_JVP_JVP; map *= 2) {
            one_map(&x, map, n);
        }
        agc_arrays_destroy(&x);
    }
    CHECK_INT(atomic_load(&fake_state()->allocations), 0);
}

/* Outputs that are interleaved in one array, and an input that runs backwards. */
static void shared_memory(void)
{
    struct arrays x;
    struct agc_stage stage;
    void *workspace = NULL;
    static float both[2 * 8 * 4];
    make(&x, "q8 d4 f32", 1);
    ag_args there = x.args;
    there.dq.data = both, there.dk.data = both + 4;
    there.dq.strides[2] = there.dk.strides[2] = 8;
    there.q.data = (float *)x.data[T_Q] + 7 * 4;
    there.q.strides[2] = -4;
    CHECK_OK(agc_stage_map(&stage, x.plan, AG_MAP_VJP, &there, &workspace, x.workspace_bytes));
    CHECK((char *)there.dk.data - (char *)there.dq.data == 4 * sizeof(float), "interleaved arrays are apart");
    CHECK(memcmp((float *)there.q.data - 7 * 4, x.data[T_Q], 8 * 4 * sizeof(float)) == 0, "q is not there");
    for (int i = 0; i < 8 * 4; i++) {
        ((float *)there.dq.data)[i / 4 * 8 + i % 4] = 1;
        ((float *)there.dk.data)[i / 4 * 8 + i % 4] = 2;
    }
    CHECK_OK(agc_stage_end(&stage, AG_OK));
    for (int i = 0; i < 2 * 8 * 4; i++) {
        CHECK(both[i] == (i / 4 % 2 == 0 ? 1 : 2), "element %d of both is %g", i, (double)both[i]);
    }
    agc_arrays_destroy(&x);
}

/* All from o1 to nu. */
static ag_tensor *merge_tensors(ag_merge_args *m)
{
    return (ag_tensor *)(void *)((char *)m + offsetof(ag_merge_args, o1));
}

static void merge(void)
{
    enum { N = 30 };
    struct agc_stage stage;
    struct arrays x;
    _Alignas(double) unsigned char host[N][8 * sizeof(double)];
    make(&x, "q8 d1 f64", 1);
    ag_merge_args m = {.struct_size = sizeof m};
    ag_tensor *const tensors = merge_tensors(&m);
    for (int n = 0; n < N; n++) {
        tensors[n] = ag_bhnd(host[n], 1, 8, 1);
        memset(host[n], n, sizeof host[n]);
    }
    CHECK(m.nu.data == host[N - 1], "another number of tensors");
    ag_merge_args there = m;
    CHECK_OK(agc_stage_merge(&stage, x.plan, &there));
    const ag_tensor *const outputs[] = {&m.o,      &m.lse, &m.to,  &m.mu,  &m.o_low,
                                        &m.to_low, &m.so,  &m.smu, &m.sto, &m.nu};
    for (int n = 0; n < N; n++) {
        void *const copy = merge_tensors(&there)[n].data;
        CHECK(copy != host[n] && memcmp(copy, host[n], sizeof host[n]) == 0, "tensor %d is not there", n);
        memset(copy, 99, sizeof host[n]);
    }
    CHECK_OK(agc_stage_end(&stage, AG_OK));
    for (int n = 0; n < N; n++) {
        int output = 0;
        for (size_t i = 0; i < sizeof outputs / sizeof outputs[0]; i++) {
            output |= outputs[i]->data == (void *)host[n];
        }
        CHECK_INT(host[n][0], output ? 99 : n);
        CHECK_INT(host[n][sizeof host[n] - 1], output ? 99 : n);
    }
    CHECK_STATUS(agc_run_merge(x.plan, &m),
                 AG_INVALID_ARGUMENT); /* low halves of float64, seen by the library */
    agc_arrays_destroy(&x);
}

static void failures(void)
{
    static const struct {
        const char *symbol;
        CUresult result;
        ag_status status;
    } cases[] = {{"cuMemAlloc_v2", AGI_CU_OUT_OF_MEMORY, AG_NO_MEMORY},
                 {"cuMemcpyHtoD_v2", FAKE_ILLEGAL_ADDRESS, AG_DEVICE},
                 {"cuMemcpyDtoH_v2", FAKE_ILLEGAL_ADDRESS, AG_DEVICE}};
    struct arrays x;
    make(&x, "q8 d4 f32", 1);
    for (int n = 0; n < 3; n++) {
        struct agc_stage stage;
        ag_args there = x.args;
        void *workspace = NULL;
        fake_fails(cases[n].symbol, cases[n].result);
        const ag_status status =
            agc_stage_map(&stage, x.plan, AG_MAP_FORWARD, &there, &workspace, x.workspace_bytes);
        CHECK_STATUS(agc_stage_end(&stage, status), cases[n].status);
        CHECK(strstr(ag_check_last_message(), "the CUDA driver failed to") != NULL, "it says '%s'",
              ag_check_last_message());
        CHECK_INT(atomic_load(&fake_state()->allocations), 0);
    }
    fake_fails(NULL, 0);
    agc_arrays_destroy(&x);
}

/* A whole check: the fake driver computes nothing, so checks fail, and nothing is left on the device. */
static void whole_check(void)
{
    static ag_check_report report;
    ag_check_case c = {.problem = AG_PROBLEM_INIT, .seed = 1};
    ag_options plan = AG_OPTIONS_INIT;
    const ag_check_options options = {.plan = &plan};
    plan.backend = AG_BACKEND_CUDA;
    plan.device = 2;
    CHECK_OK(ag_problem_parse("b2 h2 q8 d4 f32 alibi", &c.problem));
    CHECK_OK(ag_check_problem(&c, &options, &report));
    CHECK(report.count > 10 && ag_check_failures(&report) > 0, "%d checks, %d failures", (int)report.count,
          (int)ag_check_failures(&report));
    CHECK_INT(atomic_load(&fake_state()->allocations), 0);
}

int main(void)
{
    maps();
    shared_memory();
    merge();
    failures();
    whole_check();
    return test_summary();
}
