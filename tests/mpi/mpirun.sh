#!/bin/sh
# Runs a program on ranks of this machine, with Open MPI or MPICH: mpirun.sh RANKS PROGRAM [ARGUMENT...]
# MPIRUN: another mpirun than that on PATH.
# More ranks than processors, and root, are allowed: these are tests.
set -eu
ranks=$1
shift
options=
mpirun=${MPIRUN:-mpirun}
if "$mpirun" --version 2>/dev/null | grep -q 'Open MPI'; then
    options='--allow-run-as-root --oversubscribe --bind-to none'
    export OMPI_MCA_btl_vader_single_copy_mechanism=none # needs a permission that containers lack
    export OMPI_MCA_mpi_yield_when_idle=1
fi
# shellcheck disable=SC2086
exec "$mpirun" $options -n "$ranks" "$@"
