/* Files that are whole or not there. Each is written into a temporary file in its own folder and
 * synchronised; commit renames all of them into place and synchronises the folders.
 *
 * Where the file system can (O_TMPFILE), the temporary file has no name until it is whole, so that even a
 * killed process leaves nothing behind; elsewhere it is called .attngrad-PID-N.tmp from the start. */
#define _GNU_SOURCE
#include "writer.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { CHUNK = 1 << 20, NAME_TRIES = 1000, PROC_SIZE = 32, TEMPORARY_SIZE = 64 };

/* A file that is written and not yet in its place. */
typedef struct {
    int fd;
    char *path;
    char *folder;
    char *temporary; /* room for its name */
    bool named;      /* there is a file of that name */
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

/* What must not be renamed over: a directory, and above all a device. */
static ag_io_status check_target(const char *path)
{
    struct stat about;
    size_t length = strlen(path);
    if (length == 0 || path[length - 1] == '/') {
        return agi_io_fail(AG_IO_SYSTEM, "cannot write '%s': it is not the name of a file", path);
    }
    if (stat(path, &about) != 0) {
        return errno == ENOENT ? AG_IO_OK : agi_io_fail_errno("write", path);
    }
    if (!S_ISREG(about.st_mode)) {
        return agi_io_fail(AG_IO_SYSTEM, "cannot write '%s': it is %s", path,
                           S_ISDIR(about.st_mode) ? "a directory" : "not a regular file");
    }
    return AG_IO_OK;
}

static bool set_names(pending *file, const char *path)
{
    const char *slash = strrchr(path, '/');
    file->path = strdup(path);
    file->folder = slash == NULL   ? strdup(".")
                   : slash == path ? strdup("/")
                                   : strndup(path, (size_t)(slash - path));
    file->temporary = file->folder != NULL ? malloc(strlen(file->folder) + TEMPORARY_SIZE) : NULL;
    return file->path != NULL && file->temporary != NULL;
}

static void next_name(pending *file)
{
    static atomic_uint numbers;
    snprintf(file->temporary, strlen(file->folder) + TEMPORARY_SIZE, "%s/.attngrad-%ld-%u.tmp", file->folder,
             (long)getpid(), atomic_fetch_add(&numbers, 1U));
}

/* A file without a name; -1 where the file system has no such thing. */
static int open_unnamed(const pending *file)
{
#ifdef O_TMPFILE
    /* The name is later given through /proc. */
    if (access("/proc/self/fd", X_OK) == 0) {
        return open(file->folder, O_TMPFILE | O_WRONLY | O_CLOEXEC, 0666);
    }
#endif
    (void)file;
    return -1;
}

static ag_io_status open_temporary(const ag_io_writer *writer, pending *file)
{
    file->fd = writer->options.flags & AG_IO_NAMED_TEMPORARY ? -1 : open_unnamed(file);
    for (int tries = 0; file->fd < 0 && tries < NAME_TRIES; tries++) {
        next_name(file);
        file->fd = open(file->temporary, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0666);
        file->named = file->fd >= 0;
        if (file->fd < 0 && errno != EEXIST) {
            break;
        }
    }
    return file->fd < 0 ? agi_io_fail_errno("write", file->path) : AG_IO_OK;
}

static ag_io_status write_part(const ag_io_writer *writer, const pending *file, const agi_io_part *part)
{
    const char *data = part->data;
    size_t left = part->size;
    while (left > 0) {
        if (is_cancelled(writer)) {
            return cancelled();
        }
        ssize_t written = write(file->fd, data, left < CHUNK ? left : CHUNK);
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

static ag_io_status fill(const ag_io_writer *writer, pending *file, const agi_io_part *parts, int64_t count)
{
    ag_io_status status = open_temporary(writer, file);
    for (int64_t n = 0; n < count && status == AG_IO_OK; n++) {
        status = write_part(writer, file, &parts[n]);
    }
    if (status == AG_IO_OK && fsync(file->fd) != 0) {
        status = agi_io_fail_errno("write", file->path);
    }
    return status;
}

static void discard(pending *file)
{
    if (file->fd >= 0) {
        close(file->fd);
    }
    if (file->named) {
        unlink(file->temporary);
    }
    free(file->path);
    free(file->folder);
    free(file->temporary);
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

static ag_io_status add_file(ag_io_writer *writer, const char *path, const agi_io_part *parts, int64_t count)
{
    pending file = {.fd = -1};
    if (is_pending(writer, path)) {
        return agi_io_fail(AG_IO_INVALID_ARGUMENT, "'%s' is written twice", path);
    }
    ag_io_status status = check_target(path);
    if (status != AG_IO_OK) {
        return status;
    }
    pending *files = realloc(writer->files, ((size_t)writer->count + 1) * sizeof *files);
    if (files == NULL) {
        return agi_io_no_memory();
    }
    writer->files = files;
    status = set_names(&file, path) ? fill(writer, &file, parts, count) : agi_io_no_memory();
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

/* A file without a name gets its temporary one: it can then be renamed over another. */
static ag_io_status give_name(pending *file)
{
    char proc[PROC_SIZE];
    snprintf(proc, sizeof proc, "/proc/self/fd/%d", file->fd);
    for (int tries = 0; !file->named && tries < NAME_TRIES; tries++) {
        next_name(file);
        file->named = linkat(AT_FDCWD, proc, AT_FDCWD, file->temporary, AT_SYMLINK_FOLLOW) == 0;
        if (!file->named && errno != EEXIST) {
            break;
        }
    }
    return file->named ? AG_IO_OK : agi_io_fail_errno("write", file->path);
}

static ag_io_status give_names(ag_io_writer *writer)
{
    ag_io_status status = AG_IO_OK;
    for (int64_t n = 0; n < writer->count && status == AG_IO_OK; n++) {
        status = give_name(&writer->files[n]);
    }
    return status == AG_IO_OK && is_cancelled(writer) ? cancelled() : status;
}

static ag_io_status put_in_place(ag_io_writer *writer)
{
    for (int64_t n = 0; n < writer->count; n++) {
        pending *file = &writer->files[n];
        if (rename(file->temporary, file->path) != 0) {
            return agi_io_fail(AG_IO_SYSTEM, "cannot write '%s': %s; %lld of %lld files are in place",
                               file->path, strerror(errno), (long long)n, (long long)writer->count);
        }
        file->named = false;
    }
    return AG_IO_OK;
}

/* File systems that cannot synchronise a folder say EINVAL. */
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
        const char *folder = writer->files[n].folder;
        if (n == 0 || strcmp(folder, writer->files[n - 1].folder) != 0) {
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
    ag_io_status status = give_names(writer);
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

/* The options of a caller built with an older or a newer header: fields that it does not have are zero,
 * fields that are not known here must be. */
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
