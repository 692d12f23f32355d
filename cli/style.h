/* Colours: escape codes if the output is a terminal that supports them and NO_COLOR is unset, else empty
 * strings, so that the same code prints both. */
#ifndef ATTNGRAD_CLI_STYLE_H
#define ATTNGRAD_CLI_STYLE_H

#include <stdio.h>

struct style {
    const char *strong, *faint, *good, *bad, *reset;
};

struct style style_of(FILE *file);

#endif
