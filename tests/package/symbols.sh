#!/bin/sh
# The library's symbols: symbols.sh ROOT SHARED STATIC
# The shared library exports exactly the functions that the public headers declare, which are exactly those
# of symbols.txt; the static one defines no global name that does not start with ag_ or agi_.
set -eu
root=$1 shared=$2 static=$3
kept=$root/tests/package/symbols.txt
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
passed=0 failed=0

same() { # same NAME LEFT RIGHT
    if diff "$2" "$3" >"$work/diff"; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "$1 (< $(basename "$2"), > $(basename "$3")):"
        cat "$work/diff"
    fi
}

cat "$root"/include/attngrad*.h | sed -n 's/^AG_API .*[ *]\(ag_[a-z0-9_]*\)(.*/\1/p' | LC_ALL=C sort >"$work/declared"
nm -D --defined-only "$shared" | awk '{ print $3 }' | LC_ALL=C sort >"$work/exported"
nm -g --defined-only "$static" | awk 'NF == 3 && $3 !~ /^agi?_/ { print $3 }' >"$work/strangers"
: >"$work/none"

same 'exported and kept differ; where a function was added on purpose, add it to symbols.txt' "$work/exported" "$kept"
same 'declared and kept differ' "$work/declared" "$kept"
same 'global names without the prefix in the static library' "$work/strangers" "$work/none"
[ -s "$work/exported" ] || { echo "no symbols found in $shared" && failed=$((failed + 1)); }

soname=$(readelf -d "$shared" | sed -n 's/.*SONAME.*\[\(.*\)\].*/\1/p')
if [ "$soname" = libattngrad.so.0 ]; then
    passed=$((passed + 1))
else
    echo "SONAME is '$soname', not libattngrad.so.0"
    failed=$((failed + 1))
fi
echo "$passed checks passed, $failed failed"
[ "$failed" -eq 0 ]
