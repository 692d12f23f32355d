#!/bin/sh
# A library that was built with the CUDA backend needs no library of CUDA: no_library.sh SHARED
set -eu
needed=$(readelf -d "$1" | sed -n 's/.*(NEEDED).*\[\(.*\)\].*/\1/p')
if [ -z "$needed" ] || echo "$needed" | grep -iE 'cuda|nv'; then
    echo "$1 needs: $needed"
    echo "0 checks passed, 1 failed"
    exit 1
fi
echo "1 checks passed, 0 failed"
