#!/bin/sh
# The command built without jansson: what needs no files works, what needs them says so in one line; and CMake
# configures that variant. usage: without_files.sh PATH_TO_ATTNGRAD_WITHOUT_FILES ROOT CC
set -u
[ $# -eq 3 ] || { echo "usage: without_files.sh PATH_TO_ATTNGRAD_WITHOUT_FILES ROOT CC" >&2; exit 2; }
root=$2 cc=$3
. "$(dirname "$0")/../command.sh"

works --help
works info
works_with "0 failed" check "h2 q5 d4 f32 causal"
works_with "0 failed" check --random 5
works demo
for command in forward grad jvp hvp train sample; do
    unusable_with "attngrad $command: left out of this build, which has no jansson" $command --help
done
unusable_with "left out of this build" grad --q q.npy --k k.npy --v v.npy

# configure OPTION...: configures the project; the targets that it has then are in $out
configure() {
    rm -rf "$dir/build"
    cmake -S "$root" -B "$dir/build" -DCMAKE_C_COMPILER="$cc" "$@" >"$err" 2>&1 &&
        cmake --build "$dir/build" --target help >"$out" 2>>"$err"
    code=$?
    check "cmake $*" [ "$code" -eq 0 ]
}

has() { # has TARGET
    grep -qw "$1" "$out"
}

has_no() {
    ! has "$1"
}

for testing in OFF ON; do
    configure -DATTNGRAD_IO=OFF -DBUILD_TESTING=$testing
    check "without jansson there is the command" has attngrad
    check "without jansson there is no library of files" has_no attngrad_io_static
done
finish
