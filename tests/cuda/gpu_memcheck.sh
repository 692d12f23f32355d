#!/bin/sh
# Small problems on a GPU under a tool of compute-sanitizer:
#     gpu_memcheck.sh memcheck|racecheck PATH_TO_GPU_BITS PROBLEM...
set -eu
tool=$1
shift
PATH=$PATH:/usr/local/cuda/bin
command -v compute-sanitizer >/dev/null 2>&1 || { echo "compute-sanitizer is not here" && exit 1; }
log=$(mktemp)
trap 'rm -f "$log"' EXIT
compute-sanitizer --tool "$tool" --error-exitcode 99 "$@" >"$log" 2>&1 && status=0 || status=$?
cat "$log"
# racecheck's summary has other words
grep -qE "ERROR SUMMARY: 0 errors|RACECHECK SUMMARY: 0 hazards displayed \(0 errors, 0 warnings\)" "$log" ||
    { echo "no summary without errors" && exit 1; }
exit "$status"
