/* Memory of the command. A command that has none left can do nothing but end. */
#ifndef ATTNGRAD_CLI_ALLOC_H
#define ATTNGRAD_CLI_ALLOC_H

#include <stddef.h>
#include <stdint.h>

/* Allocates count elements of `size` bytes each, to be freed by free(); never returns NULL: if there is no memory,
 * prints one line, with the array's name `what` and its size, and a hint, and exits with 2. */
void *alloc_or_exit(const char *what, int64_t count, size_t size);

#endif
