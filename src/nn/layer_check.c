/* Checks a call of the layer. One table has a row per array of ag_layer_args: its shape, its element type and its role
 * in each map; all checks walk that table. Attention's own arguments are checked by core. */
#include "nn/layer.h"

#include "core/status.h"
#include "core/structs.h"

typedef enum { NONE, IN, IN_OPTIONAL, OUT, OUT_OPTIONAL } role;
typedef enum { X_Q, X_K, X_V, Y, PARAMS, SAVED, D_SAVED } shape;
typedef enum { DTYPE, OUT_DTYPE, GRAD_DTYPE, BYTE } element_type;

typedef struct {
    const char *name;
    size_t offset;
    shape shape;
    element_type type;
    role role[AGI_N_MAPS]; /* forward, vjp, jvp, vjp_jvp, jvp_jvp */
} field;

#define AT(member) #member, offsetof(ag_layer_args, member)

static const field fields[] = {
    {AT(params), PARAMS, DTYPE, {IN, IN, IN, IN, IN}},
    {AT(x_q), X_Q, DTYPE, {IN, IN, IN, IN, NONE}},
    {AT(x_k), X_K, DTYPE, {IN, IN, IN, IN, NONE}},
    {AT(x_v), X_V, DTYPE, {IN, IN, IN, IN, NONE}},
    {AT(y), Y, OUT_DTYPE, {OUT, NONE, OUT_OPTIONAL, NONE, NONE}},
    {AT(saved), SAVED, BYTE, {OUT, IN, OUT, IN, IN}},

    {AT(dy), Y, OUT_DTYPE, {NONE, IN, NONE, IN, NONE}},
    {AT(dx_q), X_Q, GRAD_DTYPE, {NONE, OUT_OPTIONAL, NONE, NONE, NONE}},
    {AT(dx_k), X_K, GRAD_DTYPE, {NONE, OUT_OPTIONAL, NONE, NONE, NONE}},
    {AT(dx_v), X_V, GRAD_DTYPE, {NONE, OUT_OPTIONAL, NONE, NONE, NONE}},
    {AT(d_params), PARAMS, GRAD_DTYPE, {NONE, OUT_OPTIONAL, NONE, NONE, NONE}},
    {AT(d_saved), D_SAVED, BYTE, {NONE, OUT, NONE, IN, NONE}},

    {AT(tx_q), X_Q, DTYPE, {NONE, NONE, IN_OPTIONAL, IN_OPTIONAL, IN_OPTIONAL}},
    {AT(tx_k), X_K, DTYPE, {NONE, NONE, IN_OPTIONAL, IN_OPTIONAL, IN_OPTIONAL}},
    {AT(tx_v), X_V, DTYPE, {NONE, NONE, IN_OPTIONAL, IN_OPTIONAL, IN_OPTIONAL}},
    {AT(t_params), PARAMS, DTYPE, {NONE, NONE, IN_OPTIONAL, IN_OPTIONAL, IN_OPTIONAL}},
    {AT(ty), Y, OUT_DTYPE, {NONE, NONE, OUT, NONE, NONE}},
    {AT(t_saved), SAVED, BYTE, {NONE, NONE, OUT, IN, IN}},

    {AT(tdy), Y, OUT_DTYPE, {NONE, NONE, NONE, IN_OPTIONAL, NONE}},
    {AT(tdx_q), X_Q, GRAD_DTYPE, {NONE, NONE, NONE, OUT_OPTIONAL, NONE}},
    {AT(tdx_k), X_K, GRAD_DTYPE, {NONE, NONE, NONE, OUT_OPTIONAL, NONE}},
    {AT(tdx_v), X_V, GRAD_DTYPE, {NONE, NONE, NONE, OUT_OPTIONAL, NONE}},
    {AT(td_params), PARAMS, GRAD_DTYPE, {NONE, NONE, NONE, OUT_OPTIONAL, NONE}},

    {AT(sx_q), X_Q, DTYPE, {NONE, NONE, NONE, NONE, IN_OPTIONAL}},
    {AT(sx_k), X_K, DTYPE, {NONE, NONE, NONE, NONE, IN_OPTIONAL}},
    {AT(sx_v), X_V, DTYPE, {NONE, NONE, NONE, NONE, IN_OPTIONAL}},
    {AT(s_params), PARAMS, DTYPE, {NONE, NONE, NONE, NONE, IN_OPTIONAL}},
    {AT(s_saved), SAVED, BYTE, {NONE, NONE, NONE, NONE, IN}},
    {AT(sty), Y, OUT_DTYPE, {NONE, NONE, NONE, NONE, OUT}},
};

#undef AT

enum { N_FIELDS = sizeof fields / sizeof fields[0] };

static const char *const map_names[AGI_N_MAPS] = {"ag_layer_forward", "ag_layer_vjp", "ag_layer_jvp",
                                                  "ag_layer_vjp_jvp", "ag_layer_jvp_jvp"};

/* ---- The layer's arrays ---- */

/* An array of a call, with everything that the checks need to know about it. */
typedef struct {
    const char *name;
    const char *data;
    size_t bytes, element; /* of the array and of one element */
    bool output, required;
} operand;

static int64_t elements(const ag_layer *layer, shape s)
{
    switch (s) {
    case X_Q: return layer->q_rows * layer->projection[AGI_Q].rows;
    case X_K: return layer->k_rows * layer->projection[AGI_K].rows;
    case X_V: return layer->k_rows * layer->projection[AGI_V].rows;
    case Y: return layer->q_rows * layer->d_model;
    case PARAMS: return layer->size;
    case SAVED: return (int64_t)layer->saved_bytes[AG_SAVED];
    default: return (int64_t)layer->saved_bytes[AG_D_SAVED];
    }
}

static size_t element_bytes(const ag_problem *p, element_type type)
{
    switch (type) {
    case DTYPE: return ag_dtype_size(p->dtype);
    case OUT_DTYPE: return ag_dtype_size(p->out_dtype);
    case GRAD_DTYPE: return ag_dtype_size(p->grad_dtype);
    default: return 1;
    }
}

/* Does the layer have this input? Keys and values may be computed from x_q or x_k instead. */
static bool has_input(const ag_layer *layer, shape s)
{
    return !(s == X_K && layer->projection[AGI_K].input != AGI_K) &&
           !(s == X_V && layer->projection[AGI_V].input != AGI_V);
}

static ag_status gather(const agi_layer_call *call, operand x[N_FIELDS], int *n)
{
    const ag_layer *layer = call->layer;
    *n = 0;
    for (int i = 0; i < N_FIELDS; i++) {
        const field *f = &fields[i];
        const role map_role = f->role[call->map];
        const char *const data = *(const char *const *)(const void *)((const char *)&call->a + f->offset);
        if (map_role == NONE) {
            continue;
        }
        if (!has_input(layer, f->shape)) {
            if (data != NULL) {
                return agi_fail_field(
                    AG_INVALID_ARGUMENT, f->name, "%s: %s is given, but %s serves for it in this layer",
                    map_names[call->map], f->name, layer->projection[AGI_K].input == AGI_Q ? "x_q" : "x_k");
            }
            continue;
        }
        const size_t element = element_bytes(&layer->plan->p, f->type);
        x[(*n)++] = (operand){.name = f->name,
                              .data = data,
                              .element = element,
                              .bytes = (size_t)elements(layer, f->shape) * element,
                              .output = map_role == OUT || map_role == OUT_OPTIONAL,
                              .required = map_role == IN || map_role == OUT};
    }
    return AG_OK;
}

static ag_status check_pointers(const agi_layer_call *call, const operand *x, int n)
{
    for (int i = 0; i < n; i++) {
        if (x[i].data == NULL && x[i].required && x[i].bytes > 0) {
            return agi_fail_field(AG_INVALID_ARGUMENT, x[i].name, "%s: %s is NULL", map_names[call->map],
                                  x[i].name);
        }
        if ((uintptr_t)x[i].data % x[i].element != 0) {
            return agi_fail_field(AG_INVALID_ARGUMENT, x[i].name,
                                  "%s: %s is %p: not aligned to its elements of %zu bytes",
                                  map_names[call->map], x[i].name, (const void *)x[i].data, x[i].element);
        }
    }
    return AG_OK;
}

/* Arrays are dense: two of them overlap exactly if their ranges do. */
static bool overlap(const operand *a, const operand *b)
{
    const uintptr_t at_a = (uintptr_t)a->data, at_b = (uintptr_t)b->data;
    return a->data != NULL && b->data != NULL && at_a < at_b + b->bytes && at_b < at_a + a->bytes;
}

static ag_status check_overlaps(const agi_layer_call *call, const operand *x, int n)
{
    for (int i = 0; i < n; i++) {
        for (int j = 0; j < n && x[i].output; j++) {
            if (i != j && overlap(&x[i], &x[j])) {
                return agi_fail_field(AG_INVALID_ARGUMENT, x[i].name, "%s: output %s at %p overlaps %s %s",
                                      map_names[call->map], x[i].name, (const void *)x[i].data,
                                      x[j].output ? "output" : "input", x[j].name);
            }
        }
    }
    return AG_OK;
}

static ag_status check_workspace(const agi_layer_call *call, const operand *x, int n, const void *workspace,
                                 size_t bytes)
{
    const size_t needed = call->layer->bytes[call->map];
    const operand space = {.data = workspace, .bytes = bytes};
    if (workspace == NULL || bytes < needed) {
        return agi_fail_field(AG_WORKSPACE, "workspace", "%s: workspace is %p with %zu bytes: needs %zu",
                              map_names[call->map], workspace, bytes, needed);
    }
    for (int i = 0; i < n; i++) {
        if (overlap(&x[i], &space)) {
            return agi_fail_field(AG_INVALID_ARGUMENT, x[i].name,
                                  "%s: %s at %p overlaps the workspace at %p of %zu bytes",
                                  map_names[call->map], x[i].name, (const void *)x[i].data, workspace, bytes);
        }
    }
    return AG_OK;
}

static ag_status check_arrays(const agi_layer_call *call, const void *workspace, size_t bytes)
{
    operand x[N_FIELDS];
    int n = 0;
    ag_status status = gather(call, x, &n);
    if (status == AG_OK) {
        status = check_pointers(call, x, n);
    }
    if (status == AG_OK) {
        status = check_overlaps(call, x, n);
    }
    if (status == AG_OK && call->a.accumulate >= 2 * AG_LAYER_ACC_STY) { /* the highest known bit */
        status = agi_fail_field(AG_INVALID_ARGUMENT, "accumulate", "%s: accumulate is 0x%lx: unknown bits",
                                map_names[call->map], (unsigned long)call->a.accumulate);
    }
    return status == AG_OK ? check_workspace(call, x, n, workspace, bytes) : status;
}

/* ---- Attention's arguments ---- */

/* Arguments of attention that the layer fills in itself: the caller must not give them. */
#define OWN(member)                                                                                          \
    {                                                                                                        \
#member, offsetof(ag_args, member)                                                                   \
    }

static const struct {
    const char *name;
    size_t offset;
} own_tensors[] = {
    OWN(q),     OWN(k),      OWN(v),  OWN(o),  OWN(lse), OWN(d_o),  OWN(dq),  OWN(dk),  OWN(dv),
    OWN(tq),    OWN(tk),     OWN(tv), OWN(to), OWN(mu),  OWN(td_o), OWN(tdq), OWN(tdk), OWN(tdv),
    OWN(o_low), OWN(to_low), OWN(sq), OWN(sk), OWN(sv),  OWN(smu),  OWN(sto), OWN(nu),
};

#undef OWN

static ag_status check_given(const agi_layer_call *call, const ag_args *given)
{
    const uint32_t bits =
        AG_ACC_DBIAS | AG_ACC_DTABLE | AG_ACC_DSINK | AG_ACC_TDBIAS | AG_ACC_TDTABLE | AG_ACC_TDSINK;
    for (size_t i = 0; i < sizeof own_tensors / sizeof own_tensors[0]; i++) {
        const ag_tensor *t = (const void *)((const char *)given + own_tensors[i].offset);
        if (t->data != NULL) {
            return agi_fail_field(AG_INVALID_ARGUMENT, own_tensors[i].name,
                                  "%s: attention has %s, which is the layer's own", map_names[call->map],
                                  own_tensors[i].name);
        }
    }
    if (given->accumulate & ~bits) {
        return agi_fail_field(AG_INVALID_ARGUMENT, "accumulate",
                              "%s: accumulate of attention is 0x%lx: only gradients of bias, table "
                              "and sink are not the layer's own",
                              map_names[call->map], (unsigned long)given->accumulate);
    }
    if (given->flags != 0) {
        return agi_fail_field(AG_INVALID_ARGUMENT, "flags",
                              "%s: flags of attention is 0x%lx: they are the layer's own",
                              map_names[call->map], (unsigned long)given->flags);
    }
    return AG_OK;
}

static void fill_in_own_tensors(ag_args *x, const agi_layer_call *call)
{
    const ag_layer *layer = call->layer;
    const struct {
        ag_tensor *tensor[AGI_N_PROJECTIONS];
        const agi_activations *from;
    } groups[] = {{{&x->q, &x->k, &x->v, &x->o}, &call->saved},
                  {{&x->dq, &x->dk, &x->dv, &x->d_o}, &call->d_saved},
                  {{&x->tq, &x->tk, &x->tv, &x->to}, &call->t_saved},
                  {{&x->tdq, &x->tdk, &x->tdv, &x->td_o}, &call->space.td}};
    for (int g = 0; g < 4; g++) {
        for (int w = 0; w < AGI_N_PROJECTIONS; w++) {
            *groups[g].tensor[w] = agi_heads_view(layer, (agi_projection)w, groups[g].from->at[w]);
        }
    }
    x->lse = agi_row_view(layer, call->saved.lse);
    x->mu = agi_row_view(layer, call->t_saved.lse);
    x->o_low = agi_heads_view(layer, AGI_O, call->saved.o_low);
    x->to_low = agi_heads_view(layer, AGI_O, call->t_saved.o_low);
    x->sq = agi_heads_view(layer, AGI_Q, call->s_saved.at[AGI_Q]);
    x->sk = agi_heads_view(layer, AGI_K, call->s_saved.at[AGI_K]);
    x->sv = agi_heads_view(layer, AGI_V, call->s_saved.at[AGI_V]);
    x->smu = agi_row_view(layer, call->s_saved.lse);
    x->sto = agi_heads_view(layer, AGI_O, call->space.st.at[AGI_O]);
    x->accumulate |= call->has_st ? AG_ACC_STO : 0U;
}

/* From the arguments of attention's jvp_jvp to those of its jvp along the second tangents of Q, K and V, given C: bias,
 * table and sink have no second tangent. */
static void move_along_st(ag_args *x, const agi_layer_call *call)
{
    const ag_tensor absent = {.data = NULL};
    const agi_activations *st = &call->space.st;
    x->flags = AG_GIVEN_O;
    x->accumulate = 0;
    x->tq = agi_heads_view(call->layer, AGI_Q, st->at[AGI_Q]);
    x->tk = agi_heads_view(call->layer, AGI_K, st->at[AGI_K]);
    x->tv = agi_heads_view(call->layer, AGI_V, st->at[AGI_V]);
    x->to = agi_heads_view(call->layer, AGI_O, st->at[AGI_O]);
    x->tbias = x->ttable = x->tsink = x->mu = x->to_low = absent;
}

static ag_status check_attention(agi_layer_call *call)
{
    ag_args x = {.struct_size = sizeof x};
    ag_status status = AG_OK;
    if (call->a.attention != NULL) {
        status = agi_read_struct(&x, sizeof x, call->a.attention, "attention", AG_INVALID_ARGUMENT);
        x.struct_size = sizeof x;
    }
    if (status != AG_OK) {
        return status;
    }
    status = check_given(call, &x);
    if (status == AG_OK) {
        fill_in_own_tensors(&x, call);
        status = agi_call_check(&call->attention, call->layer->plan, call->map, AGI_RUN, &x,
                                call->space.attention, call->space.attention_bytes);
    }
    if (status == AG_OK && call->has_st) {
        move_along_st(&x, call);
        status = agi_call_check(&call->along_st, call->layer->plan, AGI_JVP, AGI_RUN, &x,
                                call->space.attention, call->space.attention_bytes);
    }
    return status == AG_OK ? AG_OK : agi_fail_within(status, "attention");
}

/* ---- The whole call ---- */

static void lay_out_saved(agi_activations *x, const agi_layer_call *call, void *buffer, ag_saved which)
{
    agi_arena arena = agi_arena_begin(buffer);
    agi_activations_lay_out(x, &arena, call->layer, which);
}

/* The second tangent of R = A W + b, if A is an input, is tA sW + sA tW: zero unless one of the products is there. */
static void find_second_tangents(agi_layer_call *call)
{
    const ag_layer_args *a = &call->a;
    const void *const tx[] = {a->tx_q, a->tx_k, a->tx_v}, *const sx[] = {a->sx_q, a->sx_k, a->sx_v};
    call->has_st = false;
    for (agi_projection w = AGI_Q; w <= AGI_V && call->map == AGI_JVP_JVP; w++) {
        const agi_projection input = call->layer->projection[w].input;
        const bool exists =
            (tx[input] != NULL && a->s_params != NULL) || (sx[input] != NULL && a->t_params != NULL);
        call->has_st = call->has_st || exists;
        call->space.st.at[w] = exists ? call->space.st.at[w] : NULL;
    }
}

static void lay_out(agi_layer_call *call, void *workspace)
{
    const bool backward = call->map == AGI_VJP || call->map == AGI_VJP_JVP;
    const bool tangent = call->map == AGI_JVP || call->map == AGI_VJP_JVP || call->map == AGI_JVP_JVP;
    agi_arena arena = agi_arena_begin(workspace);
    agi_layer_lay_out(&call->space, &arena, call->layer, call->map);
    lay_out_saved(&call->saved, call, call->a.saved, AG_SAVED);
    lay_out_saved(&call->t_saved, call, tangent ? call->a.t_saved : NULL, AG_SAVED);
    lay_out_saved(&call->d_saved, call, backward ? call->a.d_saved : NULL, AG_D_SAVED);
    lay_out_saved(&call->s_saved, call, call->map == AGI_JVP_JVP ? call->a.s_saved : NULL, AG_SAVED);
    find_second_tangents(call);
}

ag_status agi_layer_check(agi_layer_call *call, const ag_layer *layer, agi_map map, const ag_layer_args *args,
                          const ag_exec *exec, void *workspace, size_t bytes)
{
    if (layer == NULL) {
        return agi_fail_field(AG_INVALID_ARGUMENT, "layer", "%s: layer is NULL", map_names[map]);
    }
    call->layer = layer;
    call->map = map;
    ag_status status = agi_read_struct(&call->a, sizeof call->a, args, "args", AG_INVALID_ARGUMENT);
    if (status == AG_OK) {
        status = check_arrays(call, workspace, bytes);
    }
    if (status == AG_OK) {
        lay_out(call, workspace);
        status = check_attention(call);
    }
    call->attention.exec = call->along_st.exec = &call->exec;
    return status == AG_OK ? agi_exec_begin(&call->exec, layer->plan, exec) : status;
}
