#!/bin/sh
# Compares the library and the command with NumPy and the safetensors package: io_python.sh VENV ATTNGRAD COPY
# VENV is a virtual environment with the packages numpy and safetensors. If it is missing, it is created here, from
# pip's default index. If that fails, the test is skipped with exit code 77, or fails if the
# variable CI is set.
set -u
venv=$1 attngrad=$2 copy=$3
here=$(dirname "$0")
work=$(mktemp -d) || exit 2
trap 'rm -rf "$work"' EXIT

has_packages() {
    "$venv/bin/python" -c 'import numpy, safetensors.numpy' >/dev/null 2>&1
}

make_venv() {
    rm -rf "$venv"
    python3 -m venv "$venv" && "$venv/bin/pip" install --quiet --disable-pip-version-check numpy safetensors
}

if ! has_packages && ! { make_venv >"$work/log" 2>&1 && has_packages; }; then
    echo "not checked: the comparison with Python, as numpy and safetensors cannot be installed here:"
    tail -n 3 "$work/log"
    [ -z "${CI:-}" ] && exit 77
    exit 1
fi

"$venv/bin/python" -c 'import numpy, safetensors; print("numpy", numpy.__version__, "safetensors", safetensors.__version__)'
status=0
"$venv/bin/python" "$here/files.py" "$copy" "$work" || status=1
"$venv/bin/python" "$here/formula.py" "$attngrad" "$work" || status=1
exit $status
