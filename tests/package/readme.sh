#!/bin/sh
# The example of a document: readme.sh ROOT CC DOCUMENT LIBRARY...
# The first ```c block of the document is compiled without a warning, linked with the libraries, and run in a
# folder of its own.
set -eu
root=$1 cc=$2 document=$3
shift 3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
awk -f "$root/tests/package/first_example.awk" "$root/$document" >"$work/example.c"
if [ ! -s "$work/example.c" ]; then
    echo "$document has no \`\`\`c block"
    exit 1
fi
"$cc" -std=c11 -Wall -Wextra -Wpedantic -Werror -I "$root/include" "$work/example.c" -o "$work/example" \
    "$@" -lm -pthread
(cd "$work" && ./example)
echo "1 checks passed, 0 failed"
