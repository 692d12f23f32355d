/* Error messages of all commands, on stderr: one line that says what is wrong and, after a wrong argument, a
 * second one with a hint. */
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

/* Prints "attngrad COMMAND: ..." and "try 'attngrad COMMAND --help'"; command NULL: the program itself.
 * Control characters of the message are shown as '?', so that it stays one line. Returns EXIT_USAGE. */
int usage_error(const char *command, const char *format, ...) CLI_PRINTF(2, 3);

/* Prints only "attngrad COMMAND: ...", for a file that cannot be read or trusted: --help would not help. Returns
 * EXIT_USAGE. */
int file_error(const char *command, const char *format, ...) CLI_PRINTF(2, 3);

/* The same for what the arguments did not cause, and for a file that cannot be written. Returns EXIT_FAIL. */
int run_error(const char *command, const char *format, ...) CLI_PRINTF(2, 3);

/* Returns the name that was probably meant by word: at most two edits away, and fewer edits than the name
 * has letters. NULL if there is none. */
const char *nearest_name(const char *word, const char *const *names, size_t count);

#endif
