"""What a call of a primitive is made of: the constant problem, operands by name, and the parameters that name them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

INPUTS = ("q", "k", "v", "bias", "table", "sink")
SAVED = ("o", "lse", "rows", "o_low")
CONSTANTS = tuple("mask q_lengths kv_lengths q_packed k_packed q_offsets k_offsets offsets seed".split())
MAX_MAPS = 8  # XLA_MAX_MAPS of the handler
Axes = tuple[bool, ...]  # for each mapped axis (vmap): whether an array has it


class Problem(NamedTuple):
    """What is constant in a call. words: the problem's text without sizes, which follow from the operands."""

    words: str
    slopes: tuple[float, ...] | None = None
    buckets: tuple[int, ...] | None = None
    longest: tuple[int, int] | None = None  # packed: most queries and keys of a sequence
    threads: int = 0
    backend: int = 0
    flags: int = 0
    save_low: bool = True

    def has(self, word: str) -> bool:
        return any(w.partition("=")[0] == word for w in self.words.split())

    @property
    def is_16_bit(self) -> bool:
        return self.has("f16") or self.has("bf16")


_AUX = frozenset(("bias", "table", "sink"))


def wide_aux(problem: Problem, arrays: dict[str, Any]) -> tuple[Problem, dict[str, Any]]:
    """The problem and its arrays with bias, table, sink and their tangents in float32, if they have 16 bits: their
    gradients then have float32 too and may be summed before they are rounded."""
    if problem.has("aux") or not problem.is_16_bit:
        return problem, arrays
    wide = {name: x.astype("float32") for name, x in arrays.items() if kind_of(name) in _AUX}
    return (problem._replace(words=problem.words + " aux=f32"), arrays | wide) if wide else (problem, arrays)


class Operand(NamedTuple):
    value: Any
    axes: Axes


class Operands(dict[str, Operand]):
    """Operands by name. Nothing changes them: each method makes new ones."""

    @staticmethod
    def of(values: Iterable[Any], names: Iterable[str], axes: Iterable[Axes]) -> Operands:
        return Operands(
            {n: Operand(x, a) for n, x, a in zip(names, values, axes, strict=True)},
        )

    def only(self, names: Iterable[str]) -> Operands:
        names = frozenset(names)
        return Operands({n: x for n, x in self.items() if n in names})

    def without(self, names: Iterable[str]) -> Operands:
        return self.only(self.keys() - frozenset(names))

    def plus(self, more: dict[str, Operand]) -> Operands:
        return Operands({**self, **more})


class Call(NamedTuple):
    """The parameters of a primitive: names and mapped axes of its operands and results, in order."""

    names: tuple[str, ...]
    axes: tuple[Axes, ...]
    results: tuple[tuple[str, Axes], ...]
    problem: Problem
    maps: tuple[int, ...]  # sizes of the mapped axes

    def all_axes(self) -> Axes:
        return (True,) * len(self.maps)


def _base(name: str) -> str:
    """The input that a tangent or gradient belongs to: tdq -> q."""
    for prefix in ("td", "t", "d", "s"):
        if name.startswith(prefix) and name.removeprefix(prefix) in INPUTS:
            return name.removeprefix(prefix)
    return name


_LIKE_O = frozenset("o o_low to to_low sto d_o td_o".split())
_ROWS = frozenset("lse mu smu nu d_lse td_lse".split())


def kind_of(name: str) -> str:
    """What an operand is shaped like: an input, o, lse, rows or itself."""
    if name in _LIKE_O:
        return "o"
    return "lse" if name in _ROWS else _base(name)
