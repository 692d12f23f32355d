/* The CUDA backend's table of functions: see cuda.h. A plan belongs to one device; its maps only enqueue kernels on the
 * caller's stream, so that they can be captured in a graph. */
#include "cuda/cuda.h"

#include <stdio.h>
#include <string.h>

#include "core/status.h"
#include "cuda/boxes.h"
#include "cuda/find_kernels.h"
#include "cuda/hopper_workspace.h"
#include "cuda/launches.h"
#include "cuda/pointers.h"
#include "cuda/schedule.h"

/* ---- The plan ---- */

/* The features that the kernels know: one that is new in AGI_ALL_FLAGS is to be computed by them, or refused here. */
enum {
    SERVED = AG_CAUSAL | AG_WINDOW | AG_SCALE | AG_SINK | AG_BIAS | AG_MASK | AG_TABLE | AG_ALIBI |
             AG_SLOPES | AG_PACKED
};
_Static_assert(SERVED == AGI_ALL_FLAGS, "a feature that the kernels do not know");

static ag_status choose_device(const ag_plan *plan, agi_cuda_plan *data)
{
    if (plan->device == 0) {
        return agi_cuda_current_device(data->cu, &data->device);
    }
    if (plan->device > data->cu->n_devices) {
        return agi_fail_field(AG_UNSUPPORTED, "options.device",
                              "options: device is %d, number %d of cuda: there %s %d", (int)plan->device,
                              (int)plan->device - 1, data->cu->n_devices == 1 ? "is" : "are",
                              data->cu->n_devices);
    }
    data->device = plan->device - 1;
    return AG_OK;
}

/* Sets plan->isa to the table of kernels that options or the environment name, else to the fastest that the device
 * runs: agi_cuda_isas lists them from the slowest to the fastest. */
static ag_status choose_isa(ag_plan *plan, const agi_cuda_device *device, CUdevice number)
{
    ag_isa chosen = AG_ISA_AUTO;
    for (int i = 0; i < AGI_N_CUDA_ISAS; i++) {
        const agi_isa *isa = &agi_cuda_isas[i];
        const bool wanted = plan->isa == AG_ISA_AUTO || isa->id == plan->isa;
        chosen = wanted && isa->built_in && agi_cuda_device_runs(device, isa->id) ? isa->id : chosen;
    }
    if (chosen == AG_ISA_AUTO) {
        return agi_cuda_refuse_device(device, number, plan->isa);
    }
    plan->isa = chosen;
    return AG_OK;
}

/* Kernels count the heads by 32 bits, and the rows of a sequence, with some tiles beyond the last, and eight numbers of
 * each row. */
static ag_status check_sizes(const ag_problem *p)
{
    enum { MAX_ROWS = (1 << 28) - 512 };
    const struct {
        const char *field;
        int64_t value, max;
    } sizes[] = {{"heads", p->heads, INT32_MAX},
                 {"q_len", p->q_len, MAX_ROWS},
                 {"kv_len", p->kv_len, MAX_ROWS},
                 {"q_total", p->q_total, MAX_ROWS},
                 {"kv_total", p->kv_total, MAX_ROWS}};
    for (size_t n = 0; n < sizeof sizes / sizeof sizes[0]; n++) {
        if (sizes[n].value > sizes[n].max) {
            return agi_fail_field(AG_UNSUPPORTED, sizes[n].field, "%s is %lld: cuda has at most %lld",
                                  sizes[n].field, (long long)sizes[n].value, (long long)sizes[n].max);
        }
    }
    return AG_OK;
}

/* The copy engine of the table sm90 counts the rows of a copy, of all sequences together, by 32 bits. */
static ag_status check_copies(const ag_problem *p)
{
    const int64_t q_rows = agi_cuda_copied_rows(p->batch, p->q_len, p->q_total);
    const int64_t k_rows = agi_cuda_copied_rows(p->batch, p->kv_len, p->kv_total);
    const int64_t rows = q_rows > k_rows ? q_rows : k_rows;
    if (rows > INT32_MAX) {
        return agi_fail_field(AG_UNSUPPORTED, "batch",
                              "batch is %lld: copies of its sequences have up to %lld rows, sm90 has at most "
                              "%d: isa sm80 has more",
                              (long long)p->batch, (long long)rows, INT32_MAX);
    }
    return AG_OK;
}

/* Copies an array of the plan into device memory of the current context. */
static ag_status copy_table(const agi_cuda_plan *data, const char *what, const void *host, size_t bytes,
                            CUdeviceptr *table)
{
    if (host == NULL) {
        return AG_OK;
    }
    CUresult result = data->cu->MemAlloc(table, bytes);
    if (result == 0) {
        result = data->cu->MemcpyHtoD(*table, host, bytes);
    }
    if (result == 0) { /* the copy may still be on its way when the call returns */
        result = data->cu->StreamSynchronize(NULL);
    }
    return result == 0 ? AG_OK : agi_cuda_fail(data->cu, result, what);
}

static ag_status copy_tables(const ag_plan *plan, agi_cuda_plan *data)
{
    agi_cuda_scope scope;
    if (plan->buckets == NULL && plan->slopes == NULL) {
        return AG_OK;
    }
    ag_status status = agi_cuda_enter(data->cu, data->device, &scope);
    if (status != AG_OK) {
        return status;
    }
    data->tables_context = scope.context;
    const size_t n_buckets = (size_t)(2 * plan->p.table_radius + 1);
    status = copy_table(data, "the plan's copy of buckets", plan->buckets,
                        n_buckets * sizeof plan->buckets[0], &data->buckets);
    if (status == AG_OK) {
        status = copy_table(data, "the plan's copy of alibi_slopes", plan->slopes,
                            (size_t)plan->p.heads * sizeof plan->slopes[0], &data->slopes);
    }
    agi_cuda_leave(data->cu, &scope);
    return status;
}

static ag_status make_plan(ag_plan *plan, agi_cuda_plan *data)
{
    agi_cuda_device device;
    ag_status status = choose_device(plan, data);
    if (status == AG_OK) {
        status = agi_cuda_describe_device(data->cu, data->device, &device);
    }
    if (status == AG_OK) {
        status = agi_cuda_lower_limit(&device);
    }
    if (status == AG_OK) {
        status = choose_isa(plan, &device, data->device);
    }
    if (status == AG_OK && plan->isa == AG_ISA_SM90) {
        status = check_copies(&plan->p);
    }
    if (status == AG_OK) {
        data->device_info = device;
        status = agi_cuda_find_kernels(data, plan->isa, plan->p.dtype);
    }
    return status == AG_OK ? copy_tables(plan, data) : status;
}

static ag_status accept(ag_plan *plan)
{
    const agi_cuda_driver *cu = NULL;
    ag_status status = AG_OK;
    if (plan->flags & AG_ROUND_INTERMEDIATES) {
        return agi_fail_field(AG_UNSUPPORTED, "options.flags",
                              "options: AG_ROUND_INTERMEDIATES is the reference backend's");
    }
    status = agi_cuda_open(&cu);
    if (status != AG_OK) {
        return status == AG_UNSUPPORTED ? AGI_NOT_AVAILABLE : status;
    }
    status = check_sizes(&plan->p);
    if (status != AG_OK) {
        return status;
    }
    agi_cuda_plan *data = agi_plan_alloc(plan, "the cuda plan", sizeof *data, &status);
    if (data == NULL) {
        return status;
    }
    *data = (agi_cuda_plan){.cu = cu};
    plan->backend_data = data;
    return make_plan(plan, data);
}

static void free_tables(const agi_cuda_plan *data)
{
    const CUdeviceptr tables[] = {data->buckets, data->slopes};
    CUcontext popped;
    if (data->tables_context == NULL || agi_cuda_is_forked() ||
        data->cu->CtxPushCurrent(data->tables_context) != 0) {
        return;
    }
    for (int i = 0; i < 2; i++) {
        if (tables[i] != 0) {
            data->cu->MemFree(tables[i]);
        }
    }
    data->cu->CtxPopCurrent(&popped);
}

static void destroy(ag_plan *plan)
{
    agi_cuda_plan *data = plan->backend_data;
    if (data == NULL) {
        return;
    }
    free_tables(data);
    plan->release(plan->alloc_ctx, data);
}

/* ---- Calls ---- */

/* The plan's tables can be read in the context that they were made in only. */
static ag_status check_context(const agi_cuda_plan *data, const agi_cuda_scope *scope)
{
    if (data->tables_context == NULL || data->tables_context == scope->context) {
        return AG_OK;
    }
    return agi_fail_field(
        AG_INVALID_ARGUMENT, "plan",
        "plan: made in another context of cuda device %d than this call's, and its buckets or "
        "slopes are in that one",
        data->device);
}

/* Where the launches of a call go. */
typedef struct {
    const agi_cuda_plan *data;
    CUstream stream;
} target;

static ag_status enqueue(void *ctx, const agi_cuda_entry *entry)
{
    const target *to = ctx;
    const agi_cuda_kernel *kernel = &agi_cuda_kernels[entry->kernel];
    const agi_cuda_launch launch = {to->data->kernels[entry->kernel],
                                    {entry->blocks, 1, 1},
                                    (unsigned)kernel->threads,
                                    (unsigned)kernel->shared,
                                    entry->together != 0};
    return agi_cuda_enqueue(to->data->cu, &launch, to->stream, entry->parameter, kernel->name);
}

/* Enters a context of the plan's device in which it can run. */
static ag_status enter(const agi_cuda_plan *data, agi_cuda_scope *scope)
{
    ag_status status = agi_cuda_enter(data->cu, data->device, scope);
    if (status == AG_OK) {
        status = check_context(data, scope);
        if (status != AG_OK) {
            agi_cuda_leave(data->cu, scope);
        }
    }
    return status;
}

static ag_status run(const agi_call *call, void *workspace)
{
    const agi_cuda_plan *data = agi_cuda_plan_of(call->plan);
    const agi_cuda_setting device = {data->device_info.shared_limit,
                                     data->device_info.processors,
                                     (const int32_t *)(uintptr_t)data->buckets,
                                     (const double *)(uintptr_t)data->slopes,
                                     AGI_HOPPER_RING_MOST,
                                     call->plan->isa == AG_ISA_SM90 ? agi_cuda_make_map : NULL,
                                     data->cu};
    target to = {data, call->exec->given.stream};
    agi_cuda_scope scope;
    ag_status status = enter(data, &scope);
    if (status == AG_OK) {
        status = agi_cuda_launch_map(call, &device, workspace, (agi_cuda_emitter){enqueue, &to});
        agi_cuda_leave(data->cu, &scope);
    }
    return status;
}

static ag_status merge(const ag_plan *plan, const ag_merge_args *args, agi_exec *exec)
{
    const agi_cuda_plan *data = agi_cuda_plan_of(plan);
    target to = {data, exec->given.stream};
    agi_cuda_scope scope;
    ag_status status = enter(data, &scope);
    if (status == AG_OK) {
        status = agi_cuda_launch_merge(plan, args, (agi_cuda_emitter){enqueue, &to});
        agi_cuda_leave(data->cu, &scope);
    }
    return status;
}

/* ---- Information ---- */

static void fill_info(const ag_plan *plan, ag_plan_info *info)
{
    info->isa = plan->isa;
    info->threads = 0;
    info->compute_dtype = plan->p.dtype == AG_F64 ? AG_F64 : AG_F32;
    info->deterministic = 1;
}

/* Has the map kernels of the table sm90? vjp_jvp with features is in one kernel alone, which a plan cannot have with
 * AG_INVARIANT, or if a mask's lists would be too large. */
static bool has_hopper(const ag_plan *plan, agi_hopper_map map, int32_t limit)
{
    if (map == AGI_hopper_dbias) {
        return agi_has(&plan->p, AG_BIAS) && agi_hopper_walk_of_bias(plan, limit).tiles > 0;
    }
    const bool in_one = map == AGI_hopper_tdkdv && agi_hopper_may_have_ring(plan, AGI_VJP_JVP) &&
                        agi_hopper_choose(plan, AGI_hopper_second_ring, limit).kernel >= 0;
    return in_one || agi_hopper_choose(plan, map, limit).kernel >= 0;
}

/* The maps that run on the table sm90, with the set of score features that they have: "forward, vjp and dbias with
 * bias". Nothing if there are none. */
static void describe_hopper(const ag_plan *plan, int32_t limit, char *text, size_t size)
{
    static const struct {
        const char *name;
        agi_hopper_map map;
    } maps[] = {{"forward", AGI_hopper_forward},
                {"vjp", AGI_hopper_dkdv},
                {"jvp", AGI_hopper_jvp},
                {"vjp_jvp", AGI_hopper_tdkdv},
                {"dbias", AGI_hopper_dbias}};
    enum { N_MAPS = sizeof maps / sizeof maps[0] };
    const char *names[N_MAPS] = {NULL};
    const char *set = agi_hopper_choose(plan, AGI_hopper_forward, limit).set;
    int count = 0;
    for (int n = 0; n < N_MAPS; n++) {
        if (has_hopper(plan, maps[n].map, limit)) {
            names[count++] = maps[n].name;
        }
    }
    size_t length = 0;
    for (int n = 0; n < count; n++) {
        const char *before = n == 0 ? ", wgmma in " : n == count - 1 ? " and " : ", ";
        length += (size_t)snprintf(text + length, size - length, "%s%s", before, names[n]);
    }
    snprintf(text + length, size - length, "%s%s", count > 0 && set[0] != '\0' ? " with " : "", set);
}

static void describe_place(const ag_plan *plan, char *text, size_t size)
{
    const agi_cuda_plan *data = agi_cuda_plan_of(plan);
    const int32_t limit = data->device_info.shared_limit;
    char maps[128] = "", kernels[32] = "";
    if (plan->isa == AG_ISA_SM90) {
        describe_hopper(plan, limit, maps, sizeof maps);
    }
    if (limit < AGI_CUDA_SHARED_LARGE) {
        snprintf(kernels, sizeof kernels, ", kernels of %d KB", (int)(limit / 1024));
    }
    snprintf(text, size, "device %d, %s%s%s", data->device, data->device_info.name, kernels, maps);
}

const agi_backend agi_cuda_backend = {
    .id = AG_BACKEND_CUDA,
    .name = "cuda",
    .abilities = AGI_CAN_JVP_JVP | AGI_CAN_GIVEN_O | AGI_CAN_SEQUENCE_OFFSETS | AGI_CAN_INVARIANT |
                 AGI_CAN_DEVICE_LISTS | AGI_CAN_CHOOSE_DEVICE | AGI_ON_DEVICE,
    .isas = agi_cuda_isas,
    .n_isas = AGI_N_CUDA_ISAS,
    .accept = accept,
    .destroy = destroy,
    .workspace = agi_cuda_workspace,
    .run = run,
    .merge = merge,
    .info = fill_info,
    .check_pointer = agi_cuda_check_pointer,
    .check_host_pointer = agi_cuda_check_host_pointer,
    .describe_place = describe_place,
    .list_devices = agi_cuda_list_devices,
};
