"""Every variable of one head: all intermediates of a map, as the reference computes them."""

from __future__ import annotations

from typing import Any, Unpack

import numpy as np

from . import _core, _maps, _problem
from ._view import Explanation
from ._call import Call, integer
from ._features import Features, with_features

_MATRICES = {
    _core.MAP_FORWARD: "Z B S P M R phi1",
    _core.MAP_VJP: "Z B S P M R phi1 dP dS dZ",
    _core.MAP_JVP: "Z B S P M R phi1 tZ tS tP",
    _core.MAP_VJP_JVP: "Z B S P M R phi1 phi2 dP dS dZ tZ tS tP tdP tdS tdZ",
}
_ROWS = {
    _core.MAP_FORWARD: "L Ps",
    _core.MAP_VJP: "L Ps D",
    _core.MAP_JVP: "L Ps mu",
    _core.MAP_VJP_JVP: "L Ps D mu tD",
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
    batch: int = 0,
    head: int = 0,
    jacobian_row: int | None = None,
    **features: Unpack[Features],
) -> Explanation:
    """The variables of one head by their names in docs/math.md, as float64 arrays: of forward; of vjp if a
    cotangent is given, d_o or d_lse; of jvp if a tangent is, tq, tk, tv, tbias, ttable or tsink; of
    vjp_jvp if both are, or td_o or td_lse. `batch` and `head` say which head; `jacobian_row` adds J, the
    softmax Jacobian of one query. Matrices are [queries, keys]: meant for small problems. The backend is the
    reference, whatever `backend` says. The dict's save_html(path) writes a page that shows them, and a notebook
    shows it.

    >>> import numpy as np
    >>> import attngrad
    >>> q = k = v = np.eye(2)
    >>> attngrad.explain(q, k, v, d_o=np.eye(2))["dS"].round(3)
    array([[ 0.221, -0.221],
           [-0.221,  0.221]])
    """
    features["backend"] = "reference"
    tangents = {"tq": tq, "tk": tk, "tv": tv, "tbias": tbias, "ttable": ttable, "tsink": tsink}
    has_cotangent = not (d_o is d_lse is td_o is td_lse is None)
    has_tangent = not (td_o is td_lse is None) or any(t is not None for t in tangents.values())
    call = Call(q, k, v, features)  # type: ignore[arg-type]
    if has_tangent:
        call.take(**tangents)
    map = _core.MAP_JVP if has_tangent else _core.MAP_FORWARD
    if has_cotangent:
        forward_results = (
            _maps.jvp(q, k, v, **tangents, **features) if has_tangent else _maps.forward(q, k, v, **features)
        )
        call.take(
            **forward_results._asdict(),
            d_o=call.zeros("d_o") if d_o is None else d_o,
            d_lse=d_lse,
            **({"td_o": td_o, "td_lse": td_lse} if has_tangent else {}),
        )
        map = _core.MAP_VJP_JVP if has_tangent else _core.MAP_VJP
    return _trace(call, map, batch, head, jacobian_row)


def _trace(call: Call, map: int, batch: int, head: int, jacobian_row: int | None) -> Explanation:
    p = call.problem
    arrays = {name: np.zeros((p.q_len, p.kv_len)) for name in _MATRICES[map].split()}
    arrays |= {name: np.zeros(p.q_len) for name in _ROWS[map].split()}
    if jacobian_row is not None:
        arrays["J"] = np.zeros((p.kv_len, p.kv_len))
    row = 0 if jacobian_row is None else integer(jacobian_row, "jacobian_row")
    indices = integer(batch, "batch"), integer(head, "head"), row
    structs = {name: a.__array_struct__ for name, a in arrays.items()}
    try:
        p.plan.trace(map, call.tensors, structs, *indices, **call.keywords)
    except ValueError as error:
        raise _problem.with_argument(error) from None
    return Explanation(arrays, call, indices[0], indices[1])
