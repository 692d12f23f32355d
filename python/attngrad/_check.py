"""A problem in its text form, held against itself: finite differences of forward and of vjp, the adjoint
identity, the symmetry of the Hessian. In float64, on random inputs; the features are those of the text."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import _core, _maps
from ._call import integer

STEP = 1e-3
STENCIL = ((-2, 1 / 12), (-1, -2 / 3), (1, 2 / 3), (2, -1 / 12))  # the derivative, to order 4

Arrays = dict[str, np.ndarray]


def check(problem: str, *, seed: int = 0, backend: str | None = None, threads: int = 0) -> dict[str, float]:
    """Relative errors of a problem's derivatives in float64, whatever its dtype, on random inputs: `jvp`
    against differences of forward and `vjp_jvp` against those of vjp (about 1e-11 where right); `adjoint`,
    which ties vjp to jvp, and `symmetry` of the Hessian, which need no differences (about 1e-16).

    >>> import attngrad
    >>> errors = attngrad.check("h4 kv2 q6 k9 d8 f64 causal softcap=5 sink")
    >>> errors["jvp"] < 1e-8 and errors["vjp_jvp"] < 1e-8 and errors["adjoint"] < 1e-12
    True
    """
    if not isinstance(problem, str):
        raise TypeError(f"problem: {problem!r} is not the text of a problem")
    seed = integer(seed, "seed")
    trial = _Trial(
        problem, np.random.default_rng(seed), {"backend": backend, "threads": threads, "seed": seed}
    )
    x, t, u = trial.inputs, trial.draw_like(trial.inputs), trial.draw_like(trial.inputs)
    cot = trial.cotangents()
    along = trial.jvp(x, t)
    grads = trial.vjp(x, cot)
    slope = _differences(lambda h: trial.forward(_moved(x, t, h)))
    tcot = trial.draw_like(cot)
    turn = trial.vjp_jvp(x, t, cot, tcot)
    turn_slope = _differences(lambda h: trial.vjp(_moved(x, t, h), _moved(cot, tcot, h)))
    h_t, h_u = trial.vjp_jvp(x, t, cot, None), trial.vjp_jvp(x, u, cot, None)
    return {
        "jvp": _error(along, slope),
        "vjp_jvp": _error(turn, turn_slope),
        "adjoint": _residual(_inner(cot, along), _inner(grads, t), _size(cot, along) + _size(grads, t)),
        "symmetry": _residual(_inner(h_t, u), _inner(h_u, t), _size(h_t, u) + _size(h_u, t)),
    }


class _Trial:
    """The random inputs of a problem, and its maps as functions of them. A gradient has the name of its
    input, a tangent that of its output."""

    def __init__(self, text: str, rng: np.random.Generator, features: dict[str, Any]) -> None:
        self.rng = rng
        self.features = features
        words = _plan_words(text)
        sizes = words["sizes"]
        b, h, n_q, n_k = (sizes[name] for name in ("b", "h", "q", "k"))
        kv, d, dv = sizes.get("kv", h), sizes["d"], sizes.get("dv", sizes["d"])
        shapes = {"q": (b, h, n_q, d), "k": (b, kv, n_k, d), "v": (b, kv, n_k, dv)}
        if "packed" in words:
            totals = [int(t) for t in words["packed"].split(",")]
            shapes = {"q": (totals[0], h, d), "k": (totals[1], kv, d), "v": (totals[1], kv, dv)}
            features["q_packed"] = self.offsets(b, n_q, totals[0])
            features["k_packed"] = self.offsets(b, n_k, totals[1])
        full = {"b": b, "h": h, "q": n_q, "k": n_k, "1": 1}
        self.add_constants(words, h)
        if "mask" in words:
            features["mask"] = rng.random([full[c] for c in words["mask"]]) < 0.7
        if "bias" in words:
            shapes["bias"] = tuple(full[c] for c in words["bias"])
        if "table" in words:
            shapes["bias_table"] = self.table_shape(words["table"].split(","), h)
        if "sink" in words:
            shapes["sink"] = (h,)
        self.inputs = {name: rng.standard_normal(shape) for name, shape in shapes.items()}

    def add_constants(self, words: dict[str, Any], heads: int) -> None:
        f = self.features
        f["causal"] = "causal" in words
        f["align"] = words.get("align", "top-left")
        for name in ("scale", "softcap", "dropout"):
            if name in words:
                f[name] = float(words[name])
        if "window" in words:
            f["window"] = tuple(int(side) for side in words["window"].split(","))
        if "alibi" in words:
            f["alibi"] = self.rng.random(heads) if words["alibi"] == "slopes" else True
        if "head_offset" in words:
            f["head_offset"] = int(words["head_offset"])

    def table_shape(self, values: list[str], heads: int) -> tuple[int, int]:
        radius = int(values[0])
        shared = values[-1] == "shared"
        columns = int(values[1]) if len(values) > 1 and values[1] != "shared" else 2 * radius + 1
        self.features["buckets"] = self.rng.integers(0, columns, 2 * radius + 1)
        return (1 if shared else heads, columns)

    def offsets(self, batch: int, longest: int, total: int) -> np.ndarray:
        """Lengths from 0 to the longest, the first of them the longest where the total allows it."""
        lengths = self.rng.integers(0, longest + 1, batch)
        lengths[:1] = longest
        return np.minimum(np.concatenate([[0], np.cumsum(lengths)]), total)

    def draw_like(self, x: Arrays) -> Arrays:
        return {name: self.rng.standard_normal(a.shape) for name, a in x.items()}

    def cotangents(self) -> Arrays:
        return self.draw_like(self.forward(self.inputs))

    def split(self, x: Arrays) -> tuple[list[np.ndarray], dict[str, Any]]:
        rest = {name: a for name, a in x.items() if name not in ("q", "k", "v")}
        return [x["q"], x["k"], x["v"]], rest | self.features

    def tangents(self, t: Arrays) -> dict[str, np.ndarray]:
        return {"t" + name.removeprefix("bias_"): a for name, a in t.items()}

    def forward(self, x: Arrays) -> Arrays:
        qkv, rest = self.split(x)
        return _finite(_maps.forward(*qkv, **rest)._asdict())

    def jvp(self, x: Arrays, t: Arrays) -> Arrays:
        qkv, rest = self.split(x)
        p = _maps.jvp(*qkv, **self.tangents(t), **rest)
        return {"o": p.to, "lse": p.mu}

    def named(self, grads: Any, x: Arrays) -> Arrays:
        named = dict(zip(("q", "k", "v", "bias", "bias_table", "sink"), grads))
        return {name: named[name] for name in x}

    def vjp(self, x: Arrays, cot: Arrays) -> Arrays:
        qkv, rest = self.split(x)
        p = _maps.forward(*qkv, **rest)
        return self.named(_maps.vjp(*qkv, *p, cot["o"], d_lse=cot["lse"], **rest), x)

    def vjp_jvp(self, x: Arrays, t: Arrays, cot: Arrays, tcot: Arrays | None) -> Arrays:
        qkv, rest = self.split(x)
        tangents = self.tangents(t)
        p = _maps.jvp(*qkv, **tangents, **rest)
        if tcot is not None:
            rest |= {"td_o": tcot["o"], "td_lse": tcot["lse"]}
        return self.named(_maps.vjp_jvp(*qkv, *p, cot["o"], d_lse=cot["lse"], **tangents, **rest), x)


def _plan_words(text: str) -> dict[str, Any]:
    """The words of a problem, as the library itself writes them."""
    buckets = slopes = None
    try:
        plan = _core.plan(text)
    except ValueError:
        # Only the arrays may be missing that have no text: then give any.
        buckets, slopes = _guess_arrays(text)
        try:
            plan = _core.plan(text, buckets=buckets, alibi_slopes=slopes)
        except ValueError as error:
            raise ValueError("problem: " + str(error).removeprefix("problem text: ")) from None
    words: dict[str, Any] = {"sizes": {}}
    for word in plan.problem().split():
        name, equals, value = word.partition("=")
        letters = name.rstrip("0123456789")
        if not equals and letters in ("b", "h", "kv", "q", "k", "d", "dv"):
            words["sizes"][letters] = int(name[len(letters) :])
        else:
            words[name] = value
    return words


def _guess_arrays(text: str) -> tuple[bytes | None, bytes | None]:
    buckets = slopes = None
    for word in text.split():
        name, _, value = word.partition("=")
        first = value.split(",")[0]
        if name == "table" and first.isdigit():
            buckets = np.zeros(2 * int(first) + 1, np.int32).tobytes()
        if word == "alibi=slopes":
            heads = [w[1:] for w in text.split() if w[0] == "h" and w[1:].isdigit()]
            slopes = np.zeros(int(heads[0]) if heads else 1).tobytes()
    return buckets, slopes


# ---- Arithmetic of dicts of arrays ----


def _finite(x: Arrays) -> Arrays:
    """An empty row's lse is minus infinity, at each displacement alike."""
    return {name: np.where(np.isneginf(a), 0.0, a) for name, a in x.items()}


def _moved(x: Arrays, t: Arrays, h: float) -> Arrays:
    return {name: a + h * t[name] for name, a in x.items()}


def _differences(f: Any) -> Arrays:
    total: Arrays = {}
    for at, weight in STENCIL:
        for name, a in f(at * STEP).items():
            total[name] = total.get(name, 0.0) + weight / STEP * a
    return total


def _inner(x: Arrays, y: Arrays) -> float:
    return float(sum(np.vdot(x[name], y[name]) for name in y))


def _size(x: Arrays, y: Arrays) -> float:
    return float(sum(np.linalg.norm(x[name]) * np.linalg.norm(y[name]) for name in y))


def _residual(a: float, b: float, size: float) -> float:
    return abs(a - b) / (size if size > 0 else 1.0)


def _error(x: Arrays, y: Arrays) -> float:
    """The largest error of an array, relative to its norm and a hundredth of the largest: one that is zero in
    exact arithmetic has only noise in its differences."""
    norms = {name: float(np.linalg.norm(a)) for name, a in y.items()}
    least = 0.01 * max(norms.values())
    return max(_residual(float(np.linalg.norm(x[n] - y[n])), 0.0, norms[n] + least) for n in y)
