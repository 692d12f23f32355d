"""From the primitives to XLA: a custom call of the handler in _core, on the CPU. In a program for several devices the
call is wrapped such that XLA may shard the batch, the heads and mapped axes; without that it would gather every
operand on every device."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.custom_partitioning import custom_partitioning
from jax.interpreters import mlir
from jax.sharding import NamedSharding

from .. import _core
from ._axes import Letters, decode
from ._primitives import MAPS, Primitive, result_avals
from ._types import Axes, Call, wide_aux

TARGET = "attngrad"
_SLOTS = _core.xla_slots()  # name: (number, maps that read it, maps that write it)


@functools.cache
def register() -> None:
    """Tells XLA of the handler. The first compiled call does it; a program that runs exported calls and compiles none
    calls it by itself. The CPU backend must be there first: if XLA refused the handler, the backend would not start."""
    jax.devices("cpu")
    jax.ffi.register_ffi_target(TARGET, _core.xla_handler(), platform="cpu")


# ---- The custom call ----


def _bits(axes: Axes) -> int:
    return sum(1 << i for i, has in enumerate(axes) if has)


def _attributes(map_bit: int, call: Call) -> dict:
    problem = call.problem
    items = [*zip(call.names, call.axes, strict=True), *call.results]
    attributes = {
        "version": np.int64(_core.XLA_VERSION),
        "map": np.int64(map_bit),
        "problem": problem.words,
        "slots": np.array([_SLOTS[name][0] for name, _ in items], np.int64),
        "axes": np.array([_bits(axes) for _, axes in items], np.int64),
        "threads": np.int64(problem.threads),
        "backend": np.int64(problem.backend),
        "flags": np.int64(problem.flags),
    }
    arrays = {
        "maps": (call.maps, np.int64),
        "longest": (problem.longest, np.int64),
        "slopes": (problem.slopes, np.float64),
        "buckets": (problem.buckets, np.int32),
    }
    return attributes | {name: np.array(x, dtype) for name, (x, dtype) in arrays.items() if x}


def _is_read(map_bit: int, call: Call, name: str) -> bool:
    """Whether the handler gets an operand: it is one that the map reads. jvp takes a 16-bit o only with its low half,
    as the tangent would have the rounding error of o; without it jvp computes o again."""
    if map_bit == _core.MAP_JVP and name in ("o", "rows") and "o_low" not in call.names:
        return not call.problem.is_16_bit
    return bool(_SLOTS[name][1] & map_bit)


def _lower(map_bit: int, ctx, *values, call: Call):
    register()
    kept = [i for i, name in enumerate(call.names) if _is_read(map_bit, call, name)]
    call = call._replace(
        names=tuple(call.names[i] for i in kept), axes=tuple(call.axes[i] for i in kept)
    )
    values = [values[i] for i in kept]
    ctx = ctx.replace(avals_in=[ctx.avals_in[i] for i in kept])
    if _has_several_devices(ctx.module_context.axis_context):
        sharded = functools.partial(_sharded, map_bit, call)
        return mlir.lower_fun(sharded, multiple_results=True)(ctx, *values)
    return jax.ffi.ffi_lowering(TARGET)(ctx, *values, **_attributes(map_bit, call))


def _has_several_devices(context) -> bool:
    """In jit over sharded arrays; inside shard_map a device runs its own part alone."""
    return getattr(context, "num_devices", 1) > 1


def _refuse_platform(ctx, *_, **__):
    platforms = ", ".join(ctx.module_context.platforms)
    raise NotImplementedError(
        f"attngrad.jax: runs on the CPU, not on {platforms}: put the arrays there (jax.device_put(x, "
        "jax.devices('cpu')[0])), or take jax.nn.dot_product_attention"
    )


# ---- Several devices ----


def _result_types(call: Call, values) -> list[jax.ShapeDtypeStruct]:
    avals = result_avals([jax.typeof(x) for x in values], call=call)
    return [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in avals]


def _call_handler(map_bit: int, call: Call, *values):
    types = _result_types(call, values)
    return tuple(jax.ffi.ffi_call(TARGET, types)(*values, **_attributes(map_bit, call)))


def _local_maps(call: Call, values) -> tuple[int, ...]:
    sizes = list(call.maps)
    for axes, x in zip(call.axes, values, strict=True):
        mapped = [i for i, has in enumerate(axes) if has]
        for i, size in zip(mapped, x.shape):
            sizes[i] = size
    return tuple(sizes)


def _local_offsets(call: Call, values, chosen) -> list:
    """Dropout depends on the index of a sequence in the whole batch."""
    if not call.problem.has("dropout") or "b" not in chosen:
        return list(values)
    operands = dict(zip(call.names, values, strict=True))
    sequences = operands["q"].shape[sum(call.axes[call.names.index("q")])]
    first = jax.lax.axis_index(chosen["b"]) * sequences
    operands["offsets"] = operands["offsets"] + jnp.array([0, 0, 1], jnp.int32) * first.astype(jnp.int32)
    return list(operands.values())


def _sharded(map_bit: int, call: Call, *values):
    letters = Letters(call, [x.shape for x in values])
    results = [letters.of(name, axes) for name, axes in call.results]

    def partition(mesh, infos, result_infos):
        specs = [decode(mesh, x.sharding, x.shape) for x in infos]
        chosen = letters.choose(mesh, specs, [x.shape for x in infos])

        summed = [tuple(a for letter in chosen if letter not in own for a in chosen[letter]) for own in results]

        def part(*values):
            local = call._replace(maps=_local_maps(call, values))
            values = _local_offsets(call, values, chosen)
            return _call_and_sum(map_bit, local, values, summed)

        placed = [
            tuple(NamedSharding(mesh, letters.spec(own, chosen)) for own in items)
            for items in (results, letters.operands)
        ]
        return mesh, part, *placed

    function = custom_partitioning(functools.partial(_call_handler, map_bit, call))
    rule, sizes = letters.rule([(name, own) for (name, _), own in zip(call.results, results, strict=True)])
    function.def_partition(partition=partition, decode_shardings=False, sharding_rule=rule, **sizes)
    return function(*values)


def _call_and_sum(map_bit: int, call: Call, values, summed: list[tuple[str, ...]]):
    """The results of this device's part, each summed over some axes of the mesh: a gradient that lacks a sharded axis
    is a sum over it. Of 16-bit results only gradients of bias, table and sink are such sums: rounded after it."""
    types = _result_types(call, values)
    if any(summed):
        problem, operands = wide_aux(call.problem, dict(zip(call.names, values, strict=True)))
        call, values = call._replace(problem=problem), operands.values()
    out = _call_handler(map_bit, call, *values)
    sums = [jax.lax.psum(x, axes) if axes else x for x, axes in zip(out, summed, strict=True)]
    return tuple(x.astype(t.dtype) for x, t in zip(sums, types, strict=True))


# ---- Registration ----


def _needs_devices(primitive: Primitive) -> None:
    """custom_partitioning asks for the devices of the program while it is lowered; JAX has no public name for that."""
    try:
        from jax._src.dispatch import prim_requires_devices_during_lowering as primitives
    except ImportError:
        return  # jit over sharded arrays then says so itself
    primitives.add(primitive)


for _primitive, _map in MAPS.items():
    mlir.register_lowering(_primitive, _refuse_platform)
    mlir.register_lowering(_primitive, functools.partial(_lower, _map), platform="cpu")
    _needs_devices(_primitive)
