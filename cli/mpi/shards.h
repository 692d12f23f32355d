/* A call of all maps on the shards of one problem: copies the rows of one rank out of the arrays of the whole problem,
 * runs the maps on them, and copies the results back. For the command and for the tests, on MPI and on threads. */
#ifndef ATTNGRAD_CLI_SHARDS_H
#define ATTNGRAD_CLI_SHARDS_H

#include "check/arrays.h"

#include <attngrad_mpi.h>

/* The tensors of one rank. */
struct shard {
    ag_mpi_plan *plan;
    const struct arrays *x; /* the whole problem, or this rank's rows: inputs */
    int of_rows;            /* x has this rank's rows alone */
    ag_mpi_shard_info info;
    ag_args args;
    int64_t size[T_COUNT][4];
    void *data[T_COUNT];
    void *so;
    void *workspace;
    size_t bytes;
};

/* AG_OK, AG_NO_MEMORY or the status of the plan; s is to be destroyed either way. */
ag_status shard_create(struct shard *s, ag_mpi_plan *plan, int32_t rank, const struct arrays *x);
void shard_destroy(struct shard *s);

/* The same from arrays that have this rank's rows alone, without bias, mask and packed sequences. */
ag_status shard_create_of_rows(struct shard *s, ag_mpi_plan *plan, int32_t rank, const struct arrays *x);

/* Calls one map (AG_MAP_*). exec may be NULL. */
ag_status shard_call(struct shard *s, uint32_t map, const ag_exec *exec);

/* The same; outputs that do not accumulate are first filled with NaN. */
ag_status shard_run(struct shard *s, uint32_t map);

/* jvp along the second direction: writes smu, which jvp_jvp reads. */
ag_status shard_run_along_s(struct shard *s);

/* forward, vjp, jvp, vjp_jvp, jvp along s, jvp_jvp. */
ag_status shard_run_all(struct shard *s);

/* Is the tensor equal on all ranks? Else each has its own rows. */
int shard_is_replicated(const struct shard *s, enum tensor t);

/* Copies the outputs into the arrays of the whole problem: the rows of this rank, and what all ranks have if `all`. */
void shard_collect(const struct shard *s, struct arrays *y, int all);

#endif
