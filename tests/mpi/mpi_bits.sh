#!/bin/sh
# Two runs on 4 ranks, on 1 and on 2 threads, give the same bits in all ways and layouts: mpi_bits.sh MPI_MAPS
set -eu
here=$(dirname "$0") program=$1

hash_of() { # hash_of THREADS
    sh "$here/mpirun.sh" 4 "$program" 0 8 "$1" | sed -n 's/^8 problems.*hash of all results //p'
}

first=$(hash_of 1)
second=$(hash_of 2)
if [ -z "$first" ] || [ "$first" != "$second" ]; then
    echo "the hash of all results is '$first' on 1 thread, '$second' on 2"
    exit 1
fi
echo '1 checks passed, 0 failed'
