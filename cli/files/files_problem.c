/* Derives the problem from the shapes of the inputs, then checks every input against it. An array in a file has its
 * axes in this order; leading axes may be missing:
 *
 *     q k v o               [batch, heads, n, channel], packed [total, heads, channel]; 2 to 4 axes, the same in all
 *     lse mu                the same without the channel
 *     bias mask             [batch, heads, nq, nk]; 2 to 4 axes
 *     table                 [heads, columns]; 1 or 2 axes
 *     sink                  [heads]
 *
 * Tangents and cotangents have the axes of their variables. */
#include "files.h"

#include "check/stage.h"
#include "usage.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const ag_io_array *array_of(const struct run *run, enum tensor t)
{
    return run->tensors[t].array;
}

static bool is_packed(const struct run *run)
{
    return run->lists[LIST_Q_PACKED].path != NULL;
}

static int check_axes(const struct run *run, enum tensor t, int min, int max)
{
    const ag_io_array *array = array_of(run, t);
    if (array != NULL && (array->ndim < min || array->ndim > max)) {
        char range[16];
        snprintf(range, sizeof range, min == max ? "%d" : "%d to %d", min, max);
        return input_error(run, &run->tensors[t], "has %d axes: it must have %s", (int)array->ndim, range);
    }
    return EXIT_PASS;
}

/* Checks the number of axes of every input that the problem is derived from. */
static int check_ranks(const struct run *run)
{
    int status = check_axes(run, T_Q, is_packed(run) ? 3 : 2, is_packed(run) ? 3 : 4);
    if (status == EXIT_PASS) {
        status = check_axes(run, T_K, array_of(run, T_Q)->ndim, array_of(run, T_Q)->ndim);
    }
    if (status == EXIT_PASS) {
        status = check_axes(run, T_V, array_of(run, T_Q)->ndim, array_of(run, T_Q)->ndim);
    }
    if (status == EXIT_PASS) {
        status = check_axes(run, T_BIAS, 2, 4);
    }
    if (status == EXIT_PASS) {
        status = check_axes(run, T_MASK, 2, 4);
    }
    return status == EXIT_PASS ? check_axes(run, T_TABLE, 1, 2) : status;
}

/* Sets size to the axes of the array, with 1 for missing leading ones. */
static void four_axes(const ag_io_array *array, int64_t size[4])
{
    for (int axis = 0; axis < 4; axis++) {
        int source = axis - 4 + array->ndim;
        size[axis] = source >= 0 ? array->shape[source] : 1;
    }
}

/* [batch, heads, n, channel] of q, k or v. */
static void qkv_axes(const struct run *run, enum tensor t, int64_t size[4])
{
    four_axes(array_of(run, t), size);
    if (is_packed(run)) {
        int64_t rows = size[1];
        size[1] = size[2];
        size[2] = rows;
    }
}

/* Sizes from the shapes of q, k and v. In a packed problem q_len and kv_len become the totals, which convert_lists then
 * replaces by the length of the longest sequence. */
static void take_sizes(struct run *run)
{
    ag_problem *p = &run->problem;
    int64_t q[4], k[4], v[4];
    qkv_axes(run, T_Q, q);
    qkv_axes(run, T_K, k);
    qkv_axes(run, T_V, v);
    p->batch = q[0];
    p->heads = q[1];
    p->q_len = q[2];
    p->dim_qk = q[3];
    p->kv_heads = k[1];
    p->kv_len = k[2];
    p->dim_v = v[3];
    p->dtype = array_of(run, T_Q)->dtype;
}

static int take_table(struct run *run)
{
    ag_problem *p = &run->problem;
    const ag_io_array *table = array_of(run, T_TABLE);
    if (table == NULL) {
        return EXIT_PASS;
    }
    int64_t columns = table->shape[table->ndim - 1];
    p->flags |= AG_TABLE;
    p->table_heads = table->ndim == 2 ? table->shape[0] : 1;
    p->table_buckets = columns;
    if (run->lists[LIST_BUCKETS].path == NULL) {
        p->table_radius = columns / 2;
        if (columns % 2 == 0) {
            return input_error(run, &run->tensors[T_TABLE],
                               "has %lld columns: without --buckets it must have 2R + 1", (long long)columns);
        }
    }
    return EXIT_PASS;
}

/* Bias, table and sink have one dtype, which may be wider than that of q, k and v. It is taken from the first
 * of bias, table, sink that is given (the loop runs backwards); check_tensor compares the others with it. */
static void take_features(struct run *run)
{
    static const enum tensor aux[] = {T_SINK, T_TABLE, T_BIAS};
    ag_problem *p = &run->problem;
    if (array_of(run, T_BIAS) != NULL) {
        p->flags |= AG_BIAS;
        four_axes(array_of(run, T_BIAS), p->bias_size);
    }
    if (array_of(run, T_MASK) != NULL) {
        p->flags |= AG_MASK;
        four_axes(array_of(run, T_MASK), p->mask_size);
    }
    p->flags |= array_of(run, T_SINK) != NULL ? AG_SINK : 0U;
    for (size_t n = 0; n < sizeof aux / sizeof aux[0]; n++) {
        p->aux_dtype = array_of(run, aux[n]) != NULL ? array_of(run, aux[n])->dtype : p->aux_dtype;
    }
}

static void take_constants(struct run *run)
{
    ag_problem *p = &run->problem;
    p->flags |= (run->causal != NULL ? AG_CAUSAL : 0U) | (run->window ? AG_WINDOW : 0U);
    p->flags |= run->alibi == NULL ? 0U : *run->alibi != '\0' ? AG_SLOPES : AG_ALIBI;
    p->align = strcmp(run->align, "bottom-right") == 0 ? AG_ALIGN_BOTTOM_RIGHT : AG_ALIGN_TOP_LEFT;
    p->window_left = run->window_left;
    p->window_right = run->window_right;
    p->softcap = run->softcap;
    p->dropout = run->dropout;
    if (!isnan(run->scale)) {
        p->flags |= AG_SCALE;
        p->scale = run->scale;
    }
}

/* Every dtype that the problem takes from a file must be a float of attngrad.h; a mask must be bytes. */
static int check_dtypes(const struct run *run)
{
    static const enum tensor floats[] = {T_Q, T_BIAS, T_TABLE, T_SINK};
    for (size_t n = 0; n < sizeof floats / sizeof floats[0]; n++) {
        const struct input *input = &run->tensors[floats[n]];
        if (input->array != NULL && ag_dtype_size(input->array->dtype) == 0) {
            return input_error(run, input, "is %s: it must be f64, f32, f16 or bf16",
                               ag_io_dtype_name(input->array->dtype));
        }
    }
    const struct input *mask = &run->tensors[T_MASK];
    if (mask->array != NULL && mask->array->dtype != AG_IO_U8 && mask->array->dtype != AG_IO_BOOL) {
        return input_error(run, mask, "is %s: it must be bool or u8", ag_io_dtype_name(mask->array->dtype));
    }
    return EXIT_PASS;
}

static int make_plan(struct run *run)
{
    ag_options options = AG_OPTIONS_INIT;
    const int chosen = choose_backend(run->command, &run->backend, &options);
    if (chosen != 0) {
        return chosen;
    }
    options.threads = (int32_t)run->threads;
    options.flags = run->invariant ? AG_INVARIANT : 0;
    if (ag_plan_create(&run->plan, &run->problem, &options) != AG_OK ||
        agc_enter_device(run->plan, &options) != AG_OK) {
        return run_library_error(run);
    }
    run->p = ag_plan_problem(run->plan);
    return EXIT_PASS;
}

/* ---- The arrays of the problem in files ---- */

/* Sets the shape to the last ndim of the four axes. */
static void set_shape(ag_io_array *array, const int64_t size[4], int ndim)
{
    array->ndim = ndim;
    for (int axis = 0; axis < ndim; axis++) {
        array->shape[axis] = size[4 - ndim + axis];
    }
}

ag_io_array file_array(const struct run *run, enum tensor t)
{
    ag_io_array array = {.name = agc_tensor_info[t].name, .dtype = agc_tensor_dtype(run->p, t)};
    int64_t size[4] = {0, 0, 0, 0};
    agc_tensor_size(run->p, t, size);
    switch (agc_tensor_info[t].shape) {
    case SHAPE_BIAS: set_shape(&array, size, array_of(run, T_BIAS)->ndim); break;
    case SHAPE_MASK: set_shape(&array, size, array_of(run, T_MASK)->ndim); break;
    case SHAPE_SINK: set_shape(&array, (int64_t[4]){0, 0, 0, size[1]}, 1); break;
    case SHAPE_TABLE:
        set_shape(&array, (int64_t[4]){0, 0, size[1], size[3]}, array_of(run, T_TABLE)->ndim);
        break;
    default:
        if (is_packed(run)) {
            set_shape(&array, (int64_t[4]){0, size[2], size[1], size[3]}, 3); /* heads after rows */
        } else {
            set_shape(&array, size, array_of(run, T_Q)->ndim);
        }
        array.ndim -= agc_tensor_info[t].shape == SHAPE_ROW; /* no channels */
    }
    return array;
}

void describe_array(const ag_io_array *array, char *text, size_t size)
{
    int at = snprintf(text, size, "%s [", ag_io_dtype_name(array->dtype));
    for (int32_t axis = 0; axis < array->ndim && (size_t)at < size; axis++) {
        at += snprintf(text + at, size - (size_t)at, axis > 0 ? ", %lld" : "%lld",
                       (long long)array->shape[axis]);
    }
    if ((size_t)at < size) {
        snprintf(text + at, size - (size_t)at, "]");
    }
}

/* Each axis of bias and mask must be full or 1. */
static int check_broadcast(const struct run *run, enum tensor t)
{
    const ag_problem *p = &run->problem;
    const int64_t full[4] = {p->batch, p->heads, p->q_len, p->kv_len};
    const int64_t *size = t == T_BIAS ? p->bias_size : p->mask_size;
    for (int axis = 0; axis < 4 && array_of(run, t) != NULL; axis++) {
        if (size[axis] != 1 && size[axis] != full[axis]) {
            char found[160], expected[160];
            ag_io_array wanted = {.dtype = array_of(run, t)->dtype};
            set_shape(&wanted, full, array_of(run, t)->ndim);
            describe_array(array_of(run, t), found, sizeof found);
            describe_array(&wanted, expected, sizeof expected);
            return input_error(run, &run->tensors[t], "is %s: it must be %s, or 1 in any axis", found,
                               expected);
        }
    }
    return EXIT_PASS;
}

/* The same dtype and shape? A mask may be u8 or bool. */
static bool same_form(const ag_io_array *a, const ag_io_array *b, bool mask)
{
    bool bytes = a->dtype == AG_IO_U8 || a->dtype == AG_IO_BOOL;
    return (mask ? bytes : a->dtype == b->dtype) && a->ndim == b->ndim &&
           memcmp(a->shape, b->shape, (size_t)a->ndim * sizeof a->shape[0]) == 0;
}

static int check_tensor(const struct run *run, enum tensor t)
{
    char found[160], expected[160];
    ag_io_array wanted = file_array(run, t);
    if (same_form(array_of(run, t), &wanted, t == T_MASK)) {
        return EXIT_PASS;
    }
    wanted.dtype = t == T_MASK ? AG_IO_BOOL : wanted.dtype;
    describe_array(array_of(run, t), found, sizeof found);
    describe_array(&wanted, expected, sizeof expected);
    return input_error(run, &run->tensors[t], "is %s: it must be %s", found, expected);
}

ag_tensor *args_tensor(struct run *run, enum tensor t)
{
    return (ag_tensor *)(void *)((char *)&run->args + agc_tensor_info[t].offset);
}

static int take_tensors(struct run *run)
{
    static const double zero = 0.0; /* all bits are 0, so it is zero in every dtype */
    for (enum tensor t = 0; t < T_COUNT; t++) {
        if (array_of(run, t) != NULL) {
            int status = check_tensor(run, t);
            if (status != EXIT_PASS) {
                return status;
            }
            *args_tensor(run, t) = agc_tensor_view(run->p, t, array_of(run, t)->data);
        }
    }
    /* vjp requires d_o. If only --dlse was given, every element of d_o is this one zero. */
    if ((run->maps & AG_MAP_VJP) && array_of(run, T_D_O) == NULL) {
        run->args.d_o = ag_bhnd(&zero, 0, 0, 0);
        run->args.d_o.strides[3] = 0;
    }
    return EXIT_PASS;
}

/* The arguments of the call that are not tensors. */
static void take_call(struct run *run)
{
    run->args.q_offset = run->q_offset;
    run->args.k_offset = run->k_offset;
    run->args.seed = run->seed;
    run->args.q_lengths = run->integers[LIST_Q_LENGTHS];
    run->args.kv_lengths = run->integers[LIST_KV_LENGTHS];
    run->args.q_packed = run->integers[LIST_Q_PACKED];
    run->args.k_packed = run->integers[LIST_K_PACKED];
    run->args.q_offsets = run->integers[LIST_Q_OFFSETS];
    run->args.k_offsets = run->integers[LIST_K_OFFSETS];
}

int derive_problem(struct run *run)
{
    const ag_problem blank = AG_PROBLEM_INIT;
    run->problem = blank;
    run->args.struct_size = sizeof run->args;
    int status = check_ranks(run);
    if (status == EXIT_PASS) {
        status = check_dtypes(run);
    }
    if (status != EXIT_PASS) {
        return status;
    }
    take_sizes(run);
    take_features(run);
    take_constants(run);
    status = take_table(run);
    if (status == EXIT_PASS) {
        status = convert_lists(run);
    }
    if (status == EXIT_PASS) {
        status = check_broadcast(run, T_BIAS);
    }
    if (status == EXIT_PASS) {
        status = check_broadcast(run, T_MASK);
    }
    if (status == EXIT_PASS) {
        status = make_plan(run);
    }
    if (status == EXIT_PASS) {
        status = take_tensors(run);
    }
    take_call(run);
    return status;
}
