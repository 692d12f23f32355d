"""The features of a problem as one string, the only form in which a dispatcher op can take them.

Most words are those of the library's text form of a problem. Those of _OWN are not: they say what the text
leaves to the call or to arrays, and `read` takes them out again.

The values are checked here too: a number of the wrong kind is refused with the argument's name, never
rounded.
"""

from __future__ import annotations

import functools
import math
import operator
from array import array
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.autograd import forward_ad

from .. import _core, _plan

MAX_THREADS = 1024  # AGI_MAX_THREADS of the library
# Arguments of `write` that are numbers, flags or words.
OPTIONS = "causal align scale softcap dropout q_offset k_offset batch_offset head_offset".split()
OPTIONS += "backend threads save_low invariant".split()
_ALIGN = ("top-left", "bottom-right")
_KEYWORDS = ("q_offset", "k_offset", "batch_offset")
_LIST_KEYWORDS = ("q_offsets", "k_offsets")
_OWN = frozenset((*_KEYWORDS, *_LIST_KEYWORDS, *"buckets slopes longest backend".split()))
_OWN |= frozenset("threads save_low invariant ring".split())


def integer(name: str, x, low: int = -(2**63), high: int = 2**63 - 1) -> int:
    """A whole number; under torch.compile a constant of the graph."""
    if isinstance(x, Tensor) and x.dim() > 0:
        raise TypeError(f"{name}: a tensor of shape {list(x.shape)}, must be a whole number")
    if _is_bool(x):
        raise TypeError(f"{name}: {x!r}, must be a whole number")
    try:
        n = operator.index(x)
    except TypeError:
        raise TypeError(f"{name}: {x!r}, must be a whole number") from None
    if not low <= n <= high:
        raise ValueError(f"{name}: {n}, must be from {low} to {high}")
    return n


def _is_bool(x) -> bool:
    return isinstance(x, (bool, np.bool_)) or (isinstance(x, Tensor) and x.dtype == torch.bool)


def _check_constant(name: str, x) -> None:
    if not isinstance(x, Tensor):
        return
    if x.requires_grad:
        raise TypeError(f"{name}: requires a gradient, but has none here; detach it, or give numbers")
    if forward_ad._current_level >= 0 and forward_ad.unpack_dual(x).tangent is not None:
        raise TypeError(f"{name}: has a tangent, but no derivative here; give numbers")


def number(name: str, x) -> float:
    """A finite number."""
    _check_constant(name, x)
    if isinstance(x, (str, bytes)) or _is_bool(x):
        raise TypeError(f"{name}: {x!r}, must be a number")
    try:
        n = float(x)
    except (TypeError, ValueError, RuntimeError):  # RuntimeError: a tensor of several elements
        raise TypeError(f"{name}: {type(x).__name__}, must be a number") from None
    if not -math.inf < n < math.inf:  # torch.compile cannot trace math.isfinite of a dynamic number
        raise ValueError(f"{name}: {n}, must be finite")
    return n


def flag(name: str, x) -> bool:
    if not isinstance(x, (bool, np.bool_)):
        raise TypeError(f"{name}: {type(x).__name__}, must be a bool")
    return bool(x)


def as_list(name: str, x) -> list:
    """The elements of a sequence or of a tensor's one axis."""
    _check_constant(name, x)
    if isinstance(x, str) or not (hasattr(x, "__len__") and hasattr(x, "__getitem__")):
        raise TypeError(f"{name}: {type(x).__name__}, must be a sequence of numbers")
    if isinstance(x, (Tensor, np.ndarray)):
        if x.ndim != 1:
            raise ValueError(f"{name}: shape {list(x.shape)}, must have one axis")
        return x.tolist()
    return list(x)


class Features(NamedTuple):
    """What `read` makes of the string: the words of the problem's text, the plan's arrays, the call's
    keywords."""

    words: str
    buckets: bytes | None
    slopes: bytes | None
    has_tables: bool  # of buckets or slopes, of which a plan on a GPU has copies there
    keywords: dict[str, int | array]
    backend: int
    threads: int
    dropout: bool
    save_low: bool
    flags: int  # of the plan
    longest: tuple[int, int] | None  # queries and keys of one of packed sequences, if the caller says them
    ring: str | None  # how the sequence lies on the ranks of a process group: see _ring_word.py


def write(
    *,
    causal: bool = False,
    align: str = "top-left",
    window: Sequence[int | None] | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    dropout: float = 0.0,
    alibi: bool | Sequence[float] | None = None,
    buckets: Sequence[int] | None = None,
    q_offset: int = 0,
    k_offset: int = 0,
    q_offsets: Sequence[int] | None = None,
    k_offsets: Sequence[int] | None = None,
    longest: Sequence[int] | None = None,
    batch_offset: int = 0,
    head_offset: int = 0,
    backend: str | None = None,
    threads: int = 0,
    save_low: bool = True,
    invariant: bool = False,
) -> str:
    """The string of these features; equal features give equal strings."""
    words = []
    if align not in _ALIGN:
        raise ValueError(f"align: {align!r}, must be one of {', '.join(_ALIGN)}")
    if not (backend is None or (isinstance(backend, str) and backend in _plan.BACKENDS)):
        raise ValueError(f"backend: {backend!r}, must be None, {_plan.BACKEND_CHOICE}")
    if flag("is_causal", causal):
        words.append("causal")
    if align != "top-left":
        words.append(f"align={align}")
    if window is not None:
        words.append(f"window={_window(window)}")
    if not 0 <= number("dropout_p", dropout) < 1:
        raise ValueError(f"dropout_p: {dropout}, must be at least 0 and below 1")
    for name, value in (("scale", scale), ("softcap", softcap), ("dropout", dropout or None)):
        if value is not None:
            words.append(f"{name}={number(name, value)!r}")
    if alibi is not None and alibi is not False:
        words.append("alibi" if alibi is True else f"slopes={_joined(alibi)}")
    if buckets is not None:
        words.append(f"buckets={_joined(buckets)}")
    for name, value in (("q_offset", q_offset), ("k_offset", k_offset)):
        words += _unless_0(name, integer(name, value))
    for name, value in (("q_offsets", q_offsets), ("k_offsets", k_offsets)):
        if value is not None:
            words.append(f"{name}={_joined([integer(name, x) for x in as_list(name, value)])}")
    if longest is not None:
        words.append(f"longest={_joined(longest)}")
    for name, value in (("batch_offset", batch_offset), ("head_offset", head_offset)):
        words += _unless_0(name, integer(name, value, 0))
    words += _unless_0("threads", integer("threads", threads, 0, MAX_THREADS))
    if backend is not None:
        words.append(f"backend={backend}")
    if not flag("save_low", save_low):
        words.append("save_low=False")
    if flag("invariant", invariant):
        words.append("invariant")
    return " ".join(words)


def _unless_0(name: str, n: int) -> list[str]:
    return [f"{name}={n}"] if n else []


def _window(window) -> str:
    sides = None if isinstance(window, (int, float)) else as_list("window", window)
    if sides is None or len(sides) != 2:
        raise ValueError(f"window: {window!r}, must be two numbers (left, right); None or -1 is unbounded")
    return _joined([-1 if side is None else integer("window", side, -1) for side in sides])


def _joined(values) -> str:
    return ",".join([f"{x!r}" for x in values])


def _keywords(own: dict[str, str]) -> dict[str, int | array]:
    """Those of Plan.run: numbers, and lists of int64."""
    keywords: dict[str, int | array] = {name: int(own[name]) for name in _KEYWORDS if name in own}
    for name in _LIST_KEYWORDS:
        if name in own:
            keywords[name] = array("q", [int(x) for x in own[name].split(",") if x])
    return keywords


@functools.lru_cache(maxsize=256)
def read(features: str) -> Features:
    words, own = [], {}
    for word in features.split():
        name, _, value = word.partition("=")
        if name in _OWN:
            own[name] = value
        else:
            words.append(word)
    if "slopes" in own:
        words.append("alibi=slopes")
    return Features(
        " ".join(words),
        array("i", map(int, own["buckets"].split(","))).tobytes() if "buckets" in own else None,
        array("d", map(float, own["slopes"].split(","))).tobytes() if "slopes" in own else None,
        "buckets" in own or "slopes" in own or "alibi" in words,
        _keywords(own),
        _plan.BACKENDS[own.get("backend")],
        int(own.get("threads", 0)),
        any(word.startswith("dropout=") for word in words),
        "save_low" not in own,
        _core.INVARIANT if "invariant" in own else 0,
        tuple(map(int, own["longest"].split(","))) if "longest" in own else None,
        own.get("ring"),
    )
