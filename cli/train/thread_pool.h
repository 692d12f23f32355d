/* A crew of threads for the model: one set that runs the loops of the model itself and, as the parallel loop
 * of ag_exec, the maps of its layers. */
#ifndef ATTNGRAD_CLI_THREAD_POOL_H
#define ATTNGRAD_CLI_THREAD_POOL_H

#include <attngrad.h>

struct crew;

/* threads - 1 threads beside the caller; one that cannot be started is done without. */
struct crew *crew_create(int64_t threads);
void crew_destroy(struct crew *crew); /* NULL is allowed */

/* task(arg, index) for each index below n; returns when all are done. Of ag_exec's form: ctx is the crew. */
void crew_run(void *ctx, int64_t n, ag_task task, void *arg);

#endif
