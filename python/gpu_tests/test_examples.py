"""The examples that run on a GPU, small: attngrad and the unfused formula give the same numbers there, and the memory
of Hessian-vector products grows in proportion to the context. ATTNGRAD_TEST_DEVICE=cpu: on the CPU, without memory."""

import os
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python/examples"))

import language_model_hvp
import mean_flow
import torch

DEVICE = os.environ.get("ATTNGRAD_TEST_DEVICE", "cuda")


def test_readme():
    """Both blocks of the README, one after the other: the Hessian's product is that of forward over reverse."""
    if DEVICE == "cpu":
        print("the second block of the README needs a GPU: not run")
        return
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


def test_language_model_hvp():
    contexts = (1024, 2048) if DEVICE == "cuda" else (32, 64)
    for dtype, limit in language_model_hvp.LIMITS.items():
        setting = language_model_hvp.Setting(DEVICE, dtype, language_model_hvp.Sizes(128, 2, 2))
        rows = language_model_hvp.rows_of(contexts[0], contexts[0])
        results = {row: language_model_hvp.measure(row, setting) for row in rows}
        assert language_model_hvp.same_products(results, limit), dtype
        if DEVICE == "cpu":
            print("the memory of a product is not measured: it needs a GPU, or a process of its own")
            continue
        assert language_model_hvp.linear_memory(results, contexts[0]), dtype
