/* Becoming attngrad-mpi, the program with the commands that run on MPI. */
#ifndef ATTNGRAD_CLI_MPI_EXEC_H
#define ATTNGRAD_CLI_MPI_EXEC_H

#include <stdbool.h>

/* Do the arguments of the command ask for MPI? */
bool mpi_is_asked_for(int argc, char **argv);

/* Runs attngrad-mpi, from this program's own folder, in the place of this program. argv[0] is the name of the command.
 * Returns only if that fails: an exit code, after a message. */
int mpi_exec(int argc, char **argv);

#endif
