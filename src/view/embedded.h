/* The files of page/ as the build embeds them (cmake/embed.cmake), scripts in the order in which they run. */
#ifndef ATTNGRAD_VIEW_EMBEDDED_H
#define ATTNGRAD_VIEW_EMBEDDED_H

#include <stddef.h>

typedef struct agv_embedded {
    const char *name; /* "page.css" */
    const unsigned char *bytes;
    size_t size;
} agv_embedded;

extern const agv_embedded agv_embedded_files[];
extern const int agv_embedded_count;

#endif
