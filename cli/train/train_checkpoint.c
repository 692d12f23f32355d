/* A run in one .safetensors file: the settings and counts as metadata; the weights, the optimiser's moments
 * and the losses so far as tensors. Nothing in it depends on time, threads or how often the run was stopped.
 * It is accepted only if every number is in its range and every tensor has its shape. */
#include "train.h"

#include "alloc.h"
#include "usage.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char format_name[] = "attngrad train 1";

enum { FIELDS = 17, PAIRS = FIELDS + 1, VALUE_SIZE = 40, NAME_SIZE = MODEL_NAME_SIZE + 16 };

/* The flat arrays of the model that are saved, each as one tensor per view. */
enum array_kind { WEIGHTS, FIRST_MOMENT, SECOND_MOMENT, KINDS };

/* ---- Metadata: one table for writing and reading ---- */

/* POSITIVE: a finite number above 0. */
enum field_type { INTEGER, UNSIGNED, POSITIVE, DTYPE, TASK };

struct field {
    const char *key;
    enum field_type type;
    void *value;
    int64_t min, max; /* of an INTEGER */
};

static void list_fields(struct settings *s, struct state *state, struct field fields[FIELDS])
{
    const struct field table[FIELDS] = {
        {"task", TASK, &s->text, 0, 0},
        {"text_bytes", INTEGER, &s->text_bytes, 0, INT64_MAX},
        {"text_hash", UNSIGNED, &s->text_hash, 0, 0},
        {"dtype", DTYPE, &s->shape.dtype, 0, 0},
        {"heads", INTEGER, &s->shape.heads, 1, MAX_HEADS},
        {"layers", INTEGER, &s->shape.layers, 1, MAX_LAYERS},
        {"width", INTEGER, &s->shape.width, 1, MAX_WIDTH},
        {"context", INTEGER, &s->shape.context, 2, MAX_CONTEXT},
        {"batch", INTEGER, &s->shape.batch, 1, MAX_BATCH},
        {"steps", INTEGER, &s->steps, 1, MAX_STEPS},
        {"rate", POSITIVE, &s->rate, 0, 0},
        {"seed", UNSIGNED, &s->seed, 0, 0},
        {"step", INTEGER, &state->step, 0, MAX_STEPS},
        {"steps_applied", INTEGER, &state->adamw.steps, 0, MAX_STEPS},
        {"loss_scale", POSITIVE, &state->scale.scale, 0, 0},
        {"loss_scale_in_a_row", INTEGER, &state->scale.in_a_row, 0, MAX_STEPS},
        {"loss_scale_skipped", INTEGER, &state->scale.skipped, 0, MAX_STEPS},
    };
    memcpy(fields, table, sizeof table);
}

static void write_field(const struct field *field, char text[VALUE_SIZE])
{
    switch (field->type) {
    case INTEGER: snprintf(text, VALUE_SIZE, "%" PRId64, *(const int64_t *)field->value); break;
    case UNSIGNED: snprintf(text, VALUE_SIZE, "%" PRIu64, *(const uint64_t *)field->value); break;
    case POSITIVE: snprintf(text, VALUE_SIZE, "%.17g", *(const double *)field->value); break;
    case DTYPE: snprintf(text, VALUE_SIZE, "%s", ag_dtype_name(*(const ag_dtype *)field->value)); break;
    case TASK: snprintf(text, VALUE_SIZE, "%s", *(const bool *)field->value ? "text" : "recall"); break;
    }
}

static bool read_word(const struct field *field, const char *text)
{
    static const ag_dtype dtypes[] = {AG_F32, AG_BF16, AG_F16};
    if (field->type == TASK) {
        *(bool *)field->value = strcmp(text, "text") == 0;
        return strcmp(text, "text") == 0 || strcmp(text, "recall") == 0;
    }
    for (size_t n = 0; n < sizeof dtypes / sizeof dtypes[0]; n++) {
        if (strcmp(text, ag_dtype_name(dtypes[n])) == 0) {
            *(ag_dtype *)field->value = dtypes[n];
            return true;
        }
    }
    return false;
}

static bool read_field(const struct field *field, const char *text)
{
    char *end = NULL;
    bool fits = true;
    errno = 0;
    if (field->type == INTEGER) {
        const long long number = strtoll(text, &end, 10);
        *(int64_t *)field->value = number;
        fits = number >= field->min && number <= field->max;
    } else if (field->type == UNSIGNED) {
        *(uint64_t *)field->value = strtoull(text, &end, 10);
    } else if (field->type == POSITIVE) {
        const double number = strtod(text, &end);
        *(double *)field->value = number;
        fits = isfinite(number) && number > 0;
    } else {
        return read_word(field, text);
    }
    return fits && errno == 0 && end != text && *end == '\0';
}

/* ---- Tensors ---- */

static ag_io_array array_of(const struct model_view *view, const float *flat, const char *name)
{
    ag_io_array array = {.name = name, .dtype = AG_IO_F32};
    array.data = flat != NULL ? flat + view->offset : NULL;
    if (view->rows > 0) {
        array.shape[array.ndim++] = view->rows;
    }
    array.shape[array.ndim++] = view->cols;
    return array;
}

/* The name of a view's weights or moments in the file. */
static void name_of(const struct model_view *view, enum array_kind kind, char name[NAME_SIZE])
{
    static const char *const suffixes[KINDS] = {"", ".moment1", ".moment2"};
    snprintf(name, NAME_SIZE, "%s%s", view->name, suffixes[kind]);
}

static float *flat_array(const struct model *model, enum array_kind kind)
{
    float *const arrays[KINDS] = {model->value, model->moment1, model->moment2};
    return arrays[kind];
}

/* ---- Saving ---- */

ag_io_status checkpoint_write(ag_io_writer *writer, const char *path, const struct settings *settings,
                              const struct state *state, const struct model *model)
{
    struct settings settings_copy = *settings; /* list_fields takes pointers that are not const */
    struct state state_copy = *state;
    struct field fields[FIELDS];
    char texts[FIELDS][VALUE_SIZE];
    ag_io_pair pairs[PAIRS] = {{"format", format_name}};
    const int64_t count = KINDS * model->n_views + 1;
    ag_io_array *arrays = alloc_or_exit("the checkpoint's list of arrays", count, sizeof *arrays);
    char(*names)[NAME_SIZE] = alloc_or_exit("the checkpoint's list of arrays", count, sizeof *names);
    list_fields(&settings_copy, &state_copy, fields);
    for (int n = 0; n < FIELDS; n++) {
        write_field(&fields[n], texts[n]);
        pairs[n + 1] = (ag_io_pair){fields[n].key, texts[n]};
    }
    for (int64_t n = 0; n < count - 1; n++) {
        const struct model_view *view = &model->views[n / KINDS];
        name_of(view, (enum array_kind)(n % KINDS), names[n]);
        arrays[n] = array_of(view, flat_array(model, (enum array_kind)(n % KINDS)), names[n]);
    }
    arrays[count - 1] = (ag_io_array){"losses", state->losses, AG_IO_F32, 1, {state->step}};
    const ag_io_status status = ag_safetensors_write(writer, path, arrays, count, pairs, PAIRS);
    free(names);
    free(arrays);
    return status;
}

/* ---- Loading ---- */

static const char *find_value(const struct checkpoint *c, const char *key)
{
    const ag_io_pair *pairs;
    const int64_t count = ag_io_metadata(c->file, &pairs);
    for (int64_t n = 0; n < count; n++) {
        if (strcmp(pairs[n].key, key) == 0) {
            return pairs[n].value;
        }
    }
    return NULL;
}

static int read_metadata(struct checkpoint *c)
{
    struct field fields[FIELDS];
    const char *format = find_value(c, "format");
    if (format == NULL || strcmp(format, format_name) != 0) {
        return file_error(c->command, "'%s' is no checkpoint of 'attngrad train'", c->path);
    }
    list_fields(&c->settings, &c->state, fields);
    for (int n = 0; n < FIELDS; n++) {
        const char *text = find_value(c, fields[n].key);
        if (text == NULL || !read_field(&fields[n], text)) {
            return file_error(c->command, "'%s': invalid checkpoint: its %s is '%s'", c->path, fields[n].key,
                              text != NULL ? text : "missing");
        }
    }
    const struct settings *s = &c->settings;
    const bool text_of_recall = !s->text && (s->text_bytes != 0 || s->text_hash != 0);
    if (s->shape.width % s->shape.heads != 0 || s->shape.width / s->shape.heads > MAX_HEAD_CHANNELS ||
        c->state.adamw.steps > c->state.step || text_of_recall) {
        return file_error(c->command, "'%s': invalid checkpoint: its numbers contradict each other", c->path);
    }
    return EXIT_PASS;
}

int checkpoint_open(struct checkpoint *c, const char *command, const char *path)
{
    *c = (struct checkpoint){.command = command, .path = path};
    c->state.adamw = (ag_adamw)AG_ADAMW_INIT;
    c->state.scale = (ag_loss_scale)AG_LOSS_SCALE_INIT;
    if (ag_safetensors_open(&c->file, path) != AG_IO_OK) {
        return file_error(command, "%s", ag_io_last_message());
    }
    const int status = read_metadata(c);
    if (status != EXIT_PASS) {
        ag_io_close(c->file);
        c->file = NULL;
    }
    return status;
}

/* Writes "[2, 3]". */
static void print_shape(const ag_io_array *array, char *text, size_t size)
{
    size_t used = (size_t)snprintf(text, size, "[");
    for (int32_t axis = 0; axis < array->ndim && used < size; axis++) {
        const int added =
            snprintf(text + used, size - used, "%s%" PRId64, axis > 0 ? ", " : "", array->shape[axis]);
        used += added > 0 ? (size_t)added : 0;
    }
    if (used < size) {
        snprintf(text + used, size - used, "]");
    }
}

/* Finds the tensor of that name and checks that its dtype and shape are as wanted. */
static int find_array(const struct checkpoint *c, const ag_io_array *wanted, const ag_io_array **found)
{
    if (ag_io_find(c->file, wanted->name, found) != AG_IO_OK) {
        return file_error(c->command, "'%s': %s", c->path, ag_io_last_message());
    }
    const ag_io_array *array = *found;
    if (array->dtype != wanted->dtype || array->ndim != wanted->ndim ||
        memcmp(array->shape, wanted->shape, (size_t)wanted->ndim * sizeof wanted->shape[0]) != 0) {
        char actual[160], expected[160];
        print_shape(array, actual, sizeof actual);
        print_shape(wanted, expected, sizeof expected);
        return file_error(c->command, "'%s': '%s' is %s %s: the model needs %s %s", c->path, wanted->name,
                          ag_io_dtype_name(array->dtype), actual, ag_io_dtype_name(wanted->dtype), expected);
    }
    return EXIT_PASS;
}

/* Copies a tensor. Refuses weights and moments that are not finite, and negative second moments, as they are means of
 * squares: each would spoil the run. */
static int copy_checked(const struct checkpoint *c, const ag_io_array *found, enum array_kind kind, float *to)
{
    const float *from = found->data;
    const int64_t count = ag_io_elements(found);
    for (int64_t i = 0; i < count; i++) {
        if (kind == SECOND_MOMENT && from[i] < 0) {
            return file_error(c->command, "'%s': '%s' is negative: its element %" PRId64 " is %g", c->path,
                              found->name, i, (double)from[i]);
        }
        if (!isfinite(from[i])) {
            return file_error(c->command, "'%s': '%s' is not finite: its element %" PRId64 " is %s", c->path,
                              found->name, i, isnan(from[i]) ? "nan" : "infinite");
        }
    }
    memcpy(to, from, (size_t)count * sizeof *to);
    return EXIT_PASS;
}

/* Finds the tensors of one kind and, if `copy` is set, copies them into the model. */
static int find_tensors(const struct checkpoint *c, const struct model *model, enum array_kind kind,
                        bool copy)
{
    int status = EXIT_PASS;
    for (int64_t n = 0; n < model->n_views && status == EXIT_PASS; n++) {
        const struct model_view *view = &model->views[n];
        const ag_io_array *found;
        char name[NAME_SIZE];
        name_of(view, kind, name);
        const ag_io_array wanted = array_of(view, NULL, name);
        status = find_array(c, &wanted, &found);
        if (status == EXIT_PASS && copy) {
            status = copy_checked(c, found, kind, flat_array(model, kind) + view->offset);
        }
    }
    return status;
}

static int find_losses(const struct checkpoint *c, const ag_io_array **found)
{
    const ag_io_array wanted = {"losses", NULL, AG_IO_F32, 1, {c->state.step}};
    return find_array(c, &wanted, found);
}

int checkpoint_check(const struct checkpoint *c, const struct model *model, bool for_training)
{
    const ag_io_array *losses;
    const enum array_kind end = for_training ? KINDS : FIRST_MOMENT;
    int status = EXIT_PASS;
    for (enum array_kind kind = WEIGHTS; kind < end && status == EXIT_PASS; kind++) {
        status = find_tensors(c, model, kind, false);
    }
    return status == EXIT_PASS && for_training ? find_losses(c, &losses) : status;
}

int checkpoint_read_values(const struct checkpoint *c, struct model *model)
{
    const int status = find_tensors(c, model, WEIGHTS, true);
    model_refresh(model);
    return status;
}

int checkpoint_read_state(const struct checkpoint *c, struct model *model, struct state *state)
{
    const ag_io_array *losses;
    float *buffer = state->losses;
    *state = c->state;
    state->losses = buffer;
    int status = find_tensors(c, model, FIRST_MOMENT, true);
    if (status == EXIT_PASS) {
        status = find_tensors(c, model, SECOND_MOMENT, true);
    }
    if (status == EXIT_PASS) {
        status = find_losses(c, &losses);
    }
    if (status == EXIT_PASS) {
        memcpy(buffer, losses->data, (size_t)c->state.step * sizeof *buffer);
    }
    return status;
}
