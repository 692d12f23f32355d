/* The number formats and the sizes of arrays of them. */
#include "io/io.h"

#include <string.h>

static const agi_io_format formats[] = {
    {AG_IO_F64, 8, "f64", "f8", "F64"}, {AG_IO_F32, 4, "f32", "f4", "F32"},
    {AG_IO_F16, 2, "f16", "f2", "F16"}, {AG_IO_BF16, 2, "bf16", NULL, "BF16"},
    {AG_IO_I64, 8, "i64", "i8", "I64"}, {AG_IO_I32, 4, "i32", "i4", "I32"},
    {AG_IO_U8, 1, "u8", "u1", "U8"},    {AG_IO_BOOL, 1, "bool", "b1", "BOOL"},
};
enum { N_FORMATS = sizeof formats / sizeof formats[0] };

const agi_io_format *agi_io_format_of(ag_io_dtype dtype)
{
    for (size_t n = 0; n < N_FORMATS; n++) {
        if (formats[n].dtype == dtype) {
            return &formats[n];
        }
    }
    return NULL;
}

const agi_io_format *agi_io_format_npy(const char *text)
{
    for (size_t n = 0; n < N_FORMATS; n++) {
        if (formats[n].npy != NULL && strcmp(formats[n].npy, text) == 0) {
            return &formats[n];
        }
    }
    return NULL;
}

const agi_io_format *agi_io_format_safetensors(const char *text)
{
    for (size_t n = 0; n < N_FORMATS; n++) {
        if (strcmp(formats[n].safetensors, text) == 0) {
            return &formats[n];
        }
    }
    return NULL;
}

const char *agi_io_known_npy(void)
{
    return "f8 f4 f2 i8 i4 u1 b1";
}

const char *agi_io_known_safetensors(void)
{
    return "F64 F32 F16 BF16 I64 I32 U8 BOOL";
}

size_t ag_io_dtype_size(ag_io_dtype dtype)
{
    const agi_io_format *format = agi_io_format_of(dtype);
    return format != NULL ? format->size : 0;
}

const char *ag_io_dtype_name(ag_io_dtype dtype)
{
    const agi_io_format *format = agi_io_format_of(dtype);
    return format != NULL ? format->name : "?";
}

/* Sets *product to a * b, both positive, and returns true, unless it exceeds INT64_MAX. */
static bool multiply(int64_t a, int64_t b, int64_t *product)
{
    if (a > INT64_MAX / b) {
        return false;
    }
    *product = a * b;
    return true;
}

bool agi_io_array_bytes(const ag_io_array *array, int64_t *bytes)
{
    int64_t extent = (int64_t)ag_io_dtype_size(array->dtype);
    bool empty = false;
    if (extent == 0 || array->ndim < 0 || array->ndim > AG_IO_MAX_DIMS) {
        return false;
    }
    for (int32_t axis = 0; axis < array->ndim; axis++) {
        int64_t n = array->shape[axis];
        if (n < 0 || !multiply(extent, n > 0 ? n : 1, &extent)) {
            return false;
        }
        empty = empty || n == 0;
    }
    *bytes = empty ? 0 : extent;
    return true;
}

int64_t ag_io_elements(const ag_io_array *array)
{
    int64_t bytes;
    if (array == NULL || !agi_io_array_bytes(array, &bytes)) {
        return -1;
    }
    return bytes / (int64_t)ag_io_dtype_size(array->dtype);
}

ag_io_status agi_io_check_array(const ag_io_array *array)
{
    if (array == NULL) {
        return agi_io_fail(AG_IO_INVALID_ARGUMENT, "the array is NULL");
    }
    if (ag_io_dtype_size(array->dtype) == 0) {
        return agi_io_fail(AG_IO_INVALID_ARGUMENT, "dtype is %d: not a dtype", (int)array->dtype);
    }
    int64_t elements = ag_io_elements(array);
    if (elements < 0) {
        return agi_io_fail(AG_IO_INVALID_ARGUMENT,
                           "ndim is %d, or an axis or the product of all is out of range", (int)array->ndim);
    }
    if (array->data == NULL && elements > 0) {
        return agi_io_fail(AG_IO_INVALID_ARGUMENT, "data is NULL");
    }
    return AG_IO_OK;
}
