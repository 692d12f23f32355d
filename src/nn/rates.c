/* The learning rate at a step, and the scale of the loss in float16 training. */
#include "attngrad_nn.h"

#include <math.h>

#include "core/problem.h"
#include "core/status.h"
#include "core/structs.h"

static const double pi = 3.14159265358979323846;

static ag_status bad(const char *call, const char *field, double value, const char *rule)
{
    return agi_fail_field(AG_INVALID_ARGUMENT, field, "%s: %s is %g: %s", call, field, value, rule);
}

/* ---- Learning rate ---- */

static ag_status check_schedule(const ag_schedule *s)
{
    const char *call = "ag_schedule_rate";
    const bool cosine = s->kind == AG_SCHEDULE_COSINE;
    if (s->kind != AG_SCHEDULE_CONSTANT && !cosine) {
        return bad(call, "kind", s->kind, "must be AG_SCHEDULE_CONSTANT or AG_SCHEDULE_COSINE");
    }
    if (!(s->rate >= 0 && s->rate < INFINITY)) {
        return bad(call, "rate", s->rate, "must be finite and not negative");
    }
    if (s->warmup < 0) {
        return bad(call, "warmup", (double)s->warmup, "must not be negative");
    }
    if (cosine && !(s->final_rate >= 0 && s->final_rate < INFINITY)) {
        return bad(call, "final_rate", s->final_rate, "must be finite and not negative");
    }
    if (cosine && s->steps <= s->warmup) {
        return bad(call, "steps", (double)s->steps, "must be more than warmup");
    }
    return AG_OK;
}

ag_status ag_schedule_rate(const ag_schedule *schedule, int64_t step, double *rate)
{
    ag_schedule s;
    ag_status status = agi_read_struct(&s, sizeof s, schedule, "schedule", AG_INVALID_ARGUMENT);
    if (status == AG_OK && check_schedule(&s) != AG_OK) {
        status = agi_fail_within(AG_INVALID_ARGUMENT, "schedule");
    }
    if (status == AG_OK && (rate == NULL || step < 0)) {
        status = agi_fail_field(AG_INVALID_ARGUMENT, step < 0 ? "step" : "rate",
                                "ag_schedule_rate: step is %lld, rate %p", (long long)step, (void *)rate);
    }
    if (status != AG_OK) {
        return status;
    }
    if (step < s.warmup) {
        *rate = s.rate * (double)(step + 1) / (double)s.warmup;
    } else if (s.kind == AG_SCHEDULE_CONSTANT) {
        *rate = s.rate;
    } else if (step >= s.steps) {
        *rate = s.final_rate;
    } else {
        const double done = (double)(step - s.warmup) / (double)(s.steps - s.warmup);
        *rate = s.final_rate + (s.rate - s.final_rate) * (1 + cos(pi * done)) / 2;
    }
    return AG_OK;
}

/* ---- Loss scale ---- */

static ag_status fill_and_check_loss_scale(ag_loss_scale *s)
{
    const char *call = "ag_loss_scale_update";
    s->scale = s->scale == 0 ? 65536 : s->scale;
    s->growth = s->growth == 0 ? 2 : s->growth;
    s->backoff = s->backoff == 0 ? 0.5 : s->backoff;
    s->max_scale = s->max_scale == 0 ? 0x1p24 : s->max_scale;
    s->interval = s->interval == 0 ? 2000 : s->interval;
    if (s->reserved != 0) {
        return bad(call, "reserved", s->reserved, "must be zero");
    }
    if (!(s->scale > 0 && s->scale < INFINITY)) {
        return bad(call, "scale", s->scale, "must be positive and finite");
    }
    if (!(s->growth > 1 && s->growth < INFINITY)) {
        return bad(call, "growth", s->growth, "must be more than 1 and finite");
    }
    if (!(s->backoff > 0 && s->backoff < 1)) {
        return bad(call, "backoff", s->backoff, "must lie between 0 and 1");
    }
    if (!(s->max_scale > 0 && s->max_scale < INFINITY)) {
        return bad(call, "max_scale", s->max_scale, "must be positive and finite");
    }
    if (s->interval < 0) {
        return bad(call, "interval", (double)s->interval, "must not be negative");
    }
    if (s->in_a_row < 0) {
        return bad(call, "in_a_row", (double)s->in_a_row, "must not be negative");
    }
    return s->skipped < 0 ? bad(call, "skipped", (double)s->skipped, "must not be negative") : AG_OK;
}

/* At least the smallest normal float32, so that the scale never reaches zero. */
static double back_off(double scale, double backoff)
{
    const double min = 0x1p-126;
    return scale * backoff > min ? scale * backoff : min;
}

ag_status ag_loss_scale_update(ag_loss_scale *loss_scale, int32_t applied)
{
    ag_loss_scale s;
    ag_status status = agi_read_struct(&s, sizeof s, loss_scale, "loss_scale", AG_INVALID_ARGUMENT);
    if (status == AG_OK && loss_scale->struct_size < sizeof s) {
        status =
            agi_fail_field(AG_INVALID_ARGUMENT, "loss_scale", "loss_scale: struct_size is %lu: must be %zu",
                           (unsigned long)loss_scale->struct_size, sizeof s);
    }
    if (status == AG_OK && fill_and_check_loss_scale(&s) != AG_OK) {
        status = agi_fail_within(AG_INVALID_ARGUMENT, "loss_scale");
    }
    if (status != AG_OK) {
        return status;
    }
    if (!applied) {
        s.scale = back_off(s.scale, s.backoff);
        s.in_a_row = 0;
        s.skipped++;
    } else if (++s.in_a_row >= s.interval) {
        s.scale = s.scale * s.growth < s.max_scale ? s.scale * s.growth : s.max_scale;
        s.in_a_row = 0;
    }
    loss_scale->scale = s.scale;
    loss_scale->in_a_row = s.in_a_row;
    loss_scale->skipped = s.skipped;
    return AG_OK;
}
