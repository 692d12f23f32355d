/* Everything about optimisers, schedules and the loss scale that must be refused: the status, a message that names the
 * field, and nothing written. */
#include "nn_refusals.h"

/* ---- Optimisers ---- */

typedef struct {
    float w[2], g[2], m[2], v[2];
    uint16_t copy[2];
    ag_param p;
    ag_sgd sgd;
    ag_adamw adamw;
} training;

static training training_make(void)
{
    return (training){.w = {1, 2}, .g = {1, 1}, .sgd = AG_SGD_INIT, .adamw = AG_ADAMW_INIT};
}

static void training_link(training *t)
{
    t->p = (ag_param){2, AG_F32, AG_F32, AG_BF16, 0, t->w, t->g, t->m, t->v, t->copy};
    t->sgd.rate = t->adamw.rate = 0.1;
    t->sgd.momentum = 0.5;
}

static void refuse_step(void (*change)(training *t), const char *word, int line)
{
    training t = training_make();
    training_link(&t);
    change(&t);
    check_refused(ag_adamw_step(&t.adamw, &t.p, 1, NULL), AG_INVALID_ARGUMENT, word, line);
    check_refused(ag_sgd_step(&t.sgd, &t.p, 1, NULL), AG_INVALID_ARGUMENT, word, line);
    CHECK(t.w[0] == 1 && t.w[1] == 2 && t.m[0] == 0 && t.adamw.steps == 0 && t.sgd.steps == 0,
          "line %d: a refused step was applied", line);
}

#define REFUSED_STEP(change, word) refuse_step(change, word, __LINE__)

static void step_size(training *t)
{
    t->sgd.struct_size = t->adamw.struct_size = 8;
}
static void step_reserved(training *t)
{
    t->sgd.reserved = t->adamw.reserved = 1;
}
static void step_rate(training *t)
{
    t->sgd.rate = t->adamw.rate = -1;
}
static void step_nan(training *t)
{
    t->sgd.rate = t->adamw.rate = NAN;
}
static void step_decay(training *t)
{
    t->sgd.weight_decay = t->adamw.weight_decay = -1;
}
static void step_max_norm(training *t)
{
    t->sgd.max_norm = t->adamw.max_norm = -1;
}
static void step_loss_scale(training *t)
{
    t->sgd.loss_scale = t->adamw.loss_scale = INFINITY;
}
static void step_count(training *t)
{
    t->p.count = -1;
}
static void step_value(training *t)
{
    t->p.value = NULL;
}
static void step_grad(training *t)
{
    t->p.grad = NULL;
}
static void step_state1(training *t)
{
    t->p.state1 = NULL;
}
static void step_dtype(training *t)
{
    t->p.dtype = AG_F16;
}
static void step_grad_dtype(training *t)
{
    t->p.grad_dtype = 0;
}
static void step_copy_dtype(training *t)
{
    t->p.copy_dtype = 9;
}
static void step_flags(training *t)
{
    t->p.flags = 2;
}
static void step_state_is_value(training *t)
{
    t->p.state1 = t->w;
}

static void step_grad_is_value(training *t)
{
    t->p.grad = t->w;
}

static void step_grad_is_state(training *t)
{
    t->p.grad = t->m;
}

static void step_copy_in_value(training *t)
{
    t->p.copy = (uint16_t *)(void *)t->w + 1;
}

static void step_misaligned(training *t)
{
    t->p.value = (void *)((uintptr_t)t->w + 1);
}

static void check_optimisers(void)
{
    training t = training_make();
    double norm;
    int64_t count;
    REFUSED_STEP(step_size, "struct_size");
    REFUSED_STEP(step_reserved, "reserved");
    REFUSED_STEP(step_rate, "rate is -1");
    REFUSED_STEP(step_nan, "rate");
    REFUSED_STEP(step_decay, "weight_decay");
    REFUSED_STEP(step_max_norm, "max_norm");
    REFUSED_STEP(step_loss_scale, "loss_scale");
    REFUSED_STEP(step_count, "count");
    REFUSED_STEP(step_value, "value of parameter 0 is NULL");
    REFUSED_STEP(step_grad, "grad of parameter 0 is NULL");
    ABOUT("list.grad");
    REFUSED_STEP(step_state1, "state1");
    REFUSED_STEP(step_dtype, "dtype");
    REFUSED_STEP(step_grad_dtype, "grad_dtype");
    REFUSED_STEP(step_copy_dtype, "copy_dtype");
    REFUSED_STEP(step_flags, "flags");
    REFUSED_STEP(step_misaligned, "not aligned");
    REFUSED_STEP(step_state_is_value, "state1 of parameter 0 overlaps value of parameter 0");
    REFUSED_STEP(step_grad_is_value, "grad of parameter 0 overlaps value of parameter 0");
    REFUSED_STEP(step_grad_is_state, "grad of parameter 0 overlaps state1 of parameter 0");
    REFUSED_STEP(step_copy_in_value, "copy of parameter 0 overlaps value of parameter 0");
    training_link(&t);
    t.sgd.momentum = 1;
    REFUSED(ag_sgd_step(&t.sgd, &t.p, 1, NULL), AG_INVALID_ARGUMENT, "momentum is 1");
    ABOUT("sgd.momentum");
    t.adamw.beta1 = 1;
    REFUSED(ag_adamw_step(&t.adamw, &t.p, 1, NULL), AG_INVALID_ARGUMENT, "beta1 is 1");
    ABOUT("adamw.beta1");
    t.adamw.beta1 = 0, t.adamw.beta2 = -0.1;
    REFUSED(ag_adamw_step(&t.adamw, &t.p, 1, NULL), AG_INVALID_ARGUMENT, "beta2");
    t.adamw.beta2 = 0, t.adamw.epsilon = -1;
    REFUSED(ag_adamw_step(&t.adamw, &t.p, 1, NULL), AG_INVALID_ARGUMENT, "epsilon");
    t.adamw.epsilon = 0, t.adamw.steps = -1;
    REFUSED(ag_adamw_step(&t.adamw, &t.p, 1, NULL), AG_INVALID_ARGUMENT, "steps");
    t.adamw.steps = 0, t.p.state2 = NULL;
    REFUSED(ag_adamw_step(&t.adamw, &t.p, 1, NULL), AG_INVALID_ARGUMENT, "state2");
    t.p.state2 = t.v;
    REFUSED(ag_adamw_step(&t.adamw, NULL, 1, NULL), AG_INVALID_ARGUMENT, "list");
    REFUSED(ag_adamw_step(&t.adamw, &t.p, 1, &(ag_step_report){0}), AG_INVALID_ARGUMENT, "report");
    REFUSED(ag_adamw_step(NULL, &t.p, 1, NULL), AG_INVALID_ARGUMENT, "adamw");
    REFUSED(ag_sgd_step(NULL, &t.p, 1, NULL), AG_INVALID_ARGUMENT, "sgd");
    CHECK(t.w[0] == 1 && t.m[0] == 0, "a refused step was applied");
    REFUSED(ag_grad_norm(&t.p, 1, 0, NULL, &count), AG_INVALID_ARGUMENT, "norm");
    REFUSED(ag_grad_norm(&t.p, 1, 0, &norm, NULL), AG_INVALID_ARGUMENT, "non_finite");
    REFUSED(ag_grad_norm(&t.p, -1, 0, &norm, &count), AG_INVALID_ARGUMENT, "list");
    REFUSED(ag_grad_norm(&t.p, 1, -1, &norm, &count), AG_INVALID_ARGUMENT, "loss_scale");
}

static void refuse_schedule(ag_schedule s, int64_t step, const char *word, int line)
{
    double rate = 7;
    s.struct_size = sizeof s;
    check_refused(ag_schedule_rate(&s, step, &rate), AG_INVALID_ARGUMENT, word, line);
    CHECK(rate == 7, "line %d: rate was written", line);
}

static void refuse_loss_scale(ag_loss_scale s, const char *word, int line)
{
    s.struct_size = sizeof s;
    check_refused(ag_loss_scale_update(&s, 1), AG_INVALID_ARGUMENT, word, line);
}

#define REFUSED_SCHEDULE(step, word, ...)                                                                    \
    refuse_schedule((ag_schedule){.struct_size = 0, __VA_ARGS__}, step, word, __LINE__)
#define REFUSED_SCALE(word, ...)                                                                             \
    refuse_loss_scale((ag_loss_scale){.struct_size = 0, __VA_ARGS__}, word, __LINE__)

static void check_schedules(void)
{
    ag_schedule s = AG_SCHEDULE_INIT;
    ag_loss_scale l = AG_LOSS_SCALE_INIT;
    double rate;
    REFUSED_SCHEDULE(0, "kind", .kind = 2);
    REFUSED_SCHEDULE(0, "rate", .rate = -1);
    REFUSED_SCHEDULE(0, "rate", .rate = NAN);
    REFUSED_SCHEDULE(0, "warmup", .warmup = -1);
    ABOUT("schedule.warmup");
    REFUSED_SCHEDULE(0, "final_rate", .kind = AG_SCHEDULE_COSINE, .steps = 5, .final_rate = -1);
    REFUSED_SCHEDULE(0, "steps", .kind = AG_SCHEDULE_COSINE, .steps = 5, .warmup = 5);
    REFUSED_SCHEDULE(-1, "step is -1", .rate = 1);
    REFUSED(ag_schedule_rate(&s, 0, NULL), AG_INVALID_ARGUMENT, "rate");
    REFUSED(ag_schedule_rate(NULL, 0, &rate), AG_INVALID_ARGUMENT, "schedule");
    REFUSED_SCALE("reserved", .reserved = 1);
    REFUSED_SCALE("scale", .scale = -1);
    REFUSED_SCALE("scale", .scale = NAN);
    REFUSED_SCALE("growth", .growth = 1);
    ABOUT("loss_scale.growth");
    REFUSED_SCALE("backoff", .backoff = 1);
    REFUSED_SCALE("max_scale", .max_scale = -1);
    REFUSED_SCALE("interval", .interval = -1);
    l.struct_size = 16;
    REFUSED(ag_loss_scale_update(&l, 1), AG_INVALID_ARGUMENT, "struct_size");
    REFUSED(ag_loss_scale_update(NULL, 1), AG_INVALID_ARGUMENT, "loss_scale");
}

/* Arrays of different parameters, in lists longer and shorter than the chunk that the check sorts at once. */
static void check_aliased(void)
{
    enum { MAX_PARAMS = 600, SIZE = 3 };
    static float w[MAX_PARAMS][SIZE], g[MAX_PARAMS][SIZE], m[MAX_PARAMS][SIZE], v[MAX_PARAMS][SIZE];
    static const int64_t pairs[][3] = {{0, 1, 2}, {0, 599, 600}, {100, 63, 600}, {599, 300, 600}};
    static ag_param list[MAX_PARAMS];
    ag_adamw adamw = AG_ADAMW_INIT;
    adamw.rate = 0.1;
    for (int n = 0; n < 4; n++) {
        const int64_t a = pairs[n][0], b = pairs[n][1], count = pairs[n][2];
        char word[64];
        for (int64_t i = 0; i < count; i++) {
            const int64_t at = n % 2 == 0 ? i : count - 1 - i; /* upwards and downwards in memory */
            list[i] = (ag_param){SIZE, AG_F32, AG_F32, 0, 0, w[at], g[at], m[at], v[at], NULL};
        }
        CHECK_OK(ag_adamw_step(&adamw, list, count, NULL));
        const ag_param good = list[b];
        list[b].grad = list[a].grad; /* which is only read */
        CHECK_OK(ag_adamw_step(&adamw, list, count, NULL));
        snprintf(word, sizeof word, "value of parameter %lld overlaps value of parameter %lld",
                 (long long)(a > b ? a : b), (long long)(a < b ? a : b));
        list[b].value = (float *)list[a].value + SIZE - 1;
        list[b].count = 1;
        REFUSED(ag_adamw_step(&adamw, list, count, NULL), AG_INVALID_ARGUMENT, word);
        list[b] = good;
        list[b].state2 = list[a].state1;
        REFUSED(ag_adamw_step(&adamw, list, count, NULL), AG_INVALID_ARGUMENT, " overlaps ");
        list[b] = good;
        list[b].grad = list[a].state2;
        REFUSED(ag_adamw_step(&adamw, list, count, NULL), AG_INVALID_ARGUMENT, "state2 of parameter");
    }
    training t = training_make();
    training_link(&t);
    t.p.state2 = t.m;
    REFUSED(ag_adamw_step(&t.adamw, &t.p, 1, NULL), AG_INVALID_ARGUMENT,
            "state2 of parameter 0 overlaps state1 of parameter 0");
    CHECK_OK(ag_sgd_step(&t.sgd, &t.p, 1, NULL)); /* which has no second state */
}

int main(void)
{
    check_optimisers();
    check_aliased();
    check_schedules();
    return test_summary();
}
