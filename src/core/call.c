/* Checking a call. One table has a row for each tensor of ag_args: its shape, its dtype, the feature
 * it belongs to and its role in each map; all checks walk that table. */
#include "call.h"

#include <stdlib.h>
#include <string.h>

#include "arena.h"
#include "backend.h"
#include "pool.h"
#include "status.h"

typedef enum { NONE, IN, IN_OPTIONAL, OUT, OUT_OPTIONAL } role;
typedef enum { DTYPE, OUT_DTYPE, GRAD_DTYPE, AUX_DTYPE, FLOAT64, BYTE } number_kind;

typedef struct {
    const char *name;
    size_t offset;
    agi_shape shape;
    number_kind number;
    uint32_t feature;      /* the problem's flag without which the tensor has no meaning; 0: none */
    uint32_t accumulate;   /* its bit, where it is an output */
    role role[AGI_N_MAPS]; /* forward, vjp, jvp, vjp_jvp */
} field;

#define AT(member) #member, offsetof(ag_args, member)

static const field fields[] = {
    {AT(q), AGI_SHAPE_Q, DTYPE, 0, 0, {IN, IN, IN, IN}},
    {AT(k), AGI_SHAPE_K, DTYPE, 0, 0, {IN, IN, IN, IN}},
    {AT(v), AGI_SHAPE_V, DTYPE, 0, 0, {IN, IN, IN, IN}},
    {AT(bias), AGI_SHAPE_BIAS, AUX_DTYPE, AG_BIAS, 0, {IN, IN, IN, IN}},
    {AT(mask), AGI_SHAPE_MASK, BYTE, AG_MASK, 0, {IN, IN, IN, IN}},
    {AT(table), AGI_SHAPE_TABLE, AUX_DTYPE, AG_TABLE, 0, {IN, IN, IN, IN}},
    {AT(sink), AGI_SHAPE_SINK, AUX_DTYPE, AG_SINK, 0, {IN, IN, IN, IN}},

    {AT(o), AGI_SHAPE_O, OUT_DTYPE, 0, AG_ACC_O, {OUT, IN, OUT_OPTIONAL, IN}},
    {AT(lse), AGI_SHAPE_ROW, FLOAT64, 0, AG_ACC_LSE, {OUT_OPTIONAL, IN, OUT_OPTIONAL, IN}},

    {AT(d_o), AGI_SHAPE_O, OUT_DTYPE, 0, 0, {NONE, IN, NONE, IN}},
    {AT(d_lse), AGI_SHAPE_ROW, FLOAT64, 0, 0, {NONE, IN_OPTIONAL, NONE, IN_OPTIONAL}},
    {AT(dq), AGI_SHAPE_Q, GRAD_DTYPE, 0, AG_ACC_DQ, {NONE, OUT_OPTIONAL, NONE, NONE}},
    {AT(dk), AGI_SHAPE_K, GRAD_DTYPE, 0, AG_ACC_DK, {NONE, OUT_OPTIONAL, NONE, NONE}},
    {AT(dv), AGI_SHAPE_V, GRAD_DTYPE, 0, AG_ACC_DV, {NONE, OUT_OPTIONAL, NONE, NONE}},
    {AT(dbias), AGI_SHAPE_BIAS, AUX_DTYPE, AG_BIAS, AG_ACC_DBIAS, {NONE, OUT_OPTIONAL, NONE, NONE}},
    {AT(dtable), AGI_SHAPE_TABLE, AUX_DTYPE, AG_TABLE, AG_ACC_DTABLE, {NONE, OUT_OPTIONAL, NONE, NONE}},
    {AT(dsink), AGI_SHAPE_SINK, AUX_DTYPE, AG_SINK, AG_ACC_DSINK, {NONE, OUT_OPTIONAL, NONE, NONE}},

    {AT(tq), AGI_SHAPE_Q, DTYPE, 0, 0, {NONE, NONE, IN_OPTIONAL, IN_OPTIONAL}},
    {AT(tk), AGI_SHAPE_K, DTYPE, 0, 0, {NONE, NONE, IN_OPTIONAL, IN_OPTIONAL}},
    {AT(tv), AGI_SHAPE_V, DTYPE, 0, 0, {NONE, NONE, IN_OPTIONAL, IN_OPTIONAL}},
    {AT(tbias), AGI_SHAPE_BIAS, AUX_DTYPE, AG_BIAS, 0, {NONE, NONE, IN_OPTIONAL, IN_OPTIONAL}},
    {AT(ttable), AGI_SHAPE_TABLE, AUX_DTYPE, AG_TABLE, 0, {NONE, NONE, IN_OPTIONAL, IN_OPTIONAL}},
    {AT(tsink), AGI_SHAPE_SINK, AUX_DTYPE, AG_SINK, 0, {NONE, NONE, IN_OPTIONAL, IN_OPTIONAL}},
    {AT(to), AGI_SHAPE_O, OUT_DTYPE, 0, AG_ACC_TO, {NONE, NONE, OUT, IN}},
    {AT(mu), AGI_SHAPE_ROW, FLOAT64, 0, AG_ACC_MU, {NONE, NONE, OUT_OPTIONAL, IN}},

    {AT(td_o), AGI_SHAPE_O, OUT_DTYPE, 0, 0, {NONE, NONE, NONE, IN_OPTIONAL}},
    {AT(td_lse), AGI_SHAPE_ROW, FLOAT64, 0, 0, {NONE, NONE, NONE, IN_OPTIONAL}},
    {AT(tdq), AGI_SHAPE_Q, GRAD_DTYPE, 0, AG_ACC_TDQ, {NONE, NONE, NONE, OUT_OPTIONAL}},
    {AT(tdk), AGI_SHAPE_K, GRAD_DTYPE, 0, AG_ACC_TDK, {NONE, NONE, NONE, OUT_OPTIONAL}},
    {AT(tdv), AGI_SHAPE_V, GRAD_DTYPE, 0, AG_ACC_TDV, {NONE, NONE, NONE, OUT_OPTIONAL}},
    {AT(tdbias), AGI_SHAPE_BIAS, AUX_DTYPE, AG_BIAS, AG_ACC_TDBIAS, {NONE, NONE, NONE, OUT_OPTIONAL}},
    {AT(tdtable), AGI_SHAPE_TABLE, AUX_DTYPE, AG_TABLE, AG_ACC_TDTABLE, {NONE, NONE, NONE, OUT_OPTIONAL}},
    {AT(tdsink), AGI_SHAPE_SINK, AUX_DTYPE, AG_SINK, AG_ACC_TDSINK, {NONE, NONE, NONE, OUT_OPTIONAL}},
};

enum { N_FIELDS = sizeof fields / sizeof fields[0], N_MERGE = 12 };

static const char *const map_names[AGI_N_MAPS] = {"ag_forward", "ag_vjp", "ag_jvp", "ag_vjp_jvp"};

void agi_shape_of(const ag_problem *p, agi_shape shape, int64_t size[4])
{
    const bool packed = agi_has(p, AG_PACKED);
    const int64_t B = packed ? 1 : p->batch;
    const int64_t q_rows = packed ? p->q_total : p->q_len;
    const int64_t k_rows = packed ? p->kv_total : p->kv_len;
    const int64_t shapes[][4] = {
        [AGI_SHAPE_Q] = {B, p->heads, q_rows, p->dim_qk},
        [AGI_SHAPE_K] = {B, p->kv_heads, k_rows, p->dim_qk},
        [AGI_SHAPE_V] = {B, p->kv_heads, k_rows, p->dim_v},
        [AGI_SHAPE_O] = {B, p->heads, q_rows, p->dim_v},
        [AGI_SHAPE_ROW] = {B, p->heads, q_rows, 1},
        [AGI_SHAPE_BIAS] = {p->bias_size[0], p->bias_size[1], p->bias_size[2], p->bias_size[3]},
        [AGI_SHAPE_MASK] = {p->mask_size[0], p->mask_size[1], p->mask_size[2], p->mask_size[3]},
        [AGI_SHAPE_TABLE] = {1, p->table_heads, 1, p->table_buckets},
        [AGI_SHAPE_SINK] = {1, p->heads, 1, 1},
    };
    memcpy(size, shapes[shape], sizeof shapes[shape]);
}

static size_t element_bytes(const ag_problem *p, number_kind number)
{
    switch (number) {
    case DTYPE: return ag_dtype_size(p->dtype);
    case OUT_DTYPE: return ag_dtype_size(p->out_dtype);
    case GRAD_DTYPE: return ag_dtype_size(p->grad_dtype);
    case AUX_DTYPE: return ag_dtype_size(p->aux_dtype);
    case FLOAT64: return sizeof(double);
    default: return 1;
    }
}

/* ---- One tensor ---- */

/* A tensor of a call with all that the checks ask about it. */
typedef struct {
    const char *call, *name;
    const ag_tensor *t;
    int64_t size[4];
    size_t bytes; /* of an element */
    bool output, required;
} operand;

static ag_status check_pointer(const operand *x)
{
    if (x->t->data == NULL) {
        return x->required && agi_count(x->size) > 0
                   ? agi_fail_field(AG_INVALID_ARGUMENT, x->name, "%s: %s is NULL", x->call, x->name)
                   : AG_OK;
    }
    if ((uintptr_t)x->t->data % x->bytes != 0) {
        return agi_fail_field(AG_INVALID_ARGUMENT, x->name,
                              "%s: %s is %p: not aligned to its elements of %zu bytes", x->call, x->name,
                              x->t->data, x->bytes);
    }
    return AG_OK;
}

/* The distance from the first to the last element along each axis, and all of them together, must be
 * numbers of bytes that fit. */
static ag_status check_extent(const operand *x)
{
    uint64_t room = (uint64_t)INT64_MAX / x->bytes;
    for (int axis = 0; axis < 4; axis++) {
        const int64_t stride = x->t->strides[axis];
        const uint64_t step = stride < 0 ? 0 - (uint64_t)stride : (uint64_t)stride;
        const uint64_t steps = x->size[axis] > 1 ? (uint64_t)(x->size[axis] - 1) : 0;
        if (steps > 0 && step > room / steps) {
            return agi_fail_field(AG_INVALID_ARGUMENT, x->name,
                                  "%s: strides[%d] of %s is %lld: overflows over %lld elements", x->call,
                                  axis, x->name, (long long)stride, (long long)x->size[axis]);
        }
        room -= step * steps;
    }
    return AG_OK;
}

typedef struct {
    int64_t step, size;
} axis_steps;

static int by_step(const void *a, const void *b)
{
    const int64_t x = ((const axis_steps *)a)->step, y = ((const axis_steps *)b)->step;
    return (x > y) - (x < y);
}

/* An output's elements must not overlap: its steps, sorted, each exceed the extent of those below. */
static ag_status check_no_overlap(const operand *x)
{
    axis_steps axes[4];
    int64_t extent = 0;
    for (int axis = 0; axis < 4; axis++) {
        const int64_t stride = x->t->strides[axis];
        axes[axis] = (axis_steps){x->size[axis] > 1 ? (stride < 0 ? -stride : stride) : 0, x->size[axis]};
    }
    qsort(axes, 4, sizeof axes[0], by_step);
    for (int axis = 0; axis < 4; axis++) {
        if (axes[axis].size > 1 && axes[axis].step <= extent) {
            return agi_fail_field(AG_INVALID_ARGUMENT, x->name,
                                  "%s: a stride of %s is %lld: its elements overlap", x->call, x->name,
                                  (long long)axes[axis].step);
        }
        extent += axes[axis].step * (axes[axis].size - 1);
    }
    return AG_OK;
}

static ag_status check_operand(const operand *x)
{
    ag_status status = check_pointer(x);
    if (status != AG_OK || x->t->data == NULL || agi_count(x->size) == 0) {
        return status;
    }
    status = check_extent(x);
    return status == AG_OK && x->output ? check_no_overlap(x) : status;
}

/* No output stands where another operand stands; allowed(first, second) makes exceptions. */
static ag_status check_aliases(const operand *x, int n, bool (*allowed)(const operand *a, const operand *b))
{
    for (int i = 0; i < n; i++) {
        for (int j = 0; j < n && x[i].output && x[i].t->data != NULL; j++) {
            if (i == j || x[i].t->data != x[j].t->data || agi_count(x[i].size) == 0 ||
                agi_count(x[j].size) == 0) {
                continue;
            }
            if (allowed == NULL || !allowed(&x[i], &x[j])) {
                return agi_fail_field(AG_INVALID_ARGUMENT, x[i].name,
                                      "%s: output %s is %p, which is also %s %s", x[i].call, x[i].name,
                                      x[i].t->data, x[j].output ? "output" : "input", x[j].name);
            }
        }
    }
    return AG_OK;
}

static ag_status check_operands(const operand *x, int n, bool (*allowed)(const operand *a, const operand *b))
{
    for (int i = 0; i < n; i++) {
        const ag_status status = check_operand(&x[i]);
        if (status != AG_OK) {
            return status;
        }
    }
    return check_aliases(x, n, allowed);
}

/* ---- The tensors of a map ---- */

static const ag_tensor *tensor_of(const ag_args *a, const field *f)
{
    return (const ag_tensor *)(const void *)((const char *)a + f->offset);
}

/* The operands of the map; a tensor of a feature that the problem lacks is refused. */
static ag_status gather(const agi_call *call, agi_purpose purpose, operand x[N_FIELDS], int *n)
{
    const ag_problem *p = &call->plan->p;
    *n = 0;
    for (int i = 0; i < N_FIELDS; i++) {
        const field *f = &fields[i];
        const role part = f->role[call->map];
        if (part == NONE || (purpose == AGI_TRACE && (part == OUT || part == OUT_OPTIONAL))) {
            continue;
        }
        if (f->feature != 0 && !agi_has(p, f->feature)) {
            if (tensor_of(&call->a, f)->data != NULL) {
                return agi_fail_field(AG_INVALID_ARGUMENT, f->name,
                                      "%s: %s is given, but the problem has no such feature",
                                      map_names[call->map], f->name);
            }
            continue;
        }
        operand *o = &x[(*n)++];
        *o = (operand){.call = map_names[call->map], .name = f->name, .t = tensor_of(&call->a, f)};
        agi_shape_of(p, f->shape, o->size);
        o->bytes = element_bytes(p, f->number);
        o->output = part == OUT || part == OUT_OPTIONAL;
        o->required = part == IN || part == OUT;
    }
    return AG_OK;
}

/* A call for nothing is a mistake, not a wish. */
static ag_status check_some_output(const operand *x, int n)
{
    int64_t elements = 0;
    for (int i = 0; i < n; i++) {
        if (x[i].output && x[i].t->data != NULL) {
            return AG_OK;
        }
        elements += x[i].output ? (agi_count(x[i].size) > 0) : 0;
    }
    return elements == 0 ? AG_OK
                         : agi_fail_field(AG_INVALID_ARGUMENT, "args", "%s: every output is NULL", x[0].call);
}

static ag_status check_accumulate(const agi_call *call)
{
    uint32_t known = 0;
    for (int i = 0; i < N_FIELDS; i++) {
        known |= fields[i].accumulate;
    }
    if (call->a.accumulate & ~known) {
        return agi_fail_field(AG_INVALID_ARGUMENT, "accumulate", "%s: accumulate is 0x%lx: unknown bits",
                              map_names[call->map], (unsigned long)call->a.accumulate);
    }
    return AG_OK;
}

/* ---- Lengths and offsets ---- */

static ag_status check_lengths(const agi_call *call, const char *name, const int64_t *lengths, int64_t most)
{
    if (lengths == NULL) {
        return AG_OK;
    }
    if (agi_has(&call->plan->p, AG_PACKED)) {
        return agi_fail_field(AG_INVALID_ARGUMENT, name,
                              "%s: %s is given, but packed sequences have their lengths in the offsets",
                              map_names[call->map], name);
    }
    for (int64_t b = 0; b < call->plan->p.batch; b++) {
        if (lengths[b] < 0 || lengths[b] > most) {
            return agi_fail_field(AG_INVALID_ARGUMENT, name, "%s: %s[%lld] is %lld: must be from 0 to %lld",
                                  map_names[call->map], name, (long long)b, (long long)lengths[b],
                                  (long long)most);
        }
    }
    return AG_OK;
}

static ag_status check_packed(const agi_call *call, const char *name, const int64_t *offsets, int64_t longest,
                              int64_t total)
{
    const char *map = map_names[call->map];
    if (!agi_has(&call->plan->p, AG_PACKED)) {
        return offsets == NULL ? AG_OK
                               : agi_fail_field(AG_INVALID_ARGUMENT, name,
                                                "%s: %s is given, but the problem is not packed", map, name);
    }
    if (offsets == NULL) {
        return agi_fail_field(AG_INVALID_ARGUMENT, name, "%s: %s is NULL: the problem is packed", map, name);
    }
    if (offsets[0] != 0) {
        return agi_fail_field(AG_INVALID_ARGUMENT, name, "%s: %s[0] is %lld: must be 0", map, name,
                              (long long)offsets[0]);
    }
    for (int64_t b = 0; b < call->plan->p.batch; b++) {
        if (offsets[b + 1] < offsets[b] || offsets[b + 1] > total) {
            return agi_fail_field(AG_INVALID_ARGUMENT, name,
                                  "%s: %s[%lld] is %lld: must be from %lld, the offset before, to %lld", map,
                                  name, (long long)b + 1, (long long)offsets[b + 1], (long long)offsets[b],
                                  (long long)total);
        }
        if (offsets[b + 1] - offsets[b] > longest) {
            return agi_fail_field(
                AG_INVALID_ARGUMENT, name, "%s: %s[%lld] is %lld: sequence %lld is longer than %lld", map,
                name, (long long)b + 1, (long long)offsets[b + 1], (long long)b, (long long)longest);
        }
    }
    return AG_OK;
}

static ag_status check_position(const agi_call *call, const char *name, int64_t offset)
{
    if (offset < -AGI_MAX_POSITION || offset > AGI_MAX_POSITION) {
        return agi_fail_field(AG_INVALID_ARGUMENT, name, "%s: %s is %lld: must be within 2^59 of 0",
                              map_names[call->map], name, (long long)offset);
    }
    if (offset != 0 && call->plan->p.align == AG_ALIGN_BOTTOM_RIGHT) {
        return agi_fail_field(
            AG_INVALID_ARGUMENT, name,
            "%s: %s is %lld: bottom-right alignment allows no offset: take top-left and put the "
            "shift into q_offset",
            map_names[call->map], name, (long long)offset);
    }
    return AG_OK;
}

static ag_status check_host_arguments(const agi_call *call)
{
    const ag_problem *p = &call->plan->p;
    const ag_args *a = &call->a;
    ag_status status = check_position(call, "q_offset", a->q_offset);
    if (status == AG_OK) {
        status = check_position(call, "k_offset", a->k_offset);
    }
    if (status == AG_OK && (a->batch_offset < 0 || a->batch_offset > (int64_t)UINT32_MAX + 1 - p->batch)) {
        status = agi_fail_field(AG_INVALID_ARGUMENT, "batch_offset",
                                "%s: batch_offset is %lld: must be from 0 to %lld", map_names[call->map],
                                (long long)a->batch_offset, (long long)UINT32_MAX + 1 - (long long)p->batch);
    }
    if (status == AG_OK) {
        status = check_lengths(call, "q_lengths", a->q_lengths, p->q_len);
    }
    if (status == AG_OK) {
        status = check_lengths(call, "kv_lengths", a->kv_lengths, p->kv_len);
    }
    if (status == AG_OK) {
        status = check_packed(call, "q_packed", a->q_packed, p->q_len, p->q_total);
    }
    if (status == AG_OK) {
        status = check_packed(call, "k_packed", a->k_packed, p->kv_len, p->kv_total);
    }
    return status;
}

/* ---- The whole call ---- */

ag_status agi_call_check(agi_call *call, const ag_plan *plan, agi_map map, agi_purpose purpose,
                         const ag_args *args, const void *workspace, size_t bytes)
{
    operand x[N_FIELDS];
    int n = 0;
    if (plan == NULL) {
        return agi_fail_field(AG_INVALID_ARGUMENT, "plan", "%s: plan is NULL", map_names[map]);
    }
    call->plan = plan;
    call->map = map;
    ag_status status = agi_read_struct(&call->a, sizeof call->a, args, "args", AG_INVALID_ARGUMENT);
    if (status == AG_OK) {
        status = gather(call, purpose, x, &n);
    }
    if (status == AG_OK) {
        status = check_operands(x, n, NULL);
    }
    if (status == AG_OK) {
        status = check_some_output(x, n);
    }
    if (status == AG_OK) {
        status = check_accumulate(call);
    }
    if (status == AG_OK) {
        status = check_host_arguments(call);
    }
    if (status == AG_OK && (workspace == NULL || bytes < plan->bytes[map])) {
        status = agi_fail_field(AG_WORKSPACE, "workspace", "%s: workspace is %p with %zu bytes: needs %zu",
                                map_names[map], workspace, bytes, plan->bytes[map]);
    }
    return status;
}

/* A merge may write over its first part, each output over its own namesake only. */
static bool same_of_first_part(const operand *a, const operand *b)
{
    const size_t n = strlen(a->name);
    bool same = strncmp(a->name, b->name, n) == 0 && strcmp(b->name + n, "1") == 0;
    for (int axis = 0; axis < 4; axis++) {
        same &= a->size[axis] == 1 || a->t->strides[axis] == b->t->strides[axis];
    }
    return same;
}

ag_status agi_merge_check(ag_merge_args *m, const ag_plan *plan, const ag_merge_args *args)
{
    if (plan == NULL) {
        return agi_fail_field(AG_INVALID_ARGUMENT, "plan", "ag_merge: plan is NULL");
    }
    ag_status status = agi_read_struct(m, sizeof *m, args, "args", AG_INVALID_ARGUMENT);
    if (status != AG_OK) {
        return status;
    }
    if (m->reserved != 0) {
        return agi_fail_field(AG_INVALID_ARGUMENT, "reserved", "ag_merge: reserved is %lu: must be zero",
                              (unsigned long)m->reserved);
    }
    const bool tangents =
        m->to1.data || m->mu1.data || m->to2.data || m->mu2.data || m->to.data || m->mu.data;
    static const char *const names[N_MERGE] = {"o1",  "lse1", "to1", "mu1", "o2", "lse2",
                                               "to2", "mu2",  "o",   "lse", "to", "mu"};
    operand x[N_MERGE];
    for (int i = 0; i < N_MERGE; i++) {
        const bool row = i % 2 == 1, tangent = i % 4 >= 2;
        const void *t = (const char *)m + offsetof(ag_merge_args, o1) + (size_t)i * sizeof(ag_tensor);
        x[i] = (operand){.call = "ag_merge", .name = names[i], .t = t, .output = i >= 8};
        agi_shape_of(&plan->p, row ? AGI_SHAPE_ROW : AGI_SHAPE_O, x[i].size);
        x[i].bytes = element_bytes(&plan->p, row ? FLOAT64 : OUT_DTYPE);
        x[i].required = tangents || !tangent;
    }
    return check_operands(x, N_MERGE, same_of_first_part);
}

ag_status agi_exec_check(ag_exec *checked, const ag_exec *exec)
{
    if (exec == NULL) {
        *checked = (ag_exec)AG_EXEC_INIT;
        return AG_OK;
    }
    const ag_status status = agi_read_struct(checked, sizeof *checked, exec, "exec", AG_INVALID_ARGUMENT);
    if (status == AG_OK && checked->reserved != 0) {
        return agi_fail_field(AG_INVALID_ARGUMENT, "exec.reserved", "exec: reserved is %lu: must be zero",
                              (unsigned long)checked->reserved);
    }
    return status;
}

/* ---- Sequences and work ---- */

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
    s->shift = a->q_offset + (p->align == AG_ALIGN_BOTTOM_RIGHT ? s->n_k - s->n_q : 0);
}

/* Lanes at most: more tasks than that share them. */
enum { MAX_LANES = 64 };

/* A share of the items, on a cache line of its own: tasks meet there only at the end. */
typedef struct {
    _Alignas(AGI_CACHE_LINE) _Atomic int64_t next;
    int64_t end;
} lane;

typedef struct {
    lane lanes[MAX_LANES];
    int64_t n_lanes;
    agi_work work;
    void *arg;
} items;

static void draw_items(void *arg, int64_t index)
{
    items *x = arg;
    for (int64_t l = 0; l < x->n_lanes; l++) {
        lane *from = &x->lanes[(index + l) % x->n_lanes];
        int64_t item = atomic_fetch_add_explicit(&from->next, 1, memory_order_relaxed);
        while (item < from->end) {
            x->work(x->arg, item, index);
            item = atomic_fetch_add_explicit(&from->next, 1, memory_order_relaxed);
        }
    }
}

ag_status agi_run_items(const ag_plan *plan, const ag_exec *exec, int64_t n_items, agi_work work, void *arg)
{
    const int64_t n_tasks = n_items < plan->threads ? n_items : plan->threads;
    items x;
    x.n_lanes = n_tasks < MAX_LANES ? n_tasks : MAX_LANES;
    x.work = work;
    x.arg = arg;
    for (int64_t l = 0; l < x.n_lanes; l++) {
        atomic_init(&x.lanes[l].next, agi_share(n_items, l, x.n_lanes));
        x.lanes[l].end = agi_share(n_items, l + 1, x.n_lanes);
    }
    if (exec->run == NULL) {
        agi_pool_run(n_tasks, draw_items, &x);
    } else if (n_tasks > 0) {
        exec->run(exec->ctx, n_tasks, draw_items, &x);
    }
    /* Every task draws until none is left, so one task that ran has seen to all. */
    for (int64_t l = 0; l < x.n_lanes; l++) {
        if (atomic_load(&x.lanes[l].next) < x.lanes[l].end) {
            return agi_fail_field(AG_INVALID_ARGUMENT, "exec.run",
                                  "exec: run returned, but ran none of its %lld tasks", (long long)n_tasks);
        }
    }
    return AG_OK;
}
