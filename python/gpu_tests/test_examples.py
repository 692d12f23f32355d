"""The examples that run on a GPU, small: attngrad and the unfused formula give the same numbers there, and the memory
of Hessian-vector products grows in proportion to the context. ATTNGRAD_TEST_DEVICE=cpu: on the CPU, without memory."""

import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "examples"))

import language_model_hvp
import mean_flow

DEVICE = os.environ.get("ATTNGRAD_TEST_DEVICE", "cuda")


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
