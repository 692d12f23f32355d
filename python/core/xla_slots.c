/* The operands and results of XLA's handler: what each slot is, which shape and dtype it must have, and where it goes
 * in ag_args. XLA itself checks no shapes for a handler: what is not refused here is read or written out of bounds. */
#include "xla.h"

#include <stdio.h>
#include <string.h>

enum {
    FORWARD = AG_MAP_FORWARD,
    VJP = AG_MAP_VJP,
    JVP = AG_MAP_JVP,
    VJP_JVP = AG_MAP_VJP_JVP,
    JVP_JVP = AG_MAP_JVP_JVP,
    GIVEN = VJP | JVP | VJP_JVP | JVP_JVP, /* the maps that read forward's results */
    EVERY = FORWARD | GIVEN
};

typedef enum {
    LIKE_Q,
    LIKE_K,
    LIKE_V,
    LIKE_O,
    LIKE_BIAS,
    LIKE_MASK,
    LIKE_TABLE,
    LIKE_SINK,
    FLOAT_ROWS, /* [B, T, H] */
    EXACT_ROWS, /* [B, T, H, 2] */
    PER_SEQUENCE,
    SEQUENCE_ENDS, /* one more than sequences */
    OFFSETS,
    SEED
} slot_kind;

typedef struct {
    const char *name;
    slot_kind kind;
    uint32_t read_by, written_by; /* bits of AG_MAP_* */
    uint32_t accumulate;          /* its bit of ag_args.accumulate */
    size_t at;                    /* in ag_args; not for OFFSETS and SEED */
} slot_info;

#define AT(member) offsetof(ag_args, member)

static const slot_info infos[XLA_N_SLOTS] = {
    [XLA_Q] = {"q", LIKE_Q, EVERY, 0, 0, AT(q)},
    [XLA_K] = {"k", LIKE_K, EVERY, 0, 0, AT(k)},
    [XLA_V] = {"v", LIKE_V, EVERY, 0, 0, AT(v)},
    [XLA_BIAS] = {"bias", LIKE_BIAS, EVERY, 0, 0, AT(bias)},
    [XLA_TABLE] = {"table", LIKE_TABLE, EVERY, 0, 0, AT(table)},
    [XLA_SINK] = {"sink", LIKE_SINK, EVERY, 0, 0, AT(sink)},
    [XLA_MASK] = {"mask", LIKE_MASK, EVERY, 0, 0, AT(mask)},
    [XLA_O] = {"o", LIKE_O, GIVEN, FORWARD, AG_ACC_O, AT(o)},
    [XLA_ROWS] = {"rows", EXACT_ROWS, GIVEN, FORWARD, AG_ACC_LSE, AT(lse)},
    [XLA_LSE] = {"lse", FLOAT_ROWS, 0, FORWARD, 0, AT(lse)},
    [XLA_O_LOW] = {"o_low", LIKE_O, GIVEN, FORWARD, 0, AT(o_low)},
    [XLA_D_O] = {"d_o", LIKE_O, VJP | VJP_JVP, 0, 0, AT(d_o)},
    [XLA_D_LSE] = {"d_lse", FLOAT_ROWS, VJP | VJP_JVP, 0, 0, AT(d_lse)},
    [XLA_DQ] = {"dq", LIKE_Q, 0, VJP, AG_ACC_DQ, AT(dq)},
    [XLA_DK] = {"dk", LIKE_K, 0, VJP, AG_ACC_DK, AT(dk)},
    [XLA_DV] = {"dv", LIKE_V, 0, VJP, AG_ACC_DV, AT(dv)},
    [XLA_DBIAS] = {"dbias", LIKE_BIAS, 0, VJP, AG_ACC_DBIAS, AT(dbias)},
    [XLA_DTABLE] = {"dtable", LIKE_TABLE, 0, VJP, AG_ACC_DTABLE, AT(dtable)},
    [XLA_DSINK] = {"dsink", LIKE_SINK, 0, VJP, AG_ACC_DSINK, AT(dsink)},
    [XLA_TQ] = {"tq", LIKE_Q, JVP | VJP_JVP | JVP_JVP, 0, 0, AT(tq)},
    [XLA_TK] = {"tk", LIKE_K, JVP | VJP_JVP | JVP_JVP, 0, 0, AT(tk)},
    [XLA_TV] = {"tv", LIKE_V, JVP | VJP_JVP | JVP_JVP, 0, 0, AT(tv)},
    [XLA_TBIAS] = {"tbias", LIKE_BIAS, JVP | VJP_JVP | JVP_JVP, 0, 0, AT(tbias)},
    [XLA_TTABLE] = {"ttable", LIKE_TABLE, JVP | VJP_JVP | JVP_JVP, 0, 0, AT(ttable)},
    [XLA_TSINK] = {"tsink", LIKE_SINK, JVP | VJP_JVP | JVP_JVP, 0, 0, AT(tsink)},
    [XLA_TO] = {"to", LIKE_O, VJP_JVP, JVP, AG_ACC_TO, AT(to)},
    [XLA_MU] = {"mu", FLOAT_ROWS, VJP_JVP | JVP_JVP, JVP, AG_ACC_MU, AT(mu)},
    [XLA_TO_LOW] = {"to_low", LIKE_O, VJP_JVP, JVP, 0, AT(to_low)},
    [XLA_TD_O] = {"td_o", LIKE_O, VJP_JVP, 0, 0, AT(td_o)},
    [XLA_TD_LSE] = {"td_lse", FLOAT_ROWS, VJP_JVP, 0, 0, AT(td_lse)},
    [XLA_TDQ] = {"tdq", LIKE_Q, 0, VJP_JVP, AG_ACC_TDQ, AT(tdq)},
    [XLA_TDK] = {"tdk", LIKE_K, 0, VJP_JVP, AG_ACC_TDK, AT(tdk)},
    [XLA_TDV] = {"tdv", LIKE_V, 0, VJP_JVP, AG_ACC_TDV, AT(tdv)},
    [XLA_TDBIAS] = {"tdbias", LIKE_BIAS, 0, VJP_JVP, AG_ACC_TDBIAS, AT(tdbias)},
    [XLA_TDTABLE] = {"tdtable", LIKE_TABLE, 0, VJP_JVP, AG_ACC_TDTABLE, AT(tdtable)},
    [XLA_TDSINK] = {"tdsink", LIKE_SINK, 0, VJP_JVP, AG_ACC_TDSINK, AT(tdsink)},
    [XLA_SQ] = {"sq", LIKE_Q, JVP_JVP, 0, 0, AT(sq)},
    [XLA_SK] = {"sk", LIKE_K, JVP_JVP, 0, 0, AT(sk)},
    [XLA_SV] = {"sv", LIKE_V, JVP_JVP, 0, 0, AT(sv)},
    [XLA_SBIAS] = {"sbias", LIKE_BIAS, JVP_JVP, 0, 0, AT(sbias)},
    [XLA_STABLE] = {"stable", LIKE_TABLE, JVP_JVP, 0, 0, AT(stable)},
    [XLA_SSINK] = {"ssink", LIKE_SINK, JVP_JVP, 0, 0, AT(ssink)},
    [XLA_SMU] = {"smu", FLOAT_ROWS, JVP_JVP, 0, 0, AT(smu)},
    [XLA_STO] = {"sto", LIKE_O, 0, JVP_JVP, AG_ACC_STO, AT(sto)},
    [XLA_NU] = {"nu", FLOAT_ROWS, 0, JVP_JVP, AG_ACC_NU, AT(nu)},
    [XLA_Q_LENGTHS] = {"q_lengths", PER_SEQUENCE, EVERY, 0, 0, AT(q_lengths)},
    [XLA_KV_LENGTHS] = {"kv_lengths", PER_SEQUENCE, EVERY, 0, 0, AT(kv_lengths)},
    [XLA_Q_PACKED] = {"q_packed", SEQUENCE_ENDS, EVERY, 0, 0, AT(q_packed)},
    [XLA_K_PACKED] = {"k_packed", SEQUENCE_ENDS, EVERY, 0, 0, AT(k_packed)},
    [XLA_Q_OFFSETS] = {"q_offsets", PER_SEQUENCE, EVERY, 0, 0, AT(q_offsets)},
    [XLA_K_OFFSETS] = {"k_offsets", PER_SEQUENCE, EVERY, 0, 0, AT(k_offsets)},
    [XLA_OFFSETS] = {"offsets", OFFSETS, EVERY, 0, 0, 0},
    [XLA_SEED] = {"seed", SEED, EVERY, 0, 0, 0},
};

#undef AT

static slot_kind kind_of(const xla_item *item)
{
    return infos[item->slot].kind;
}

static int is_list(const xla_item *item)
{
    return kind_of(item) == PER_SEQUENCE || kind_of(item) == SEQUENCE_ENDS;
}

PyObject *core_xla_slots(void)
{
    PyObject *dict = PyDict_New();
    for (int n = 0; n < XLA_N_SLOTS && dict != NULL; n++) {
        PyObject *slot = Py_BuildValue("(iII)", n, (unsigned)infos[n].read_by, (unsigned)infos[n].written_by);
        if (slot == NULL || PyDict_SetItemString(dict, infos[n].name, slot) != 0) {
            Py_CLEAR(dict);
        }
        Py_XDECREF(slot);
    }
    return dict;
}

const xla_item *core_xla_find(const xla_call *call, xla_slot slot)
{
    for (int n = 0; n < call->n_items; n++) {
        if (call->items[n].slot == slot) {
            return &call->items[n];
        }
    }
    return NULL;
}

/* ---- Reading ---- */

static int64_t rank_of(slot_kind kind)
{
    switch (kind) {
    case FLOAT_ROWS: return 3;
    case LIKE_TABLE: return 2;
    case LIKE_SINK:
    case PER_SEQUENCE:
    case SEQUENCE_ENDS:
    case OFFSETS:
    case SEED: return 1;
    default: return 4;
    }
}

static size_t width_of(int32_t dtype)
{
    switch (dtype) {
    case XF_F64:
    case XF_S64: return 8;
    case XF_F32:
    case XF_S32:
    case XF_U32: return 4;
    case XF_F16:
    case XF_BF16: return 2;
    case XF_PRED: return 1;
    default: return 0;
    }
}

/* Whether the buffer begins with the mapped axes that the item has, and has the rank of its slot after them. */
static int fits_axes(const xla_call *call, const xla_item *item, const xf_buffer *buffer)
{
    int64_t axis = 0;
    for (int m = 0; m < call->n_maps; m++) {
        if (item->axes >> m & 1) {
            if (axis >= buffer->rank || buffer->dims[axis] != call->maps[m]) {
                return 0;
            }
            axis++;
        }
    }
    return buffer->rank == axis + rank_of(kind_of(item));
}

/* A buffer without elements may have no address: it gets one that no other has. */
static char *address_of(const xla_item *item, const xf_buffer *buffer)
{
    static _Alignas(8) char nowhere[XLA_N_SLOTS][8];
    return item->bytes == 0 ? nowhere[item->slot] : buffer->data;
}

static xf_error *read_item(xla_call *call, const xf_buffer *buffer, int is_result, int64_t slot, int64_t axes)
{
    const xf_frame *frame = call->frame;
    if (slot < 0 || slot >= XLA_N_SLOTS || axes < 0 || axes >> call->n_maps != 0) {
        return core_xla_fail(frame, XF_INVALID_ARGUMENT, "slot %lld with axes %lld does not exist",
                             (long long)slot, (long long)axes);
    }
    const slot_info *info = &infos[slot];
    if (!((is_result ? info->written_by : info->read_by) & call->map)) {
        return core_xla_fail(frame, XF_INVALID_ARGUMENT, "%s: map %u does not %s it", info->name, call->map,
                             is_result ? "write" : "read");
    }
    if (core_xla_find(call, (xla_slot)slot) != NULL) {
        return core_xla_fail(frame, XF_INVALID_ARGUMENT, "%s is there twice", info->name);
    }
    xla_item *item = &call->items[call->n_items];
    *item = (xla_item){.slot = (xla_slot)slot, .is_result = is_result, .axes = (uint32_t)axes, .count = 1};
    if (!fits_axes(call, item, buffer)) {
        return core_xla_fail(frame, XF_INVALID_ARGUMENT,
                             "%s has %lld axes or other mapped ones, must have %lld", info->name,
                             (long long)buffer->rank, (long long)rank_of(info->kind));
    }
    item->dtype = buffer->dtype;
    item->rank = rank_of(info->kind);
    item->dims = buffer->dims + (buffer->rank - item->rank);
    for (int64_t axis = 0; axis < item->rank; axis++) {
        item->count *= item->dims[axis];
    }
    item->bytes = (size_t)item->count * width_of(item->dtype);
    item->data = address_of(item, buffer);
    call->n_items++;
    return NULL;
}

xf_error *core_xla_read_items(xla_call *call)
{
    const xf_frame *frame = call->frame;
    const xf_array *slots = core_xla_array(frame, "slots", XF_S64),
                   *axes = core_xla_array(frame, "axes", XF_S64);
    const xf_array *maps = core_xla_array(frame, "maps", XF_S64);
    const int64_t n = frame->args.size + frame->rets.size;
    if (slots == NULL || axes == NULL || (int64_t)slots->size != n || (int64_t)axes->size != n ||
        n > XLA_MAX_ITEMS || (maps != NULL && maps->size > XLA_MAX_MAPS)) {
        return core_xla_fail(frame, XF_INVALID_ARGUMENT, "slots, axes or maps do not fit the operands");
    }
    call->maps = maps != NULL ? maps->data : NULL;
    call->n_maps = maps != NULL ? (int)maps->size : 0;
    for (int m = 0; m < call->n_maps; m++) {
        if (call->maps[m] < 0) {
            return core_xla_fail(frame, XF_INVALID_ARGUMENT, "maps[%d] is %lld: must be 0 or more", m,
                                 (long long)call->maps[m]);
        }
    }
    for (int64_t i = 0; i < n; i++) {
        const int is_result = i >= frame->args.size;
        const xf_buffer *buffer = is_result ? frame->rets.items[i - frame->args.size] : frame->args.items[i];
        xf_error *error = read_item(call, buffer, is_result, ((const int64_t *)slots->data)[i],
                                    ((const int64_t *)axes->data)[i]);
        if (error != NULL) {
            return error;
        }
    }
    return NULL;
}

/* ---- Checking ---- */

static void copy_dims(int64_t *to, const int64_t *from)
{
    memcpy(to, from, 4 * sizeof *to);
}

/* The sizes that a slot of this kind must have. */
static void expected_dims(const ag_problem *p, slot_kind kind, int64_t *dims)
{
    const int is_packed = (p->flags & AG_PACKED) != 0;
    const int64_t batch = is_packed ? 1 : p->batch;
    const int64_t queries = is_packed ? p->q_total : p->q_len, keys = is_packed ? p->kv_total : p->kv_len;
    switch (kind) {
    case LIKE_Q: copy_dims(dims, (int64_t[]){batch, queries, p->heads, p->dim_qk}); break;
    case LIKE_K: copy_dims(dims, (int64_t[]){batch, keys, p->kv_heads, p->dim_qk}); break;
    case LIKE_V: copy_dims(dims, (int64_t[]){batch, keys, p->kv_heads, p->dim_v}); break;
    case LIKE_O: copy_dims(dims, (int64_t[]){batch, queries, p->heads, p->dim_v}); break;
    case LIKE_BIAS: copy_dims(dims, p->bias_size); break;
    case LIKE_MASK: copy_dims(dims, p->mask_size); break;
    case LIKE_TABLE: copy_dims(dims, (int64_t[]){p->table_heads, p->table_buckets, 0, 0}); break;
    case LIKE_SINK: dims[0] = p->heads; break;
    case FLOAT_ROWS: copy_dims(dims, (int64_t[]){batch, queries, p->heads, 0}); break;
    case EXACT_ROWS: copy_dims(dims, (int64_t[]){batch, queries, p->heads, 2}); break;
    case PER_SEQUENCE: dims[0] = p->batch; break;
    case SEQUENCE_ENDS: dims[0] = p->batch + 1; break;
    case OFFSETS: dims[0] = 3; break;
    case SEED: dims[0] = 2; break;
    }
}

static int32_t xla_dtype(ag_dtype dtype)
{
    switch (dtype) {
    case AG_F64: return XF_F64;
    case AG_F32: return XF_F32;
    case AG_F16: return XF_F16;
    default: return XF_BF16;
    }
}

static int32_t expected_dtype(const ag_problem *p, slot_kind kind)
{
    switch (kind) {
    case LIKE_BIAS:
    case LIKE_TABLE:
    case LIKE_SINK: return xla_dtype(p->aux_dtype);
    case LIKE_MASK: return XF_PRED;
    case FLOAT_ROWS: return p->dtype == AG_F64 ? XF_F64 : XF_F32;
    case EXACT_ROWS:
    case SEED: return XF_U32;
    case PER_SEQUENCE:
    case SEQUENCE_ENDS:
    case OFFSETS: return XF_S32;
    default: return xla_dtype(p->dtype);
    }
}

static const char *shape_text(const int64_t *dims, int64_t rank, char text[96])
{
    int n = snprintf(text, 96, "[");
    for (int64_t axis = 0; axis < rank && n < 90; axis++) {
        n += snprintf(text + n, 96 - (size_t)n, "%s%lld", axis > 0 ? ", " : "", (long long)dims[axis]);
    }
    if (n < 94) {
        snprintf(text + n, 96 - (size_t)n, "]");
    }
    return text;
}

static xf_error *check_item(const xla_call *call, const xla_item *item)
{
    const ag_problem *p = ag_plan_problem(call->plan);
    const char *name = infos[item->slot].name;
    int64_t dims[4] = {0};
    expected_dims(p, kind_of(item), dims);
    if (memcmp(dims, item->dims, (size_t)item->rank * sizeof dims[0]) != 0) {
        char is[96], must[96];
        return core_xla_fail(call->frame, XF_INVALID_ARGUMENT, "%s has shape %s, must have %s", name,
                             shape_text(item->dims, item->rank, is), shape_text(dims, item->rank, must));
    }
    if (item->dtype != expected_dtype(p, kind_of(item))) {
        return core_xla_fail(call->frame, XF_INVALID_ARGUMENT, "%s has XLA's dtype %d, must have %d", name,
                             (int)item->dtype, (int)expected_dtype(p, kind_of(item)));
    }
    if (kind_of(item) == EXACT_ROWS && (uintptr_t)item->data % sizeof(double) != 0) {
        return core_xla_fail(call->frame, XF_INTERNAL, "%s is not aligned to 8 bytes", name);
    }
    return NULL;
}

xf_error *core_xla_check_items(const xla_call *call)
{
    xf_error *error = NULL;
    for (int n = 0; n < call->n_items && error == NULL; n++) {
        error = check_item(call, &call->items[n]);
    }
    const xla_item *lse = core_xla_find(call, XLA_LSE);
    if (error == NULL && lse != NULL && core_xla_find(call, XLA_ROWS) == NULL) {
        return core_xla_fail(call->frame, XF_INVALID_ARGUMENT, "lse without rows");
    }
    return error;
}

/* ---- Copies in wider dtypes ---- */

static int needs_copy(const xla_item *item)
{
    return is_list(item) || (kind_of(item) == FLOAT_ROWS && item->dtype == XF_F32);
}

size_t core_xla_lay_out(xla_call *call, char *memory)
{
    size_t bytes = 0;
    for (int n = 0; n < call->n_items; n++) {
        xla_item *item = &call->items[n];
        if (needs_copy(item)) {
            item->wide = memory != NULL ? memory + bytes : NULL;
            bytes += (size_t)item->count * 8;
        }
    }
    return bytes;
}

static void widen(double *to, const float *from, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        to[i] = (double)from[i];
    }
}

static void narrow(float *to, const double *from, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        to[i] = (float)from[i];
    }
}

static const int64_t *widen_list(const xla_item *item, const char *data)
{
    const int32_t *from = (const int32_t *)(const void *)data;
    int64_t *to = item->wide;
    for (int64_t i = 0; i < item->count; i++) {
        to[i] = from[i];
    }
    return to;
}

/* ---- Mapped axes ---- */

/* The data of the item for element at[] of the mapped axes. */
static char *element(const xla_call *call, const xla_item *item, const int64_t *at)
{
    int64_t index = 0;
    for (int m = 0; m < call->n_maps; m++) {
        if (item->axes >> m & 1) {
            index = index * call->maps[m] + at[m];
        }
    }
    return item->data + (size_t)index * item->bytes;
}

/* Whether at[] is the first element that has this part of the item: the others are added to it. */
static int is_first(const xla_call *call, const xla_item *item, const int64_t *at)
{
    for (int m = 0; m < call->n_maps; m++) {
        if (!(item->axes >> m & 1) && at[m] != 0) {
            return 0;
        }
    }
    return 1;
}

void core_xla_clear(const xla_call *call)
{
    for (int n = 0; n < call->n_items; n++) {
        const xla_item *item = &call->items[n];
        int64_t elements = 1;
        for (int m = 0; m < call->n_maps; m++) {
            elements *= item->axes >> m & 1 ? call->maps[m] : 1;
        }
        if (item->is_result) {
            memset(item->data, 0, (size_t)elements * item->bytes);
        }
    }
}

/* ---- The arguments of a map ---- */

static ag_tensor view(const xla_item *item, void *data)
{
    const int64_t *d = item->dims;
    switch (kind_of(item)) {
    case LIKE_BIAS:
    case LIKE_MASK: return ag_bhnd(data, d[1], d[2], d[3]);
    case LIKE_TABLE: return (ag_tensor){data, {0, d[1], 0, 1}};
    case LIKE_SINK: return (ag_tensor){data, {0, 1, 0, 0}};
    case FLOAT_ROWS:
    case EXACT_ROWS: return ag_bnhd(data, d[2], d[1], 1);
    default: return ag_bnhd(data, d[2], d[1], d[3]);
    }
}

static void fill_offsets(ag_args *args, const char *data)
{
    const int32_t *offsets = (const int32_t *)(const void *)data;
    args->q_offset = offsets[0];
    args->k_offset = offsets[1];
    args->batch_offset = offsets[2];
}

static void fill_seed(ag_args *args, const char *data)
{
    const uint32_t *halves = (const uint32_t *)(const void *)data;
    args->seed = halves[0] | (uint64_t)halves[1] << 32;
}

static void fill_tensor(const xla_call *call, const xla_item *item, const int64_t *at, ag_args *args)
{
    const slot_info *info = &infos[item->slot];
    void *data = element(call, item, at);
    const int adds = item->is_result && !is_first(call, item, at);
    if (item->wide != NULL) {
        if (!item->is_result || adds) {
            widen(item->wide, data, item->count);
        }
        data = item->wide;
    }
    const ag_tensor tensor = view(item, data);
    memcpy((char *)args + info->at, &tensor, sizeof tensor);
    args->accumulate |= adds ? info->accumulate : 0;
}

void core_xla_fill(const xla_call *call, const int64_t *at, ag_args *args)
{
    for (int n = 0; n < call->n_items; n++) {
        const xla_item *item = &call->items[n];
        if (item->slot == XLA_LSE) {
            continue; /* core_xla_store copies it from rows */
        }
        if (kind_of(item) == OFFSETS) {
            fill_offsets(args, element(call, item, at));
        } else if (kind_of(item) == SEED) {
            fill_seed(args, element(call, item, at));
        } else if (is_list(item)) {
            const int64_t *list = widen_list(item, element(call, item, at));
            memcpy((char *)args + infos[item->slot].at, &list, sizeof list);
        } else {
            fill_tensor(call, item, at, args);
        }
    }
}

void core_xla_store(const xla_call *call, const int64_t *at)
{
    const xla_item *rows = core_xla_find(call, XLA_ROWS);
    for (int n = 0; n < call->n_items; n++) {
        const xla_item *item = &call->items[n];
        if (!item->is_result || kind_of(item) != FLOAT_ROWS) {
            continue;
        }
        char *data = element(call, item, at);
        const void *exact = item->slot == XLA_LSE ? element(call, rows, at) : item->wide;
        if (item->dtype == XF_F32) {
            narrow((float *)(void *)data, exact, item->count);
        } else if (item->slot == XLA_LSE) {
            memcpy(data, exact, item->bytes);
        }
    }
}
