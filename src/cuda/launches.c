/* The launches of a call: see launches.h. */
#include "cuda/launches.h"

#include <string.h>

#include "core/status.h"
#include "cuda/hopper_launches.h"

/* ---- The matrices of a map ---- */

enum {
    OF_FORWARD = 1 << AGI_CUDA_Q | 1 << AGI_CUDA_K | 1 << AGI_CUDA_V,
    OF_TANGENT = 1 << AGI_CUDA_TQ | 1 << AGI_CUDA_TK | 1 << AGI_CUDA_TV,
    OF_SECOND = 1 << AGI_CUDA_SQ | 1 << AGI_CUDA_SK | 1 << AGI_CUDA_SV
};

static const uint32_t matrices_of[AGI_N_MAPS] = {
    [AGI_FORWARD] = OF_FORWARD,
    [AGI_VJP] = OF_FORWARD | 1 << AGI_CUDA_DO,
    [AGI_JVP] = OF_FORWARD | OF_TANGENT,
    [AGI_VJP_JVP] = OF_FORWARD | OF_TANGENT | 1 << AGI_CUDA_DO | 1 << AGI_CUDA_TDO,
    [AGI_JVP_JVP] = OF_FORWARD | OF_TANGENT | OF_SECOND,
};

const agi_cuda_source agi_cuda_sources[AGI_CUDA_OPERANDS] = {
    [AGI_CUDA_Q] = {offsetof(ag_args, q), false, false, false},
    [AGI_CUDA_K] = {offsetof(ag_args, k), true, false, false},
    [AGI_CUDA_V] = {offsetof(ag_args, v), true, true, false},
    [AGI_CUDA_DO] = {offsetof(ag_args, d_o), false, true, true},
    [AGI_CUDA_TQ] = {offsetof(ag_args, tq), false, false, false},
    [AGI_CUDA_TK] = {offsetof(ag_args, tk), true, false, false},
    [AGI_CUDA_TV] = {offsetof(ag_args, tv), true, true, false},
    [AGI_CUDA_TDO] = {offsetof(ag_args, td_o), false, true, true},
    [AGI_CUDA_SQ] = {offsetof(ag_args, sq), false, false, false},
    [AGI_CUDA_SK] = {offsetof(ag_args, sk), true, false, false},
    [AGI_CUDA_SV] = {offsetof(ag_args, sv), true, true, false},
};
const agi_cuda_source agi_cuda_output = {offsetof(ag_args, o), false, true, true};

/* ---- The workspace ---- */

static int64_t channels_of(const ag_problem *p, const agi_cuda_source *s)
{
    return s->values ? p->dim_v : p->dim_qk;
}

/* Numbers of a row of a copy: whole chunks of 16 bytes. */
static int64_t width_of_copy(const ag_problem *p, const agi_cuda_source *s)
{
    const int64_t chunk = 16 / agi_cuda_number_bytes(agi_cuda_format_of(p->dtype));
    return agi_cuda_divide_up(channels_of(p, s), chunk) * chunk;
}

static void lay_out_copy(agi_cuda_layout *x, agi_arena *arena, const ag_problem *p, int operand)
{
    const agi_cuda_source *s = &agi_cuda_sources[operand];
    const agi_cuda_format format = agi_cuda_format_of(p->dtype);
    const int64_t rows = s->keys ? x->k_rows : x->q_rows, heads = s->keys ? p->kv_heads : p->heads;
    const int64_t numbers = agi_saturating_product(rows, heads, width_of_copy(p, s), agi_cuda_planes(format));
    x->copies[operand] = agi_take(arena, numbers, (size_t)agi_cuda_number_bytes(format));
    x->inverses[operand] = agi_take(arena, agi_saturating_product(rows / AGI_CUDA_SCALE_ROWS, heads, 1, 1),
                                    format == AGI_FORMAT_f32 ? sizeof(float) : 0);
}

static void lay_out(agi_cuda_layout *x, agi_arena *arena, const ag_plan *plan, agi_map map)
{
    const ag_problem *p = &plan->p;
    const size_t real = p->dtype == AG_F64 ? sizeof(double) : sizeof(float);
    const bool backward = map == AGI_VJP || map == AGI_VJP_JVP;
    memset(x, 0, sizeof *x);
    x->q_rows = agi_cuda_copied_rows(p->batch, p->q_len, agi_has(p, AG_PACKED) ? p->q_total : 0);
    x->k_rows = agi_cuda_copied_rows(p->batch, p->kv_len, agi_has(p, AG_PACKED) ? p->kv_total : 0);
    /* Six lists of at most batch + 1 numbers, not all of them so long, and a counter. */
    x->lists = agi_take(arena, agi_saturating_product(6, p->batch + 1, 1, 1), sizeof(int64_t));
    for (int operand = 0; operand < AGI_CUDA_OPERANDS; operand++) {
        if (matrices_of[map] >> operand & 1) {
            lay_out_copy(x, arena, p, operand);
        }
    }
    if (map == AGI_FORWARD && agi_cuda_splits_keys(plan, INT32_MAX)) {
        const int64_t splits = agi_saturating_product(p->batch, p->heads, p->q_len, agi_cuda_key_splits(p));
        x->splits = agi_take(arena, agi_saturating_product(splits, p->dim_v + 2, 1, 1), real);
    }
    if (plan->isa != AG_ISA_SM80) {
        agi_hopper_lay_out(x, arena, plan, map);
    }
    if (backward) {
        x->stats = agi_take(arena, agi_saturating_product(x->q_rows, p->heads, AGI_CUDA_STATS, 1), real);
    }
    if (backward && agi_has(p, AG_TABLE) && p->q_len > 0 && p->kv_len > 0) {
        x->diagonal_tiles = agi_cuda_divide_up(p->q_len, AGI_CUDA_PAIR_TILE) +
                            agi_cuda_divide_up(p->kv_len, AGI_CUDA_PAIR_TILE) - 1;
        x->diagonals = agi_take(arena, agi_saturating_product(p->batch, p->heads, x->diagonal_tiles, 64),
                                sizeof(double));
    }
}

size_t agi_cuda_workspace(const ag_plan *plan, agi_map map)
{
    agi_cuda_layout x;
    agi_arena arena = agi_arena_begin(NULL);
    lay_out(&x, &arena, plan, map);
    return agi_arena_bytes(&arena);
}

/* ---- The parameters ---- */

static void clear_broadcast_strides(ag_tensor *t, const int64_t size[4])
{
    for (int axis = 0; axis < 4; axis++) {
        t->strides[axis] = size[axis] == 1 ? 0 : t->strides[axis];
    }
}

/* Tensors that the map does not use are absent; of the others, strides of axes of size 1 are zero. */
static void set_tensors(agi_cuda_params *k, const agi_call *call)
{
    const ag_problem *p = &call->plan->p;
    k->a = call->a;
    for (int n = 0; n < AGI_N_TENSORS; n++) {
        const agi_tensor_info *f = &agi_tensors[n];
        ag_tensor *t = (ag_tensor *)(void *)((char *)&k->a + f->offset);
        int64_t size[4];
        const bool exists = f->feature == 0 || agi_has(p, f->feature);
        if (f->role[call->map] == AGI_NONE || !exists ||
            (f->element == AGI_LOW_HALF && !agi_has_low_half(p))) {
            t->data = NULL;
        }
        if (t->data != NULL) {
            agi_shape_of(p, f->shape, size);
            clear_broadcast_strides(t, size);
        }
    }
}

static void set_problem(agi_cuda_params *k, const ag_plan *plan, agi_map map)
{
    const ag_problem *p = &plan->p;
    k->B = p->batch;
    k->Nq = p->q_len;
    k->Nk = p->kv_len;
    k->q_total = p->q_total;
    k->kv_total = p->kv_total;
    k->H = (int32_t)p->heads;
    k->Hk = (int32_t)p->kv_heads;
    k->group = (int32_t)(p->heads / p->kv_heads);
    k->Dk = (int32_t)p->dim_qk;
    k->Dv = (int32_t)p->dim_v;
    k->flags = p->flags;
    k->bottom_right = p->align == AG_ALIGN_BOTTOM_RIGHT;
    k->dtype = p->dtype;
    k->out_dtype = p->out_dtype;
    k->grad_dtype = p->grad_dtype;
    k->aux_dtype = p->aux_dtype;
    k->map = map;
    k->scale = p->scale;
    k->softcap = p->softcap;
    k->keep = 1 - p->dropout;
    k->drop_below = (uint64_t)(p->dropout * 0x1p32);
    k->window_left = agi_has(p, AG_WINDOW) ? p->window_left : -1;
    k->window_right = agi_has(p, AG_WINDOW) ? p->window_right : -1;
    memcpy(k->bias_size, p->bias_size, sizeof k->bias_size);
    k->table_radius = p->table_radius;
    k->table_buckets = p->table_buckets;
    k->table_heads = (int32_t)p->table_heads;
    k->head_offset = p->head_offset;
}

/* The axes of a matrix in the caller's memory. */
void agi_cuda_axes_of(const ag_problem *p, const agi_cuda_source *s, int64_t size[4])
{
    const bool packed = agi_has(p, AG_PACKED);
    size[0] = packed ? 1 : p->batch;
    size[1] = s->keys ? p->kv_heads : p->heads;
    size[2] = s->keys ? (packed ? p->kv_total : p->kv_len) : (packed ? p->q_total : p->q_len);
    size[3] = channels_of(p, s);
}

/* Can the copy engine read a matrix that the loops read directly? Its strides are positive. */
bool agi_cuda_has_boxes(const ag_problem *p, const agi_cuda_source *s, const ag_tensor *t)
{
    const int64_t far = INT64_C(1) << 38; /* in numbers of 16 bits */
    int64_t size[4];
    bool all = true;
    agi_cuda_axes_of(p, s, size);
    for (int axis = 0; axis < 3; axis++) {
        all &= size[axis] == 1 || (t->strides[axis] > 0 && t->strides[axis] < far);
    }
    return all;
}

/* Is the matrix in the form that the loops read? */
bool agi_cuda_is_direct(const ag_problem *p, const agi_cuda_source *s, const ag_tensor *t)
{
    const ag_dtype dtype = s->output ? p->out_dtype : p->dtype;
    const int64_t bytes = (int64_t)ag_dtype_size(dtype);
    bool aligned = (uintptr_t)t->data % 16 == 0 && channels_of(p, s) * bytes % 16 == 0 && t->strides[3] == 1;
    for (int axis = 0; axis < 3; axis++) {
        aligned &= t->strides[axis] * bytes % 16 == 0;
    }
    return aligned && dtype == p->dtype && agi_cuda_planes(agi_cuda_format_of(dtype)) == 1;
}

bool agi_cuda_outputs_in_chunks(const agi_cuda_job *j)
{
    const ag_args *a = &j->k.a;
    const ag_tensor *const outputs[] = {&a->o, &a->o_low, &a->d_o, &a->to, &a->to_low, &a->td_o};
    bool all = true;
    for (int n = 0; n < 6; n++) {
        all &= outputs[n]->data == NULL || agi_cuda_is_direct(j->p, &agi_cuda_output, outputs[n]);
    }
    return all;
}

/* Do the loops read the caller's matrix? The copy engine needs boxes. */
static bool reads_directly(const agi_cuda_job *j, int operand, const ag_tensor *t)
{
    const agi_cuda_source *s = &agi_cuda_sources[operand];
    return agi_cuda_is_direct(j->p, s, t) && (!j->hopper || agi_cuda_has_boxes(j->p, s, t));
}

/* Sets a matrix of the loops; returns whether it must be copied. */
static bool set_matrix(agi_cuda_job *j, int operand)
{
    const ag_problem *p = j->p;
    const agi_cuda_source *s = &agi_cuda_sources[operand];
    const ag_tensor *t = (const ag_tensor *)(const void *)((const char *)&j->k.a + s->tensor);
    const int64_t rows = s->keys ? j->x->k_rows : j->x->q_rows, width = width_of_copy(p, s);
    const agi_cuda_format format = agi_cuda_format_of(p->dtype);
    agi_cuda_matrix *m = &j->k.m[operand];
    if (t->data == NULL) {
        return false;
    }
    if (reads_directly(j, operand, t)) {
        *m = (agi_cuda_matrix){
            .data = t->data, .batch = t->strides[0], .head = t->strides[1], .row = t->strides[2]};
        m->width = (int32_t)channels_of(p, s);
        return false;
    }
    *m = (agi_cuda_matrix){.data = j->x->copies[operand], .plane = rows * width, .row = width, .copied = 1};
    m->head = agi_cuda_planes(format) * rows * width;
    m->inverse = format == AGI_FORMAT_f32 ? j->x->inverses[operand] : NULL;
    m->width = (int32_t)width;
    return true;
}

/* Sets the matrices; returns the bits of those that must be copied. */
static uint32_t set_matrices(agi_cuda_job *j)
{
    uint32_t copied = 0;
    memset(j->k.m, 0, sizeof j->k.m);
    for (int operand = 0; operand < AGI_CUDA_OPERANDS; operand++) {
        if (matrices_of[j->k.map] >> operand & 1 && set_matrix(j, operand)) {
            copied |= 1u << operand;
        }
    }
    return copied;
}

/* ---- Emitting ---- */

static ag_status refuse_blocks(const ag_problem *p, int32_t kernel, int64_t blocks)
{
    return agi_fail_field(
        AG_UNSUPPORTED, "batch",
        "batch is %lld, heads is %lld, q_len is %lld, kv_len is %lld: the cuda kernel %s would have "
        "%lld blocks, and a launch has at most %d",
        (long long)p->batch, (long long)p->heads, (long long)p->q_len, (long long)p->kv_len,
        agi_cuda_kernels[kernel].name, (long long)blocks, INT32_MAX);
}

void agi_cuda_emit(agi_cuda_job *j, int32_t kernel, int64_t blocks, const void *parameter, size_t bytes,
                   bool together)
{
    if (j->status != AG_OK || blocks == 0) {
        return;
    }
    if (blocks > INT32_MAX) {
        j->status = refuse_blocks(j->p, kernel, blocks);
        return;
    }
    const agi_cuda_entry launch = {kernel, (uint32_t)blocks, parameter, bytes, together};
    j->status = j->stream.emit(j->stream.ctx, &launch);
}

static void emit_with(agi_cuda_job *j, int32_t kernel, int64_t blocks, const void *parameter, size_t bytes)
{
    agi_cuda_emit(j, kernel, blocks, parameter, bytes, false);
}

static void emit(agi_cuda_job *j, int32_t kernel, int64_t blocks, agi_cuda_part part)
{
    j->k.w = part;
    emit_with(j, kernel, blocks, &j->k, sizeof j->k);
}

/* ---- Lists ---- */

typedef struct {
    agi_cuda_job *j;
    agi_cuda_upload values;
} uploader;

static void flush(uploader *u)
{
    if (u->values.count > 0 && u->j->status == AG_OK) {
        const agi_cuda_entry launch = {agi_kernel_upload, 1, &u->values, sizeof u->values, 0};
        u->j->status = u->j->stream.emit(u->j->stream.ctx, &launch);
    }
    u->values.to += u->values.count;
    u->values.count = 0;
}

/* A list of the call: on the device if it is given there, else uploaded into the workspace, else absent. */
static void set_list(uploader *u, const int64_t **list, const int64_t *on_device, int64_t count)
{
    const int64_t *host = *list;
    if (on_device != NULL) {
        *list = on_device;
        return;
    }
    *list = host == NULL ? NULL : u->values.to + u->values.count;
    for (int64_t n = 0; n < count && host != NULL; n++) {
        u->values.values[u->values.count++] = host[n];
        if (u->values.count == AGI_CUDA_UPLOAD) {
            flush(u);
        }
    }
}

static void set_lists(agi_cuda_job *j, int64_t *to)
{
    ag_args *a = &j->k.a;
    const int64_t B = j->p->batch;
    uploader u = {.j = j};
    u.values.to = to;
    set_list(&u, &j->drawn, NULL, 1);
    set_list(&u, &a->q_lengths, a->q_lengths_device, B);
    set_list(&u, &a->kv_lengths, a->kv_lengths_device, B);
    set_list(&u, &a->q_packed, a->q_packed_device, B + 1);
    set_list(&u, &a->k_packed, a->k_packed_device, B + 1);
    set_list(&u, &a->q_offsets, a->q_offsets_device, B);
    set_list(&u, &a->k_offsets, a->k_offsets_device, B);
    flush(&u);
}

/* ---- The maps ---- */

static void emit_prepare(agi_cuda_job *j, uint32_t copied)
{
    static const int32_t kernels[] = {agi_kernel_prepare_bf16, agi_kernel_prepare_f16, agi_kernel_prepare_f32,
                                      agi_kernel_prepare_f64};
    const ag_problem *p = j->p;
    int64_t blocks = 0;
    for (int operand = 0; operand < AGI_CUDA_OPERANDS; operand++) {
        const bool keys = agi_cuda_sources[operand].keys;
        const int64_t rows = agi_cuda_divide_up(keys ? p->kv_len : p->q_len, AGI_CUDA_SCALE_ROWS);
        if (copied >> operand & 1) {
            blocks += agi_saturating_product(p->batch, keys ? p->kv_heads : p->heads, rows, 1);
        }
    }
    emit(j, kernels[agi_cuda_format_of(p->dtype)], blocks, (agi_cuda_part){.operands = (int32_t)copied});
}

/* channels: the largest number of columns of its results. */
static void emit_stream(agi_cuda_job *j, agi_cuda_map map, int64_t channels)
{
    const ag_problem *p = j->p;
    const bool keys = map == AGI_STREAM_dkdv || map == AGI_STREAM_tdkdv;
    const agi_cuda_choice choice = agi_cuda_choose(p, map, j->device->shared_limit);
    const int64_t blocks = agi_cuda_divide_up(keys ? p->kv_len : p->q_len, choice.rows);
    const int64_t parts = agi_cuda_divide_up(channels, choice.columns);
    emit(j, choice.kernel,
         agi_saturating_product(agi_saturating_product(p->batch, keys ? p->kv_heads : p->heads, 1, 1), blocks,
                                parts, 1),
         (agi_cuda_part){.blocks = blocks, .parts = (int32_t)parts});
}

static void emit_statistics(agi_cuda_job *j)
{
    enum { WARPS = 8 };
    const ag_problem *p = j->p;
    const int64_t rows = agi_cuda_divide_up(p->q_len, AGI_CUDA_SCALE_ROWS) * AGI_CUDA_SCALE_ROWS;
    const int64_t warps = rows / AGI_CUDA_STATS_ROWS; /* of a head */
    emit(j, p->dtype == AG_F64 ? agi_kernel_statistics_f64 : agi_kernel_statistics_f32,
         agi_cuda_divide_up(agi_saturating_product(p->batch, p->heads, warps, 1), WARPS),
         (agi_cuda_part){.blocks = warps, .operands = agi_cuda_outputs_in_chunks(j)});
}

/* Tiles of the bias's gradient along an axis; an axis that is summed over is one tile. */
static int64_t bias_tiles(const ag_problem *p, int axis)
{
    const int64_t rows = axis == 2 ? p->q_len : p->kv_len;
    return p->bias_size[axis] == 1 ? 1 : agi_cuda_divide_up(rows, AGI_CUDA_PAIR_TILE);
}

static void emit_bias_gradient(agi_cuda_job *j, bool tangent)
{
    static const int32_t kernels[2][4] = {
        {agi_kernel_dbias_bf16, agi_kernel_dbias_f16, agi_kernel_dbias_f32, agi_kernel_dbias_f64},
        {agi_kernel_tdbias_bf16, agi_kernel_tdbias_f16, agi_kernel_tdbias_f32, agi_kernel_tdbias_f64}};
    const ag_problem *p = j->p;
    const int64_t blocks =
        agi_saturating_product(p->bias_size[0], p->bias_size[1], bias_tiles(p, 2), bias_tiles(p, 3));
    if (agi_hopper_has_bias_gradient(j)) {
        agi_hopper_emit_bias_gradient(j);
    } else if ((tangent ? j->k.a.tdbias : j->k.a.dbias).data != NULL) {
        emit(j, kernels[tangent][agi_cuda_format_of(p->dtype)], blocks,
             (agi_cuda_part){.blocks = bias_tiles(p, 3)});
    }
}

static void emit_table_gradient(agi_cuda_job *j, bool tangent)
{
    static const int32_t kernels[2][4] = {
        {agi_kernel_dtable_bf16, agi_kernel_dtable_f16, agi_kernel_dtable_f32, agi_kernel_dtable_f64},
        {agi_kernel_tdtable_bf16, agi_kernel_tdtable_f16, agi_kernel_tdtable_f32, agi_kernel_tdtable_f64}};
    const ag_problem *p = j->p;
    if ((tangent ? j->k.a.tdtable : j->k.a.dtable).data != NULL) {
        emit(j, kernels[tangent][agi_cuda_format_of(p->dtype)],
             agi_saturating_product(p->batch, p->heads, j->k.diagonal_tiles, 1), (agi_cuda_part){0});
        emit(j, agi_kernel_sum_table, agi_saturating_product(p->table_heads, p->table_buckets, 1, 1),
             (agi_cuda_part){.parts = tangent});
    }
}

static void emit_feature_gradients(agi_cuda_job *j, bool tangent)
{
    emit_bias_gradient(j, tangent);
    emit_table_gradient(j, tangent);
    if ((tangent ? j->k.a.tdsink : j->k.a.dsink).data != NULL) {
        emit(j, agi_kernel_sum_sink, j->p->heads, (agi_cuda_part){.parts = tangent});
    }
}

static void emit_backward(agi_cuda_job *j, bool tangent)
{
    const ag_args *a = &j->k.a;
    const ag_problem *p = j->p;
    const bool dq = (tangent ? a->tdq : a->dq).data != NULL;
    const bool dk = (tangent ? a->tdk : a->dk).data != NULL, dv = (tangent ? a->tdv : a->dv).data != NULL;
    const bool ring = j->hopper && agi_hopper_has_ring(j);
    const bool of_bias =
        tangent ? a->tdbias.data != NULL : a->dbias.data != NULL && !agi_hopper_has_bias_gradient(j);
    const bool of_table = (tangent ? a->tdtable : a->dtable).data != NULL;
    if (!ring || (tangent ? a->tdsink : a->dsink).data != NULL || of_bias || of_table) {
        emit_statistics(j);
    }
    if (ring && tangent) {
        agi_hopper_emit_second_ring(j);
    } else if (ring) {
        agi_hopper_emit_ring(j);
    } else if (j->hopper && tangent) {
        agi_hopper_emit_vjp_jvp(j);
    } else if (j->hopper) {
        agi_hopper_emit_vjp(j);
    } else if (dk || dv) {
        emit_stream(j, tangent ? AGI_STREAM_tdkdv : AGI_STREAM_dkdv,
                    !dv || (dk && p->dim_qk > p->dim_v) ? p->dim_qk : p->dim_v);
    }
    if (dq && !j->hopper) {
        emit_stream(j, tangent ? AGI_STREAM_tdq : AGI_STREAM_dq, p->dim_qk);
    }
    emit_feature_gradients(j, tangent);
}

/* Few queries: splits of the keys, then what they sum up to. */
static void emit_decode(agi_cuda_job *j)
{
    const ag_problem *p = j->p;
    const int64_t splits = agi_cuda_key_splits(p), tiles = agi_cuda_decode_tiles(p);
    emit(j, agi_cuda_choose(p, AGI_STREAM_decode, j->device->shared_limit).kernel,
         agi_saturating_product(p->batch, p->kv_heads, splits, tiles),
         (agi_cuda_part){.blocks = splits, .parts = (int32_t)tiles});
    emit(j, p->dtype == AG_F64 ? agi_kernel_join_f64 : agi_kernel_join_f32,
         agi_saturating_product(p->batch, p->heads, p->q_len, 1), (agi_cuda_part){.blocks = splits});
}

static void emit_forward(agi_cuda_job *j)
{
    if (j->hopper) {
        agi_hopper_emit_forward(j);
    } else if (j->decode) {
        emit_decode(j);
    } else {
        emit_stream(j, agi_cuda_forward_of(j->p), j->p->dim_v);
    }
}

static void emit_jvp(agi_cuda_job *j)
{
    if (j->hopper) {
        agi_hopper_emit_jvp(j);
    } else {
        emit_stream(j, j->k.given_o ? AGI_STREAM_jvp_given : AGI_STREAM_jvp, j->p->dim_v);
    }
}

static void emit_map(agi_cuda_job *j)
{
    switch ((agi_map)j->k.map) {
    case AGI_FORWARD: emit_forward(j); break;
    case AGI_JVP: emit_jvp(j); break;
    case AGI_JVP_JVP: emit_stream(j, AGI_STREAM_jvp_jvp, j->p->dim_v); break;
    case AGI_VJP: emit_backward(j, false); break;
    default: emit_backward(j, true); break;
    }
    if (agi_has(j->p, AG_PACKED)) {
        const bool forward = j->k.map == AGI_FORWARD || (j->k.map == AGI_JVP && !j->k.given_o);
        emit(j, agi_kernel_tails, 64, (agi_cuda_part){.parts = forward, .operands = j->k.map == AGI_JVP});
    }
}

ag_status agi_cuda_launch_map(const agi_call *call, const agi_cuda_setting *device, void *workspace,
                              agi_cuda_emitter stream)
{
    static const int64_t zero = 0;
    agi_cuda_layout x;
    agi_cuda_job j = {.plan = call->plan,
                      .p = &call->plan->p,
                      .device = device,
                      .x = &x,
                      .stream = stream,
                      .status = AG_OK};
    agi_arena arena = agi_arena_begin(workspace);
    lay_out(&x, &arena, call->plan, call->map);
    set_tensors(&j.k, call);
    set_problem(&j.k, call->plan, call->map);
    j.k.given_o = agi_given_o(call);
    j.k.buckets = device->buckets;
    j.k.slopes = device->slopes;
    j.k.q_rows = x.q_rows;
    j.k.k_rows = x.k_rows;
    j.k.stats = x.stats;
    j.k.diagonals = x.diagonals;
    j.k.splits = x.splits;
    j.k.diagonal_tiles = x.diagonal_tiles;
    j.features = x.features;
    j.hopper = agi_hopper_serves_call(&j);
    j.decode = call->map == AGI_FORWARD && agi_cuda_splits_keys(call->plan, device->shared_limit);
    j.drawn = agi_hopper_draws_tiles(&j) ? &zero : NULL;
    set_lists(&j, x.lists);
    emit_prepare(&j, set_matrices(&j));
    emit_map(&j);
    return j.status;
}

/* ---- merge ---- */

ag_status agi_cuda_launch_merge(const ag_plan *plan, const ag_merge_args *args, agi_cuda_emitter stream)
{
    enum { ROWS_OF_BLOCK = 8 };
    agi_cuda_merge m = {.a = *args, .out_dtype = plan->p.out_dtype};
    agi_shape_of(&plan->p, AGI_SHAPE_O, m.size);
    ag_tensor *const tensors = &m.a.o1;
    const size_t count = (sizeof m.a - offsetof(ag_merge_args, o1)) / sizeof(ag_tensor);
    for (size_t n = 0; n < count; n++) {
        clear_broadcast_strides(&tensors[n], m.size);
    }
    const int64_t blocks = agi_cuda_divide_up(m.size[0] * m.size[1] * m.size[2], ROWS_OF_BLOCK);
    if (blocks > INT32_MAX) {
        return refuse_blocks(&plan->p, agi_kernel_merge, blocks);
    }
    const agi_cuda_entry launch = {agi_kernel_merge, (uint32_t)blocks, &m, sizeof m, 0};
    return blocks == 0 ? AG_OK : stream.emit(stream.ctx, &launch);
}
