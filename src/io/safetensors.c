/* .safetensors files:
 *
 *     length of the header (8 bytes) | header: JSON | the tensors' bytes, one after another
 *
 *     {"__metadata__": {"key": "value"}, "name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}}
 *
 * Offsets count from the end of the header. Together the tensors must cover the bytes exactly: no two
 * overlap, none exceeds the file, no byte is left over. That holds for tensors of an unknown dtype too, but these
 * are no error unless a caller looks for one of them. */
#include "io/io.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

enum { LENGTH_SIZE = 8, MAX_HEADER = 100000000 };

static const char metadata_key[] = "__metadata__";

void agi_io_release_json(void *json)
{
    json_decref(json);
}

static ag_io_status parse_header(ag_io_file *file, size_t *data)
{
    uint64_t length = 0;
    json_error_t error;
    if (file->size < LENGTH_SIZE) {
        return agi_io_fail(AG_IO_INVALID_FILE,
                           "not a .safetensors file: %zu bytes, its header's length alone has 8", file->size);
    }
    for (int n = 0; n < LENGTH_SIZE; n++) {
        length |= (uint64_t)file->bytes[n] << (8 * n);
    }
    if (length > MAX_HEADER) {
        return agi_io_fail(AG_IO_INVALID_FILE,
                           "not a .safetensors file: its header's length is %" PRIu64 ", at most %d is read",
                           length, MAX_HEADER);
    }
    if (length > file->size - LENGTH_SIZE) {
        return agi_io_fail(AG_IO_INVALID_FILE,
                           "cut short: %zu bytes, the .safetensors header alone ends at %" PRIu64, file->size,
                           length + LENGTH_SIZE);
    }
    *data = LENGTH_SIZE + (size_t)length;
    if (length == 0 || file->bytes[LENGTH_SIZE] != '{') {
        return agi_io_fail(AG_IO_INVALID_FILE, "not a .safetensors file: its header does not start with {");
    }
    file->json =
        json_loadb((const char *)file->bytes + LENGTH_SIZE, (size_t)length, JSON_REJECT_DUPLICATES, &error);
    if (file->json == NULL) {
        return agi_io_fail(AG_IO_INVALID_FILE, "wrong .safetensors header: %s", error.text);
    }
    return AG_IO_OK;
}

static ag_io_status read_metadata(ag_io_file *file, const json_t *metadata)
{
    if (!json_is_object(metadata)) {
        return agi_io_fail(AG_IO_INVALID_FILE, "%s is not an object", metadata_key);
    }
    const char *key;
    json_t *value;
    file->pairs = calloc(json_object_size(metadata) + 1, sizeof *file->pairs);
    if (file->pairs == NULL) {
        return agi_io_no_memory();
    }
    json_object_foreach((json_t *)(uintptr_t)metadata, key, value)
    {
        if (!json_is_string(value)) {
            return agi_io_fail(AG_IO_INVALID_FILE, "%s: '%s' is not a string", metadata_key, key);
        }
        file->pairs[file->pair_count++] = (ag_io_pair){key, json_string_value(value)};
    }
    return AG_IO_OK;
}

/* A tensor and the offsets of its bytes after the header. unknown: the name of its dtype, if this library
 * does not know it. */
typedef struct {
    ag_io_array array;
    const char *unknown;
    int64_t begin, end;
} entry;

static ag_io_status read_dtype(entry *e, const json_t *dtype)
{
    const char *text = json_string_value(dtype);
    if (text == NULL) {
        return agi_io_fail(AG_IO_INVALID_FILE, "tensor '%s' has no dtype", e->array.name);
    }
    const agi_io_format *format = agi_io_format_safetensors(text);
    if (format == NULL) {
        e->unknown = text;
    } else {
        e->array.dtype = format->dtype;
    }
    return AG_IO_OK;
}

static ag_io_status read_shape(entry *e, const json_t *shape)
{
    if (!json_is_array(shape)) {
        return agi_io_fail(AG_IO_INVALID_FILE, "tensor '%s' has no shape", e->array.name);
    }
    if (json_array_size(shape) > AG_IO_MAX_DIMS) {
        return agi_io_fail(AG_IO_INVALID_FILE, "tensor '%s' has %zu axes; at most %d are read", e->array.name,
                           json_array_size(shape), AG_IO_MAX_DIMS);
    }
    e->array.ndim = (int32_t)json_array_size(shape);
    for (int32_t axis = 0; axis < e->array.ndim; axis++) {
        const json_t *n = json_array_get(shape, (size_t)axis);
        if (!json_is_integer(n) || json_integer_value(n) < 0) {
            return agi_io_fail(AG_IO_INVALID_FILE,
                               "tensor '%s': axis %d of its shape is not a whole number from 0",
                               e->array.name, (int)axis);
        }
        e->array.shape[axis] = json_integer_value(n);
    }
    return AG_IO_OK;
}

/* Checks that shape and offsets give the same number of bytes. */
static ag_io_status check_bytes(const entry *e)
{
    int64_t bytes;
    if (!agi_io_array_bytes(&e->array, &bytes)) {
        return agi_io_fail(AG_IO_INVALID_FILE, "tensor '%s': the product of its shape's axes overflows",
                           e->array.name);
    }
    if (e->end - e->begin != bytes) {
        return agi_io_fail(AG_IO_INVALID_FILE, "tensor '%s' has %" PRId64 " bytes, its shape needs %" PRId64,
                           e->array.name, e->end - e->begin, bytes);
    }
    return AG_IO_OK;
}

static ag_io_status read_offsets(entry *e, const json_t *offsets, int64_t available)
{
    const json_t *begin = json_array_get(offsets, 0), *end = json_array_get(offsets, 1);
    if (json_array_size(offsets) != 2 || !json_is_integer(begin) || !json_is_integer(end)) {
        return agi_io_fail(AG_IO_INVALID_FILE, "tensor '%s': data_offsets are not two whole numbers",
                           e->array.name);
    }
    e->begin = json_integer_value(begin);
    e->end = json_integer_value(end);
    if (e->begin < 0 || e->end < e->begin || e->end > available) {
        return agi_io_fail(AG_IO_INVALID_FILE,
                           "tensor '%s': its bytes %" PRId64 " to %" PRId64
                           " are not within the file's %" PRId64,
                           e->array.name, e->begin, e->end, available);
    }
    return e->unknown == NULL ? check_bytes(e) : AG_IO_OK;
}

static ag_io_status read_entry(entry *e, const char *name, const json_t *value, int64_t available)
{
    memset(e, 0, sizeof *e);
    e->array.name = name;
    ag_io_status status = read_dtype(e, json_object_get(value, "dtype"));
    if (status == AG_IO_OK) {
        status = read_shape(e, json_object_get(value, "shape"));
    }
    return status == AG_IO_OK ? read_offsets(e, json_object_get(value, "data_offsets"), available) : status;
}

static ag_io_status read_header(ag_io_file *file, entry *entries, int64_t *count, int64_t available)
{
    const char *name;
    json_t *value;
    ag_io_status status = AG_IO_OK;
    *count = 0;
    json_object_foreach((json_t *)file->json, name, value)
    {
        status = strcmp(name, metadata_key) == 0 ? read_metadata(file, value)
                                                 : read_entry(&entries[(*count)++], name, value, available);
        if (status != AG_IO_OK) {
            break;
        }
    }
    return status;
}

static int by_offset(const void *a, const void *b)
{
    const entry *x = a, *y = b;
    int order = (x->begin > y->begin) - (x->begin < y->begin);
    return order != 0 ? order : (x->end > y->end) - (x->end < y->end);
}

/* The entries must be sorted by their offsets. */
static ag_io_status check_cover(const entry *entries, int64_t count, int64_t available)
{
    int64_t covered = 0;
    for (int64_t n = 0; n < count; n++) {
        if (entries[n].begin < covered) {
            return agi_io_fail(AG_IO_INVALID_FILE, "tensors '%s' and '%s' overlap", entries[n - 1].array.name,
                               entries[n].array.name);
        }
        if (entries[n].begin > covered) {
            break;
        }
        covered = entries[n].end;
    }
    if (covered != available) {
        return agi_io_fail(AG_IO_INVALID_FILE,
                           "the bytes from %" PRId64 " on, after the header, belong to no tensor", covered);
    }
    return AG_IO_OK;
}

static int64_t count_unknown(const entry *entries, int64_t count)
{
    int64_t unknown = 0;
    for (int64_t n = 0; n < count; n++) {
        unknown += entries[n].unknown != NULL;
    }
    return unknown;
}

static ag_io_status take_entries(ag_io_file *file, entry *entries, int64_t count, size_t data)
{
    const agi_io_order order = {false, false};
    const int64_t unknown = count_unknown(entries, count);
    int64_t taken = 0;
    qsort(entries, (size_t)count, sizeof *entries, by_offset);
    ag_io_status status = check_cover(entries, count, (int64_t)(file->size - data));
    if (status == AG_IO_OK) {
        status = agi_io_reserve(file, count - unknown, unknown);
    }
    for (int64_t n = 0; n < count && status == AG_IO_OK; n++) {
        if (entries[n].unknown != NULL) {
            file->skipped[file->skipped_count++] =
                (agi_io_skipped){entries[n].array.name, entries[n].unknown};
            continue;
        }
        file->arrays[taken] = entries[n].array;
        status = agi_io_set_data(file, taken++, data + (size_t)entries[n].begin, order);
    }
    return status;
}

ag_io_status agi_io_read_safetensors(ag_io_file *file)
{
    size_t data;
    int64_t count;
    ag_io_status status = parse_header(file, &data);
    if (status != AG_IO_OK) {
        return status;
    }
    entry *entries = malloc((json_object_size(file->json) + 1) * sizeof *entries);
    if (entries == NULL) {
        return agi_io_no_memory();
    }
    status = read_header(file, entries, &count, (int64_t)(file->size - data));
    if (status == AG_IO_OK) {
        status = take_entries(file, entries, count, data);
    }
    free(entries);
    return status;
}
