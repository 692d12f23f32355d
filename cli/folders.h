/* Makes a folder and its missing parents. */
#ifndef ATTNGRAD_CLI_FOLDERS_H
#define ATTNGRAD_CLI_FOLDERS_H

#include <stdbool.h>
#include <stddef.h>

struct folders {
    char *path;
    size_t *made; /* lengths of the prefixes of path that were made */
    int count;
};

/* Makes the missing folders of path and syncs them to the disk. On failure returns false, with the
 * reason in errno, and removes those that it has made. Call folders_free in either case. */
bool folders_make(struct folders *folders, const char *path);

void folders_unmake(struct folders *folders); /* removes those that were made, if they are empty */
void folders_free(struct folders *folders);

#endif
