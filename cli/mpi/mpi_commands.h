/* The commands of attngrad-mpi, which `attngrad check --mpi` and `attngrad bench --mpi` become on every rank. All ranks
 * run the same command; rank 0 prints. */
#ifndef ATTNGRAD_CLI_MPI_COMMANDS_H
#define ATTNGRAD_CLI_MPI_COMMANDS_H

#include <attngrad_mpi.h>

#include "options.h"

int mpi_check_main(int argc, char **argv);
int mpi_bench_main(int argc, char **argv);

/* The options that both have. */
struct mpi_request {
    const char *text, *way, *layout, *progress;
    int64_t threads;
    uint64_t seed;
    double timeout_s;
    bool help, mpi, invariant;
};

enum { MPI_SHARED_OPTIONS = 9 };
void mpi_shared_options(struct mpi_request *r, struct option options[MPI_SHARED_OPTIONS]);

/* Fills in the options of the plan. Returns 0, or prints what is wrong, on rank 0, and returns EXIT_USAGE. */
int mpi_plan_options(const char *command, const struct mpi_request *r, ag_mpi_options *options,
                     ag_options *plan);

const char *mpi_way_name(ag_mpi_way way);

extern int mpi_rank, mpi_ranks; /* of MPI_COMM_WORLD */

/* The message of the library that is called next, or was last: says why its call failed. */
extern const char *(*mpi_reason)(void);

/* An error message, printed by rank 0 alone. Returns EXIT_USAGE. */
int mpi_usage_error(const char *command, const char *text);

#endif
