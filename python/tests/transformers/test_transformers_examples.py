"""The example runs and reports ok."""

import os
import re
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_language_model_eigenvalues():
    command = [sys.executable, "-W", "ignore", str(EXAMPLES / "language_model_eigenvalues.py")]
    command += ["--context", "48", "--steps", "4"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith(": ok\n") and "WRONG" not in done.stdout, done.stdout
    assert len(re.findall(r"s a product +\d+\.\d MiB", done.stdout)) == 2
