/* Opens the inputs: "x.npy", or "x.safetensors:name". Anything wrong with a file gives one line and exit code 2. */
#include "files.h"

#include "usage.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_NAMES = 64, WHAT_SIZE = 512 };

static const char npy_suffix[] = ".npy";
static const char safetensors_suffix[] = ".safetensors";

static bool ends_with(const char *text, const char *suffix)
{
    size_t length = strlen(text), suffix_length = strlen(suffix);
    return length > suffix_length && strcmp(text + length - suffix_length, suffix) == 0;
}

/* Finds the colon between file and tensor; NULL if path is not such a pair. */
static const char *find_colon(const char *path)
{
    const char *end = strstr(path, ".safetensors:");
    const char *colon = end != NULL ? strchr(end, ':') : NULL;
    return colon != NULL && end > path && colon[1] != '\0' ? colon : NULL;
}

int input_error(const struct run *run, const struct input *input, const char *format, ...)
{
    char what[WHAT_SIZE];
    va_list values;
    va_start(values, format);
    vsnprintf(what, sizeof what, format, values);
    va_end(values);
    return file_error(run->command, "--%s: '%s' %s", input->option, input->path, what);
}

static int io_error(const struct run *run, const struct input *input)
{
    return file_error(run->command, "--%s: %s", input->option, ag_io_last_message());
}

static int open_npy(const struct run *run, struct input *input)
{
    const ag_io_array *arrays;
    if (ag_npy_open(&input->file, input->path) != AG_IO_OK) {
        return io_error(run, input);
    }
    ag_io_arrays(input->file, &arrays);
    input->array = &arrays[0];
    return EXIT_PASS;
}

/* missing: there is no such tensor; else it exists, but cannot be used. The path ends with ":name". */
static int tensor_error(const struct run *run, const struct input *input, const char *name, bool missing)
{
    const char *names[MAX_NAMES];
    const ag_io_array *arrays;
    int64_t count = ag_io_arrays(input->file, &arrays);
    count = count < MAX_NAMES ? count : MAX_NAMES;
    for (int64_t n = 0; n < count; n++) {
        names[n] = arrays[n].name;
    }
    const char *near = missing ? nearest_name(name, names, (size_t)count) : NULL;
    return file_error(run->command, "--%s: '%.*s': %s%s%s%s", input->option,
                      (int)(strlen(input->path) - strlen(name) - 1), input->path, ag_io_last_message(),
                      near ? " (did you mean '" : "", near ? near : "", near ? "'?)" : "");
}

static int open_safetensors(const struct run *run, struct input *input, const char *colon)
{
    size_t length = (size_t)(colon - input->path);
    char *path = malloc(length + 1);
    if (path == NULL) {
        return file_error(run->command, "out of memory");
    }
    memcpy(path, input->path, length);
    path[length] = '\0';
    ag_io_status status = ag_safetensors_open(&input->file, path);
    free(path);
    if (status != AG_IO_OK) {
        return io_error(run, input);
    }
    status = ag_io_find(input->file, colon + 1, &input->array);
    return status == AG_IO_OK ? EXIT_PASS : tensor_error(run, input, colon + 1, status == AG_IO_NOT_FOUND);
}

static int open_input(const struct run *run, struct input *input)
{
    if (input->path == NULL) {
        return EXIT_PASS;
    }
    const char *colon = find_colon(input->path);
    if (colon != NULL) {
        return open_safetensors(run, input, colon);
    }
    if (ends_with(input->path, npy_suffix)) {
        return open_npy(run, input);
    }
    if (ends_with(input->path, safetensors_suffix)) {
        return usage_error(run->command, "--%s: name the tensor: %s:NAME", input->option, input->path);
    }
    return usage_error(run->command, "--%s: '%s' is neither FILE.npy nor FILE.safetensors:NAME",
                       input->option, input->path);
}

int open_inputs(struct run *run)
{
    int status = EXIT_PASS;
    for (enum tensor t = 0; t < T_COUNT && status == EXIT_PASS; t++) {
        status = open_input(run, &run->tensors[t]);
    }
    for (enum list l = 0; l < LIST_COUNT && status == EXIT_PASS; l++) {
        status = open_input(run, &run->lists[l]);
    }
    return status;
}
