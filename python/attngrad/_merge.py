"""Merges the results over two disjoint sets of keys. Each row is merged independently of the others, so the
meaning of the leading axes does not matter: an array of 2 to 4 axes is treated as [batch, heads, n, d]."""

from __future__ import annotations

from typing import Any, NamedTuple, overload

import numpy as np

from . import _arrays, _core, _device, _plan, _problem


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


class MergedSecond(NamedTuple):
    """The fields of Merged, those of jvp along s, named so and smu, and those of jvp_jvp; the low halves of o and to
    if one was given."""

    o: np.ndarray
    lse: np.ndarray
    to: np.ndarray
    mu: np.ndarray
    so: np.ndarray
    smu: np.ndarray
    sto: np.ndarray
    nu: np.ndarray
    o_low: np.ndarray | None = None
    to_low: np.ndarray | None = None


def _take(name: str, x: Any, shape: tuple[int, ...], dtype: Any, place: _device.Place | None) -> Any:
    a = _arrays.as_array(x, name) if place is None else place.array(x, name)
    if a.shape != shape:
        raise ValueError(f"{name}: shape {list(a.shape)}, must be {list(shape)}")
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


@overload
def merge(
    o1: Any,
    lse1: Any,
    o2: Any,
    lse2: Any,
    *,
    to1: Any,
    mu1: Any,
    to2: Any,
    mu2: Any,
    so1: Any,
    smu1: Any,
    sto1: Any,
    nu1: Any,
    so2: Any,
    smu2: Any,
    sto2: Any,
    nu2: Any,
    o_low1: Any = ...,
    to_low1: Any = ...,
    o_low2: Any = ...,
    to_low2: Any = ...,
) -> MergedSecond: ...


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
    so1: Any = None,
    smu1: Any = None,
    sto1: Any = None,
    nu1: Any = None,
    so2: Any = None,
    smu2: Any = None,
    sto2: Any = None,
    nu2: Any = None,
    o_low1: Any = None,
    to_low1: Any = None,
    o_low2: Any = None,
    to_low2: Any = None,
) -> Merged | MergedLow | MergedSecond:
    """The attention over both sets of keys, from the results over each: o and lse, and also to and mu if to1,
    mu1, to2 and mu2 are all given. Only one of the parts may include the sink. If a low half is given (o_low1,
    to_low1, o_low2, to_low2; an absent one is zero), the result has o_low and, with tangents, to_low too.

    Second derivatives need all of so1, smu1, sto1, nu1, so2, smu2, sto2 and nu2 beside to1 to mu2: to and mu are
    jvp's along t, so and smu jvp's to and mu along s, sto and nu jvp_jvp's with o, lse, mu and smu of the same part.

    >>> import numpy as np
    >>> import attngrad
    >>> q = k = v = np.eye(4)
    >>> left, right = attngrad.forward(q, k[:1], v[:1]), attngrad.forward(q, k[1:], v[1:])
    >>> np.allclose(attngrad.merge(*left, *right).o, attngrad.forward(q, k, v).o)
    True
    """
    place = _device.place_of(o1, "o1")
    o, code = (place or _arrays).float_array(o1, "o1")
    if not 2 <= o.ndim <= 4:
        raise ValueError(f"o1: has {o.ndim} axes, must have 2 to 4")
    _problem.check_head_size("o1", o.shape[-1])
    tangents = {"to1": to1, "mu1": mu1, "to2": to2, "mu2": mu2}
    second = {"so1": so1, "smu1": smu1, "sto1": sto1, "nu1": nu1}
    second |= {"so2": so2, "smu2": smu2, "sto2": sto2, "nu2": nu2}
    has_second = _all_or_none(second, second)
    has_tangents = _all_or_none(tangents, tangents | second)
    inputs = {"o1": o1, "lse1": lse1, "o2": o2, "lse2": lse2}
    inputs |= (tangents if has_tangents else {}) | (second if has_second else {})
    low = {"o_low1": o_low1, "to_low1": to_low1, "o_low2": o_low2, "to_low2": to_low2}
    inputs |= (low := _given_low(low, o.dtype, has_tangents))
    outputs = _outputs(o, code, place, has_tangents, has_second, bool(low))
    tensors = {}
    for name, x in (inputs | outputs).items():
        is_rows = name.rstrip("12") in _ROWS
        a = _take(name, x, o.shape[:-1] if is_rows else o.shape, np.float64 if is_rows else o.dtype, place)
        kind = _arrays.ROWS if is_rows else _arrays.MAIN
        tensors[name] = _arrays.view(a, kind) if place is None else _arrays.device_view(a, kind, name)
    b, h, n, d = (1,) * (4 - o.ndim) + o.shape
    problem = f"b{b} h{h} q{n} k0 d{d} {code}"  # k0: merging needs no keys
    if o.size and place is None:
        _plan.get(problem).merge(tensors)
    elif o.size:
        _plan.get(problem, backend=_core.BACKEND_CUDA, device=place.device + 1).merge(tensors, stream=place.stream)
    if has_second:
        return MergedSecond(**outputs)
    if low:
        return MergedLow(**dict.fromkeys(MergedLow._fields) | outputs)  # type: ignore[arg-type]
    return Merged(**outputs)


_ROWS = frozenset(("lse", "mu", "smu", "nu"))


def _all_or_none(needed: dict[str, Any], cause: dict[str, Any]) -> bool:
    """Is anything of `cause` given? Then all of `needed` must be."""
    given = [name for name, x in cause.items() if x is not None]
    missing = [name for name, x in needed.items() if x is None]
    if given and missing:
        raise ValueError(f"{missing[0]}: missing, but {given[0]} is given")
    return bool(given)


def _outputs(
    o: Any, code: str, place: _device.Place | None, tangents: bool, second: bool, low: bool
) -> dict[str, Any]:
    """New arrays for the results."""
    names = ["o", "lse"] + ["to", "mu"] * tangents + ["so", "smu", "sto", "nu"] * second
    names += ["o_low"] * low + ["to_low"] * (low and tangents)
    if place is not None:
        shapes = {name: (o.shape[:-1], "f64") if name in _ROWS else (o.shape, code) for name in names}
        return {name: place.empty(*of)[0] for name, of in shapes.items()}
    return {name: np.empty(o.shape[:-1]) if name in _ROWS else np.empty(o.shape, o.dtype) for name in names}


def _given_low(low: dict[str, Any], dtype: np.dtype, has_tangents: bool) -> dict[str, Any]:
    """The low halves that are not None; refused if o has none, or if to is absent."""
    given = {name: x for name, x in low.items() if x is not None}
    for name in given:
        _arrays.check_has_low(name, dtype, "o1")
        if name.startswith("to") and not has_tangents:
            raise ValueError(f"{name}: given without {name.replace('_low', '')}")
    return given
