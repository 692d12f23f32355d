/* The model of train and sample: planned first, compared with its checkpoint and with the machine's
 * memory, and only then allocated. */
#include "train.h"

#include "check/memory.h"
#include "usage.h"

#include <stdio.h>

static int check_memory(const char *command, const struct model *model, const struct checkpoint *c)
{
    const struct model_shape *s = &model->shape;
    const double needed = model_bytes(model), there = agc_machine_memory(), gibibyte = 1 << 30;
    char text[160];
    if (needed <= there) {
        return EXIT_PASS;
    }
    snprintf(text, sizeof text, "needs %.3g GiB of memory: this machine has %.3g", needed / gibibyte,
             there / gibibyte);
    if (c == NULL) {
        return usage_error(command, "--layers %lld --width %lld --context %lld --batch %lld %s",
                           (long long)s->layers, (long long)s->width, (long long)s->context,
                           (long long)s->batch, text);
    }
    return file_error(command, "'%s': a model of layers %lld, width %lld, context %lld, batch %lld %s",
                      c->path, (long long)s->layers, (long long)s->width, (long long)s->context,
                      (long long)s->batch, text);
}

int train_model(const char *command, struct model *model, const struct model_shape *shape, int64_t threads,
                const struct checkpoint *c, bool state)
{
    if (model_plan(model, shape, threads) != AG_OK) {
        return c == NULL ? usage_error(command, "%s", ag_last_message())
                         : file_error(command, "'%s': wrong checkpoint: %s", c->path, ag_last_message());
    }
    int status = c != NULL ? checkpoint_check(c, model, state) : EXIT_PASS;
    if (status == EXIT_PASS) {
        status = check_memory(command, model, c);
    }
    if (status == EXIT_PASS) {
        model_allocate(model, threads);
    } else {
        model_destroy(model);
    }
    return status;
}
