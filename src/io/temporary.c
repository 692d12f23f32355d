/* The temporary files of temporary.h. Knows no message and no format. */
#define _GNU_SOURCE
#include "io/temporary.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum { NAME_TRIES = 1000, PROC_SIZE = 32, NAME_SIZE = 64 };

static const char name_start[] = ".attngrad-", name_end[] = ".tmp";

bool agi_io_temporary_place(agi_io_temporary *file, const char *path)
{
    const char *slash = strrchr(path, '/');
    file->folder = slash == NULL   ? strdup(".")
                   : slash == path ? strdup("/")
                                   : strndup(path, (size_t)(slash - path));
    file->name = file->folder != NULL ? malloc(strlen(file->folder) + NAME_SIZE) : NULL;
    return file->name != NULL;
}

static void next_name(agi_io_temporary *file)
{
    static atomic_uint numbers;
    snprintf(file->name, strlen(file->folder) + NAME_SIZE, "%s/%s%ld-%u%s", file->folder, name_start,
             (long)getpid(), atomic_fetch_add(&numbers, 1U), name_end);
}

/* Opens a file without a name. Returns -1 if the file system does not support that. */
static int open_unnamed(const agi_io_temporary *file)
{
#ifdef O_TMPFILE
    /* The name is given later, through /proc. */
    if (access("/proc/self/fd", X_OK) == 0) {
        return open(file->folder, O_TMPFILE | O_WRONLY | O_CLOEXEC, 0666);
    }
#endif
    (void)file;
    return -1;
}

/* Locks the file. Returns false if another process has meanwhile removed it as stale. A file system without
 * locks is no error: no file is ever removed as stale there. */
static bool lock_file(int fd)
{
    struct stat about;
    const bool locked = flock(fd, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK;
    return locked && fstat(fd, &about) == 0 && about.st_nlink > 0;
}

static bool open_named(agi_io_temporary *file)
{
    for (int tries = 0; !file->named && tries < NAME_TRIES; tries++) {
        next_name(file);
        file->fd = open(file->name, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0666);
        file->named = file->fd >= 0 && lock_file(file->fd);
        if (file->fd < 0 && errno != EEXIST) {
            break;
        }
        if (file->fd >= 0 && !file->named) {
            close(file->fd);
            file->fd = -1;
        }
    }
    return file->named;
}

bool agi_io_temporary_open(agi_io_temporary *file, bool named)
{
    file->fd = named ? -1 : open_unnamed(file);
    if (file->fd >= 0) {
        flock(file->fd, LOCK_EX | LOCK_NB);
        return true;
    }
    return open_named(file);
}

static bool link_to(const agi_io_temporary *file, const char *path)
{
    char proc[PROC_SIZE];
    snprintf(proc, sizeof proc, "/proc/self/fd/%d", file->fd);
    return linkat(AT_FDCWD, proc, AT_FDCWD, path, AT_SYMLINK_FOLLOW) == 0;
}

bool agi_io_temporary_name(agi_io_temporary *file)
{
    for (int tries = 0; !file->named && tries < NAME_TRIES; tries++) {
        next_name(file);
        file->named = link_to(file, file->name);
        if (!file->named && errno != EEXIST) {
            break;
        }
    }
    return file->named;
}

bool agi_io_temporary_move(agi_io_temporary *file, const char *path)
{
    if (!file->named) {
        if (link_to(file, path)) {
            return true;
        }
        if (errno != EEXIST || !agi_io_temporary_name(file)) {
            return false;
        }
    }
    file->named = rename(file->name, path) != 0;
    return !file->named;
}

void agi_io_temporary_close(agi_io_temporary *file)
{
    if (file->named) {
        unlink(file->name);
    }
    if (file->fd >= 0) {
        close(file->fd);
    }
    free(file->folder);
    free(file->name);
}

/* ---- Stale files of killed processes ---- */

/* ".attngrad-PID-N.tmp" */
static bool is_ours(const char *name)
{
    static const char digits[] = "0123456789";
    if (strncmp(name, name_start, sizeof name_start - 1) != 0) {
        return false;
    }
    name += sizeof name_start - 1;
    const size_t pid = strspn(name, digits);
    const size_t number = name[pid] == '-' ? strspn(name + pid + 1, digits) : 0;
    return pid > 0 && number > 0 && strcmp(name + pid + 1 + number, name_end) == 0;
}

static void remove_unlocked(int folder, const char *name)
{
    struct stat about;
    const int fd = openat(folder, name, O_WRONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) {
        return;
    }
    if (fstat(fd, &about) == 0 && S_ISREG(about.st_mode) && flock(fd, LOCK_EX | LOCK_NB) == 0) {
        unlinkat(folder, name, 0);
    }
    close(fd);
}

void agi_io_remove_stale(const char *folder)
{
    DIR *dir = opendir(folder);
    if (dir == NULL) {
        return;
    }
    for (struct dirent *entry = readdir(dir); entry != NULL; entry = readdir(dir)) {
        if (is_ours(entry->d_name)) {
            remove_unlocked(dirfd(dir), entry->d_name);
        }
    }
    closedir(dir);
}
