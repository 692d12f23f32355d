/* Prints the error messages of the command and finds the name that was probably meant. */
#include "usage.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { LINE_SIZE = 1024, NAME_SIZE = 32, MAX_EDITS = 2 };

static void print_line(const char *command, const char *format, va_list values)
{
    char line[LINE_SIZE];
    vsnprintf(line, sizeof line, format, values);
    for (char *c = line; *c != '\0'; c++) {
        if ((unsigned char)*c < ' ' || *c == 0x7f) {
            *c = '?';
        }
    }
    fprintf(stderr, "attngrad%s%s: %s\n", command ? " " : "", command ? command : "", line);
}

int usage_error(const char *command, const char *format, ...)
{
    va_list values;
    va_start(values, format);
    print_line(command, format, values);
    va_end(values);
    fprintf(stderr, "try 'attngrad%s%s --help'\n", command ? " " : "", command ? command : "");
    return EXIT_USAGE;
}

int file_error(const char *command, const char *format, ...)
{
    va_list values;
    va_start(values, format);
    print_line(command, format, values);
    va_end(values);
    return EXIT_USAGE;
}

int run_error(const char *command, const char *format, ...)
{
    va_list values;
    va_start(values, format);
    print_line(command, format, values);
    va_end(values);
    return EXIT_FAIL;
}

static size_t smallest(size_t a, size_t b, size_t c)
{
    size_t ab = a < b ? a : b;
    return ab < c ? ab : c;
}

/* Levenshtein distance; row[j] is the distance between the letters of a so far and the first j letters of b. */
static size_t edits(const char *a, const char *b)
{
    size_t row[NAME_SIZE];
    size_t length = strlen(b);
    for (size_t j = 0; j <= length; j++) {
        row[j] = j;
    }
    for (size_t i = 1; a[i - 1] != '\0'; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= length; j++) {
            size_t above = row[j];
            row[j] = smallest(diagonal + (a[i - 1] != b[j - 1]), above + 1, row[j - 1] + 1);
            diagonal = above;
        }
    }
    return row[length];
}

const char *nearest_name(const char *word, const char *const *names, size_t count)
{
    const char *best = NULL;
    size_t fewest = MAX_EDITS + 1;
    if (strlen(word) >= NAME_SIZE) {
        return NULL;
    }
    for (size_t n = 0; n < count; n++) {
        size_t distance = strlen(names[n]) < NAME_SIZE ? edits(word, names[n]) : NAME_SIZE;
        if (distance < fewest && distance < strlen(names[n])) {
            best = names[n];
            fewest = distance;
        }
    }
    return best;
}
