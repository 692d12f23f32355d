/* The forward and backward pass of the model. Each step quotes the line of model.h that it computes or
 * differentiates. */
#include "model.h"

#include "model_rows.h"

#include <string.h>

/* ---- Parts ---- */

static int64_t elements_of(const struct model *m)
{
    return m->rows * m->shape.width;
}

int64_t model_layer_at(const struct model *m, int64_t l)
{
    return MODEL_VOCABULARY * m->shape.width + l * m->layer_count;
}

static float *stream_at(const struct model *m, int64_t l)
{
    return m->stream + l * elements_of(m);
}

static struct norm layer_norm(const struct model *m, int64_t l)
{
    return (struct norm){.rows = m->rows,
                         .width = m->shape.width,
                         .x = stream_at(m, l),
                         .gain = m->value + model_layer_at(m, l),
                         .r = m->norm_r + l * m->rows,
                         .dgain = m->grad + model_layer_at(m, l),
                         .partial = m->partial};
}

static struct shift layer_shift(const struct model *m, int64_t l)
{
    const int64_t at = model_layer_at(m, l) + m->shape.width;
    return (struct shift){.rows = m->rows,
                          .width = m->shape.width,
                          .context = m->shape.context,
                          .shift = m->value + at,
                          .dshift = m->grad + at,
                          .partial = m->partial};
}

static struct norm last_norm(const struct model *m)
{
    const int64_t at = model_layer_at(m, m->shape.layers);
    return (struct norm){.rows = m->n_picked,
                         .width = m->shape.width,
                         .x = m->picked_x,
                         .gain = m->value + at,
                         .y = m->picked_y,
                         .r = m->picked_r,
                         .dgain = m->grad + at,
                         .partial = m->partial};
}

static struct entropy entropy_of(const struct model *m)
{
    return (struct entropy){.rows = m->n_picked,
                            .classes = MODEL_VOCABULARY,
                            .logits = m->logits,
                            .targets = m->targets,
                            .losses = m->losses,
                            .best = m->best};
}

/* The arguments of both maps of layer l. */
static ag_layer_args layer_args(const struct model *m, const ag_args *attention, int64_t l)
{
    const int64_t weights = model_layer_at(m, l) + 2 * m->shape.width, count = ag_layer_size(m->layer);
    const int64_t element_bytes = (int64_t)ag_dtype_size(m->shape.dtype);
    ag_layer_args a = AG_LAYER_ARGS_INIT;
    a.attention = attention;
    a.params = m->value + weights;
    if (m->copy != NULL) {
        a.params = m->copy + l * count * element_bytes;
    }
    a.x_q = a.x_v = m->normed + l * elements_of(m) * element_bytes;
    a.x_k = m->keyed + l * elements_of(m) * element_bytes;
    a.saved = m->saved + (size_t)l * m->saved_bytes;
    a.d_saved = m->d_saved;
    a.d_params = m->grad + weights;
    return a;
}

static ag_args attention_args(const struct model *m, const struct model_batch *batch, int64_t l)
{
    const int64_t at = model_layer_at(m, l) + 2 * m->shape.width + ag_layer_size(m->layer);
    ag_args a = {.struct_size = sizeof a};
    a.q_lengths = a.kv_lengths = batch->lengths;
    a.table = ag_bhnd(m->value + at, m->shape.heads, 1, m->reach + 1);
    a.dtable = ag_bhnd(m->grad + at, m->shape.heads, 1, m->reach + 1);
    return a;
}

/* ---- Forward ---- */

/* X_0 = embedding[token] */
static void embed(struct model *m, const unsigned char *tokens)
{
    const int64_t width = m->shape.width;
    for (int64_t i = 0; i < m->rows; i++) {
        memcpy(m->stream + i * width, m->value + tokens[i] * width, (size_t)width * sizeof(float));
    }
}

/* N = norm_l(X_l), M = (1 - shift_l) o N + shift_l o N', both rounded to the layer's dtype */
static void forward_inputs(struct model *m, int64_t l)
{
    const ag_dtype dtype = m->shape.dtype;
    const int64_t elements = elements_of(m), offset = l * elements * (int64_t)ag_dtype_size(dtype);
    struct norm norm = layer_norm(m, l);
    struct shift shift = layer_shift(m, l);
    norm.y = m->row_buffer[0];
    shift.n = m->row_buffer[0];
    shift.m = m->row_buffer[1];
    rows_norm(m->pool, &norm);
    rows_shift(m->pool, &shift);
    ag_convert(m->normed + offset, dtype, norm.y, AG_F32, elements);
    ag_convert(m->keyed + offset, dtype, shift.m, AG_F32, elements);
}

/* X_{l+1} = X_l + attention_l(N, M, N) */
static ag_status forward_layer(struct model *m, const struct model_batch *batch, int64_t l)
{
    const int64_t elements = elements_of(m);
    const float *x = stream_at(m, l), *y = m->row_buffer[0];
    float *next = stream_at(m, l + 1);
    const ag_args attention = attention_args(m, batch, l);
    ag_layer_args a = layer_args(m, &attention, l);
    forward_inputs(m, l);
    a.y = m->y;
    const ag_status status = ag_layer_forward(m->layer, &a, &m->exec, m->workspace, m->workspace_bytes);
    ag_convert(m->row_buffer[0], AG_F32, m->y, m->shape.dtype, elements);
    for (int64_t i = 0; i < elements; i++) {
        next[i] = x[i] + y[i];
    }
    return status;
}

/* Copies the rows that have a target: only they need logits. */
static void pick_rows(struct model *m, const int16_t *targets)
{
    const int64_t width = m->shape.width;
    const float *x = stream_at(m, m->shape.layers);
    m->n_picked = 0;
    for (int64_t i = 0; i < m->rows; i++) {
        if (targets[i] >= 0) {
            m->picked_rows[m->n_picked] = i;
            m->targets[m->n_picked] = targets[i];
            memcpy(m->picked_x + m->n_picked * width, x + i * width, (size_t)width * sizeof(float));
            m->n_picked++;
        }
    }
}

/* logits = norm(X) output; the loss */
void model_output(struct model *m, struct model_score *score)
{
    const int64_t width = m->shape.width;
    const float *output = m->value + model_layer_at(m, m->shape.layers) + width;
    const struct norm norm = last_norm(m);
    const struct product logits = {.c = m->logits,
                                   .a = m->picked_y,
                                   .b = output,
                                   .m = m->n_picked,
                                   .k = width,
                                   .n = MODEL_VOCABULARY,
                                   .a_row = width,
                                   .a_col = 1};
    const struct entropy entropy = entropy_of(m);
    rows_norm(m->pool, &norm);
    rows_multiply(m->pool, &logits);
    rows_entropy(m->pool, &entropy);
    *score = (struct model_score){.targets = m->n_picked};
    for (int64_t i = 0; i < m->n_picked; i++) {
        score->loss += m->losses[i] / (double)m->n_picked;
        score->correct += m->best[i] == m->targets[i];
    }
}

ag_status model_forward(struct model *m, const struct model_batch *batch, struct model_score *score)
{
    ag_status status = AG_OK;
    embed(m, batch->tokens);
    for (int64_t l = 0; l < m->shape.layers && status == AG_OK; l++) {
        status = forward_layer(m, batch, l);
    }
    pick_rows(m, batch->targets);
    model_output(m, score);
    return status;
}

/* ---- Backward ---- */

/* Backward of logits = norm(X) output: doutput = norm(X)^T dlogits, dnorm = dlogits output^T, and dX of the
 * picked rows. */
static void backward_output(struct model *m, double loss_scale)
{
    const int64_t width = m->shape.width, at = model_layer_at(m, m->shape.layers) + width;
    const float *output = m->value + at;
    const struct entropy entropy = entropy_of(m);
    /* m->logits has the probabilities; rows_entropy_backward turns them into dlogits. */
    const struct product d_output = {.c = m->grad + at,
                                     .a = m->picked_y,
                                     .b = m->logits,
                                     .m = width,
                                     .k = m->n_picked,
                                     .n = MODEL_VOCABULARY,
                                     .a_row = 1,
                                     .a_col = width};
    const struct product d_norm = {.c = m->row_buffer[0],
                                   .a = m->logits,
                                   .b = m->transposed,
                                   .m = m->n_picked,
                                   .k = MODEL_VOCABULARY,
                                   .n = width,
                                   .a_row = MODEL_VOCABULARY,
                                   .a_col = 1};
    for (int64_t v = 0; v < MODEL_VOCABULARY; v++) {
        for (int64_t c = 0; c < width; c++) {
            m->transposed[v * width + c] = output[c * MODEL_VOCABULARY + v];
        }
    }
    rows_entropy_backward(m->pool, &entropy, (float)(loss_scale / (double)m->n_picked));
    rows_multiply(m->pool, &d_output);
    rows_multiply(m->pool, &d_norm);
    struct norm norm = last_norm(m);
    norm.dy = m->row_buffer[0];
    norm.dx = m->picked_y; /* no longer needed from here on */
    memset(norm.dx, 0, (size_t)(m->n_picked * width) * sizeof(float));
    rows_norm_backward(m->pool, &norm);
    memset(m->d_stream, 0, (size_t)elements_of(m) * sizeof(float));
    for (int64_t i = 0; i < m->n_picked; i++) {
        memcpy(m->d_stream + m->picked_rows[i] * width, norm.dx + i * width, (size_t)width * sizeof(float));
    }
}

/* Backward of N and M: the gradients of the layer's three inputs go through the shift and the norm to dX_l,
 * which already holds dX_{l+1} from the residual connection. */
static void backward_inputs(struct model *m, int64_t l)
{
    const int64_t elements = elements_of(m);
    /* The buffers hold the gradients of the layer's inputs: x_q = N, x_k = M, x_v = N. Once dv is added to dn, its
     * buffer is used for N. */
    float *dn = m->row_buffer[0], *dm = m->row_buffer[1], *dv = m->row_buffer[2], *n = m->row_buffer[2];
    struct shift shift = layer_shift(m, l);
    struct norm norm = layer_norm(m, l);
    for (int64_t i = 0; i < elements; i++) {
        dn[i] += dv[i];
    }
    ag_convert(n, AG_F32, m->normed + l * elements * (int64_t)ag_dtype_size(m->shape.dtype), m->shape.dtype,
               elements);
    shift.n = n;
    shift.dm = dm;
    shift.dn = dn;
    rows_shift_backward(m->pool, &shift);
    norm.dy = dn;
    norm.dx = m->d_stream;
    rows_norm_backward(m->pool, &norm);
}

/* Backward of X_{l+1} = X_l + attention_l(N, M, N). */
static ag_status backward_layer(struct model *m, const struct model_batch *batch, int64_t l)
{
    const ag_args attention = attention_args(m, batch, l);
    ag_layer_args a = layer_args(m, &attention, l);
    ag_convert(m->y, m->shape.dtype, m->d_stream, AG_F32, elements_of(m));
    a.dy = m->y;
    a.dx_q = m->row_buffer[0];
    a.dx_k = m->row_buffer[1];
    a.dx_v = m->row_buffer[2];
    const ag_status status = ag_layer_vjp(m->layer, &a, &m->exec, m->workspace, m->workspace_bytes);
    backward_inputs(m, l);
    return status;
}

/* Backward of X_0 = embedding[token]: each row is added to the row of its token. */
static void backward_embedding(struct model *m, const unsigned char *tokens)
{
    const int64_t width = m->shape.width;
    memset(m->grad, 0, (size_t)(MODEL_VOCABULARY * width) * sizeof(float));
    for (int64_t i = 0; i < m->rows; i++) {
        float *row = m->grad + tokens[i] * width;
        for (int64_t c = 0; c < width; c++) {
            row[c] += m->d_stream[i * width + c];
        }
    }
}

ag_status model_backward(struct model *m, const struct model_batch *batch, double loss_scale)
{
    ag_status status = AG_OK;
    backward_output(m, loss_scale);
    for (int64_t l = m->shape.layers - 1; l >= 0 && status == AG_OK; l--) {
        status = backward_layer(m, batch, l);
    }
    backward_embedding(m, batch->tokens);
    return status;
}
