/* Initialisation, optimisers, clipping, schedules and loss scaling, each against its formula written out
 * here. A step whose results would not be finite writes nothing. */
#include "nn.h"

#include <stdbool.h>

/* ---- Initialisation ---- */

static ag_layer *small_layer(void)
{
    ag_problem p = AG_PROBLEM_INIT;
    ag_layer_desc d = AG_LAYER_DESC_INIT;
    ag_layer *layer = NULL;
    test_need(ag_problem_parse("f32 b1 h2 q3 d2", &p) == AG_OK, "problem");
    d.attention = &p, d.d_model = 4, d.flags = AG_LAYER_SELF | AG_LAYER_BIASES;
    test_need(CHECK_OK(ag_layer_create(&layer, &d, NULL)), "layer");
    return layer;
}

/* The known values, sqrt(-2 log u0) cos(2 pi u1) sqrt(2/4) and (2 u0 - 1) sqrt(6/8), were computed from the Philox
 * words by another program, with 200 bits. */
static void check_init_values(void)
{
    static const struct {
        int64_t param, element;
        double normal, xavier;
    } known[] = {{0, 0, 0x1.2819383c2f2e7p-2, 0x1.71f3e56fecffap-1},
                 {0, 1, 0x1.11a49c2c03bc7p-1, 0x1.85b38afc62a8bp-2},
                 {0, 2, -0x1.7fb53e27b6410p+0, -0x1.8e17fc424ae57p-1},
                 {2, 5, -0x1.b10958bbffc7cp+0, -0x1.88d8197bf2b21p-1},
                 {6, 15, -0x1.05d668eddb9d0p+1, -0x1.b6d4e2f445690p-1}};
    ag_layer *layer = small_layer();
    double normal[80], xavier[80];
    float rounded[80];
    CHECK_INT(ag_layer_size(layer), 80);
    CHECK_OK(ag_layer_init(layer, AG_INIT_NORMAL, 0x123456789abcdef, normal, AG_F64));
    CHECK_OK(ag_layer_init(layer, AG_INIT_XAVIER, 0x123456789abcdef, xavier, AG_F64));
    CHECK_OK(ag_layer_init(layer, AG_INIT_NORMAL, 0x123456789abcdef, rounded, AG_F32));
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        ag_param_view view = AG_PARAM_VIEW_INIT;
        CHECK_OK(ag_layer_param(layer, known[i].param, &view));
        const int64_t at = view.offset + known[i].element;
        CHECK(fabs(normal[at] - known[i].normal) <= 0x1p-50 * fabs(known[i].normal),
              "normal %s[%lld] is %a, not %a", view.name, (long long)known[i].element, normal[at],
              known[i].normal);
        CHECK(fabs(xavier[at] - known[i].xavier) <= 0x1p-51, "xavier %s[%lld] is %a, not %a", view.name,
              (long long)known[i].element, xavier[at], known[i].xavier);
        CHECK(rounded[at] == (float)normal[at], "float32 is not float64 rounded");
    }
    for (int64_t b = 1; b < 8; b += 2) {
        ag_param_view view = AG_PARAM_VIEW_INIT;
        CHECK_OK(ag_layer_param(layer, b, &view));
        for (int64_t i = 0; i < view.count; i++) {
            CHECK(normal[view.offset + i] == 0 && xavier[view.offset + i] == 0, "%s is not zero", view.name);
        }
    }
    ag_layer_destroy(layer);
}

/* Mean, variance and tails of 65,536 elements. */
static void check_init_statistics(void)
{
    ag_problem p = AG_PROBLEM_INIT;
    ag_layer_desc d = AG_LAYER_DESC_INIT;
    ag_layer *layer = NULL;
    test_need(ag_problem_parse("f32 b1 h4 q3 d32", &p) == AG_OK, "problem");
    d.attention = &p, d.d_model = 128;
    test_need(CHECK_OK(ag_layer_create(&layer, &d, NULL)), "layer");
    const int64_t n = ag_layer_size(layer);
    double *x = nn_alloc((size_t)n * sizeof *x);
    for (ag_init how = AG_INIT_NORMAL; how <= AG_INIT_XAVIER; how++) {
        const double deviation = how == AG_INIT_NORMAL ? sqrt(2.0 / 128) : sqrt(6.0 / 256 / 3);
        double mean = 0, square = 0, within = 0;
        CHECK_OK(ag_layer_init(layer, how, 9, x, AG_F64));
        for (int64_t i = 0; i < n; i++) {
            mean += x[i] / (double)n;
            square += x[i] * x[i] / (double)n;
            within += (fabs(x[i]) < deviation ? 1.0 : 0.0) / (double)n;
        }
        CHECK(fabs(mean) < 4 * deviation / 256, "init %d: mean %g", (int)how, mean);
        CHECK(fabs(sqrt(square) / deviation - 1) < 0.01, "init %d: deviation %g, not %g", (int)how,
              sqrt(square), deviation);
        const double expected = how == AG_INIT_NORMAL ? 0.6827 : 0.57735;
        CHECK(fabs(within - expected) < 0.01, "init %d: %g within one deviation, not %g", (int)how, within,
              expected);
    }
    free(x);
    ag_layer_destroy(layer);
}

/* ---- Optimisers ---- */

enum { N = 600 }; /* more than one block */

typedef struct {
    double w[N], g[N], m[N], v[N];    /* the formula's */
    float fw[N], fg[N], fm[N], fv[N]; /* the library's */
    uint16_t copy[N];
    ag_param p[2]; /* the same array in two parts: 400 elements, then 200 without decay */
} state;

static state *state_make(struct rng *r)
{
    state *s = nn_alloc(sizeof *s);
    for (int i = 0; i < N; i++) {
        s->fw[i] = (float)agc_rng_normal(r);
        s->w[i] = s->fw[i];
    }
    s->p[0] = (ag_param){400, AG_F32, AG_F32, AG_BF16, 0, s->fw, s->fg, s->fm, s->fv, s->copy};
    s->p[1] = (ag_param){200,         AG_F32,      AG_F32,      AG_BF16,     AG_PARAM_NO_DECAY,
                         s->fw + 400, s->fg + 400, s->fm + 400, s->fv + 400, s->copy + 400};
    return s;
}

static double new_gradients(state *s, struct rng *r, double scale)
{
    double square = 0;
    for (int i = 0; i < N; i++) {
        s->fg[i] = (float)(scale * agc_rng_normal(r));
        s->g[i] = s->fg[i] / scale;
        square += s->g[i] * s->g[i];
    }
    return sqrt(square);
}

static void check_state(const state *s, const char *what, int step)
{
    for (int i = 0; i < N; i++) {
        float back = 0;
        CHECK(fabs(s->fw[i] - s->w[i]) <= 1e-5, "%s, step %d: w[%d] is %g, not %g", what, step, i,
              (double)s->fw[i], s->w[i]);
        CHECK_OK(ag_convert(&back, AG_F32, &s->copy[i], AG_BF16, 1));
        CHECK(fabsf(back - s->fw[i]) <= 0x1p-8f * fabsf(s->fw[i]), "%s, step %d: copy[%d] is %g of %g", what,
              step, i, (double)back, (double)s->fw[i]);
    }
}

static void check_sgd(double momentum, double scale, double max_norm)
{
    struct rng r;
    agc_rng_init(&r, 41, 0);
    state *s = state_make(&r);
    ag_sgd o = AG_SGD_INIT;
    o.rate = 0.1, o.momentum = momentum, o.weight_decay = 0.05, o.loss_scale = scale, o.max_norm = max_norm;
    for (int step = 0; step < 5; step++) {
        const double norm = new_gradients(s, &r, scale == 0 ? 1 : scale);
        const double clip = max_norm > 0 && norm > max_norm ? max_norm / norm : 1;
        ag_step_report report = AG_STEP_REPORT_INIT;
        for (int i = 0; i < N; i++) {
            s->m[i] = momentum * s->m[i] + clip * s->g[i] + (i < 400 ? 0.05 : 0) * s->w[i];
            s->w[i] = s->w[i] - 0.1 * s->m[i];
        }
        CHECK_OK(ag_sgd_step(&o, s->p, 2, &report));
        CHECK(report.applied == 1 && report.non_finite == 0 && fabs(report.norm - norm) < 1e-9 * norm &&
                  fabs(report.clip - clip) < 1e-9,
              "report: norm %g of %g, clip %g of %g", report.norm, norm, report.clip, clip);
        check_state(s, "sgd", step);
    }
    CHECK_INT(o.steps, 5);
    free(s);
}

static void check_adamw(double scale, double max_norm)
{
    struct rng r;
    agc_rng_init(&r, 42, 0);
    state *s = state_make(&r);
    ag_adamw o = AG_ADAMW_INIT;
    o.rate = 0.01, o.weight_decay = 0.1, o.loss_scale = scale, o.max_norm = max_norm;
    for (int step = 0; step < 5; step++) {
        const double norm = new_gradients(s, &r, scale == 0 ? 1 : scale);
        const double clip = max_norm > 0 && norm > max_norm ? max_norm / norm : 1;
        for (int i = 0; i < N; i++) {
            const double g = clip * s->g[i];
            s->m[i] += 0.1 * (g - s->m[i]);
            s->v[i] += 0.001 * (g * g - s->v[i]);
            const double m_hat = s->m[i] / (1 - pow(0.9, step + 1)),
                         v_hat = s->v[i] / (1 - pow(0.999, step + 1));
            s->w[i] *= 1 - 0.01 * (i < 400 ? 0.1 : 0);
            s->w[i] -= 0.01 * m_hat / (sqrt(v_hat) + 1e-8);
        }
        CHECK_OK(ag_adamw_step(&o, s->p, 2, NULL));
        check_state(s, "adamw", step);
    }
    CHECK_INT(o.steps, 5);
    free(s);
}

/* An empty list, an empty array, float64, a gradient of each dtype. */
static void check_dtypes(void)
{
    static const ag_dtype dtypes[] = {AG_F64, AG_F32, AG_F16, AG_BF16};
    ag_adamw o = AG_ADAMW_INIT;
    o.rate = 0.5;
    CHECK_OK(ag_adamw_step(&o, NULL, 0, NULL));
    ag_param empty = {0, AG_F32, AG_F32, 0, 0, NULL, NULL, NULL, NULL, NULL};
    CHECK_OK(ag_adamw_step(&o, &empty, 1, NULL));
    for (int d = 0; d < 4; d++) {
        const double g = -2;
        double w = 3, m = 0, v = 0;
        unsigned char grad[8] = {0};
        ag_sgd sgd = AG_SGD_INIT;
        sgd.rate = 0.5;
        CHECK_OK(ag_convert(grad, dtypes[d], &g, AG_F64, 1));
        ag_param p = {1, AG_F64, dtypes[d], 0, 0, &w, grad, &m, &v, NULL};
        CHECK_OK(ag_sgd_step(&sgd, &p, 1, NULL));
        CHECK(w == 4 && m == 0, "gradient in %s: w is %g, not 4", ag_dtype_name(dtypes[d]), w);
    }
}

/* ---- Gradients that are not finite, norms ---- */

static void check_skip(float bad)
{
    struct rng r;
    agc_rng_init(&r, 43, 0);
    state *s = state_make(&r), *before = nn_alloc(sizeof *before);
    ag_adamw adamw = AG_ADAMW_INIT;
    ag_sgd sgd = AG_SGD_INIT;
    adamw.rate = sgd.rate = 0.1;
    sgd.momentum = 0.9;
    new_gradients(s, &r, 1);
    s->fg[599] = bad; /* in the last array: the first must not be written either */
    memcpy(before, s, sizeof *s);
    ag_step_report a = AG_STEP_REPORT_INIT, b = AG_STEP_REPORT_INIT;
    CHECK_OK(ag_adamw_step(&adamw, s->p, 2, &a));
    CHECK_OK(ag_sgd_step(&sgd, s->p, 2, &b));
    CHECK(a.applied == 0 && a.non_finite == 1 && b.applied == 0 && b.non_finite == 1, "%g: applied %d, %d",
          (double)bad, (int)a.applied, (int)b.applied);
    CHECK(adamw.steps == 0 && sgd.steps == 0, "%g: a skipped step was counted", (double)bad);
    CHECK(memcmp(before, s, sizeof *s) == 0, "%g: a skipped step wrote", (double)bad);
    free(s);
    free(before);
}

/* All gradients are finite, but a result of the step is not: nothing is written. */
typedef struct {
    const char *what;
    double rate, loss_scale, momentum;
    float gradient, weight, moment; /* of the last element; moment: its velocity or second moment */
    ag_dtype copy;
    bool adamw;
} overflow;

static void check_overflow(const overflow *c)
{
    struct rng r;
    agc_rng_init(&r, 44, 0);
    state *s = state_make(&r), *before = nn_alloc(sizeof *before);
    ag_adamw adamw = AG_ADAMW_INIT;
    ag_sgd sgd = AG_SGD_INIT;
    ag_step_report report = AG_STEP_REPORT_INIT;
    adamw.rate = sgd.rate = c->rate;
    adamw.loss_scale = sgd.loss_scale = c->loss_scale;
    sgd.momentum = c->momentum;
    new_gradients(s, &r, c->loss_scale == 0 ? 1 : c->loss_scale);
    s->fg[599] = c->gradient, s->fw[599] = c->weight;
    *(c->adamw ? &s->fv[599] : &s->fm[599]) = c->moment;
    s->p[0].copy_dtype = s->p[1].copy_dtype = c->copy;
    memcpy(before, s, sizeof *s);
    CHECK_OK(c->adamw ? ag_adamw_step(&adamw, s->p, 2, &report) : ag_sgd_step(&sgd, s->p, 2, &report));
    CHECK(report.applied == 0 && report.non_finite == 1, "%s: applied %d, not finite %lld", c->what,
          (int)report.applied, (long long)report.non_finite);
    CHECK(adamw.steps == 0 && sgd.steps == 0, "%s: a skipped step was counted", c->what);
    CHECK(memcmp(before, s, sizeof *s) == 0, "%s: a skipped step wrote", c->what);
    free(s);
    free(before);
}

static void check_overflows(void)
{
    static const overflow cases[] = {
        {"second moment", 0.1, 0, 0, 1e21f, 1, 0, AG_BF16, true},
        {"second moment already infinite", 0.1, 0, 0, 1, 1, INFINITY, AG_BF16, true},
        {"weight of adamw", 1e38, 0, 0, 1, -3e38f, 0, AG_BF16, true},
        {"gradient / loss_scale", 1e-300, 1e-290, 0, 3e38f, 1, 0, AG_BF16, true},
        {"gradient / loss_scale of sgd", 1e-300, 1e-290, 0, 3e38f, 1, 0, AG_BF16, false},
        {"weight of sgd", 1e20, 0, 0, 1e20f, 1, 0, AG_BF16, false},
        {"velocity", 1e-30, 0, 0.9, 3e38f, 1, 3e38f, AG_BF16, false},
        {"float16 copy", 1, 0, 0, -1e5f, 1, 0, AG_F16, false},
        {"weight already NaN", 0.1, 0, 0, 1, NAN, 0, AG_BF16, false},
    };
    for (size_t n = 0; n < sizeof cases / sizeof cases[0]; n++) {
        check_overflow(&cases[n]);
    }
}

/* A norm beyond float64's range is clipped; the clip factor does not become zero. */
static void check_large_norm(void)
{
    double w[2] = {1, 1}, g[2] = {1.5e308, 1.5e308};
    ag_param p = {2, AG_F64, AG_F64, 0, 0, w, g, NULL, NULL, NULL};
    ag_sgd sgd = AG_SGD_INIT;
    ag_step_report report = AG_STEP_REPORT_INIT;
    sgd.rate = 1, sgd.max_norm = sqrt(2);
    CHECK_OK(ag_sgd_step(&sgd, &p, 1, &report));
    CHECK(report.applied == 1 && fabs(w[0]) < 1e-12 && fabs(w[1]) < 1e-12, "applied %d, w is %g, clip %g",
          (int)report.applied, w[0], report.clip);
}

/* A clip factor that underflows float64 is applied all the same: each gradient gets its share of max_norm, up to
 * rounding. */
static void check_small_clip(void)
{
    static const double largest[] = {1e308, 1.5e308, 1e300}, max_norms[] = {1e-20, 1e-9, 1e-15, 3e-308};
    for (int n = 0; n < 12; n++) {
        const double max_norm = max_norms[n % 4];
        double w[3] = {0, 0, 0}, g[3] = {largest[n / 4], -largest[n / 4] / 2, 0};
        ag_param p = {3, AG_F64, AG_F64, 0, 0, w, g, NULL, NULL, NULL};
        ag_sgd sgd = AG_SGD_INIT;
        ag_step_report report = AG_STEP_REPORT_INIT;
        sgd.rate = 1, sgd.max_norm = max_norm;
        CHECK_OK(ag_sgd_step(&sgd, &p, 1, &report));
        const double wanted = -max_norm / sqrt(1.25), smallest = 5e-324;
        CHECK(report.applied == 1 && fabs(w[0] - wanted) <= 1e-15 * fabs(wanted) + 2 * smallest &&
                  fabs(w[1] + wanted / 2) <= 1e-15 * fabs(wanted) + 2 * smallest && w[2] == 0,
              "gradient %g, max_norm %g: w is %g, %g, %g, clip %g", g[0], max_norm, w[0], w[1], w[2],
              report.clip);
    }
}

static void check_norms(void)
{
    double g[3] = {3e200, 4e200, 0}, norm = 0;
    float f[2] = {3e-30f, 4e-30f};
    int64_t count = 0;
    ag_param p[2] = {{3, AG_F64, AG_F64, 0, 0, NULL, g, NULL, NULL, NULL},
                     {2, AG_F32, AG_F32, 0, 0, NULL, f, NULL, NULL, NULL}};
    CHECK_OK(ag_grad_norm(&p[0], 1, 0, &norm, &count));
    CHECK(fabs(norm / 5e200 - 1) < 1e-15 && count == 0, "a large norm is %g", norm);
    CHECK_OK(ag_grad_norm(&p[1], 1, 2, &norm, &count));
    CHECK(fabs(norm / 2.5e-30 - 1) < 1e-6 && count == 0, "a small norm is %g", norm);
    CHECK_OK(ag_grad_norm(&p[0], 1, 1e-200, &norm, &count));
    CHECK_INT(count, 2);
    g[1] = NAN, g[2] = -INFINITY;
    CHECK_OK(ag_grad_norm(p, 2, 0, &norm, &count));
    CHECK_INT(count, 2);
}

/* ---- Schedules and loss scale ---- */

static void check_rate(const ag_schedule *s, int64_t step, double wanted)
{
    double rate = -1;
    CHECK_OK(ag_schedule_rate(s, step, &rate));
    CHECK(fabs(rate - wanted) <= 1e-15, "step %lld: rate %.17g, not %.17g", (long long)step, rate, wanted);
}

static void check_schedules(void)
{
    ag_schedule s = AG_SCHEDULE_INIT;
    s.rate = 0.8;
    check_rate(&s, 0, 0.8);
    check_rate(&s, 1000000, 0.8);
    s.warmup = 4;
    check_rate(&s, 0, 0.2);
    check_rate(&s, 3, 0.8);
    check_rate(&s, 4, 0.8);
    s.kind = AG_SCHEDULE_COSINE, s.final_rate = 0.2, s.steps = 24;
    check_rate(&s, 1, 0.4);
    check_rate(&s, 4, 0.8);
    check_rate(&s, 9, 0.2 + 0.3 * (1 + sqrt(0.5)));
    check_rate(&s, 14, 0.5);
    check_rate(&s, 24, 0.2);
    check_rate(&s, 9999, 0.2);
}

static void check_loss_scale(void)
{
    ag_loss_scale s = AG_LOSS_SCALE_INIT;
    s.interval = 3, s.max_scale = 200000;
    CHECK(s.scale == 65536, "scale starts at %g", s.scale);
    for (int i = 0; i < 3; i++) {
        CHECK_OK(ag_loss_scale_update(&s, 1));
    }
    CHECK(s.scale == 131072 && s.in_a_row == 0, "scale is %g after three steps", s.scale);
    CHECK_OK(ag_loss_scale_update(&s, 1));
    CHECK_OK(ag_loss_scale_update(&s, 0));
    CHECK(s.scale == 65536 && s.in_a_row == 0 && s.skipped == 1, "scale is %g after a skipped one", s.scale);
    for (int i = 0; i < 9; i++) {
        CHECK_OK(ag_loss_scale_update(&s, 1));
    }
    CHECK(s.scale == 200000, "scale is %g, not max_scale", s.scale);
    for (int i = 0; i < 300; i++) {
        CHECK_OK(ag_loss_scale_update(&s, 0));
    }
    CHECK(s.scale > 0 && s.skipped == 301, "scale is %g", s.scale);
    ag_loss_scale zero = {.struct_size = sizeof zero};
    CHECK_OK(ag_loss_scale_update(&zero, 0));
    CHECK(zero.scale == 32768, "zero means 65536: scale is %g", zero.scale);
}

int main(void)
{
    check_init_values();
    check_init_statistics();
    check_sgd(0, 0, 0);
    check_sgd(0.9, 1024, 5);
    check_sgd(0.9, 0, 1e6);
    check_adamw(0, 0);
    check_adamw(4096, 3);
    check_dtypes();
    check_skip(NAN);
    check_skip(INFINITY);
    check_skip(-INFINITY);
    check_overflows();
    check_large_norm();
    check_small_clip();
    check_norms();
    check_schedules();
    check_loss_scale();
    return test_summary();
}
