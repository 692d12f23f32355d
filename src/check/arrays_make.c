/* Makes arrays: memory, random contents, copies in other dtypes and for other plans. */
#include "check/arrays.h"

#include "check/rng.h"
#include "check/stage.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

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
        ag_convert((char *)x->data[t] + (size_t)first * agc_element_size(x, t), x->dtype[t], values, AG_F64,
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
        status = agc_enter_device(x->plan, options);
    }
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

/* Does nothing if the problem has no such tensor. */
static ag_status make_tensor(struct arrays *x, enum tensor t)
{
    int64_t *size = x->size[t];
    if (!agc_tensor_size(x->p, t, size)) {
        return AG_OK;
    }
    x->count[t] = size[0] * size[1] * size[2] * size[3];
    x->dtype[t] = agc_tensor_dtype(x->p, t);
    x->data[t] = agc_alloc(agc_tensor_info[t].name, x->count[t], agc_element_size(x, t));
    if (x->data[t] == NULL) {
        return AG_NO_MEMORY;
    }
    *agc_arrays_tensor(x, t) = agc_tensor_view(x->p, t, x->data[t]);
    return AG_OK;
}

static ag_status make_tensors(struct arrays *x)
{
    ag_status status = AG_OK;
    for (enum tensor t = 0; t < T_FIRST_ADDED && status == AG_OK; t++) {
        status = make_tensor(x, t);
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
        status = make_tensor(x, t);
    }
    if (status == AG_OK) {
        x->so = agc_alloc("so", x->count[T_STO], agc_element_size(x, T_STO));
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
        memset(y->data[t], 0, (size_t)y->count[t] * agc_element_size(y, t));
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
