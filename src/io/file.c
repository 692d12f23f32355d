/* An open file: maps its bytes, finds its arrays, closes it. Knows no file format. */
#define _POSIX_C_SOURCE 200809L
#include "io/io.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* Maps all of an open regular file. An empty file has nothing to map. */
static ag_io_status map_bytes(ag_io_file *file, int fd, const char *path)
{
    struct stat about;
    if (fstat(fd, &about) != 0) {
        return agi_io_fail_errno("read", path);
    }
    if (S_ISDIR(about.st_mode)) {
        return agi_io_fail(AG_IO_SYSTEM, "cannot read '%s': it is a directory", path);
    }
    if (!S_ISREG(about.st_mode)) {
        return agi_io_fail(AG_IO_SYSTEM, "cannot read '%s': it is not a regular file", path);
    }
    if (about.st_size == 0) {
        return AG_IO_OK;
    }
    if ((uintmax_t)about.st_size > PTRDIFF_MAX) {
        errno = EFBIG;
        return agi_io_fail_errno("read", path);
    }
    void *map = mmap(NULL, (size_t)about.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (map == MAP_FAILED) {
        return agi_io_fail_errno("map", path);
    }
    file->map = map;
    file->bytes = map;
    file->size = (size_t)about.st_size;
    return AG_IO_OK;
}

static ag_io_status map_file(ag_io_file *file, const char *path)
{
    /* Without O_NONBLOCK, open would wait for the writer of a named pipe, which is refused afterwards. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) {
        return agi_io_fail_errno("open", path);
    }
    ag_io_status status = map_bytes(file, fd, path);
    close(fd);
    return status;
}

/* path NULL: the bytes are given by the caller. */
static ag_io_status open_file(ag_io_file **out, const char *path, const void *bytes, size_t size,
                              agi_io_reader read)
{
    if (out == NULL) {
        return agi_io_fail(AG_IO_INVALID_ARGUMENT, "file is NULL");
    }
    ag_io_file *file = calloc(1, sizeof *file);
    *out = NULL;
    if (file == NULL) {
        return agi_io_no_memory();
    }
    file->bytes = bytes;
    file->size = size;
    ag_io_status status = path != NULL ? map_file(file, path) : AG_IO_OK;
    if (status == AG_IO_OK) {
        status = read(file);
        status = status != AG_IO_OK && path != NULL ? agi_io_blame(status, path) : status;
    }
    if (status != AG_IO_OK) {
        ag_io_close(file);
        return status;
    }
    *out = file;
    return AG_IO_OK;
}

static ag_io_status open_path(ag_io_file **file, const char *path, agi_io_reader read)
{
    if (path == NULL) {
        return agi_io_fail(AG_IO_INVALID_ARGUMENT, "path is NULL");
    }
    return open_file(file, path, NULL, 0, read);
}

static ag_io_status open_memory(ag_io_file **file, const void *bytes, size_t size, agi_io_reader read)
{
    if ((bytes == NULL && size > 0) || size > PTRDIFF_MAX) {
        return agi_io_fail(AG_IO_INVALID_ARGUMENT, "bytes is NULL, or size is %zu", size);
    }
    return open_file(file, NULL, bytes, size, read);
}

ag_io_status ag_npy_open(ag_io_file **file, const char *path)
{
    return open_path(file, path, agi_io_read_npy);
}

ag_io_status ag_safetensors_open(ag_io_file **file, const char *path)
{
    return open_path(file, path, agi_io_read_safetensors);
}

ag_io_status ag_npy_open_memory(ag_io_file **file, const void *bytes, size_t size)
{
    return open_memory(file, bytes, size, agi_io_read_npy);
}

ag_io_status ag_safetensors_open_memory(ag_io_file **file, const void *bytes, size_t size)
{
    return open_memory(file, bytes, size, agi_io_read_safetensors);
}

ag_io_status agi_io_reserve(ag_io_file *file, int64_t count, int64_t skipped)
{
    size_t room = count > 0 ? (size_t)count : 1;
    file->arrays = calloc(room, sizeof *file->arrays);
    file->copies = calloc(room, sizeof *file->copies);
    file->skipped = calloc((size_t)skipped + 1, sizeof *file->skipped);
    if (file->arrays == NULL || file->copies == NULL || file->skipped == NULL) {
        return agi_io_no_memory();
    }
    file->count = count;
    return AG_IO_OK;
}

void ag_io_close(ag_io_file *file)
{
    if (file == NULL) {
        return;
    }
    for (int64_t n = 0; n < file->count; n++) {
        free(file->copies[n]);
    }
    if (file->map != NULL) {
        munmap(file->map, file->size);
    }
    if (file->json != NULL) {
        agi_io_release_json(file->json);
    }
    free(file->arrays);
    free(file->copies);
    free(file->skipped);
    free(file->pairs);
    free(file);
}

int64_t ag_io_arrays(const ag_io_file *file, const ag_io_array **arrays)
{
    *arrays = file != NULL ? file->arrays : NULL;
    return file != NULL ? file->count : 0;
}

int64_t ag_io_metadata(const ag_io_file *file, const ag_io_pair **pairs)
{
    *pairs = file != NULL ? file->pairs : NULL;
    return file != NULL ? file->pair_count : 0;
}

ag_io_status ag_io_find(const ag_io_file *file, const char *name, const ag_io_array **array)
{
    if (file == NULL || name == NULL || array == NULL) {
        return agi_io_fail(AG_IO_INVALID_ARGUMENT, "file, name or array is NULL");
    }
    *array = NULL;
    for (int64_t n = 0; n < file->count; n++) {
        if (strcmp(file->arrays[n].name, name) == 0) {
            *array = &file->arrays[n];
            return AG_IO_OK;
        }
    }
    for (int64_t n = 0; n < file->skipped_count; n++) {
        if (strcmp(file->skipped[n].name, name) == 0) {
            return agi_io_fail(AG_IO_INVALID_FILE, "tensor '%s': unknown dtype '%.24s'; known are %s", name,
                               file->skipped[n].dtype, agi_io_known_safetensors());
        }
    }
    return agi_io_fail(AG_IO_NOT_FOUND, "there is no tensor '%s'", name);
}
