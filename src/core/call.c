/* Checking a call before anything is written: its tensors and its workspace; lists.c checks its lists. */
#include "core/call.h"

#include <string.h>

#include "core/backend.h"
#include "core/lists.h"
#include "core/operand.h"
#include "core/status.h"
#include "core/structs.h"

enum { N_MERGE_TENSORS = 30 };

/* ---- The tensors of a map ---- */

static const ag_tensor *tensor_of(const ag_args *a, const agi_tensor_info *f)
{
    return (const ag_tensor *)(const void *)((const char *)a + f->offset);
}

static agi_role role_of(const agi_call *call, const agi_tensor_info *f)
{
    return agi_role_of(f, call->map, call->a.flags);
}

static ag_status refuse_low_half(const ag_problem *p, const char *name)
{
    return agi_fail_field(AG_INVALID_ARGUMENT, name,
                          "%s is given, but out_dtype is %s: only 16-bit outputs have a low half", name,
                          ag_dtype_name(p->out_dtype));
}

/* Sets *exists if the problem has the tensor; if it does not, refuses a call that gives it. Refuses a low half of an
 * output that is added to. */
static ag_status check_exists(const agi_call *call, const agi_tensor_info *f, bool *exists)
{
    const ag_problem *p = &call->plan->p;
    const bool given = tensor_of(&call->a, f)->data != NULL, low = f->element == AGI_LOW_HALF;
    const bool has_feature = f->feature == 0 || agi_has(p, f->feature);
    *exists = has_feature && (!low || agi_has_low_half(p));
    if (given && !has_feature) {
        return agi_fail_field(AG_INVALID_ARGUMENT, f->name,
                              "%s is given, but the problem has no such feature", f->name);
    }
    if (given && !*exists) {
        return refuse_low_half(p, f->name);
    }
    if (given && low && agi_is_output(role_of(call, f)) && (call->a.accumulate & f->accumulate) != 0) {
        return agi_fail_field(AG_INVALID_ARGUMENT, f->name, "%s is given, but accumulate has %s", f->name,
                              f->accumulate == AG_ACC_O ? "AG_ACC_O" : "AG_ACC_TO");
    }
    return AG_OK;
}

/* Collects the operands of the map; with AGI_TRACE, only its inputs. Refuses a tensor that the problem does not
 * have. */
static ag_status gather(const agi_call *call, agi_purpose purpose, agi_operand x[AGI_N_TENSORS], int *n)
{
    const ag_problem *p = &call->plan->p;
    *n = 0;
    for (int i = 0; i < AGI_N_TENSORS; i++) {
        const agi_tensor_info *f = &agi_tensors[i];
        const agi_role role = role_of(call, f);
        bool exists;
        if (role == AGI_NONE || (purpose == AGI_TRACE && agi_is_output(role))) {
            continue;
        }
        const ag_status status = check_exists(call, f, &exists);
        if (status != AG_OK) {
            return status;
        }
        if (!exists) {
            continue;
        }
        agi_operand *o = &x[(*n)++];
        *o = (agi_operand){.name = f->name, .t = tensor_of(&call->a, f)};
        agi_shape_of(p, f->shape, o->size);
        o->bytes = agi_element_size(p, f->element);
        o->output = agi_is_output(role);
        o->required = role == AGI_IN || role == AGI_OUT;
    }
    return AG_OK;
}

/* Refuses a call without any output, unless all of its outputs are empty or there are none (AGI_TRACE). */
static ag_status check_some_output(const agi_operand *x, int n)
{
    bool expects_output = false;
    for (int i = 0; i < n; i++) {
        if (x[i].output && x[i].t->data != NULL) {
            return AG_OK;
        }
        expects_output |= x[i].output && agi_count(x[i].size) > 0;
    }
    return expects_output ? agi_fail_field(AG_INVALID_ARGUMENT, "args", "args: every output is NULL") : AG_OK;
}

static ag_status check_accumulate(const agi_call *call)
{
    uint32_t known = 0;
    for (int i = 0; i < AGI_N_TENSORS; i++) {
        known |= agi_tensors[i].accumulate;
    }
    if (call->a.accumulate & ~known) {
        return agi_fail_field(AG_INVALID_ARGUMENT, "accumulate", "accumulate is 0x%lx: unknown bits",
                              (unsigned long)call->a.accumulate);
    }
    return AG_OK;
}

/* ---- The whole call ---- */

static ag_status check_flags(const agi_call *call)
{
    const ag_args *a = &call->a;
    if (a->flags & ~(uint32_t)AG_GIVEN_O) {
        return agi_fail_field(AG_INVALID_ARGUMENT, "flags", "flags is 0x%lx: unknown bits",
                              (unsigned long)a->flags);
    }
    if (a->reserved2 != 0) {
        return agi_fail_field(AG_INVALID_ARGUMENT, "reserved2", "reserved2 is %lu: must be zero",
                              (unsigned long)a->reserved2);
    }
    return AG_OK;
}

/* Refuses what the plan's backend cannot do. */
static ag_status check_abilities(const agi_call *call)
{
    const agi_backend *backend = call->plan->backend;
    if (!agi_can_run(call->plan, call->map)) {
        return agi_fail_field(AG_UNSUPPORTED, "plan", "plan: the %s backend has no jvp_jvp", backend->name);
    }
    if (agi_given_o(call) && !(backend->abilities & AGI_CAN_GIVEN_O)) {
        return agi_fail_field(AG_UNSUPPORTED, "flags", "flags has AG_GIVEN_O, which the %s backend lacks",
                              backend->name);
    }
    return AG_OK;
}

/* Is this memory that the processor can read? Asks the backends that have memory of their own. */
static ag_status check_host_pointer(const char *name, const void *pointer)
{
    ag_status status = AG_OK;
    for (int i = 0; agi_backends[i] != NULL && status == AG_OK; i++) {
        status = agi_backends[i]->check_host_pointer == NULL
                     ? AG_OK
                     : agi_backends[i]->check_host_pointer(name, pointer);
    }
    return status;
}

/* Is it in the memory that the plan takes: a device's, or the host's? */
static ag_status check_place(const ag_plan *plan, const char *name, const void *pointer)
{
    return agi_on_device(plan->backend) ? plan->backend->check_pointer(plan, name, pointer)
                                        : check_host_pointer(name, pointer);
}

/* Of the operands that have elements. */
static ag_status check_operand_pointers(const ag_plan *plan, const agi_operand *x, int n)
{
    ag_status status = AG_OK;
    for (int i = 0; i < n && status == AG_OK; i++) {
        status = x[i].begin == x[i].end ? AG_OK : check_place(plan, x[i].name, x[i].t->data);
    }
    return status;
}

/* The lists that are not a device's are read here, whatever the plan's backend is. */
static ag_status check_host_lists(const ag_args *a)
{
    const struct {
        const char *name;
        const int64_t *list;
    } lists[] = {{"q_lengths", a->q_lengths}, {"kv_lengths", a->kv_lengths}, {"q_packed", a->q_packed},
                 {"k_packed", a->k_packed},   {"q_offsets", a->q_offsets},   {"k_offsets", a->k_offsets}};
    ag_status status = AG_OK;
    for (size_t i = 0; i < sizeof lists / sizeof lists[0] && status == AG_OK; i++) {
        status = lists[i].list == NULL ? AG_OK : check_host_pointer(lists[i].name, lists[i].list);
    }
    return status;
}

static ag_status check_memory(const agi_call *call, const agi_operand *x, int n, const void *workspace)
{
    ag_status status = check_operand_pointers(call->plan, x, n);
    if (status == AG_OK && agi_on_device(call->plan->backend)) {
        status = agi_check_device_list_pointers(call);
    }
    return status == AG_OK ? check_place(call->plan, "workspace", workspace) : status;
}

ag_status agi_call_check(agi_call *call, const ag_plan *plan, agi_map map, agi_purpose purpose,
                         const ag_args *args, const void *workspace, size_t bytes)
{
    agi_operand x[AGI_N_TENSORS];
    int n = 0;
    if (plan == NULL) {
        return agi_fail_field(AG_INVALID_ARGUMENT, "plan", "plan is NULL");
    }
    call->plan = plan;
    call->map = map;
    call->exec = NULL;
    ag_status status = agi_read_struct(&call->a, sizeof call->a, args, "args", AG_INVALID_ARGUMENT);
    if (status == AG_OK) {
        status = check_flags(call);
    }
    if (status == AG_OK) {
        status = check_abilities(call);
    }
    if (status == AG_OK) {
        status = gather(call, purpose, x, &n);
    }
    if (status == AG_OK) {
        status = agi_check_operands(x, n, NULL, agi_fail_field);
    }
    if (status == AG_OK) {
        status = check_some_output(x, n);
    }
    if (status == AG_OK) {
        status = check_accumulate(call);
    }
    if (status == AG_OK) {
        status = check_host_lists(&call->a);
    }
    if (status == AG_OK) {
        status = agi_check_lists(call);
    }
    if (status == AG_OK && (workspace == NULL || bytes < plan->bytes[map])) {
        status = agi_fail_field(AG_WORKSPACE, "workspace", "workspace is %p with %zu bytes: needs %zu",
                                workspace, bytes, plan->bytes[map]);
    }
    if (status == AG_OK) {
        status = agi_check_workspace_apart(x, n, workspace, bytes, agi_fail_field);
    }
    return status == AG_OK ? check_memory(call, x, n, workspace) : status;
}

/* May output a share the memory of input b? Only if b is the tensor of the same name of part 1 (o over o1, and so
 * on), at the same address with the same strides. */
static bool may_overwrite(const agi_operand *a, const agi_operand *b)
{
    const size_t n = strlen(a->name);
    bool same =
        a->t->data == b->t->data && strncmp(a->name, b->name, n) == 0 && strcmp(b->name + n, "1") == 0;
    for (int axis = 0; axis < 4; axis++) {
        same &= a->size[axis] == 1 || a->t->strides[axis] == b->t->strides[axis];
    }
    return same;
}

/* A tensor of ag_merge_args. */
typedef struct {
    const char *name;
    size_t offset;
    bool per_row; /* one float64 per row: lse, mu, smu, nu */
    int order;    /* of the derivative: 0 o and lse, 1 to and mu, 2 what the second one needs */
    bool low_half, output;
} merge_tensor;

#define AT_MERGE(member) #member, offsetof(ag_merge_args, member)

static const merge_tensor merge_tensors[N_MERGE_TENSORS] = {
    {AT_MERGE(o1), false, 0, false, false},    {AT_MERGE(lse1), true, 0, false, false},
    {AT_MERGE(to1), false, 1, false, false},   {AT_MERGE(mu1), true, 1, false, false},
    {AT_MERGE(o2), false, 0, false, false},    {AT_MERGE(lse2), true, 0, false, false},
    {AT_MERGE(to2), false, 1, false, false},   {AT_MERGE(mu2), true, 1, false, false},
    {AT_MERGE(o), false, 0, false, true},      {AT_MERGE(lse), true, 0, false, true},
    {AT_MERGE(to), false, 1, false, true},     {AT_MERGE(mu), true, 1, false, true},
    {AT_MERGE(o_low1), false, 0, true, false}, {AT_MERGE(to_low1), false, 1, true, false},
    {AT_MERGE(o_low2), false, 0, true, false}, {AT_MERGE(to_low2), false, 1, true, false},
    {AT_MERGE(o_low), false, 0, true, true},   {AT_MERGE(to_low), false, 1, true, true},
    {AT_MERGE(so1), false, 2, false, false},   {AT_MERGE(smu1), true, 2, false, false},
    {AT_MERGE(sto1), false, 2, false, false},  {AT_MERGE(nu1), true, 2, false, false},
    {AT_MERGE(so2), false, 2, false, false},   {AT_MERGE(smu2), true, 2, false, false},
    {AT_MERGE(sto2), false, 2, false, false},  {AT_MERGE(nu2), true, 2, false, false},
    {AT_MERGE(so), false, 2, false, true},     {AT_MERGE(smu), true, 2, false, true},
    {AT_MERGE(sto), false, 2, false, true},    {AT_MERGE(nu), true, 2, false, true},
};

static const ag_tensor *merge_tensor_of(const ag_merge_args *m, const merge_tensor *f)
{
    return (const ag_tensor *)(const void *)((const char *)m + f->offset);
}

/* Collects the operands of a merge. Low halves are optional; of the others, all up to the highest order that is given
 * are required. */
static ag_status gather_merge(const ag_merge_args *m, const ag_problem *p, agi_operand x[N_MERGE_TENSORS],
                              int *n)
{
    int highest = 0;
    for (int i = 0; i < N_MERGE_TENSORS; i++) {
        const bool given = merge_tensor_of(m, &merge_tensors[i])->data != NULL;
        highest = given && merge_tensors[i].order > highest ? merge_tensors[i].order : highest;
    }
    *n = 0;
    for (int i = 0; i < N_MERGE_TENSORS; i++) {
        const merge_tensor *f = &merge_tensors[i];
        const ag_tensor *t = merge_tensor_of(m, f);
        if (f->low_half && t->data == NULL) {
            continue;
        }
        if (f->low_half && !agi_has_low_half(p)) {
            return refuse_low_half(p, f->name);
        }
        agi_operand *o = &x[(*n)++];
        *o = (agi_operand){.name = f->name, .t = t, .output = f->output};
        agi_shape_of(p, f->per_row ? AGI_SHAPE_ROW : AGI_SHAPE_O, o->size);
        o->bytes = agi_element_size(p, f->per_row ? AGI_FLOAT64 : AGI_OUT_DTYPE);
        o->required = !f->low_half && f->order <= highest;
    }
    return AG_OK;
}

ag_status agi_merge_check(ag_merge_args *m, const ag_plan *plan, const ag_merge_args *args)
{
    if (plan == NULL) {
        return agi_fail_field(AG_INVALID_ARGUMENT, "plan", "plan is NULL");
    }
    ag_status status = agi_read_struct(m, sizeof *m, args, "args", AG_INVALID_ARGUMENT);
    if (status != AG_OK) {
        return status;
    }
    if (m->reserved != 0) {
        return agi_fail_field(AG_INVALID_ARGUMENT, "reserved", "args: reserved is %lu: must be zero",
                              (unsigned long)m->reserved);
    }
    agi_operand x[N_MERGE_TENSORS];
    int n;
    status = gather_merge(m, &plan->p, x, &n);
    if (status == AG_OK) {
        status = agi_check_operands(x, n, may_overwrite, agi_fail_field);
    }
    return status == AG_OK ? check_operand_pointers(plan, x, n) : status;
}

/* ---- Sequences ---- */

void agi_sequence_of(agi_sequence *s, const agi_call *call, int64_t b)
{
    const ag_problem *p = &call->plan->p;
    const ag_args *a = &call->a;
    *s = (agi_sequence){.b = b, .view = b};
    if (agi_has(p, AG_PACKED)) {
        s->view = 0;
        s->q0 = a->q_packed[b];
        s->k0 = a->k_packed[b];
        s->n_q = a->q_packed[b + 1] - s->q0;
        s->n_k = a->k_packed[b + 1] - s->k0;
    } else {
        s->n_q = a->q_lengths == NULL ? p->q_len : a->q_lengths[b];
        s->n_k = a->kv_lengths == NULL ? p->kv_len : a->kv_lengths[b];
    }
    s->shift = a->q_offsets != NULL ? a->q_offsets[b] : a->q_offset;
    s->shift += p->align == AG_ALIGN_BOTTOM_RIGHT ? s->n_k - s->n_q : 0;
    s->k_shift = a->k_offsets != NULL ? a->k_offsets[b] : a->k_offset;
}
