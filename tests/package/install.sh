#!/bin/sh
# The installation seen from outside: install.sh ROOT WORK CC MPI, MPI being ON if libattngrad_mpi is to be there
# `make install` into a folder of its own, and README's example with what it prints at its end; then a program built
# through pkg-config against the shared and against the static library, and one through find_package against both; each
# is run. Then DESTDIR, folders with spaces, and `make uninstall`.
set -eu
root=$1 work=$2 cc=$3 mpi=$4
build="$work/the build"
prefix=$(mktemp -d) # outside WORK, whose path may have spaces: README's command then needs eval, as is tested below
trap 'rm -rf "$prefix"' EXIT
passed=0 failed=0

try() { # try NAME COMMAND...
    name=$1
    shift
    if "$@" >"$work/log" 2>&1; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAILED: $name: $*"
        cat "$work/log"
    fi
}

# The build is kept for the next run; what was installed is not.
rm -rf "$work/the stage" "$work/a b" "$work/a" "$work/consumer"
mkdir -p "$work"
unset MAKEFLAGS MFLAGS MAKELEVEL DESTDIR
try 'make install' make -C "$root" install BUILD="$build" PREFIX="$prefix"
cp "$work/log" "$work/install.log"

# as_told FILE COMMAND: builds README's example and starts it, in an environment of nothing but what the lines of FILE
# that begin with "export" say
as_told() {
    awk -f "$root/tests/package/first_example.awk" "$root/README.md" >"$work/example.c"
    grep '^ *export ' "$1" >"$work/environment.sh" || return 1
    env -i PATH="$PATH" sh -c '. "$1" && cd "$2" && eval "$3" && ./example' - "$work/environment.sh" "$work" "$2"
}
readme_command=$(sed -n 's/^ *\(cc example.c .* -o example\) && .*/\1/p' "$root/README.md")
try "README's example, as make install says" as_told "$work/install.log" "$readme_command"
sed "s|\$HOME/x|$prefix|" "$root/README.md" >"$work/README"
if [ -e "$prefix/lib" ]; then
    try "README's example, as README says" as_told "$work/README" "$readme_command"
else
    echo "not checked: README's folder of the libraries, lib, as this system has another name for it"
fi

PKG_CONFIG_PATH=$(find "$prefix" -type d -name pkgconfig)
export PKG_CONFIG_PATH
libdir=$(dirname "$PKG_CONFIG_PATH")
for file in bin/attngrad include/attngrad.h include/attngrad_io.h include/attngrad_check.h share/man/man1/attngrad.1 \
    share/bash-completion/completions/attngrad; do
    try "installed file" test -f "$prefix/$file"
done
for file in libattngrad.a libattngrad.so libattngrad.so.0 libattngrad_io.a libattngrad_io.so libattngrad_io.so.0 \
    libattngrad_check.a; do
    try "installed library" test -f "$libdir/$file"
done
try 'the command runs' "$prefix/bin/attngrad" --version
try 'version of attngrad.pc' test "$(pkg-config --modversion attngrad)" = "$("$prefix/bin/attngrad" --version | awk '{ print $2 }')"

# The output of pkg-config is split into words on purpose.
# shellcheck disable=SC2046
try 'pkg-config, shared' "$cc" "$root/tests/package/consumer/main.c" -o "$work/through-pc" \
    $(pkg-config --cflags --libs attngrad) -lm
try 'run, shared' env LD_LIBRARY_PATH="$libdir" "$work/through-pc"
# shellcheck disable=SC2046
try 'pkg-config, static' "$cc" -static "$root/tests/package/consumer/main.c" -o "$work/through-pc-static" \
    $(pkg-config --static --cflags --libs attngrad)
try 'run, static' "$work/through-pc-static"
# shellcheck disable=SC2046
try 'pkg-config, io, shared' "$cc" "$root/tests/package/consumer/io.c" -o "$work/io-through-pc" \
    $(pkg-config --cflags --libs attngrad_io)
try 'run, io, shared' env LD_LIBRARY_PATH="$libdir" "$work/io-through-pc" "$work/x.safetensors"
# shellcheck disable=SC2046
try 'pkg-config, io, static' "$cc" -static "$root/tests/package/consumer/io.c" -o "$work/io-through-pc-static" \
    $(pkg-config --static --cflags --libs attngrad_io)
try 'run, io, static' "$work/io-through-pc-static" "$work/x.safetensors"
# shellcheck disable=SC2046
try 'pkg-config, check' "$cc" "$root/tests/package/consumer/check.c" -o "$work/check-through-pc" \
    $(pkg-config --cflags --libs attngrad_check)
try 'run, check' env LD_LIBRARY_PATH="$libdir" "$work/check-through-pc"
# shellcheck disable=SC2046
try 'pkg-config, check, static' "$cc" -static "$root/tests/package/consumer/check.c" -o "$work/check-through-pc-static" \
    $(pkg-config --static --cflags --libs attngrad_check)
try 'run, check, static' "$work/check-through-pc-static"

mpi_program=''
if [ "$mpi" = ON ]; then
    mpi_program=$work/example.c
    awk -f "$root/tests/package/first_example.awk" "$root/docs/cluster.md" >"$mpi_program"
    command=$(sed -n 's/^    \(mpicc example.c .*\) && mpirun.*/\1/p' "$root/docs/cluster.md")
    try 'pkg-config, mpi' sh -c "cd '$work' && ${command:?docs/cluster.md has no command that compiles its example}"
    try 'run, mpi' env LD_LIBRARY_PATH="$libdir" "$work/example"
    try 'attngrad-mpi is next to attngrad' "$prefix/bin/attngrad" check --mpi --help
else
    echo 'not checked: libattngrad_mpi, as there is no MPI'
fi

try 'find_package' cmake -S "$root/tests/package/consumer" -B "$work/consumer" -DCMAKE_PREFIX_PATH="$prefix" \
    -DCMAKE_C_COMPILER="$cc" -DMPI_PROGRAM="$mpi_program"
try 'build' cmake --build "$work/consumer"
try 'run attngrad::attngrad' "$work/consumer/consumer_attngrad"
try 'run attngrad::static' "$work/consumer/consumer_static"
try 'run attngrad::io' "$work/consumer/consumer_io" "$work/x.safetensors"
try 'run attngrad::io_static' "$work/consumer/consumer_io_static" "$work/x.safetensors"
if [ -n "$mpi_program" ]; then
    try 'run attngrad::mpi' "$work/consumer/consumer_mpi"
    try 'run attngrad::mpi_static' "$work/consumer/consumer_mpi_static"
fi
try 'run attngrad::check' "$work/consumer/consumer_check"
try 'attngrad::attngrad is shared' sh -c "ldd '$work/consumer/consumer_attngrad' | grep -q libattngrad.so.0"
try 'attngrad::static is static' sh -c "! ldd '$work/consumer/consumer_static' | grep -q libattngrad"

# below FOLDER FILE: what is installed below FOLDER, one name per line, without FOLDER
below() {
    (cd "$1" && find . ! -type d | sed 's/^\.//' | LC_ALL=C sort) >"$2"
}

# uninstalls FOLDER: `make uninstall` names every file below FOLDER, and nothing but them is removed
uninstalls() {
    echo mine >"$1/mine" && below "$1" "$work/before" || return 1
    make -s -C "$root" uninstall BUILD="$build" >"$work/removed" || return 1
    below "$1" "$work/after"
    sed -n "s|^removed $1||p" "$work/removed" | grep -v '/cmake/attngrad$' | cat - "$work/after" | LC_ALL=C sort |
        cmp - "$work/before" && [ "$(cat "$work/after")" = "/mine" ] && ! find "$1" -name attngrad | grep .
}

try 'make uninstall' uninstalls "$prefix"
try 'nothing is left to uninstall' sh -c "! make -s -C '$root' uninstall BUILD='$build' >'$work/removed' 2>&1"
try 'which one line says' sh -c "[ \"\$(grep -c '^nothing to uninstall: ' '$work/removed')\" -eq 1 ]"

try 'make install, a space in PREFIX' make -C "$root" install BUILD="$build" PREFIX="$work/a b/c"
try 'installed there' test -x "$work/a b/c/bin/attngrad"
try 'and nowhere else' test ! -e "$work/a"
PKG_CONFIG_PATH=$(find "$work/a b" -type d -name pkgconfig)
try 'pkg-config, a space in PREFIX' eval "$cc" "'$root/tests/package/consumer/main.c'" -static -o "'$work/spaced'" \
    "$(pkg-config --static --cflags --libs attngrad)"
try 'run, a space in PREFIX' "$work/spaced"
try 'make uninstall, a space in PREFIX' uninstalls "$work/a b/c"

try 'make install below DESTDIR' make -C "$root" install BUILD="$build" PREFIX=/usr DESTDIR="$work/the stage"
cp "$work/log" "$work/staged.log"
try 'staged file' test -f "$work/the stage/usr/include/attngrad.h"
try 'no stage in attngrad.pc' sh -c "! grep -rq '$work/the stage' '$work/the stage' --include='*.pc' --include='*.cmake'"
try 'nothing is said about the environment then' sh -c "! grep 'export ' '$work/staged.log'"
try 'make uninstall below DESTDIR' uninstalls "$work/the stage"

echo "$passed checks passed, $failed failed"
[ "$failed" -eq 0 ]
