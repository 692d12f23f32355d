"""The package itself: its version, its examples, its documents, its overhead, its type hints."""

import doctest
import importlib
import importlib.metadata
import inspect
import pkgutil
import pydoc
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import attngrad

ROOT = Path(__file__).resolve().parents[2]


def test_version():
    header = (ROOT / "include" / "attngrad.h").read_text()
    numbers = re.findall(r"#define AG_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)", header)
    assert attngrad.__version__ == ".".join(numbers) == importlib.metadata.version("attngrad")
    assert attngrad.info()["version"] == attngrad.__version__
    assert set(attngrad.info()["backends"].split()) >= {"cpu", "reference"}


OTHERS = ("attngrad._core", "attngrad.torch", "attngrad.transformers")
MODULES = [m.name for m in pkgutil.iter_modules(attngrad.__path__, "attngrad.") if m.name not in OTHERS]


@pytest.mark.parametrize("name", MODULES)
def test_examples_of_docstrings(name):
    result = doctest.testmod(importlib.import_module(name))
    assert result.failed == 0


def test_every_public_function_has_an_example():
    for name in attngrad.__all__:
        x = getattr(attngrad, name)
        if inspect.isfunction(x):
            assert ">>>" in x.__doc__, name


def test_typed():
    package = Path(attngrad.__file__).parent
    assert (package / "py.typed").exists() and (package / "_core.pyi").exists()
    for name in attngrad.__all__:
        x = getattr(attngrad, name)
        if inspect.isfunction(x):
            parameters = inspect.signature(x).parameters.values()
            assert all(p.annotation is not p.empty for p in parameters), name


def test_documents():
    """Each block of Python in docs/python.md runs by itself, in a process of its own."""
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs" / "python.md").read_text(), re.M | re.S)
    assert blocks
    for block in blocks:
        result = subprocess.run([sys.executable, "-c", block], capture_output=True, text=True, timeout=300)
        assert result.returncode == 0, block + result.stderr


def test_every_feature_is_documented():
    text = (ROOT / "docs" / "python.md").read_text()
    for name in attngrad.Features.__annotations__:
        assert f"`{name}`" in text or f"`{name}=" in text, name


@pytest.mark.parametrize("name", ["forward", "vjp", "jvp", "vjp_jvp", "jvp_jvp", "explain"])
def test_signatures_are_written_out(name):
    """help() shows and describes each keyword."""
    function = getattr(attngrad, name)
    parameters = inspect.signature(function).parameters
    assert all(p.kind is not p.VAR_KEYWORD for p in parameters.values())
    assert set(attngrad.Features.__annotations__) <= set(parameters)
    text = pydoc.plain(pydoc.render_doc(function))
    assert "causal: 'bool' = False" in text and "seed: 'int' = 0" in text and "bias: 'Any' = None" in text
    for keyword in parameters:
        assert re.search(rf"\b{keyword}\b", function.__doc__), keyword


def test_every_feature_is_described():
    text = inspect.cleandoc(attngrad.Features.__doc__)
    described = re.findall(r"^(\w+) {2,}\S", text, re.M)
    assert described == list(attngrad.Features.__annotations__)


def test_defaults_are_as_written():
    """Each default of the signature, given by hand, changes nothing."""
    q = np.random.default_rng(3).standard_normal((2, 5, 4))
    want = attngrad.forward(q, q, q)
    for name, p in inspect.signature(attngrad.forward).parameters.items():
        if p.default is not p.empty:
            got = attngrad.forward(q, q, q, **{name: p.default})
            assert all(np.array_equal(x, y) for x, y in zip(got, want)), name


def test_overhead():
    """bench/overhead.py prints less than 20 microseconds on an idle machine; three times that are allowed here."""
    result = subprocess.run([sys.executable, ROOT / "bench" / "overhead.py"], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    times = [float(x) for x in re.findall(r"([0-9.]+) microseconds", result.stdout)]
    assert len(times) == 3 and max(times) < 60, result.stdout


def test_import_is_light():
    """import attngrad loads neither PyTorch nor ml_dtypes nor JAX nor ONNX nor transformers."""
    others = ("torch", "ml_dtypes", "jax", "onnx", "transformers")
    code = f"import sys, attngrad; sys.exit(any(m in sys.modules for m in {others}))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
