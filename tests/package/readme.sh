#!/bin/sh
# The README's example: readme.sh ROOT CC STATIC-LIBRARY
# The first ```c block of README.md is compiled without a warning and run.
set -eu
root=$1 cc=$2 library=$3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
awk '/^```c$/ { if (!seen) { inside = seen = 1; next } } /^```$/ { inside = 0 } inside' "$root/README.md" >"$work/example.c"
if [ ! -s "$work/example.c" ]; then
    echo 'README.md has no ```c block'
    exit 1
fi
"$cc" -std=c11 -Wall -Wextra -Wpedantic -Werror -I "$root/include" "$work/example.c" -o "$work/example" \
    "$library" -lm -pthread
"$work/example"
echo "1 checks passed, 0 failed"
