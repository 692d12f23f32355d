/* Checks the lists of a call and the offsets that they stand for: see lists.h. Lists on a device are not read here. */
#include "core/lists.h"

#include <string.h>

#include "core/backend.h"
#include "core/status.h"

static ag_status check_lengths(const agi_call *call, const char *name, const int64_t *lengths, int64_t max)
{
    if (lengths == NULL) {
        return AG_OK;
    }
    if (agi_has(&call->plan->p, AG_PACKED)) {
        return agi_fail_field(AG_INVALID_ARGUMENT, name,
                              "%s is given, but packed sequences have their lengths in the offsets", name);
    }
    for (int64_t b = 0; b < call->plan->p.batch; b++) {
        if (lengths[b] < 0 || lengths[b] > max) {
            return agi_fail_field(AG_INVALID_ARGUMENT, name, "%s[%lld] is %lld: must be from 0 to %lld", name,
                                  (long long)b, (long long)lengths[b], (long long)max);
        }
    }
    return AG_OK;
}

/* on_device: the same list is given there. */
static ag_status check_packed(const agi_call *call, const char *name, const int64_t *offsets, bool on_device,
                              int64_t longest, int64_t total)
{
    if (!agi_has(&call->plan->p, AG_PACKED)) {
        return offsets == NULL ? AG_OK
                               : agi_fail_field(AG_INVALID_ARGUMENT, name,
                                                "%s is given, but the problem is not packed", name);
    }
    if (on_device) {
        return AG_OK;
    }
    if (offsets == NULL) {
        return agi_fail_field(AG_INVALID_ARGUMENT, name, "%s is NULL: the problem is packed", name);
    }
    if (offsets[0] != 0) {
        return agi_fail_field(AG_INVALID_ARGUMENT, name, "%s[0] is %lld: must be 0", name,
                              (long long)offsets[0]);
    }
    for (int64_t b = 0; b < call->plan->p.batch; b++) {
        if (offsets[b + 1] < offsets[b] || offsets[b + 1] > total) {
            return agi_fail_field(
                AG_INVALID_ARGUMENT, name, "%s[%lld] is %lld: must be from %lld, the offset before, to %lld",
                name, (long long)b + 1, (long long)offsets[b + 1], (long long)offsets[b], (long long)total);
        }
        if (offsets[b + 1] - offsets[b] > longest) {
            return agi_fail_field(
                AG_INVALID_ARGUMENT, name, "%s[%lld] is %lld: sequence %lld is longer than %lld", name,
                (long long)b + 1, (long long)offsets[b + 1], (long long)b, (long long)longest);
        }
    }
    return AG_OK;
}

static ag_status check_position(const agi_call *call, const char *name, int64_t offset)
{
    if (offset < -AGI_MAX_POSITION || offset > AGI_MAX_POSITION) {
        return agi_fail_field(AG_INVALID_ARGUMENT, name, "%s is %lld: must be from -2^59 to 2^59", name,
                              (long long)offset);
    }
    if (offset != 0 && call->plan->p.align == AG_ALIGN_BOTTOM_RIGHT) {
        return agi_fail_field(
            AG_INVALID_ARGUMENT, name,
            "%s is %lld: bottom-right alignment allows no offset: take top-left and put the "
            "shift into q_offset",
            name, (long long)offset);
    }
    return AG_OK;
}

/* Positions per sequence, which replace the one offset of all sequences. */
static ag_status check_positions(const agi_call *call, const char *name, const int64_t *offsets,
                                 const char *one_name, int64_t one)
{
    const ag_plan *plan = call->plan;
    if (offsets == NULL) {
        return AG_OK;
    }
    if (!(plan->backend->abilities & AGI_CAN_SEQUENCE_OFFSETS)) {
        return agi_fail_field(AG_UNSUPPORTED, name, "%s is given, which the %s backend does not read", name,
                              plan->backend->name);
    }
    if (plan->p.align == AG_ALIGN_BOTTOM_RIGHT) {
        return agi_fail_field(AG_INVALID_ARGUMENT, name,
                              "%s is given: bottom-right alignment allows no offsets", name);
    }
    if (one != 0) {
        return agi_fail_field(AG_INVALID_ARGUMENT, name, "%s is given, but %s is %lld: must be zero", name,
                              one_name, (long long)one);
    }
    for (int64_t b = 0; b < plan->p.batch; b++) {
        if (offsets[b] < -AGI_MAX_POSITION || offsets[b] > AGI_MAX_POSITION) {
            return agi_fail_field(AG_INVALID_ARGUMENT, name, "%s[%lld] is %lld: must be from -2^59 to 2^59",
                                  name, (long long)b, (long long)offsets[b]);
        }
    }
    return AG_OK;
}

static ag_status check_offsets(const agi_call *call)
{
    const ag_args *a = &call->a;
    ag_status status = check_position(call, "q_offset", a->q_offset);
    if (status == AG_OK) {
        status = check_position(call, "k_offset", a->k_offset);
    }
    if (status == AG_OK) {
        status = check_positions(call, "q_offsets", a->q_offsets, "q_offset", a->q_offset);
    }
    if (status == AG_OK) {
        status = check_positions(call, "k_offsets", a->k_offsets, "k_offset", a->k_offset);
    }
    return status;
}

/* ---- Lists on a device ---- */

/* A list on the device, and what it stands for on the host. */
typedef struct {
    const char *name;
    const void *list;
    const char *host_name;
    bool host_given;
    const char *one_name; /* the one value of all sequences, which must be zero; NULL: there is none */
    int64_t one;
    enum { LENGTHS, PACKED, POSITIONS, SEED } kind;
} device_list;

enum { N_DEVICE_LISTS = 7 };

static void list_device_lists(const ag_args *a, device_list lists[N_DEVICE_LISTS])
{
    const device_list all[N_DEVICE_LISTS] = {
        {"q_lengths_device", a->q_lengths_device, "q_lengths", a->q_lengths != NULL, NULL, 0, LENGTHS},
        {"kv_lengths_device", a->kv_lengths_device, "kv_lengths", a->kv_lengths != NULL, NULL, 0, LENGTHS},
        {"q_packed_device", a->q_packed_device, "q_packed", a->q_packed != NULL, NULL, 0, PACKED},
        {"k_packed_device", a->k_packed_device, "k_packed", a->k_packed != NULL, NULL, 0, PACKED},
        {"q_offsets_device", a->q_offsets_device, "q_offsets", a->q_offsets != NULL, "q_offset", a->q_offset,
         POSITIONS},
        {"k_offsets_device", a->k_offsets_device, "k_offsets", a->k_offsets != NULL, "k_offset", a->k_offset,
         POSITIONS},
        {"seed_device", a->seed_device, "seed", a->seed != 0, NULL, 0, SEED},
    };
    memcpy(lists, all, sizeof all);
}

/* Does the list fit the problem? */
static ag_status check_device_kind(const agi_call *call, const device_list *l)
{
    const ag_problem *p = &call->plan->p;
    if (l->kind == LENGTHS && agi_has(p, AG_PACKED)) {
        return agi_fail_field(AG_INVALID_ARGUMENT, l->name,
                              "%s is given, but packed sequences have their lengths in the offsets", l->name);
    }
    if (l->kind == PACKED && !agi_has(p, AG_PACKED)) {
        return agi_fail_field(AG_INVALID_ARGUMENT, l->name, "%s is given, but the problem is not packed",
                              l->name);
    }
    if (l->kind == POSITIONS && p->align == AG_ALIGN_BOTTOM_RIGHT) {
        return agi_fail_field(AG_INVALID_ARGUMENT, l->name,
                              "%s is given: bottom-right alignment allows no offsets", l->name);
    }
    return AG_OK;
}

static ag_status check_device_list(const agi_call *call, const device_list *l)
{
    const agi_backend *backend = call->plan->backend;
    if (!(backend->abilities & AGI_CAN_DEVICE_LISTS)) {
        return agi_fail_field(AG_UNSUPPORTED, l->name, "%s is given, but the %s backend runs on no device",
                              l->name, backend->name);
    }
    if (l->host_given) {
        return agi_fail_field(AG_INVALID_ARGUMENT, l->name, "%s is given, and so is %s: give one of them",
                              l->name, l->host_name);
    }
    if (l->one != 0) {
        return agi_fail_field(AG_INVALID_ARGUMENT, l->name, "%s is given, but %s is %lld: must be zero",
                              l->name, l->one_name, (long long)l->one);
    }
    if ((uintptr_t)l->list % sizeof(int64_t) != 0) {
        return agi_fail_field(AG_INVALID_ARGUMENT, l->name,
                              "%s is %p: not aligned to its elements of 8 bytes", l->name, l->list);
    }
    return check_device_kind(call, l);
}

static ag_status check_device_lists(const agi_call *call)
{
    device_list lists[N_DEVICE_LISTS];
    ag_status status = AG_OK;
    list_device_lists(&call->a, lists);
    for (int i = 0; i < N_DEVICE_LISTS && status == AG_OK; i++) {
        status = lists[i].list == NULL ? AG_OK : check_device_list(call, &lists[i]);
    }
    return status;
}

ag_status agi_check_device_list_pointers(const agi_call *call)
{
    const ag_plan *plan = call->plan;
    device_list lists[N_DEVICE_LISTS];
    ag_status status = AG_OK;
    list_device_lists(&call->a, lists);
    for (int i = 0; i < N_DEVICE_LISTS && status == AG_OK; i++) {
        status =
            lists[i].list == NULL ? AG_OK : plan->backend->check_pointer(plan, lists[i].name, lists[i].list);
    }
    return status;
}

ag_status agi_check_lists(const agi_call *call)
{
    const ag_problem *p = &call->plan->p;
    const ag_args *a = &call->a;
    ag_status status = check_device_lists(call);
    if (status == AG_OK) {
        status = check_offsets(call);
    }
    if (status == AG_OK && (a->batch_offset < 0 || a->batch_offset > (int64_t)UINT32_MAX + 1 - p->batch)) {
        status = agi_fail_field(AG_INVALID_ARGUMENT, "batch_offset",
                                "batch_offset is %lld: must be from 0 to %lld", (long long)a->batch_offset,
                                (long long)UINT32_MAX + 1 - (long long)p->batch);
    }
    if (status == AG_OK) {
        status = check_lengths(call, "q_lengths", a->q_lengths, p->q_len);
    }
    if (status == AG_OK) {
        status = check_lengths(call, "kv_lengths", a->kv_lengths, p->kv_len);
    }
    if (status == AG_OK) {
        status =
            check_packed(call, "q_packed", a->q_packed, a->q_packed_device != NULL, p->q_len, p->q_total);
    }
    if (status == AG_OK) {
        status =
            check_packed(call, "k_packed", a->k_packed, a->k_packed_device != NULL, p->kv_len, p->kv_total);
    }
    return status;
}
