"""Which axes of a call may be sharded over devices. An axis has a letter: "b" the batch, "h" the heads, "m0" and so
on the mapped axes of vmap; None if each device must have the whole of it."""

from __future__ import annotations

import itertools
import math

from jax.sharding import NamedSharding, PartitionSpec

from ._types import Axes, Call, kind_of

Row = list[str | None]  # a letter per axis
_UNSHARDED = frozenset("offsets seed q_packed k_packed".split())


def _word(name: str, call: Call) -> str:
    """The value of a word of the problem: bhqk of bias=bhqk."""
    return next(w for w in call.problem.words.split() if w.startswith(name + "=")).partition("=")[2]


def _own_letters(name: str, call: Call) -> Row:
    kind = kind_of(name)
    if kind in ("bias", "mask"):
        return [x if x in "bh" else None for x in _word(kind, call)]
    if kind == "table":
        return [None if _word("table", call).endswith("shared") else "h", None]
    if kind == "sink":
        return ["h"]
    if kind == "lse":
        return ["b", None, "h"]
    if kind.endswith(("_lengths", "_offsets")):
        return ["b"]
    return [None] if kind in _UNSHARDED else ["b", None, "h", None]


def _allowed(call: Call) -> set[str]:
    """The slopes and the dropout of a head depend on its index, which is a constant of the program."""
    allowed = {f"m{i}" for i in range(len(call.maps))}
    if call.problem.longest is None:
        allowed.add("b")
    if not call.problem.has("alibi") and not call.problem.has("dropout"):
        allowed.add("h")
    return allowed


def _names_of(entry) -> tuple[str, ...]:
    """The mesh axes of an entry of a PartitionSpec."""
    if entry is None:
        return ()
    return tuple(entry) if isinstance(entry, tuple) else (entry,)


def _specs(mesh, n_dims: int):
    """Each way to shard an array of so many axes over axes of the mesh; an axis may have several, in any order."""
    dims = range(n_dims)
    for places in itertools.product((None, *dims), repeat=len(mesh.axis_names)):
        entries = ([a for a, at in zip(mesh.axis_names, places, strict=True) if at == dim] for dim in dims)
        yield from itertools.product(*(itertools.permutations(entry) for entry in entries))


def decode(mesh, sharding, shape) -> PartitionSpec:
    """The spec of a sharding on a mesh; nothing is sharded if it has none, as XLA may split an axis of the mesh."""
    for entries in _specs(mesh, len(shape)):
        spec = PartitionSpec(*(entry or None for entry in entries))
        parts = [math.prod(mesh.shape[a] for a in entry) for entry in entries]
        divides = all(size % n == 0 for size, n in zip(shape, parts, strict=True))
        if divides and NamedSharding(mesh, spec).is_equivalent_to(sharding, len(shape)):
            return spec
    return PartitionSpec(*(None for _ in shape))


class Letters:
    """The letters of the operands of a call whose operands have these shapes."""

    def __init__(self, call: Call, shapes) -> None:
        self.call = call
        self.allowed = _allowed(call)
        heads, self.kv_heads = (shapes[call.names.index(name)][-2] for name in ("q", "k"))
        self.group = heads // self.kv_heads
        self.operands = [self.of(name, axes) for name, axes in zip(call.names, call.axes, strict=True)]

    def of(self, name: str, axes: Axes) -> Row:
        mapped = [f"m{i}" for i, has in enumerate(axes) if has]
        return [x if x in self.allowed else None for x in (*mapped, *_own_letters(name, self.call))]

    def choose(self, mesh, specs, shapes) -> dict[str, tuple[str, ...]]:
        """The mesh axes of each letter, from the first operand that shards it; only if they divide its size, that of
        the heads being those of k: heads that share a key stay together."""
        chosen: dict[str, tuple[str, ...]] = {}
        used: set[str] = set()
        for own, spec, shape in zip(self.operands, specs, shapes, strict=True):
            entries = (*spec, *(None,) * (len(own) - len(spec)))
            for letter, entry, size in zip(own, entries, shape, strict=True):
                axes, size = _names_of(entry), self.kv_heads if letter == "h" else size
                parts = math.prod(mesh.shape[a] for a in axes)
                if letter and axes and letter not in chosen and not used & set(axes) and size % parts == 0:
                    chosen[letter] = axes
                    used |= set(axes)
        return chosen

    def spec(self, own: Row, chosen: dict[str, tuple[str, ...]]) -> PartitionSpec:
        return PartitionSpec(*(chosen.get(letter) if letter else None for letter in own))

    def rule(self, results: list[tuple[str, Row]]) -> tuple[str, dict[str, int]]:
        """Shardy's notation and the sizes of factors that are only a part of an axis: each axis has its letter, or a
        name of its own; if heads share keys, the heads of q are (h g), or g if all share one: Shardy has no h of 1."""
        fresh = iter(range(1000))

        def written(name: str, letter: str | None) -> str:
            if letter == "h" and self.group > 1 and kind_of(name) not in ("k", "v"):
                return "(h g)" if self.kv_heads > 1 else "g"
            return letter or f"x{next(fresh)}"

        operands = zip(self.call.names, self.operands, strict=True)
        sides = [
            ", ".join(" ".join(written(name, letter) for letter in own) for name, own in rows)
            for rows in (operands, results)
        ]
        text = " -> ".join(sides)
        return text, {"g": self.group} if "(h g)" in text else {}
