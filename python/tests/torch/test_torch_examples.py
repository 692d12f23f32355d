"""The examples run to their end and find themselves right; so do the docstrings' own."""

import doctest
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from attngrad.torch import _attention, _multihead

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(name, *options, folder):
    """One thread: small tensors, and the machine may be busy."""
    command = [sys.executable, "-W", "ignore", str(EXAMPLES / name), *options]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert "WRONG" not in done.stdout and ": ok\n" in done.stdout, done.stdout
    return done.stdout


def test_hessian_vector_product(tmp_path):
    assert run("hessian_vector_product.py", folder=tmp_path).count(": ok") == 2


def test_mean_flow(tmp_path):
    assert "one-step samples" in run("mean_flow.py", "--steps", "100", folder=tmp_path)


def test_top_eigenvalues(tmp_path):
    assert run("top_eigenvalues.py", "--plot", "plot.svg", folder=tmp_path).count(": ok") == 2
    assert (tmp_path / "plot.svg").read_text().rstrip().endswith("</svg>")


@pytest.mark.parametrize("module", [_attention, _multihead], ids=["attention", "multihead"])
def test_docstrings(module):
    result = doctest.testmod(module, extraglobs={"torch": torch, "nn": nn})
    assert result.attempted > 0 and result.failed == 0
