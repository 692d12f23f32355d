/* The command line of train. What is not given is taken from the checkpoint to be continued, else from the
 * defaults. What is given must agree with the checkpoint, except what may change between runs: steps, rate. */
#include "train.h"

#include "options.h"
#include "usage.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum {
    DEFAULT_HEADS = 4,
    DEFAULT_LAYERS = 2,
    DEFAULT_WIDTH = 64,
    DEFAULT_CONTEXT = 64,
    DEFAULT_BATCH = 16,
    DEFAULT_STEPS = 1000,
    DEFAULT_SEED = 1,
    DEFAULT_SAVE = 100,
    PROGRESS_LINES = 20 /* lines of progress, if standard error is not a terminal */
};
static const double default_rate = 0.003;

static int read_dtype(struct train *train, const char *text)
{
    static const struct {
        const char *name;
        ag_dtype dtype;
    } known[] = {{"f32", AG_F32}, {"bf16", AG_BF16}, {"f16", AG_F16}};
    for (size_t n = 0; n < 3 && text != NULL; n++) {
        if (strcmp(text, known[n].name) == 0) {
            train->settings.shape.dtype = known[n].dtype;
            return 0;
        }
    }
    return text == NULL ? 0 : usage_error("train", "--dtype: '%s' is not f32, bf16 or f16", text);
}

static int read_seed(struct train *train, const char *text)
{
    const struct option option = {"seed", OPTION_SEED, &train->settings.seed, 0, 0};
    train->seed_given = text != NULL;
    return text != NULL ? option_set("train", &option, text) : 0;
}

/* Reads the options that were taken as text: the dtype, which is a word, and the seed, of which every value
 * is legal, so that none can mean "not given". Checks the rest. A rate that was not given is NaN and
 * passes. */
static int finish_options(struct train *train, const char *dtype, const char *seed)
{
    int status = read_dtype(train, dtype);
    if (status == 0) {
        status = read_seed(train, seed);
    }
    if (status == 0 && train->settings.rate <= 0) {
        status = usage_error("train", "--rate: %g is not more than 0", train->settings.rate);
    }
    if (status == 0 && train->resume && train->overwrite) {
        status = usage_error("train", "--resume and --overwrite exclude each other");
    }
    return status;
}

int train_options(struct train *train, int argc, char **argv)
{
    struct settings *s = &train->settings;
    const char *dtype = NULL, *seed = NULL;
    *train = (struct train){.model = "model.safetensors", .save_every = DEFAULT_SAVE, .log_every = -1};
    *s = (struct settings){.shape = {-1, -1, -1, -1, -1, 0}, .steps = -1, .rate = NAN};
    const struct option options[] = {
        {"heads", OPTION_INTEGER, &s->shape.heads, 1, MAX_HEADS},
        {"layers", OPTION_INTEGER, &s->shape.layers, 1, MAX_LAYERS},
        {"width", OPTION_INTEGER, &s->shape.width, 1, MAX_WIDTH},
        {"context", OPTION_INTEGER, &s->shape.context, 2, MAX_CONTEXT},
        {"batch", OPTION_INTEGER, &s->shape.batch, 1, MAX_BATCH},
        {"dtype", OPTION_TEXT, &dtype, 0, 0},
        {"steps", OPTION_INTEGER, &s->steps, 1, MAX_STEPS},
        {"rate", OPTION_NUMBER, &s->rate, 0, 0},
        {"seed", OPTION_TEXT, &seed, 0, 0},
        {"threads", OPTION_INTEGER, &train->threads, 0, MAX_THREADS},
        {"model", OPTION_TEXT, &train->model, 0, 0},
        {"save-every", OPTION_INTEGER, &train->save_every, 1, MAX_STEPS},
        {"log-every", OPTION_INTEGER, &train->log_every, 1, MAX_STEPS},
        {"plot", OPTION_TEXT, &train->plot, 0, 0},
        {"resume", OPTION_FLAG, &train->resume, 0, 0},
        {"overwrite", OPTION_FLAG, &train->overwrite, 0, 0},
        {"help", OPTION_FLAG, &train->help, 0, 0},
    };
    struct positionals texts = {&train->text, 1, 0};
    const int status = options_parse(argc, argv, options, sizeof options / sizeof options[0], &texts);
    s->text = train->text != NULL;
    return status == 0 ? finish_options(train, dtype, seed) : status;
}

/* ---- Against a checkpoint ---- */

/* Collects "width 128, not 64" for each value that differs; given -1: not on the command line. */
struct differences {
    char text[256];
    size_t length;
};

static void compare(struct differences *d, const char *name, int64_t given, int64_t saved)
{
    if (given >= 0 && given != saved && d->length < sizeof d->text) {
        const int added = snprintf(d->text + d->length, sizeof d->text - d->length, "%s%s %lld, not %lld",
                                   d->length > 0 ? "; " : "", name, (long long)saved, (long long)given);
        d->length += added > 0 ? (size_t)added : 0;
    }
}

static int check_agreement(const struct train *train, const struct checkpoint *c)
{
    const struct settings *given = &train->settings, *saved = &c->settings;
    struct differences d = {.length = 0};
    compare(&d, "heads", given->shape.heads, saved->shape.heads);
    compare(&d, "layers", given->shape.layers, saved->shape.layers);
    compare(&d, "width", given->shape.width, saved->shape.width);
    compare(&d, "context", given->shape.context, saved->shape.context);
    compare(&d, "batch", given->shape.batch, saved->shape.batch);
    if (d.length > 0) {
        return usage_error("train", "'%s' has %s", c->path, d.text);
    }
    if (given->shape.dtype != 0 && given->shape.dtype != saved->shape.dtype) {
        return usage_error("train", "'%s' has dtype %s, not %s", c->path, ag_dtype_name(saved->shape.dtype),
                           ag_dtype_name(given->shape.dtype));
    }
    if (train->seed_given && given->seed != saved->seed) {
        return usage_error("train", "'%s' has seed %llu, not %llu", c->path, (unsigned long long)saved->seed,
                           (unsigned long long)given->seed);
    }
    if (given->text != saved->text) {
        return usage_error("train",
                           saved->text ? "'%s' was trained on a text: name it again"
                                       : "'%s' was trained on the recall task, not on a text",
                           c->path);
    }
    return 0;
}

/* ---- What was not given ---- */

static void set_default(int64_t *value, int64_t default_value)
{
    *value = *value < 0 ? default_value : *value;
}

static void take_defaults(struct settings *s, bool seed_given)
{
    set_default(&s->shape.heads, DEFAULT_HEADS);
    set_default(&s->shape.layers, DEFAULT_LAYERS);
    set_default(&s->shape.width, DEFAULT_WIDTH);
    set_default(&s->shape.context, DEFAULT_CONTEXT);
    set_default(&s->shape.batch, DEFAULT_BATCH);
    set_default(&s->steps, DEFAULT_STEPS);
    s->shape.dtype = s->shape.dtype == 0 ? AG_F32 : s->shape.dtype;
    s->rate = isnan(s->rate) ? default_rate : s->rate;
    s->seed = seed_given ? s->seed : DEFAULT_SEED;
}

int shape_check(const char *command, const struct model_shape *shape)
{
    if (shape->width % shape->heads != 0) {
        return usage_error(command, "--width %lld is no multiple of --heads %lld", (long long)shape->width,
                           (long long)shape->heads);
    }
    if (shape->width / shape->heads > MAX_HEAD_CHANNELS) {
        return usage_error(command, "--width %lld: with --heads %lld a head has %lld channels, at most %d",
                           (long long)shape->width, (long long)shape->heads,
                           (long long)(shape->width / shape->heads), MAX_HEAD_CHANNELS);
    }
    return 0;
}

int train_fill_settings(struct train *train, const struct checkpoint *c)
{
    struct settings *s = &train->settings;
    if (c != NULL) {
        const int status = check_agreement(train, c);
        const int64_t steps = s->steps < 0 ? c->settings.steps : s->steps;
        const double rate = isnan(s->rate) ? c->settings.rate : s->rate;
        if (status != 0) {
            return status;
        }
        *s = c->settings;
        s->steps = steps;
        s->rate = rate;
    }
    take_defaults(s, train->seed_given || c != NULL);
    set_default(&train->log_every, s->steps < PROGRESS_LINES ? 1 : s->steps / PROGRESS_LINES);
    if (!s->text && s->shape.context % 2 != 0) {
        return usage_error("train", "--context %lld: the recall task needs an even one",
                           (long long)s->shape.context);
    }
    if (!s->text && s->shape.context < 4) {
        return usage_error("train", "--context %lld: the recall task needs 4 or more",
                           (long long)s->shape.context);
    }
    return shape_check("train", &s->shape);
}
