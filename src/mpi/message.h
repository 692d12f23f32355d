/* Why the last call of libattngrad_mpi failed, on this thread. */
#ifndef AGI_MPI_MESSAGE_H
#define AGI_MPI_MESSAGE_H

#include "attngrad.h"

#if defined(__GNUC__)
#define AGI_MPI_PRINTF(at, first) __attribute__((format(printf, at, first)))
#else
#define AGI_MPI_PRINTF(at, first)
#endif

/* Stores the message and the field that it is about, "" for none. Returns status. */
AGI_MPI_PRINTF(3, 4) ag_status agi_mpi_fail(ag_status status, const char *field, const char *format, ...);

/* After a call of libattngrad that failed with status: takes over its message and field. Returns status. */
ag_status agi_mpi_fail_inside(ag_status status);

#endif
