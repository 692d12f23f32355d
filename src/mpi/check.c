/* Checks the arguments of a call on this rank, before any message. The tensors are checked by libattngrad: their map is
 * called on a plan of this rank's rows, and cancelled by the first poll, before anything is written. Bias and mask are
 * not part of that plan: what concerns them is checked here. */
#include <string.h>

#include "core/operand.h"
#include "mpi/call.h"
#include "mpi/features.h"
#include "mpi/message.h"
#include "mpi/structs.h"

static int32_t cancel(void *ctx)
{
    (void)ctx;
    return 1;
}

/* ---- Lists ---- */

/* One side's lists. */
typedef struct {
    const char *lengths_name, *packed_name, *offsets_name, *offset_name;
    const int64_t *lengths, *packed, *offsets;
    int64_t offset, longest, total;
} side_lists;

static ag_status check_lengths(const ag_problem *p, const side_lists *x)
{
    if (x->lengths != NULL && agi_has(p, AG_PACKED)) {
        return agi_mpi_fail(AG_INVALID_ARGUMENT, x->lengths_name,
                            "%s is given, but packed sequences have their lengths in the offsets",
                            x->lengths_name);
    }
    for (int64_t b = 0; b < p->batch && x->lengths != NULL; b++) {
        if (x->lengths[b] < 0 || x->lengths[b] > x->longest) {
            return agi_mpi_fail(AG_INVALID_ARGUMENT, x->lengths_name,
                                "%s[%lld] is %lld: must be from 0 to %lld", x->lengths_name, (long long)b,
                                (long long)x->lengths[b], (long long)x->longest);
        }
    }
    return AG_OK;
}

static ag_status check_packed(const ag_problem *p, const side_lists *x)
{
    const bool packed = agi_has(p, AG_PACKED);
    if (packed != (x->packed != NULL)) {
        return agi_mpi_fail(AG_INVALID_ARGUMENT, x->packed_name,
                            packed ? "%s is NULL: the problem is packed"
                                   : "%s is given, but the problem is not packed",
                            x->packed_name);
    }
    if (packed && x->packed[0] != 0) {
        return agi_mpi_fail(AG_INVALID_ARGUMENT, x->packed_name, "%s[0] is %lld: must be 0", x->packed_name,
                            (long long)x->packed[0]);
    }
    for (int64_t b = 0; b < p->batch && packed; b++) {
        const int64_t length = x->packed[b + 1] - x->packed[b];
        if (length < 0 || length > x->longest || x->packed[b + 1] > x->total) {
            return agi_mpi_fail(AG_INVALID_ARGUMENT, x->packed_name,
                                "%s[%lld] is %lld: must be from %lld, the offset before, to %lld, and a "
                                "sequence has at most %lld rows",
                                x->packed_name, (long long)b + 1, (long long)x->packed[b + 1],
                                (long long)x->packed[b], (long long)x->total, (long long)x->longest);
        }
    }
    return AG_OK;
}

static ag_status check_position(const ag_problem *p, const char *name, int64_t offset)
{
    if (offset < -AGI_MAX_POSITION / 2 || offset > AGI_MAX_POSITION / 2) {
        return agi_mpi_fail(AG_INVALID_ARGUMENT, name, "%s is %lld: must be from -2^58 to 2^58", name,
                            (long long)offset);
    }
    if (offset != 0 && p->align == AG_ALIGN_BOTTOM_RIGHT) {
        return agi_mpi_fail(AG_INVALID_ARGUMENT, name, "%s is %lld: bottom-right alignment allows no offset",
                            name, (long long)offset);
    }
    return AG_OK;
}

static ag_status check_offsets(const ag_problem *p, const side_lists *x)
{
    ag_status status = check_position(p, x->offset_name, x->offset);
    if (status == AG_OK && x->offsets != NULL && x->offset != 0) {
        status =
            agi_mpi_fail(AG_INVALID_ARGUMENT, x->offsets_name, "%s is given, but %s is %lld: must be zero",
                         x->offsets_name, x->offset_name, (long long)x->offset);
    }
    if (status == AG_OK && x->offsets != NULL && p->align == AG_ALIGN_BOTTOM_RIGHT) {
        status = agi_mpi_fail(AG_INVALID_ARGUMENT, x->offsets_name,
                              "%s is given: bottom-right alignment allows no offsets", x->offsets_name);
    }
    for (int64_t b = 0; b < p->batch && x->offsets != NULL && status == AG_OK; b++) {
        status = check_position(p, x->offsets_name, x->offsets[b]);
    }
    return status;
}

static ag_status check_lists(const agi_mpi_call *call)
{
    const ag_problem *p = call->plan->cut.p;
    const ag_args *a = &call->a;
    const side_lists sides[2] = {{"q_lengths", "q_packed", "q_offsets", "q_offset", a->q_lengths, a->q_packed,
                                  a->q_offsets, a->q_offset, p->q_len, p->q_total},
                                 {"kv_lengths", "k_packed", "k_offsets", "k_offset", a->kv_lengths,
                                  a->k_packed, a->k_offsets, a->k_offset, p->kv_len, p->kv_total}};
    ag_status status = AG_OK;
    for (int n = 0; n < 2 && status == AG_OK; n++) {
        status = check_lengths(p, &sides[n]);
        status = status == AG_OK ? check_packed(p, &sides[n]) : status;
        status = status == AG_OK ? check_offsets(p, &sides[n]) : status;
    }
    if (status == AG_OK && (a->batch_offset < 0 || a->batch_offset > (int64_t)UINT32_MAX + 1 - p->batch)) {
        status =
            agi_mpi_fail(AG_INVALID_ARGUMENT, "batch_offset", "batch_offset is %lld: must be from 0 to %lld",
                         (long long)a->batch_offset, (long long)UINT32_MAX + 1 - (long long)p->batch);
    }
    return status;
}

/* ---- Tensors ---- */

/* Are all tensors right for this rank's rows? Without bias and mask: they have all keys, its plan has not. */
static ag_status check_on_shard(const agi_mpi_call *call, void *workspace, size_t bytes)
{
    const ag_exec exec = {.struct_size = sizeof exec, .poll = cancel};
    ag_args a = call->a;
    bool matrix_output = false;
    for (int n = 0; n < AGI_N_TENSORS; n++) {
        const agi_tensor_info *f = &agi_tensors[n];
        if (agi_mpi_is_matrix(f)) {
            matrix_output |= agi_is_output(f->role[call->map]) && agi_mpi_tensor(&a, f)->data != NULL;
            agi_mpi_tensor(&a, f)->data = NULL;
        }
    }
    a.q_lengths = a.kv_lengths = a.q_packed = a.k_packed = a.q_offsets = a.k_offsets = NULL;
    a.q_offset = a.k_offset = a.batch_offset = 0;
    const ag_status status = agi_mpi_map_of(call->map)(call->plan->shard, &a, &exec, workspace, bytes);
    const bool only_matrix =
        status == AG_INVALID_ARGUMENT && matrix_output && strcmp(ag_last_field(), "args") == 0;
    return status == AG_OK || status == AG_CANCELLED || only_matrix ? AG_OK : agi_mpi_fail_inside(status);
}

/* A tensor with its size on this rank. */
static agi_operand operand_of(const agi_mpi_call *call, const agi_tensor_info *f, agi_role role)
{
    agi_operand x = {.name = f->name,
                     .t = (const ag_tensor *)(const void *)((const char *)&call->a + f->offset),
                     .bytes = agi_element_size(call->plan->cut.p, f->element),
                     .output = agi_is_output(role),
                     .required = role == AGI_IN || role == AGI_OUT};
    if (agi_mpi_is_feature(f)) {
        agi_mpi_feature_size(call->plan, f, x.size);
    } else {
        agi_shape_of(ag_plan_problem(call->plan->shard), f->shape, x.size);
    }
    return x;
}

/* Are bias, mask and their kin there, and is every output apart from all other tensors and from the workspace? */
static ag_status check_apart(const agi_mpi_call *call, const void *workspace, size_t bytes)
{
    const ag_problem *p = call->plan->cut.p;
    agi_operand x[AGI_N_TENSORS];
    int count = 0;
    for (int n = 0; n < AGI_N_TENSORS; n++) {
        const agi_tensor_info *f = &agi_tensors[n];
        const agi_role role = agi_role_of(f, call->map, call->a.flags);
        const bool exists = !agi_mpi_is_feature(f) || agi_has(p, f->feature);
        if (role != AGI_NONE && !exists && agi_mpi_tensor_of(&call->a, f).data != NULL) {
            return agi_mpi_fail(AG_INVALID_ARGUMENT, f->name,
                                "%s is given, but the problem has no such feature", f->name);
        }
        if (role != AGI_NONE && exists) {
            x[count++] = operand_of(call, f, role);
        }
    }
    const ag_status status = agi_check_operands(x, count, NULL, agi_mpi_fail);
    return status == AG_OK ? agi_check_workspace_apart(x, count, workspace, bytes, agi_mpi_fail) : status;
}

ag_status agi_mpi_check(agi_mpi_call *call, const ag_args *args, const ag_exec *exec, void *workspace,
                        size_t bytes)
{
    ag_status status = agi_mpi_read_struct(&call->a, sizeof call->a, args, "args", AG_INVALID_ARGUMENT);
    if (status == AG_OK && exec != NULL) {
        status = agi_mpi_read_struct(&call->user, sizeof call->user, exec, "exec", AG_INVALID_ARGUMENT);
    }
    if (status == AG_OK && (call->user.reserved != 0 || call->user.stream != NULL)) {
        status = agi_mpi_fail(AG_INVALID_ARGUMENT, call->user.reserved != 0 ? "exec.reserved" : "exec.stream",
                              "exec: reserved and stream must be zero");
    }
    const size_t needed = call->plan->bytes[call->map];
    if (status == AG_OK && (workspace == NULL || bytes < needed)) {
        status = agi_mpi_fail(AG_WORKSPACE, "workspace", "workspace is %p with %zu bytes: needs %zu",
                              workspace, bytes, needed);
    }
    status = status == AG_OK ? check_lists(call) : status;
    status = status == AG_OK ? check_on_shard(call, workspace, bytes) : status;
    return status == AG_OK ? check_apart(call, workspace, bytes) : status;
}
