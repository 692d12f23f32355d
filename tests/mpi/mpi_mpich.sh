#!/bin/sh
# The library, 20 random problems on 3 ranks, wrong arguments and lost ranks with MPICH, beside the MPI that the build
# has found:
# mpi_mpich.sh ROOT LIBRARY... (libattngrad_mpi.a, of which all but the transport is used, and those that it needs)
# Exit status 77: there is no MPICH.
set -eu
root=$1
shift
if ! command -v mpicc.mpich >/dev/null || ! command -v mpirun.mpich >/dev/null; then
    echo 'cannot test: no MPICH (Debian: mpich libmpich-dev)'
    [ -z "${CI:-}" ] || exit 1
    exit 77
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

compile() { # compile NAME LIBRARY...
    name=$1
    shift
    mpicc.mpich -O2 -std=c11 -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Werror -I "$root/include" -I "$root/src" \
        -I "$root/tests" -I "$root/cli/mpi" -o "$work/$name" "$root/src/mpi/transport_mpi.c" \
        "$root/tests/mpi/$name.c" "$root/cli/mpi/shards.c" "$@" -lm -lpthread
}

compile mpi_maps "$@"
compile mpi_failures "$@"
export MPIRUN=mpirun.mpich
sh "$root/tests/mpi/mpirun.sh" 3 "$work/mpi_maps" 0 20
sh "$root/tests/mpi/mpi_failures.sh" "$work/mpi_failures"
