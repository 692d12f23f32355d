/* A file that is to become another one: written in the folder of its place, moved there when it is whole.
 *
 * If the file system can (O_TMPFILE), it has no name while it is written, and none ever if nothing
 * stands in its place; else it is called .attngrad-PID-N.tmp from the start, or for the moment before it
 * replaces a file. Its writer holds a lock on it as long as it lives, so that one that has a name and no
 * lock belongs to a process that was killed, on whatever machine, and can be removed. */
#ifndef AGI_IO_TEMPORARY_H
#define AGI_IO_TEMPORARY_H

#include <stdbool.h>

typedef struct {
    int fd; /* -1: none */
    char *folder;
    char *name; /* room for one, with the folder */
    bool named; /* there is a file of that name */
} agi_io_temporary;

/* Finds the folder of path; false: no memory. close frees what there is in either case. */
bool agi_io_temporary_place(agi_io_temporary *file, const char *path);

/* These return false, and errno says why. */
bool agi_io_temporary_open(agi_io_temporary *file, bool named);
bool agi_io_temporary_name(agi_io_temporary *file); /* gives it a name, if it has none */
bool agi_io_temporary_move(agi_io_temporary *file, const char *path);

void agi_io_temporary_close(agi_io_temporary *file); /* and removes it, if it was not moved */

/* Removes what killed processes left in a folder. What cannot be looked at stays. */
void agi_io_remove_stale(const char *folder);

#endif
