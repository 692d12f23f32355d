/* Making a folder and those of its parents that are missing. */
#ifndef ATTNGRAD_CLI_FOLDERS_H
#define ATTNGRAD_CLI_FOLDERS_H

#include <stdbool.h>
#include <stddef.h>

struct folders {
    char *path;
    size_t *made; /* lengths of the beginnings of path that were made */
    int count;
};

/* Makes what is missing of path and has it on the disk. False: errno says why, and those that were made are
 * gone again. folders_free in either case. */
bool folders_make(struct folders *folders, const char *path);

void folders_unmake(struct folders *folders); /* removes those that were made, as far as they are empty */
void folders_free(struct folders *folders);

#endif
