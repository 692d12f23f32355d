"""The examples run and report ok; the examples in docstrings pass doctest."""

import doctest
import importlib
import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import attngrad
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


@pytest.fixture
def example(monkeypatch):
    """Imports an example, or one of the files that they share, as a module."""
    monkeypatch.syspath_prepend(EXAMPLES)
    return importlib.import_module


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
    report = run("mean_flow.py", "--steps", "100", folder=tmp_path)
    errors = [float(x) for x in re.findall(r" error ([0-9.]+)", report)]
    assert "one-step samples" in report and len(errors) == 11, report
    assert sum(errors[-5:]) / 5 < 0.9 * errors[0], report


def test_mean_flow_compared(tmp_path):
    report = run("mean_flow.py", "--compare", "--steps", "3", "--points", "32", folder=tmp_path)
    assert len(re.findall(r"^(attngrad|unfused) +[0-9.,]+ ms +[0-9.,]+ MiB ", report, re.M)) == 2, report


def test_mean_flow_finds_a_wrong_attention(example, monkeypatch, capsys):
    """Another scale of the scores is another model. Without processes: they would not see it."""
    mean_flow = example("mean_flow")
    sizes = mean_flow.SIZES["cpu"]._replace(batch=4)
    unfused = mean_flow.ATTENTIONS["unfused"]
    monkeypatch.setattr(mean_flow, "in_own_process", lambda function, *arguments, start: function(*arguments))
    assert mean_flow.compare(sizes, "cpu", "float32", 2)
    monkeypatch.setitem(mean_flow.ATTENTIONS, "unfused", lambda q, k, v: unfused(1.1 * q, k, v))
    assert not mean_flow.compare(sizes, "cpu", "float32", 2)
    verdicts = re.findall(r": (ok|WRONG)$", capsys.readouterr().out, re.M)
    assert verdicts == ["ok", "WRONG"]


def test_language_model_hvp(tmp_path):
    report = run("language_model_hvp.py", "--context", "512", "--compare", "64", folder=tmp_path)
    assert report.count(" ms ") == report.count(" MiB\n") == 8, report
    assert len(re.findall(r" from forward over reverse, limit 1e-04: ok$", report, re.M)) == 5, report
    assert len(re.findall(r" times the memory, limit 3: ok$", report, re.M)) == 2, report


SMALL = {"width": 16, "heads": 2, "layers": 1}


@pytest.fixture
def hvp(example):
    """language_model_hvp.py, and a small model for it."""
    module = example("language_model_hvp")
    return module, module.Setting("cpu", "float64", module.Sizes(**SMALL))


def test_language_model_hvp_checks(hvp, capsys):
    """The four products agree; a wrong product and memory that grows with the square are found."""
    module, setting = hvp
    rows = [module.Row(a, way, 33) for a in module.ATTENTIONS for way in module.WAYS]
    results = {row: (module.product_of(row, setting)[0], 1.0, 2**25) for row in rows}
    assert module.same_products(results, 1e-12)
    wrong, (product, *rest) = rows[-1], results[rows[-1]]
    assert not module.same_products({**results, wrong: (1.001 * product, *rest)}, 1e-4)
    longer = {row._replace(context=66): (product, 1.0, 4 * 2**25) for row in rows}
    assert not module.linear_memory(results | longer, 33)
    assert "4.00 times the memory, limit 3: WRONG" in capsys.readouterr().out


def test_language_model_hvp_in_bfloat16(hvp, monkeypatch, capsys):
    """The products of float32, but for the rounding. Another scale of the scores is found."""
    module, setting = hvp
    setting, limit = setting._replace(dtype="bfloat16"), module.LIMITS["bfloat16"]
    rows = [module.Row(a, way, 33) for a in module.ATTENTIONS for way in module.WAYS]
    results = {row: (module.product_of(row, setting)[0], 1.0, 2**25) for row in rows}
    assert module.same_products(results, limit)
    exact = module.product_of(rows[0], setting._replace(dtype="float32"))[0]
    for product, _, _ in results.values():
        assert product.dtype == exact.dtype
        assert 1e-4 < np.linalg.norm(product - exact) / np.linalg.norm(exact) < limit
    unfused = module.ATTENTIONS["unfused"]
    monkeypatch.setitem(module.ATTENTIONS, "unfused", lambda q, k, v, is_causal: unfused(1.5 * q, k, v, is_causal))
    results[rows[-1]] = module.product_of(rows[-1], setting)[0], 1.0, 2**25
    assert not module.same_products(results, limit)
    assert capsys.readouterr().out.count("limit 1e-02: WRONG\n") == 1


class CountedBytes(TorchDispatchMode):
    """Adds up the bytes of all tensors that PyTorch's operators return."""

    total = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        self.total += sum(x.nbytes for x in tree_leaves(result) if isinstance(x, torch.Tensor))
        return result


@pytest.mark.parametrize("way", ["forward over reverse", "double backward"])
@pytest.mark.parametrize("attention", ["attngrad", "unfused"])
def test_language_model_hvp_memory(hvp, attention, way):
    """Tensors grow with the context, those of the unfused formula with its square."""
    module, setting = hvp

    def counted(context):
        with CountedBytes() as count:
            module.product_of(module.Row(attention, way, context), setting)
        return count.total

    growth = counted(512) / counted(256)
    assert growth < 2.1 if attention == "attngrad" else growth > 3, growth


def test_out_of_memory(hvp, monkeypatch, capsys):
    """Said in the table; the program fails if it is attngrad that has too little."""
    module, _ = hvp
    monkeypatch.setattr(sys, "argv", ["language_model_hvp.py", "--context", "32", "--compare"])
    product = torch.ones(3).numpy(), 1.0, 2**20
    for short, status in (("unfused", 0), ("attngrad", 1)):
        answer = lambda _, row, *rest, short=short, **start: None if row.attention == short else product  # noqa: E731
        monkeypatch.setattr(module, "in_own_process", answer)
        assert module.main() == status
        assert re.search(rf"^{short} .* out of memory$", capsys.readouterr().out, re.M)


def test_processes_that_fail(example):
    """No memory, killed, ended."""
    in_own_process = example("measured").in_own_process
    assert in_own_process(max, 3, 4) == 4
    assert in_own_process(torch.empty, 2**50) is None
    assert in_own_process(signal.raise_signal, signal.SIGKILL) is None
    with pytest.raises(SystemExit, match="runs exit ended with status 3"):
        in_own_process(sys.exit, 3)


@pytest.mark.parametrize(
    "name, options, words",
    [
        ("mean_flow", "--steps 1", "--steps: 1: must be a whole number of at least 2"),
        ("mean_flow", "--points 2.5", "--points: 2.5: must be a whole number"),
        ("mean_flow", "--dtype float16", "--dtype: invalid choice: 'float16'"),
        ("mean_flow", "--device cuda", "--device cuda: PyTorch finds no NVIDIA GPU"),
        ("language_model_hvp", "--context -1", "--context"),
        ("language_model_hvp", "--dtype float16", "--dtype: invalid choice: 'float16'"),
        ("language_model_hvp", "--compare 3", "--compare: 3: must be a whole number of at least 16"),
        ("language_model_hvp", "--device tpu", "--device: invalid choice: 'tpu'"),
        ("language_model_hvp", "--device cuda", "--device cuda: PyTorch finds no NVIDIA GPU"),
    ],
)
def test_wrong_options(example, monkeypatch, capsys, name, options, words):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", [f"{name}.py", *options.split()])
    with pytest.raises(SystemExit) as done:
        example(name).main()
    lines = capsys.readouterr().err.splitlines()
    assert done.value.code == 2 and len(lines) == 1 and words in lines[0], lines


def test_gpu_without_cuda_backend(example, monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(attngrad, "info", lambda: {"backends": "cpu reference"})
    monkeypatch.setattr(sys, "argv", ["mean_flow.py", "--device", "cuda"])
    with pytest.raises(SystemExit) as done:
        example("mean_flow").main()
    assert done.value.code == 2 and "has no CUDA backend" in capsys.readouterr().err


def test_interrupted(tmp_path):
    """Ctrl-C, which a terminal sends to all processes of a program, while a process measures: one line. No process is
    left: the pipe would stay open. (A job in the background ignores Ctrl-C, and so would what it starts.)"""
    command = [sys.executable, "-W", "ignore", str(EXAMPLES / "mean_flow.py"), "--compare", "--steps", "1000000"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    heeds = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    program = subprocess.Popen(command, cwd=tmp_path, text=True, start_new_session=True, preexec_fn=heeds, **pipes)
    try:
        for _ in range(2):  # the lines before the table
            program.stdout.readline()
        assert program.stdout.read(1) == "a"  # attngrad's row has begun
        os.killpg(program.pid, signal.SIGINT)
        assert program.communicate(timeout=60)[1] == "interrupted\n" and program.returncode == 130
    finally:
        with suppress(ProcessLookupError):
            os.killpg(program.pid, signal.SIGKILL)


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
    """The README's Python example: both derivatives agree with another way to compute them. The second block needs a
    GPU: python/gpu_tests runs it."""
    block, on_gpu = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.M | re.S)
    assert 'device="cuda"' in on_gpu
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
