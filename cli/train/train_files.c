/* Checks the files of a run before it starts: text, model and plot must be three different files, however their paths
 * are spelt, and an existing model or plot is replaced only with --resume or
 * --overwrite. */
#define _XOPEN_SOURCE 700
#include "train.h"

#include "alloc.h"
#include "usage.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* Does anything of this name exist, even a dangling link? */
static bool exists(const char *path)
{
    struct stat info;
    return lstat(path, &info) == 0;
}

char *train_folder_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    const size_t length = slash == NULL ? 0 : (size_t)(slash - path) + 1;
    char *folder = alloc_or_exit("a path", (int64_t)length + 2, 1);
    memcpy(folder, length > 0 ? path : ".", length > 0 ? length : 1);
    folder[length > 0 ? length : 1] = '\0';
    return folder;
}

/* Returns the file name without the folder. *info describes the folder, if *known. */
static const char *split(const char *path, struct stat *info, bool *known)
{
    const char *slash = strrchr(path, '/');
    char *folder = train_folder_of(path);
    *known = stat(folder, info) == 0;
    free(folder);
    return slash == NULL ? path : slash + 1;
}

/* Are these two names of one file or, if neither exists, the same name in the same folder? */
static bool same_file(const char *a, const char *b)
{
    struct stat of_a, of_b;
    const bool a_exists = stat(a, &of_a) == 0, b_exists = stat(b, &of_b) == 0;
    if (a_exists || b_exists) {
        return a_exists && b_exists && of_a.st_dev == of_b.st_dev && of_a.st_ino == of_b.st_ino;
    }
    bool a_known, b_known;
    const char *a_name = split(a, &of_a, &a_known), *b_name = split(b, &of_b, &b_known);
    if (!a_known || !b_known) {
        return strcmp(a, b) == 0;
    }
    return of_a.st_dev == of_b.st_dev && of_a.st_ino == of_b.st_ino && strcmp(a_name, b_name) == 0;
}

static int check_different(const char *what, const char *path, const char *other_what, const char *other)
{
    if (path == NULL || other == NULL || !same_file(path, other)) {
        return EXIT_PASS;
    }
    return usage_error("train", "%s '%s' and %s '%s' are the same file", what, path, other_what, other);
}

int train_files(const struct train *train)
{
    int status = check_different("--model", train->model, "the text", train->text);
    if (status == EXIT_PASS) {
        status = check_different("--plot", train->plot, "the text", train->text);
    }
    if (status == EXIT_PASS) {
        status = check_different("--plot", train->plot, "--model", train->model);
    }
    if (status != EXIT_PASS || train->resume || train->overwrite) {
        return status;
    }
    if (exists(train->model)) {
        return usage_error("train", "'%s' is there already: --resume continues it, --overwrite starts anew",
                           train->model);
    }
    if (train->plot != NULL && exists(train->plot)) {
        return usage_error("train", "--plot: '%s' is there already: --overwrite replaces it", train->plot);
    }
    return EXIT_PASS;
}
