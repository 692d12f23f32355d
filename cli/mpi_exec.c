/* Replaces the process by attngrad-mpi, so that the command itself does not depend on MPI: see mpi_exec.h. */
#define _POSIX_C_SOURCE 200809L /* readlink */
#include "mpi_exec.h"

#include "usage.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { PATH_SIZE = 4096, MAX_ARGUMENTS = 64 };

bool mpi_is_asked_for(int argc, char **argv)
{
    for (int n = 1; n < argc; n++) {
        if (strcmp(argv[n], "--mpi") == 0) {
            return true;
        }
    }
    return false;
}

/* The program in the folder of this one; its bare name if the system does not say where that is. */
static void find_program(char path[PATH_SIZE])
{
    static const char name[] = "attngrad-mpi";
    const ssize_t length = readlink("/proc/self/exe", path, PATH_SIZE - sizeof name);
    path[length > 0 ? length : 0] = '\0';
    char *slash = strrchr(path, '/');
    memcpy(slash == NULL ? path : slash + 1, name, sizeof name);
}

int mpi_exec(int argc, char **argv)
{
    char path[PATH_SIZE];
    char *arguments[MAX_ARGUMENTS + 2] = {path};
    if (argc > MAX_ARGUMENTS) {
        return usage_error(argv[0], "--mpi: more than %d arguments", MAX_ARGUMENTS);
    }
    find_program(path);
    memcpy(arguments + 1, argv, (size_t)argc * sizeof argv[0]);
    execvp(path, arguments);
    return file_error(argv[0], "--mpi: cannot run '%s': %s%s", path, strerror(errno),
                      errno == ENOENT ? ": this build has no MPI" : "");
}
