/* The public entry points of a plan: each checks its call and hands it to the plan's backend. */
#include "core/backend.h"
#include "core/status.h"
#include "core/structs.h"

static ag_status run(agi_map map, const ag_plan *plan, const ag_args *args, const ag_exec *exec,
                     void *workspace, size_t bytes)
{
    agi_call call;
    agi_exec loop;
    ag_status status = agi_call_check(&call, plan, map, AGI_RUN, args, workspace, bytes);
    if (status == AG_OK) {
        status = agi_exec_begin(&loop, plan, exec);
    }
    if (status != AG_OK) {
        return status;
    }
    call.exec = &loop;
    return agi_exec_status(&loop, plan->backend->run(&call, workspace));
}

ag_status ag_forward(const ag_plan *plan, const ag_args *args, const ag_exec *exec, void *workspace,
                     size_t bytes)
{
    return run(AGI_FORWARD, plan, args, exec, workspace, bytes);
}

ag_status ag_vjp(const ag_plan *plan, const ag_args *args, const ag_exec *exec, void *workspace, size_t bytes)
{
    return run(AGI_VJP, plan, args, exec, workspace, bytes);
}

ag_status ag_jvp(const ag_plan *plan, const ag_args *args, const ag_exec *exec, void *workspace, size_t bytes)
{
    return run(AGI_JVP, plan, args, exec, workspace, bytes);
}

ag_status ag_vjp_jvp(const ag_plan *plan, const ag_args *args, const ag_exec *exec, void *workspace,
                     size_t bytes)
{
    return run(AGI_VJP_JVP, plan, args, exec, workspace, bytes);
}

ag_status ag_jvp_jvp(const ag_plan *plan, const ag_args *args, const ag_exec *exec, void *workspace,
                     size_t bytes)
{
    return run(AGI_JVP_JVP, plan, args, exec, workspace, bytes);
}

ag_status ag_merge(const ag_plan *plan, const ag_merge_args *args, const ag_exec *exec)
{
    ag_merge_args m;
    agi_exec loop;
    ag_status status = agi_merge_check(&m, plan, args);
    if (status == AG_OK) {
        status = agi_exec_begin(&loop, plan, exec);
    }
    if (status != AG_OK) {
        return status;
    }
    const agi_backend *backend = plan->backend->merge != NULL ? plan->backend : agi_specification;
    return agi_exec_status(&loop, backend->merge(plan, &m, &loop));
}

static ag_status map_of_bit(uint32_t bit, agi_map *map)
{
    for (int m = 0; m < AGI_N_MAPS; m++) {
        if (bit == UINT32_C(1) << m) {
            *map = (agi_map)m;
            return AG_OK;
        }
    }
    return agi_fail_field(AG_INVALID_ARGUMENT, "map", "map is 0x%lx: must be one bit of AG_MAP_*",
                          (unsigned long)bit);
}

static ag_status check_trace(const ag_plan *plan, const ag_trace_args *t)
{
    const struct {
        const char *name;
        int64_t value, end;
    } fields[] = {{"batch", t->batch, plan->p.batch},
                  {"head", t->head, plan->p.heads},
                  {"jacobian_row", t->J == NULL ? 0 : t->jacobian_row, t->J == NULL ? 1 : plan->p.q_len}};
    for (int i = 0; i < 3; i++) {
        if (fields[i].value < 0 || fields[i].value >= fields[i].end) {
            agi_fail_field(AG_INVALID_ARGUMENT, fields[i].name, "%s is %lld: must be from 0 to %lld",
                           fields[i].name, (long long)fields[i].value, (long long)fields[i].end - 1);
            return agi_fail_within(AG_INVALID_ARGUMENT, "trace");
        }
    }
    return t->reserved == 0
               ? AG_OK
               : agi_fail_field(AG_INVALID_ARGUMENT, "trace.reserved", "trace: reserved is %lu: must be zero",
                                (unsigned long)t->reserved);
}

ag_status ag_trace(const ag_plan *plan, uint32_t map, const ag_args *args, const ag_trace_args *trace,
                   void *workspace, size_t bytes)
{
    agi_call call;
    ag_trace_args t;
    agi_map which = AGI_FORWARD;
    ag_status status = map_of_bit(map, &which);
    if (status == AG_OK) {
        status = agi_call_check(&call, plan, which, AGI_TRACE, args, workspace, bytes);
    }
    if (status == AG_OK) {
        status = agi_read_struct(&t, sizeof t, trace, "trace", AG_INVALID_ARGUMENT);
    }
    if (status == AG_OK) {
        status = check_trace(plan, &t);
    }
    if (status == AG_OK && plan->backend->trace == NULL) {
        status = agi_fail_field(AG_UNSUPPORTED, "plan",
                                "trace: the %s backend has no trace: plan with AG_BACKEND_REFERENCE",
                                plan->backend->name);
    }
    return status == AG_OK ? plan->backend->trace(&call, &t, workspace) : status;
}
