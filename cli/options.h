/* Reads the options of a command from a table: "--name value" and "--name=value", flags without a value, "--"
 * before positional arguments that start with a dash. */
#ifndef ATTNGRAD_CLI_OPTIONS_H
#define ATTNGRAD_CLI_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum option_kind {
    OPTION_FLAG,    /* value: bool *; takes no value, becomes true */
    OPTION_INTEGER, /* value: int64_t *; from min to max */
    OPTION_SEED,    /* value: uint64_t *; an unsigned 64-bit integer, decimal or 0x... */
    OPTION_NUMBER,  /* value: double *; any finite number */
    OPTION_TEXT,    /* value: const char **; any text that is not empty */
    OPTION_OPTIONAL /* value: const char **; "--name" gives "", "--name=text" the text */
};

struct option {
    const char *name; /* without the dashes; "help" is also read from -h */
    enum option_kind kind;
    void *value; /* unchanged if the option is absent; if it is given several times, the last one counts */
    int64_t min, max;
};

/* The arguments that are not options. */
struct positionals {
    const char **words; /* [capacity] */
    int capacity;       /* more words than this are a usage error */
    int count;
};

/* argv[0] is the command's own name. Returns 0, or prints what is wrong and returns EXIT_USAGE. */
int options_parse(int argc, char **argv, const struct option *options, size_t count,
                  struct positionals *positionals);

/* For a command whose only options are --json and --help. Returns false if the command is to end with
 * *status: a wrong option, or --help, whose text was printed. */
bool options_json(int argc, char **argv, const char *help, bool *json, int *status);

/* Parses text and sets the value of the option to it, as options_parse does. */
int option_set(const char *command, const struct option *option, const char *text);

#endif
