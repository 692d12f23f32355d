#!/bin/sh
# Each public header alone: headers.sh INCLUDE CC CXX [FOLDER...]
# Compiled as C99, C11 and C++11, pedantic, every warning an error; its _INIT macros used. FOLDER: those of mpi.h;
# without any, attngrad_mpi.h is compiled without the function that takes a communicator.
set -eu
include=$1 cc=$2 cxx=$3
shift 3
mpi=-DAG_MPI_WITHOUT_MPI
[ $# -eq 0 ] || mpi=-DOMPI_SKIP_MPICXX=1
folders=
for folder; do
    folders="$folders -isystem $folder"
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
passed=0 failed=0

try() { # try NAME COMPILER STANDARD FILE
    # shellcheck disable=SC2086
    if "$2" "-std=$3" -Wall -Wextra -pedantic -Werror -Wshadow -Wconversion -I "$include" $folders "$mpi" \
        -c -o "$work/out.o" "$4" 2>"$work/errors"; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "$1:"
        cat "$work/errors"
    fi
}

for header in "$include"/attngrad*.h; do
    name=$(basename "$header")
    {
        echo "#include \"$name\""
        echo "int user(void);"
        echo "int user(void)"
        echo "{"
        sed -n 's/^#define AG_\([A-Z_]*\)_INIT .*/\1/p' "$header" | while read -r macro; do
            type=ag_$(echo "$macro" | tr '[:upper:]' '[:lower:]')
            echo "    { $type x = AG_${macro}_INIT; if (x.struct_size != sizeof(x)) return 1; }"
        done
        echo "    return 0;"
        echo "}"
    } >"$work/user.c"
    cp "$work/user.c" "$work/user.cc"
    try "$name as C99" "$cc" c99 "$work/user.c"
    try "$name as C11" "$cc" c11 "$work/user.c"
    try "$name as C++11" "$cxx" c++11 "$work/user.cc"
done
echo "$passed checks passed, $failed failed"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
