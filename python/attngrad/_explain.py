"""Every variable of one head: all intermediates of a map, as the reference computes them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, Unpack

import numpy as np

from . import _core, _device, _maps, _problem
from ._view import Explanation
from ._call import Call, integer
from ._features import Features, with_features

_MATRICES = {
    _core.MAP_FORWARD: "Z B S P M R phi1",
    _core.MAP_VJP: "Z B S P M R phi1 dP dS dZ",
    _core.MAP_JVP: "Z B S P M R phi1 tZ tS tP",
    _core.MAP_VJP_JVP: "Z B S P M R phi1 phi2 dP dS dZ tZ tS tP tdP tdS tdZ",
    _core.MAP_JVP_JVP: "Z B S P M R phi1 phi2 tZ tS tP sZ sS sP stZ stS stP",
}
_ROWS = {
    _core.MAP_FORWARD: "L Ps",
    _core.MAP_VJP: "L Ps D",
    _core.MAP_JVP: "L Ps mu",
    _core.MAP_VJP_JVP: "L Ps D mu tD",
    _core.MAP_JVP_JVP: "L Ps mu smu nu",
}


@with_features
def explain(
    q: Any,
    k: Any,
    v: Any,
    *,
    d_o: Any = None,
    d_lse: Any = None,
    tq: Any = None,
    tk: Any = None,
    tv: Any = None,
    tbias: Any = None,
    ttable: Any = None,
    tsink: Any = None,
    td_o: Any = None,
    td_lse: Any = None,
    sq: Any = None,
    sk: Any = None,
    sv: Any = None,
    sbias: Any = None,
    stable: Any = None,
    ssink: Any = None,
    batch: int = 0,
    head: int = 0,
    jacobian_row: int | None = None,
    **features: Unpack[Features],
) -> Explanation:
    """The variables of one head by their names in docs/math.md, as float64 arrays: of forward; of vjp if a
    cotangent is given, d_o or d_lse; of jvp if a tangent is, tq, tk, tv, tbias, ttable or tsink; of
    vjp_jvp if both are, or td_o or td_lse; of jvp_jvp if a second direction is given, sq, sk, sv, sbias, stable
    or ssink, without cotangents. `batch` and `head` say which head; `jacobian_row` adds J, the
    softmax Jacobian of one query. Matrices are [queries, keys]: meant for small problems. They are computed when
    the first one is read, from what the inputs are then. The backend is the reference, whatever `backend`
    says. The dict's save_html(path) writes a page that shows them, of long sequences, too, and a notebook shows it.

    >>> import numpy as np
    >>> import attngrad
    >>> q = k = v = np.eye(2)
    >>> attngrad.explain(q, k, v, d_o=np.eye(2))["dS"].round(3)
    array([[ 0.221, -0.221],
           [-0.221,  0.221]])
    """
    features["backend"] = "reference"
    tangents = {"tq": tq, "tk": tk, "tv": tv, "tbias": tbias, "ttable": ttable, "tsink": tsink}
    second = {"sq": sq, "sk": sk, "sv": sv, "sbias": sbias, "stable": stable, "ssink": ssink}
    has_cotangent = not (d_o is d_lse is td_o is td_lse is None)
    has_tangent = not (td_o is td_lse is None) or any(t is not None for t in tangents.values())
    if (gpu := _device.device_of(q)) is not None:
        raise ValueError(f"q: is on GPU {gpu}, must be in the processor's memory")
    call = Call(q, k, v, features)  # type: ignore[arg-type]
    if any(s is not None for s in second.values()):
        if has_cotangent:
            raise ValueError("d_o, d_lse, td_o, td_lse: no map has cotangents and a second direction")
        call.take(**tangents, **second)

        def both_ways() -> dict[str, Any]:
            along_t = _maps.jvp(q, k, v, **tangents, **features)
            along_s = _maps.jvp(q, k, v, **{"t" + name[1:]: s for name, s in second.items()}, **features)
            return {"o": along_t.o, "lse": along_t.lse, "mu": along_t.mu, "smu": along_s.mu}

        return _explanation(call, _core.MAP_JVP_JVP, batch, head, jacobian_row, both_ways)
    if has_tangent:
        call.take(**tangents)
    if not has_cotangent:
        map = _core.MAP_JVP if has_tangent else _core.MAP_FORWARD
        return _explanation(call, map, batch, head, jacobian_row, dict)
    given = {"d_o": d_o, "d_lse": d_lse} | ({"td_o": td_o, "td_lse": td_lse} if has_tangent else {})
    call.take(**{name: x for name, x in given.items() if x is not None})

    def forward_results() -> dict[str, Any]:
        absent = {"d_o": call.zeros("d_o")} if d_o is None else {}
        if has_tangent:
            return _maps.jvp(q, k, v, **tangents, **features)._asdict() | absent
        return _maps.forward(q, k, v, **features)._asdict() | absent

    map = _core.MAP_VJP_JVP if has_tangent else _core.MAP_VJP
    return _explanation(call, map, batch, head, jacobian_row, forward_results)


def _explanation(
    call: Call,
    map: int,
    batch: int,
    head: int,
    jacobian_row: int | None,
    more_inputs: Callable[[], dict[str, Any]],
) -> Explanation:
    """more_inputs: those that the trace needs besides the call's."""
    p = call.problem
    names = [*_MATRICES[map].split(), *_ROWS[map].split(), *([] if jacobian_row is None else ["J"])]
    indices = _index(batch, "batch", p.batch), _index(head, "head", p.heads)
    row = 0 if jacobian_row is None else _index(jacobian_row, "jacobian_row", p.q_len)

    def trace() -> dict[str, np.ndarray]:
        complete = copy.copy(call)
        complete.tensors = dict(call.tensors)
        complete.take(**more_inputs())
        shapes = {"J": (p.kv_len, p.kv_len)} | {name: (p.q_len,) for name in _ROWS[map].split()}
        arrays = {name: np.zeros(shapes.get(name, (p.q_len, p.kv_len))) for name in names}
        structs = {name: a.__array_struct__ for name, a in arrays.items()}
        try:
            p.plan.trace(map, complete.tensors, structs, *indices, row, **call.keywords)
        except ValueError as error:
            raise _problem.with_argument(error) from None
        return arrays

    return Explanation(names, trace, call, *indices)


def _index(value: int, name: str, count: int) -> int:
    index = integer(value, name)
    if not 0 <= index < count:
        raise ValueError(f"{name} is {index}: must be from 0 to {count - 1}")
    return index
