/* attngrad_io: arrays in .npy and .safetensors files.
 *
 *     ag_io_file *file;
 *     const ag_io_array *x;
 *     if (ag_safetensors_open(&file, "model.safetensors") == AG_IO_OK && ag_io_find(file, "wq", &x) == AG_IO_OK)
 *         ... x->data, x->dtype, x->shape ...
 *     ag_io_close(file);
 *
 * A library of its own, libattngrad_io, beside libattngrad. Rules that hold everywhere:
 *   - A function that can fail returns an ag_io_status; ag_io_last_message() then says in one line, for
 *     this thread, which file it was and what is wrong with it.
 *   - A reader trusts nothing in a file: every length, shape and offset is checked before it is used.
 *   - A file is written beside its place and put there when it is whole and on the disk: whatever
 *     happens, its old contents are there, or its new ones. It keeps the mode of the file that it replaces.
 *   - Nothing is printed, no signal is handled. */
#ifndef ATTNGRAD_IO_H
#define ATTNGRAD_IO_H

#include "attngrad.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef int32_t ag_io_status;
enum {
    AG_IO_OK = 0,
    AG_IO_INVALID_ARGUMENT = 1,
    AG_IO_INVALID_FILE = 2, /* the file's contents are not what its format demands, or not supported */
    AG_IO_NOT_FOUND = 3,    /* the file has no array of that name */
    AG_IO_SYSTEM = 4,       /* the system refused: no such file, no permission, no space left */
    AG_IO_NO_MEMORY = 5,
    AG_IO_CANCELLED = 6 /* the writer's `cancelled` said so */
};

/* One line about the last call of this library on this thread that failed. Never NULL. */
AG_API const char *ag_io_last_message(void);

/* The floats have the numbers that attngrad.h gives them. */
typedef int32_t ag_io_dtype;
enum {
    AG_IO_F64 = 1,
    AG_IO_F32 = 2,
    AG_IO_F16 = 3,
    AG_IO_BF16 = 4, /* .safetensors only */
    AG_IO_I64 = 16,
    AG_IO_I32 = 17,
    AG_IO_U8 = 18,
    AG_IO_BOOL = 19 /* one byte, not zero = true */
};

AG_API size_t ag_io_dtype_size(ag_io_dtype dtype);      /* in bytes; 0 for what is not a dtype */
AG_API const char *ag_io_dtype_name(ag_io_dtype dtype); /* "f32"; "?" for what is not a dtype */

enum { AG_IO_MAX_DIMS = 8 };

/* One array: dense, in C order (the last axis runs fastest), little-endian, data aligned to its element.
 * This struct will not change. */
typedef struct ag_io_array {
    const char *name; /* "" in a .npy file, which has no names */
    const void *data;
    ag_io_dtype dtype;
    int32_t ndim; /* 0 to AG_IO_MAX_DIMS */
    int64_t shape[AG_IO_MAX_DIMS];
} ag_io_array;

/* A line of a .safetensors file's metadata. This struct will not change. */
typedef struct ag_io_pair {
    const char *key, *value;
} ag_io_pair;

/* The number of elements; -1 if ndim or the shape is not that of an array that fits into memory. */
AG_API int64_t ag_io_elements(const ag_io_array *array);

/* ---- Reading ----------------------------------------------------------------------------------- */

typedef struct ag_io_file ag_io_file;

/* Opens a file, reads its header and checks it whole. The arrays' bytes are mapped, not read, and copied
 * only if they are in Fortran order, big-endian or misaligned; the file must not be cut short while
 * it is open, but may be replaced. *file is NULL on failure. */
AG_API ag_io_status ag_npy_open(ag_io_file **file, const char *path);
AG_API ag_io_status ag_safetensors_open(ag_io_file **file, const char *path);

/* The same for bytes in memory, which stay the caller's and must outlive *file. */
AG_API ag_io_status ag_npy_open_memory(ag_io_file **file, const void *bytes, size_t size);
AG_API ag_io_status ag_safetensors_open_memory(ag_io_file **file, const void *bytes, size_t size);

AG_API void ag_io_close(ag_io_file *file); /* NULL is allowed; all that came from file ends with it */

/* The arrays in the order of their bytes, the metadata; both return how many. Tensors of a dtype that is not
 * known here are left out: ag_io_find says AG_IO_INVALID_FILE of one of them, and what its dtype is. */
AG_API int64_t ag_io_arrays(const ag_io_file *file, const ag_io_array **arrays);
AG_API int64_t ag_io_metadata(const ag_io_file *file, const ag_io_pair **pairs);

AG_API ag_io_status ag_io_find(const ag_io_file *file, const char *name, const ag_io_array **array);

/* ---- Writing ----------------------------------------------------------------------------------- */

enum {
    /* Temporary files carry a name (.attngrad-PID-N.tmp in the folder of the file) from the start. Without
     * it, if the file system can do that, they have none while they are written, and get one only for
     * the moment in which they replace a file. What a killed process leaves under such a name is removed by
     * the next writing into that folder. */
    AG_IO_NAMED_TEMPORARY = 1 << 0
};

typedef struct ag_io_writer_options {
    uint32_t struct_size; /* sizeof(ag_io_writer_options) */
    uint32_t flags;       /* AG_IO_NAMED_TEMPORARY */

    /* Asked every megabyte and before the files are put in place; not zero: stop with AG_IO_CANCELLED.
     * NULL: never. */
    int (*cancelled)(void *ctx);
    void *ctx;
} ag_io_writer_options;

#define AG_IO_WRITER_OPTIONS_INIT                                                                            \
    {                                                                                                        \
        sizeof(ag_io_writer_options), 0, NULL, NULL                                                          \
    }

/* Files that belong together: each is written and synchronised beside its place; commit then puts one after
 * the other in place. Until commit does that, whatever fails leaves all of them as they were. A writer
 * belongs to one thread at a time. options may be NULL. */
typedef struct ag_io_writer ag_io_writer;

AG_API ag_io_status ag_io_writer_create(ag_io_writer **writer, const ag_io_writer_options *options);

/* Writes one file into writer; writer NULL: into one of its own, committed at once. After a failure the
 * writer is as it was before. The names of arrays and the keys of metadata must differ. */
AG_API ag_io_status ag_npy_write(ag_io_writer *writer, const char *path, const ag_io_array *array);
AG_API ag_io_status ag_safetensors_write(ag_io_writer *writer, const char *path, const ag_io_array *arrays,
                                         int64_t count, const ag_io_pair *metadata, int64_t pairs);

/* Any other file, of these bytes. */
AG_API ag_io_status ag_io_write(ag_io_writer *writer, const char *path, const void *bytes, size_t size);

/* Puts all files in place, in the order in which they were written, and synchronises their folders. No system
 * does that in one step: a process killed meanwhile leaves the first of them new and the others as they were,
 * each of them whole; if a file cannot be put in place, the message says so and names those that are.
 * The writer is empty afterwards, also if it failed. */
AG_API ag_io_status ag_io_writer_commit(ag_io_writer *writer);

/* Removes what was not committed. NULL is allowed. */
AG_API void ag_io_writer_destroy(ag_io_writer *writer);

#ifdef __cplusplus
}
#endif

#endif
