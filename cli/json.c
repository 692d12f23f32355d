/* The JSON writer of json.h. */
#include "json.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

struct json emit_to(FILE *file)
{
    return (struct json){.file = file};
}

static void write_string(FILE *file, const char *text)
{
    putc('"', file);
    for (const char *c = text; *c != '\0'; c++) {
        if (*c == '"' || *c == '\\') {
            fprintf(file, "\\%c", *c);
        } else if ((unsigned char)*c < ' ') {
            fprintf(file, "\\u%04x", (unsigned)*c);
        } else {
            putc(*c, file);
        }
    }
    putc('"', file);
}

static void write_number(FILE *file, double value)
{
    char text[32];
    if (!isfinite(value)) {
        fputs(isnan(value) ? "\"NaN\"" : value > 0 ? "\"Infinity\"" : "\"-Infinity\"", file);
        return;
    }
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, value);
        if (strtod(text, NULL) == value) {
            break;
        }
    }
    fputs(text, file);
}

static void new_line(struct json *json)
{
    fprintf(json->file, "\n%*s", 2 * json->depth, "");
}

/* Writes what comes before every item: the comma, the new line, the key. */
static void begin_item(struct json *json, const char *key)
{
    if (json->depth > 0) {
        if (json->filled[json->depth - 1]) {
            putc(',', json->file);
        }
        json->filled[json->depth - 1] = true;
        new_line(json);
    }
    if (key) {
        write_string(json->file, key);
        fputs(": ", json->file);
    }
}

static void begin_level(struct json *json, const char *key, char opener, char closer)
{
    begin_item(json, key);
    putc(opener, json->file);
    json->filled[json->depth] = false;
    json->closer[json->depth] = closer;
    json->depth++;
}

void emit_begin_object(struct json *json, const char *key)
{
    begin_level(json, key, '{', '}');
}

void emit_begin_array(struct json *json, const char *key)
{
    begin_level(json, key, '[', ']');
}

void emit_end(struct json *json)
{
    json->depth--;
    if (json->filled[json->depth]) {
        new_line(json);
    }
    putc(json->closer[json->depth], json->file);
    if (json->depth == 0) {
        putc('\n', json->file);
    }
}

void emit_string(struct json *json, const char *key, const char *text)
{
    begin_item(json, key);
    write_string(json->file, text);
}

void emit_bool(struct json *json, const char *key, bool value)
{
    begin_item(json, key);
    fputs(value ? "true" : "false", json->file);
}

void emit_integer(struct json *json, const char *key, int64_t value)
{
    begin_item(json, key);
    fprintf(json->file, "%" PRId64, value);
}

void emit_number(struct json *json, const char *key, double value)
{
    begin_item(json, key);
    write_number(json->file, value);
}

void emit_integers(struct json *json, const char *key, const int64_t *values, int64_t count)
{
    begin_item(json, key);
    putc('[', json->file);
    for (int64_t n = 0; n < count; n++) {
        fprintf(json->file, "%s%" PRId64, n ? ", " : "", values[n]);
    }
    putc(']', json->file);
}

void emit_numbers(struct json *json, const char *key, const double *values, int64_t count)
{
    begin_item(json, key);
    putc('[', json->file);
    for (int64_t n = 0; n < count; n++) {
        fputs(n ? ", " : "", json->file);
        write_number(json->file, values[n]);
    }
    putc(']', json->file);
}
