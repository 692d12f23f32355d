"""Five primitives, closed under differentiation and transposition up to the second order. x are the inputs that have
derivatives (q k v bias table sink), t and s tangents of them, d a cotangent of (o, lse), ' a tangent in a rule:

    primitive     gives            linear in       its JVP rule emits                       its transpose emits
    forward       o lse rows                       forward, jvp(t = x')
    jvp(t)        to mu            t               jvp(t'), jvp_jvp(t, s = x')              vjp(d)
    vjp(d)        dx               d               vjp_jvp(t = x', td = d')                 jvp(t)
    vjp_jvp       tdx              t to mu td; d   vjp_jvp in t and in d; x': refused       jvp, vjp_jvp; jvp_jvp for d
    jvp_jvp(t,s)  sto nu           s smu           jvp_jvp in t and in s; x': refused       vjp_jvp(t)

The maps take o, lse, to, mu and smu only to save computing them again: their results are total derivatives in x, t, s
and d. So no rule returns a cotangent of o, lse, to, mu or smu: their contribution would be counted twice. The same
holds for the low halves of 16-bit results, o_low and to_low.

JAX has no float64 unless asked, so lse is there twice: `lse` in float32 (float64 if q is), which has derivatives, and
`rows`, the bits of the float64 that the maps need; integers, so that JAX gives them no tangent. An operand that is
absent is zero: tangents that JAX knows to be zero are not passed, and the library skips their products.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import xla

from .. import _core
from ._axes import Letters
from ._types import Axes, Call, Operand, Operands, Problem, kind_of, wide_aux

# ---- Shapes ----


def _result_type(name: str, types: dict[str, tuple[tuple[int, ...], Any]]) -> tuple[tuple[int, ...], Any]:
    (q, dtype), (v, _) = types["q"], types["v"]
    kind = kind_of(name)
    if kind == "o":
        return (*q[:3], v[3]), dtype
    if kind == "lse":
        return q[:3], jnp.float64 if dtype == jnp.float64 else jnp.float32
    if kind == "rows":
        return (*q[:3], 2), jnp.uint32
    return types[kind]


def _result_sharding(avals, call: Call, name: str, axes: Axes):
    """Under explicit sharding a result is sharded over the axes that it shares with the operands."""
    shardings = [aval.sharding for aval in avals]
    if all(entry is None for sharding in shardings for entry in sharding.spec):
        return shardings[0]
    shapes = [aval.shape for aval in avals]
    letters = Letters(call, shapes)
    specs = [sharding.spec for sharding in shardings]
    for operand, own, spec in zip(call.names, letters.operands, specs, strict=True):
        for axis, (letter, entry) in enumerate(zip(own, spec, strict=True)):
            if entry is not None and letter is None:
                raise NotImplementedError(
                    f"attngrad.jax: {operand} is sharded over its axis {axis}: reshard it, or take shard_map"
                )
    chosen = letters.choose(shardings[0].mesh, specs, shapes)
    return shardings[0].update(spec=letters.spec(letters.of(name, axes), chosen))


def result_avals(avals, *, call: Call):
    types = {
        name: (aval.shape[sum(axes) :], aval.dtype)
        for name, axes, aval in zip(call.names, call.axes, avals, strict=True)
    }
    out = []
    for name, axes in call.results:
        shape, dtype = _result_type(name, types)
        sizes = tuple(size for size, has in zip(call.maps, axes, strict=True) if has)
        sharding = _result_sharding(avals, call, name, axes)
        shape = (*sizes, *shape)
        out.append(avals[0].update(shape=shape, dtype=np.dtype(dtype), weak_type=False, sharding=sharding))
    return out


# ---- Binding ----


def _varying(x) -> frozenset:
    """The mesh axes of shard_map over which it varies; JAX has renamed this."""
    aval = jax.typeof(x)
    return aval.mat.varying if hasattr(aval, "mat") else aval.vma


def _is_16_bit(x) -> bool:
    return jnp.dtype(x.dtype).itemsize == 2


def _vary(x, axes: frozenset):
    """x, which then varies over these mesh axes too. The transpose is the sum over them: in 16 bits, in float32."""
    wide = x.astype(jnp.float32) if _is_16_bit(x) else x
    return jax.lax.pcast(wide, tuple(axes), to="varying").astype(x.dtype)


def _vary_alike(values: list) -> list:
    """Inside shard_map all operands must vary over the same mesh axes."""
    axes = frozenset().union(*map(_varying, values))
    return [x if _varying(x) == axes else _vary(x, axes - _varying(x)) for x in values]


def sum_missing(x, axes: Axes):
    """x, which has every mapped axis, summed over those that it must not have."""
    missing = tuple(i for i, has in enumerate(axes) if not has)
    return jnp.sum(x, missing, dtype=jnp.promote_types(x.dtype, jnp.float32)).astype(x.dtype) if missing else x


def bind(primitive: Primitive, problem: Problem, maps, operands: Operands, results: dict[str, Axes]) -> dict:
    """The results by name. The handler sums a result over the mapped axes that it lacks; in 16 bits that would round
    each partial sum, so the sum is here."""
    every = (True,) * len(maps)
    is_low = _is_16_bit(operands["q"].value)
    call = Call(
        tuple(operands),
        tuple(x.axes for x in operands.values()),
        tuple((name, every if is_low else axes) for name, axes in results.items()),
        problem,
        tuple(maps),
    )
    out = primitive.bind(*_vary_alike([x.value for x in operands.values()]), call=call)
    if not is_low:
        return dict(zip(results, out, strict=True))
    return {name: sum_missing(x, axes) for (name, axes), x in zip(results.items(), out, strict=True)}


def has_low(problem: Problem, operands: Operands) -> bool:
    """Whether derivatives of this call use the low half of its output."""
    return problem.save_low and _is_16_bit(operands["q"].value)


# ---- The primitives ----

MAPS: dict[Primitive, int] = {}


def _primitive(name: str, map: int) -> Primitive:
    p = Primitive("attngrad_" + name)
    p.multiple_results = True
    p.def_abstract_eval(lambda *avals, call: result_avals(avals, call=call))
    p.def_impl(functools.partial(xla.apply_primitive, p))
    MAPS[p] = map
    return p


forward_p = _primitive("forward", _core.MAP_FORWARD)
vjp_p = _primitive("vjp", _core.MAP_VJP)
jvp_p = _primitive("jvp", _core.MAP_JVP)
vjp_jvp_p = _primitive("vjp_jvp", _core.MAP_VJP_JVP)
jvp_jvp_p = _primitive("jvp_jvp", _core.MAP_JVP_JVP)


def attention(problem: Problem, arrays: dict[str, Any]) -> tuple[Any, Any]:
    """o and lse. In shard_map gradients of replicated operands are sums over devices: those of bias, table and sink are
    in float32 until they are summed."""
    if len(set(map(_varying, arrays.values()))) > 1:
        problem, arrays = wide_aux(problem, arrays)
    operands = Operands({name: Operand(x, ()) for name, x in arrays.items()})
    results = bind(forward_p, problem, (), operands, {"o": (), "lse": (), "rows": ()})
    return results["o"], results["lse"]
