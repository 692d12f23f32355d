#!/bin/sh
# Runs a file of python/gpu_tests in the environment of scripts/venv: python.sh ROOT CORE FILE
set -eu
python=$("$1/scripts/venv")
PYTHONDONTWRITEBYTECODE=1 exec "$python" "$1/python/gpu_tests/run.py" "$2" "$3"
