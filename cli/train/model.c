/* The model's memory: its parameters as flat arrays with named views, and the activations of a batch. */
#include "model.h"

#include "alloc.h"
#include "check/rng.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Streams of random numbers that no batch uses. */
#define EMBEDDING_STREAM UINT64_MAX
#define OUTPUT_STREAM (UINT64_MAX - 1)

/* ---- Parameters ---- */

static void add_view(struct model *m, int64_t rows, int64_t cols, const char *format, ...)
{
    struct model_view *view = &m->views[m->n_views++];
    va_list values;
    va_start(values, format);
    vsnprintf(view->name, sizeof view->name, format, values);
    va_end(values);
    view->rows = rows;
    view->cols = cols;
    view->count = rows == 0 ? cols : rows * cols;
    view->offset = m->count;
    m->count += view->count;
}

/* Adds norm, shift, weights and table, in the order that model_layer_at describes. */
static void add_layer(struct model *m, int64_t l)
{
    const int64_t start = m->count;
    add_view(m, 0, m->shape.width, "layer.%lld.norm", (long long)l);
    add_view(m, 0, m->shape.width, "layer.%lld.shift", (long long)l);
    for (int64_t n = 0; n < ag_layer_param_count(m->layer); n++) {
        ag_param_view view = AG_PARAM_VIEW_INIT;
        ag_layer_param(m->layer, n, &view);
        add_view(m, view.rows, view.cols, "layer.%lld.%s", (long long)l, view.name);
    }
    add_view(m, m->shape.heads, m->reach + 1, "layer.%lld.table", (long long)l);
    m->layer_count = m->count - start;
}

static void add_views(struct model *m)
{
    const int64_t per_layer = 3 + ag_layer_param_count(m->layer);
    m->views = alloc_or_exit("the list of parameters", 3 + m->shape.layers * per_layer, sizeof *m->views);
    add_view(m, MODEL_VOCABULARY, m->shape.width, "embedding");
    for (int64_t l = 0; l < m->shape.layers; l++) {
        add_layer(m, l);
    }
    add_view(m, 0, m->shape.width, "norm");
    add_view(m, m->shape.width, MODEL_VOCABULARY, "output");
}

static void add_param(struct model *m, int64_t offset, int64_t count, uint32_t flags, void *copy)
{
    ag_param *p = &m->params[m->n_params++];
    *p = (ag_param){.count = count, .dtype = AG_F32, .grad_dtype = AG_F32, .copy_dtype = m->shape.dtype};
    p->flags = flags;
    p->value = m->value + offset;
    p->grad = m->grad + offset;
    p->state1 = m->moment1 + offset;
    p->state2 = m->moment2 + offset;
    p->copy = copy;
}

/* Gains, shifts and tables have no weight decay. */
static void add_params(struct model *m)
{
    const int64_t width = m->shape.width, table = m->shape.heads * (m->reach + 1);
    const int64_t weights = ag_layer_size(m->layer);
    int64_t at = MODEL_VOCABULARY * width;
    m->params = alloc_or_exit("the list of parameters", 3 + 3 * m->shape.layers, sizeof *m->params);
    add_param(m, 0, at, 0, NULL);
    for (int64_t l = 0; l < m->shape.layers; l++, at += m->layer_count) {
        char *copy = m->copy;
        if (copy != NULL) {
            copy += l * weights * (int64_t)ag_dtype_size(m->shape.dtype);
        }
        add_param(m, at, 2 * width, AG_PARAM_NO_DECAY, NULL);
        add_param(m, at + 2 * width, weights, 0, copy);
        add_param(m, at + 2 * width + weights, table, AG_PARAM_NO_DECAY, NULL);
    }
    add_param(m, at, width, AG_PARAM_NO_DECAY, NULL);
    add_param(m, at + width, width * MODEL_VOCABULARY, 0, NULL);
}

/* Uniform random numbers with this standard deviation, which is a / sqrt(3) on [-a, a]. Unlike normal ones they
 * need no logarithm of the C library, so that they are the same on every platform. */
static void fill(float *to, int64_t count, double deviation, uint64_t seed, uint64_t stream)
{
    struct rng r;
    agc_rng_init(&r, seed, stream);
    for (int64_t i = 0; i < count; i++) {
        to[i] = (float)((2 * agc_rng_uniform(&r) - 1) * sqrt(3) * deviation);
    }
}

static void fill_ones(float *to, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        to[i] = 1;
    }
}

/* The shift before training, a ramp from near 0 to near 1: the first channels of a key come from its own
 * byte, the last ones from the previous byte. */
static void fill_ramp(float *to, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        to[i] = ((float)i + 0.5F) / (float)count;
    }
}

/* The optimiser's moments start at zero. The output weights start small, so that the first loss is close to
 * log 256. */
void model_init(struct model *m, uint64_t seed)
{
    const int64_t width = m->shape.width;
    float *at = m->value + MODEL_VOCABULARY * width;
    memset(m->value, 0, (size_t)m->count * sizeof *m->value);
    memset(m->moment1, 0, (size_t)m->count * sizeof *m->moment1);
    memset(m->moment2, 0, (size_t)m->count * sizeof *m->moment2);
    fill(m->value, MODEL_VOCABULARY * width, 1, seed, EMBEDDING_STREAM);
    for (int64_t l = 0; l < m->shape.layers; l++, at += m->layer_count) {
        fill_ones(at, width);
        fill_ramp(at + width, width);
        ag_layer_init(m->layer, AG_INIT_XAVIER, seed + (uint64_t)l, at + 2 * width, AG_F32);
    }
    fill_ones(at, width);
    fill(at + width, width * MODEL_VOCABULARY, 0.1 / sqrt((double)width), seed, OUTPUT_STREAM);
    model_refresh(m);
}

void model_refresh(struct model *m)
{
    for (int64_t n = 0; n < m->n_params; n++) {
        const ag_param *p = &m->params[n];
        if (p->copy != NULL) {
            ag_convert(p->copy, p->copy_dtype, p->value, p->dtype, p->count);
        }
    }
}

/* ---- The attention layers ---- */

/* A key at distance d = 0 .. reach before the query uses column d; later keys are masked and share column 0. */
void model_attention(const struct model *m, ag_problem *p, int32_t buckets[2 * MODEL_REACH + 1])
{
    const struct model_shape *s = &m->shape;
    memset(buckets, 0, (2 * MODEL_REACH + 1) * sizeof *buckets);
    for (int64_t d = 0; d <= m->reach; d++) {
        buckets[m->reach - d] = (int32_t)d;
    }
    p->flags = AG_CAUSAL | AG_TABLE;
    p->dtype = s->dtype;
    p->grad_dtype = p->aux_dtype = AG_F32;
    p->batch = s->batch, p->heads = s->heads, p->dim_qk = s->width / s->heads;
    p->q_len = p->kv_len = s->context;
    p->table_radius = m->reach, p->table_buckets = m->reach + 1, p->buckets = buckets;
}

static ag_status create_layer(struct model *m, int64_t threads)
{
    int32_t buckets[2 * MODEL_REACH + 1];
    ag_problem p = AG_PROBLEM_INIT;
    ag_layer_desc desc = AG_LAYER_DESC_INIT;
    ag_options options = AG_OPTIONS_INIT;
    model_attention(m, &p, buckets);
    desc.attention = &p;
    desc.d_model = m->shape.width;
    options.threads = (int32_t)threads;
    return ag_layer_create(&m->layer, &desc, &options);
}

/* ---- Memory ---- */

static void *zeros(const char *what, int64_t count, size_t size)
{
    void *memory = alloc_or_exit(what, count, size);
    memset(memory, 0, (size_t)count * size);
    return memory;
}

static void allocate_params(struct model *m)
{
    m->value = zeros("the parameters", m->count, sizeof(float));
    m->grad = zeros("the gradients", m->count, sizeof(float));
    m->moment1 = zeros("the first moments", m->count, sizeof(float));
    m->moment2 = zeros("the second moments", m->count, sizeof(float));
    if (m->shape.dtype != AG_F32) {
        m->copy = zeros("the rounded weights", m->shape.layers * ag_layer_size(m->layer),
                        ag_dtype_size(m->shape.dtype));
    }
    add_params(m);
}

static void allocate_rows(struct model *m)
{
    const int64_t layers = m->shape.layers, elements = m->rows * m->shape.width;
    const size_t element_bytes = ag_dtype_size(m->shape.dtype);
    m->stream = zeros("the residual stream", (layers + 1) * elements, sizeof(float));
    m->norm_r = zeros("the norms' factors", layers * m->rows, sizeof(float));
    m->normed = zeros("the normed rows", layers * elements, element_bytes);
    m->keyed = zeros("the keys' rows", layers * elements, element_bytes);
    m->y = zeros("a layer's output", elements, element_bytes);
    for (int n = 0; n < 3; n++) {
        m->row_buffer[n] = zeros("a buffer of rows", elements, sizeof(float));
    }
    m->d_stream = zeros("the residual stream's gradient", elements, sizeof(float));
    m->partial = zeros("partial sums", m->rows * m->shape.width, sizeof(float));
    m->picked_rows = zeros("the rows with targets", m->rows, sizeof *m->picked_rows);
    m->targets = zeros("the targets", m->rows, sizeof *m->targets);
    m->picked_x = zeros("the rows with targets", elements, sizeof(float));
    m->picked_y = zeros("the rows with targets", elements, sizeof(float));
    m->picked_r = zeros("the rows with targets", m->rows, sizeof(float));
    m->logits = zeros("the logits", m->rows * MODEL_VOCABULARY, sizeof(float));
    m->transposed = zeros("the transposed output weights", MODEL_VOCABULARY * m->shape.width, sizeof(float));
    m->losses = zeros("the losses", m->rows, sizeof *m->losses);
    m->best = zeros("the likeliest bytes", m->rows, sizeof *m->best);
}

static void allocate_layer(struct model *m)
{
    m->workspace = alloc_or_exit("the workspace", (int64_t)m->workspace_bytes, 1);
    m->saved = alloc_or_exit("what the layers save", m->shape.layers, m->saved_bytes);
    m->d_saved = alloc_or_exit("the gradient of what a layer saves", (int64_t)m->d_saved_bytes, 1);
}

static ag_status find_sizes(struct model *m)
{
    ag_status status = ag_layer_workspace(m->layer, AG_MAP_FORWARD | AG_MAP_VJP, &m->workspace_bytes);
    if (status == AG_OK) {
        status = ag_layer_saved(m->layer, AG_SAVED, &m->saved_bytes);
    }
    return status == AG_OK ? ag_layer_saved(m->layer, AG_D_SAVED, &m->d_saved_bytes) : status;
}

ag_status model_plan(struct model *m, const struct model_shape *shape, int64_t threads)
{
    *m = (struct model){.shape = *shape, .rows = shape->batch * shape->context, .exec = AG_EXEC_INIT};
    m->reach = shape->context <= MODEL_REACH ? shape->context - 1 : MODEL_REACH;
    ag_plan_info info = {.struct_size = sizeof info};
    ag_status status = create_layer(m, threads);
    if (status == AG_OK) {
        status = ag_plan_info_get(ag_layer_plan(m->layer), &info);
    }
    if (status == AG_OK) {
        status = find_sizes(m);
    }
    if (status == AG_OK) {
        m->threads = info.threads;
        add_views(m);
    } else {
        model_destroy(m);
    }
    return status;
}

/* An estimate: leaves out arrays with one element per row, the rounded copy of the weights, and the transposed
 * output. 8: the [rows][width] arrays in float32 besides the layers'; 2 per layer: normed and keyed; 1: y. */
double model_memory_bytes(const struct model *m)
{
    const double layers = (double)m->shape.layers, element_bytes = (double)ag_dtype_size(m->shape.dtype);
    const double elements = (double)m->rows * (double)m->shape.width;
    const double rows = elements * (4 * (layers + 8) + element_bytes * (2 * layers + 1));
    const double logits = 4.0 * MODEL_VOCABULARY * (double)m->rows;
    return 4 * 4.0 * (double)m->count + rows + logits + layers * (double)m->saved_bytes +
           (double)m->d_saved_bytes + (double)m->workspace_bytes;
}

void model_allocate(struct model *m)
{
    allocate_layer(m);
    allocate_params(m);
    allocate_rows(m);
    m->pool = pool_create(m->threads);
    m->exec.ctx = m->pool;
    m->exec.run = pool_run;
}

ag_status model_create(struct model *m, const struct model_shape *shape, int64_t threads)
{
    const ag_status status = model_plan(m, shape, threads);
    if (status == AG_OK) {
        model_allocate(m);
    }
    return status;
}

void model_destroy(struct model *m)
{
    void *const memory[] = {m->value,         m->grad,          m->moment1,  m->moment2,  m->views,
                            m->params,        m->copy,          m->stream,   m->norm_r,   m->normed,
                            m->keyed,         m->saved,         m->d_saved,  m->y,        m->row_buffer[0],
                            m->row_buffer[1], m->row_buffer[2], m->d_stream, m->partial,  m->workspace,
                            m->picked_rows,   m->targets,       m->picked_x, m->picked_y, m->picked_r,
                            m->logits,        m->transposed,    m->losses,   m->best};
    pool_destroy(m->pool);
    ag_layer_destroy(m->layer);
    for (size_t n = 0; n < sizeof memory / sizeof memory[0]; n++) {
        free(memory[n]);
    }
    *m = (struct model){.rows = 0};
}
