/* A call of one map on this rank. */
#ifndef AGI_MPI_CALL_H
#define AGI_MPI_CALL_H

#include "core/arena.h"
#include "mpi/plan.h"

typedef struct {
    ag_mpi_plan *plan;
    agi_mpi_comm *comm;
    agi_map map;
    ag_args a;    /* a copy of the caller's: tensors of this rank, lists of the whole problem */
    ag_exec user; /* a copy of the caller's */
    ag_exec exec; /* of the maps inside: moves messages on and asks the caller's poll */
    ag_status
        status; /* of the maps inside. After a failure messages are still exchanged, but nothing is computed */
} agi_mpi_call;

/* Does the call have to compute? Not after a failure or if the caller has cancelled it. */
static inline bool agi_mpi_computes(const agi_mpi_call *call)
{
    return call->status == AG_OK && !call->comm->cancelled;
}

/* Runs the call's map, or merges, by libattngrad; a failure is kept in call->status. */
void agi_mpi_run_inside(agi_mpi_call *call, const ag_plan *plan, const ag_args *args, void *workspace,
                        size_t bytes);
void agi_mpi_merge_inside(agi_mpi_call *call, const ag_plan *plan, const ag_merge_args *args);

typedef ag_status (*agi_mpi_map)(const ag_plan *, const ag_args *, const ag_exec *, void *, size_t);
agi_mpi_map agi_mpi_map_of(agi_map map); /* ag_forward and so on */

/* After the last message: all ranks return AG_OK, or the same failure. messages: the status of the messages. */
ag_status agi_mpi_conclude(agi_mpi_call *call, ag_status messages);

/* Checks the arguments on this rank: check.c. */
ag_status agi_mpi_check(agi_mpi_call *call, const ag_args *args, const ag_exec *exec, void *workspace,
                        size_t bytes);

#endif
