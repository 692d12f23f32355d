/* Making folders, as mkdir -p does. */
#define _XOPEN_SOURCE 700
#include "folders.h"

#include "alloc.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* A new folder is on the disk only after fsync of its parent. A file system that cannot do that returns
 * EINVAL. */
static bool sync_parent(char *path)
{
    char *slash = strrchr(path, '/');
    if (slash != NULL) {
        *slash = '\0';
    }
    const int fd = open(slash == NULL ? "." : slash == path ? "/" : path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    const bool done = fd >= 0 && (fsync(fd) == 0 || errno == EINVAL);
    const int error = errno;
    if (slash != NULL) {
        *slash = '/';
    }
    if (fd >= 0) {
        close(fd);
    }
    errno = error;
    return done;
}

/* Makes the folder f->path, unless it exists. */
static bool make(struct folders *f)
{
    struct stat about;
    if (mkdir(f->path, 0777) == 0) {
        f->made[f->count++] = strlen(f->path);
        return sync_parent(f->path);
    }
    if (errno != EEXIST) {
        return false;
    }
    errno = ENOTDIR; /* the reason if it exists and is no folder; stat sets its own if it fails */
    return stat(f->path, &about) == 0 && S_ISDIR(about.st_mode);
}

bool folders_make(struct folders *folders, const char *path)
{
    const size_t length = strlen(path);
    struct folders *f = folders;
    bool done = true;
    f->path = alloc_or_exit("a path", (int64_t)length + 1, 1);
    f->made = alloc_or_exit("a path", (int64_t)length, sizeof *f->made);
    f->count = 0;
    memcpy(f->path, path, length + 1);
    for (size_t end = 1; done && end <= length; end++) {
        if ((path[end] == '/' || path[end] == '\0') && path[end - 1] != '/') {
            f->path[end] = '\0';
            done = make(f);
            f->path[end] = path[end];
        }
    }
    const int error = errno;
    if (!done) {
        folders_unmake(f);
    }
    errno = error;
    return done;
}

void folders_unmake(struct folders *folders)
{
    while (folders->count > 0) {
        folders->path[folders->made[--folders->count]] = '\0';
        rmdir(folders->path);
    }
}

void folders_free(struct folders *folders)
{
    free(folders->path);
    free(folders->made);
}
