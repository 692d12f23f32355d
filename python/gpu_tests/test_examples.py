"""The examples that run on a GPU, small: attngrad and the unfused formula give the same numbers there, and the memory
of Hessian-vector products grows in proportion to the context. ATTNGRAD_TEST_DEVICE=cpu: on the CPU, without memory."""

import functools
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python/examples"))

import language_model_hvp
import mean_flow
import torch
from torch_tools import DEVICE, needs_gpu


def test_readme():
    """Both blocks of the README, one after the other: the Hessian's product is that of forward over reverse."""
    needs_gpu()
    names = {}
    for block in re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.M | re.S):
        exec(compile(block, "README.md", "exec"), names)
    q, t, attend, h = names["q"].detach(), names["t"].detach(), names["attend"], names["h"].float()
    assert h.is_cuda and names["g"].dtype == torch.bfloat16
    product = torch.func.jvp(torch.func.grad(lambda q: attend(q).square().sum()), (q,), (t,))[1].float()
    assert (product - h).norm() < 0.02 * product.norm(), ((product - h).norm() / product.norm()).item()


def test_mean_flow():
    sizes = mean_flow.Sizes(points=48, width=128, heads=2, layers=2, batch=2)
    for dtype, limit in mean_flow.LIMITS.items():
        ours, theirs = (mean_flow.measure(name, sizes, DEVICE, dtype, 3)[0] for name in mean_flow.ATTENTIONS)
        apart = max(abs(x - y) / y for x, y in zip(ours, theirs))
        assert apart < limit, f"{dtype}: {apart:.1e}"


CONTEXT = 1024 if DEVICE == "cuda" else 32


@functools.cache
def products(dtype):
    """Those of the table of language_model_hvp.py, by row."""
    setting = language_model_hvp.Setting(DEVICE, dtype, language_model_hvp.Sizes(128, 2, 2))
    rows = language_model_hvp.rows_of(CONTEXT, CONTEXT)
    return {row: language_model_hvp.measure(row, setting) for row in rows}


def test_language_model_hvp():
    for dtype, limit in language_model_hvp.LIMITS.items():
        assert language_model_hvp.same_products(products(dtype), limit), dtype


def test_language_model_hvp_memory():
    needs_gpu()  # on the CPU it takes a process for each product
    for dtype in language_model_hvp.LIMITS:
        assert language_model_hvp.linear_memory(products(dtype), CONTEXT), dtype
