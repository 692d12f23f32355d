#!/bin/sh
# No warnings under the other compiler: compilers.sh ROOT WORK ID
# ID is CMake's name of the compiler of this build, which treats warnings as errors already. The whole project
# (library, command, tests, fuzz targets) is built once more by the other one of gcc and clang; by clang without
# optimisation, and the library once more with it: few of clang's warnings come from its optimiser.
set -eu
root=$1 work=$2 id=$3
passed=0

build() { # build COMPILER OPTIMISATION TARGET
    cmake -S "$root" -B "$work/$1$2" -DCMAKE_C_COMPILER="$1" -DATTNGRAD_WERROR=ON -DATTNGRAD_TEST_PACKAGE=OFF \
        -DCMAKE_BUILD_TYPE=Debug -DCMAKE_C_FLAGS_DEBUG="$2 -DNDEBUG"
    cmake --build "$work/$1$2" -j 2 --target "$3"
    passed=$((passed + 1))
}

for cc in gcc clang; do
    case $cc-$id in
    gcc-GNU | clang-Clang) continue ;;
    esac
    if ! command -v $cc >/dev/null 2>&1; then
        echo "$cc is not installed; scripts/setup test installs it"
        exit 1
    fi
    if [ $cc = clang ]; then
        build clang -O0 all
        build clang -O3 attngrad_static
    else
        build gcc -O3 all
    fi
done
echo "$passed checks passed, 0 failed"
