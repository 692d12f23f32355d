/* Writes files completely or not at all. */
#ifndef AGI_IO_WRITER_H
#define AGI_IO_WRITER_H

#include "io/io.h"

/* Bytes that follow each other in a file. */
typedef struct {
    const void *data;
    size_t size;
} agi_io_part;

/* Adds a file of these parts to the writer; if writer is NULL, writes the file and commits it at once. */
ag_io_status agi_io_write(ag_io_writer *writer, const char *path, const agi_io_part *parts, int64_t count);

#endif
