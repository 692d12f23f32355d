/* Structs that begin with their own size. */
#ifndef AGI_MPI_STRUCTS_H
#define AGI_MPI_STRUCTS_H

#include "attngrad.h"

/* Copies a struct of the caller into `to`, which has the defaults, as far as the caller's struct_size goes. A larger
 * one is refused unless the rest is zero. */
ag_status agi_mpi_read_struct(void *to, size_t size, const void *from, const char *name, ag_status wrong);

/* The other way round, for a struct that the library fills in. */
ag_status agi_mpi_write_struct(void *to, const void *from, size_t size, const char *name);

#endif
