#!/bin/sh
# The kernels compile for every architecture that a wheel has code for, with the spills that are listed:
# architectures.sh ROOT FOLDER CMAKE CTEST
# `make test` does this for sm_90 alone. Code that the user's cache has is not compiled again.
set -eu
cd "$1"
folder=$2 cmake=$3 ctest=$4
"$cmake" --preset dev -B "$folder" -DATTNGRAD_CUDA=ON "-DATTNGRAD_CUDA_ARCHS=80;90;100;120" -DATTNGRAD_PYTHON=OFF
"$cmake" --build "$folder" --target cuda_backend -j "$(nproc 2>/dev/null || echo 2)"
"$ctest" --test-dir "$folder" -R '^cuda_images$' --no-tests=error --verbose
for arch in sm_80 sm_90 sm_100 sm_120; do
    grep -q "entry function 'dq_f64_any' for '$arch'" "$folder/src/cuda/backward_f64.log" || {
        echo "FAIL: the images have no code for $arch" && exit 1
    }
done
