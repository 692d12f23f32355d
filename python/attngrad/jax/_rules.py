"""The JVP rules and the transposes of the primitives, as the table in _primitives.py lists them; no formula of
attention is here. A tangent has the mapped axes of its operand; a cotangent has those of its result."""

from __future__ import annotations

import jax
from jax.ad_checkpoint import checkpoint_name
from jax.interpreters import ad

from ._primitives import bind, forward_p, has_low, jvp_jvp_p, jvp_p, sum_missing, vjp_jvp_p, vjp_p
from ._types import CONSTANTS, INPUTS, SAVED, Call, Operand, Operands

CHECKPOINT_NAME = "attngrad"
_POINT = (*INPUTS, *CONSTANTS, *SAVED)  # what every derivative begins with
_OUTPUT_TANGENTS = {"o": "to", "lse": "mu", "o_low": "to_low"}
_COTANGENTS = ("d_o", "d_lse")
_T, _S = (tuple(prefix + name for name in INPUTS) for prefix in "ts")
_COTANGENT_TANGENTS = ("td_o", "td_lse")
_DIRECTION = (*_T, *_OUTPUT_TANGENTS.values(), *_COTANGENT_TANGENTS)


def _third() -> NotImplementedError:
    return NotImplementedError(
        "attngrad.jax: a third derivative: the maps end with second derivatives. For third ones take finite "
        "differences of a second one (jax.jvp of jax.grad, jax.jvp of jax.jvp), or jax.nn.dot_product_attention, "
        "whose memory grows with the square of the length"
    )


# ---- Tangents ----


def _zero(x):
    return ad.Zero(jax.typeof(x).to_tangent_aval())


def _nonzero(tangents, operands: Operands) -> Operands:
    """The tangents that are not zero, by the names of their operands."""
    return Operands(
        {
            name: Operand(t, x.axes)
            for (name, x), t in zip(operands.items(), tangents, strict=True)
            if type(t) is not ad.Zero
        }
    )


def _renamed(prefix: str, operands: Operands, names) -> Operands:
    """Some operands, under names with a prefix."""
    return Operands({prefix + name: x for name, x in operands.items() if name in names})


def _along(tangents: Operands) -> Operands:
    """The direction of these tangents of the inputs, o, lse and o_low."""
    return _renamed("t", tangents, INPUTS).plus(
        {_OUTPUT_TANGENTS[n]: x for n, x in tangents.items() if n in _OUTPUT_TANGENTS}
    )


def _with_outputs(call: Call, operands: Operands, direction: Operands) -> Operands:
    """A direction (tX) with its to, mu and to_low; computed unless they are there."""
    if "to" in direction and "mu" in direction:
        return direction
    results = _jvp(call, operands.only(_POINT).plus(direction.only(_T)))
    return direction.plus({name: Operand(x, call.all_axes()) for name, x in results.items()})


def _jvp(call: Call, operands: Operands, axes=None) -> dict:
    """to, mu and, if the operands have o_low, to_low."""
    results = axes if axes is not None else dict.fromkeys(("to", "mu"), call.all_axes())
    if axes is None and "o_low" in operands:
        results["to_low"] = call.all_axes()
    return bind(jvp_p, call.problem, call.maps, operands, results)


def _sum(results: list[dict], names, primals: list) -> list:
    """The sum of some results, each a dict that may lack some; zeros if none has it."""
    total = []
    for name, y in zip(names, primals, strict=True):
        t = _zero(y)
        for result in results:
            if name in result:
                t = ad.add_tangents(t, result[name])
        total.append(t)
    return total


def _result_names(call: Call) -> list[str]:
    return [name for name, _ in call.results]


# ---- JVP rules ----


def _forward_rule(primals, tangents, *, call: Call):
    operands = Operands.of(primals, call.names, call.axes)
    t = _nonzero(tangents, operands).only(INPUTS)
    results = dict(call.results)
    if t and has_low(call.problem, operands):
        results["o_low"] = call.all_axes()
    values = bind(forward_p, call.problem, call.maps, operands, results)
    if not t:
        out = [values[name] for name in _result_names(call)]
        return out, [_zero(y) for y in out]
    saved = {name: Operand(checkpoint_name(y, CHECKPOINT_NAME), results[name]) for name, y in values.items()}
    out = [saved[name].value for name in _result_names(call)]
    moved = _jvp(call, operands.plus(saved).plus(_renamed("t", t, INPUTS)))
    moved = {name: moved[tangent] for name, tangent in _OUTPUT_TANGENTS.items() if tangent in moved}
    return out, _sum([moved], _result_names(call), out)


def _jvp_rule(primals, tangents, *, call: Call):
    """jvp(t): along t' it is linear; along x' it is jvp_jvp."""
    operands = Operands.of(primals, call.names, call.axes)
    given, point, results = _nonzero(tangents, operands), operands.only(_POINT), dict(call.results)
    s, parts = given.only(INPUTS), []
    if s:
        direction = _with_outputs(call, point, operands.only(_T))
        values = {name: sum_missing(direction[name].value, axes) for name, axes in call.results}
        second = _second_direction(call, point, s, given)
        parts.append(_second_tangent(call, point.plus(direction).plus(second), results))
    else:
        values = bind(jvp_p, call.problem, call.maps, operands, results)
    if t := given.only(_T):
        parts.append(bind(jvp_p, call.problem, call.maps, point.plus(t), results))
    out = list(values.values())
    return out, _sum(parts, _result_names(call), out)


def _second_direction(call: Call, point: Operands, s: Operands, given: Operands) -> Operands:
    """sX and smu of tangents s of the inputs, given the tangent of lse or not."""
    smu = given["lse"] if "lse" in given else _with_outputs(call, point, _renamed("t", s, INPUTS))["mu"]
    return _renamed("s", s, INPUTS).plus({"smu": smu})


def _second_tangent(call: Call, operands: Operands, axes) -> dict:
    """sto and nu, those of them that are wanted, under the names of what they are the tangents of."""
    wanted = {name: second for name, second in (("to", "sto"), ("mu", "nu")) if name in axes}
    results = bind(jvp_jvp_p, call.problem, call.maps, operands, {wanted[name]: axes[name] for name in wanted})
    return {name: results[second] for name, second in wanted.items()}


def _vjp_rule(primals, tangents, *, call: Call):
    """vjp(d): along d' it is linear; along x' it is vjp_jvp, with the tangents of o, lse, o_low as to, mu, to_low."""
    operands = Operands.of(primals, call.names, call.axes)
    values = bind(vjp_p, call.problem, call.maps, operands, dict(call.results))
    out = list(values.values())
    given = _nonzero(tangents, operands)
    d, point = given.only(_COTANGENTS), operands.only(_POINT)
    if not given.only(INPUTS):
        parts = [bind(vjp_p, call.problem, call.maps, point.plus(d), dict(call.results))] if d else []
        return out, _sum(parts, _result_names(call), out)
    direction = _with_outputs(call, operands, _along(given))
    moved = bind(
        vjp_jvp_p,
        call.problem,
        call.maps,
        operands.plus(direction).plus(_renamed("t", d, _COTANGENTS)),
        {"t" + name: axes for name, axes in call.results},
    )
    return out, list(moved.values())


def _second_order(primitive, primals, tangents, call: Call):
    """Operands, results and values of a second derivative, and the tangents that are not zero: none is of an input."""
    operands = Operands.of(primals, call.names, call.axes)
    results = dict(call.results)
    values = bind(primitive, call.problem, call.maps, operands, results)
    given = _nonzero(tangents, operands)
    if given.only(INPUTS):
        raise _third()
    return operands, results, list(values.values()), given


def _vjp_jvp_rule(primals, tangents, *, call: Call):
    """vjp_jvp: linear in the direction (t to mu td) and, without td, in d; along x' it is of third order."""
    operands, results, out, given = _second_order(vjp_jvp_p, primals, tangents, call)
    parts, point, d = [], operands.only(_POINT), given.only(_COTANGENTS)
    if given.only(_T):
        direction = _with_outputs(call, operands, given.only(_DIRECTION))
        along = operands.without(_DIRECTION).plus(direction)
        parts.append(bind(vjp_jvp_p, call.problem, call.maps, along, results))
    elif td := {n[1:]: x for n, x in given.items() if n in _COTANGENT_TANGENTS}:
        gradients = {name[1:]: axes for name, axes in call.results}
        moved = bind(vjp_p, call.problem, call.maps, point.plus(td), gradients)
        parts.append({"t" + name: x for name, x in moved.items()})
    if d:
        along = operands.without((*_COTANGENTS, *_COTANGENT_TANGENTS)).plus(d)
        parts.append(bind(vjp_jvp_p, call.problem, call.maps, along, results))
    return out, _sum(parts, _result_names(call), out)


def _jvp_jvp_rule(primals, tangents, *, call: Call):
    """jvp_jvp: linear in s and, as both directions may be exchanged, in t; along x' it is of third order."""
    operands, results, out, given = _second_order(jvp_jvp_p, primals, tangents, call)
    parts, point = [], operands.only(_POINT)
    for own, mu in ((_S, "smu"), (_T, "mu")):
        if not given.only(own):
            continue
        first = operands.without((*_S, "smu")) if own is _S else _exchanged(call, operands)
        moved = Operands({name[1:]: x for name, x in given.only(own).items()})
        tangent = {"lse": given[mu]} if mu in given else {}
        second = _second_direction(call, point, moved, Operands(tangent))
        parts.append(bind(jvp_jvp_p, call.problem, call.maps, first.plus(second), results))
    return out, _sum(parts, _result_names(call), out)


def _exchanged(call: Call, operands: Operands) -> Operands:
    """The operands of jvp_jvp with s as the first direction, and none as the second."""
    point = operands.only(_POINT)
    first = Operands({"t" + name[1:]: x for name, x in operands.only(_S).items()})
    return point.plus(_with_outputs(call, point, first))


# ---- Transposes ----


class _Transpose:
    """What a transpose begins with: the operands, which of them are linear, the cotangents that are not zero."""

    def __init__(self, cotangents, values, call: Call) -> None:
        self.call = call
        self.operands = Operands.of(values, call.names, call.axes)
        self.wanted = [name for name, x in self.operands.items() if ad.is_undefined_primal(x.value)]
        self.known = self.operands.without(self.wanted)
        self.point = self.known.only(_POINT)
        self.cotangents = Operands(
            {
                name: Operand(ct, axes)
                for (name, axes), ct in zip(call.results, cotangents, strict=True)
                if type(ct) is not ad.Zero
            }
        )

    def wants_only(self, names) -> bool:
        return all(name in names for name in self.wanted)

    def axes(self, name: str):
        return self.operands[name].axes

    def bind(self, primitive, operands, results) -> dict:
        return bind(primitive, self.call.problem, self.call.maps, operands, results)

    def answer(self, found: dict | None = None) -> list:
        """Cotangents in the order of the operands: those found, zero for other linear ones, None for the rest."""
        found = found or {}
        return [
            found.get(name, ad.Zero(x.value.aval)) if name in self.wanted else None
            for name, x in self.operands.items()
        ]


def _jvp_transpose(cotangents, *values, call: Call):
    t = _Transpose(cotangents, values, call)
    if not t.wants_only(_T):
        raise _third()
    d = _as_cotangents(t, {"to": "d_o", "mu": "d_lse"})
    if not d:
        return t.answer()
    out = t.bind(vjp_p, t.point.plus(d), {"d" + name[1:]: t.axes(name) for name in t.wanted})
    return t.answer({"t" + name[1:]: x for name, x in out.items()})


def _as_cotangents(t: _Transpose, names: dict[str, str]) -> Operands:
    return Operands({names[name]: x for name, x in t.cotangents.items() if name in names})


def _vjp_transpose(cotangents, *values, call: Call):
    t = _Transpose(cotangents, values, call)
    if not t.wants_only(_COTANGENTS):
        raise _third()
    u = Operands({"t" + name[1:]: x for name, x in t.cotangents.items()})
    if not u:
        return t.answer()
    names = {"d_o": "to", "d_lse": "mu"}
    out = _jvp(call, t.point.plus(u), {names[name]: t.axes(name) for name in t.wanted})
    return t.answer({name: out[names[name]] for name in t.wanted})


def _vjp_jvp_transpose(cotangents, *values, call: Call):
    """Linear in the direction (t to mu td), and in d and td together. The Hessian is symmetric: its transpose along u
    is itself along u; td is transposed as d in vjp; in d, <u, vjp_jvp> is <d, jvp_jvp(t, u)>."""
    t = _Transpose(cotangents, values, call)
    u = Operands({"t" + name[2:]: x for name, x in t.cotangents.items()})
    if not (t.wants_only(_DIRECTION) or t.wants_only((*_COTANGENTS, *_COTANGENT_TANGENTS))):
        raise _third()
    if not u:
        return t.answer()
    u = _with_outputs(call, t.point, u)
    found = {}
    for name, tangent in zip(_COTANGENT_TANGENTS, ("to", "mu"), strict=True):
        if name in t.wanted:
            found[name] = sum_missing(u[tangent].value, t.axes(name))
    return t.answer(found | _transposed_in_inputs(t, u) | _transposed_in_cotangents(t, u))


def _transposed_in_inputs(t: _Transpose, u: Operands) -> dict:
    results = {"td" + name[1:]: t.axes(name) for name in t.wanted if name in _T}
    if not results:
        return {}
    out = t.bind(vjp_jvp_p, t.point.plus(t.known.only(_COTANGENTS)).plus(u), results)
    return {"t" + name[2:]: x for name, x in out.items()}


def _transposed_in_cotangents(t: _Transpose, u: Operands) -> dict:
    names = {d: second for d, second in (("d_o", "sto"), ("d_lse", "nu")) if d in t.wanted}
    if not names:
        return {}
    second = Operands({"s" + name[1:]: x for name, x in u.items() if name in _T}).plus({"smu": u["mu"]})
    along = t.known.without((*_COTANGENTS, *_COTANGENT_TANGENTS)).plus(second)
    out = t.bind(jvp_jvp_p, along, {second: t.axes(d) for d, second in names.items()})
    return {d: out[second] for d, second in names.items()}


def _jvp_jvp_transpose(cotangents, *values, call: Call):
    """In s: the derivative of <d, jvp(x, t)> with respect to x."""
    t = _Transpose(cotangents, values, call)
    if not t.wants_only((*_S, "smu")):
        raise _third()
    d = _as_cotangents(t, {"sto": "d_o", "nu": "d_lse"})
    if not d:
        return t.answer()
    along = t.known.without((*_S, "smu")).plus(d)
    out = t.bind(vjp_jvp_p, along, {"td" + name[1:]: t.axes(name) for name in t.wanted if name in _S})
    return t.answer({"s" + name[2:]: x for name, x in out.items()})


ad.primitive_jvps.update(
    {
        forward_p: _forward_rule,
        jvp_p: _jvp_rule,
        vjp_p: _vjp_rule,
        vjp_jvp_p: _vjp_jvp_rule,
        jvp_jvp_p: _jvp_jvp_rule,
    }
)
ad.primitive_transposes.update(
    {
        jvp_p: _jvp_transpose,
        vjp_p: _vjp_transpose,
        vjp_jvp_p: _vjp_jvp_transpose,
        jvp_jvp_p: _jvp_jvp_transpose,
    }
)
