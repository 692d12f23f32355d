/* Writes .safetensors files: the tensors with the widest elements first, so that every tensor is aligned to
 * its element. */
#include "io/writer.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

enum { LENGTH_SIZE = 8 };

static const size_t widths[] = {8, 4, 2, 1};
enum { N_WIDTHS = sizeof widths / sizeof widths[0] };

static ag_io_status check_names(const ag_io_array *arrays, int64_t count)
{
    for (int64_t n = 0; n < count; n++) {
        ag_io_status status = agi_io_check_array(&arrays[n]);
        if (status != AG_IO_OK) {
            return status;
        }
        if (arrays[n].name == NULL || strcmp(arrays[n].name, "__metadata__") == 0) {
            return agi_io_fail(AG_IO_INVALID_ARGUMENT, "the name of array %lld is %s", (long long)n,
                               arrays[n].name == NULL ? "NULL" : "__metadata__");
        }
    }
    return AG_IO_OK;
}

/* Adds an item whose key must be new and, like all text in JSON, UTF-8. Takes ownership of value. */
static ag_io_status add_item(json_t *object, const char *key, json_t *value)
{
    if (value == NULL || key == NULL) {
        json_decref(value);
        return agi_io_fail(AG_IO_INVALID_ARGUMENT, "a key or value is NULL or not UTF-8, or memory is out");
    }
    if (json_object_get(object, key) != NULL) {
        json_decref(value);
        return agi_io_fail(AG_IO_INVALID_ARGUMENT, "the name '%s' stands twice", key);
    }
    if (json_object_set_new(object, key, value) != 0) {
        return agi_io_fail(AG_IO_INVALID_ARGUMENT, "the name '%s' is not UTF-8, or memory is out", key);
    }
    return AG_IO_OK;
}

static ag_io_status add_metadata(json_t *header, const ag_io_pair *pairs, int64_t count)
{
    json_t *metadata = json_object();
    ag_io_status status = add_item(header, "__metadata__", metadata);
    for (int64_t n = 0; n < count && status == AG_IO_OK; n++) {
        status =
            add_item(metadata, pairs[n].key, pairs[n].value != NULL ? json_string(pairs[n].value) : NULL);
    }
    return status;
}

static ag_io_status add_tensor(json_t *header, const ag_io_array *array, int64_t begin, int64_t end)
{
    json_t *shape = json_array();
    for (int32_t axis = 0; axis < array->ndim; axis++) {
        json_array_append_new(shape, json_integer(array->shape[axis]));
    }
    json_t *item = json_pack("{s:s, s:o, s:[I, I]}", "dtype", agi_io_format_of(array->dtype)->safetensors,
                             "shape", shape, "data_offsets", (json_int_t)begin, (json_int_t)end);
    return add_item(header, array->name, item);
}

/* Fills in the header and, from parts[2] on, the bytes of the tensors in the order of the file. */
static ag_io_status add_tensors(json_t *header, const ag_io_array *arrays, int64_t count, agi_io_part *parts)
{
    ag_io_status status = AG_IO_OK;
    int64_t offset = 0, used = 0;
    for (size_t w = 0; w < N_WIDTHS; w++) {
        for (int64_t n = 0; n < count && status == AG_IO_OK; n++) {
            int64_t bytes = ag_io_elements(&arrays[n]) * (int64_t)widths[w];
            if (ag_io_dtype_size(arrays[n].dtype) != widths[w]) {
                continue;
            }
            if (bytes > INT64_MAX / 2 - offset) {
                return agi_io_fail(AG_IO_INVALID_ARGUMENT, "the arrays together are too large for a file");
            }
            status = add_tensor(header, &arrays[n], offset, offset + bytes);
            parts[2 + used++] = (agi_io_part){arrays[n].data, (size_t)bytes};
            offset += bytes;
        }
    }
    return status;
}

static void put_length(unsigned char bytes[LENGTH_SIZE], size_t length)
{
    for (int n = 0; n < LENGTH_SIZE; n++) {
        bytes[n] = (unsigned char)(length >> (8 * n) & 0xff);
    }
}

/* The header's text, padded with spaces so that the data start at a multiple of 8; NULL: no memory. */
static char *header_text(const json_t *header, size_t *padded)
{
    size_t length = json_dumpb(header, NULL, 0, JSON_COMPACT);
    *padded = (length + LENGTH_SIZE - 1) / LENGTH_SIZE * LENGTH_SIZE;
    char *text = length > 0 ? malloc(*padded) : NULL;
    if (text != NULL) {
        memset(text, ' ', *padded);
        json_dumpb(header, text, length, JSON_COMPACT);
    }
    return text;
}

static ag_io_status write_parts(ag_io_writer *writer, const char *path, const json_t *header,
                                agi_io_part *parts, int64_t count)
{
    size_t length;
    unsigned char prefix[LENGTH_SIZE];
    char *text = header_text(header, &length);
    if (text == NULL) {
        return agi_io_no_memory();
    }
    put_length(prefix, length);
    parts[0] = (agi_io_part){prefix, sizeof prefix};
    parts[1] = (agi_io_part){text, length};
    ag_io_status status = agi_io_write(writer, path, parts, 2 + count);
    free(text);
    return status;
}

ag_io_status ag_safetensors_write(ag_io_writer *writer, const char *path, const ag_io_array *arrays,
                                  int64_t count, const ag_io_pair *metadata, int64_t pairs)
{
    if (count < 0 || pairs < 0 || (arrays == NULL && count > 0) || (metadata == NULL && pairs > 0)) {
        return agi_io_fail(AG_IO_INVALID_ARGUMENT, "count is %lld, pairs is %lld, or their arrays are NULL",
                           (long long)count, (long long)pairs);
    }
    ag_io_status status = check_names(arrays, count);
    if (status != AG_IO_OK) {
        return status;
    }
    json_t *header = json_object();
    agi_io_part *parts = calloc((size_t)count + 2, sizeof *parts);
    if (header == NULL || parts == NULL) {
        status = agi_io_no_memory();
    } else {
        status = pairs > 0 ? add_metadata(header, metadata, pairs) : AG_IO_OK;
    }
    if (status == AG_IO_OK) {
        status = add_tensors(header, arrays, count, parts);
    }
    if (status == AG_IO_OK) {
        status = write_parts(writer, path, header, parts, count);
    }
    free(parts);
    json_decref(header);
    return status;
}
