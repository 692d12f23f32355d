/* Writes the results. All files are written to temporary files before the first is put in place. A signal that would
 * end the program cancels the writing first, so that no temporary file is left. */
#include "files.h"

#include "alloc.h"
#include "folders.h"
#include "signals.h"
#include "usage.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int is_stopped(void *ctx)
{
    (void)ctx;
    return signals_held() > 0;
}

struct results {
    ag_io_array arrays[T_COUNT + 1]; /* + 1: so */
    int64_t count;
    bool one_file; /* for bf16, which .npy does not have */
};

static void add_result(struct results *results, ag_io_array array, const void *data)
{
    array.data = data;
    results->arrays[results->count++] = array;
}

static void list_results(const struct run *run, struct results *results)
{
    results->count = 0;
    results->one_file = run->p->dtype == AG_BF16;
    for (enum tensor t = 0; t < T_COUNT; t++) {
        if (run->results[t] != NULL) {
            add_result(results, file_array(run, t), run->results[t]);
        }
    }
    if (run->so_results != NULL) {
        ag_io_array so = file_array(run, T_TO);
        so.name = "so";
        add_result(results, so, run->so_results);
    }
}

static ag_io_status write_into(ag_io_writer *writer, const struct run *run, const struct results *results)
{
    ag_io_status status = AG_IO_OK;
    size_t size = strlen(run->out) + 32;
    char *path = alloc_or_exit("a path", (int64_t)size, 1);
    if (results->one_file) {
        snprintf(path, size, "%s/out.safetensors", run->out);
        status = ag_safetensors_write(writer, path, results->arrays, results->count, NULL, 0);
    }
    for (int64_t n = 0; n < results->count && !results->one_file && status == AG_IO_OK; n++) {
        snprintf(path, size, "%s/%s.npy", run->out, results->arrays[n].name);
        status = ag_npy_write(writer, path, &results->arrays[n]);
    }
    free(path);
    return status;
}

static ag_io_status write_all(const struct run *run, const struct results *results)
{
    ag_io_writer *writer;
    ag_io_writer_options options = AG_IO_WRITER_OPTIONS_INIT;
    options.cancelled = is_stopped;
    ag_io_status status = ag_io_writer_create(&writer, &options);
    if (status == AG_IO_OK) {
        status = write_into(writer, run, results);
    }
    if (status == AG_IO_OK) {
        status = ag_io_writer_commit(writer);
    }
    ag_io_writer_destroy(writer);
    return status;
}

static void print_results(const struct run *run, const struct results *results)
{
    for (int64_t n = 0; n < results->count; n++) {
        char form[160];
        const char *name = results->arrays[n].name;
        describe_array(&results->arrays[n], form, sizeof form);
        printf(results->one_file ? "%s/out.safetensors:%s  %s\n" : "%s/%s.npy  %s\n", run->out, name, form);
    }
}

int save_results(struct run *run)
{
    struct results results;
    struct folders folders;
    int status = EXIT_PASS;
    list_results(run, &results);
    signals_hold();
    if (!folders_make(&folders, run->out)) {
        status = run_error(run->command, "cannot make the folder '%s': %s", run->out, strerror(errno));
    } else if (write_all(run, &results) != AG_IO_OK) {
        status = run_error(run->command, "%s", ag_io_last_message());
        folders_unmake(&folders);
    }
    folders_free(&folders);
    signals_release();
    if (status == EXIT_PASS) {
        print_results(run, &results);
    }
    return status;
}
