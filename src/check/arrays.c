/* The arrays of arrays.h: memory, random contents, views, copies in other dtypes. */
#include "check/arrays.h"

#include "check/progress.h"
#include "check/rng.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
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

/* Streams of random numbers. Tensor t has stream t, or STREAM_ADDED + t if it is added to a call; the others follow. */
enum {
    STREAM_BUCKETS = T_FREE_STREAM,
    STREAM_SLOPES,
    STREAM_Q_LENGTHS,
    STREAM_K_LENGTHS,
    STREAM_DROPOUT,
    STREAM_ADDED = 1000,
    STREAM_Q_OFFSETS = 2000,
    STREAM_K_OFFSETS
};

/* NULL if there is no memory. */
static void *copy_of(const char *what, const void *source, int64_t count, size_t size)
{
    void *memory = agc_alloc(what, count, size);
    if (memory != NULL && count > 0) {
        memcpy(memory, source, (size_t)count * size);
    }
    return memory;
}

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

static size_t element_size(const struct arrays *x, enum tensor t)
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
    return (char *)x->data[t] + (size_t)((n * size[1] + h) * size[3]) * element_size(x, t);
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

/* ---- Random contents --------------------------------------------------------------------------- */

static double draw_value(struct rng *r, enum tensor t)
{
    const double value = agc_rng_normal(r);
    return t == T_BIAS && agc_rng_chance(r, 0.05) ? -INFINITY : value;
}

static void fill_normal(struct arrays *x, enum tensor t)
{
    struct rng r;
    double values[256];
    const int64_t room = sizeof values / sizeof values[0];
    agc_rng_init(&r, x->seed, (uint64_t)(t < T_FIRST_ADDED ? t : STREAM_ADDED + t));
    for (int64_t first = 0; first < x->count[t]; first += room) {
        const int64_t left = x->count[t] - first, count = left < room ? left : room;
        for (int64_t n = 0; n < count; n++) {
            values[n] = draw_value(&r, t);
        }
        ag_convert((char *)x->data[t] + (size_t)first * element_size(x, t), x->dtype[t], values, AG_F64,
                   count);
    }
}

/* Masks a tenth of the rows completely, if there are several, and a fifth of the other entries. */
static void fill_mask(struct arrays *x)
{
    struct rng r;
    const int64_t *size = x->size[T_MASK];
    uint8_t *mask = x->data[T_MASK];
    agc_rng_init(&r, x->seed, T_MASK);
    for (int64_t row = 0; row < size[0] * size[1] * size[2]; row++) {
        int hidden = agc_rng_chance(&r, 0.1) && size[2] > 1;
        for (int64_t j = 0; j < size[3]; j++) {
            mask[row * size[3] + j] = !hidden && agc_rng_chance(&r, 0.8);
        }
    }
}

static int64_t draw_length(struct rng *r, int64_t longest)
{
    int64_t length = agc_rng_range(r, 0, longest);
    double kind = agc_rng_uniform(r);
    return kind < 0.1 ? 0 : kind < 0.5 ? longest : length;
}

/* NULL if there is no memory. */
static int64_t *draw_lengths(const struct arrays *x, uint64_t stream, int64_t longest)
{
    struct rng r;
    int64_t *lengths = agc_alloc("lengths", x->p->batch, sizeof *lengths);
    agc_rng_init(&r, x->seed, stream);
    for (int64_t b = 0; lengths != NULL && b < x->p->batch; b++) {
        lengths[b] = draw_length(&r, longest);
    }
    return lengths;
}

/* NULL if there is no memory. */
static int64_t *draw_packed(const struct arrays *x, uint64_t stream, int64_t longest, int64_t total)
{
    struct rng r;
    int64_t *starts = agc_alloc("offsets of packed sequences", x->p->batch + 1, sizeof *starts);
    if (starts == NULL) {
        return NULL;
    }
    agc_rng_init(&r, x->seed, stream);
    starts[0] = 0;
    for (int64_t b = 0; b < x->p->batch; b++) {
        int64_t left = total - starts[b];
        starts[b + 1] = starts[b] + draw_length(&r, left < longest ? left : longest);
    }
    return starts;
}

ag_status agc_arrays_random_lengths(struct arrays *x)
{
    free(x->q_lengths);
    free(x->kv_lengths);
    x->args.q_lengths = x->q_lengths = draw_lengths(x, STREAM_Q_LENGTHS, x->p->q_len);
    x->args.kv_lengths = x->kv_lengths = draw_lengths(x, STREAM_K_LENGTHS, x->p->kv_len);
    return x->q_lengths != NULL && x->kv_lengths != NULL ? AG_OK : AG_NO_MEMORY;
}

/* NULL if there is no memory. */
static int64_t *draw_offsets(const struct arrays *x, uint64_t stream, int64_t smallest, int64_t largest)
{
    struct rng r;
    int64_t *offsets = agc_alloc("offsets", x->p->batch, sizeof *offsets);
    agc_rng_init(&r, x->seed, stream);
    for (int64_t b = 0; offsets != NULL && b < x->p->batch; b++) {
        offsets[b] = agc_rng_range(&r, smallest, largest);
    }
    return offsets;
}

ag_status agc_arrays_random_offsets(struct arrays *x, int64_t largest)
{
    free(x->q_offsets);
    free(x->k_offsets);
    x->args.q_offsets = x->q_offsets = draw_offsets(x, STREAM_Q_OFFSETS, -largest, largest);
    x->args.k_offsets = x->k_offsets = draw_offsets(x, STREAM_K_OFFSETS, 0, largest);
    return x->q_offsets != NULL && x->k_offsets != NULL ? AG_OK : AG_NO_MEMORY;
}

static ag_status random_packing(struct arrays *x)
{
    x->args.q_packed = x->q_packed = draw_packed(x, STREAM_Q_LENGTHS, x->p->q_len, x->p->q_total);
    x->args.k_packed = x->k_packed = draw_packed(x, STREAM_K_LENGTHS, x->p->kv_len, x->p->kv_total);
    return x->q_packed != NULL && x->k_packed != NULL ? AG_OK : AG_NO_MEMORY;
}

/* If the problem says how many columns the table has, sets x's own buckets: a copy of the problem's or, if it
 * has none, random columns. Else leaves the problem's pointer, whose NULL is the identity. Sizes that are
 * wrong are left for ag_plan_create to refuse. */
static ag_status take_buckets(struct arrays *x)
{
    struct rng r;
    const ag_problem *p = &x->given;
    int64_t count = 2 * p->table_radius + 1;
    if (!(p->flags & AG_TABLE) || p->table_buckets <= 0 || p->table_radius < 0 ||
        p->table_radius > INT32_MAX) {
        return AG_OK;
    }
    if (p->buckets != NULL) {
        x->buckets = copy_of("buckets", p->buckets, count, sizeof *p->buckets);
    } else {
        x->buckets = agc_alloc("buckets", count, sizeof *x->buckets);
        agc_rng_init(&r, x->seed, STREAM_BUCKETS);
        for (int64_t n = 0; x->buckets != NULL && n < count; n++) {
            x->buckets[n] = (int32_t)agc_rng_range(&r, 0, p->table_buckets - 1);
        }
    }
    x->given.buckets = x->buckets;
    return x->buckets != NULL ? AG_OK : AG_NO_MEMORY;
}

/* Likewise the slopes of ALiBi: a copy of the problem's or, if it has none, random. */
static ag_status take_slopes(struct arrays *x)
{
    struct rng r;
    const ag_problem *p = &x->given;
    if (!(p->flags & AG_SLOPES) || p->heads <= 0) {
        return AG_OK;
    }
    if (p->alibi_slopes != NULL) {
        x->slopes = copy_of("alibi_slopes", p->alibi_slopes, p->heads, sizeof *p->alibi_slopes);
    } else {
        x->slopes = agc_alloc("alibi_slopes", p->heads, sizeof *x->slopes);
        agc_rng_init(&r, x->seed, STREAM_SLOPES);
        for (int64_t h = 0; x->slopes != NULL && h < p->heads; h++) {
            x->slopes[h] = agc_rng_uniform(&r);
        }
    }
    x->given.alibi_slopes = x->slopes;
    return x->slopes != NULL ? AG_OK : AG_NO_MEMORY;
}

/* ---- Creating and destroying -------------------------------------------------------------------- */

static ag_status make_plan(struct arrays *x, const ag_options *options)
{
    uint32_t maps = AG_MAP_FORWARD | AG_MAP_VJP | AG_MAP_JVP | AG_MAP_VJP_JVP;
    ag_status status = ag_plan_create(&x->plan, &x->given, options);
    if (status == AG_OK) {
        x->p = ag_plan_problem(x->plan);
        status = ag_plan_workspace(x->plan, maps, &x->workspace_bytes);
    }
    if (status != AG_OK) {
        return status;
    }
    x->workspace = agc_alloc("the workspace", (int64_t)x->workspace_bytes, 1);
    return x->workspace != NULL ? AG_OK : AG_NO_MEMORY;
}

static ag_status make_tensor(struct arrays *x, enum tensor t)
{
    int64_t *size = x->size[t];
    shape_size(x->p, agc_tensor_info[t].shape, size);
    x->count[t] = size[0] * size[1] * size[2] * size[3];
    x->dtype[t] = agc_tensor_dtype(x->p, t);
    x->data[t] = agc_alloc(agc_tensor_info[t].name, x->count[t], element_size(x, t));
    if (x->data[t] == NULL) {
        return AG_NO_MEMORY;
    }
    *agc_arrays_tensor(x, t) = dense_view(x, t);
    return AG_OK;
}

static ag_status make_tensors(struct arrays *x)
{
    ag_status status = AG_OK;
    for (enum tensor t = 0; t < T_FIRST_ADDED && status == AG_OK; t++) {
        int64_t size[4];
        status = agc_tensor_size(x->p, t, size) ? make_tensor(x, t) : AG_OK;
    }
    return status;
}

ag_status agc_arrays_add_low_halves(struct arrays *x)
{
    const int has_low_half = ag_dtype_size(x->p->out_dtype) == 2 && x->data[T_O_LOW] == NULL;
    ag_status status = has_low_half ? make_tensor(x, T_O_LOW) : AG_OK;
    return status == AG_OK && has_low_half ? make_tensor(x, T_TO_LOW) : status;
}

int agc_plan_has_jvp_jvp(const ag_plan *plan)
{
    size_t bytes;
    return ag_plan_workspace(plan, AG_MAP_JVP_JVP, &bytes) == AG_OK;
}

int agc_arrays_has_second_direction(const struct arrays *x)
{
    return x->so != NULL;
}

/* Makes the tensors of jvp_jvp, without contents. */
static ag_status make_second_direction(struct arrays *x)
{
    size_t bytes = 0;
    ag_status status = ag_plan_workspace(x->plan, AG_MAP_JVP_JVP, &bytes);
    if (status == AG_OK && bytes > x->workspace_bytes) {
        free(x->workspace);
        x->workspace_bytes = bytes;
        x->workspace = agc_alloc("the workspace", (int64_t)bytes, 1);
        status = x->workspace != NULL ? AG_OK : AG_NO_MEMORY;
    }
    for (enum tensor t = T_SQ; t <= T_NU && status == AG_OK; t++) {
        status = has_shape(x->p, agc_tensor_info[t].shape) ? make_tensor(x, t) : AG_OK;
    }
    if (status == AG_OK) {
        x->so = agc_alloc("so", x->count[T_STO], element_size(x, T_STO));
        status = x->so != NULL ? AG_OK : AG_NO_MEMORY;
    }
    return status;
}

ag_status agc_arrays_add_second_direction(struct arrays *x)
{
    const ag_status status = make_second_direction(x);
    for (enum tensor t = T_SQ; t <= T_SSINK && status == AG_OK; t++) {
        if (x->data[t] != NULL) {
            fill_normal(x, t);
        }
    }
    return status;
}

/* Makes all of x but the contents of the tensors and the lengths. On failure x is destroyed. */
static ag_status prepare(struct arrays *x, const ag_problem *problem, const ag_options *options,
                         uint64_t seed)
{
    memset(x, 0, sizeof *x);
    x->given = *problem;
    x->seed = seed;
    x->args.struct_size = sizeof x->args;
    ag_status status = take_buckets(x);
    status = status == AG_OK ? take_slopes(x) : status;
    status = status == AG_OK ? make_plan(x, options) : status;
    status = status == AG_OK ? make_tensors(x) : status;
    if (status != AG_OK) {
        agc_arrays_destroy(x);
    }
    return status;
}

ag_status agc_arrays_create(struct arrays *x, const ag_problem *problem, const ag_options *options,
                            uint64_t seed)
{
    struct rng r;
    ag_status status = prepare(x, problem, options, seed);
    if (status != AG_OK) {
        return status;
    }
    for (enum tensor t = 0; t < T_COUNT; t++) {
        if (x->data[t] != NULL && t != T_MASK && agc_tensor_info[t].role != ROLE_OUTPUT) {
            fill_normal(x, t);
        }
    }
    if (x->data[T_MASK] != NULL) {
        fill_mask(x);
    }
    agc_rng_init(&r, seed, STREAM_DROPOUT);
    x->args.seed = agc_rng_next(&r);
    status = x->p->flags & AG_PACKED ? random_packing(x) : AG_OK;
    if (status != AG_OK) {
        agc_arrays_destroy(x);
    }
    return status;
}

void agc_arrays_destroy(struct arrays *x)
{
    for (enum tensor t = 0; t < T_COUNT; t++) {
        free(x->data[t]);
    }
    ag_plan_destroy(x->plan);
    free(x->q_lengths);
    free(x->kv_lengths);
    free(x->q_packed);
    free(x->k_packed);
    free(x->q_offsets);
    free(x->k_offsets);
    free(x->so);
    free(x->buckets);
    free(x->slopes);
    free(x->workspace);
    memset(x, 0, sizeof *x);
}

/* Copies lengths or offsets, which may be NULL, to the array that belongs to y and to the pointer in its call. */
static ag_status copy_lengths(int64_t **own, const int64_t **of_call, const int64_t *lengths, int64_t count)
{
    if (lengths == NULL) {
        return AG_OK;
    }
    *of_call = *own = copy_of("lengths", lengths, count, sizeof *lengths);
    return *own != NULL ? AG_OK : AG_NO_MEMORY;
}

static ag_status copy_call(struct arrays *y, const struct arrays *x)
{
    int64_t batch = x->p->batch;
    y->args.q_offset = x->args.q_offset;
    y->args.k_offset = x->args.k_offset;
    y->args.batch_offset = x->args.batch_offset;
    y->args.seed = x->args.seed;
    ag_args *a = &y->args;
    ag_status status = copy_lengths(&y->q_lengths, &a->q_lengths, x->q_lengths, batch);
    status = status == AG_OK ? copy_lengths(&y->kv_lengths, &a->kv_lengths, x->kv_lengths, batch) : status;
    status = status == AG_OK ? copy_lengths(&y->q_offsets, &a->q_offsets, x->q_offsets, batch) : status;
    status = status == AG_OK ? copy_lengths(&y->k_offsets, &a->k_offsets, x->k_offsets, batch) : status;
    status = status == AG_OK ? copy_lengths(&y->q_packed, &a->q_packed, x->q_packed, batch + 1) : status;
    return status == AG_OK ? copy_lengths(&y->k_packed, &a->k_packed, x->k_packed, batch + 1) : status;
}

/* Both have the same layout; numbers are rounded if y's dtype is narrower. */
static void copy_tensor(struct arrays *y, const struct arrays *x, enum tensor t)
{
    if (agc_tensor_info[t].kind == KIND_U8) {
        memcpy(y->data[t], x->data[t], (size_t)y->count[t]);
    } else {
        ag_convert(y->data[t], y->dtype[t], x->data[t], x->dtype[t], y->count[t]);
    }
}

/* Copies all tensors but the outputs. One that x does not have, or has in another size, becomes zero. */
static void copy_tensors(struct arrays *y, const struct arrays *x)
{
    for (enum tensor t = 0; t < T_COUNT; t++) {
        if (y->data[t] == NULL || agc_tensor_info[t].role == ROLE_OUTPUT) {
            continue;
        }
        memset(y->data[t], 0, (size_t)y->count[t] * element_size(y, t));
        if (x->data[t] != NULL && memcmp(x->size[t], y->size[t], sizeof x->size[t]) == 0) {
            copy_tensor(y, x, t);
        }
    }
}

ag_status agc_arrays_like(struct arrays *y, const struct arrays *x, const ag_problem *problem,
                          const ag_options *options)
{
    ag_status status = prepare(y, problem, options, x->seed);
    if (status != AG_OK) {
        return status;
    }
    const int second = agc_arrays_has_second_direction(x) && agc_plan_has_jvp_jvp(y->plan);
    status = second ? make_second_direction(y) : AG_OK;
    if (status == AG_OK) {
        copy_tensors(y, x);
        status = copy_call(y, x);
    }
    status = status == AG_OK && x->data[T_O_LOW] != NULL ? agc_arrays_add_low_halves(y) : status;
    if (status != AG_OK) {
        agc_arrays_destroy(y);
    }
    return status;
}

ag_status agc_arrays_clone_as(struct arrays *y, const struct arrays *x, ag_dtype dtype,
                              const ag_options *options)
{
    ag_problem problem = x->given;
    if (dtype != problem.dtype) {
        problem.dtype = dtype;
        problem.out_dtype = problem.grad_dtype = problem.aux_dtype = 0;
    }
    return agc_arrays_like(y, x, &problem, options);
}

/* ---- Running ----------------------------------------------------------------------------------- */

static ag_status call_map(struct arrays *x, uint32_t map)
{
    switch (map) {
    case AG_MAP_FORWARD: return ag_forward(x->plan, &x->args, NULL, x->workspace, x->workspace_bytes);
    case AG_MAP_VJP: return ag_vjp(x->plan, &x->args, NULL, x->workspace, x->workspace_bytes);
    case AG_MAP_JVP: return ag_jvp(x->plan, &x->args, NULL, x->workspace, x->workspace_bytes);
    case AG_MAP_VJP_JVP: return ag_vjp_jvp(x->plan, &x->args, NULL, x->workspace, x->workspace_bytes);
    case AG_MAP_JVP_JVP: return ag_jvp_jvp(x->plan, &x->args, NULL, x->workspace, x->workspace_bytes);
    default: return AG_INVALID_ARGUMENT;
    }
}

ag_status agc_arrays_run(struct arrays *x, uint32_t map)
{
    for (enum tensor t = 0; t < T_COUNT; t++) {
        const struct agc_tensor_info *info = &agc_tensor_info[t];
        if (x->data[t] != NULL && (info->writers & map) != 0 &&
            (info->accumulate & x->args.accumulate) == 0) {
            memset(x->data[t], 0xff, (size_t)x->count[t] * element_size(x, t)); /* NaN in every dtype */
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
    memset(x->so, 0xff, (size_t)x->count[T_STO] * element_size(x, T_STO));
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
