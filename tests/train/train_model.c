/* The model of `attngrad train`: compares its gradients with finite differences of its loss, parameter by
 * parameter, in every dtype; in 16 bits they depend on the low halves that the layers save; any number of threads gives
 * the same bits; rows after the end of a sequence have no effect; inference byte by byte, with a key-value cache, gives
 * the same probabilities. */
#include "test.h"

#include "check/arrays.h"
#include "model_cache.h"
#include "check/rng.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { BATCH = 3, CONTEXT = 40, ROWS = BATCH * CONTEXT };

static const struct model_shape shape_f32 = {2, 2, 12, CONTEXT, BATCH, AG_F32};

static unsigned char tokens[ROWS];
static int16_t targets[ROWS];
static struct model_batch batch = {tokens, targets, NULL};

/* Tokens of a small alphabet, so that some repeat; two of three rows have a target. */
static void fill_batch(void)
{
    struct rng r;
    agc_rng_init(&r, 61, 0);
    for (int i = 0; i < ROWS; i++) {
        tokens[i] = (unsigned char)agc_rng_range(&r, 0, 19);
        targets[i] = (int16_t)(i % 3 == 0 ? -1 : agc_rng_range(&r, 0, 255));
    }
}

/* Random changes, so that no parameter stays at its special initial value, such as gains of one. */
static void make(struct model *m, const struct model_shape *shape, int64_t threads)
{
    struct rng r;
    agc_rng_init(&r, 62, 0);
    CHECK_OK(model_create(m, shape, threads));
    model_init(m, 7);
    for (int64_t i = 0; i < m->count; i++) {
        m->value[i] += (float)(0.2 * agc_rng_normal(&r));
    }
    model_refresh(m);
}

static double loss_of(struct model *m)
{
    struct model_score score;
    CHECK_OK(model_forward(m, &batch, &score));
    return score.loss;
}

/* Central differences along the normalised gradient of one view: the derivative is the length of the gradient. */
static void check_view(struct model *m, const struct model_view *view)
{
    const double change = 0.004; /* expected change of the loss to either side */
    test_need(view->count > 0, "a view of the parameters");
    float *value = m->value + view->offset, *saved = test_alloc(view->count, sizeof *saved);
    double *g = test_alloc(view->count, sizeof *g), length = 0, side[2];
    memcpy(saved, value, (size_t)view->count * sizeof *saved);
    for (int64_t i = 0; i < view->count; i++) {
        g[i] = (double)m->grad[view->offset + i];
        length += g[i] * g[i];
    }
    length = sqrt(length);
    CHECK(length > 0, "%s: the gradient is zero", view->name);
    for (int s = 0; s < 2; s++) {
        for (int64_t i = 0; i < view->count; i++) {
            value[i] = (float)((double)saved[i] + (s == 0 ? 1 : -1) * change / length * g[i] / length);
        }
        side[s] = loss_of(m);
    }
    const double ratio = (side[0] - side[1]) / (2 * change);
    CHECK(fabs(ratio - 1) < 0.01, "%s: differences / gradient = %.5f", view->name, ratio);
    memcpy(value, saved, (size_t)view->count * sizeof *saved);
    free(saved);
    free(g);
}

static void check_gradients(void)
{
    struct model m;
    make(&m, &shape_f32, 2);
    loss_of(&m);
    CHECK_OK(model_backward(&m, &batch, 1));
    for (int64_t n = 0; n < m.n_views; n++) {
        check_view(&m, &m.views[n]);
    }
    model_destroy(&m);
}

/* The gradients of a narrow dtype are those of float32 up to its rounding. */
static void check_narrow(ag_dtype dtype, double limit)
{
    struct model_shape shape = shape_f32;
    struct model wide, m;
    shape.dtype = dtype;
    make(&wide, &shape_f32, 2);
    make(&m, &shape, 2);
    const double loss = loss_of(&wide), narrow = loss_of(&m);
    CHECK(fabs(narrow - loss) < limit * loss, "%s: loss %.6f, not %.6f", ag_dtype_name(dtype), narrow, loss);
    CHECK_OK(model_backward(&wide, &batch, 1024));
    CHECK_OK(model_backward(&m, &batch, 1024));
    for (int64_t n = 0; n < m.n_views; n++) {
        const struct model_view *view = &m.views[n];
        double error = 0, length = 0;
        for (int64_t i = view->offset; i < view->offset + view->count; i++) {
            const double g = (double)wide.grad[i], other = (double)m.grad[i];
            error += (other - g) * (other - g);
            length += g * g;
        }
        CHECK(sqrt(error / length) < limit, "%s %s: the gradient is off by %.4f of its length",
              ag_dtype_name(dtype), view->name, sqrt(error / length));
    }
    model_destroy(&wide);
    model_destroy(&m);
}

/* In 16 bits each layer's gradients depend on the low half of its heads' outputs. */
static void check_low_half(ag_dtype dtype)
{
    struct model_shape shape = shape_f32;
    struct model with, without;
    ag_saved_views views = {.struct_size = sizeof views};
    shape.dtype = dtype, shape.layers = 1;
    make(&with, &shape, 1);
    make(&without, &shape, 1);
    loss_of(&with);
    loss_of(&without);
    CHECK_OK(ag_layer_saved_views(without.layer, AG_SAVED, without.saved, &views));
    if (CHECK(views.o_low.data != NULL, "%s: no low half is saved", ag_dtype_name(dtype))) {
        memset(views.o_low.data, 0, (size_t)(without.rows * shape.width) * ag_dtype_size(dtype));
    }
    CHECK_OK(model_backward(&with, &batch, 1024));
    CHECK_OK(model_backward(&without, &batch, 1024));
    CHECK(memcmp(with.grad, without.grad, (size_t)with.count * sizeof(float)) != 0,
          "%s: the gradients do not depend on the low half", ag_dtype_name(dtype));
    model_destroy(&with);
    model_destroy(&without);
}

static void check_threads(void)
{
    struct model one;
    make(&one, &shape_f32, 1);
    const double loss = loss_of(&one);
    CHECK_OK(model_backward(&one, &batch, 1));
    for (int64_t threads = 2; threads <= 5; threads++) {
        struct model m;
        make(&m, &shape_f32, threads);
        const double other = loss_of(&m);
        CHECK_OK(model_backward(&m, &batch, 1));
        CHECK(memcmp(&loss, &other, sizeof loss) == 0, "%d threads: loss %.17g, not %.17g", (int)threads,
              other, loss);
        CHECK(memcmp(one.grad, m.grad, (size_t)m.count * sizeof(float)) == 0, "%d threads: other gradients",
              (int)threads);
        model_destroy(&m);
    }
    model_destroy(&one);
}

/* The gradients are multiplied by the loss scale. */
static void check_scale(void)
{
    struct model m;
    make(&m, &shape_f32, 1);
    loss_of(&m);
    CHECK_OK(model_backward(&m, &batch, 1));
    float *once = test_alloc(m.count, sizeof *once);
    memcpy(once, m.grad, (size_t)m.count * sizeof *once);
    loss_of(&m);
    CHECK_OK(model_backward(&m, &batch, 1024));
    int64_t wrong = 0;
    for (int64_t i = 0; i < m.count; i++) {
        wrong += fabsf(m.grad[i] - 1024 * once[i]) > 1e-6F * fabsf(m.grad[i]) + 1e-30F;
    }
    CHECK(wrong == 0, "scaled loss: %lld gradients are not scaled", (long long)wrong);
    free(once);
    model_destroy(&m);
}

/* What follows the last target has no effect: attention is causal, and the lengths may cut it off. */
static void check_lengths(void)
{
    const int64_t lengths[BATCH] = {30, 30, 30};
    struct model m;
    int16_t saved_targets[ROWS];
    unsigned char saved_tokens[ROWS];
    memcpy(saved_targets, targets, sizeof targets);
    memcpy(saved_tokens, tokens, sizeof tokens);
    make(&m, &shape_f32, 1);
    for (int i = 0; i < ROWS; i++) {
        targets[i] = i % CONTEXT < 30 ? targets[i] : -1;
    }
    const double full = loss_of(&m);
    for (int i = 0; i < ROWS; i++) {
        tokens[i] = i % CONTEXT < 30 ? tokens[i] : 200;
    }
    const double other = loss_of(&m);
    batch.lengths = lengths;
    const double cut = loss_of(&m);
    batch.lengths = NULL;
    CHECK(other == full, "bytes after the targets: loss %.17g, not %.17g", other, full);
    CHECK(fabs(cut - full) < 1e-6, "cut at the lengths: loss %.17g, not %.17g", cut, full);
    memcpy(targets, saved_targets, sizeof targets);
    memcpy(tokens, saved_tokens, sizeof tokens);
    model_destroy(&m);
}

/* Compares the probabilities after each prefix, byte by byte, with those of one forward pass over all bytes. Twice, as
 * the cache can be restarted. Every row has a target, so that its logits are computed. */
static void check_cache(ag_dtype dtype, double limit)
{
    struct model_shape shape = shape_f32;
    struct model reference, m;
    struct model_cache cache;
    struct model_score score;
    int16_t targets_of_all[CONTEXT] = {0};
    struct model_batch one = {tokens, targets_of_all, NULL};
    double worst = 0;
    shape.dtype = dtype;
    shape.batch = 1;
    make(&reference, &shape, 1);
    make(&m, &shape, 2);
    CHECK_OK(model_cache_create(&cache, &m, 2));
    CHECK_OK(model_forward(&reference, &one, &score));
    for (int n = 0; n < 2 * CONTEXT; n++) {
        const int i = n % CONTEXT;
        cache.length = i == 0 ? 0 : cache.length;
        CHECK_OK(model_cache_add(&cache, &m, tokens[i]));
        CHECK_INT(cache.length, i + 1);
        model_cache_predict(&cache, &m);
        for (int v = 0; v < MODEL_VOCABULARY; v++) {
            const double a = (double)reference.logits[i * MODEL_VOCABULARY + v], b = (double)m.logits[v];
            worst = fmax(worst, fabs(log(a) - log(b)));
        }
    }
    CHECK(worst < limit, "%s: byte by byte a logit is off by %g", ag_dtype_name(dtype), worst);
    model_cache_destroy(&cache);
    model_destroy(&reference);
    model_destroy(&m);
}

int main(void)
{
    fill_batch();
    check_gradients();
    check_narrow(AG_BF16, 0.05);
    check_narrow(AG_F16, 0.01);
    check_low_half(AG_BF16);
    check_low_half(AG_F16);
    check_threads();
    check_scale();
    check_lengths();
    check_cache(AG_F32, 1e-4);
    check_cache(AG_BF16, 0.2);
    check_cache(AG_F16, 0.03);
    return test_summary();
}
