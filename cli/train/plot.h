/* The picture of `attngrad train --plot`: the loss of every step and its running mean, as SVG. */
#ifndef ATTNGRAD_CLI_PLOT_H
#define ATTNGRAD_CLI_PLOT_H

#include <stddef.h>
#include <stdint.h>

/* Returns text of *size bytes, to be freed; NULL if there is no memory. */
char *plot_losses(const char *title, const float *losses, int64_t count, size_t *size);

#endif
