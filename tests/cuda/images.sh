#!/bin/sh
# The compiler's report on each image of kernels: images.sh FOLDER SPILLS CONSUMERS NAME...
# Every image is there and has kernels; no kernel spills more registers to memory than SPILLS allows; no warpgroup product
# was serialised (remarks C7510 to C7518 of ptxas). SPILLS has a line per kernel that may spill: ARCHITECTURE KERNEL BYTES,
# the sum of what it stores and loads; a line that allows more than twice what its kernel needs is an error too, and so is
# one whose kernel is not in the report of its architecture. The report is of whole kernels: CONSUMERS is the list of what
# the consumers among them spill (consumers.py); where no image is for sm_90a there are none, and a line says so.
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
folder=$1 spills=$2 consumers=$3
shift 3
passed=0 failed=0

check() { # check DESCRIPTION COMMAND...
    what=$1
    shift
    if "$@"; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAIL: $what"
    fi
}

# Prints what is wrong with the spills of a report: not allowed, more than allowed, or a line that allows too much or has
# no kernel.
compare() { # compare REPORT SPILLS
    awk 'FILENAME == ARGV[1] { if ($1 !~ /^#/ && NF == 3) allowed[$1 " " $2] = $3; next }
         $1 == "total" { next }
         { key = $1 " " $2; bytes = $5 + $6; limit = key in allowed ? allowed[key] : 0; seen[key]; seen[$1]
           if (bytes > limit) print key " spills " bytes " bytes, allowed are " limit
           if (2 * bytes < limit) print key " spills " bytes " bytes, the list allows " limit }
         END { for (key in allowed) { split(key, word, " ")
                   if (word[1] in seen && !(key in seen)) print key " is in the list, but there is no such kernel" } }' \
        "$2" "$1"
}

spills_as_listed() { # spills_as_listed REPORT SPILLS
    compare "$1" "$2" >"$work/wrong"
    cat "$work/wrong"
    [ ! -s "$work/wrong" ]
}

has_kernels() {
    [ "$("$root/scripts/cuda-report" "$1" | wc -l)" -gt 1 ]
}

is_fatbin() {
    [ "$(od -An -tx4 -N4 "$1" | tr -d ' ')" = ba55ed50 ]
}

no_remarks() {
    ! grep -E 'C751[0-8]' "$1"
}

# The patterns above find what they look for.
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
printf '%s\n' "ptxas info    : Compiling entry function 'good' for 'sm_90'" "ptxas info    : Function properties for good" \
    "    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads" \
    "ptxas info    : Used 168 registers, used 1 barriers" "ptxas info    : Compile time = 36.589 ms" \
    "ptxas info    : Compiling entry function 'bad' for 'sm_90'" "ptxas info    : Function properties for bad" \
    "    8 bytes stack frame, 4 bytes spill stores, 8 bytes spill loads" "ptxas info    : Used 255 registers, used 1 barriers" \
    "ptxas info    : Compile time = 2.5 ms" "sm_90: 7 seconds" >"$work/log"
"$root/scripts/cuda-report" "$work/log" >"$work/report"
check "a report is read" test "$(cat "$work/report")" = "sm_90 good 168 0 0 0 36
sm_90 bad 255 8 4 8 2
total 2 7"
: >"$work/none"
echo "sm_90 bad 12" >"$work/enough"
echo "sm_90 bad 25" >"$work/too_much"
check "a spill is found" test "$(compare "$work/report" "$work/none")" = "sm_90 bad spills 12 bytes, allowed are 0"
check "a spill is allowed" test -z "$(compare "$work/report" "$work/enough")"
printf '%s\n' "ptxas info    : (C7519) warpgroup.arrive is injected" >"$work/injected"
printf '%s\n' "ptxas info    : (C7513) Potential Performance Loss: wgmma.mma_async instructions are serialized" >"$work/serialised"
check "an injected arrival is no fault" no_remarks "$work/injected"
check "a serialised product is found" test -n "$(no_remarks "$work/serialised" || echo found)"
printf '%s\n' "sm_90 bad 12" "sm_80 bad 12" "sm_90 gone 12" >"$work/unused"
check "a line without a kernel is found" test "$(compare "$work/report" "$work/unused")" = \
    "sm_90 gone is in the list, but there is no such kernel"
check "a line that allows too much is found" test -n "$(compare "$work/report" "$work/too_much")"

: >"$work/all"
bytes=0
for name in "$@"; do
    check "$name.fatbin" is_fatbin "$folder/$name.fatbin"
    check "$name has no kernels" has_kernels "$folder/$name.log"
    check "$name has serialised products" no_remarks "$folder/$name.log"
    cat "$folder/$name.log" >>"$work/all"
    bytes=$((bytes + $(wc -c <"$folder/$name.fatbin")))
done
"$root/scripts/cuda-report" "$work/all" >"$work/report"
check "spills" spills_as_listed "$work/report" "$spills"
if grep -q '^sm_90a ' "$work/report"; then
    check "spills of consumers" python3 "$(dirname "$0")/consumers.py" "$folder" "$consumers"
else
    echo "no image is for sm_90a: no kernels with consumers"
fi
awk '$1 == "total" { print $2 " kernels, compiled in " $3 " seconds" }' "$work/report"
echo "$bytes bytes of images"
echo "$passed checks passed, $failed failed"
[ "$failed" -eq 0 ]
