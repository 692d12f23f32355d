/* The options --backend and --device of the commands that run maps. */
#ifndef ATTNGRAD_CLI_BACKEND_H
#define ATTNGRAD_CLI_BACKEND_H

#include "attngrad.h"

enum { MAX_DEVICE = 1023 };

struct backend_choice {
    const char *name; /* NULL: the library chooses */
    int64_t device;   /* its number; -1: not given */
};

/* Sets options->backend and options->device. Returns 0, or prints what is wrong and returns EXIT_USAGE. */
int choose_backend(const char *command, const struct backend_choice *choice, ag_options *options);

#endif
