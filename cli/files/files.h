/* `attngrad forward | grad | jvp | hvp`: one call of the library on arrays from files; its results are written to
 * files. The steps, one per file, return 0, or print what is wrong and return the exit code:
 *
 *     files_options   the words of the command line
 *     files_inputs    opens the files and finds the arrays
 *     files_problem   derives the problem from their shapes and checks every array against it
 *     files_maps      memory for the results; the maps
 *     files_save      the results' files, all prepared before the first is put in place */
#ifndef ATTNGRAD_CLI_FILES_H
#define ATTNGRAD_CLI_FILES_H

#include "check/arrays.h"
#include "usage.h"

#include <attngrad_io.h>
#include <stdbool.h>

/* Inputs that are not tensors of a map. */
enum list {
    LIST_BUCKETS,
    LIST_Q_LENGTHS,
    LIST_KV_LENGTHS,
    LIST_Q_PACKED,
    LIST_K_PACKED,
    LIST_SLOPES,
    LIST_COUNT
};

/* An array from a file. option: its name on the command line; path NULL: not given. */
struct input {
    const char *option;
    const char *path; /* "x.npy" or "x.safetensors:name" */
    ag_io_file *file;
    const ag_io_array *array;
};

struct run {
    const char *command;
    uint32_t maps; /* AG_MAP_*: the maps to run */

    struct input tensors[T_COUNT]; /* option NULL: not an input of this command */
    struct input lists[LIST_COUNT];
    const char *out; /* folder of the results */
    const char *causal, *alibi;
    double scale, softcap, dropout; /* scale NaN: not given */
    uint64_t seed;
    bool window;
    int64_t window_left, window_right;
    int64_t q_offset, k_offset, threads;
    bool help;

    ag_problem problem;
    ag_plan *plan;
    const ag_problem *p; /* the plan's */
    ag_args args;
    int64_t *integers[LIST_COUNT]; /* the lists of whole numbers */
    int32_t *buckets;
    double *slopes;
    void *results[T_COUNT];
};

int run_options(struct run *run, int argc, char **argv);
int run_inputs(struct run *run);
int run_problem(struct run *run);
int run_lists(struct run *run); /* a part of run_problem: converts the lists to the types of the library */
int run_maps(struct run *run);
int run_save(struct run *run);
void run_free(struct run *run);

ag_tensor *run_tensor(struct run *run, enum tensor t); /* &run->args.q and so on */

/* Returns an array with the dtype, ndim and shape that tensor t has in a file. */
ag_io_array run_file_array(const struct run *run, enum tensor t);

/* Prints "--k: 'k.npy' " and what is wrong with it, like file_error. */
int run_input_error(const struct run *run, const struct input *input, const char *format, ...)
    CLI_PRINTF(3, 4);

/* Prints what the library refused last, with the option and the file that it came from; like file_error if
 * there is a file, else like usage_error. */
int run_library_error(const struct run *run);

/* Writes "f32 [2, 3]", an array's dtype and shape, into text[size]. */
void run_describe(const ag_io_array *array, char *text, size_t size);

#endif
