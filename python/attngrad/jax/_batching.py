"""vmap over the primitives. The mapped axis is folded into the batch, so that one call is enough, if each operand has
it and begins with the batch. Otherwise the handler loops over it: operands without the axis are read again for each
element, and nothing is copied."""

from __future__ import annotations

import functools

import jax.numpy as jnp
from jax.interpreters import batching

from ._primitives import MAPS, Primitive
from ._types import MAX_MAPS, Call, Problem, kind_of

_PER_BATCH = frozenset("q k v bias mask o lse rows q_lengths kv_lengths q_offsets k_offsets".split())


def _begins_with_batch(name: str, problem: Problem) -> bool:
    kind = kind_of(name)
    if kind in ("bias", "mask"):
        return f"{kind}=b" in problem.words
    return kind in _PER_BATCH


def _folds(call: Call, dims) -> bool:
    names = [*call.names, *(name for name, _ in call.results)]
    return (
        not call.maps
        and call.problem.longest is None
        and not call.problem.has("dropout")
        and all(dim is not None for dim in dims)
        and all(_begins_with_batch(name, call.problem) for name in names)
    )


def _fold(x):
    return x.reshape(x.shape[0] * x.shape[1], *x.shape[2:])


def _batch(primitive: Primitive, values, dims, *, call: Call):
    size = next(x.shape[dim] for x, dim in zip(values, dims, strict=True) if dim is not None)
    values = [x if dim is None else jnp.moveaxis(x, dim, 0) for x, dim in zip(values, dims, strict=True)]
    if size > 0 and _folds(call, dims):
        out = primitive.bind(*map(_fold, values), call=call)
        return [x.reshape(size, x.shape[0] // size, *x.shape[1:]) for x in out], [0] * len(out)
    if not isinstance(size, int):
        raise NotImplementedError(
            f"attngrad.jax: vmap over an axis of the symbolic size {size}, which cannot join the batch: export a "
            "program for each size that is needed"
        )
    if len(call.maps) == MAX_MAPS:
        raise NotImplementedError(f"attngrad.jax: vmap nested more than {MAX_MAPS} times")
    mapped = call._replace(
        axes=tuple((dim is not None, *axes) for axes, dim in zip(call.axes, dims, strict=True)),
        results=tuple((name, (True, *axes)) for name, axes in call.results),
        maps=(size, *call.maps),
    )
    out = primitive.bind(*values, call=mapped)
    return out, [0] * len(out)


for _primitive in MAPS:
    batching.primitive_batchers[_primitive] = functools.partial(_batch, _primitive)
