/* The public maps: check, agree, run the plan's way. */
#include "mpi/call.h"

#include <string.h>

#include "mpi/all_to_all.h"
#include "mpi/message.h"
#include "mpi/ring.h"
#include "mpi/structs.h"
#include "mpi/workspace.h"

agi_mpi_map agi_mpi_map_of(agi_map map)
{
    static const agi_mpi_map maps[AGI_N_MAPS] = {ag_forward, ag_vjp, ag_jvp, ag_vjp_jvp, ag_jvp_jvp};
    return maps[map];
}

static void keep(agi_mpi_call *call, ag_status status)
{
    if (status != AG_OK && status != AG_CANCELLED) {
        call->status = agi_mpi_fail_inside(status);
    }
}

void agi_mpi_run_inside(agi_mpi_call *call, const ag_plan *plan, const ag_args *args, void *workspace,
                        size_t bytes)
{
    keep(call, agi_mpi_map_of(call->map)(plan, args, &call->exec, workspace, bytes));
}

void agi_mpi_merge_inside(agi_mpi_call *call, const ag_plan *plan, const ag_merge_args *args)
{
    keep(call, ag_merge(plan, args, &call->exec));
}

/* ---- Agreement ---- */

static uint64_t hash_list(const int64_t *list, int64_t count)
{
    return list == NULL ? 0 : agi_mpi_hash(AGI_MPI_HASH, list, (size_t)count * sizeof *list);
}

/* A bit per tensor that the map uses and that is given. */
static uint64_t given_tensors(const agi_mpi_call *call)
{
    uint64_t bits = 0;
    for (int n = 0; n < AGI_N_TENSORS; n++) {
        if (agi_tensors[n].role[call->map] != AGI_NONE &&
            agi_mpi_tensor_of(&call->a, &agi_tensors[n]).data != NULL) {
            bits |= UINT64_C(1) << n;
        }
    }
    return bits;
}

/* What must be equal on all ranks, and the fields' names. */
enum { VALUES = 14, VALUE_TENSORS = 1 };
static const char *const value_names[VALUES] = {
    "map",      "args",      "accumulate", "flags",    "seed",     "batch_offset", "q_offset",
    "k_offset", "q_lengths", "kv_lengths", "q_packed", "k_packed", "q_offsets",    "k_offsets"};

static void add_values(agi_mpi_record *record, const agi_mpi_call *call)
{
    const ag_args *a = &call->a;
    const int64_t B = call->plan->cut.p->batch;
    const uint64_t values[VALUES] = {(uint64_t)call->map,
                                     given_tensors(call),
                                     a->accumulate,
                                     a->flags,
                                     a->seed,
                                     (uint64_t)a->batch_offset,
                                     (uint64_t)a->q_offset,
                                     (uint64_t)a->k_offset,
                                     hash_list(a->q_lengths, B),
                                     hash_list(a->kv_lengths, B),
                                     hash_list(a->q_packed, B + 1),
                                     hash_list(a->k_packed, B + 1),
                                     hash_list(a->q_offsets, B),
                                     hash_list(a->k_offsets, B)};
    for (int n = 0; n < VALUES; n++) {
        agi_mpi_record_add(record, call->comm, values[n]);
    }
}

/* The tensor that one of two ranks has and the other has not. */
static const char *differing_tensor(const agi_mpi_spread *given)
{
    const uint64_t differing = given->min ^ given->max;
    int n = 0;
    while (n < AGI_N_TENSORS - 1 && !(differing >> n & 1)) {
        n++;
    }
    return agi_tensors[n].name;
}

/* The check of a rank whose arguments are wrong may not have read all of them: it brings none of their values. */
static ag_status agree(const agi_mpi_call *call, ag_status status)
{
    agi_mpi_record record;
    agi_mpi_record_begin(&record, call->comm, status);
    if (status == AG_OK) {
        add_values(&record, call);
    }
    record.count = VALUES;
    const ag_status agreed = agi_mpi_agree(call->comm, &record, value_names, AG_INVALID_ARGUMENT);
    const agi_mpi_spread *given = &record.values[VALUE_TENSORS];
    if (agreed != AG_INVALID_ARGUMENT || record.status != AG_OK ||
        strcmp(ag_mpi_last_field(), value_names[VALUE_TENSORS]) != 0) {
        return agreed;
    }
    const char *name = differing_tensor(given);
    return agi_mpi_fail(AG_INVALID_ARGUMENT, name, "rank %d: %s is given on one of the ranks %d and %d only",
                        (int)(given->min_rank > given->max_rank ? given->min_rank : given->max_rank), name,
                        (int)given->min_rank, (int)given->max_rank);
}

ag_status agi_mpi_conclude(agi_mpi_call *call, ag_status messages)
{
    agi_mpi_record record;
    if (messages != AG_OK) {
        return messages;
    }
    if (call->comm->cancelled && call->status == AG_OK) {
        call->status = agi_mpi_fail(AG_CANCELLED, "", "cancelled: exec.poll returned non-zero");
    }
    agi_mpi_record_begin(&record, call->comm, call->status);
    return agi_mpi_agree(call->comm, &record, NULL, AG_INVALID_ARGUMENT);
}

/* ---- The maps ---- */

static void run_loop(void *ctx, int64_t n_tasks, ag_task task, void *arg)
{
    const agi_mpi_comm *c = ctx;
    c->user->run(c->user->ctx, n_tasks, task, arg);
}

static ag_status run(agi_map map, ag_mpi_plan *plan, const ag_args *args, const ag_exec *exec,
                     void *workspace, size_t bytes)
{
    if (plan == NULL) {
        return agi_mpi_fail(AG_INVALID_ARGUMENT, "plan", "plan is NULL");
    }
    const double start = agi_mpi_seconds();
    agi_mpi_comm *c = &plan->comm;
    agi_mpi_call call = {.plan = plan, .comm = c, .map = map, .user = AG_EXEC_INIT};
    c->user = NULL;
    agi_mpi_call_begin(c);
    ag_status status = agree(&call, agi_mpi_check(&call, args, exec, workspace, bytes));
    if (status != AG_OK) {
        agi_mpi_call_end(c);
        return status;
    }
    c->user = &call.user;
    call.exec = (ag_exec)AG_EXEC_INIT;
    call.exec.ctx = c;
    call.exec.run = call.user.run != NULL ? run_loop : NULL;
    call.exec.poll = agi_mpi_poll;
    status = plan->way[map] == AG_MPI_ALL_TO_ALL ? agi_mpi_all_to_all_map(&call, workspace)
                                                 : agi_mpi_ring_map(&call, workspace);
    c->user = NULL;
    agi_mpi_call_end(c);
    plan->traffic.bytes_sent = c->bytes_sent;
    plan->traffic.seconds = agi_mpi_seconds() - start;
    plan->traffic.seconds_waiting = c->seconds_waiting;
    return status;
}

ag_status ag_mpi_forward(ag_mpi_plan *plan, const ag_args *args, const ag_exec *exec, void *workspace,
                         size_t bytes)
{
    return run(AGI_FORWARD, plan, args, exec, workspace, bytes);
}

ag_status ag_mpi_vjp(ag_mpi_plan *plan, const ag_args *args, const ag_exec *exec, void *workspace,
                     size_t bytes)
{
    return run(AGI_VJP, plan, args, exec, workspace, bytes);
}

ag_status ag_mpi_jvp(ag_mpi_plan *plan, const ag_args *args, const ag_exec *exec, void *workspace,
                     size_t bytes)
{
    return run(AGI_JVP, plan, args, exec, workspace, bytes);
}

ag_status ag_mpi_vjp_jvp(ag_mpi_plan *plan, const ag_args *args, const ag_exec *exec, void *workspace,
                         size_t bytes)
{
    return run(AGI_VJP_JVP, plan, args, exec, workspace, bytes);
}

ag_status ag_mpi_jvp_jvp(ag_mpi_plan *plan, const ag_args *args, const ag_exec *exec, void *workspace,
                         size_t bytes)
{
    return run(AGI_JVP_JVP, plan, args, exec, workspace, bytes);
}

/* ---- Questions about a plan ---- */

const ag_problem *ag_mpi_plan_problem(const ag_mpi_plan *plan)
{
    return plan == NULL ? NULL : plan->cut.p;
}

ag_status ag_mpi_plan_way(const ag_mpi_plan *plan, uint32_t map, ag_mpi_way *way)
{
    if (plan == NULL || way == NULL) {
        return agi_mpi_fail(AG_INVALID_ARGUMENT, plan == NULL ? "plan" : "way", "%s is NULL",
                            plan == NULL ? "plan" : "way");
    }
    for (int n = 0; n < AGI_N_MAPS; n++) {
        if (map == UINT32_C(1) << n) {
            *way = plan->way[n];
            return AG_OK;
        }
    }
    return agi_mpi_fail(AG_INVALID_ARGUMENT, "map", "map is 0x%lx: must be one bit of AG_MAP_*",
                        (unsigned long)map);
}

ag_status ag_mpi_plan_workspace(const ag_mpi_plan *plan, uint32_t maps, size_t *bytes)
{
    size_t unused;
    if (plan == NULL || bytes == NULL) {
        return agi_mpi_fail(AG_INVALID_ARGUMENT, plan == NULL ? "plan" : "bytes", "%s is NULL",
                            plan == NULL ? "plan" : "bytes");
    }
    const ag_status status = ag_plan_workspace(plan->shard, maps, &unused);
    if (status != AG_OK) {
        return agi_mpi_fail_inside(status);
    }
    *bytes = 0;
    for (int n = 0; n < AGI_N_MAPS; n++) {
        if (maps >> n & 1 && plan->bytes[n] > *bytes) {
            *bytes = plan->bytes[n];
        }
    }
    return AG_OK;
}

ag_status ag_mpi_shard(const ag_mpi_plan *plan, int32_t rank, ag_mpi_shard_info *info)
{
    ag_mpi_shard_info full = {.struct_size = sizeof full};
    if (plan == NULL) {
        return agi_mpi_fail(AG_INVALID_ARGUMENT, "plan", "plan is NULL");
    }
    if (rank < 0 || rank >= plan->cut.ranks) {
        return agi_mpi_fail(AG_INVALID_ARGUMENT, "rank", "rank is %d: must be from 0 to %d", (int)rank,
                            (int)plan->cut.ranks - 1);
    }
    const agi_mpi_cut *cut = &plan->cut;
    full.chunks = agi_mpi_chunks(cut);
    full.q_rows = agi_mpi_rows(cut, AGI_MPI_QUERIES, rank);
    full.kv_rows = agi_mpi_rows(cut, AGI_MPI_KEYS, rank);
    for (int n = 0; n < full.chunks; n++) {
        const agi_mpi_chunk q = agi_mpi_chunk_of(cut, AGI_MPI_QUERIES, rank, n);
        const agi_mpi_chunk k = agi_mpi_chunk_of(cut, AGI_MPI_KEYS, rank, n);
        full.q_starts[n] = q.start;
        full.q_lengths[n] = q.length;
        full.k_starts[n] = k.start;
        full.k_lengths[n] = k.length;
    }
    const int64_t group = cut->p->heads / cut->p->kv_heads;
    agi_mpi_kv_heads(cut, rank, &full.head_first, &full.heads);
    full.head_first *= group;
    full.heads *= group;
    return agi_mpi_write_struct(info, &full, sizeof full, "info");
}

ag_status ag_mpi_traffic_get(const ag_mpi_plan *plan, ag_mpi_traffic *traffic)
{
    return plan == NULL ? agi_mpi_fail(AG_INVALID_ARGUMENT, "plan", "plan is NULL")
                        : agi_mpi_write_struct(traffic, &plan->traffic, sizeof plan->traffic, "traffic");
}
