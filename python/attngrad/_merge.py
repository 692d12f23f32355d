"""Merges the results over two disjoint sets of keys. Each row is merged independently of the others, so the
meaning of the leading axes does not matter: an array of 2 to 4 axes is treated as [batch, heads, n, d]."""

from __future__ import annotations

from typing import Any, NamedTuple, overload

import numpy as np

from . import _arrays, _plan, _problem


class Merged(NamedTuple):
    """The fields of forward's result or, with tangents, of jvp's."""

    o: np.ndarray
    lse: np.ndarray
    to: np.ndarray | None = None
    mu: np.ndarray | None = None


class MergedLow(NamedTuple):
    """The fields of Merged, and the low halves of o and, with tangents, of to."""

    o: np.ndarray
    lse: np.ndarray
    to: np.ndarray | None
    mu: np.ndarray | None
    o_low: np.ndarray
    to_low: np.ndarray | None


def _take(name: str, x: Any, like: np.ndarray, dtype: Any) -> np.ndarray:
    a = _arrays.as_array(x, name)
    if a.shape != like.shape:
        raise ValueError(f"{name}: shape {list(a.shape)}, must be {list(like.shape)}")
    if a.dtype != dtype:
        raise TypeError(f"{name}: {a.dtype}, must be {np.dtype(dtype)}")
    return a


@overload
def merge(
    o1: Any,
    lse1: Any,
    o2: Any,
    lse2: Any,
    *,
    to1: Any = ...,
    mu1: Any = ...,
    to2: Any = ...,
    mu2: Any = ...,
) -> Merged: ...


@overload
def merge(
    o1: Any,
    lse1: Any,
    o2: Any,
    lse2: Any,
    *,
    to1: Any = ...,
    mu1: Any = ...,
    to2: Any = ...,
    mu2: Any = ...,
    o_low1: Any,
    to_low1: Any = ...,
    o_low2: Any,
    to_low2: Any = ...,
) -> MergedLow: ...


def merge(
    o1: Any,
    lse1: Any,
    o2: Any,
    lse2: Any,
    *,
    to1: Any = None,
    mu1: Any = None,
    to2: Any = None,
    mu2: Any = None,
    o_low1: Any = None,
    to_low1: Any = None,
    o_low2: Any = None,
    to_low2: Any = None,
) -> Merged | MergedLow:
    """The attention over both sets of keys, from the results over each: o and lse, and also to and mu if to1,
    mu1, to2 and mu2 are all given. Only one of the parts may include the sink. If a low half is given (o_low1,
    to_low1, o_low2, to_low2; an absent one is zero), the result has o_low and, with tangents, to_low too.

    >>> import numpy as np
    >>> import attngrad
    >>> q = k = v = np.eye(4)
    >>> left, right = attngrad.forward(q, k[:1], v[:1]), attngrad.forward(q, k[1:], v[1:])
    >>> np.allclose(attngrad.merge(*left, *right).o, attngrad.forward(q, k, v).o)
    True
    """
    o, code = _arrays.float_array(o1, "o1")
    if not 2 <= o.ndim <= 4:
        raise ValueError(f"o1: has {o.ndim} axes, must have 2 to 4")
    _problem.check_head_size("o1", o.shape[-1])
    tangents = {"to1": to1, "mu1": mu1, "to2": to2, "mu2": mu2}
    given = [name for name, x in tangents.items() if x is not None]
    if given and len(given) < len(tangents):
        raise ValueError(f"{next(n for n in tangents if n not in given)}: missing, but {given[0]} is given")
    inputs = {"o1": o, "lse1": lse1, "o2": o2, "lse2": lse2} | (tangents if given else {})
    low = {"o_low1": o_low1, "to_low1": to_low1, "o_low2": o_low2, "to_low2": to_low2}
    inputs |= (low := _given_low(low, o.dtype, bool(given)))
    rows = o[..., 0]
    outputs = {"o": np.empty(o.shape, o.dtype), "lse": np.empty(rows.shape)}
    if given:
        outputs |= {"to": np.empty(o.shape, o.dtype), "mu": np.empty(rows.shape)}
    if low:
        outputs |= {name + "_low": np.empty(o.shape, o.dtype) for name in ("o", "to") if name in outputs}
    tensors = {}
    for name, x in (inputs | outputs).items():
        is_rows = name.startswith(("lse", "mu"))
        a = _take(name, x, rows if is_rows else o, np.float64 if is_rows else o.dtype)
        tensors[name] = _arrays.view(a, _arrays.ROWS if is_rows else _arrays.MAIN)
    b, h, n, d = (1,) * (4 - o.ndim) + o.shape
    if o.size:  # k0: merging needs no keys
        _plan.get(f"b{b} h{h} q{n} k0 d{d} {code}").merge(tensors)
    if low:
        return MergedLow(**dict.fromkeys(MergedLow._fields) | outputs)  # type: ignore[arg-type]
    return Merged(**outputs)


def _given_low(low: dict[str, Any], dtype: np.dtype, has_tangents: bool) -> dict[str, Any]:
    """The low halves that are not None; refused if o has none, or if to is absent."""
    given = {name: x for name, x in low.items() if x is not None}
    for name in given:
        _arrays.check_has_low(name, dtype, "o1")
        if name.startswith("to") and not has_tangents:
            raise ValueError(f"{name}: given without {name.replace('_low', '')}")
    return given
