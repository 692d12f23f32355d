/* Shards of the arrays of the check engine: see shards.h. */
#include "shards.h"

#include <stdlib.h>
#include <string.h>

static int is_keys(enum tensor t)
{
    return agc_tensor_info[t].shape == SHAPE_K || agc_tensor_info[t].shape == SHAPE_V;
}

static int has_rows(enum tensor t)
{
    return agc_tensor_info[t].shape <= SHAPE_ROW;
}

static int is_matrix(enum tensor t)
{
    return agc_tensor_info[t].shape == SHAPE_BIAS || agc_tensor_info[t].shape == SHAPE_MASK;
}

static int is_packed(const struct arrays *x)
{
    return (x->p->flags & AG_PACKED) != 0;
}

int shard_is_replicated(const struct shard *s, enum tensor t)
{
    return !has_rows(t) && !(is_matrix(t) && s->x->size[t][2] != 1 && !is_packed(s->x));
}

static int64_t local_rows(const struct shard *s, enum tensor t)
{
    return s->of_rows || shard_is_replicated(s, t) ? s->x->size[t][2]
           : is_keys(t)                            ? s->info.kv_rows
                                                   : s->info.q_rows;
}

static ag_tensor view(const struct shard *s, enum tensor t, void *data, const int64_t size[4])
{
    return is_packed(s->x) && has_rows(t) ? ag_bnhd(data, size[1], size[2], size[3])
                                          : ag_bhnd(data, size[1], size[2], size[3]);
}

/* Copies one row of all sequences and heads: `from` and `to` are views of arrays with other numbers of rows. */
static void copy_row(ag_tensor to, int64_t to_row, ag_tensor from, int64_t from_row, const int64_t size[4],
                     size_t element)
{
    for (int64_t b = 0; b < size[0]; b++) {
        for (int64_t h = 0; h < size[1]; h++) {
            const int64_t a = b * to.strides[0] + h * to.strides[1] + to_row * to.strides[2];
            const int64_t c = b * from.strides[0] + h * from.strides[1] + from_row * from.strides[2];
            memcpy((char *)to.data + (size_t)a * element, (const char *)from.data + (size_t)c * element,
                   (size_t)size[3] * element);
        }
    }
}

/* Copies this rank's rows between the arrays of the whole problem and of the shard. */
static void copy_rows(const struct shard *s, enum tensor t, void *whole, int to_shard)
{
    const int64_t *size = s->size[t];
    const ag_tensor local = view(s, t, s->data[t], size), all = view(s, t, whole, s->x->size[t]);
    const size_t element = agc_element_size(s->x, t);
    int64_t row = 0;
    if (s->of_rows || shard_is_replicated(s, t)) {
        for (row = 0; row < size[2]; row++) {
            copy_row(to_shard ? local : all, row, to_shard ? all : local, row, size, element);
        }
        return;
    }
    for (int n = 0; n < s->info.chunks; n++) {
        const int64_t start = is_keys(t) ? s->info.k_starts[n] : s->info.q_starts[n];
        const int64_t length = is_keys(t) ? s->info.k_lengths[n] : s->info.q_lengths[n];
        for (int64_t i = 0; i < length; i++, row++) {
            copy_row(to_shard ? local : all, to_shard ? row : start + i, to_shard ? all : local,
                     to_shard ? start + i : row, size, element);
        }
    }
}

static size_t bytes_of(const struct shard *s, enum tensor t)
{
    const int64_t *size = s->size[t];
    return (size_t)(size[0] * size[1] * size[2] * size[3]) * agc_element_size(s->x, t);
}

static ag_tensor *tensor_of(struct shard *s, enum tensor t)
{
    return (ag_tensor *)(void *)((char *)&s->args + agc_tensor_info[t].offset);
}

/* The tensors, with the contents of those that are not outputs. */
static ag_status make_tensors(struct shard *s)
{
    const struct arrays *x = s->x;
    for (enum tensor t = 0; t < T_COUNT; t++) {
        if (x->data[t] == NULL) {
            continue;
        }
        memcpy(s->size[t], x->size[t], sizeof s->size[t]);
        s->size[t][2] = local_rows(s, t);
        s->data[t] = agc_alloc(agc_tensor_info[t].name, (int64_t)bytes_of(s, t), 1);
        if (s->data[t] == NULL) {
            return AG_NO_MEMORY;
        }
        *tensor_of(s, t) = view(s, t, s->data[t], s->size[t]);
        if (agc_tensor_info[t].role != ROLE_OUTPUT) {
            copy_rows(s, t, x->data[t], 1);
        }
    }
    s->so = agc_alloc("so", x->data[T_STO] != NULL ? (int64_t)bytes_of(s, T_STO) : 0, 1);
    return s->so != NULL ? AG_OK : AG_NO_MEMORY;
}

static ag_status create(struct shard *s, ag_mpi_plan *plan, int32_t rank, const struct arrays *x, int of_rows)
{
    const uint32_t second = agc_arrays_has_second_direction(x) ? AG_MAP_JVP_JVP : 0;
    const uint32_t maps = AG_MAP_FORWARD | AG_MAP_VJP | AG_MAP_JVP | AG_MAP_VJP_JVP | second;
    memset(s, 0, sizeof *s);
    s->plan = plan;
    s->x = x;
    s->of_rows = of_rows;
    s->args = x->args;
    s->info.struct_size = sizeof s->info;
    ag_status status = ag_mpi_shard(plan, rank, &s->info);
    status = status == AG_OK ? make_tensors(s) : status;
    status = status == AG_OK ? ag_mpi_plan_workspace(plan, maps, &s->bytes) : status;
    if (status == AG_OK) {
        s->workspace = agc_alloc("the workspace", (int64_t)s->bytes, 1);
        status = s->workspace != NULL ? AG_OK : AG_NO_MEMORY;
    }
    return status;
}

ag_status shard_create(struct shard *s, ag_mpi_plan *plan, int32_t rank, const struct arrays *x)
{
    return create(s, plan, rank, x, 0);
}

ag_status shard_create_of_rows(struct shard *s, ag_mpi_plan *plan, int32_t rank, const struct arrays *x)
{
    return create(s, plan, rank, x, 1);
}

void shard_destroy(struct shard *s)
{
    for (enum tensor t = 0; t < T_COUNT; t++) {
        free(s->data[t]);
    }
    free(s->so);
    free(s->workspace);
}

ag_status shard_call(struct shard *s, uint32_t map, const ag_exec *exec)
{
    switch (map) {
    case AG_MAP_FORWARD: return ag_mpi_forward(s->plan, &s->args, exec, s->workspace, s->bytes);
    case AG_MAP_VJP: return ag_mpi_vjp(s->plan, &s->args, exec, s->workspace, s->bytes);
    case AG_MAP_JVP: return ag_mpi_jvp(s->plan, &s->args, exec, s->workspace, s->bytes);
    case AG_MAP_VJP_JVP: return ag_mpi_vjp_jvp(s->plan, &s->args, exec, s->workspace, s->bytes);
    default: return ag_mpi_jvp_jvp(s->plan, &s->args, exec, s->workspace, s->bytes);
    }
}

ag_status shard_run(struct shard *s, uint32_t map)
{
    for (enum tensor t = 0; t < T_COUNT; t++) {
        const struct agc_tensor_info *info = &agc_tensor_info[t];
        if (s->data[t] != NULL && (info->writers & map) != 0 &&
            (info->accumulate & s->args.accumulate) == 0) {
            memset(s->data[t], 0xff, bytes_of(s, t));
        }
    }
    return shard_call(s, map, NULL);
}

ag_status shard_run_along_s(struct shard *s)
{
    const ag_args kept = s->args;
    const ag_tensor none = {.data = NULL};
    ag_args *a = &s->args;
    memset(s->so, 0xff, bytes_of(s, T_STO));
    memset(s->data[T_SMU], 0xff, bytes_of(s, T_SMU));
    a->tq = a->sq, a->tk = a->sk, a->tv = a->sv;
    a->tbias = a->sbias, a->ttable = a->stable, a->tsink = a->ssink;
    a->to = view(s, T_STO, s->so, s->size[T_STO]);
    a->mu = a->smu;
    a->o = a->lse = a->o_low = a->to_low = none;
    const ag_status status = shard_call(s, AG_MAP_JVP, NULL);
    s->args = kept;
    return status;
}

ag_status shard_run_all(struct shard *s)
{
    static const uint32_t maps[] = {AG_MAP_FORWARD, AG_MAP_VJP, AG_MAP_JVP, AG_MAP_VJP_JVP};
    ag_status status = AG_OK;
    for (int n = 0; n < 4 && status == AG_OK; n++) {
        status = shard_run(s, maps[n]);
    }
    if (status == AG_OK && agc_arrays_has_second_direction(s->x)) {
        status = shard_run_along_s(s);
        status = status == AG_OK ? shard_run(s, AG_MAP_JVP_JVP) : status;
    }
    return status;
}

void shard_collect(const struct shard *s, struct arrays *y, int all)
{
    for (enum tensor t = 0; t < T_COUNT; t++) {
        const int output = agc_tensor_info[t].role == ROLE_OUTPUT || agc_tensor_info[t].role == ROLE_LOW_HALF;
        if (s->data[t] != NULL && output && (all || !shard_is_replicated(s, t))) {
            copy_rows(s, t, y->data[t], 0);
        }
    }
}
