#!/bin/sh
# No warnings under the other compiler: compilers.sh ROOT WORK ID
# ID is CMake's name of the compiler of this build, which treats warnings as errors already. The whole project
# (library, command, tests, fuzz targets) is built once more by the other one of gcc and clang; by clang without
# optimisation, as its warnings do not depend on it.
set -eu
root=$1 work=$2 id=$3
passed=0
for cc in gcc clang; do
    case $cc-$id in
    gcc-GNU | clang-Clang) continue ;;
    esac
    if ! command -v $cc >/dev/null 2>&1; then
        echo "$cc is not installed; scripts/setup test installs it"
        exit 1
    fi
    optimisation=-O3
    [ $cc = gcc ] || optimisation=-O0
    cmake -S "$root" -B "$work/$cc" -DCMAKE_C_COMPILER=$cc -DATTNGRAD_WERROR=ON -DATTNGRAD_TEST_PACKAGE=OFF \
        -DCMAKE_BUILD_TYPE=Debug -DCMAKE_C_FLAGS_DEBUG="$optimisation -DNDEBUG"
    cmake --build "$work/$cc" -j 2
    passed=$((passed + 1))
done
echo "$passed checks passed, 0 failed"
