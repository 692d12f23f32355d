/* The growing text. */
#include "view/text.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    FIRST_CAPACITY = 4096,
    FORMAT_SIZE = 256,
    GROUP = 3072 /* bytes per call of add, a multiple of 3 and 8 */
};

static bool reserve(agv_text *text, size_t size)
{
    size_t capacity = text->capacity > 0 ? text->capacity : FIRST_CAPACITY;
    while (capacity - text->size < size) {
        capacity *= 2;
    }
    if (capacity != text->capacity) {
        char *data = text->failed ? NULL : realloc(text->data, capacity);
        text->failed = data == NULL;
        text->data = data != NULL ? data : text->data;
        text->capacity = data != NULL ? capacity : text->capacity;
    }
    return !text->failed;
}

void agv_text_add(agv_text *text, const void *bytes, size_t size)
{
    if (size > 0 && reserve(text, size)) {
        memcpy(text->data + text->size, bytes, size);
        text->size += size;
    }
}

void agv_text_format(agv_text *text, const char *format, ...)
{
    char line[FORMAT_SIZE];
    va_list values;
    va_start(values, format);
    int length = vsnprintf(line, sizeof line, format, values);
    va_end(values);
    agv_text_add(text, line, length < FORMAT_SIZE ? (size_t)length : sizeof line - 1);
}

/* ---- Strings ---- */

static bool continues(unsigned char c)
{
    return (c & 0xC0) == 0x80;
}

/* The length of the UTF-8 character that begins here; 0 if none does. Overlong forms and surrogates are let through:
 * browsers replace them. */
static size_t utf8_length(const char *string)
{
    const unsigned char *s = (const unsigned char *)string;
    size_t length = s[0] < 0x80                   ? 1
                    : s[0] >= 0xC2 && s[0] < 0xE0 ? 2
                    : (s[0] & 0xF0) == 0xE0       ? 3
                    : s[0] >= 0xF0 && s[0] < 0xF5 ? 4
                                                  : 0;
    for (size_t n = 1; n < length; n++) {
        if (!continues(s[n])) {
            return 0;
        }
    }
    return length;
}

void agv_text_json(agv_text *text, const char *string)
{
    agv_text_add(text, "\"", 1);
    while (*string != '\0') {
        size_t length = utf8_length(string);
        unsigned char c = (unsigned char)*string;
        if (length == 0) {
            agv_text_format(text, "\\ufffd");
        } else if (c < ' ' || c == '"' || c == '\\' || c == '<' || c == 0x7F) {
            agv_text_format(text, "\\u%04x", c);
        } else {
            agv_text_add(text, string, length);
        }
        string += length > 0 ? length : 1;
    }
    agv_text_add(text, "\"", 1);
}

void agv_text_number(agv_text *text, double value)
{
    char digits[32];
    if (!isfinite(value)) { /* JSON has no infinity, but a number too large for float64 is read as one */
        agv_text_format(text, isnan(value) ? "null" : value > 0 ? "1e999" : "-1e999");
        return;
    }
    for (int precision = 15; precision <= 17; precision++) {
        snprintf(digits, sizeof digits, "%.*g", precision, value);
        if (strtod(digits, NULL) == value) {
            break;
        }
    }
    agv_text_format(text, "%s", digits);
}

void agv_text_html(agv_text *text, const char *string)
{
    while (*string != '\0') {
        const size_t length = utf8_length(string);
        if (length == 0) {
            agv_text_format(text, "&#xfffd;");
        } else if (strchr("<>&\"'", *string) != NULL) {
            agv_text_format(text, "&#%d;", *string);
        } else {
            agv_text_add(text, string, length);
        }
        string += length > 0 ? length : 1;
    }
}

/* ---- Base64 ---- */

static void add_base64(agv_text *text, const unsigned char *bytes, size_t size)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    char out[GROUP / 3 * 4];
    size_t length = 0;
    for (size_t n = 0; n < size; n += 3) {
        unsigned second = n + 1 < size ? bytes[n + 1] : 0, third = n + 2 < size ? bytes[n + 2] : 0;
        unsigned bits = (unsigned)bytes[n] << 16 | second << 8 | third;
        out[length++] = digits[bits >> 18];
        out[length++] = digits[bits >> 12 & 63];
        out[length++] = n + 1 < size ? digits[bits >> 6 & 63] : '=';
        out[length++] = n + 2 < size ? digits[bits & 63] : '=';
    }
    agv_text_add(text, out, length);
}

static uint64_t bits_of(double value, int width)
{
    const float narrow = (float)value;
    uint32_t low;
    uint64_t bits;
    memcpy(&low, &narrow, sizeof low);
    memcpy(&bits, &value, sizeof bits);
    if (width == 1) {
        return (uint64_t)value;
    }
    if (isnan(value)) { /* every NaN becomes the same NaN */
        return width == 4 ? 0x7FC00000U : 0x7FF8000000000000U;
    }
    return width == 4 ? low : bits;
}

/* Little-endian on every machine. */
static void put_number(unsigned char *to, double value, int width)
{
    const uint64_t bits = bits_of(value, width);
    for (int n = 0; n < width; n++) {
        to[n] = (unsigned char)(bits >> (8 * n));
    }
}

void agv_text_base64(agv_text *text, const double *values, int64_t count, int width)
{
    unsigned char group[GROUP];
    size_t used = 0;
    for (int64_t n = 0; n < count; n++) {
        put_number(group + used, values[n], width);
        used += (size_t)width;
        if (used == GROUP) {
            add_base64(text, group, used);
            used = 0;
        }
    }
    add_base64(text, group, used);
}
