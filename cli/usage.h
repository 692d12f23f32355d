/* Error messages of all commands, on stderr: one line that says what is wrong; after a wrong argument a second
 * one with a hint. */
#ifndef ATTNGRAD_CLI_USAGE_H
#define ATTNGRAD_CLI_USAGE_H

#include <stddef.h>

#if defined(__GNUC__)
#define CLI_PRINTF(text, first) __attribute__((format(printf, text, first)))
#else
#define CLI_PRINTF(text, first)
#endif

/* The command's exit codes. */
enum { EXIT_PASS = 0, EXIT_FAIL = 1, EXIT_USAGE = 2 };

/* Prints "attngrad COMMAND: ..." and "try 'attngrad COMMAND --help'"; command NULL stands for the
 * program itself. Control characters of the message are shown as '?', so that it stays one line.
 * Returns EXIT_USAGE. */
int usage_error(const char *command, const char *format, ...) CLI_PRINTF(2, 3);

/* Prints "attngrad COMMAND: ..." alone, for a file that cannot be read, written or believed: no help has
 * more to say about it. Returns EXIT_USAGE. */
int file_error(const char *command, const char *format, ...) CLI_PRINTF(2, 3);

/* The same for what is not the user's mistake. Returns EXIT_FAIL. */
int run_error(const char *command, const char *format, ...) CLI_PRINTF(2, 3);

/* The name that is a likely slip away from word (at most two edits and fewer than its letters), or
 * NULL. */
const char *nearest_name(const char *word, const char *const *names, size_t count);

#endif
