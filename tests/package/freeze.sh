#!/bin/sh
# The frozen header: freeze.sh ROOT [--write]
# frozen/attngrad-VERSION.h is a copy of the header as released; frozen.c is compiled against the newest copy
# and run with the current library. As long as the header still carries the version of that copy, the two
# must be the same: a change of a released header needs a new version.
#
# At a release: set AG_VERSION_* in include/attngrad.h, run `tests/package/freeze.sh . --write`, and let
# frozen.c include the new copy. Before a version is released, the same command updates its copy.
set -eu
root=$1
version=$(sed -n 's/^#define AG_VERSION_[A-Z]* //p' "$root/include/attngrad.h" | paste -sd. -)
frozen=$root/tests/package/frozen/attngrad-$version.h
if [ "${2:-}" = --write ]; then
    cp "$root/include/attngrad.h" "$frozen"
    echo "wrote $frozen"
elif [ ! -e "$frozen" ]; then
    echo "version $version is not frozen yet: it is not released"
elif ! cmp "$root/include/attngrad.h" "$frozen"; then
    echo "the header of version $version is not its frozen copy; raise AG_VERSION_*, or, if $version is not"
    echo "released yet, run: tests/package/freeze.sh . --write"
    exit 1
fi
echo "1 checks passed, 0 failed"
