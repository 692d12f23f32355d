/* Converts an array of a file to C order, little-endian and aligned; makes no copy if it is so already. An array in a
 * file may be big-endian (order.swapped); the machine must be little-endian. */
#include "io/io.h"

#include <stdlib.h>
#include <string.h>

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "attngrad_io requires a little-endian machine"
#endif

static void copy_element(unsigned char *dst, const unsigned char *src, size_t size, bool swapped)
{
    for (size_t n = 0; n < size; n++) {
        dst[n] = src[swapped ? size - 1 - n : n];
    }
}

/* The strides, in elements, of an array in Fortran order. */
static void fortran_strides(const ag_io_array *array, int64_t strides[AG_IO_MAX_DIMS])
{
    int64_t stride = 1;
    for (int32_t axis = 0; axis < array->ndim; axis++) {
        strides[axis] = stride;
        stride *= array->shape[axis];
    }
}

/* Moves to the next index in C order; *at is the offset of that element in the source. */
static void advance(const ag_io_array *array, const int64_t *strides, int64_t *index, int64_t *at)
{
    for (int32_t axis = array->ndim - 1; axis >= 0; axis--) {
        *at += strides[axis];
        if (++index[axis] < array->shape[axis]) {
            return;
        }
        *at -= strides[axis] * array->shape[axis];
        index[axis] = 0;
    }
}

static void copy_fortran(unsigned char *dst, const unsigned char *src, const ag_io_array *array,
                         int64_t count, size_t size, bool swapped)
{
    int64_t strides[AG_IO_MAX_DIMS], index[AG_IO_MAX_DIMS] = {0}, at = 0;
    fortran_strides(array, strides);
    for (int64_t n = 0; n < count; n++) {
        copy_element(dst + (size_t)n * size, src + (size_t)at * size, size, swapped);
        advance(array, strides, index, &at);
    }
}

ag_io_status agi_io_set_data(ag_io_file *file, int64_t index, size_t offset, agi_io_order order)
{
    ag_io_array *array = &file->arrays[index];
    const unsigned char *src = file->bytes + offset;
    size_t size = ag_io_dtype_size(array->dtype);
    int64_t count = ag_io_elements(array);
    bool fortran = order.fortran && array->ndim > 1, swapped = order.swapped && size > 1;
    if (!fortran && !swapped && (uintptr_t)src % size == 0) {
        array->data = src;
        return AG_IO_OK;
    }
    unsigned char *copy = malloc((size_t)count * size + 1);
    if (copy == NULL) {
        return agi_io_no_memory();
    }
    file->copies[index] = copy;
    array->data = copy;
    if (fortran) {
        copy_fortran(copy, src, array, count, size, swapped);
    } else if (swapped) {
        for (int64_t n = 0; n < count; n++) {
            copy_element(copy + (size_t)n * size, src + (size_t)n * size, size, true);
        }
    } else {
        memcpy(copy, src, (size_t)count * size);
    }
    return AG_IO_OK;
}
