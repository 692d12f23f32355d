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

/* Stores the message for this thread. Returns status. */
ag_io_status agi_io_fail(ag_io_status status, const char *format, ...) AGI_IO_PRINTF(2, 3);
ag_io_status agi_io_no_memory(void);

/* Fails with "cannot WHAT 'PATH': " and the text of errno. */
ag_io_status agi_io_fail_errno(const char *what, const char *path);

/* Puts "PATH: " before the message of a failure. Returns status. */
ag_io_status agi_io_blame(ag_io_status status, const char *path);

/* ---- Number formats ---- */

typedef struct {
    ag_io_dtype dtype;
    size_t size;
    const char *name;        /* "f32" */
    const char *npy;         /* "f4": kind and size; NULL if .npy has no such format */
    const char *safetensors; /* "F32" */
} agi_io_format;

const agi_io_format *agi_io_format_of(ag_io_dtype dtype);         /* NULL: not a dtype */
const agi_io_format *agi_io_format_npy(const char *text);         /* for "f4" */
const agi_io_format *agi_io_format_safetensors(const char *text); /* for "F32" */

/* All formats that a file format knows, for messages: "f8 f4 ...". */
const char *agi_io_known_npy(void);
const char *agi_io_known_safetensors(void);

/* Sets *bytes to the size of the array in bytes. Returns false if the product of the element size and of all
 * axes, with axes of size 0 taken as 1, exceeds INT64_MAX. */
bool agi_io_array_bytes(const ag_io_array *array, int64_t *bytes);

/* Checks an array that a caller gave to be written. */
ag_io_status agi_io_check_array(const ag_io_array *array);

/* ---- An open file ---- */

/* A tensor of an unknown dtype: its name is kept, but it cannot be read. */
typedef struct {
    const char *name, *dtype;
} agi_io_skipped;

struct ag_io_file {
    const unsigned char *bytes;
    size_t size;
    void *map; /* the mapping to unmap; NULL if the bytes are the caller's */

    ag_io_array *arrays; /* [count] */
    void **copies;       /* [count]: memory of the array's copy; NULL if its data is in bytes */
    int64_t count;
    agi_io_skipped *skipped; /* [skipped_count] */
    int64_t skipped_count;
    ag_io_pair *pairs; /* [pair_count] */
    int64_t pair_count;
    void *json; /* the parsed header, which owns the names; NULL for .npy */
};

/* A reader fills in arrays, copies, skipped, pairs and json from bytes; after a failure, close frees what it
 * has made. */
typedef ag_io_status (*agi_io_reader)(ag_io_file *file);
ag_io_status agi_io_read_npy(ag_io_file *file);
ag_io_status agi_io_read_safetensors(ag_io_file *file);
void agi_io_release_json(void *json);

/* Allocates count arrays and `skipped` skipped tensors. */
ag_io_status agi_io_reserve(ag_io_file *file, int64_t count, int64_t skipped);

/* The order of an array's elements and bytes in a file. */
typedef struct {
    bool fortran; /* the first axis runs fastest */
    bool swapped; /* big-endian */
} agi_io_order;

/* Sets arrays[index].data to its bytes at `offset` of the file, or to a copy of them in C order,
 * little-endian and aligned. */
ag_io_status agi_io_set_data(ag_io_file *file, int64_t index, size_t offset, agi_io_order order);

#endif
