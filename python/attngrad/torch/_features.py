"""The features of a problem as one string, the only form in which a dispatcher op can take them.

Most words are those of the library's text form of a problem. A few say what that text leaves to the call or
to arrays, and are taken out again by `read`: q_offset=N, k_offset=N, buckets=I,I,..., slopes=X,X,...
"""

from __future__ import annotations

import functools
from array import array
from collections.abc import Sequence
from typing import NamedTuple

_ALIGN = ("top-left", "bottom-right")


class Features(NamedTuple):
    """What `read` makes of the string: the words of the problem's text, the plan's arrays, the call's
    numbers."""

    words: str
    buckets: bytes | None
    slopes: bytes | None
    q_offset: int
    k_offset: int
    dropout: bool


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
) -> str:
    """The string of these features; equal features give equal strings."""
    words = []
    if align not in _ALIGN:
        raise ValueError(f"align: {align!r}, must be one of {', '.join(_ALIGN)}")
    if causal:
        words.append("causal")
    if align != "top-left":
        words.append(f"align={align}")
    if window is not None:
        if isinstance(window, (int, str)) or len(window) != 2:
            raise ValueError(
                f"window: {window!r}, must be two numbers (left, right); None or -1 is unbounded"
            )
        words.append("window=" + ",".join("-1" if side is None else str(int(side)) for side in window))
    if not 0 <= dropout < 1:
        raise ValueError(f"dropout_p: {dropout}, must be at least 0 and below 1")
    for name, value in (("scale", scale), ("softcap", softcap), ("dropout", dropout or None)):
        if value is not None:
            words.append(f"{name}={float(value)!r}")
    if alibi is not None and alibi is not False:
        words.append("alibi" if alibi is True else "slopes=" + ",".join(repr(float(x)) for x in alibi))
    if buckets is not None:
        words.append("buckets=" + ",".join(str(int(x)) for x in buckets))
    for name, value in (("q_offset", q_offset), ("k_offset", k_offset)):
        if value:
            words.append(f"{name}={int(value)}")
    return " ".join(words)


@functools.lru_cache(maxsize=256)
def read(features: str) -> Features:
    words, own = [], {}
    for word in features.split():
        name, _, value = word.partition("=")
        if name in ("buckets", "slopes", "q_offset", "k_offset"):
            own[name] = value
        else:
            words.append(word)
    if "slopes" in own:
        words.append("alibi=slopes")
    return Features(
        " ".join(words),
        array("i", map(int, own["buckets"].split(","))).tobytes() if "buckets" in own else None,
        array("d", map(float, own["slopes"].split(","))).tobytes() if "slopes" in own else None,
        int(own.get("q_offset", 0)),
        int(own.get("k_offset", 0)),
        any(word.startswith("dropout=") for word in words),
    )
