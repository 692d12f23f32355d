/* Dry runs of the layouts: see workspace.h. */
#include "mpi/workspace.h"

#include "mpi/all_to_all.h"
#include "mpi/message.h"
#include "mpi/ring.h"

static size_t bytes_of(const ag_mpi_plan *plan, agi_map map)
{
    agi_arena arena = agi_arena_begin(NULL);
    if (plan->way[map] == AG_MPI_ALL_TO_ALL) {
        agi_mpi_exchange x;
        agi_mpi_all_to_all_lay_out(&x, &arena, plan, map, NULL);
    } else {
        agi_mpi_ring ring;
        agi_mpi_ring_lay_out(&ring, &arena, plan, map, NULL);
    }
    return agi_arena_bytes(&arena);
}

ag_status agi_mpi_size_workspaces(ag_mpi_plan *plan)
{
    for (agi_map map = AGI_FORWARD; map < AGI_N_MAPS; map++) {
        size_t check = 0; /* the check of a call asks for the workspace of this rank's rows */
        if (ag_plan_workspace(plan->shard, UINT32_C(1) << map, &check) != AG_OK) {
            continue; /* the backend lacks the map: calls of it are refused */
        }
        const size_t bytes = bytes_of(plan, map);
        if (bytes == SIZE_MAX) {
            return agi_mpi_fail(AG_UNSUPPORTED, "q_len",
                                "q_len %lld x kv_len %lld: the workspace exceeds all memory",
                                (long long)plan->cut.p->q_len, (long long)plan->cut.p->kv_len);
        }
        plan->bytes[map] = bytes > check ? bytes : check;
    }
    return AG_OK;
}
