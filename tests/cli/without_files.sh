#!/bin/sh
# The command built without jansson: what needs no files works, what needs them says so in one line; CMake configures
# that variant, and scripts/setup lets `make demo` and `make install` build it.
# usage: without_files.sh PATH_TO_ATTNGRAD_WITHOUT_FILES ROOT CC
set -u
[ $# -eq 3 ] || { echo "usage: without_files.sh PATH_TO_ATTNGRAD_WITHOUT_FILES ROOT CC" >&2; exit 2; }
root=$2 cc=$3
. "$(dirname "$0")/../command.sh"

works --help
works info
works_with "0 failed" check "h2 q5 d4 f32 causal"
works_with "0 failed" check --random 5
works demo
for command in forward grad jvp jvp2 hvp train sample; do
    unusable_with "attngrad $command: left out of this build, which has no jansson" $command --help
done
unusable_with "left out of this build" grad --q q.npy --k k.npy --v v.npy

# configure IO TESTING [OPTION]...: configures the project, again in the same folder, which is fast; the targets that it has
# then are in $out
configure() {
    io=$1 testing=$2
    shift 2
    cmake -S "$root" -B "$dir/build" -DCMAKE_C_COMPILER="$cc" -DATTNGRAD_IO="$io" -DBUILD_TESTING="$testing" "$@" \
        >"$err" 2>&1 && cmake --build "$dir/build" --target help >"$out" 2>>"$err"
    code=$?
}

has() { # has TARGET
    grep -qw "$1" "$out"
}

has_no() {
    ! has "$1"
}

# without IO TESTING [OPTION]...: configured so, there is the command and no library of files
without() {
    configure "$@"
    check "ATTNGRAD_IO=$*: configured" [ "$code" -eq 0 ]
    check "ATTNGRAD_IO=$*: there is the command" has attngrad
    check "ATTNGRAD_IO=$*: there is no library of files" has_no attngrad_io_static
}

for value in AUTO ON 1; do
    configure $value OFF
    check "ATTNGRAD_IO=$value: configured" [ "$code" -eq 0 ]
    check "ATTNGRAD_IO=$value: there is the library of files" has attngrad_io_static
done
for value in 0 FALSE no OFF; do
    without $value OFF
done
without OFF ON

# A library that is OFF is none, and is not looked for.
for testing in OFF ON; do
    without AUTO $testing -DJANSSON_LIBRARY=OFF
    check "AUTO says that there is no jansson" grep -q "no jansson: the command is built without" "$err"
done
configure ON OFF -DJANSSON_LIBRARY=OFF
check "ON without jansson is refused" [ "$code" -ne 0 ]
check "ON without jansson says what is missing" grep -q "jansson is missing" "$err"

# scripts/setup on a machine without jansson: a compiler that does not find its header, a user or root (by id), apt-get
# that fails as it does without a network.
mkdir "$dir/machine"
printf '#!/bin/sh\ncase $1 in -E) exit 1 ;; esac\nexec "%s" "$@"\n' "$(command -v cc)" >"$dir/machine/cc"
printf '#!/bin/sh\necho "apt-get $*" >>"%s"\nexit 100\n' "$dir/apt" >"$dir/machine/apt-get"
for user in 0 1000; do
    printf '#!/bin/sh\necho %s\n' $user >"$dir/machine/id"
    chmod +x "$dir/machine"/*
    : >"$dir/apt"
    PATH="$dir/machine:$PATH" "$root/scripts/setup" demo >"$out" 2>"$err"
    code=$?
    check "user $user: make demo goes on without jansson" [ "$code" -eq 0 ]
    check "user $user: one line" [ "$(cat "$out" "$err" | wc -l)" -eq 1 ]
    check "user $user: it says what is left out" grep -q "jansson .*: built without the commands on files" "$err"
    check "only root asks apt" [ "$(wc -l <"$dir/apt")" -eq "$((user == 0))" ]
    PATH="$dir/machine:$PATH" "$root/scripts/setup" test >"$out" 2>"$err"
    code=$?
    check "user $user: make test needs jansson" [ "$code" -ne 0 ]
done
finish
