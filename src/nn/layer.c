/* Makes a layer: checks its description, makes its plan, lays out its parameters. */
#include "nn/layer.h"

#include "core/backend.h"
#include "core/status.h"
#include "core/structs.h"

#define ALL_FLAGS (AG_LAYER_SELF | AG_LAYER_SHARED_KV | AG_LAYER_BIASES | AG_LAYER_NO_LOW)

/* No array of the layer has more elements than this. */
#define MAX_ELEMENTS (INT64_MAX / 16)

/* ---- The description ---- */

static ag_status check_width(const char *name, int64_t width)
{
    return width > 0 && width <= INT32_MAX
               ? AG_OK
               : agi_fail_field(AG_INVALID_PROBLEM, name, "%s is %lld: must be from 1 to 2^31 - 1", name,
                                (long long)width);
}

static ag_status fill_and_check_widths(ag_layer_desc *d)
{
    if (d->d_model == 0) {
        d->d_model = d->q_width;
    }
    if (d->q_width == 0) {
        d->q_width = d->d_model;
    }
    if (d->k_width == 0) {
        d->k_width = d->q_width;
    }
    if (d->v_width == 0) {
        d->v_width = d->k_width;
    }
    ag_status status = check_width("d_model", d->d_model);
    if (status == AG_OK) {
        status = check_width("q_width", d->q_width);
    }
    if (status == AG_OK) {
        status = check_width("k_width", d->k_width);
    }
    return status == AG_OK ? check_width("v_width", d->v_width) : status;
}

static ag_status read_desc(ag_layer_desc *d, const ag_layer_desc *given)
{
    ag_status status = agi_read_struct(d, sizeof *d, given, "desc", AG_INVALID_PROBLEM);
    if (status != AG_OK) {
        return status;
    }
    if (d->flags & ~(uint32_t)ALL_FLAGS) {
        return agi_fail_field(AG_INVALID_PROBLEM, "desc.flags", "desc: flags is 0x%lx: unknown bits",
                              (unsigned long)d->flags);
    }
    if (d->flags & AG_LAYER_SELF && d->flags & AG_LAYER_SHARED_KV) {
        return agi_fail_field(AG_INVALID_PROBLEM, "desc.flags",
                              "desc: AG_LAYER_SELF and AG_LAYER_SHARED_KV exclude each other");
    }
    if (d->attention == NULL) {
        return agi_fail_field(AG_INVALID_PROBLEM, "desc.attention", "desc: attention is NULL");
    }
    status = fill_and_check_widths(d);
    return status == AG_OK ? AG_OK : agi_fail_within(status, "desc");
}

/* Inputs that share one array must have one shape. */
static ag_status check_shared_inputs(const ag_layer_desc *d, const ag_layer *layer)
{
    const bool self = (d->flags & AG_LAYER_SELF) != 0, shared = (d->flags & AG_LAYER_SHARED_KV) != 0;
    if (self && layer->q_rows != layer->k_rows) {
        return agi_fail_field(AG_INVALID_PROBLEM, agi_has(&layer->plan->p, AG_PACKED) ? "kv_total" : "kv_len",
                              "AG_LAYER_SELF: x has %lld rows as queries but %lld as keys",
                              (long long)layer->q_rows, (long long)layer->k_rows);
    }
    if (self && layer->plan->p.q_len != layer->plan->p.kv_len) {
        return agi_fail_field(AG_INVALID_PROBLEM, "kv_len", "AG_LAYER_SELF: q_len is %lld but kv_len %lld",
                              (long long)layer->plan->p.q_len, (long long)layer->plan->p.kv_len);
    }
    if (self && d->k_width != d->q_width) {
        return agi_fail_field(AG_INVALID_PROBLEM, "desc.k_width",
                              "AG_LAYER_SELF: k_width is %lld but q_width %lld", (long long)d->k_width,
                              (long long)d->q_width);
    }
    if ((self || shared) && d->v_width != d->k_width) {
        return agi_fail_field(AG_INVALID_PROBLEM, "desc.v_width", "%s: v_width is %lld but k_width %lld",
                              self ? "AG_LAYER_SELF" : "AG_LAYER_SHARED_KV", (long long)d->v_width,
                              (long long)d->k_width);
    }
    return AG_OK;
}

/* ---- Parameters ---- */

static void add_param(ag_layer *layer, const char *name, int64_t rows, int64_t cols)
{
    layer->params[layer->n_params++] = (ag_param_view){.struct_size = sizeof(ag_param_view),
                                                       .name = name,
                                                       .offset = layer->size,
                                                       .rows = rows,
                                                       .cols = cols,
                                                       .count = rows * cols};
    layer->size += rows * cols;
}

static void lay_out_params(ag_layer *layer, const ag_layer_desc *d)
{
    static const char *const names[][2] = {{"wq", "bq"}, {"wk", "bk"}, {"wv", "bv"}, {"wo", "bo"}};
    const ag_problem *p = &layer->plan->p;
    const int64_t heads_out = p->heads * p->dim_v;
    const agi_projection keys = d->flags & AG_LAYER_SELF ? AGI_Q : AGI_K;
    const agi_projection values = d->flags & (AG_LAYER_SELF | AG_LAYER_SHARED_KV) ? keys : AGI_V;
    const agi_weights shapes[] = {
        [AGI_Q] = {.rows = d->q_width, .cols = p->heads * p->dim_qk, .input = AGI_Q},
        [AGI_K] = {.rows = d->k_width, .cols = p->kv_heads * p->dim_qk, .input = keys},
        [AGI_V] = {.rows = d->v_width, .cols = p->kv_heads * p->dim_v, .input = values},
        [AGI_O] = {.rows = heads_out, .cols = d->d_model, .input = AGI_O},
    };
    for (int w = 0; w < AGI_N_PROJECTIONS; w++) {
        agi_weights *projection = &layer->projection[w];
        *projection = shapes[w];
        projection->weights = layer->size;
        add_param(layer, names[w][0], projection->rows, projection->cols);
        projection->bias = d->flags & (uint32_t)AG_LAYER_BIAS_Q << w ? layer->size : -1;
        if (projection->bias >= 0) {
            add_param(layer, names[w][1], 1, projection->cols);
        }
    }
}

/* Checks the number of elements of every array. The plan has checked that heads times channels is at most
 * MAX_ELEMENTS. */
static ag_status check_sizes(const ag_layer *layer, const ag_layer_desc *d)
{
    const ag_problem *p = &layer->plan->p;
    const int64_t arrays[][3] = {
        {d->q_width, p->heads, p->dim_qk},    {d->k_width, p->kv_heads, p->dim_qk},
        {d->v_width, p->kv_heads, p->dim_v},  {d->d_model, p->heads, p->dim_v},
        {layer->q_rows, d->q_width, 1},       {layer->k_rows, d->k_width, 1},
        {layer->k_rows, d->v_width, 1},       {layer->q_rows, d->d_model, 1},
        {layer->q_rows, p->heads, p->dim_qk}, {layer->q_rows, p->heads, p->dim_v},
        {layer->k_rows, p->heads, p->dim_qk}, {layer->k_rows, p->heads, p->dim_v},
    };
    for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++) {
        if (!agi_product_fits(arrays[i][0], arrays[i][1], arrays[i][2], 1, MAX_ELEMENTS)) {
            return agi_fail_field(AG_INVALID_PROBLEM, "desc",
                                  "an array of %lld x %lld x %lld elements is larger than memory can be",
                                  (long long)arrays[i][0], (long long)arrays[i][1], (long long)arrays[i][2]);
        }
    }
    return AG_OK;
}

/* ---- Public ---- */

static ag_status build(ag_layer *layer, const ag_layer_desc *d)
{
    const ag_problem *p = &layer->plan->p;
    const bool packed = agi_has(p, AG_PACKED);
    layer->d_model = d->d_model;
    layer->low_half = agi_has_low_half(p) && !(d->flags & AG_LAYER_NO_LOW);
    layer->q_rows = packed ? p->q_total : p->batch * p->q_len;
    layer->k_rows = packed ? p->kv_total : p->batch * p->kv_len;
    ag_status status = check_shared_inputs(d, layer);
    if (status == AG_OK) {
        status = check_sizes(layer, d);
    }
    if (status == AG_OK) {
        lay_out_params(layer, d);
        status = agi_layer_size_buffers(layer);
    }
    return status;
}

/* The layer's products and its parameters are on the host. */
static ag_status refuse_device(const ag_plan *plan)
{
    return agi_fail_field(AG_UNSUPPORTED, "options.backend",
                          "options: backend is %s, which runs on a device: the layer runs on the host",
                          plan->backend->name);
}

ag_status ag_layer_create(ag_layer **layer, const ag_layer_desc *desc, const ag_options *options)
{
    ag_layer made = {.size = 0};
    ag_layer_desc d;
    if (layer == NULL) {
        return agi_fail_field(AG_INVALID_ARGUMENT, "layer", "ag_layer_create: layer is NULL");
    }
    *layer = NULL;
    ag_status status = read_desc(&d, desc);
    if (status == AG_OK) {
        status = ag_plan_create(&made.plan, d.attention, options);
    }
    if (status != AG_OK) {
        return status;
    }
    status = agi_on_device(made.plan->backend) ? refuse_device(made.plan) : build(&made, &d);
    if (status == AG_OK) {
        *layer = made.plan->alloc(made.plan->alloc_ctx, sizeof made);
        if (*layer == NULL) {
            status = agi_fail(AG_NO_MEMORY, "no memory for the layer");
        }
    }
    if (status != AG_OK) {
        ag_plan_destroy(made.plan);
        return status;
    }
    **layer = made;
    return AG_OK;
}

void ag_layer_destroy(ag_layer *layer)
{
    if (layer != NULL) {
        ag_plan *plan = layer->plan;
        plan->release(plan->alloc_ctx, layer);
        ag_plan_destroy(plan);
    }
}

const ag_plan *ag_layer_plan(const ag_layer *layer)
{
    return layer == NULL ? NULL : layer->plan;
}

int64_t ag_layer_size(const ag_layer *layer)
{
    return layer == NULL ? 0 : layer->size;
}

int64_t ag_layer_param_count(const ag_layer *layer)
{
    return layer == NULL ? 0 : layer->n_params;
}

ag_status ag_layer_param(const ag_layer *layer, int64_t index, ag_param_view *view)
{
    if (layer == NULL) {
        return agi_fail_field(AG_INVALID_ARGUMENT, "layer", "ag_layer_param: layer is NULL");
    }
    if (index < 0 || index >= layer->n_params) {
        return agi_fail_field(AG_INVALID_ARGUMENT, "index",
                              "ag_layer_param: index is %lld: must be from 0 to %lld", (long long)index,
                              (long long)layer->n_params - 1);
    }
    ag_param_view found = layer->params[index];
    return agi_write_struct(view, &found, sizeof found, "view");
}
