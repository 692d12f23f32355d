/* A writer of JSON: indented, valid by construction if every begin has its end. Numbers are written with 15 digits,
 * or with 16 or 17 if they need them to read back as the same float64. JSON has no NaN and no infinities: they are
 * written as the strings "NaN", "Infinity" and "-Infinity". The functions are not called json_..., as the command
 * links jansson, which has such names. */
#ifndef ATTNGRAD_CLI_JSON_H
#define ATTNGRAD_CLI_JSON_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

enum { JSON_DEPTH = 16 };

struct json {
    FILE *file;
    int depth;
    bool filled[JSON_DEPTH]; /* does this level have an item yet? */
    char closer[JSON_DEPTH]; /* '}' or ']' of the levels that are open */
};

struct json emit_to(FILE *file);

/* key names an item of an object and is NULL in an array and at the top. */
void emit_begin_object(struct json *json, const char *key);
void emit_begin_array(struct json *json, const char *key);
void emit_end(struct json *json); /* ends the innermost level; the last one also ends the line */

void emit_string(struct json *json, const char *key, const char *text);
void emit_bool(struct json *json, const char *key, bool value);
void emit_integer(struct json *json, const char *key, int64_t value);
void emit_number(struct json *json, const char *key, double value);

/* An array on one line. */
void emit_integers(struct json *json, const char *key, const int64_t *values, int64_t count);
void emit_numbers(struct json *json, const char *key, const double *values, int64_t count);

#endif
