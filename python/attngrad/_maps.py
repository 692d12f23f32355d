"""The five maps on arrays."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, Literal, NamedTuple, Unpack, overload

import numpy as np

from . import _arrays, _core, _device
from ._call import Call, missing
from ._features import Features, with_features


class Forward(NamedTuple):
    """Output and logarithm of each row's sum of exponentials (float64)."""

    o: np.ndarray
    lse: np.ndarray


class ForwardLow(NamedTuple):
    """Forward's results, and the low half of o: what rounding took from it, in float16 times 2^11."""

    o: np.ndarray
    lse: np.ndarray
    o_low: np.ndarray


class Gradients(NamedTuple):
    """Gradients of a loss; None if there is no such input, or it was not wanted."""

    dq: np.ndarray | None
    dk: np.ndarray | None
    dv: np.ndarray | None
    dbias: np.ndarray | None = None
    dtable: np.ndarray | None = None
    dsink: np.ndarray | None = None


class Tangents(NamedTuple):
    """Output and lse, and their derivatives along the direction."""

    o: np.ndarray
    lse: np.ndarray
    to: np.ndarray
    mu: np.ndarray


class TangentsLow(NamedTuple):
    """The fields of Tangents, and the low halves of o and to."""

    o: np.ndarray
    lse: np.ndarray
    to: np.ndarray
    mu: np.ndarray
    o_low: np.ndarray
    to_low: np.ndarray


class GradientTangents(NamedTuple):
    """Derivatives of the gradients along the direction; None as in Gradients."""

    tdq: np.ndarray | None
    tdk: np.ndarray | None
    tdv: np.ndarray | None
    tdbias: np.ndarray | None = None
    tdtable: np.ndarray | None = None
    tdsink: np.ndarray | None = None


class SecondTangents(NamedTuple):
    """The second derivatives of o and lse along two directions."""

    sto: np.ndarray
    nu: np.ndarray


def _code(dtype: Any, name: str) -> str | None:
    return None if dtype is None else _arrays.code_of(dtype, name)


def _given_code(o: Any) -> str:
    """The dtype of o, which the map needs."""
    if o is None:
        raise missing("o")
    return _device.float_code(o, "o")


def _out_code(o: Any, out_dtype: Any) -> str | None:
    """The dtype of outputs: that of o if it is given, else out_dtype."""
    wanted = _code(out_dtype, "out_dtype")
    if o is None:
        return wanted
    code = _device.float_code(o, "o")
    if wanted not in (None, code):
        raise TypeError(f"out_dtype: {_arrays.dtype_of(wanted)}, but o is {_arrays.dtype_of(code)}")
    return code


@overload
def forward(
    q: Any, k: Any, v: Any, *, out_dtype: Any = ..., low: Literal[False] = ..., **features: Unpack[Features]
) -> Forward: ...


@overload
def forward(
    q: Any, k: Any, v: Any, *, out_dtype: Any = ..., low: Literal[True], **features: Unpack[Features]
) -> ForwardLow: ...


@with_features
def forward(
    q: Any, k: Any, v: Any, *, out_dtype: Any = None, low: bool = False, **features: Unpack[Features]
) -> Forward | ForwardLow:
    """Attention: o = softmax(scale q k^T + ...) v, and lse.

    q is [n, d], [heads, n, d] or [batch, heads, n, d] (packed sequences: [total, heads, d]); k and v
    likewise, with as many heads or fewer, by a whole factor. Arrays are anything with DLPack or the buffer
    protocol, float64, float32, float16 or bfloat16, one dtype for all; a head size is from 1 to 512. If they are
    PyTorch's or CuPy's on an NVIDIA GPU, so are the results, and the call is enqueued on the current stream.
    `out_dtype` may be float32 if the inputs have 16 bits; weights on AMX have 16 bits all the same.
    `low=True` also returns o_low, what rounding took from a 16-bit o: vjp that is given it computes
    gradients without that error.

    >>> import numpy as np
    >>> import attngrad
    >>> q = k = v = np.eye(3)
    >>> o, lse = attngrad.forward(q, k, v, causal=True)
    >>> o.round(3)
    array([[1.   , 0.   , 0.   ],
           [0.36 , 0.64 , 0.   ],
           [0.264, 0.264, 0.471]])
    """
    call = Call(q, k, v, features, _code(out_dtype, "out_dtype"))  # type: ignore[arg-type]
    results = call.make(("o", "lse")) + call.make_low(low, ("o_low",))
    call.run(_core.MAP_FORWARD)
    return (ForwardLow if low else Forward)(*results)  # type: ignore[arg-type]


@with_features
def vjp(
    q: Any,
    k: Any,
    v: Any,
    o: Any,
    lse: Any,
    d_o: Any,
    *,
    d_lse: Any = None,
    o_low: Any = None,
    wanted: Collection[str] | None = None,
    grad_dtype: Any = None,
    **features: Unpack[Features],
) -> Gradients:
    """The gradients of a loss whose gradients in o and lse are d_o and d_lse; o, lse and, if given, o_low are
    forward's, with the same keywords. A cotangent that is None is zero.

    `wanted` names the gradients to compute, such as {"dq"}; without it all of them are. `grad_dtype` may be
    float32 if the inputs have 16 bits.

    >>> import numpy as np
    >>> import attngrad
    >>> q = k = v = np.eye(3)
    >>> o, lse = attngrad.forward(q, k, v)
    >>> g = attngrad.vjp(q, k, v, o, lse, np.ones((3, 3)))
    >>> g.dv.sum(axis=0)
    array([3., 3., 3.])
    """
    out = _given_code(o)
    call = Call(q, k, v, features, out, _code(grad_dtype, "grad_dtype"), "o")  # type: ignore[arg-type]
    call.take(o=o, lse=lse, d_o=call.zeros("d_o") if d_o is None else d_o, d_lse=d_lse, o_low=o_low)
    return Gradients(*_results(call, Gradients._fields, wanted, _core.MAP_VJP))


@overload
def jvp(
    q: Any,
    k: Any,
    v: Any,
    tq: Any = ...,
    tk: Any = ...,
    tv: Any = ...,
    *,
    tbias: Any = ...,
    ttable: Any = ...,
    tsink: Any = ...,
    o: Any = ...,
    lse: Any = ...,
    o_low: Any = ...,
    out_dtype: Any = ...,
    low: Literal[False] = ...,
    **features: Unpack[Features],
) -> Tangents: ...


@overload
def jvp(
    q: Any,
    k: Any,
    v: Any,
    tq: Any = ...,
    tk: Any = ...,
    tv: Any = ...,
    *,
    tbias: Any = ...,
    ttable: Any = ...,
    tsink: Any = ...,
    o: Any = ...,
    lse: Any = ...,
    o_low: Any = ...,
    out_dtype: Any = ...,
    low: Literal[True],
    **features: Unpack[Features],
) -> TangentsLow: ...


@with_features
def jvp(
    q: Any,
    k: Any,
    v: Any,
    tq: Any = None,
    tk: Any = None,
    tv: Any = None,
    *,
    tbias: Any = None,
    ttable: Any = None,
    tsink: Any = None,
    o: Any = None,
    lse: Any = None,
    o_low: Any = None,
    out_dtype: Any = None,
    low: bool = False,
    **features: Unpack[Features],
) -> Tangents | TangentsLow:
    """o and lse, and their derivatives to and mu along the direction (tq, tk, tv, tbias, ttable, tsink), each
    of its input's shape and dtype; an absent tangent is zero. q, k, v and `out_dtype` are as forward's;
    `low=True` also returns o_low and to_low, the low halves of o and to.

    If o and lse of forward are there already, give them, and o_low if there is one: jvp then returns these
    arrays instead of computing them again, and takes less time.

    >>> import numpy as np
    >>> import attngrad
    >>> q = k = v = np.eye(3)
    >>> attngrad.jvp(q, k, v, tv=np.ones((3, 3))).to.round(12)
    array([[1., 1., 1.],
           [1., 1., 1.],
           [1., 1., 1.]])
    """
    out_name = "out_dtype" if o is None else "o"
    call = Call(q, k, v, features, _out_code(o, out_dtype), None, out_name)  # type: ignore[arg-type]
    call.take(tq=tq, tk=tk, tv=tv, tbias=tbias, ttable=ttable, tsink=tsink)
    if o is None and lse is None and o_low is None:
        results = call.make(("o", "lse", "to", "mu")) + call.make_low(low, ("o_low", "to_low"))
        call.run(_core.MAP_JVP)
    else:
        results = _jvp_given(call, {"o": o, "lse": lse, "o_low": o_low}, low)
    return (TangentsLow if low else Tangents)(*results)  # type: ignore[arg-type]


def _jvp_given(call: Call, given: dict[str, Any], low: bool) -> list[Any]:
    """The results of jvp given o, lse and perhaps o_low: these arrays, and the tangents."""
    for name in ("o", "lse"):
        if given[name] is None:
            other = next(n for n, x in given.items() if x is not None)
            raise ValueError(f"{name}: missing, but {other} is given")
    call.take(**given)
    tangents = call.make(("to", "mu")) + call.make_low(low, ("to_low",))
    if low and given["o_low"] is None:
        raise ValueError("o_low: missing, but o is given and low is True")
    call.run(_core.MAP_JVP, _core.GIVEN_O)
    arrays = {name: call.result(x, name) for name, x in given.items() if x is not None}
    return [arrays["o"], arrays["lse"], *tangents[:2], *([arrays["o_low"], tangents[2]] if low else [])]


@with_features
def vjp_jvp(
    q: Any,
    k: Any,
    v: Any,
    o: Any,
    lse: Any,
    to: Any,
    mu: Any,
    d_o: Any,
    tq: Any = None,
    tk: Any = None,
    tv: Any = None,
    *,
    d_lse: Any = None,
    td_o: Any = None,
    td_lse: Any = None,
    tbias: Any = None,
    ttable: Any = None,
    tsink: Any = None,
    o_low: Any = None,
    to_low: Any = None,
    wanted: Collection[str] | None = None,
    grad_dtype: Any = None,
    **features: Unpack[Features],
) -> GradientTangents:
    """The derivative of vjp's gradients along the direction (tq, tk, tv, tbias, ttable, tsink, td_o, td_lse);
    o, lse, to, mu and, if given, o_low and to_low are jvp's along the same tangents, d_o and d_lse the
    cotangents of vjp; any that is None is zero. With td_o and td_lse absent it is the Hessian-vector product.
    `wanted`, such as {"tdq"}, and `grad_dtype` are as vjp's.

    >>> import numpy as np
    >>> import attngrad
    >>> q = k = v = np.eye(3)
    >>> t = np.ones((3, 3)) / 3
    >>> p = attngrad.jvp(q, k, v, t, t, t)
    >>> h = attngrad.vjp_jvp(q, k, v, *p, np.eye(3), t, t, t)
    >>> h.tdq.shape
    (3, 3)
    """
    out = _given_code(o)
    call = Call(q, k, v, features, out, _code(grad_dtype, "grad_dtype"), "o")  # type: ignore[arg-type]
    d_o = call.zeros("d_o") if d_o is None else d_o
    call.take(o=o, lse=lse, to=to, mu=mu, o_low=o_low, to_low=to_low)
    call.take(d_o=d_o, d_lse=d_lse, td_o=td_o, td_lse=td_lse)
    call.take(tq=tq, tk=tk, tv=tv, tbias=tbias, ttable=ttable, tsink=tsink)
    return GradientTangents(*_results(call, GradientTangents._fields, wanted, _core.MAP_VJP_JVP))


@with_features
def jvp_jvp(
    q: Any,
    k: Any,
    v: Any,
    o: Any,
    lse: Any,
    mu: Any,
    smu: Any,
    tq: Any = None,
    tk: Any = None,
    tv: Any = None,
    sq: Any = None,
    sk: Any = None,
    sv: Any = None,
    *,
    tbias: Any = None,
    ttable: Any = None,
    tsink: Any = None,
    sbias: Any = None,
    stable: Any = None,
    ssink: Any = None,
    o_low: Any = None,
    **features: Unpack[Features],
) -> SecondTangents:
    """sto and nu, the second derivatives of o and lse along two directions: t, which is (tq, tk, tv, tbias,
    ttable, tsink), and s, which is (sq, sk, sv, sbias, stable, ssink); an absent tangent is zero. o, lse and, if
    given, o_low are forward's or jvp's, mu is jvp's along t, and smu jvp's mu along s. It is the derivative of
    jvp's to and mu along s, and the same if t and s are exchanged. If s is t, give the same arrays: that takes
    six products instead of ten.

    >>> import numpy as np
    >>> import attngrad
    >>> q = k = v = np.eye(3)
    >>> t = np.ones((3, 3)) / 3
    >>> o, lse, to, mu = attngrad.jvp(q, k, v, t, v, t)
    >>> h = attngrad.jvp_jvp(q, k, v, o, lse, mu, mu, t, v, t, t, v, t)
    >>> step = 1e-4
    >>> ahead, back = (attngrad.forward(q + x * t, k + x * v, v + x * t).o for x in (step, -step))
    >>> np.allclose(h.sto, (ahead - 2 * o + back) / step**2, atol=1e-6)
    True
    """
    out = _given_code(o)
    call = Call(q, k, v, features, out, None, "o")  # type: ignore[arg-type]
    call.take(o=o, lse=lse, mu=mu, smu=smu, o_low=o_low)
    call.take(tq=tq, tk=tk, tv=tv, tbias=tbias, ttable=ttable, tsink=tsink)
    call.take(sq=sq, sk=sk, sv=sv, sbias=sbias, stable=stable, ssink=ssink)
    results = call.make(SecondTangents._fields)
    call.run(_core.MAP_JVP_JVP)
    return SecondTangents(*results)  # type: ignore[arg-type]


def _names(wanted: Any, fields: tuple[str, ...]) -> tuple[str, ...]:
    if isinstance(wanted, str) or not isinstance(wanted, Iterable):
        raise TypeError(f"wanted: {wanted!r} is not a collection of names, such as {{{fields[0]!r}}}")
    names = tuple(wanted)
    for name in names:
        if name not in fields:
            raise ValueError(f"wanted: {name!r} is none of {', '.join(fields)}")
    return names


def _results(
    call: Call, fields: tuple[str, ...], wanted: Collection[str] | None, map: int
) -> list[np.ndarray | None]:
    """The gradients that are wanted, in the order of the fields; None for the others."""
    if wanted is None:
        results = call.make(fields)
    else:
        names = _names(wanted, fields)
        results = [call.make((name,))[0] if name in names else None for name in fields]
        if all(a is None for a in results):
            lacking = ", ".join(names)
            why = f"{lacking}: there is no such input" if names else "is empty, must name a gradient"
            raise ValueError(f"wanted: {why}")
    call.run(map)
    return results
