"""Those of python/gpu_tests that need no GPU, on the CPU: `make test-gpu` must not be the first to run them."""

import os
import pathlib
import subprocess
import sys

import pytest

from attngrad import _core

RUN = pathlib.Path(__file__).parents[2] / "gpu_tests" / "run.py"


@pytest.mark.parametrize("file", ["test_examples.py", "test_torch.py", "test_torch_transforms.py", "test_transformers.py"])
def test_on_the_cpu(file):
    environment = os.environ | {"ATTNGRAD_TEST_DEVICE": "cpu"}
    command = [sys.executable, str(RUN), _core.__file__, file]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0 and " 0 failed" in done.stdout, done.stdout + done.stderr
