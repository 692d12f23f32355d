/* The sizes of a plan's workspaces. */
#ifndef AGI_MPI_WORKSPACE_H
#define AGI_MPI_WORKSPACE_H

#include "mpi/plan.h"

/* Fills in plan->bytes: dry runs of the layouts of the maps. */
ag_status agi_mpi_size_workspaces(ag_mpi_plan *plan);

#endif
