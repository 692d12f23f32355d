/* .npy files, versions 1.0 to 3.0:
 *
 *     \x93NUMPY | major | minor | length of the header (2 bytes in 1.0, 4 later) | header | the array
 *
 * The reader knows all versions; the writer's headers are short enough for 1.0. */
#include "io/npy_header.h"
#include "io/writer.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { MAGIC_LENGTH = 6, MAX_HEADER = 1 << 16, ALIGNMENT = 64, PREFIX = 10 };

static const char magic[] = "\x93NUMPY";

/* Finds where the header's text starts, and its length. */
static ag_io_status find_header(const ag_io_file *file, size_t *start, size_t *length)
{
    const unsigned char *bytes = file->bytes;
    if (file->size < PREFIX || memcmp(bytes, magic, MAGIC_LENGTH) != 0) {
        return agi_io_fail(AG_IO_INVALID_FILE,
                           "not a .npy file: it does not start with \\x93NUMPY and a version");
    }
    if (bytes[6] < 1 || bytes[6] > 3 || bytes[7] != 0) {
        return agi_io_fail(AG_IO_INVALID_FILE, ".npy version %d.%d; known are 1.0, 2.0 and 3.0", bytes[6],
                           bytes[7]);
    }
    size_t width = bytes[6] == 1 ? 2 : 4;
    *start = 8 + width;
    *length = 0;
    for (size_t n = 0; n < width && file->size >= *start; n++) {
        *length |= (size_t)bytes[8 + n] << (8 * n);
    }
    if (*length > MAX_HEADER) {
        return agi_io_fail(AG_IO_INVALID_FILE, "the .npy header's length is %zu; at most %d is read", *length,
                           MAX_HEADER);
    }
    if (file->size < *start + *length) {
        return agi_io_fail(AG_IO_INVALID_FILE, "cut short: %zu bytes, the .npy header alone ends at %zu",
                           file->size, *start + *length);
    }
    return AG_IO_OK;
}

static ag_io_status check_size(const ag_io_file *file, size_t data)
{
    int64_t bytes;
    if (!agi_io_array_bytes(&file->arrays[0], &bytes)) {
        return agi_io_fail(AG_IO_INVALID_FILE, "the product of the shape's axes overflows");
    }
    uint64_t available = file->size - data;
    if (available < (uint64_t)bytes) {
        return agi_io_fail(AG_IO_INVALID_FILE,
                           "cut short: %" PRIu64 " bytes of data, the shape needs %" PRId64, available,
                           bytes);
    }
    if (available > (uint64_t)bytes) {
        return agi_io_fail(AG_IO_INVALID_FILE, "%" PRIu64 " bytes follow the array",
                           available - (uint64_t)bytes);
    }
    return AG_IO_OK;
}

ag_io_status agi_io_read_npy(ag_io_file *file)
{
    size_t start = 0, length = 0;
    agi_io_order order = {false, false};
    ag_io_status status = find_header(file, &start, &length);
    if (status == AG_IO_OK) {
        status = agi_io_reserve(file, 1, 0);
    }
    if (status == AG_IO_OK) {
        file->arrays[0].name = "";
        status = agi_io_npy_header((const char *)file->bytes + start, length, &file->arrays[0], &order);
    }
    if (status == AG_IO_OK) {
        status = check_size(file, start + length);
    }
    return status == AG_IO_OK ? agi_io_set_data(file, 0, start + length, order) : status;
}

/* Writes everything before the array, padded with spaces so that the array starts at a multiple of 64. */
static size_t write_header(const agi_io_format *format, const ag_io_array *array, char *text, size_t size)
{
    int at = snprintf(text + PREFIX, size - PREFIX, "{'descr': '%s%s', 'fortran_order': False, 'shape': (",
                      format->size == 1 ? "|" : "<", format->npy);
    for (int32_t axis = 0; axis < array->ndim; axis++) {
        at += snprintf(text + PREFIX + at, size - PREFIX - (size_t)at, "%s%" PRId64 "%s", axis > 0 ? " " : "",
                       array->shape[axis], axis + 1 < array->ndim || axis == 0 ? "," : "");
    }
    at += snprintf(text + PREFIX + at, size - PREFIX - (size_t)at, "), }");
    size_t used = PREFIX + (size_t)at + 1;
    size_t total = (used + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    memset(text + used - 1, ' ', total - used);
    text[total - 1] = '\n';
    memcpy(text, magic, MAGIC_LENGTH);
    text[6] = 1;
    text[7] = 0;
    text[8] = (char)((total - PREFIX) & 0xff);
    text[9] = (char)((total - PREFIX) >> 8);
    return total;
}

ag_io_status ag_npy_write(ag_io_writer *writer, const char *path, const ag_io_array *array)
{
    char header[512];
    ag_io_status status = agi_io_check_array(array);
    if (status != AG_IO_OK) {
        return status;
    }
    const agi_io_format *format = agi_io_format_of(array->dtype);
    if (format->npy == NULL) {
        return agi_io_fail(AG_IO_INVALID_ARGUMENT, "dtype is %s: .npy has none such", format->name);
    }
    agi_io_part parts[2] = {{header, write_header(format, array, header, sizeof header)},
                            {array->data, (size_t)ag_io_elements(array) * format->size}};
    return agi_io_write(writer, path, parts, 2);
}
