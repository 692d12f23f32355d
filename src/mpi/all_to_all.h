/* The all-to-all way: an exchange gives each rank all rows of its kv heads and their query heads, the map runs on them,
 * and a second exchange gives each rank the results of its rows. */
#ifndef AGI_MPI_ALL_TO_ALL_H
#define AGI_MPI_ALL_TO_ALL_H

#include "mpi/call.h"
#include "mpi/features.h"
#include "mpi/items.h"

/* A tensor that is cut by rows, and all rows of it for this rank's heads. */
typedef struct {
    agi_mpi_item item; /* heads: of all ranks */
    agi_mpi_side side;
    bool shared; /* a bias or mask that all heads share: each rank gets it, and its gradient is a sum */
    bool in, out;
    agi_mpi_array whole; /* [sequences][heads of this rank][all rows][channels] */
} agi_mpi_exchanged;

/* A tensor that each rank has whole: table, sink, and a bias or mask without rows. */
typedef struct {
    const agi_tensor_info *f;
    int64_t size[4];
    agi_mpi_array x; /* all heads */
    bool out;
} agi_mpi_replicated;

enum { AGI_MPI_MAX_EXCHANGED = 24, AGI_MPI_MAX_REPLICATED = 12 };

typedef struct {
    const ag_mpi_plan *plan;
    agi_mpi_exchanged exchanged[AGI_MPI_MAX_EXCHANGED];
    agi_mpi_replicated replicated[AGI_MPI_MAX_REPLICATED];
    int n_exchanged, n_replicated;
    char *sending, *receiving; /* blocks of all other ranks, of one tensor */
    void *room;                /* for sums over ranks */
    void *workspace;           /* of the map inside */
    size_t workspace_bytes;
} agi_mpi_exchange;

void agi_mpi_all_to_all_lay_out(agi_mpi_exchange *x, agi_arena *arena, const ag_mpi_plan *plan, agi_map map,
                                const ag_args *a);

/* The whole map. All ranks return the same status. */
ag_status agi_mpi_all_to_all_map(agi_mpi_call *call, void *workspace);

#endif
