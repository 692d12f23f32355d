#!/bin/sh
# What the README promises of the run with default settings: over 99% recall in under two minutes on two cores. The
# accuracy is always checked; the time only if two processors were free for the run. That is assumed if all other
# processes together used less than a tenth of a processor meanwhile (/proc/stat less the run's own time).
# usage: train_recall.sh PATH_TO_ATTNGRAD
set -u
[ $# -eq 1 ] || { echo "usage: train_recall.sh PATH_TO_ATTNGRAD" >&2; exit 2; }
. "$(dirname "$0")/../command.sh"
cd "$dir" || exit 2
limit=120

# busy: CPU seconds of all processes since the system started; empty if there is no /proc/stat
busy() {
    awk -v hertz="$(getconf CLK_TCK)" '/^cpu / { print ($2 + $3 + $4 + $7 + $8 + $9) / hertz }' /proc/stat 2>/dev/null
}

# own FILE: CPU seconds of the children of a shell, from the output of its `times`
own() {
    awk 'NR == 2 { split($1 $2, t, "[ms]"); print t[1] * 60 + t[2] + t[3] * 60 + t[4] }' "$1"
}

before=$(busy)
start=$(date +%s.%N)
run train --threads 2
wall=$(date +%s.%N | awk -v start="$start" '{ printf "%.1f", $1 - start }')
after=$(busy)
recall=$(sed -n 's/^new sequences:.*recall \([0-9.]*\)%.*/\1/p' "$out")
times >times.txt # not in a pipe, whose subshell has no children
others=unknown
[ -z "$before" ] || others=$(awk -v all="$after" -v before="$before" -v own="$(own times.txt)" -v wall="$wall" \
    'BEGIN { printf "%.2f", (all - before - own) / wall }')
echo "recall $recall% in $wall s with 2 threads; others kept $others processors busy"
check "the run works" [ "$code" -eq 0 ]
check "over 99% recall" awk -v recall="$recall" 'BEGIN { exit !(recall > 99) }'
if [ "$others" != unknown ] && [ "$(nproc)" -ge 2 ] && awk -v others="$others" 'BEGIN { exit !(others < 0.1) }'; then
    check "in under $limit s" awk -v wall="$wall" -v limit=$limit 'BEGIN { exit !(wall < limit) }'
else
    echo "not checked: that it takes less than $limit s, as it did not have two processors to itself"
fi
finish
