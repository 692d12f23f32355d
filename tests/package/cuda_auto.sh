#!/bin/sh
# ATTNGRAD_CUDA=AUTO, as `pip install .` has it, on machines made up of fake commands: cuda_auto.sh ROOT CMAKE
# What cmake/cuda.cmake says and decides where nvcc, a GPU, both or neither are found. CMake sees the fake commands alone.
set -eu
root=$1 cmake=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
passed=0 failed=0

cat >"$work/decide.cmake" <<END
cmake_policy(VERSION 3.20)
include("$root/cmake/cuda.cmake")
set(archs)
if(ATTNGRAD_CUDA_ARCHS STREQUAL "native")
    cuda_native_archs(archs)
elseif(ATTNGRAD_CUDA_ARCHS STREQUAL "all" AND ATTNGRAD_NVCC)
    cuda_known_archs(archs 80 90 100 120)
endif()
message(STATUS "option \${ATTNGRAD_CUDA}, \${ATTNGRAD_CUDA_ARCHS}: \${archs}")
END

fake() { # fake NAME LINE...: a command that prints these lines
    name=$1
    shift
    {
        echo '#!/bin/sh'
        for line in "$@"; do echo "echo '$line'"; done
    } >"$work/bin/$name"
    chmod +x "$work/bin/$name"
}

machine() { # machine CODES CAPABILITIES: nvcc compiles for CODES, the GPUs have CAPABILITIES; "-": there is no such command
    rm -rf "${work:?}/bin"
    mkdir "$work/bin"
    # Split into words on purpose.
    # shellcheck disable=SC2086
    [ "$1" = - ] || fake nvcc $1
    # shellcheck disable=SC2086
    [ "$2" = - ] || fake nvidia-smi $2
}

decides() { # decides LINE OPTION CMAKE-OPTION...: with AUTO and these options it prints LINE, and decides OPTION
    line=$1 option=$2
    shift 2
    PATH=$work/bin "$cmake" -DCMAKE_FIND_ROOT_PATH="$work" -DCMAKE_FIND_ROOT_PATH_MODE_PROGRAM=ONLY "$@" \
        -P "$work/decide.cmake" >"$work/out" 2>&1 || true
    printf '%s\n' "$line" "$option" | sed 's/^/-- /' >"$work/want"
    if cmp -s "$work/out" "$work/want"; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAIL: wanted, then got:"
        sed 's/^/    /' "$work/want" "$work/out"
    fi
}

auto=-DATTNGRAD_CUDA=AUTO
without="attngrad without its CUDA backend:"
with="attngrad with its CUDA backend: nvcc and a GPU are here"
codes="sm_75 sm_80 sm_86 sm_90 sm_90a sm_100"

machine - -
decides "$without nvcc is not here" "option OFF, all: " $auto
machine - 9.0
decides "$without nvcc is not here" "option OFF, all: " $auto
machine "$codes" -
decides "$without nvidia-smi finds no GPU of compute capability 8.0 or higher" "option OFF, all: 80;90;100" $auto
machine "$codes" 7.5
decides "$without nvidia-smi finds no GPU of compute capability 8.0 or higher" "option OFF, all: 80;90;100" $auto
machine "$codes" "9.0 9.0"
decides "$with" "option ON, native: 90" $auto
decides "$with" "option ON, 80: " $auto -DATTNGRAD_CUDA_ARCHS=80
machine "$codes" "7.5 8.6 10.0"
decides "$with" "option ON, native: 86;100" $auto
machine "$codes" 12.0
decides "$without $work/bin/nvcc cannot compile for this machine's GPUs, sm_120" "option OFF, all: 80;90;100" $auto

# A GPU that nvidia-smi names while it fails is none.
machine "$codes" 9.0
echo 'exit 9' >>"$work/bin/nvidia-smi"
decides "$without nvidia-smi finds no GPU of compute capability 8.0 or higher" "option OFF, all: 80;90;100" $auto

if grep -q '^ATTNGRAD_CUDA = "AUTO"$' "$root/pyproject.toml"; then
    passed=$((passed + 1))
else
    failed=$((failed + 1))
    echo "FAIL: pyproject.toml does not ask for AUTO"
fi
echo "$passed checks passed, $failed failed"
[ "$failed" -eq 0 ]
