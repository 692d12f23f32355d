/* A text that grows: HTML, JSON strings and numbers, base64. A failed allocation is remembered; what is added after it
 * is dropped. */
#ifndef ATTNGRAD_VIEW_TEXT_H
#define ATTNGRAD_VIEW_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define AGV_PRINTF(text, first) __attribute__((format(printf, text, first)))
#else
#define AGV_PRINTF(text, first)
#endif

typedef struct agv_text {
    char *data; /* malloc; the caller frees it */
    size_t size, capacity;
    bool failed; /* there was no memory */
} agv_text;

void agv_text_add(agv_text *text, const void *bytes, size_t size);
void agv_text_format(agv_text *text, const char *format, ...) AGV_PRINTF(2, 3); /* at most 255 characters */

/* A JSON string that may stand inside a script element: quotes, backslashes, control characters and < are escaped, as
 * are bytes that are not UTF-8. */
void agv_text_json(agv_text *text, const char *string);

/* A number that reads back as the same float64; JSON has neither NaN nor infinities: null. */
void agv_text_number(agv_text *text, double value);

/* Text of an HTML element or attribute: < > & and quotes are escaped. */
void agv_text_html(agv_text *text, const char *string);

/* The numbers in base64: little-endian floats of 8 or 4 bytes, or, if width is 1, whole numbers from 0 to 255. */
void agv_text_base64(agv_text *text, const double *values, int64_t count, int width);

#endif
