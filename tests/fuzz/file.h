/* What must hold of a file that a reader accepted: every array has a shape, an aligned address and readable
 * bytes; ag_io_find finds every array by its name. */
#ifndef AG_FUZZ_FILE_H
#define AG_FUZZ_FILE_H

#include "target.h"

#include <attngrad_io.h>
#include <string.h>

/* Reads every byte, so that AddressSanitizer detects an array that exceeds the file. Returns the number of bytes. */
static inline int64_t fuzz_read_array(const ag_io_array *array)
{
    size_t element = ag_io_dtype_size(array->dtype);
    int64_t elements = ag_io_elements(array);
    FUZZ_REQUIRE(element > 0 && elements >= 0 && array->data != NULL && array->name != NULL);
    FUZZ_REQUIRE((uintptr_t)array->data % element == 0);
    const unsigned char *data = array->data;
    volatile unsigned char sum = 0;
    for (int64_t n = 0; n < elements * (int64_t)element; n++) {
        sum = (unsigned char)(sum + data[n]);
    }
    return elements * (int64_t)element;
}

/* Returns the number of bytes of all arrays together. */
static inline int64_t fuzz_read_file(const ag_io_file *file)
{
    const ag_io_array *arrays, *found;
    const ag_io_pair *pairs;
    int64_t total = 0, count = ag_io_arrays(file, &arrays), n_pairs = ag_io_metadata(file, &pairs);
    for (int64_t n = 0; n < count; n++) {
        total += fuzz_read_array(&arrays[n]);
        FUZZ_REQUIRE(ag_io_find(file, arrays[n].name, &found) == AG_IO_OK && found == &arrays[n]);
    }
    for (int64_t n = 0; n < n_pairs; n++) {
        FUZZ_REQUIRE(strlen(pairs[n].key) + strlen(pairs[n].value) < SIZE_MAX);
    }
    return total;
}

#endif
