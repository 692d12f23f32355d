/* Colour for people: escape codes if the output is a terminal that takes them and NO_COLOR is unset,
 * empty strings everywhere else, so that printing is the same code for both. */
#ifndef ATTNGRAD_CLI_STYLE_H
#define ATTNGRAD_CLI_STYLE_H

#include <stdio.h>

struct style {
    const char *strong, *faint, *good, *bad, *reset;
};

struct style style_of(FILE *file);

#endif
