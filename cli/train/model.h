/* A small language model over bytes, made of the library's attention layers:
 *
 *     X_0 = embedding[token]                      embedding [256, width]
 *     N = norm_l(X_l)                             root-mean-square norm with a gain [width]
 *     M = (1 - shift_l) o N + shift_l o N'        N' is N of the previous byte, zero for the first
 *     X_{l+1} = X_l + attention_l(N, M, N)        causal, with wq wk wv wo: queries and values of N, keys of
 *                                                 M; a learned bias by distance, table [heads, reach + 1]
 *     logits = norm(X_layers) output              output [width, 256]
 *     loss = mean cross-entropy over the rows that have a target
 *
 * Keys depend also on the previous byte, so that one layer can look up what followed an earlier occurrence
 * of the current byte. Distances beyond MODEL_REACH share a bias, so that sequences may have any length. Weights,
 * their gradients, the residual stream X, norms and output are float32; the attention layers, with their
 * activations and the cotangents of their outputs, have the model's dtype and use weights that are rounded from
 * float32. */
#ifndef ATTNGRAD_CLI_MODEL_H
#define ATTNGRAD_CLI_MODEL_H

#include "thread_pool.h"

#include <attngrad_nn.h>

enum { MODEL_VOCABULARY = 256, MODEL_REACH = 32, MODEL_NAME_SIZE = 32 };

struct model_shape {
    int64_t heads, layers, width, context, batch;
    ag_dtype dtype; /* AG_F32, AG_BF16 or AG_F16 */
};

/* A named slice of the flat arrays value, grad, moment1 and moment2: a matrix, or a vector if rows is 0. */
struct model_view {
    char name[MODEL_NAME_SIZE];
    int64_t rows, cols;
    int64_t offset, count;
};

struct model {
    struct model_shape shape;
    int64_t rows;    /* batch * context */
    int64_t reach;   /* largest distance that has its own bias */
    ag_layer *layer; /* one object for all layers, as they have the same shape */
    int64_t threads; /* of the layer's plan, and of the pool */
    struct thread_pool *pool;
    ag_exec exec;

    int64_t count; /* number of parameters, the length of the four flat arrays */
    float *value, *grad, *moment1, *moment2;
    struct model_view *views;
    int64_t n_views;
    ag_param *params; /* for the optimiser: the parameters in a few groups */
    int64_t n_params;
    int64_t layer_count; /* number of parameters per layer: norm, shift, weights, table */
    char *copy;          /* [layers][weights] in dtype; NULL if that is float32 */

    float *stream;         /* [layers + 1][rows][width]: X */
    float *norm_r;         /* [layers][rows]: 1 / rms of each row of X */
    char *normed, *keyed;  /* [layers][rows][width] in dtype: N, M */
    char *saved, *d_saved; /* buffers of the layers: saved one per layer, d_saved one for all */
    char *y;               /* [rows][width] in dtype: a layer's output, and its cotangent */
    float *row_buffer[3];  /* [rows][width] */
    float *d_stream;       /* [rows][width] */
    float *partial;        /* scratch of sums over rows */
    char *workspace;
    size_t saved_bytes, d_saved_bytes, workspace_bytes;

    int64_t n_picked;                      /* number of rows that have a target */
    int64_t *picked_rows;                  /* [n_picked]: their indices */
    int16_t *targets;                      /* [n_picked] */
    float *picked_x, *picked_y, *picked_r; /* of these rows: input, output and 1 / rms of the last norm */
    float *logits;     /* [n_picked][256]; probabilities after forward, dlogits after backward */
    float *transposed; /* [256][width]: the weight `output`, transposed */
    double *losses;    /* [n_picked] */
    int64_t *best;     /* [n_picked]: argmax of the logits */
};

/* A model is made in two steps: plan finds its views and sizes and needs little memory; allocate allocates
 * the rest, about model_memory_bytes. create does both. threads 0: the library's default. On failure
 * ag_last_message() says why, and there is nothing to destroy. */
ag_status model_plan(struct model *m, const struct model_shape *shape, int64_t threads);
double model_memory_bytes(const struct model *m);
void model_allocate(struct model *m);
ag_status model_create(struct model *m, const struct model_shape *shape, int64_t threads);
void model_destroy(struct model *m);

void model_init(struct model *m, uint64_t seed);

/* Rounds the weights to `copy` again; call it after `value` was changed by anything but an optimiser step. */
void model_refresh(struct model *m);

struct model_batch {
    unsigned char *tokens;  /* [batch][context] */
    int16_t *targets;       /* [batch][context]: a byte, or -1 */
    const int64_t *lengths; /* [batch]; NULL: the whole context */
};

struct model_score {
    double loss;              /* mean over the targets */
    int64_t targets, correct; /* number of targets; of those that had the largest logit */
};

ag_status model_forward(struct model *m, const struct model_batch *batch, struct model_score *score);

/* Parts of model_forward, for code that computes the stream in another way. model_attention: fills *p with the
 * attention problem of the layers; *p keeps a pointer to buckets. model_layer_at: the offset in the flat arrays of the
 * norm of layer l, which is followed by its shift, weights and table; l = layers: the last norm and the output.
 * model_output: from the picked rows to the score. */
void model_attention(const struct model *m, ag_problem *p, int32_t buckets[2 * MODEL_REACH + 1]);
int64_t model_layer_at(const struct model *m, int64_t l);
void model_output(struct model *m, struct model_score *score);

/* Computes the gradients of loss_scale times the loss, for the batch of the last model_forward. */
ag_status model_backward(struct model *m, const struct model_batch *batch, double loss_scale);

#endif
