"""Random inputs of a problem, the library's five maps on them, and the error rule."""

from __future__ import annotations

import contextlib
from typing import Any

import formulas
import ml_dtypes
import numpy as np

import attngrad
from attngrad import _core, _plan, _problem

DTYPES = {"f64": np.float64, "f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}
FLOOR = {"f64": 1e-13, "f32": 1e-6, "f16": 6e-4, "bf16": 4e-3}
EPS = {"f64": 2.0**-52, "f32": 2.0**-23, "f16": 2.0**-10, "bf16": 2.0**-7}


class Trial:
    """Inputs, tangents of two directions t and s, cotangents; features may have arrays (bias, bias_table, sink), given as shapes."""

    def __init__(self, q, k, v, dtype="f64", seed=0, aux=None, **features: Any) -> None:
        self.rng = np.random.default_rng(seed)
        self.dtype = dtype
        self.aux = aux or dtype
        self.x = {"q": self.draw(q), "k": self.draw(k), "v": self.draw(v)}
        self.features = dict(features)
        o = tuple(q[:-1]) + (v[-1],)
        self.cot = {"d_o": self.draw(o), "td_o": self.draw(o)}
        self.cot |= {"d_lse": self.rng.standard_normal(o[:-1]), "td_lse": self.rng.standard_normal(o[:-1])}
        for name in ("bias", "bias_table", "sink"):
            if name in features:
                self.features[name] = self.draw(features[name], self.aux)
        if "mask" in features:
            self.features["mask"] = self.rng.random(features["mask"]) < 0.6
        self.t, self.s = self.direction(), self.direction()

    def direction(self) -> dict[str, np.ndarray]:
        """Tangents of all inputs, by tensor name."""
        tangents = {n: self.draw(x.shape) for n, x in self.x.items()}
        for name, tensor in (("bias", "bias"), ("bias_table", "table"), ("sink", "sink")):
            if name in self.features:
                tangents[tensor] = self.draw(self.features[name].shape, self.aux)
        return tangents

    def draw(self, shape, dtype=None):
        return self.rng.standard_normal(shape).astype(DTYPES[dtype or self.dtype])

    def truth(self) -> dict[str, np.ndarray]:
        wide = lambda d: {n: np.asarray(x, np.float64) for n, x in d.items()}  # noqa: E731
        f = self.features | wide(
            {n: x for n, x in self.features.items() if n in ("bias", "bias_table", "sink")}
        )
        return formulas.maps(**wide(self.x), **wide(self.cot), t=wide(self.t), s=wide(self.s), **f)

    def run(self, **more: Any) -> dict[str, np.ndarray]:
        f = self.features | more
        qkv = list(self.x.values())
        tangents = {"t" + n: t for n, t in self.t.items()}
        other = {"s" + n: s for n, s in self.s.items()}
        forward = attngrad.forward(*qkv, **f)
        grads = attngrad.vjp(*qkv, *forward, self.cot["d_o"], d_lse=self.cot["d_lse"], **f)
        jvp = attngrad.jvp(*qkv, **tangents, **f)
        hvp = attngrad.vjp_jvp(*qkv, *jvp, **self.cot, **tangents, **f)
        smu = attngrad.jvp(*qkv, **{"t" + n: s for n, s in self.s.items()}, **f).mu
        second = attngrad.jvp_jvp(*qkv, jvp.o, jvp.lse, jvp.mu, smu, **tangents, **other, **f)
        # jvp gives the same bits of o and lse as forward, except in bfloat16 on AMX, where forward computes its
        # weights differently.
        if self.dtype == "bf16":
            o = zero_minus_infinity(forward.o)
            assert distance(jvp.o, o) <= 1e-2 * np.linalg.norm(o)
            np.testing.assert_allclose(jvp.lse, forward.lse, atol=1e-3)
        else:
            np.testing.assert_array_equal(jvp.o, forward.o)
            np.testing.assert_array_equal(jvp.lse, forward.lse)
        results = {**forward._asdict(), **grads._asdict(), "to": jvp.to, "mu": jvp.mu, **hvp._asdict()}
        results |= second._asdict()
        return {n: x for n, x in results.items() if x is not None}

    def check_errors(
        self, got: dict[str, np.ndarray], truth: dict[str, np.ndarray], baseline: dict[str, np.ndarray]
    ) -> None:
        """The error |x - truth| must not exceed the largest of three limits: twice the error of `baseline`, the
        unfused formula in the same dtype; FLOOR times |truth|; and 8 eps, which stands for 8 eps A of the error
        rule, because A > 1 for these inputs. In float64 the baseline does not count: it is the library's own
        reference, and a mistake that both share would go unnoticed."""
        assert got.keys() == truth.keys()
        for name, x in got.items():
            assert x.shape == truth[name].shape, name
            error, baseline_error = distance(x, truth[name]), distance(baseline[name], truth[name])
            norm = np.linalg.norm(zero_minus_infinity(truth[name]))
            limit = max(
                2 * baseline_error if self.dtype != "f64" else 0, FLOOR[self.dtype] * norm, 8 * EPS[self.dtype]
            )
            assert error <= limit, (
                f"{name}: error {error:.3g}, limit {limit:.3g}, unfused {baseline_error:.3g}, of {norm:.3g}"
            )


def zero_minus_infinity(x):
    x = np.asarray(x, np.float64)
    return np.where(np.isneginf(x), 0.0, x)


def distance(x, truth):
    """The norm of the difference; minus infinity must be at the same places in both."""
    np.testing.assert_array_equal(np.isneginf(np.asarray(x, np.float64)), np.isneginf(truth))
    return np.linalg.norm(zero_minus_infinity(x) - zero_minus_infinity(truth))


@contextlib.contextmanager
def unfused():
    """Inside this context every plan uses the reference backend with every intermediate rounded: the baseline of
    the error rule."""
    cached = _plan.get

    def make(text, **options):
        reference = {"backend": _core.backends()["reference"], "flags": _core.ROUND_INTERMEDIATES}
        return _core.plan(text, **options | reference)

    _problem.get.cache_clear()
    _plan.get = make
    try:
        yield
    finally:
        _plan.get = cached
        _problem.get.cache_clear()
