#!/bin/sh
# scripts/cuda-option on machines made up of fake commands: cuda_option.sh ROOT
# What is not there is left out in a line that says so; with CI it is an error, and nothing is printed to build with.
set -eu
root=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
passed=0 failed=0
sh=$(command -v sh)
sed "s|/usr/local/cuda|$work/cuda|" "$root/scripts/cuda-option" >"$work/cuda-option"

machine() { # machine NVCC HEADERS: a status of python3's search for Python.h; "-": there is no nvcc
    rm -rf "${work:?}/bin"
    mkdir "$work/bin"
    [ "$1" = - ] || printf '#!%s\n' "$sh" >"$work/bin/nvcc"
    printf '#!%s\nexit %s\n' "$sh" "$2" >"$work/bin/python3"
    chmod +x "$work/bin/"*
}

says() { # says STATUS OPTIONS LINE CI
    status=0
    PATH=$work/bin CI=$4 "$sh" "$work/cuda-option" >"$work/options" 2>"$work/line" || status=$?
    if [ "$status:$(tr '\n' ' ' <"$work/options"):$(cat "$work/line")" = "$1:$2:$3" ]; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAIL: wanted status $1, options '$2' and '$3', got $status:"
        cat "$work/options" "$work/line"
    fi
}

with="-DATTNGRAD_CUDA=ON -DATTNGRAD_CUDA_ARCHS=90 "
no_nvcc="the CUDA backend is neither built nor tested"
no_headers="Python's arrays on a GPU are not tested"
ci="is not here, and with CI nothing is left out"
machine nvcc 0
says 0 "$with-DATTNGRAD_PYTHON=ON -DPython_EXECUTABLE=$work/bin/python3 " "" ""
says 0 "$with-DATTNGRAD_PYTHON=ON -DPython_EXECUTABLE=$work/bin/python3 " "" 1
machine nvcc 1
says 0 "$with" "Python.h is not here: $no_headers" ""
says 1 "" "cuda-option: Python.h $ci: $no_headers" 1
machine - 0
says 0 "-DATTNGRAD_CUDA=OFF " "nvcc is not here: $no_nvcc" ""
says 1 "" "cuda-option: nvcc $ci: $no_nvcc" 1
echo "$passed checks passed, $failed failed"
[ "$failed" -eq 0 ]
