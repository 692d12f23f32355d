/* attngrad_io: arrays in .npy and .safetensors files.
 *
 *     ag_io_file *file;
 *     const ag_io_array *x;
 *     if (ag_safetensors_open(&file, "model.safetensors") == AG_IO_OK && ag_io_find(file, "wq", &x) == AG_IO_OK)
 *         ... x->data, x->dtype, x->shape ...
 *     ag_io_close(file);
 *
 * A separate library, libattngrad_io. Rules that hold everywhere:
 *   - A function that can fail returns an ag_io_status; ag_io_last_message() then says in one line, for
 *     this thread, which file it was and what is wrong with it.
 *   - A reader trusts nothing in a file: every length, shape and offset is checked before it is used.
 *   - A file is written to a temporary file, which takes its place when it is complete and on the disk: whatever
 *     happens, the path has either its old contents or its new ones. The file keeps the mode of the one that it
 *     replaces.
 *   - Nothing is printed, no signal handler is installed. */
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
    AG_IO_INVALID_FILE = 2, /* the contents of the file violate its format or are not supported */
    AG_IO_NOT_FOUND = 3,    /* the file has no array of that name */
    AG_IO_SYSTEM = 4,       /* the system refused: no such file, no permission, no space left */
    AG_IO_NO_MEMORY = 5,
    AG_IO_CANCELLED = 6 /* the writer's `cancelled` returned non-zero */
};

/* One line about the last call of this library on this thread that failed. Never NULL. */
AG_API const char *ag_io_last_message(void);

/* The floating-point types have the same values as in ag_dtype. */
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

AG_API size_t ag_io_dtype_size(ag_io_dtype dtype);      /* in bytes; 0 if it is not a dtype */
AG_API const char *ag_io_dtype_name(ag_io_dtype dtype); /* "f32"; "?" if it is not a dtype */

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

/* A key and its value in the metadata of a .safetensors file. This struct will not change. */
typedef struct ag_io_pair {
    const char *key, *value;
} ag_io_pair;

/* Number of elements; -1 if ndim or the shape is invalid, or too large for memory. */
AG_API int64_t ag_io_elements(const ag_io_array *array);

/* ---- Reading ----------------------------------------------------------------------------------- */

typedef struct ag_io_file ag_io_file;

/* Opens a file, reads its header and checks all of it. The bytes of the arrays are mapped, not read, and copied only
 * if they are in Fortran order, big-endian or misaligned. While the file is open, it may be replaced but must not be
 * truncated. *file is NULL on failure. */
AG_API ag_io_status ag_npy_open(ag_io_file **file, const char *path);
AG_API ag_io_status ag_safetensors_open(ag_io_file **file, const char *path);

/* The same for bytes in memory, which the caller owns and which must outlive *file. */
AG_API ag_io_status ag_npy_open_memory(ag_io_file **file, const void *bytes, size_t size);
AG_API ag_io_status ag_safetensors_open_memory(ag_io_file **file, const void *bytes, size_t size);

AG_API void ag_io_close(ag_io_file *file); /* also frees its arrays and metadata; NULL is allowed */

/* Set *arrays to the arrays, in the order of their bytes, and *pairs to the metadata; return how many there are.
 * Tensors of a dtype that this library does not know are left out: for these ag_io_find returns AG_IO_INVALID_FILE,
 * with a message that names the dtype. */
AG_API int64_t ag_io_arrays(const ag_io_file *file, const ag_io_array **arrays);
AG_API int64_t ag_io_metadata(const ag_io_file *file, const ag_io_pair **pairs);

AG_API ag_io_status ag_io_find(const ag_io_file *file, const char *name, const ag_io_array **array);

/* ---- Writing ----------------------------------------------------------------------------------- */

enum {
    /* Temporary files have a name (.attngrad-PID-N.tmp in the folder of the file) from the start. Without this flag,
     * if the file system supports it, they have no name while they are written, and get one only for the moment in
     * which they replace a file. Named files that a killed process left are removed by the next write into that
     * folder. */
    AG_IO_NAMED_TEMPORARY = 1 << 0
};

typedef struct ag_io_writer_options {
    uint32_t struct_size; /* sizeof(ag_io_writer_options) */
    uint32_t flags;       /* AG_IO_NAMED_TEMPORARY */

    /* Called before each megabyte is written and before the files are put in place. If it returns non-zero, writing
     * stops with AG_IO_CANCELLED. NULL: never cancelled. */
    int (*cancelled)(void *ctx);
    void *ctx;
} ag_io_writer_options;

#define AG_IO_WRITER_OPTIONS_INIT                                                                            \
    {                                                                                                        \
        sizeof(ag_io_writer_options), 0, NULL, NULL                                                          \
    }

/* A writer of files that belong together: each is written to a temporary file and synchronised; commit then puts one
 * after another in place. A failure before that leaves all of them as they were. Only one thread may use a writer at
 * a time. options may be NULL. */
typedef struct ag_io_writer ag_io_writer;

AG_API ag_io_status ag_io_writer_create(ag_io_writer **writer, const ag_io_writer_options *options);

/* Adds one file to the writer; if writer is NULL, writes the file and commits it at once. After a failure the writer
 * is as it was before. The names of arrays must differ from each other, and so must the keys of metadata. */
AG_API ag_io_status ag_npy_write(ag_io_writer *writer, const char *path, const ag_io_array *array);
AG_API ag_io_status ag_safetensors_write(ag_io_writer *writer, const char *path, const ag_io_array *arrays,
                                         int64_t count, const ag_io_pair *metadata, int64_t pairs);

/* The same for a file of any format, with these bytes. */
AG_API ag_io_status ag_io_write(ag_io_writer *writer, const char *path, const void *bytes, size_t size);

/* Puts all files in place, in the order in which they were written, and synchronises their folders. No system
 * does that in one step: if the process is killed meanwhile, the first files are new and the others as they were,
 * each of them complete. If a file cannot be put in place, the message names the files that were. The writer is empty
 * afterwards, also after a failure. */
AG_API ag_io_status ag_io_writer_commit(ag_io_writer *writer);

/* Discards files that were not committed. NULL is allowed. */
AG_API void ag_io_writer_destroy(ag_io_writer *writer);

#ifdef __cplusplus
}
#endif

#endif
