#!/bin/sh
# Are messages hidden behind the maps? mpi_hidden.sh ATTNGRAD
# Two ranks on a network of 100 MB/s, a token bucket on the loopback of a network namespace of its own. jvp sends for
# about 90 ms and computes for longer. Messages are moved on by a thread of the plan and, in other runs, by the maps'
# poll: in the best of up to five runs of each, at least half of the transfer must be hidden. On two busy processors one
# of the two may fail: a rank that waits for a processor makes the other one wait too. If nothing moves messages on, all
# of the transfer is seen, so that both fail.
# Exit status 77: not possible here.
set -eu
attngrad=$1
here=$(cd "$(dirname "$0")" && pwd)

missing() {
    echo "cannot test: $1"
    [ -z "${CI:-}" ] || exit 1
    exit 77
}

if [ "${2:-}" != inside ]; then
    command -v tc >/dev/null || missing 'no tc (Debian: iproute2)'
    mpirun --version 2>/dev/null | grep -q 'Open MPI' || missing 'its settings are those of Open MPI'
    options=-n
    [ "$(id -u)" -eq 0 ] || options=-rn
    reason=$(unshare $options true 2>&1) || missing "no network namespace can be made: $reason"
    exec unshare $options sh "$0" "$attngrad" inside
fi

reason=$(ip link set lo up 2>&1) || missing "the loopback cannot be used: $reason"
reason=$(tc qdisc add dev lo root tbf rate 800mbit burst 256kb latency 100ms 2>&1) ||
    missing "the rate cannot be limited: $reason"
export OMPI_MCA_btl=tcp,self OMPI_MCA_btl_tcp_if_include=lo OMPI_MCA_oob_tcp_if_include=lo

hides() { # hides PROGRESS
    for run in 1 2 3 4 5; do
        share=$(sh "$here/mpirun.sh" 2 "$attngrad" bench --mpi 'h1 q8192 d64 f32' --way keys --map jvp --rounds 3 \
            --progress "$1" --json | awk '/"hidden"/ { print $2 }')
        echo "$1, run $run: hidden $share"
        awk -v share="$share" 'BEGIN { exit !(share + 0 >= 0.5) }' && return 0
    done
    return 1
}

for progress in thread poll; do
    if hides $progress; then
        echo '1 checks passed, 0 failed'
        exit 0
    fi
    echo "$progress has not hidden half of the transfer in any run"
done
echo '0 checks passed, 1 failed'
exit 1
