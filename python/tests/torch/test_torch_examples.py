"""The examples run and report ok; the examples in docstrings pass doctest."""

import doctest
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from attngrad.torch import _attention, _multihead

ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "python" / "examples"


def run(name, *options, folder, launcher=()):
    """Runs an example on one thread: its tensors are small, and the machine may be busy."""
    command = [sys.executable, "-W", "ignore", *launcher, str(EXAMPLES / name), *options]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert "WRONG" not in done.stdout and ": ok\n" in done.stdout, done.stdout
    return done.stdout


def test_hessian_vector_product(tmp_path):
    assert run("hessian_vector_product.py", folder=tmp_path).count(": ok") == 2


def test_laplacian(tmp_path):
    report = run("laplacian.py", "--electrons", "6", "--chunk", "5", folder=tmp_path)
    assert report.count(": ok") == 3 and report.count(" s ") == report.count(" MiB ") == 3


def test_view_model(tmp_path):
    assert run("view_model.py", folder=tmp_path).count(": ok") == 2
    pages = sorted(tmp_path.glob("*.html"))
    assert [page.name for page in pages] == ["attention-0.html", "attention-1.html"]
    assert all('"maps":["forward","vjp"]' in page.read_text() for page in pages)


MODEL = """
import torch
from torch.nn.functional import scaled_dot_product_attention

def run():
    torch.manual_seed(1)
    q = torch.randn(2, 4, 6, 8, dtype=torch.bfloat16, requires_grad=True)
    k, v = (torch.randn(2, 2, 7, 8, dtype=torch.bfloat16) for _ in "kv")
    grouped = scaled_dot_product_attention(query=q, key=k, value=v, scale=0.5, enable_gqa=True)
    wide = [q.float(), *(x.float().repeat_interleave(2, 1) for x in (k, v))]
    biased = scaled_dot_product_attention(*wide, attn_mask=torch.randn(6, 7))
    masked = scaled_dot_product_attention(*wide, torch.rand(2, 1, 6, 7) > 0.3)
    return grouped.float().sum() + biased.square().sum() + masked.sum()

def dropout():
    q = torch.randn(1, 1, 4, 4)
    return scaled_dot_product_attention(q, q, q, None, 0.5).sum()
"""


def test_view_model_of_the_user(tmp_path):
    """Every argument of PyTorch's function reaches the page, or is refused."""
    (tmp_path / "mine.py").write_text(MODEL)
    assert run("view_model.py", "pages", "mine:run", folder=tmp_path).count(": ok") == 3
    with pytest.raises(AssertionError, match="which weights PyTorch has dropped"):
        run("view_model.py", "pages", "mine:dropout", folder=tmp_path)


def test_mean_flow(tmp_path):
    assert "one-step samples" in run("mean_flow.py", "--steps", "100", folder=tmp_path)


def test_top_eigenvalues(tmp_path):
    assert run("top_eigenvalues.py", "--plot", "plot.svg", folder=tmp_path).count(": ok") == 2
    assert (tmp_path / "plot.svg").read_text().rstrip().endswith("</svg>")


def test_low_half_training(tmp_path):
    assert run("low_half_training.py", "--quick", folder=tmp_path).count(": ok") == 2


def test_ring_training(tmp_path):
    """On four ranks, and a length that they do not divide."""
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4")
    report = run("ring_training.py", "40", "41", folder=tmp_path, launcher=launcher)
    assert report.count(": ok") == 1
    assert len((EXAMPLES / "ring_training.py").read_text().splitlines()) <= 60


def test_readme():
    """The README's Python example: both derivatives agree with another way to compute them."""
    (block,) = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.M | re.S)
    names = {}
    exec(compile(block, "README.md", "exec"), names)
    q, t, attend = names["q"].detach(), names["t"].detach(), names["attend"]
    loss = lambda q: attend(q).square().sum()  # noqa: E731
    product = torch.func.jvp(torch.func.grad(loss), (q,), (t,))[1]
    assert (product - names["h"]).norm() < 1e-5 * product.norm()
    derivative = 2 * (names["o"] * names["to"]).sum()
    assert (derivative - (names["g"] * t).sum()).abs() < 1e-3 * derivative.abs().clamp(min=1)


@pytest.mark.parametrize("module", [_attention, _multihead], ids=["attention", "multihead"])
def test_docstrings(module):
    result = doctest.testmod(module, extraglobs={"torch": torch, "nn": nn})
    assert result.attempted > 0 and result.failed == 0
