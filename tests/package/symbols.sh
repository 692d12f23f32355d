#!/bin/sh
# A library's symbols: symbols.sh ROOT LIBRARY SHARED STATIC, LIBRARY being attngrad, attngrad_io or attngrad_mpi
# The shared library exports exactly the functions that its public headers declare, which are exactly those
# of symbols.txt, symbols_io.txt or symbols_mpi.txt; the static one defines no global name that does not start with ag_
# or agi_. attngrad_io.h belongs to attngrad_io, attngrad_mpi.h to attngrad_mpi, every other header to attngrad, except
# attngrad_check.h, whose library is unstable.
set -eu
root=$1 library=$2 shared=$3 static=$4

# The public headers of the library, one after another.
headers() {
    case $library in
    attngrad_io | attngrad_mpi) cat "$root/include/$library.h" ;;
    *) find "$root/include" -name 'attngrad*.h' ! -name attngrad_io.h ! -name attngrad_mpi.h ! -name attngrad_check.h \
        -exec cat {} + ;;
    esac
}

listed=$root/tests/package/symbols${library#attngrad}.txt
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

headers | sed -n 's/^AG_API .*[ *]\(ag_[a-z0-9_]*\)(.*/\1/p' | LC_ALL=C sort >"$work/declared"
nm -D --defined-only "$shared" | awk '{ print $3 }' | LC_ALL=C sort >"$work/exported"
nm -g --defined-only "$static" | awk 'NF == 3 && $3 !~ /^agi?_/ { print $3 }' >"$work/without_prefix"
: >"$work/none"

same 'exported and listed differ; if a function was added on purpose, add it to symbols.txt' "$work/exported" "$listed"
same 'declared and listed differ' "$work/declared" "$listed"
same 'global names without the prefix in the static library' "$work/without_prefix" "$work/none"
[ -s "$work/exported" ] || { echo "no symbols found in $shared" && failed=$((failed + 1)); }

soname=$(readelf -d "$shared" | sed -n 's/.*SONAME.*\[\(.*\)\].*/\1/p')
if [ "$soname" = "lib$library.so.0" ]; then
    passed=$((passed + 1))
else
    echo "SONAME is '$soname', not lib$library.so.0"
    failed=$((failed + 1))
fi
echo "$passed checks passed, $failed failed"
[ "$failed" -eq 0 ]
