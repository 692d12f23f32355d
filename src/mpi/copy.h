/* Copies of tensors with other strides and in other dtypes. Sizes and strides as in ag_args; dtype 0: bytes. */
#ifndef AGI_MPI_COPY_H
#define AGI_MPI_COPY_H

#include <stdbool.h>

#include "attngrad.h"

/* A tensor with its element type. */
typedef struct {
    ag_tensor t;
    ag_dtype dtype;
} agi_mpi_array;

size_t agi_mpi_element_bytes(ag_dtype dtype);

/* The view that begins `by` further along an axis. A tensor that is absent stays absent. */
ag_tensor agi_mpi_shift(ag_tensor t, ag_dtype dtype, int axis, int64_t by);

typedef enum { AGI_MPI_SET, AGI_MPI_ADD } agi_mpi_mode;

/* to = round(from), or round(to + from). */
void agi_mpi_copy(agi_mpi_array to, agi_mpi_array from, const int64_t size[4], agi_mpi_mode mode);

void agi_mpi_fill(agi_mpi_array to, const int64_t size[4], double value);

/* Low halves: what rounding took from an output. low = round(x - round(x)); x = high + low; low may be
 * absent. */
void agi_mpi_store_low(agi_mpi_array low, agi_mpi_array x, const int64_t size[4]);
void agi_mpi_join_low(agi_mpi_array x, agi_mpi_array high, agi_mpi_array low, const int64_t size[4]);

/* sums -= the sum over channels of x (y + y_low), for each row. sums: float64, one per row; size: that of x. */
void agi_mpi_subtract_dots(ag_tensor sums, agi_mpi_array x, agi_mpi_array y, agi_mpi_array y_low,
                           const int64_t size[4]);

#endif
