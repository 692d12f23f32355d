/* `attngrad forward | grad | jvp | jvp2 | hvp`: runs maps on arrays from files and writes the results to files. The
 * steps, one per file, return 0, or print what is wrong and return the exit code:
 *
 *     parse_options    files_options.c    the arguments of the command line
 *     open_inputs      files_inputs.c     opens the files and finds the arrays
 *     derive_problem   files_problem.c    derives the problem from their shapes and checks every array against it
 *     run_maps         files_maps.c       allocates the results and runs the maps
 *     save_results     files_save.c       writes all results before the first is put in place */
#ifndef ATTNGRAD_CLI_FILES_H
#define ATTNGRAD_CLI_FILES_H

#include "backend.h"
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
    LIST_Q_OFFSETS,
    LIST_K_OFFSETS,
    LIST_SLOPES,
    LIST_COUNT
};

/* An array from a file. */
struct input {
    const char *option; /* its name on the command line */
    const char *path;   /* "x.npy" or "x.safetensors:name"; NULL: not given */
    ag_io_file *file;
    const ag_io_array *array;
};

struct option;

/* One run of a command: what was given on the command line, and what the steps make of it. */
struct run {
    const char *command;
    uint32_t maps; /* AG_MAP_*: the maps to run */

    bool is_optional; /* view: runs the maps that it is given the inputs of, or none; and may have one word */
    const char *word; /* that word; NULL: none */

    struct input tensors[T_COUNT]; /* option NULL: not an input of this command */
    struct input lists[LIST_COUNT];
    const char *out;                /* folder of the results */
    const char *causal, *alibi;     /* NULL: not given; "": given without a value */
    const char *align;              /* "top-left" or "bottom-right", from --align or --causal */
    double scale, softcap, dropout; /* scale NaN: not given */
    uint64_t seed;
    bool window; /* given? */
    int64_t window_left, window_right;
    int64_t q_offset, k_offset, threads;
    struct backend_choice backend;
    bool help, invariant;
    const char *feature; /* name of one of the features among these that is given; NULL: none */

    ag_problem problem;
    ag_plan *plan;
    const ag_problem *p; /* the plan's copy of problem, with every default filled in */
    ag_args args;
    int64_t *integers[LIST_COUNT]; /* the lists of integers */
    int32_t *buckets;
    double *slopes;
    void *results[T_COUNT];
    ag_tensor so;     /* jvp2 with a second direction: the tangent of o along it, as to */
    void *so_results; /* its memory; NULL: there is no such direction, or it is the first one */
};

/* own: options of the command besides those of every command on arrays. */
int parse_options(struct run *run, int argc, char **argv, const struct option *own, size_t own_count);
bool any_input(const struct run *run); /* is an array given? */
int open_inputs(struct run *run);
int derive_problem(struct run *run);
int convert_lists(struct run *run); /* a part of derive_problem: the lists in the types of the library */
int run_maps(struct run *run);
int save_results(struct run *run);
void free_run(struct run *run);

ag_tensor *args_tensor(struct run *run, enum tensor t); /* &run->args.q and so on */

/* Returns an array with the dtype, ndim and shape that tensor t has in a file. */
ag_io_array file_array(const struct run *run, enum tensor t);

/* Prints "--k: 'k.npy' " and what is wrong with it, like file_error. */
int input_error(const struct run *run, const struct input *input, const char *format, ...) CLI_PRINTF(3, 4);

/* Prints what the library refused last, with the option and the file that it came from; like file_error if
 * there is a file, else like usage_error. */
int run_library_error(const struct run *run);

/* Writes "f32 [2, 3]", an array's dtype and shape, into text[size]. */
void describe_array(const ag_io_array *array, char *text, size_t size);

#endif
