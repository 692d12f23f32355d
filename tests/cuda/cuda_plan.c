/* Plans and calls of the CUDA backend through the public interface, on the fake driver: devices, tables of kernels,
 * memory of the wrong place, what a device refuses; and that a map without kernels says so. */
#define _POSIX_C_SOURCE 200809L
#include "fake.h"

#include <attngrad_nn.h>

enum { BATCH = 2 };

/* ---- Plans ---- */

static void devices(void)
{
    ag_plan *plan = NULL;
    CHECK_OK(make_cuda_plan(&plan, "q8 d16 f32", 2));
    CHECK(strcmp(ag_plan_describe(plan), "cuda, sm80, float32 inside, device 1, Fake GPU 1, deterministic") ==
              0,
          "it runs on '%s'", ag_plan_describe(plan));
    ag_plan_info info = {.struct_size = sizeof info};
    CHECK_OK(ag_plan_info_get(plan, &info));
    CHECK(info.backend == AG_BACKEND_CUDA && info.isa == AG_ISA_SM80 && info.threads == 0, "other facts");
    ag_plan_destroy(plan);
    CHECK_STATUS(make_cuda_plan(&plan, "q8 d16 f32", 3), AG_UNSUPPORTED);
    message_has("options.device", "there are 2");
}

static void old_card(void)
{
    struct fake_driver *fake = fake_state();
    ag_plan *plan = NULL;
    atomic_store(&fake->capability[1], 75);
    CHECK_STATUS(make_cuda_plan(&plan, "q8 d16 f32", 2), AG_UNSUPPORTED);
    message_has("options.device",
                "device 1, Fake GPU 1, has compute capability 7.5: too old for the kernels");
    CHECK_OK(make_cuda_plan(&plan, "q8 d16 f32", 1));
    ag_plan_destroy(plan);
    atomic_store(&fake->capability[1], 90);
}

/* A card for which the library has neither code nor PTX; the message has what it was compiled for. */
static void card_without_code(void)
{
    struct fake_driver *fake = fake_state();
    ag_plan *plan = NULL;
    char lowest[32];
    if (AGI_CUDA_LOWEST <= 80) {
        printf("a card without code: not run, the kernels are compiled for every card here\n");
        return;
    }
    snprintf(lowest, sizeof lowest, "compute_%d alone", AGI_CUDA_LOWEST);
    atomic_store(&fake->capability[1], 80);
    CHECK_STATUS(make_cuda_plan(&plan, "q8 d16 f32", 2), AG_UNSUPPORTED);
    message_has("options.device",
                "Fake GPU 1, has compute capability 8.0: this library was compiled for sm_");
    message_has("options.device", lowest);
    setenv("ATTNGRAD_ISA", "sm80", 1);
    CHECK_STATUS(make_cuda_plan(&plan, "q8 d16 f32", 2), AG_UNSUPPORTED);
    message_has("options.isa", lowest);
    unsetenv("ATTNGRAD_ISA");
    atomic_store(&fake->capability[1], 90);
}

/* Later cards run the portable kernels, by PTX if need be, but not those of sm90. */
static void newer_card(void)
{
    struct fake_driver *fake = fake_state();
    ag_plan *plan = NULL;
    atomic_store(&fake->capability[1], 120);
    CHECK_OK(make_cuda_plan(&plan, "q8 d16 f32", 2));
    CHECK(strstr(ag_plan_describe(plan), "cuda, sm80, ") != NULL &&
              strstr(ag_plan_describe(plan), "Fake GPU 1, kernels of 99 KB, det") != NULL,
          "it runs on '%s'", ag_plan_describe(plan));
    ag_plan_destroy(plan);
    if (AGI_CUDA_HAS_HOPPER) {
        setenv("ATTNGRAD_ISA", "sm90", 1);
        CHECK_STATUS(make_cuda_plan(&plan, "q8 d16 f32", 2), AG_UNSUPPORTED);
        message_has("options.isa", "compute capability 12.0: the kernels of sm90 run on 9.0 alone");
        unsetenv("ATTNGRAD_ISA");
    }
    atomic_store(&fake->capability[1], 90);
}

/* Sizes that 32 bits do not count. */
static void sizes(void)
{
    static const struct {
        const char *problem, *field, *text;
    } large[] = {
        {"h2147483648 q1 d16 bf16", "heads", "heads is 2147483648: cuda has at most 2147483647"},
        {"q268434945 k1 d16 bf16", "q_len", "q_len is 268434945: cuda has at most 268434944"},
        {"q1 k268434945 d16 bf16", "kv_len", "kv_len is 268434945"},
        {"q1 k1 packed=268434945,1 d16 bf16", "q_total", "q_total is 268434945"},
        {"q1 k1 packed=1,268434945 d16 bf16", "kv_total", "kv_total is 268434945"},
    };
    ag_plan *plan = NULL;
    for (size_t n = 0; n < sizeof large / sizeof large[0]; n++) {
        CHECK_STATUS(make_cuda_plan(&plan, large[n].problem, 1), AG_UNSUPPORTED);
        message_has(large[n].field, large[n].text);
    }
    CHECK_OK(make_cuda_plan(&plan, "q268434944 k268434944 d16 bf16", 1));
    ag_plan_destroy(plan);
    CHECK_OK(make_cuda_plan(&plan, "h2147483647 q1 k1 d16 bf16", 1));
    ag_plan_destroy(plan);
    if (AGI_CUDA_HAS_HOPPER) {
        atomic_store(&fake_state()->processors, 64);
        CHECK_STATUS(make_cuda_plan(&plan, "b9 q268434944 k1 d16 bf16", 1), AG_UNSUPPORTED);
        message_has("batch", "batch is 9: copies of its sequences have up to 2415915072 rows");
        CHECK_OK(make_cuda_plan(&plan, "b8 q268434944 k1 d16 bf16", 1));
        ag_plan_destroy(plan);
        atomic_store(&fake_state()->processors, 8);
    }
}

/* CUDA is taken only if it is named, also if an instruction set is. */
static void on_request_only(void)
{
    ag_plan *plan = NULL;
    ag_problem p = AG_PROBLEM_INIT;
    ag_options options = AG_OPTIONS_INIT;
    ag_plan_info info = {.struct_size = sizeof info};
    CHECK_OK(ag_problem_parse("q8 d16 f32", &p));
    options.isa = AG_ISA_SM80;
    CHECK_STATUS(ag_plan_create(&plan, &p, &options), AG_UNSUPPORTED);
    message_has("options.isa", "isa sm80 is the cuda backend's");
    options.backend = AG_BACKEND_CUDA;
    CHECK_OK(ag_plan_create(&plan, &p, &options));
    ag_plan_destroy(plan);
    setenv("ATTNGRAD_BACKEND", "cuda", 1);
    setenv("ATTNGRAD_ISA", "sm80", 1);
    CHECK_OK(ag_plan_create(&plan, &p, NULL));
    CHECK_OK(ag_plan_info_get(plan, &info));
    CHECK_INT(info.backend, AG_BACKEND_CUDA);
    ag_plan_destroy(plan);
    unsetenv("ATTNGRAD_BACKEND");
    unsetenv("ATTNGRAD_ISA");
}

/* ---- The table sm90 ---- */

static bool has_launched(const char *kernel)
{
    const struct fake_driver *fake = fake_state();
    bool found = false;
    for (int n = 0; n < FAKE_NAMES; n++) {
        found |= strcmp(fake->names[n], kernel) == 0;
    }
    return found;
}

static void forward_by(const char *problem, const char *kernel, const char *description)
{
    struct device_call x;
    call_begin(&x, problem, 0);
    memset(fake_state()->names, 0, sizeof fake_state()->names);
    CHECK_OK(call_forward(&x, NULL));
    CHECK(has_launched(kernel), "forward of '%s' is not %s", problem, kernel);
    CHECK(strstr(ag_plan_describe(x.plan), description) != NULL, "it runs on '%s'", ag_plan_describe(x.plan));
    call_end(&x);
}

static void described_as(const char *problem, const char *description)
{
    ag_plan *plan = NULL;
    CHECK_OK(make_cuda_plan(&plan, problem, 1));
    CHECK(strstr(ag_plan_describe(plan), description) != NULL, "it runs on '%s'", ag_plan_describe(plan));
    ag_plan_destroy(plan);
}

/* The kernels that vjp launches, with spaces between them. flags: of the plan; dq_alone: nothing else is wanted. */
static void vjp_by(const char *problem, uint32_t flags, bool dq_alone, const char *kernels)
{
    struct fake_driver *fake = fake_state();
    struct device_call x;
    char launched[16 * FAKE_NAMES] = "";
    call_begin(&x, problem, 0);
    const ag_problem p = *ag_plan_problem(x.plan);
    const ag_options options = {
        .struct_size = sizeof options, .flags = flags, .backend = AG_BACKEND_CUDA, .device = 1};
    ag_plan_destroy(x.plan);
    CHECK_OK(ag_plan_create(&x.plan, &p, &options));
    ag_tensor *const tensors[] = {&x.a.d_o, &x.a.dq, &x.a.dk, &x.a.dv, &x.a.bias, &x.a.dbias};
    const int count = dq_alone ? 2 : p.flags & AG_BIAS ? 6 : 4;
    for (int n = 0; n < count; n++) {
        *tensors[n] = ag_bhnd(device_memory(&x, 0, 2 * CALL_BYTES), 1, n < 4 ? 8 : p.q_len,
                              n < 4 ? p.dim_qk : p.kv_len);
    }
    CHECK_OK(ag_plan_workspace(x.plan, AG_MAP_VJP, &x.bytes));
    x.workspace = device_memory(&x, 0, x.bytes);
    const int first = atomic_load(&fake->launches);
    CHECK_OK(ag_vjp(x.plan, &x.a, NULL, x.workspace, x.bytes));
    for (int n = first; n < atomic_load(&fake->launches); n++) {
        const size_t length = strlen(launched);
        snprintf(launched + length, sizeof launched - length, "%s%s", length > 0 ? " " : "",
                 fake->names[n % FAKE_NAMES]);
    }
    CHECK(strcmp(launched, kernels) == 0, "vjp of '%s' launches %s", problem, launched);
    call_end(&x);
}

/* With a mask vjp is in one kernel too, but for calls that want dQ alone and with AG_INVARIANT. */
static void vjp_with_masks(void)
{
    vjp_by("q65 k65 d16 bf16 mask", 0, false,
           "hopper_classes hopper_live hopper_statistics_bf16_d64 hopper_visits_bf16_d64 "
           "hopper_ring_bf16_d64_mask");
    vjp_by("q65 k65 d80 f16 mask causal", 0, false,
           "hopper_classes hopper_live hopper_statistics_f16_d128 hopper_visits_f16_d128 "
           "hopper_ring_f16_d128_mask");
    vjp_by("q65 k65 d16 bf16 bias mask", 0, false,
           "hopper_classes hopper_live hopper_statistics_bf16_d64 hopper_visits_bf16_d64 "
           "hopper_ring_bf16_d64_bias_mask hopper_dbias_bf16_d64_bias_mask");
    vjp_by("q65 k65 d16 bf16 bias", 0, false,
           "hopper_live hopper_statistics_bf16_d64 hopper_ring_bf16_d64_bias hopper_dbias_bf16_d64_bias");
    vjp_by("q65 k65 d16 bf16 mask", 0, true,
           "statistics_f32 hopper_classes hopper_live hopper_dq_bf16_d64_mask");
    vjp_by("q65 k65 d16 bf16 mask", AG_INVARIANT, false,
           "statistics_f32 hopper_classes hopper_live hopper_dkdv_bf16_d64_mask hopper_dq_bf16_d64_mask");
}

/* vjp_jvp, with tangents and gradients of bias and table if the problem has them, launches the kernel, or does not.
 * With all gradients, or with tdQ alone. */
static void second_of(const char *problem, bool all, const char *kernel, bool launches)
{
    struct device_call x;
    call_begin(&x, problem, 0);
    const uint32_t flags = ag_plan_problem(x.plan)->flags;
    const ag_tensor pairs = {x.a.q.data, {65 * 65, 65 * 65, 65, 1}};
    ag_tensor *const results[] = {&x.a.tdq, &x.a.tdk, &x.a.tdv};
    for (int n = 0; n < (all ? 3 : 1); n++) {
        *results[n] = ag_bhnd(device_memory(&x, 0, CALL_BYTES), 1, 8, 16);
    }
    x.a.d_o = x.a.to = x.a.o;
    x.a.mu = x.a.lse;
    if (flags & AG_BIAS) {
        x.a.bias = x.a.tbias = x.a.tdbias = pairs;
        x.a.tdbias.data = device_memory(&x, 0, CALL_BYTES);
    }
    if (flags & AG_TABLE) {
        x.a.table = x.a.ttable = x.a.tdtable = pairs;
        x.a.tdtable.data = device_memory(&x, 0, CALL_BYTES);
    }
    CHECK_OK(ag_plan_workspace(x.plan, AG_MAP_VJP_JVP, &x.bytes));
    x.workspace = device_memory(&x, 0, x.bytes);
    memset(fake_state()->names, 0, sizeof fake_state()->names);
    CHECK_OK(ag_vjp_jvp(x.plan, &x.a, NULL, x.workspace, x.bytes));
    CHECK(has_launched(kernel) == launches, "vjp_jvp of '%s': %s", problem, kernel);
    call_end(&x);
}

static void second_by(const char *problem, const char *kernel, bool launches)
{
    second_of(problem, true, kernel, launches);
}

static void second_order_of_hopper(void)
{
    second_by("q65 k65 d16 bf16", "hopper_second_ring_bf16_d64", true);
    second_by("q65 k65 d16 bf16 softcap=5", "hopper_second_ring_bf16_d64_softcap", true);
    second_by("q65 k65 d16 f16 table=3", "hopper_second_ring_f16_d64_relative", true);
    second_by("q65 k65 d16 f16 table=3", "hopper_relative", true);
    second_by("q65 k65 d16 f16 table=3", "tdtable_f16", true);
    second_by("q65 k65 d16 bf16 dropout=0.1", "hopper_second_ring_bf16_d64_dropout", true);
    second_by("q65 k65 d16 bf16 dropout=0.1", "statistics_f32", false);
    second_by("q65 k65 d16 f16 bias", "hopper_second_ring_f16_d64_bias", true);
    second_by("q65 k65 d16 f16 bias", "hopper_live", true);
    second_by("q65 k65 d16 f16 bias", "statistics_f32", true); /* for tdbias */
    second_by("q65 k65 d16 f16 bias", "tdbias_f16", true);
    second_by("q65 k65 d16 bf16 bias dropout=0.1", "hopper_second_ring_bf16_d64_dropout_bias", true);
    second_by("q65 k65 d16 bf16 mask", "hopper_second_ring_bf16_d64_mask", true);
    second_by("q65 k65 d16 bf16 mask", "hopper_classes", true);
    second_by("q65 k65 d16 bf16 mask", "hopper_live", true);
    second_by("q65 k65 d16 bf16 mask", "hopper_second_visits_bf16_d64", true);
    second_by("q65 k65 d16 bf16 mask", "hopper_visits_bf16_d64", false);
    second_by("q65 k65 d16 f16 bias", "hopper_second_visits_f16_d64", false);
    second_by("q65 k65 d16 f16 bias mask causal", "hopper_second_ring_f16_d64_bias_mask", true);
    second_by("q65 k65 d16 f16 bias mask causal", "hopper_second_visits_f16_d64", true);
    second_of("q65 k65 d16 bf16 mask", false, "tdq_bf16_d32_full", true);
    second_of("q65 k65 d16 bf16 mask", false, "hopper_classes", false);
    second_of("q65 k65 d16 bf16 softcap=5", false, "tdq_bf16_d32_full", true);
    second_of("q65 k65 d16 bf16 softcap=5", false, "hopper_second_ring_bf16_d64_softcap", false);
}

static size_t workspace_of(const char *isa, uint32_t map)
{
    ag_plan *plan = NULL;
    size_t bytes = 0;
    setenv("ATTNGRAD_ISA", isa, 1);
    CHECK_OK(make_cuda_plan(&plan, "q65 k65 d16 bf16 mask", 1));
    CHECK_OK(ag_plan_workspace(plan, map, &bytes));
    ag_plan_destroy(plan);
    return bytes;
}

/* With a mask every map of sm90 has notes of it, for which a plan of sm80 has no room. */
static void workspace_of_tables(void)
{
    static const uint32_t maps[] = {AG_MAP_FORWARD, AG_MAP_VJP, AG_MAP_JVP, AG_MAP_VJP_JVP};
    for (int n = 0; n < 4; n++) {
        CHECK(workspace_of("sm80", maps[n]) < workspace_of("sm90", maps[n]), "workspace of map %d",
              (int)maps[n]);
    }
}

/* A plan takes the table sm90 on a device with at least 64 multiprocessors; on others it is refused if ATTNGRAD_ISA
 * names it. */
static void devices_of_hopper(void)
{
    ag_plan *plan = NULL;
    unsetenv("ATTNGRAD_ISA");
    atomic_store(&fake_state()->processors, 64);
    forward_by("q65 k65 d16 bf16", "hopper_forward_fine_bf16_d64", "cuda, sm90, ");
    atomic_store(&fake_state()->processors, 63);
    forward_by("q65 k65 d16 bf16", "forward_bf16_d32_plain", "cuda, sm80, ");
    setenv("ATTNGRAD_ISA", "sm90", 1);
    CHECK_STATUS(make_cuda_plan(&plan, "q65 d16 bf16", 1), AG_UNSUPPORTED);
    message_has("options.isa", "Fake GPU 0, has 63 multiprocessors: the kernels of sm90 need 64");
    atomic_store(&fake_state()->processors, 64);
    atomic_store(&fake_state()->capability[1], 80);
    CHECK_STATUS(make_cuda_plan(&plan, "q65 d16 bf16", 2), AG_UNSUPPORTED);
    message_has("options.isa", "compute capability 8.0");
    atomic_store(&fake_state()->capability[1], 90);
}

/* Without score features, by head size and dtype. */
static void plain_of_hopper(void)
{
    forward_by("q65 k65 d16 bf16", "hopper_forward_fine_bf16_d64",
               "cuda, sm90, float32 inside, device 0, Fake GPU 0, wgmma in forward, vjp, jvp and vjp_jvp, "
               "deterministic");
    forward_by("q65 k65 d16 f16 causal", "hopper_forward_fine_f16_d64", "wgmma in forward");
    forward_by("q65 k5000 d16 f16 causal", "hopper_forward_f16_d64", "wgmma in forward");
    forward_by("q65 k65 d16 f32", "hopper_forward_f32_d64", "Fake GPU 0, wgmma in forward, det");
    forward_by("q65 k65 d16 f32 softcap=5", "forward_f32_d32_full", "Fake GPU 0, det");
    described_as("q65 k65 d129 f16 causal", "Fake GPU 0, wgmma in forward and vjp, det");
    described_as("q65 k65 d129 f16 bias", "Fake GPU 0, det");
}

/* Each set of score features; what has no set runs on the portable kernels. */
static void features_of_hopper(void)
{
    forward_by("q65 k65 d16 bf16 softcap=5", "hopper_forward_bf16_d64_softcap",
               "Fake GPU 0, wgmma in forward, vjp, jvp and vjp_jvp with softcap, deterministic");
    forward_by("q65 k65 d16 f16 alibi", "hopper_forward_f16_d64_relative",
               "jvp and vjp_jvp with relative, det");
    forward_by("q65 k65 d16 f16 alibi", "hopper_relative", "jvp and vjp_jvp with relative, det");
    forward_by("q65 k65 d16 bf16 dropout=0.1", "hopper_forward_bf16_d64_dropout",
               "vjp, jvp and vjp_jvp with dropout, det");
    described_as("q65 k65 d100 f16 bias mask",
                 "wgmma in forward, vjp, jvp, vjp_jvp and dbias with bias_mask, det");
    described_as("q65 k65 d100 f16 bias=bh1k", "wgmma in forward, vjp, jvp and vjp_jvp with bias, det");
    described_as("q65 k65 d128 bf16 bias dropout=0.1",
                 "wgmma in forward, vjp, jvp, vjp_jvp and dbias with dropout_bias, det");
    forward_by("q65 k65 d16 bf16 softcap=5 alibi", "forward_bf16_d32_full",
               "cuda, sm90, float32 inside, device 0, Fake GPU 0, det");
    forward_by("q65 k65 d16 bf16 softcap=300", "forward_bf16_d32_full", "Fake GPU 0, det");
}

static void masks_of_hopper(void)
{
    forward_by("q65 k65 d16 bf16 mask", "hopper_classes", "vjp, jvp and vjp_jvp with mask, det");
    forward_by("q65 k65 d16 bf16 mask", "hopper_live", "vjp, jvp and vjp_jvp with mask, det");
    described_as("q65 k65 d128 bf16 mask", "wgmma in forward, vjp, jvp and vjp_jvp with mask, det");
    described_as("q4194304 k4194304 d64 bf16 mask=111k", "wgmma in forward, vjp and jvp with mask, det");
    /* whose lists would be larger than such a packed batch, but its kernels are those of the padded one */
    described_as("b64 h1 q32768 k32768 d64 bf16 mask=11qk packed=40000,40000", "vjp_jvp with mask, det");
    described_as("b64 h1 q32768 k32768 d64 bf16 mask=11qk", "vjp_jvp with mask, det");
    vjp_with_masks();
    workspace_of_tables();
}

static void few_queries_of_hopper(void)
{
    forward_by("q8 k8 d16 bf16", "forward_short_bf16_d32", "Fake GPU 0, det");
    forward_by("q1 k600 d16 bf16", "decode_bf16_d32", "Fake GPU 0, det");
    forward_by("q4 k600 d16 bf16", "decode_bf16_d32", "Fake GPU 0, wgmma in vjp, jvp and vjp_jvp, det");
    forward_by("q4 k600 d16 bf16", "join_f32", "wgmma in vjp");
    forward_by("q17 k600 d16 bf16", "hopper_forward_fine_bf16_d64", "wgmma in forward");
    forward_by("q4 k600 d16 f32", "decode_f32_d32", "Fake GPU 0, det");
}

static void failed_tensor_map(void)
{
    struct device_call x;
    call_begin(&x, "q65 k65 d16 bf16", 0);
    fake_fails("cuTensorMapEncodeTiled", FAKE_INVALID_IMAGE);
    CHECK_STATUS(call_forward(&x, NULL), AG_DEVICE);
    message_has("", "a tensor map: CUDA_ERROR_INVALID_IMAGE");
    fake_fails(NULL, 0);
    call_end(&x);
}

/* Which kernels a plan takes, and what its description says of them. */
static void table_of_hopper(void)
{
    ag_plan *plan = NULL;
    forward_by("q65 k65 d16 bf16", "forward_bf16_d32_plain",
               "cuda, sm80, float32 inside, device 0, Fake GPU 0, det");
    setenv("ATTNGRAD_ISA", "sm90", 1);
    if (AGI_CUDA_HAS_HOPPER) {
        devices_of_hopper();
        plain_of_hopper();
        features_of_hopper();
        masks_of_hopper();
        second_order_of_hopper();
        few_queries_of_hopper();
        failed_tensor_map();
        atomic_store(&fake_state()->processors, 8);
    } else {
        CHECK_STATUS(make_cuda_plan(&plan, "q65 d16 bf16", 1), AG_UNSUPPORTED);
        message_has("ATTNGRAD_ISA", "not built into this library");
    }
    unsetenv("ATTNGRAD_ISA");
}

static int allocations_left; /* -1: no limit */

static void *limited_alloc(void *ctx, size_t size)
{
    (void)ctx;
    if (allocations_left == 0) {
        return NULL;
    }
    allocations_left -= allocations_left > 0;
    return malloc(size);
}

static void counted_release(void *ctx, void *memory)
{
    *(int *)ctx += 1;
    free(memory);
}

/* Each allocation on the host fails once, and each on the device: nothing is left behind. */
static void out_of_memory(void)
{
    struct fake_driver *fake = fake_state();
    static const double slopes[] = {1};
    ag_plan *plan = NULL;
    ag_problem p = AG_PROBLEM_INIT;
    ag_options options = AG_OPTIONS_INIT;
    int n = 0, released = 0;
    CHECK_OK(ag_problem_parse("q8 d16 f32 table=2 alibi=slopes", &p));
    p.alibi_slopes = slopes;
    options.backend = AG_BACKEND_CUDA;
    options.alloc_ctx = &released;
    options.alloc = limited_alloc;
    options.release = counted_release;
    for (ag_status status = AG_NO_MEMORY; status == AG_NO_MEMORY && n < 20; n++) {
        allocations_left = n;
        released = 0;
        status = ag_plan_create(&plan, &p, &options);
        CHECK(status == AG_OK || released == n, "%d allocations, %d releases", n, released);
    }
    CHECK(plan != NULL && n > 3, "%s", ag_last_message());
    ag_plan_destroy(plan);
    fake_fails("cuMemAlloc_v2", AGI_CU_OUT_OF_MEMORY);
    CHECK_STATUS(make_cuda_plan(&plan, "q8 d16 f32 table=2,3", 1), AG_NO_MEMORY);
    message_has("", "buckets: CUDA_ERROR_OUT_OF_MEMORY");
    fake_fails("cuMemcpyHtoD_v2", FAKE_LAUNCH_FAILED);
    CHECK_STATUS(make_cuda_plan(&plan, "q8 d16 f32 alibi", 1), AG_DEVICE);
    fake_fails("cuStreamSynchronize", FAKE_ILLEGAL_ADDRESS);
    CHECK_STATUS(make_cuda_plan(&plan, "q8 d16 f32 alibi", 1), AG_DEVICE);
    fake_fails(NULL, 0);
    CHECK_INT(atomic_load(&fake->allocations), 0);
    CHECK_INT(atomic_load(&fake->pushed), atomic_load(&fake->popped));
}

static void refused_options(void)
{
    ag_plan *plan = NULL;
    ag_problem p = AG_PROBLEM_INIT;
    ag_options options = AG_OPTIONS_INIT;
    ag_layer *layer = NULL;
    ag_layer_desc desc = {.struct_size = sizeof desc, .d_model = 16, .attention = &p};
    CHECK_OK(ag_problem_parse("h1 q8 d16 f32", &p));
    options.backend = AG_BACKEND_CUDA;
    CHECK_STATUS(ag_layer_create(&layer, &desc, &options), AG_UNSUPPORTED);
    message_has("options.backend", "the layer runs on the host");
    options.flags = AG_ROUND_INTERMEDIATES;
    CHECK_STATUS(ag_plan_create(&plan, &p, &options), AG_UNSUPPORTED);
    message_has("options.flags", "AG_ROUND_INTERMEDIATES");
}

/* ---- Calls ---- */

static void refuse_forward(const struct device_call *x, ag_status status, const char *field, const char *text)
{
    const int launches = atomic_load(&fake_state()->launches);
    CHECK_STATUS(ag_forward(x->plan, &x->a, NULL, x->workspace, x->bytes), status);
    message_has(field, text);
    CHECK_INT(atomic_load(&fake_state()->launches), launches);
}

/* Forward launches kernels, the last of them on the queries. */
static void accept_forward(const struct device_call *x)
{
    struct fake_driver *fake = fake_state();
    const int launches = atomic_load(&fake->launches);
    CHECK_OK(ag_forward(x->plan, &x->a, NULL, x->workspace, x->bytes));
    CHECK(atomic_load(&fake->launches) > launches, "forward launched nothing");
}

static void right_calls(const struct device_call *x)
{
    struct fake_driver *fake = fake_state();
    accept_forward(x);
    const char *name = fake->names[(atomic_load(&fake->launches) - 1) % FAKE_NAMES];
    CHECK(strcmp(name, "forward_short_f32_d32") == 0, "forward ends with %s", name);
    CHECK_OK(ag_merge(x->plan, &x->m, NULL));
    name = fake->names[(atomic_load(&fake->launches) - 1) % FAKE_NAMES];
    CHECK(strcmp(name, "merge") == 0, "merge ends with %s", name);
}

static void wrong_memory(struct device_call *x)
{
    const ag_args good = x->a;
    static double host[CALL_BYTES / sizeof(double)];
    ag_tensor *const tensors[] = {&x->a.q, &x->a.k, &x->a.v, &x->a.o, &x->a.lse};
    static const char *const names[] = {"q", "k", "v", "o", "lse"};
    void *other = device_memory(x, 1, CALL_BYTES), *const workspace = x->workspace;
    for (int n = 0; n < 5; n++) {
        tensors[n]->data = host;
        refuse_forward(x, AG_INVALID_ARGUMENT, names[n], "is host memory");
        tensors[n]->data = other;
        refuse_forward(x, AG_INVALID_ARGUMENT, names[n], "is memory of cuda device 1");
        x->a = good;
    }
    x->workspace = host;
    refuse_forward(x, AG_INVALID_ARGUMENT, "workspace", "is host memory");
    x->workspace = workspace;
    ag_merge_args m = x->m;
    m.lse2.data = host;
    CHECK_STATUS(ag_merge(x->plan, &m, NULL), AG_INVALID_ARGUMENT);
    message_has("lse2", "is host memory");
    fake_fails("cuPointerGetAttributes", FAKE_ILLEGAL_ADDRESS);
    refuse_forward(x, AG_DEVICE, "", "CUDA_ERROR_ILLEGAL_ADDRESS");
    fake_fails(NULL, 0);
}

/* A plan of the host on host memory, but for one pointer at a time: a driver that is open knows it. */
static void device_memory_for_the_host(struct device_call *x)
{
    static double memory[5][CALL_BYTES / sizeof(double)];
    static const int64_t lengths[BATCH] = {8, 8};
    ag_plan *const cuda_plan = x->plan;
    ag_tensor *const tensors[] = {&x->a.q, &x->a.k, &x->a.v, &x->a.o, &x->a.lse};
    static const char *const names[] = {"q", "k", "v", "o", "lse"};
    void *const there = x->a.q.data, *const workspace = x->workspace;
    const ag_args good = x->a;
    const ag_merge_args good_merge = x->m;
    ag_problem p = AG_PROBLEM_INIT;
    CHECK_OK(ag_problem_parse("b2 q8 d16 f32", &p));
    CHECK_OK(ag_plan_create(&x->plan, &p, NULL));
    for (int n = 0; n < 5; n++) {
        tensors[n]->data = memory[n];
    }
    CHECK_OK(ag_plan_workspace(x->plan, AG_MAP_FORWARD, &x->bytes));
    void *const here = test_alloc((int64_t)x->bytes, 1);
    x->workspace = here;
    CHECK_OK(ag_forward(x->plan, &x->a, NULL, x->workspace, x->bytes));
    for (int n = 0; n < 5; n++) {
        tensors[n]->data = there;
        refuse_forward(x, AG_INVALID_ARGUMENT, names[n], "is memory of a cuda device");
        tensors[n]->data = memory[n];
    }
    x->a.kv_lengths = there;
    refuse_forward(x, AG_INVALID_ARGUMENT, "kv_lengths", "is memory of a cuda device");
    x->a.kv_lengths = lengths;
    x->workspace = workspace;
    refuse_forward(x, AG_INVALID_ARGUMENT, "workspace", "is memory of a cuda device");
    CHECK_STATUS(ag_merge(x->plan, &x->m, NULL), AG_INVALID_ARGUMENT);
    message_has("o1", "is memory of a cuda device");
    x->workspace = here;
    fake_fails("cuPointerGetAttributes", FAKE_ILLEGAL_ADDRESS); /* a lost device does not concern the host */
    CHECK_OK(ag_forward(x->plan, &x->a, NULL, x->workspace, x->bytes));
    fake_fails(NULL, 0);
    ag_plan_destroy(x->plan);
    free(here);
    x->plan = cuda_plan;
    x->a = good;
    x->m = good_merge;
    x->workspace = workspace;
    CHECK_OK(ag_plan_workspace(x->plan, AG_MAP_FORWARD, &x->bytes));
    x->a.q_lengths = there; /* lists are read on the host, for every plan */
    refuse_forward(x, AG_INVALID_ARGUMENT, "q_lengths", "is memory of a cuda device");
    x->a = good;
}

static void wrong_exec(const struct device_call *x)
{
    static const struct {
        const char *field;
        ag_exec exec;
    } cases[] = {{"exec.run",
                  {.struct_size = sizeof(ag_exec), .run = (void (*)(void *, int64_t, ag_task, void *))abort}},
                 {"exec.poll", {.struct_size = sizeof(ag_exec), .poll = (int32_t(*)(void *))abort}}};
    ag_exec stream = AG_EXEC_INIT;
    for (int n = 0; n < 2; n++) {
        CHECK_STATUS(ag_forward(x->plan, &x->a, &cases[n].exec, x->workspace, x->bytes), AG_UNSUPPORTED);
        message_has(cases[n].field, "runs on a device");
        CHECK_STATUS(ag_merge(x->plan, &x->m, &cases[n].exec), AG_UNSUPPORTED);
        message_has(cases[n].field, "runs on a device");
    }
    stream.stream = &stream;
    CHECK_OK(ag_forward(x->plan, &x->a, &stream, x->workspace, x->bytes));
    CHECK(atomic_load(&fake_state()->last_stream) == (CUstream)(void *)&stream, "launched on another stream");
    ag_trace_args trace = {.struct_size = sizeof trace};
    CHECK_STATUS(ag_trace(x->plan, AG_MAP_FORWARD, &x->a, &trace, x->workspace, x->bytes), AG_UNSUPPORTED);
    message_has("plan", "the cuda backend has no trace");
}

/* ---- Lists on the device ---- */

static void device_lists(struct device_call *x)
{
    const ag_args good = x->a;
    int64_t host[BATCH + 1] = {0, 8, 16};
    int64_t *const there = device_memory(x, 0, CALL_BYTES);
    const struct {
        const char *name;
        const int64_t **device, **list;
    } lists[] = {{"q_lengths_device", &x->a.q_lengths_device, &x->a.q_lengths},
                 {"kv_lengths_device", &x->a.kv_lengths_device, &x->a.kv_lengths},
                 {"q_offsets_device", &x->a.q_offsets_device, &x->a.q_offsets},
                 {"k_offsets_device", &x->a.k_offsets_device, &x->a.k_offsets}};
    for (int n = 0; n < 4; n++) {
        *lists[n].device = there;
        accept_forward(x);
        *lists[n].list = host;
        refuse_forward(x, AG_INVALID_ARGUMENT, lists[n].name, "give one of them");
        x->a = good;
        *lists[n].device = host;
        refuse_forward(x, AG_INVALID_ARGUMENT, lists[n].name, "is host memory");
        *lists[n].device = (const int64_t *)(const void *)((const char *)there + 4);
        refuse_forward(x, AG_INVALID_ARGUMENT, lists[n].name, "not aligned");
        x->a = good;
    }
    x->a.q_offsets_device = there;
    x->a.q_offset = 3;
    refuse_forward(x, AG_INVALID_ARGUMENT, "q_offsets_device", "q_offset is 3");
    x->a = good;
    x->a.q_packed_device = there;
    refuse_forward(x, AG_INVALID_ARGUMENT, "q_packed_device", "not packed");
    x->a = good;
    x->a.seed_device = (const uint64_t *)there;
    accept_forward(x);
    x->a.seed = 5;
    refuse_forward(x, AG_INVALID_ARGUMENT, "seed_device", "give one of them");
    x->a = good;
}

static void packed_lists(void)
{
    struct device_call x;
    call_begin(&x, "b2 q8 d16 f32 packed=8,8", 0);
    const int64_t host[BATCH + 1] = {0, 3, 8};
    int64_t *const there = device_memory(&x, 0, CALL_BYTES);
    refuse_forward(&x, AG_INVALID_ARGUMENT, "q_packed", "is NULL");
    x.a.q_packed_device = there;
    refuse_forward(&x, AG_INVALID_ARGUMENT, "k_packed", "is NULL");
    x.a.k_packed = host;
    accept_forward(&x);
    x.a.q_lengths_device = there;
    refuse_forward(&x, AG_INVALID_ARGUMENT, "q_lengths_device", "have their lengths in the offsets");
    call_end(&x);
    call_begin(&x, "b2 q8 d16 f32 align=bottom-right", 0);
    x.a.k_offsets_device = there;
    refuse_forward(&x, AG_INVALID_ARGUMENT, "k_offsets_device", "bottom-right");
    call_end(&x);
}

/* The kernels of a GPU with less shared memory run if the environment says so. */
static void lowered_limit(void)
{
    static const char *const wrong[] = {"99", "101375", "232449", "101376x", "-1"};
    ag_plan *plan = NULL;
    for (size_t n = 0; n < sizeof wrong / sizeof wrong[0]; n++) {
        test_need(setenv("ATTNGRAD_CUDA_SHARED", wrong[n], 1) == 0, "setenv");
        CHECK_STATUS(make_cuda_plan(&plan, "q8 d16 f32", 0), AG_INVALID_PROBLEM);
        message_has("ATTNGRAD_CUDA_SHARED", "must be from 101376 to 232448");
    }
    test_need(setenv("ATTNGRAD_CUDA_SHARED", "101376", 1) == 0, "setenv");
    described_as("q8 d16 f32", "Fake GPU 0, kernels of 99 KB, det");
    test_need(setenv("ATTNGRAD_CUDA_SHARED", "166912", 1) == 0, "setenv");
    described_as("q8 d16 f32", "Fake GPU 0, kernels of 163 KB, det");
    unsetenv("ATTNGRAD_CUDA_SHARED");
    described_as("q8 d16 f32", "Fake GPU 0, det");
}

int main(void)
{
    struct device_call x;
    devices();
    lowered_limit();
    old_card();
    card_without_code();
    newer_card();
    sizes();
    on_request_only();
    table_of_hopper();
    out_of_memory();
    refused_options();
    call_begin(&x, "b2 q8 d16 f32", 0);
    right_calls(&x);
    wrong_memory(&x);
    device_memory_for_the_host(&x);
    wrong_exec(&x);
    device_lists(&x);
    call_end(&x);
    packed_lists();
    return test_summary();
}
