#!/bin/sh
# Writes the lists of what the kernels of a build spill, spills.txt and consumers.txt: lists.sh FOLDER
# FOLDER has its images, as build/dev/src/cuda. Lines of architectures that it has no code for stay as they are. Read the
# difference before you commit it: what has become worse needs a reason.
set -eu
folder=$1
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

heading() { # heading LIST
    grep '^#' "$here/$1"
}

"$here/../../scripts/cuda-report" "$folder"/*.log >"$work/report"
{
    awk '$1 != "total" && $5 + $6 > 0 { print $1, $2, $5 + $6 }' "$work/report"
    awk 'FILENAME == ARGV[1] { built[$1]; next } !/^#/ && !($1 in built)' "$work/report" "$here/spills.txt"
} | LC_ALL=C sort >"$work/spills"
python3 "$here/consumers.py" "$folder" >"$work/consumers"
for list in spills consumers; do
    heading $list.txt | cat - "$work/$list" >"$work/new"
    cat "$work/new" >"$here/$list.txt"
done
