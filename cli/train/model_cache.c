/* The key-value cache: the formulas of model.h for one row. */
#include "model_cache.h"

#include "alloc.h"
#include "model_rows.h"

#include <stdlib.h>
#include <string.h>

/* The layer's weights in their order; each is [width][width], and there are no biases. */
enum { WQ, WK, WV, WO };

/* ---- Memory ---- */

static ag_status create_plan(struct model_cache *c, const struct model *m, int64_t threads)
{
    int32_t buckets[2 * MODEL_REACH + 1];
    ag_problem p = AG_PROBLEM_INIT;
    ag_options options = AG_OPTIONS_INIT;
    model_attention(m, &p, buckets);
    p.batch = p.q_len = 1;
    options.threads = (int32_t)threads;
    const ag_status status = ag_plan_create(&c->plan, &p, &options);
    return status == AG_OK ? ag_plan_workspace(c->plan, AG_MAP_FORWARD, &c->workspace_bytes) : status;
}

ag_status model_cache_create(struct model_cache *c, const struct model *m, int64_t threads)
{
    const int64_t width = m->shape.width, layers = m->shape.layers,
                  weights = layers * ag_layer_size(m->layer);
    const size_t element_bytes = ag_dtype_size(m->shape.dtype);
    *c = (struct model_cache){.length = 0};
    const ag_status status = create_plan(c, m, threads);
    if (status != AG_OK) {
        model_cache_destroy(c);
        return status;
    }
    c->workspace = alloc_or_exit("the workspace", (int64_t)c->workspace_bytes, 1);
    c->k = alloc_or_exit("the cached keys", layers * m->shape.context * width, element_bytes);
    c->v = alloc_or_exit("the cached values", layers * m->shape.context * width, element_bytes);
    c->normed = alloc_or_exit("the normed rows", layers * 2 * width, sizeof *c->normed);
    c->x = alloc_or_exit("a row", width, sizeof *c->x);
    for (int n = 0; n < 4; n++) {
        c->row[n] = alloc_or_exit("a row", 2 * width, sizeof *c->row[n]);
    }
    c->q = alloc_or_exit("a row", width, element_bytes);
    c->o = alloc_or_exit("a row", width, element_bytes);
    if (m->copy != NULL) {
        c->weights = alloc_or_exit("the weights in float32", weights, sizeof *c->weights);
        ag_convert(c->weights, AG_F32, m->copy, m->shape.dtype, weights);
    }
    return AG_OK;
}

void model_cache_destroy(struct model_cache *c)
{
    void *const memory[] = {c->workspace, c->weights, c->k,      c->v,      c->normed, c->x,
                            c->row[0],    c->row[1],  c->row[2], c->row[3], c->q,      c->o};
    ag_plan_destroy(c->plan);
    for (size_t n = 0; n < sizeof memory / sizeof memory[0]; n++) {
        free(memory[n]);
    }
    *c = (struct model_cache){.length = 0};
}

/* ---- One row ---- */

/* to = from W, in float32; W is weight matrix `which` of layer l. */
static void multiply(const struct model_cache *c, const struct model *m, int64_t l, int which,
                     const float *from, float *to)
{
    const int64_t width = m->shape.width, size = ag_layer_size(m->layer);
    const float *weights =
        c->weights != NULL ? c->weights + l * size : m->value + model_layer_at(m, l) + 2 * width;
    const struct product product = {.c = to,
                                    .a = from,
                                    .b = weights + which * width * width,
                                    .m = 1,
                                    .k = width,
                                    .n = width,
                                    .a_row = width,
                                    .a_col = 1};
    rows_multiply(m->pool, &product);
}

/* Rounds a row to the layer's dtype. Overwrites c->o, which must not be in use. */
static void round_row(const struct model_cache *c, const struct model *m, float *row)
{
    ag_convert(c->o, m->shape.dtype, row, AG_F32, m->shape.width);
    ag_convert(row, AG_F32, c->o, m->shape.dtype, m->shape.width);
}

/* N into row[0], M into row[1], both rounded; N of this byte is kept for the next. */
static void make_inputs(struct model_cache *c, const struct model *m, int64_t l)
{
    const int64_t width = m->shape.width, rows = c->length > 0 ? 2 : 1;
    const size_t bytes = (size_t)width * sizeof(float);
    const float *gain = m->value + model_layer_at(m, l);
    float *previous = c->normed + l * 2 * width, *now = previous + width, r;
    memcpy(previous, now, bytes);
    const struct norm norm = {.rows = 1, .width = width, .x = c->x, .gain = gain, .y = now, .r = &r};
    rows_norm(m->pool, &norm);
    /* M of this byte needs N of the previous byte: rows_shift runs on a sequence of these two rows, or of this
     * one alone if it is the first, and only the last row of the result is used. */
    const struct shift shift = {.rows = rows,
                                .width = width,
                                .context = 2,
                                .n = rows == 2 ? previous : now,
                                .shift = gain + width,
                                .m = c->row[1]};
    rows_shift(m->pool, &shift);
    memcpy(c->row[0], now, bytes);
    memmove(c->row[1], c->row[1] + (rows - 1) * width, bytes);
    round_row(c, m, c->row[0]);
    round_row(c, m, c->row[1]);
}

/* A view of rows whose heads are stored side by side: [n][heads][channels]. */
static ag_tensor view(const struct model *m, const void *row)
{
    const int64_t width = m->shape.width;
    ag_tensor t = ag_bhnd(row, m->shape.heads, 1, width / m->shape.heads);
    t.strides[2] = width;
    return t;
}

static ag_status attend(struct model_cache *c, const struct model *m, int64_t l)
{
    const int64_t width = m->shape.width, element_bytes = (int64_t)ag_dtype_size(m->shape.dtype);
    const int64_t first = l * m->shape.context * width, seen = c->length + 1;
    const int64_t table = model_layer_at(m, l) + 2 * width + ag_layer_size(m->layer);
    ag_args a = {.struct_size = sizeof a, .q_offset = c->length, .kv_lengths = &seen};
    char *k = c->k + (first + c->length * width) * element_bytes;
    char *v = c->v + (first + c->length * width) * element_bytes;
    multiply(c, m, l, WQ, c->row[0], c->row[2]);
    ag_convert(c->q, m->shape.dtype, c->row[2], AG_F32, width);
    multiply(c, m, l, WK, c->row[1], c->row[2]);
    ag_convert(k, m->shape.dtype, c->row[2], AG_F32, width);
    multiply(c, m, l, WV, c->row[0], c->row[2]);
    ag_convert(v, m->shape.dtype, c->row[2], AG_F32, width);
    a.q = view(m, c->q);
    a.k = view(m, c->k + first * element_bytes);
    a.v = view(m, c->v + first * element_bytes);
    a.o = view(m, c->o);
    a.table = ag_bhnd(m->value + table, m->shape.heads, 1, m->reach + 1);
    return ag_forward(c->plan, &a, &m->exec, c->workspace, c->workspace_bytes);
}

ag_status model_cache_add(struct model_cache *c, struct model *m, unsigned char byte)
{
    const int64_t width = m->shape.width;
    ag_status status = AG_OK;
    memcpy(c->x, m->value + byte * width, (size_t)width * sizeof *c->x);
    for (int64_t l = 0; l < m->shape.layers && status == AG_OK; l++) {
        make_inputs(c, m, l);
        status = attend(c, m, l);
        ag_convert(c->row[2], AG_F32, c->o, m->shape.dtype, width);
        multiply(c, m, l, WO, c->row[2], c->row[3]);
        round_row(c, m, c->row[3]);
        for (int64_t i = 0; i < width; i++) {
            c->x[i] += c->row[3][i];
        }
    }
    c->length++;
    return status;
}

void model_cache_predict(const struct model_cache *c, struct model *m)
{
    struct model_score score;
    memcpy(m->picked_x, c->x, (size_t)m->shape.width * sizeof *c->x);
    m->n_picked = 1;
    m->targets[0] = 0;
    model_output(m, &score);
}
