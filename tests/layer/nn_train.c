/* Training: a small regression (the outputs of another layer) and associative recall (which value followed
 * this key?), in float32, bfloat16 and float16 with float32 master weights. The loss goes down; repeating a
 * float32 run gives the same bits, for any number of threads; a step with a non-finite gradient is skipped,
 * and training goes on. */
#include "nn.h"

/* ---- A layer with what trains it ---- */

typedef struct {
    nn_model m;
    float *master, *moment1, *moment2;
    ag_adamw adamw;
    ag_loss_scale scale;
    int64_t seen_skips;
} trainer;

static void trainer_make(trainer *t, const nn_config *c, int32_t threads, double rate)
{
    nn_make(&t->m, c, threads, 51);
    const size_t bytes = (size_t)t->m.count[PARAMS] * sizeof(float);
    t->master = nn_alloc(bytes), t->moment1 = nn_alloc(bytes), t->moment2 = nn_alloc(bytes);
    t->adamw = (ag_adamw)AG_ADAMW_INIT;
    t->adamw.rate = rate;
    t->adamw.max_norm = 1;
    t->scale = (ag_loss_scale)AG_LOSS_SCALE_INIT;
    t->scale.scale = t->m.p->dtype == AG_F16 ? 0x1p22 : 1; /* too much at first: it must back off */
    t->scale.interval = 50;
    t->seen_skips = 0;
    CHECK_OK(ag_layer_init(t->m.layer, AG_INIT_XAVIER, 7, t->master, AG_F32));
    CHECK_OK(ag_convert(t->m.at[VALUE][PARAMS], t->m.p->dtype, t->master, AG_F32, t->m.count[PARAMS]));
}

static void trainer_free(trainer *t)
{
    free(t->master);
    free(t->moment1);
    free(t->moment2);
    nn_free(&t->m);
}

static ag_step_report trainer_step(trainer *t)
{
    ag_step_report report = AG_STEP_REPORT_INIT;
    ag_param p = {.count = t->m.count[PARAMS], .dtype = AG_F32, .grad_dtype = t->m.p->grad_dtype};
    p.copy_dtype = t->m.p->dtype;
    p.value = t->master, p.grad = t->m.at[D][PARAMS], p.state1 = t->moment1, p.state2 = t->moment2;
    p.copy = t->m.at[VALUE][PARAMS];
    CHECK_OK(nn_run(&t->m, AG_MAP_VJP));
    t->adamw.loss_scale = t->scale.scale;
    CHECK_OK(ag_adamw_step(&t->adamw, &p, 1, &report));
    if (t->m.p->dtype == AG_F16) {
        CHECK_OK(ag_loss_scale_update(&t->scale, report.applied));
    }
    t->seen_skips += !report.applied;
    return report;
}

/* ---- The tasks: each fills x, runs forward, sets dy and returns the loss ---- */

typedef double (*task)(trainer *t, nn_model *teacher, struct rng *r);

/* 1/2 mean (y - teacher's y)^2 */
static double regression(trainer *t, nn_model *teacher, struct rng *r)
{
    nn_model *m = &t->m;
    double loss = 0;
    for (int64_t i = 0; i < m->count[X_Q]; i++) {
        const double x = agc_rng_normal(r);
        nn_set(m, VALUE, X_Q, i, x);
        nn_set(teacher, VALUE, X_Q, i, x);
    }
    CHECK_OK(nn_run(m, AG_MAP_FORWARD));
    CHECK_OK(nn_run(teacher, AG_MAP_FORWARD));
    for (int64_t i = 0; i < m->count[Y]; i++) {
        const double error = nn_get(m, VALUE, Y, i) - nn_get(teacher, VALUE, Y, i);
        loss += error * error / 2 / (double)m->count[Y];
        nn_set(m, D, Y, i, t->scale.scale * error / (double)m->count[Y]);
    }
    return loss;
}

enum { KEYS = 8, VALUES = 8, PAIRS = 5, WIDTH = KEYS + VALUES, LENGTH = PAIRS + 1 };

/* Five tokens of a key and a value each, all keys different, then a token of one of the keys alone.
 * Returns the value that belongs to it. */
static int64_t draw_recall(nn_model *m, struct rng *r, int64_t b)
{
    int64_t keys[KEYS], values[PAIRS];
    for (int64_t k = 0; k < KEYS; k++) {
        keys[k] = k;
    }
    for (int64_t i = 0; i < LENGTH * WIDTH; i++) {
        nn_set(m, VALUE, X_Q, b * LENGTH * WIDTH + i, 0);
    }
    for (int64_t i = 0; i < PAIRS; i++) {
        const int64_t other = agc_rng_range(r, i, KEYS - 1), key = keys[other];
        keys[other] = keys[i];
        keys[i] = key;
        values[i] = agc_rng_range(r, 0, VALUES - 1);
        nn_set(m, VALUE, X_Q, (b * LENGTH + i) * WIDTH + keys[i], 1);
        nn_set(m, VALUE, X_Q, (b * LENGTH + i) * WIDTH + KEYS + values[i], 1);
    }
    const int64_t queried = agc_rng_range(r, 0, PAIRS - 1);
    nn_set(m, VALUE, X_Q, (b * LENGTH + PAIRS) * WIDTH + keys[queried], 1);
    return values[queried];
}

/* Mean cross-entropy of softmax(4 y) at the last token. */
static double recall(trainer *t, nn_model *teacher, struct rng *r)
{
    nn_model *m = &t->m;
    const int64_t B = m->p->batch;
    int64_t wanted[64];
    double loss = 0;
    (void)teacher;
    for (int64_t b = 0; b < B; b++) {
        wanted[b] = draw_recall(m, r, b);
    }
    CHECK_OK(nn_run(m, AG_MAP_FORWARD));
    for (int64_t b = 0; b < B; b++) {
        const int64_t row = (b * LENGTH + PAIRS) * VALUES;
        double total = 0;
        for (int64_t v = 0; v < VALUES; v++) {
            total += exp(4 * nn_get(m, VALUE, Y, row + v));
        }
        loss += (log(total) - 4 * nn_get(m, VALUE, Y, row + wanted[b])) / (double)B;
        for (int64_t i = 0; i < PAIRS * VALUES; i++) {
            nn_set(m, D, Y, b * LENGTH * VALUES + i, 0);
        }
        for (int64_t v = 0; v < VALUES; v++) {
            const double p = exp(4 * nn_get(m, VALUE, Y, row + v)) / total;
            nn_set(m, D, Y, row + v, t->scale.scale * 4 * (p - (v == wanted[b] ? 1 : 0)) / (double)B);
        }
    }
    return loss;
}

/* ---- Runs ---- */

typedef struct {
    double first, last; /* mean losses of the first and of the last ten steps */
} run_result;

static run_result train(trainer *t, nn_model *teacher, task run_task, int steps)
{
    run_result result = {0, 0};
    struct rng r;
    agc_rng_init(&r, 52, 0);
    for (int step = 0; step < steps; step++) {
        const double loss = run_task(t, teacher, &r);
        CHECK(isfinite(loss), "step %d: the loss is %g", step, loss);
        result.first += step < 10 ? loss / 10 : 0;
        result.last += step >= steps - 10 ? loss / 10 : 0;
        trainer_step(t);
    }
    return result;
}

enum { F32, BF16, F16, N_DTYPES };
static const char *const dtype_texts[N_DTYPES] = {"f32", "bf16 grad=f32", "f16"};

static void check_regression(int dtype)
{
    char text[80], teacher_text[80];
    snprintf(text, sizeof text, "%s b8 h2 q6 d4 causal", dtype_texts[dtype]);
    snprintf(teacher_text, sizeof teacher_text, "f32 b8 h2 q6 d4 causal");
    const nn_config c = {text, AG_LAYER_SELF | AG_LAYER_BIASES, 8, 0, 0, 0, 0};
    const nn_config of_teacher = {teacher_text, AG_LAYER_SELF | AG_LAYER_BIASES, 8, 0, 0, 0, 0};
    trainer t;
    nn_model teacher;
    trainer_make(&t, &c, 2, 0.02);
    nn_make(&teacher, &of_teacher, 2, 53);
    const run_result result = train(&t, &teacher, regression, 200);
    CHECK(result.last < 0.3 * result.first, "%s: regression: loss from %.4f to %.4f only", text, result.first,
          result.last);
    CHECK(dtype != F16 || (t.seen_skips > 0 && t.scale.skipped == t.seen_skips),
          "%s: %lld skips, %lld counted", text, (long long)t.seen_skips, (long long)t.scale.skipped);
    CHECK(dtype == F16 || t.seen_skips == 0, "%s: %lld steps skipped", text, (long long)t.seen_skips);
    CHECK_INT(t.adamw.steps, 200 - t.seen_skips);
    trainer_free(&t);
    nn_free(&teacher);
}

static void check_recall(int dtype)
{
    char text[80];
    snprintf(text, sizeof text, "%s b32 h1 q%d d16", dtype_texts[dtype], (int)LENGTH);
    const nn_config c = {text, AG_LAYER_SELF, VALUES, WIDTH, 0, 0, 0};
    trainer t;
    trainer_make(&t, &c, 2, 0.02);
    const run_result result = train(&t, NULL, recall, 300);
    CHECK(result.first > 1.5 && result.last < 0.3, "%s: recall: loss from %.4f to %.4f only", text,
          result.first, result.last);
    trainer_free(&t);
}

static void check_same_bits(void)
{
    const nn_config c = {"f32 b32 h1 q6 d16", AG_LAYER_SELF, VALUES, WIDTH, 0, 0, 0};
    trainer first;
    trainer_make(&first, &c, 1, 0.02);
    train(&first, NULL, recall, 40);
    for (int32_t threads = 1; threads <= 3; threads++) {
        trainer repeated;
        trainer_make(&repeated, &c, threads, 0.02);
        train(&repeated, NULL, recall, 40);
        CHECK(memcmp(first.master, repeated.master, (size_t)first.m.count[PARAMS] * sizeof(float)) == 0,
              "a run with %d threads ends in other bits", (int)threads);
        trainer_free(&repeated);
    }
    trainer_free(&first);
}

/* A step with a non-finite gradient changes neither the master weights nor their copy, and the next step is applied. */
static void check_non_finite_gradient(int dtype)
{
    char text[80];
    snprintf(text, sizeof text, "%s b32 h1 q%d d16", dtype_texts[dtype], (int)LENGTH);
    const nn_config c = {text, AG_LAYER_SELF, VALUES, WIDTH, 0, 0, 0};
    trainer t;
    struct rng r;
    agc_rng_init(&r, 54, 0);
    trainer_make(&t, &c, 2, 0.02);
    t.scale.scale = 1;
    recall(&t, NULL, &r);
    trainer_step(&t);
    const size_t bytes = (size_t)t.m.count[PARAMS] * sizeof(float);
    const size_t copy_bytes = (size_t)t.m.count[PARAMS] * ag_dtype_size(t.m.p->dtype);
    void *kept = nn_alloc(bytes), *kept_copy = nn_alloc(copy_bytes);
    memcpy(kept, t.master, bytes);
    memcpy(kept_copy, t.m.at[VALUE][PARAMS], copy_bytes);
    recall(&t, NULL, &r);
    nn_set(&t.m, D, Y, t.m.count[Y] - 1, INFINITY);
    const ag_step_report report = trainer_step(&t);
    CHECK(report.applied == 0 && report.non_finite > 0, "%s: a step with a non-finite gradient was applied",
          text);
    CHECK(memcmp(kept, t.master, bytes) == 0 && memcmp(kept_copy, t.m.at[VALUE][PARAMS], copy_bytes) == 0,
          "%s: a step with a non-finite gradient changed the weights", text);
    recall(&t, NULL, &r);
    CHECK(trainer_step(&t).applied == 1 && memcmp(kept, t.master, bytes) != 0,
          "%s: the next step was not applied", text);
    free(kept);
    free(kept_copy);
    trainer_free(&t);
}

int main(void)
{
    for (int dtype = 0; dtype < N_DTYPES; dtype++) {
        check_regression(dtype);
        check_recall(dtype);
        check_non_finite_gradient(dtype);
    }
    check_same_bits();
    return test_summary();
}
