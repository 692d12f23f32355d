/* The public header without the types of MPI: all of this folder but transport_mpi.c is built without MPI. */
#ifndef AGI_MPI_PUBLIC_H
#define AGI_MPI_PUBLIC_H

#ifndef AG_MPI_WITHOUT_MPI
#define AG_MPI_WITHOUT_MPI
#endif
#include "attngrad_mpi.h"

#endif
