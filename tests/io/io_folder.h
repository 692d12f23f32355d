/* A temporary folder for tests of files: makes it, lists it, empties it, removes it. */
#ifndef AG_IO_FOLDER_H
#define AG_IO_FOLDER_H

#include "test.h"

#include <dirent.h>
#include <unistd.h>

static char folder[64];

static inline void folder_make(void)
{
    const char *parent = getenv("TMPDIR");
    snprintf(folder, sizeof folder, "%.40s/ag-io-XXXXXX", parent != NULL ? parent : "/tmp");
    test_need(mkdtemp(folder) != NULL, "no folder for temporary files");
}

/* Returns FOLDER/NAME, which stays valid during the next three calls. */
static inline const char *folder_path(const char *name)
{
    static char paths[4][512];
    static int next;
    char *path = paths[next = (next + 1) % 4];
    snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

/* Returns the number of files in the folder; removes them if remove_them. */
static inline int folder_files(int remove_them)
{
    int count = 0;
    DIR *dir = opendir(folder);
    test_need(dir != NULL, "the folder for temporary files is gone");
    for (struct dirent *entry = readdir(dir); entry != NULL; entry = readdir(dir)) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) {
            continue;
        }
        count++;
        if (remove_them && remove(folder_path(entry->d_name)) != 0) {
            printf("cannot remove %s\n", entry->d_name);
        }
    }
    closedir(dir);
    return count;
}

static inline void folder_remove(void)
{
    folder_files(1);
    rmdir(folder);
}

#endif
