/* The model of train and sample: planned first, compared with its checkpoint and with the machine's
 * memory, and only then allocated. */
#include "train.h"

#include "check/memory.h"
#include "usage.h"

#include <stdio.h>
#include <string.h>

static int check_memory(const char *command, const struct model *model, const struct checkpoint *c)
{
    const struct model_shape *s = &model->shape;
    const double needed = model_memory_bytes(model), available = agc_machine_memory(), gibibyte = 1 << 30;
    char text[160];
    if (needed <= available) {
        return EXIT_PASS;
    }
    snprintf(text, sizeof text, "needs %.3g GiB of memory: this machine has %.3g", needed / gibibyte,
             available / gibibyte);
    if (c == NULL) {
        return usage_error(command, "--layers %lld --width %lld --context %lld --batch %lld %s",
                           (long long)s->layers, (long long)s->width, (long long)s->context,
                           (long long)s->batch, text);
    }
    return file_error(command, "'%s': a model of layers %lld, width %lld, context %lld, batch %lld %s",
                      c->path, (long long)s->layers, (long long)s->width, (long long)s->context,
                      (long long)s->batch, text);
}

int train_make_model(const char *command, struct model *model, const struct model_shape *shape,
                     int64_t threads, const struct checkpoint *c, bool for_training)
{
    if (model_plan(model, shape, threads) != AG_OK) {
        const bool environment = strncmp(ag_last_field(), "ATTNGRAD_", strlen("ATTNGRAD_")) == 0;
        return c == NULL || environment
                   ? usage_error(command, "%s", ag_last_message())
                   : file_error(command, "'%s': invalid checkpoint: %s", c->path, ag_last_message());
    }
    int status = c != NULL ? checkpoint_check(c, model, for_training) : EXIT_PASS;
    if (status == EXIT_PASS) {
        status = check_memory(command, model, c);
    }
    if (status == EXIT_PASS) {
        model_allocate(model);
    } else {
        model_destroy(model);
    }
    return status;
}
