#!/bin/sh
# Small problems on a GPU under compute-sanitizer's memcheck: gpu_memcheck.sh PATH_TO_GPU_BITS PROBLEM...
set -eu
PATH=$PATH:/usr/local/cuda/bin
command -v compute-sanitizer >/dev/null 2>&1 || { echo "compute-sanitizer is not here" && exit 1; }
log=$(mktemp)
trap 'rm -f "$log"' EXIT
compute-sanitizer --tool memcheck --error-exitcode 99 "$@" >"$log" 2>&1 && status=0 || status=$?
cat "$log"
grep -q "ERROR SUMMARY: 0 errors" "$log" || { echo "no summary without errors" && exit 1; }
exit "$status"
