"""The package in an environment that has NumPy and nothing else: it imports, computes, and says what is
missing."""

import importlib
import importlib.util

import numpy as np

import attngrad

for other in ("torch", "ml_dtypes", "jax", "onnx"):
    assert importlib.util.find_spec(other) is None, f"{other} is installed: this environment proves nothing"
residuals = attngrad.check("h4 kv2 q33 k47 d16 f32 causal softcap=20 sink bias=1h1k")
assert residuals and all(r.passed for r in residuals.values()), residuals
try:
    attngrad.forward(*[np.zeros((4, 8), np.float32)] * 3, out_dtype="bfloat16")
except TypeError as error:
    assert "bfloat16" in str(error)
else:
    raise AssertionError("bfloat16 without ml_dtypes was accepted")
for module, name in (("torch", "PyTorch"), ("onnx", "ONNX")):
    try:
        importlib.import_module("attngrad." + module)
    except ModuleNotFoundError as error:
        assert str(error) == f"attngrad.{module} needs {name}: pip install {module}", error
    else:
        raise AssertionError(f"attngrad.{module} was imported without {name}")
