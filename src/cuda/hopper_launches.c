/* The launches of the table sm90: see hopper_launches.h. */
#include "cuda/hopper_launches.h"

/* ---- Which calls it serves ---- */

/* Are the map's kernels those of the table sm90? */
bool agi_hopper_serves_call(const agi_cuda_job *j)
{
    const ag_problem *p = j->p;
    const int32_t limit = j->device->shared_limit;
    const bool has_queries = p->batch > 0 && p->q_len > 0 && (!agi_has(p, AG_PACKED) || p->q_total > 0);
    if (j->device->make_map == NULL || !has_queries) {
        return false;
    }
    if (j->k.map == AGI_FORWARD) {
        return agi_hopper_choose(j->plan, AGI_hopper_forward, limit).kernel >= 0;
    }
    if (j->k.map == AGI_VJP_JVP) {
        return agi_hopper_choose(j->plan, AGI_hopper_tdkdv, limit).kernel >= 0 || agi_hopper_has_ring(j);
    }
    if (j->k.map == AGI_JVP) {
        return agi_hopper_choose(j->plan, AGI_hopper_jvp, limit).kernel >= 0;
    }
    return j->k.map == AGI_VJP && j->k.a.d_o.data != NULL &&
           agi_hopper_choose(j->plan, AGI_hopper_dkdv, limit).kernel >= 0;
}

/* Do tiles of forward differ in length, so that blocks draw them one by one? */
bool agi_hopper_draws_tiles(const agi_cuda_job *j)
{
    const ag_args *a = &j->k.a;
    const bool lengths = a->q_lengths != NULL || a->kv_lengths != NULL || a->q_lengths_device != NULL ||
                         a->kv_lengths_device != NULL;
    return j->hopper && j->k.map == AGI_FORWARD && j->p->dtype != AG_F32 &&
           (lengths || agi_has(j->p, AG_CAUSAL | AG_WINDOW | AG_PACKED | AG_MASK));
}

/* ---- Tensor maps ---- */

static void make_map(agi_cuda_job *j, agi_cuda_box_view *view, int32_t rows, agi_cuda_tensor_map *map)
{
    view->rows = rows;
    view->dtype = j->p->dtype == AG_F32 ? AG_F16 : j->p->dtype; /* a plane's */
    for (int axis = 0; axis < 3; axis++) {
        view->strides[axis] = view->size[axis] == 1 ? 8 : view->strides[axis]; /* any that the driver takes */
    }
    if (j->status == AG_OK) {
        j->status = j->device->make_map(j->device->ctx, view, map);
    }
}

/* rows: of a box. */
static void map_plane(agi_cuda_job *j, int operand, int plane, int32_t rows, agi_cuda_tensor_map *map)
{
    const agi_cuda_matrix *m = &j->k.m[operand];
    const agi_cuda_source *s = &agi_cuda_sources[operand];
    agi_cuda_box_view view = {.data = (uint16_t *)(uintptr_t)m->data + plane * m->plane,
                              .strides = {m->batch, m->head, m->row}};
    agi_cuda_axes_of(j->p, s, view.size);
    if (m->copied) {
        view.size[0] = 1;
        view.size[2] = s->keys ? j->k.k_rows : j->k.q_rows;
    }
    view.size[3] = m->width;
    make_map(j, &view, rows, map);
}

static void map_operand(agi_cuda_job *j, int operand, int32_t rows, agi_cuda_tensor_map *map)
{
    map_plane(j, operand, 0, rows, map);
}

static void map_output(agi_cuda_job *j, const ag_tensor *t, agi_cuda_tensor_map *map)
{
    agi_cuda_box_view view = {.data = t->data, .strides = {t->strides[0], t->strides[1], t->strides[2]}};
    agi_cuda_axes_of(j->p, &agi_cuda_output, view.size);
    make_map(j, &view, 64, map);
}

static bool stores_boxes(const agi_cuda_job *j, const ag_tensor *t)
{
    return agi_cuda_is_direct(j->p, &agi_cuda_output, t) && agi_cuda_has_boxes(j->p, &agi_cuda_output, t);
}

/* Tiles of queries per head, and the call with them. */
static agi_cuda_params with_tiles(agi_cuda_job *j, agi_hopper_choice choice)
{
    j->k.w = (agi_cuda_part){.blocks = agi_cuda_divide_up(j->p->q_len, choice.rows)};
    return j->k;
}

static int64_t query_blocks(const agi_cuda_job *j)
{
    return agi_saturating_product(j->p->batch, j->p->heads, j->k.w.blocks, 1);
}

/* ---- Features of the score ---- */

/* Can 16 keys of the mask be read as 16 bytes? */
static bool has_chunks(const ag_problem *p, const ag_tensor *mask)
{
    const int64_t odd = mask->strides[0] | mask->strides[1] | mask->strides[2] | p->kv_len;
    return mask->strides[3] == 1 && odd % 16 == 0 && (uintptr_t)mask->data % 16 == 0;
}

/* The classes of the mask's tiles, of its own shape. */
static void emit_classes(agi_cuda_job *j)
{
    enum { TILES_OF_BLOCK = 8 };
    agi_hopper_features *x = &j->features;
    const ag_tensor *mask = &j->k.a.mask;
    int64_t tiles = 1;
    for (int axis = 0; axis < 4; axis++) {
        const int64_t n = agi_hopper_class_tiles(j->p, axis, mask->strides[axis] == 0);
        x->class_tiles[axis] = (int32_t)n;
        tiles = agi_saturating_product(tiles, n, 1, 1);
    }
    x->mask_in_chunks = has_chunks(j->p, mask);
    const agi_hopper_before f = {.p = j->k, .x = *x};
    agi_cuda_emit(j, agi_kernel_hopper_classes, agi_cuda_divide_up(tiles, TILES_OF_BLOCK), &f, sizeof f,
                  false);
}

/* Mask and bias may be the same for all sequences and heads, and then so are the keys that nobody sees, unless lengths
 * or offsets differ. Returns how many lists of them there are. */
static int64_t count_live_lists(agi_cuda_job *j)
{
    const ag_args *a = &j->k.a;
    agi_hopper_features *x = &j->features;
    bool one[2];
    for (int axis = 0; axis < 2; axis++) {
        one[axis] = (a->bias.data == NULL || a->bias.strides[axis] == 0) &&
                    (a->mask.data == NULL || a->mask.strides[axis] == 0);
    }
    one[0] &= a->q_lengths == NULL && a->kv_lengths == NULL && a->q_offsets == NULL && a->k_offsets == NULL &&
              !agi_has(j->p, AG_PACKED);
    const int64_t heads = one[1] ? 1 : j->p->kv_heads;
    x->live_head = one[1] ? 0 : x->live_width;
    x->live_batch = one[0] ? 0 : heads * x->live_width;
    return agi_saturating_product(one[0] ? 1 : j->p->batch, heads, 1, 1);
}

static void emit_relative(agi_cuda_job *j, agi_hopper_before *f)
{
    f->p.w = (agi_cuda_part){.blocks = agi_cuda_divide_up(f->x.relative_width, 1024)};
    agi_cuda_emit(j, agi_kernel_hopper_relative,
                  agi_saturating_product(j->p->batch, j->p->heads, f->p.w.blocks, 1), f, sizeof *f, false);
}

/* What the table's tangent adds to tangents of scores, as the table to scores. Returns where; NULL: there is none. */
static const float *emit_relative_tangents(agi_cuda_job *j)
{
    const ag_args *a = &j->k.a;
    agi_hopper_before f = {.p = j->k, .x = j->features};
    if (a->ttable.data == NULL) {
        return NULL;
    }
    f.p.a.table = a->ttable;
    f.p.slopes = NULL;
    f.x.relative = j->x->relative_tangents;
    emit_relative(j, &f);
    return f.x.relative;
}

/* Before the kernels of a feature set. */
static void emit_features(agi_cuda_job *j)
{
    const ag_problem *p = j->p;
    agi_hopper_features *x = &j->features;
    if (x->classes != NULL) {
        emit_classes(j);
    }
    const int64_t lists = count_live_lists(j);
    agi_hopper_before f = {.p = j->k, .x = *x};
    x->cap = (float)p->softcap;
    x->minus_two_caps = -2 * (float)p->softcap;
    x->cap_rate = p->softcap == 0 ? 0 : (float)(2 * 1.4426950408889634 / p->softcap);
    x->inverse_keep = (float)(1 / j->k.keep);
    if (x->relative != NULL) {
        emit_relative(j, &f);
    }
    if (x->live != NULL) {
        f.p.w = (agi_cuda_part){.blocks = x->live_width / 32};
        agi_cuda_emit(j, agi_kernel_hopper_live, agi_saturating_product(lists, f.p.w.blocks, 1, 1), &f,
                      sizeof f, false);
    }
}

/* Can the bias, or its tangent, be read by the copy engine? */
static bool map_bias(agi_cuda_job *j, const ag_tensor *t, agi_cuda_tensor_map *map)
{
    const int64_t far = INT64_C(1) << 38;
    agi_cuda_box_view view = {.data = t->data,
                              .size = {j->p->batch, j->p->heads, j->p->q_len, j->p->kv_len},
                              .strides = {t->strides[0], t->strides[1], t->strides[2]}};
    bool fits = t->data != NULL && j->p->aux_dtype == j->p->dtype && (uintptr_t)t->data % 16 == 0 &&
                t->strides[2] > 0 && t->strides[3] == 1;
    for (int axis = 0; axis < 3; axis++) {
        fits &= t->strides[axis] >= 0 && t->strides[axis] < far && t->strides[axis] % 8 == 0;
        view.size[axis] = t->strides[axis] == 0 ? 1 : view.size[axis];
    }
    if (fits) {
        make_map(j, &view, 64, map);
    }
    return fits;
}

/* ---- forward and jvp ---- */

/* Both planes of a matrix; for the kernel the second is where the matrix's tangent would be. */
static void map_planes(agi_cuda_job *j, int operand, int32_t rows, agi_cuda_tensor_map maps[2])
{
    map_plane(j, operand, 0, rows, &maps[0]);
    map_plane(j, operand, 1, rows, &maps[1]);
    j->k.m[operand - AGI_CUDA_Q + AGI_CUDA_TQ] = j->k.m[operand];
}

static void emit_forward_f32(agi_cuda_job *j)
{
    const agi_hopper_choice choice = agi_hopper_choose(j->plan, AGI_hopper_forward, j->device->shared_limit);
    agi_hopper_planes f = {.heads_together = agi_hopper_heads_together(j->p), .scale = (float)j->p->scale};
    map_planes(j, AGI_CUDA_Q, 64, f.q);
    map_planes(j, AGI_CUDA_K, choice.tile, f.k);
    map_planes(j, AGI_CUDA_V, choice.tile, f.v);
    f.p = with_tiles(j, choice);
    agi_cuda_emit(j, choice.kernel, query_blocks(j), &f, sizeof f, false);
}

void agi_hopper_emit_forward(agi_cuda_job *j)
{
    if (j->p->dtype == AG_F32) {
        emit_forward_f32(j);
        return;
    }
    const ag_args *a = &j->k.a;
    const agi_hopper_choice choice = agi_hopper_choose(j->plan, AGI_hopper_forward, j->device->shared_limit);
    emit_features(j);
    agi_hopper_forward f = {.p = with_tiles(j, choice),
                            .x = j->features,
                            .heads_together = (int32_t)agi_hopper_heads_together(j->p),
                            .drawn = (int64_t *)(uintptr_t)j->drawn};
    const int64_t all = query_blocks(j);
    f.tiles = (int32_t)all;
    map_operand(j, AGI_CUDA_Q, 64, &f.q);
    map_operand(j, AGI_CUDA_K, choice.tile, &f.k);
    map_operand(j, AGI_CUDA_V, choice.tile, &f.v);
    f.stores_boxes = !(a->accumulate & AG_ACC_O) && stores_boxes(j, &a->o) &&
                     (a->o_low.data == NULL || stores_boxes(j, &a->o_low));
    if (f.stores_boxes) {
        map_output(j, &a->o, &f.o);
    }
    if (f.stores_boxes && a->o_low.data != NULL) {
        map_output(j, &a->o_low, &f.o_low);
    }
    f.bias_in_boxes = map_bias(j, &a->bias, &f.bias);
    /* Each processor has one block; tiles are counted by 32 bits, and more of them are refused. */
    const bool few = all < j->device->processors || all > INT32_MAX;
    agi_cuda_emit(j, choice.kernel, few ? all : j->device->processors, &f, sizeof f, false);
}

/* A matrix and its tangent. */
static void map_pair(agi_cuda_job *j, int operand, int tangent, int32_t rows, agi_cuda_tensor_map maps[2])
{
    map_operand(j, operand, rows, &maps[0]);
    map_operand(j, j->k.m[tangent].data == NULL ? operand : tangent, rows, &maps[1]);
}

/* jvp that is given o and lse computes them again: that costs less than the portable kernel, which reads them. */
static void keep_given(ag_args *a)
{
    a->o.data = a->o_low.data = a->lse.data = NULL;
}

void agi_hopper_emit_jvp(agi_cuda_job *j)
{
    const ag_args *a = &j->k.a;
    if (j->k.given_o) {
        keep_given(&j->k.a);
    }
    const agi_hopper_choice choice = agi_hopper_choose(j->plan, AGI_hopper_jvp, j->device->shared_limit);
    emit_features(j);
    agi_hopper_jvp f = {.relative_tangents = emit_relative_tangents(j),
                        .x = j->features,
                        .p = with_tiles(j, choice),
                        .heads_together = (int32_t)agi_hopper_heads_together(j->p)};
    map_pair(j, AGI_CUDA_Q, AGI_CUDA_TQ, 64, f.q);
    map_pair(j, AGI_CUDA_K, AGI_CUDA_TK, choice.tile, f.k);
    map_pair(j, AGI_CUDA_V, AGI_CUDA_TV, choice.tile, f.v);
    f.bias_in_boxes = map_bias(j, &a->bias, &f.bias);
    f.tbias_in_boxes = map_bias(j, &a->tbias, &f.o); /* where O would have its map */
    f.o_in_boxes =
        a->o.data != NULL && !f.tbias_in_boxes && !(a->accumulate & AG_ACC_O) && stores_boxes(j, &a->o);
    f.to_in_boxes = !(a->accumulate & AG_ACC_TO) && stores_boxes(j, &a->to);
    if (f.o_in_boxes) {
        map_output(j, &a->o, &f.o);
    }
    if (f.to_in_boxes) {
        map_output(j, &a->to, &f.to);
    }
    agi_cuda_emit(j, choice.kernel, query_blocks(j), &f, sizeof f, false);
}

/* One kernel of vjp. All boxes have 64 rows. */
static void emit_hopper_backward(agi_cuda_job *j, agi_hopper_map map, const agi_hopper_backward *maps)
{
    const ag_problem *p = j->p;
    const bool keys = map == AGI_hopper_dkdv;
    const agi_hopper_choice choice = agi_hopper_choose(j->plan, map, j->device->shared_limit);
    const int64_t blocks = agi_cuda_divide_up(keys ? p->kv_len : p->q_len, choice.rows);
    agi_hopper_backward f = *maps;
    j->k.w = (agi_cuda_part){.blocks = blocks};
    f.p = j->k;
    agi_cuda_emit(j, choice.kernel,
                  agi_saturating_product(p->batch, keys ? p->kv_heads : p->heads, blocks, 1), &f, sizeof f,
                  false);
}

/* ---- vjp in one kernel ---- */

/* It gives dQ and at least one of dK and dV; vjp_jvp their tangents. A group of blocks fits every device that has the
 * table, so nothing depends on its multiprocessors. */
bool agi_hopper_has_ring(const agi_cuda_job *j)
{
    const ag_args *a = &j->k.a;
    const agi_map map = (agi_map)j->k.map;
    const bool of_queries = (map == AGI_VJP ? a->dq : a->tdq).data != NULL;
    const bool of_keys = map == AGI_VJP ? a->dk.data != NULL || a->dv.data != NULL
                                        : a->tdk.data != NULL || a->tdv.data != NULL;
    return agi_hopper_may_have_ring(j->plan, map) && of_queries && of_keys &&
           agi_hopper_choose(j->plan, agi_hopper_ring_of(map), j->device->shared_limit).kernel >= 0 &&
           agi_hopper_rings(j->p, j->device->ring_most).blocks <= j->device->processors;
}

/* Its grid: no larger than the device holds, as its blocks wait for each other. */
static int64_t ring_grid(const agi_cuda_job *j, agi_hopper_ring_size size)
{
    const int64_t processors = j->device->processors, rings = processors / size.blocks;
    const int64_t all = agi_saturating_product(j->p->batch, j->p->kv_heads, size.groups, 1);
    const int64_t items = agi_saturating_product(all, size.blocks, 1, 1);
    if (size.is_ring) {
        return (rings < all ? rings : all) * size.blocks;
    }
    return items < processors ? items : processors;
}

/* With a mask: the steps that it leaves. map: AGI_hopper_visits or AGI_hopper_second_visits; f: the ring's
 * parameter. */
static void emit_visits(agi_cuda_job *j, agi_hopper_map map, const void *f, size_t bytes)
{
    enum { LISTS_OF_BLOCK = 8 };
    const agi_hopper_choice choice = agi_hopper_choose(j->plan, map, j->device->shared_limit);
    const int64_t lists =
        agi_saturating_product(j->p->batch, j->features.class_tiles[1], agi_hopper_key_blocks(j->p), 1);
    agi_cuda_emit(j, choice.kernel, agi_cuda_divide_up(lists, LISTS_OF_BLOCK), f, bytes, false);
}

/* Can a gradient be stored by the copy engine? */
static bool map_gradient(agi_cuda_job *j, const agi_cuda_source *s, const ag_tensor *t, uint32_t bit,
                         agi_cuda_tensor_map *map)
{
    if (t->data == NULL || j->k.a.accumulate & bit || j->p->grad_dtype != j->p->dtype ||
        !agi_cuda_is_direct(j->p, s, t) || !agi_cuda_has_boxes(j->p, s, t)) {
        return false;
    }
    agi_cuda_box_view view = {.data = t->data, .strides = {t->strides[0], t->strides[1], t->strides[2]}};
    agi_cuda_axes_of(j->p, s, view.size);
    make_map(j, &view, 64, map);
    return true;
}

/* Two 16-bit channels at a time. */
static bool has_pairs(const agi_cuda_job *j, const ag_tensor *t, uint32_t bit, int64_t channels)
{
    const int64_t odd = t->strides[0] | t->strides[1] | t->strides[2] | channels;
    return j->p->grad_dtype == j->p->dtype && !(j->k.a.accumulate & bit) && t->strides[3] == 1 &&
           odd % 2 == 0 && (uintptr_t)t->data % 4 == 0;
}

static void set_ring(agi_cuda_job *j, agi_hopper_ring *f, const agi_hopper_backward *maps)
{
    const ag_args *a = &j->k.a;
    const agi_hopper_choice choice = agi_hopper_choose(j->plan, AGI_hopper_ring, j->device->shared_limit);
    const agi_hopper_ring_size rings = agi_hopper_rings(j->p, j->device->ring_most);
    f->q = maps->q;
    f->k = maps->k;
    f->v = maps->v;
    f->d_o = maps->d_o;
    f->dk_in_boxes = map_gradient(j, &agi_cuda_sources[AGI_CUDA_K], &a->dk, AG_ACC_DK, &f->dk);
    f->dv_in_boxes = map_gradient(j, &agi_cuda_sources[AGI_CUDA_V], &a->dv, AG_ACC_DV, &f->dv);
    f->dq_in_pairs = has_pairs(j, &a->dq, AG_ACC_DQ, j->p->dim_qk);
    f->in_chunks = agi_cuda_outputs_in_chunks(j);
    f->bias_in_boxes = map_bias(j, &a->bias, &f->bias);
    f->tiles = agi_hopper_tiles(j->p, choice.tile);
    f->lse = j->x->ring_rows[0];
    f->delta = j->x->ring_rows[1];
    f->lse_rest = j->x->ring_rows[2];
    f->sums = j->x->ring_sums;
    f->passes = j->x->ring_passes;
    f->tickets = f->passes + 2 * j->p->heads * f->tiles;
    f->visits = j->x->ring_visits;
    f->key_blocks = (int32_t)agi_hopper_key_blocks(j->p);
    f->most_visits = (int32_t)agi_hopper_most_visits(j->p, choice.tile);
    f->scale_log2 = (float)(j->p->scale * 1.4426950408889634);
    f->is_ring = rings.is_ring;
    f->ring = rings.blocks;
    f->groups = rings.groups;
}

void agi_hopper_emit_ring(agi_cuda_job *j)
{
    const ag_problem *p = j->p;
    const int32_t limit = j->device->shared_limit;
    const agi_hopper_choice choice = agi_hopper_choose(j->plan, AGI_hopper_ring, limit);
    const agi_hopper_choice before = agi_hopper_choose(j->plan, AGI_hopper_statistics, limit);
    agi_hopper_backward maps = {0};
    emit_features(j);
    agi_hopper_ring f = {.x = j->features};
    map_operand(j, AGI_CUDA_Q, choice.tile, &maps.q);
    map_operand(j, AGI_CUDA_K, AGI_HOPPER_RING_KEYS, &maps.k);
    map_operand(j, AGI_CUDA_V, AGI_HOPPER_RING_KEYS, &maps.v);
    map_operand(j, AGI_CUDA_DO, choice.tile, &maps.d_o);
    set_ring(j, &f, &maps);
    j->k.w = (agi_cuda_part){.blocks = agi_cuda_divide_up(p->q_len, choice.tile)};
    f.p = j->k;
    agi_cuda_emit(j, before.kernel, agi_saturating_product(p->batch, p->heads, j->k.w.blocks, 1), &f,
                  sizeof f, false);
    if (choice.features & AGI_HAS_MASK) {
        emit_visits(j, AGI_hopper_visits, &f, sizeof f);
    }
    agi_cuda_emit(j, choice.kernel, ring_grid(j, agi_hopper_rings(p, j->device->ring_most)), &f, sizeof f,
                  true);
}

/* One kernel of vjp for head sizes above 128. Boxes of the owners and of queries have 64 rows. */
static void emit_hopper_wide(agi_cuda_job *j, agi_hopper_map map)
{
    const ag_problem *p = j->p;
    const ag_args *a = &j->k.a;
    const bool keys = map == AGI_hopper_dkdv;
    const agi_hopper_choice choice = agi_hopper_choose(j->plan, map, j->device->shared_limit);
    const int64_t blocks = agi_cuda_divide_up(keys ? p->kv_len : p->q_len, choice.rows);
    agi_hopper_wide f = {0};
    map_operand(j, AGI_CUDA_Q, 64, &f.q);
    map_operand(j, AGI_CUDA_DO, 64, &f.d_o);
    map_operand(j, AGI_CUDA_K, keys ? 64 : choice.tile, &f.k);
    map_operand(j, AGI_CUDA_V, keys ? 64 : choice.tile, &f.v);
    if (keys) {
        f.in_boxes[0] = map_gradient(j, &agi_cuda_sources[AGI_CUDA_V], &a->dv, AG_ACC_DV, &f.results[0]);
        f.in_boxes[1] = map_gradient(j, &agi_cuda_sources[AGI_CUDA_K], &a->dk, AG_ACC_DK, &f.results[1]);
    } else {
        f.in_boxes[0] = map_gradient(j, &agi_cuda_sources[AGI_CUDA_Q], &a->dq, AG_ACC_DQ, &f.results[0]);
    }
    j->k.w = (agi_cuda_part){.blocks = blocks};
    f.p = j->k;
    agi_cuda_emit(j, choice.kernel,
                  agi_saturating_product(p->batch, keys ? p->kv_heads : p->heads, blocks, 1), &f, sizeof f,
                  false);
}

void agi_hopper_emit_vjp(agi_cuda_job *j)
{
    const ag_args *a = &j->k.a;
    const bool wide = j->p->dim_qk > 128 || j->p->dim_v > 128;
    emit_features(j);
    agi_hopper_backward maps = {.x = j->features};
    if (!wide) {
        map_operand(j, AGI_CUDA_Q, 64, &maps.q);
        map_operand(j, AGI_CUDA_K, 64, &maps.k);
        map_operand(j, AGI_CUDA_V, 64, &maps.v);
        map_operand(j, AGI_CUDA_DO, 64, &maps.d_o);
    }
    if (a->dk.data != NULL || a->dv.data != NULL) {
        wide ? emit_hopper_wide(j, AGI_hopper_dkdv) : emit_hopper_backward(j, AGI_hopper_dkdv, &maps);
    }
    if (a->dq.data != NULL) {
        wide ? emit_hopper_wide(j, AGI_hopper_dq) : emit_hopper_backward(j, AGI_hopper_dq, &maps);
    }
}

/* ---- The gradient of the bias ---- */

bool agi_hopper_has_bias_gradient(const agi_cuda_job *j)
{
    return j->hopper && j->k.map == AGI_VJP && j->k.a.dbias.data != NULL &&
           agi_hopper_walk_of_bias(j->plan, j->device->shared_limit).tiles > 0;
}

void agi_hopper_emit_bias_gradient(agi_cuda_job *j)
{
    enum { NUMBERS_OF_BLOCK = 256 };
    const ag_problem *p = j->p;
    const agi_hopper_choice choice = agi_hopper_choose(j->plan, AGI_hopper_dbias, j->device->shared_limit);
    const agi_hopper_bias_walk walk = agi_hopper_walk_of_bias(j->plan, j->device->shared_limit);
    agi_hopper_dbias f = {.x = j->features, .steps = walk.steps};
    f.sums = walk.parts > 1 ? j->x->bias_sums : NULL;
    map_operand(j, AGI_CUDA_Q, choice.rows, &f.q);
    map_operand(j, AGI_CUDA_DO, choice.rows, &f.d_o);
    map_operand(j, AGI_CUDA_K, choice.tile, &f.k);
    map_operand(j, AGI_CUDA_V, choice.tile, &f.v);
    if (agi_hopper_has_ring(j)) {
        f.tile = agi_hopper_choose(j->plan, AGI_hopper_ring, j->device->shared_limit).tile;
        f.tiles = agi_hopper_tiles(p, f.tile);
        f.lse = j->x->ring_rows[0];
        f.delta = j->x->ring_rows[1];
        f.lse_rest = j->x->ring_rows[2];
    }
    j->k.w =
        (agi_cuda_part){.blocks = agi_cuda_divide_up(p->kv_len, choice.tile), .parts = (int32_t)walk.parts};
    f.p = j->k;
    agi_cuda_emit(j, choice.kernel, agi_saturating_product(walk.tiles, walk.parts, 1, 1), &f, sizeof f,
                  false);
    if (walk.parts > 1) {
        const int64_t numbers = agi_saturating_product(p->bias_size[0], p->bias_size[1], p->q_len, p->kv_len);
        agi_cuda_emit(j,
                      p->dtype == AG_F16 ? agi_kernel_hopper_dbias_sum_f16 : agi_kernel_hopper_dbias_sum_bf16,
                      agi_cuda_divide_up(numbers, NUMBERS_OF_BLOCK), &f, sizeof f, false);
    }
}

/* ---- vjp_jvp in two kernels ---- */

/* The matrices of vjp_jvp, with so many rows in a box. One that the call lacks has a map of another one, outside of
 * which it finds zeros. */
static void map_second(agi_cuda_job *j, int32_t query_rows, int32_t key_rows, agi_cuda_tensor_map *maps)
{
    for (int operand = AGI_CUDA_Q; operand <= AGI_CUDA_TDO; operand++) {
        const bool of_keys = agi_cuda_sources[operand].keys, absent = j->k.m[operand].data == NULL;
        const int other = of_keys ? AGI_CUDA_K : AGI_CUDA_Q;
        map_operand(j, absent ? other : operand, of_keys ? key_rows : query_rows, &maps[operand]);
    }
}

/* One kernel of vjp_jvp. Boxes of the owners have 64 rows, those of the stream as many as its tiles. */
static void emit_hopper_second(agi_cuda_job *j, agi_hopper_map map)
{
    const ag_problem *p = j->p;
    const bool keys = map == AGI_hopper_tdkdv;
    const agi_hopper_choice choice = agi_hopper_choose(j->plan, map, j->device->shared_limit);
    const int64_t blocks = agi_cuda_divide_up(keys ? p->kv_len : p->q_len, choice.rows);
    agi_hopper_second f = {0};
    map_second(j, keys ? choice.tile : 64, keys ? 64 : choice.tile, f.maps);
    j->k.w = (agi_cuda_part){.blocks = blocks};
    f.p = j->k;
    agi_cuda_emit(j, choice.kernel,
                  agi_saturating_product(p->batch, keys ? p->kv_heads : p->heads, blocks, 1), &f, sizeof f,
                  false);
}

void agi_hopper_emit_vjp_jvp(agi_cuda_job *j)
{
    const ag_args *a = &j->k.a;
    if (a->tdk.data != NULL || a->tdv.data != NULL) {
        emit_hopper_second(j, AGI_hopper_tdkdv);
    }
    if (a->tdq.data != NULL) {
        emit_hopper_second(j, AGI_hopper_tdq);
    }
}

/* ---- vjp_jvp in one kernel ---- */

static void set_second_ring(agi_cuda_job *j, agi_hopper_second_ring *f, int32_t tile)
{
    const ag_args *a = &j->k.a;
    const agi_hopper_ring_size rings = agi_hopper_rings(j->p, j->device->ring_most);
    f->tdq_in_pairs = has_pairs(j, &a->tdq, AG_ACC_TDQ, j->p->dim_qk);
    f->tdk_in_pairs = has_pairs(j, &a->tdk, AG_ACC_TDK, j->p->dim_qk);
    f->tdv_in_pairs = has_pairs(j, &a->tdv, AG_ACC_TDV, j->p->dim_v);
    f->in_chunks = agi_cuda_outputs_in_chunks(j);
    f->tiles = agi_hopper_tiles(j->p, tile);
    f->rows = j->x->ring_rows[0];
    f->lse_rest = j->x->ring_rows[2];
    f->sums = j->x->ring_sums;
    f->passes = j->x->ring_passes;
    f->tickets = f->passes + 2 * j->p->heads * f->tiles;
    f->visits = j->x->ring_visits;
    f->key_blocks = (int32_t)agi_hopper_key_blocks(j->p);
    f->most_visits = (int32_t)agi_hopper_most_visits(j->p, tile);
    f->scale_log2 = (float)(j->p->scale * 1.4426950408889634);
    f->is_ring = rings.is_ring;
    f->ring = rings.blocks;
    f->groups = rings.groups;
}

void agi_hopper_emit_second_ring(agi_cuda_job *j)
{
    const ag_problem *p = j->p;
    const int32_t limit = j->device->shared_limit;
    const agi_hopper_choice choice = agi_hopper_choose(j->plan, AGI_hopper_second_ring, limit);
    const agi_hopper_choice before = agi_hopper_choose(j->plan, AGI_hopper_second_statistics, limit);
    emit_features(j);
    agi_hopper_second_ring f = {.x = j->features, .relative_tangents = emit_relative_tangents(j)};
    map_second(j, choice.tile, AGI_HOPPER_RING_KEYS, f.maps);
    set_second_ring(j, &f, choice.tile);
    j->k.w = (agi_cuda_part){.blocks = agi_cuda_divide_up(p->q_len, choice.tile)};
    f.p = j->k;
    agi_cuda_emit(j, before.kernel, agi_saturating_product(p->batch, p->heads, j->k.w.blocks, 1), &f,
                  sizeof f, false);
    if (choice.features & AGI_HAS_MASK) {
        emit_visits(j, AGI_hopper_second_visits, &f, sizeof f);
    }
    agi_cuda_emit(j, choice.kernel, ring_grid(j, agi_hopper_rings(p, j->device->ring_most)), &f, sizeof f,
                  true);
}
