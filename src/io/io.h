/* What the files of src/io share: the message, the table of number formats, an open file. Nothing here
 * needs libattngrad to be linked. */
#ifndef AGI_IO_H
#define AGI_IO_H

#include "attngrad_io.h"

#include <stdbool.h>

#if defined(__GNUC__)
#define AGI_IO_PRINTF(text, first) __attribute__((format(printf, text, first)))
#else
#define AGI_IO_PRINTF(text, first)
#endif

/* Keeps the message for this thread and returns status. */
ag_io_status agi_io_fail(ag_io_status status, const char *format, ...) AGI_IO_PRINTF(2, 3);
ag_io_status agi_io_no_memory(void);

/* "cannot WHAT 'PATH': " and what errno says. */
ag_io_status agi_io_fail_errno(const char *what, const char *path);

/* Puts "PATH: " before the message of a failure. */
ag_io_status agi_io_blame(ag_io_status status, const char *path);

/* ---- Number formats ---- */

typedef struct {
    ag_io_dtype dtype;
    size_t size;
    const char *name;        /* "f32" */
    const char *npy;         /* "f4": kind and size; NULL if .npy has none */
    const char *safetensors; /* "F32" */
} agi_io_format;

const agi_io_format *agi_io_format_of(ag_io_dtype dtype);         /* NULL: not a dtype */
const agi_io_format *agi_io_format_npy(const char *text);         /* of "f4" */
const agi_io_format *agi_io_format_safetensors(const char *text); /* of "F32" */

/* All that the format knows, for messages: "f8, f4, ...". */
const char *agi_io_known_npy(void);
const char *agi_io_known_safetensors(void);

/* The bytes of an array of this shape, axes of size 0 taken as 1, fit into int64_t; *bytes takes the
 * true number. */
bool agi_io_array_bytes(const ag_io_array *array, int64_t *bytes);

/* What a caller gave to be written is an array. */
ag_io_status agi_io_check_array(const ag_io_array *array);

/* ---- An open file ---- */

/* A tensor whose dtype is not known: it is there, but cannot be handed out. */
typedef struct {
    const char *name, *dtype;
} agi_io_skipped;

struct ag_io_file {
    const unsigned char *bytes;
    size_t size;
    void *map; /* what to unmap; NULL if the bytes are the caller's */

    ag_io_array *arrays; /* [count] */
    void **copies;       /* [count]: an array's own memory, NULL if its data lie in bytes */
    int64_t count;
    agi_io_skipped *skipped; /* [skipped_count] */
    int64_t skipped_count;
    ag_io_pair *pairs; /* [pair_count] */
    int64_t pair_count;
    void *json; /* the header, whose strings are the names; NULL for .npy */
};

/* Readers fill arrays, copies, skipped, pairs and json from bytes; what they leave on failure is freed by close. */
typedef ag_io_status (*agi_io_reader)(ag_io_file *file);
ag_io_status agi_io_read_npy(ag_io_file *file);
ag_io_status agi_io_read_safetensors(ag_io_file *file);
void agi_io_release_json(void *json);

/* Room for count arrays and for so many that are skipped, which the reader counts. */
ag_io_status agi_io_reserve(ag_io_file *file, int64_t count, int64_t skipped);

/* How the bytes of an array stand in a file. */
typedef struct {
    bool fortran; /* the first axis runs fastest */
    bool swapped; /* big-endian */
} agi_io_order;

/* Sets arrays[index].data to its bytes at `offset` of the file, or to a copy of them in C order,
 * little-endian and aligned. */
ag_io_status agi_io_place(ag_io_file *file, int64_t index, size_t offset, agi_io_order order);

#endif
