/* Inference byte by byte with a key-value cache: the keys and values of all bytes so far are kept, so that the next
 * byte costs one row of each layer and one query against them. The results are those of model_forward on the same
 * bytes, up to rounding. */
#ifndef ATTNGRAD_CLI_MODEL_CACHE_H
#define ATTNGRAD_CLI_MODEL_CACHE_H

#include "model.h"

struct model_cache {
    int64_t length; /* bytes so far, at most the context */
    ag_plan *plan;  /* one query against the context */
    char *workspace;
    size_t workspace_bytes;
    float *weights; /* weights of the layers, rounded to their dtype; NULL: the model's own */
    char *k, *v;    /* [layers][context][width] in dtype */
    float *normed;  /* [layers][2][width]: N of the previous byte and of this one */
    float *x;       /* [width]: the residual stream of the last byte */
    float *row[4];  /* [2][width] each: scratch */
    char *q, *o;    /* [width] in dtype */
};

/* Makes a cache for this model, whose weights must not change as long as the cache is used. On failure
 * ag_last_message() says why. */
ag_status model_cache_create(struct model_cache *c, const struct model *m, int64_t threads);
void model_cache_destroy(struct model_cache *c);

/* Adds one byte; length must be below the context. Set length = 0 to start again. */
ag_status model_cache_add(struct model_cache *c, struct model *m, unsigned char byte);

/* Computes, in m->logits, the probabilities of the byte after the last one added. */
void model_cache_predict(const struct model_cache *c, struct model *m);

#endif
