"""The package in an environment that has NumPy and nothing else: it imports, computes, and says what is
missing. scripts/wheel runs it."""

import importlib
import importlib.util

import numpy as np

import attngrad

for other in ("torch", "ml_dtypes", "jax", "onnx"):
    assert importlib.util.find_spec(other) is None, f"{other} is installed: this environment proves nothing"

# Forward and vjp beside the formulas.
rng = np.random.default_rng(0)
q, k, v, d_o = (rng.standard_normal((3, 20, 16)) for _ in range(4))
o, lse = attngrad.forward(q, k, v)
g = attngrad.vjp(q, k, v, o, lse, d_o)
scores = q @ k.swapaxes(1, 2) / 4
p = np.exp(scores - lse[..., None])
ds = p * (d_o @ v.swapaxes(1, 2) - (d_o * o).sum(-1, keepdims=True)) / 4
assert np.allclose(p.sum(-1), 1) and np.allclose(o, p @ v)
assert np.allclose(g.dq, ds @ k) and np.allclose(g.dk, ds.swapaxes(1, 2) @ q)
assert np.allclose(g.dv, p.swapaxes(1, 2) @ d_o)

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
