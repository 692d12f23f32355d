/* The header of a .npy file: a Python dictionary of three items, in text. */
#ifndef AGI_IO_NPY_HEADER_H
#define AGI_IO_NPY_HEADER_H

#include "io/io.h"

/* Parses text[length] and sets array's dtype, ndim and shape, and *order. */
ag_io_status agi_io_npy_header(const char *text, size_t length, ag_io_array *array, agi_io_order *order);

#endif
