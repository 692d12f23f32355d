/* The arrays of arrays.h as they are: shapes, views, reading and writing, running maps. arrays_make.c makes them. */
#include "check/arrays.h"

#include "check/progress.h"
#include "check/stage.h"

#include <string.h>

const struct agc_tensor_info agc_tensor_info[T_COUNT] = {
#define ARRAYS_INFO(field, number, shape, kind, role, writers, acc)                                          \
    {#field, offsetof(ag_args, field), shape, kind, role, writers, acc},
    ARRAYS_TENSORS(ARRAYS_INFO)
#undef ARRAYS_INFO
};

const struct family agc_families[FAMILY_COUNT] = {
    {T_Q, T_DQ, T_TQ, T_TDQ, T_SQ},
    {T_K, T_DK, T_TK, T_TDK, T_SK},
    {T_V, T_DV, T_TV, T_TDV, T_SV},
    {T_BIAS, T_DBIAS, T_TBIAS, T_TDBIAS, T_SBIAS},
    {T_TABLE, T_DTABLE, T_TTABLE, T_TDTABLE, T_STABLE},
    {T_SINK, T_DSINK, T_TSINK, T_TDSINK, T_SSINK},
    {T_O, T_D_O, T_TO, T_TD_O, T_COUNT},
    {T_LSE, T_D_LSE, T_MU, T_TD_LSE, T_SMU},
};

/* ---- Shapes and views -------------------------------------------------------------------------- */

static void set_size(int64_t size[4], int64_t b, int64_t h, int64_t n, int64_t c)
{
    size[0] = b;
    size[1] = h;
    size[2] = n;
    size[3] = c;
}

static int has_shape(const ag_problem *p, enum tensor_shape shape)
{
    switch (shape) {
    case SHAPE_BIAS: return (p->flags & AG_BIAS) != 0;
    case SHAPE_MASK: return (p->flags & AG_MASK) != 0;
    case SHAPE_TABLE: return (p->flags & AG_TABLE) != 0;
    case SHAPE_SINK: return (p->flags & AG_SINK) != 0;
    default: return 1;
    }
}

static void shape_size(const ag_problem *p, enum tensor_shape shape, int64_t size[4])
{
    int packed = (p->flags & AG_PACKED) != 0;
    int64_t batch = packed ? 1 : p->batch;
    int64_t rows = packed ? p->q_total : p->q_len;
    int64_t keys = packed ? p->kv_total : p->kv_len;
    switch (shape) {
    case SHAPE_Q: set_size(size, batch, p->heads, rows, p->dim_qk); break;
    case SHAPE_K: set_size(size, batch, p->kv_heads, keys, p->dim_qk); break;
    case SHAPE_V: set_size(size, batch, p->kv_heads, keys, p->dim_v); break;
    case SHAPE_O: set_size(size, batch, p->heads, rows, p->dim_v); break;
    case SHAPE_ROW: set_size(size, batch, p->heads, rows, 1); break;
    case SHAPE_BIAS: memcpy(size, p->bias_size, sizeof p->bias_size); break;
    case SHAPE_MASK: memcpy(size, p->mask_size, sizeof p->mask_size); break;
    case SHAPE_TABLE: set_size(size, 1, p->table_heads, 1, p->table_buckets); break;
    case SHAPE_SINK: set_size(size, 1, p->heads, 1, 1); break;
    }
}

static ag_dtype kind_dtype(const ag_problem *p, enum tensor_kind kind)
{
    switch (kind) {
    case KIND_MAIN: return p->dtype;
    case KIND_OUT: return p->out_dtype;
    case KIND_GRAD: return p->grad_dtype;
    case KIND_AUX: return p->aux_dtype;
    case KIND_F64: return AG_F64;
    case KIND_U8: break;
    }
    return 0;
}

int agc_tensor_size(const ag_problem *p, enum tensor t, int64_t size[4])
{
    if (!has_shape(p, agc_tensor_info[t].shape)) {
        return 0;
    }
    shape_size(p, agc_tensor_info[t].shape, size);
    return 1;
}

ag_dtype agc_tensor_dtype(const ag_problem *p, enum tensor t)
{
    return kind_dtype(p, agc_tensor_info[t].kind);
}

size_t agc_element_size(const struct arrays *x, enum tensor t)
{
    return agc_tensor_info[t].kind == KIND_U8 ? 1 : ag_dtype_size(x->dtype[t]);
}

/* Is the tensor laid out as [total][h][c]? The shapes up to SHAPE_ROW have one row per query or key; the
 * others are [b][h][n][c] in a packed problem too. */
static int is_packed_tensor(const ag_problem *p, enum tensor t)
{
    return (p->flags & AG_PACKED) != 0 && agc_tensor_info[t].shape <= SHAPE_ROW;
}

static int is_packed(const struct arrays *x, enum tensor t)
{
    return is_packed_tensor(x->p, t);
}

ag_tensor agc_tensor_view(const ag_problem *p, enum tensor t, const void *data)
{
    int64_t size[4] = {0, 0, 0, 0};
    shape_size(p, agc_tensor_info[t].shape, size);
    return is_packed_tensor(p, t) ? ag_bnhd(data, size[1], size[2], size[3])
                                  : ag_bhnd(data, size[1], size[2], size[3]);
}

static ag_tensor dense_view(const struct arrays *x, enum tensor t)
{
    return agc_tensor_view(x->p, t, x->data[t]);
}

ag_tensor *agc_arrays_tensor(struct arrays *x, enum tensor t)
{
    return (ag_tensor *)(void *)((char *)&x->args + agc_tensor_info[t].offset);
}

int64_t agc_arrays_q_length(const struct arrays *x, int64_t b)
{
    if (x->q_packed != NULL) {
        return x->q_packed[b + 1] - x->q_packed[b];
    }
    return x->q_lengths != NULL ? x->q_lengths[b] : x->p->q_len;
}

int64_t agc_arrays_k_length(const struct arrays *x, int64_t b)
{
    if (x->k_packed != NULL) {
        return x->k_packed[b + 1] - x->k_packed[b];
    }
    return x->kv_lengths != NULL ? x->kv_lengths[b] : x->p->kv_len;
}

int64_t agc_arrays_q_offset(const struct arrays *x, int64_t b)
{
    return x->q_offsets != NULL ? x->q_offsets[b] : x->args.q_offset;
}

int64_t agc_arrays_k_offset(const struct arrays *x, int64_t b)
{
    return x->k_offsets != NULL ? x->k_offsets[b] : x->args.k_offset;
}

int64_t agc_arrays_index(const struct arrays *x, enum tensor t, int64_t b, int64_t h, int64_t i, int64_t c)
{
    const int64_t *size = x->size[t];
    enum tensor_shape shape = agc_tensor_info[t].shape;
    ag_tensor view = dense_view(x, t);
    if (is_packed(x, t)) {
        i += shape == SHAPE_K || shape == SHAPE_V ? x->k_packed[b] : x->q_packed[b];
        b = 0;
    }
    return (size[0] > 1 ? b * view.strides[0] : 0) + (size[1] > 1 ? h * view.strides[1] : 0) +
           (size[2] > 1 ? i * view.strides[2] : 0) + (size[3] > 1 ? c * view.strides[3] : 0);
}

/* Converts a row of a packed array to the sequence and the position in it. */
static void find_sequence(const int64_t *starts, int64_t batch, int64_t position[4])
{
    const int64_t row = position[2];
    position[0] = -1;
    for (int64_t b = 0; b < batch; b++) {
        if (row >= starts[b] && row < starts[b + 1]) {
            position[0] = b;
            position[2] = row - starts[b];
        }
    }
}

void agc_arrays_position(const struct arrays *x, enum tensor t, int64_t element, int64_t position[4])
{
    const int64_t *size = x->size[t];
    const enum tensor_shape shape = agc_tensor_info[t].shape;
    const int packed = is_packed(x, t);
    const int64_t inner =
        packed ? size[1] : size[2]; /* the axis before the channels: [n][h][c] or [h][n][c] */
    const int64_t row = element / size[3], outer = row / inner;
    position[3] = element % size[3];
    position[packed ? 1 : 2] = row % inner;
    position[packed ? 2 : 1] = packed ? outer : outer % size[1];
    position[0] = packed ? 0 : outer / size[1];
    if (packed) {
        find_sequence(shape == SHAPE_K || shape == SHAPE_V ? x->k_packed : x->q_packed, x->p->batch,
                      position);
    }
}

/* ---- Reading and writing ----------------------------------------------------------------------- */

static void to_f64(const struct arrays *x, enum tensor t, double *values)
{
    const uint8_t *bytes = x->data[t];
    if (agc_tensor_info[t].kind != KIND_U8) {
        ag_convert(values, AG_F64, x->data[t], x->dtype[t], x->count[t]);
        return;
    }
    for (int64_t n = 0; n < x->count[t]; n++) {
        values[n] = bytes[n] != 0;
    }
}

static void from_f64(struct arrays *x, enum tensor t, const double *values)
{
    uint8_t *bytes = x->data[t];
    if (agc_tensor_info[t].kind != KIND_U8) {
        ag_convert(x->data[t], x->dtype[t], values, AG_F64, x->count[t]);
        return;
    }
    for (int64_t n = 0; n < x->count[t]; n++) {
        bytes[n] = values[n] != 0;
    }
}

/* The row of position n and head h in the data of a packed tensor, [n][h][c], and among its values, [h][n][c]. */
static void *packed_row(const struct arrays *x, enum tensor t, int64_t h, int64_t n)
{
    const int64_t *size = x->size[t];
    return (char *)x->data[t] + (size_t)((n * size[1] + h) * size[3]) * agc_element_size(x, t);
}

static int64_t row_of_values(const struct arrays *x, enum tensor t, int64_t h, int64_t n)
{
    const int64_t *size = x->size[t];
    return (h * size[2] + n) * size[3];
}

void agc_arrays_read(const struct arrays *x, enum tensor t, double *values)
{
    if (!is_packed(x, t)) {
        to_f64(x, t, values);
        return;
    }
    for (int64_t h = 0; h < x->size[t][1]; h++) {
        for (int64_t n = 0; n < x->size[t][2]; n++) {
            ag_convert(values + row_of_values(x, t, h, n), AG_F64, packed_row(x, t, h, n), x->dtype[t],
                       x->size[t][3]);
        }
    }
}

void agc_arrays_write(struct arrays *x, enum tensor t, const double *values)
{
    if (!is_packed(x, t)) {
        from_f64(x, t, values);
        return;
    }
    for (int64_t h = 0; h < x->size[t][1]; h++) {
        for (int64_t n = 0; n < x->size[t][2]; n++) {
            ag_convert(packed_row(x, t, h, n), x->dtype[t], values + row_of_values(x, t, h, n), AG_F64,
                       x->size[t][3]);
        }
    }
}

double *agc_arrays_read_new(const struct arrays *x, enum tensor t)
{
    double *values = agc_alloc(agc_tensor_info[t].name, x->count[t], sizeof *values);
    if (values != NULL) {
        agc_arrays_read(x, t, values);
    }
    return values;
}

int64_t agc_arrays_element_of_value(const struct arrays *x, enum tensor t, int64_t n)
{
    const int64_t *size = x->size[t];
    if (!is_packed(x, t)) {
        return n;
    }
    int64_t c = n % size[3], row = n / size[3] % size[2], h = n / size[3] / size[2];
    return (row * size[1] + h) * size[3] + c;
}

double *agc_arrays_f64(const struct arrays *x, enum tensor t)
{
    return x->dtype[t] == AG_F64 ? x->data[t] : NULL;
}

/* ---- Running ----------------------------------------------------------------------------------- */

static ag_status call_map(const struct arrays *x, uint32_t map)
{
    return agc_run_map(x->plan, map, &x->args, x->workspace, x->workspace_bytes);
}

ag_status agc_arrays_run(struct arrays *x, uint32_t map)
{
    for (enum tensor t = 0; t < T_COUNT; t++) {
        const struct agc_tensor_info *info = &agc_tensor_info[t];
        if (x->data[t] != NULL && (info->writers & map) != 0 &&
            (info->accumulate & x->args.accumulate) == 0) {
            memset(x->data[t], 0xff, (size_t)x->count[t] * agc_element_size(x, t)); /* NaN in every dtype */
        }
    }
    const ag_status status = call_map(x, map);
    agc_progress_add(agc_work_of_plan(x->plan, map));
    return status;
}

ag_status agc_arrays_run_along_s(struct arrays *x)
{
    const ag_args kept = x->args;
    const ag_tensor none = {.data = NULL};
    ag_args *a = &x->args;
    memset(x->so, 0xff, (size_t)x->count[T_STO] * agc_element_size(x, T_STO));
    memset(x->data[T_SMU], 0xff, (size_t)x->count[T_SMU] * sizeof(double));
    a->tq = a->sq, a->tk = a->sk, a->tv = a->sv;
    a->tbias = a->sbias, a->ttable = a->stable, a->tsink = a->ssink;
    a->to = agc_tensor_view(x->p, T_STO, x->so);
    a->mu = a->smu;
    a->o = a->lse = a->o_low = a->to_low = none;
    a->accumulate = 0;
    const ag_status status = call_map(x, AG_MAP_JVP);
    x->args = kept;
    agc_progress_add(agc_work_of_plan(x->plan, AG_MAP_JVP));
    return status;
}

ag_status agc_arrays_run_all(struct arrays *x)
{
    static const uint32_t maps[] = {AG_MAP_FORWARD, AG_MAP_VJP, AG_MAP_JVP, AG_MAP_VJP_JVP};
    ag_status status = AG_OK;
    for (int n = 0; n < 4 && status == AG_OK; n++) {
        status = agc_arrays_run(x, maps[n]);
    }
    if (status == AG_OK && agc_arrays_has_second_direction(x)) {
        status = agc_arrays_run_along_s(x);
        status = status == AG_OK ? agc_arrays_run(x, AG_MAP_JVP_JVP) : status;
    }
    return status;
}
