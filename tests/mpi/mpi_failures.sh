#!/bin/sh
# Ranks that fail: mpi_failures.sh PROGRAM
# A killed rank ends the job, not with status 0, within the timeout of 2 s and 10 s, by our status or by mpirun; so does
# one that never comes to a map, or to the plan, by our status. One that computes for longer than the timeout ends
# nothing.
set -eu
here=$(dirname "$0") program=$1
log=$(mktemp)
trap 'rm -f "$log"' EXIT
failed=0

fail() {
    echo "$1:"
    cat "$log"
    failed=$((failed + 1))
}

sh "$here/mpirun.sh" 3 "$program" argument >"$log" 2>&1 || fail 'wrong arguments'
sh "$here/mpirun.sh" 3 "$program" slow >"$log" 2>&1 || fail 'a slow rank'
for mode in kill silent absent; do
    status=0
    timeout 12 sh "$here/mpirun.sh" 3 "$program" "$mode" >"$log" 2>&1 || status=$?
    [ "$status" -ne 0 ] || fail "$mode: the job has succeeded"
    [ "$status" -ne 124 ] || fail "$mode: the job did not end within 12 s"
    [ "$mode" = kill ] || grep -q 'timed out: .*timeout_s' "$log" || fail "$mode: no rank has timed out"
done
echo "$((5 - failed)) checks passed, $failed failed"
[ "$failed" -eq 0 ]
