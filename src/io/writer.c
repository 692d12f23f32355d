/* Writes files that are complete or absent. Each is written to a temporary file in its own folder
 * (temporary.h) and synchronised; commit puts all of them into place and synchronises the folders. */
#define _GNU_SOURCE
#include "io/temporary.h"
#include "io/writer.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { CHUNK = 1 << 20, LIST_SIZE = 512 };

/* A file that is written and not yet in its place. */
typedef struct {
    agi_io_temporary temporary;
    char *path;
} pending;

struct ag_io_writer {
    ag_io_writer_options options;
    pending *files;
    int64_t count;
};

static bool is_cancelled(const ag_io_writer *writer)
{
    return writer->options.cancelled != NULL && writer->options.cancelled(writer->options.ctx) != 0;
}

static ag_io_status cancelled(void)
{
    return agi_io_fail(AG_IO_CANCELLED, "the writing was cancelled");
}

/* ---- One temporary file ---- */

/* Refuses a target that must not be renamed over: a directory, and above all a device. *exists: does the
 * target exist? Then *about describes it. */
static ag_io_status check_target(const char *path, struct stat *about, bool *exists)
{
    size_t length = strlen(path);
    *exists = false;
    if (length == 0 || path[length - 1] == '/') {
        return agi_io_fail(AG_IO_SYSTEM, "cannot write '%s': it is not the name of a file", path);
    }
    if (stat(path, about) != 0) {
        return errno == ENOENT ? AG_IO_OK : agi_io_fail_errno("write", path);
    }
    if (!S_ISREG(about->st_mode)) {
        return agi_io_fail(AG_IO_SYSTEM, "cannot write '%s': it is %s", path,
                           S_ISDIR(about->st_mode) ? "a directory" : "not a regular file");
    }
    *exists = true;
    return AG_IO_OK;
}

/* Gives the new file the owner, group and mode of the old one. If the group cannot be set, the group gets no
 * access, so that nobody can read the new file who could not read the old one. */
static bool keep_access(int fd, const struct stat *old)
{
    struct stat mine;
    mode_t mode = old->st_mode & 0777;
    if (fstat(fd, &mine) != 0) {
        return false;
    }
    const bool differs = mine.st_uid != old->st_uid || mine.st_gid != old->st_gid;
    if (differs && fchown(fd, old->st_uid, old->st_gid) != 0 && fchown(fd, (uid_t)-1, old->st_gid) != 0) {
        mode &= ~(mode_t)070;
    }
    return mode == (mine.st_mode & 0777) || fchmod(fd, mode) == 0;
}

static ag_io_status write_part(const ag_io_writer *writer, const pending *file, const agi_io_part *part)
{
    const char *data = part->data;
    size_t left = part->size;
    while (left > 0) {
        if (is_cancelled(writer)) {
            return cancelled();
        }
        ssize_t written = write(file->temporary.fd, data, left < CHUNK ? left : CHUNK);
        if (written < 0 && errno == EINTR) {
            continue;
        }
        if (written <= 0) {
            errno = written == 0 ? ENOSPC : errno;
            return agi_io_fail_errno("write", file->path);
        }
        data += written;
        left -= (size_t)written;
    }
    return AG_IO_OK;
}

/* old: the file to be replaced, or NULL. Its mode is set before the first byte is written. */
static ag_io_status fill(const ag_io_writer *writer, pending *file, const struct stat *old,
                         const agi_io_part *parts, int64_t count)
{
    ag_io_status status = AG_IO_OK;
    if (!agi_io_temporary_open(&file->temporary, writer->options.flags & AG_IO_NAMED_TEMPORARY) ||
        (old != NULL && !keep_access(file->temporary.fd, old))) {
        return agi_io_fail_errno("write", file->path);
    }
    for (int64_t n = 0; n < count && status == AG_IO_OK; n++) {
        status = write_part(writer, file, &parts[n]);
    }
    if (status == AG_IO_OK && fsync(file->temporary.fd) != 0) {
        status = agi_io_fail_errno("write", file->path);
    }
    return status;
}

static void discard(pending *file)
{
    agi_io_temporary_close(&file->temporary);
    free(file->path);
}

/* ---- All of them ---- */

static bool is_pending(const ag_io_writer *writer, const char *path)
{
    for (int64_t n = 0; n < writer->count; n++) {
        if (strcmp(writer->files[n].path, path) == 0) {
            return true;
        }
    }
    return false;
}

/* Returns whether no pending file is in the folder. */
static bool is_new_folder(const ag_io_writer *writer, const char *folder)
{
    for (int64_t n = 0; n < writer->count; n++) {
        if (strcmp(writer->files[n].temporary.folder, folder) == 0) {
            return false;
        }
    }
    return true;
}

static ag_io_status add_file(ag_io_writer *writer, const char *path, const agi_io_part *parts, int64_t count)
{
    pending file = {.temporary = {.fd = -1}};
    struct stat old;
    bool exists;
    if (is_pending(writer, path)) {
        return agi_io_fail(AG_IO_INVALID_ARGUMENT, "'%s' is written twice", path);
    }
    ag_io_status status = check_target(path, &old, &exists);
    if (status != AG_IO_OK) {
        return status;
    }
    pending *files = realloc(writer->files, ((size_t)writer->count + 1) * sizeof *files);
    if (files == NULL) {
        return agi_io_no_memory();
    }
    writer->files = files;
    file.path = strdup(path);
    if (file.path == NULL || !agi_io_temporary_place(&file.temporary, path)) {
        status = agi_io_no_memory();
    }
    if (status == AG_IO_OK && is_new_folder(writer, file.temporary.folder)) {
        agi_io_remove_stale(file.temporary.folder);
    }
    status = status == AG_IO_OK ? fill(writer, &file, exists ? &old : NULL, parts, count) : status;
    if (status != AG_IO_OK) {
        discard(&file);
        return status;
    }
    files[writer->count++] = file;
    return AG_IO_OK;
}

ag_io_status agi_io_write(ag_io_writer *writer, const char *path, const agi_io_part *parts, int64_t count)
{
    if (path == NULL) {
        return agi_io_fail(AG_IO_INVALID_ARGUMENT, "path is NULL");
    }
    if (writer != NULL) {
        return add_file(writer, path, parts, count);
    }
    ag_io_writer own = {.options = AG_IO_WRITER_OPTIONS_INIT};
    ag_io_status status = add_file(&own, path, parts, count);
    if (status == AG_IO_OK) {
        status = ag_io_writer_commit(&own);
    }
    free(own.files);
    return status;
}

/* A file that replaces another one must have a name, to be renamed; a new one is linked into its place
 * without one. */
static ag_io_status prepare(const ag_io_writer *writer)
{
    struct stat about;
    bool exists;
    ag_io_status status = AG_IO_OK;
    for (int64_t n = 0; n < writer->count && status == AG_IO_OK; n++) {
        status = check_target(writer->files[n].path, &about, &exists);
    }
    if (status == AG_IO_OK && is_cancelled(writer)) {
        return cancelled();
    }
    for (int64_t n = 0; n < writer->count && status == AG_IO_OK; n++) {
        pending *file = &writer->files[n];
        if (lstat(file->path, &about) == 0 && !agi_io_temporary_name(&file->temporary)) {
            status = agi_io_fail_errno("write", file->path);
        }
    }
    return status;
}

/* Writes "; 2 of 3 files are in place: 'o.npy', 'lse.npy'", with the first names in the order of writing;
 * nothing if there is only one file. */
static void list_placed(const ag_io_writer *writer, int64_t placed, char text[LIST_SIZE])
{
    text[0] = '\0';
    if (writer->count == 1) {
        return;
    }
    size_t used = (size_t)snprintf(text, LIST_SIZE, "; %lld of %lld files are in place%s", (long long)placed,
                                   (long long)writer->count, placed > 0 ? ":" : "");
    for (int64_t n = 0; n < placed && used < LIST_SIZE; n++) {
        const char *path = writer->files[n].path, *slash = strrchr(path, '/');
        const int added = snprintf(text + used, LIST_SIZE - used, "%s '%s'", n > 0 ? "," : "",
                                   slash != NULL ? slash + 1 : path);
        used += added > 0 ? (size_t)added : 0;
    }
}

static ag_io_status put_in_place(ag_io_writer *writer)
{
    for (int64_t n = 0; n < writer->count; n++) {
        pending *file = &writer->files[n];
        if (!agi_io_temporary_move(&file->temporary, file->path)) {
            const int error = errno;
            char placed[LIST_SIZE];
            list_placed(writer, n, placed);
            return agi_io_fail(AG_IO_SYSTEM, "cannot write '%s': %s%s", file->path, strerror(error), placed);
        }
    }
    return AG_IO_OK;
}

/* A file system that cannot synchronise a folder returns EINVAL. */
static ag_io_status sync_folder(const char *folder)
{
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    bool failed = fd < 0 || (fsync(fd) != 0 && errno != EINVAL);
    ag_io_status status = failed ? agi_io_fail_errno("synchronise the folder", folder) : AG_IO_OK;
    if (fd >= 0) {
        close(fd);
    }
    return status;
}

static ag_io_status sync_folders(const ag_io_writer *writer)
{
    ag_io_status status = AG_IO_OK;
    for (int64_t n = 0; n < writer->count && status == AG_IO_OK; n++) {
        const char *folder = writer->files[n].temporary.folder;
        if (n == 0 || strcmp(folder, writer->files[n - 1].temporary.folder) != 0) {
            status = sync_folder(folder);
        }
    }
    return status;
}

ag_io_status ag_io_writer_commit(ag_io_writer *writer)
{
    if (writer == NULL) {
        return agi_io_fail(AG_IO_INVALID_ARGUMENT, "writer is NULL");
    }
    ag_io_status status = prepare(writer);
    if (status == AG_IO_OK) {
        status = put_in_place(writer);
    }
    if (status == AG_IO_OK) {
        status = sync_folders(writer);
    }
    for (int64_t n = 0; n < writer->count; n++) {
        discard(&writer->files[n]);
    }
    writer->count = 0;
    return status;
}

ag_io_status ag_io_write(ag_io_writer *writer, const char *path, const void *bytes, size_t size)
{
    const agi_io_part part = {bytes, size};
    if (bytes == NULL && size > 0) {
        return agi_io_fail(AG_IO_INVALID_ARGUMENT, "bytes is NULL, size %zu", size);
    }
    return agi_io_write(writer, path, &part, 1);
}

/* Reads the options of a caller that was built with an older or a newer header: fields that the caller does
 * not have are zero, fields that this library does not know must be zero. */
static ag_io_status take_options(ag_io_writer_options *mine, const ag_io_writer_options *given)
{
    const unsigned char *bytes = (const unsigned char *)given;
    size_t size = given->struct_size;
    if (size < offsetof(ag_io_writer_options, cancelled)) {
        return agi_io_fail(AG_IO_INVALID_ARGUMENT, "options: struct_size is %zu", size);
    }
    for (size_t n = sizeof *mine; n < size; n++) {
        if (bytes[n] != 0) {
            return agi_io_fail(AG_IO_INVALID_ARGUMENT, "options: byte %zu is not zero and not known here", n);
        }
    }
    memset(mine, 0, sizeof *mine);
    memcpy(mine, given, size < sizeof *mine ? size : sizeof *mine);
    if (mine->flags & ~(uint32_t)AG_IO_NAMED_TEMPORARY) {
        return agi_io_fail(AG_IO_INVALID_ARGUMENT, "options: flags is %#x", (unsigned)mine->flags);
    }
    return AG_IO_OK;
}

ag_io_status ag_io_writer_create(ag_io_writer **writer, const ag_io_writer_options *options)
{
    const ag_io_writer_options usual = AG_IO_WRITER_OPTIONS_INIT;
    if (writer == NULL) {
        return agi_io_fail(AG_IO_INVALID_ARGUMENT, "writer is NULL");
    }
    *writer = NULL;
    ag_io_writer *made = calloc(1, sizeof *made);
    if (made == NULL) {
        return agi_io_no_memory();
    }
    ag_io_status status = take_options(&made->options, options != NULL ? options : &usual);
    if (status != AG_IO_OK) {
        free(made);
        return status;
    }
    *writer = made;
    return AG_IO_OK;
}

void ag_io_writer_destroy(ag_io_writer *writer)
{
    if (writer == NULL) {
        return;
    }
    for (int64_t n = 0; n < writer->count; n++) {
        discard(&writer->files[n]);
    }
    free(writer->files);
    free(writer);
}
