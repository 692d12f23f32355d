/* Keeps a second trainer away from a model: a run holds a lock (flock) on the model's file, which ends with the
 * process, however that ends.
 *
 * Every checkpoint replaces the file, so the lock must move on to the new one. Meanwhile, and while a run looks whether
 * the file is locked, the lock of the folder is held, for a moment only: so nobody sees the new file without its lock.
 * A file system without locks is no error: a second trainer is not noticed there. */
#define _DEFAULT_SOURCE /* flock */
#include "train.h"

#include "usage.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

/* Waits for the lock of the model's folder. Returns its file descriptor, or -1 if there is no such folder: the writer
 * of the checkpoint says why. */
static int lock_folder(const char *model)
{
    char *folder = train_folder_of(model);
    const int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    free(folder);
    while (fd >= 0 && flock(fd, LOCK_EX) != 0 && errno == EINTR) {
    }
    return fd;
}

static void close_file(int fd)
{
    if (fd >= 0) {
        close(fd);
    }
}

/* Is the open file `fd` the one that is locked already? */
static bool same_open_file(int locked, int fd)
{
    struct stat a, b;
    return locked >= 0 && fstat(locked, &a) == 0 && fstat(fd, &b) == 0 && a.st_dev == b.st_dev &&
           a.st_ino == b.st_ino;
}

/* Moves the lock to the file that has the model's name now, if it is a regular file. Returns false if another process
 * has locked that. */
static bool follow(struct train_lock *lock)
{
    struct stat about;
    const int fd = open(lock->model, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &about) != 0 || !S_ISREG(about.st_mode) || same_open_file(lock->file, fd)) {
        close_file(fd);
        return true;
    }
    if (flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
        close(fd);
        return false;
    }
    close_file(lock->file);
    lock->file = fd;
    return true;
}

static int refuse(const struct train_lock *lock)
{
    return run_error("train", "another process is training '%s': wait for its end, or choose another --model",
                     lock->model);
}

int train_lock_begin(struct train_lock *lock, const char *model)
{
    *lock = (struct train_lock){.model = model, .file = -1, .folder = -1};
    const int folder = lock_folder(model);
    const bool locked = follow(lock);
    close_file(folder);
    return locked ? EXIT_PASS : refuse(lock);
}

int train_lock_before_save(struct train_lock *lock)
{
    lock->folder = lock_folder(lock->model);
    if (follow(lock)) {
        return EXIT_PASS;
    }
    train_lock_after_save(lock);
    return refuse(lock);
}

void train_lock_after_save(struct train_lock *lock)
{
    follow(lock);
    close_file(lock->folder);
    lock->folder = -1;
}

void train_lock_end(struct train_lock *lock)
{
    close_file(lock->file);
}
