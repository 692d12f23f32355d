/* A temporary file, written in the folder of its target and moved to the target when it is complete.
 *
 * If the file system supports O_TMPFILE, the file has no name while it is written; it then gets its final
 * name directly if the target does not exist. Else it is called .attngrad-PID-N.tmp, from the start or for
 * the moment before it replaces a file. Its writer holds a lock on it as long as the writer lives. So a file
 * with such a name and without a lock belongs to a process that was killed, on whatever machine, and can be
 * removed. */
#ifndef AGI_IO_TEMPORARY_H
#define AGI_IO_TEMPORARY_H

#include <stdbool.h>

typedef struct {
    int fd; /* -1: none */
    char *folder;
    char *name; /* memory for a name, with the folder */
    bool named; /* does a file of that name exist? */
} agi_io_temporary;

/* Finds the folder of path. Returns false if there is no memory. Call close in either case. */
bool agi_io_temporary_place(agi_io_temporary *file, const char *path);

/* These return false on failure, with the reason in errno. */
bool agi_io_temporary_open(agi_io_temporary *file, bool named);
bool agi_io_temporary_name(agi_io_temporary *file); /* gives it a name, if it has none */
bool agi_io_temporary_move(agi_io_temporary *file, const char *path);

void agi_io_temporary_close(agi_io_temporary *file); /* also removes it, if it was not moved */

/* Removes what killed processes left in a folder. Ignores what it cannot open. */
void agi_io_remove_stale(const char *folder);

#endif
