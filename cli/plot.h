/* A loss curve as an SVG file: axes with labels, every step as a thin line, a running mean as a thick one. */
#ifndef ATTNGRAD_CLI_PLOT_H
#define ATTNGRAD_CLI_PLOT_H

#include <stdint.h>

/* Writes it whole, or leaves the old file and prints what is wrong. Returns the exit code. */
int plot_losses(const char *command, const char *path, const char *title, const float *losses, int64_t count);

#endif
