"""From the shapes of arrays to the problem that they describe, as the command's files do it:

    q k v and theirs      [n, d], [heads, n, d] or [batch, heads, n, d]; packed [total, heads, d]
    lse mu and theirs     the same without the channel
    bias mask             [nq, nk], [heads, nq, nk] or [batch, heads, nq, nk], each axis full or 1
    bias_table            [columns] or [1, columns], shared by the heads, or [heads, columns]
    sink                  [heads]

A problem is cached by its shapes and constants, so that a call pays for one look-up."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from . import _arrays, _core, _plan


# tensor: (shape of, dtype of); its kind of view follows from the shape.
_TENSORS = {
    "o": ("o", "out"),
    "lse": ("lse", "rows"),
    "d_o": ("o", "out"),
    "d_lse": ("lse", "rows"),
    "dq": ("q", "grad"),
    "dk": ("k", "grad"),
    "dv": ("v", "grad"),
    "dbias": ("bias", "aux"),
    "dtable": ("table", "aux"),
    "dsink": ("sink", "aux"),
    "tq": ("q", "main"),
    "tk": ("k", "main"),
    "tv": ("v", "main"),
    "tbias": ("bias", "aux"),
    "ttable": ("table", "aux"),
    "tsink": ("sink", "aux"),
    "to": ("o", "out"),
    "mu": ("lse", "rows"),
    "td_o": ("o", "out"),
    "td_lse": ("lse", "rows"),
    "tdq": ("q", "grad"),
    "tdk": ("k", "grad"),
    "tdv": ("v", "grad"),
    "tdbias": ("bias", "aux"),
    "tdtable": ("table", "aux"),
    "tdsink": ("sink", "aux"),
    "sq": ("q", "main"),
    "sk": ("k", "main"),
    "sv": ("v", "main"),
    "sbias": ("bias", "aux"),
    "stable": ("table", "aux"),
    "ssink": ("sink", "aux"),
    "smu": ("lse", "rows"),
    "sto": ("o", "out"),
    "nu": ("lse", "rows"),
    "o_low": ("o", "out"),
    "to_low": ("o", "out"),
}
MAX_HEAD_SIZE = 512
KINDS = {"bias": _arrays.LAST, "table": _arrays.TABLE, "sink": _arrays.SINK}


class Packing(NamedTuple):
    """Sequences one after another: how many, and the longest of the queries and of the keys."""

    batch: int
    q_longest: int
    k_longest: int


class Key(NamedTuple):
    """All that a problem is made of."""

    dtype: str
    q: tuple[int, ...]
    k: tuple[int, ...]
    v: tuple[int, ...]
    out: str | None = None
    grad: str | None = None
    aux: str | None = None
    bias: tuple[int, ...] | None = None
    mask: tuple[int, ...] | None = None
    table: tuple[int, ...] | None = None
    sink: tuple[int, ...] | None = None
    packing: Packing | None = None
    device: int = 0  # 0: the processor; n: GPU n - 1
    constants: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True)
class Problem:
    """A plan; the shape, dtype and kind of view of each array that its maps read or write beside q, k and
    v."""

    plan: _core.Plan
    batch: int
    heads: int
    q_len: int
    kv_len: int
    main: int  # the kind of view of q, k and v
    tensors: dict[str, tuple[tuple[int, ...] | None, np.dtype, int]]
    dense: dict[str, tuple[int, int, int, int]]  # the strides of results, by the first call that made them


# The argument that a field of the problem or of a call comes from, if its name is another one.
_ARGUMENTS = {
    "batch": "q",
    "heads": "q",
    "q_len": "q",
    "q_total": "q",
    "dim_qk": "q",
    "kv_heads": "k",
    "kv_len": "k",
    "kv_total": "k",
    "dim_v": "v",
    "bias_size": "bias",
    "mask_size": "mask",
    "table": "bias_table",
    "table_heads": "bias_table",
    "table_radius": "bias_table",
    "table_buckets": "bias_table",
    "alibi_slopes": "alibi",
    "window_left": "window",
    "window_right": "window",
}


def field_of(error: ValueError) -> str:
    """The field that the library has found wrong; "" if the extension module itself refuses."""
    return getattr(error, "field", "")


def with_argument(error: ValueError) -> ValueError:
    """What the library says; after the name of Python's argument, if the field that is wrong has another name."""
    argument = _ARGUMENTS.get(field_of(error))
    return error if argument is None else ValueError(f"{argument}: {error}")


def argument_of(tensor: str) -> str:
    """The argument that a tensor of a feature belongs to."""
    of = _TENSORS[tensor][0]
    return "bias_table" if of == "table" else of


def _shape(shape: tuple[int, ...]) -> str:
    return "[" + ", ".join(map(str, shape)) + "]"


def _check_axes(name: str, shape: tuple[int, ...], least: int, most: int) -> None:
    if not least <= len(shape) <= most:
        wanted = str(least) if least == most else f"{least} to {most}"
        raise ValueError(f"{name}: shape {_shape(shape)} has {len(shape)} axes, must have {wanted}")


def _check_main(key: Key) -> None:
    """k and v against q."""
    axes = (3, 3) if key.packing else (2, 4)
    _check_axes("q", key.q, *axes)
    for name, shape in (("k", key.k), ("v", key.v)):
        _check_axes(name, shape, len(key.q), len(key.q))
    if key.k[-1] != key.q[-1]:
        raise ValueError(f"k: head size {key.k[-1]}, but q has {key.q[-1]}")
    if key.k[:-1] != key.v[:-1]:
        raise ValueError(
            f"v: shape {_shape(key.v)}, but k has {_shape(key.k)}: they may differ in the last axis only"
        )
    if len(key.q) == 4 and key.k[0] != key.q[0]:
        raise ValueError(f"k: batch {key.k[0]}, but q has {key.q[0]}")
    for name, shape in (("q", key.q), ("v", key.v)):
        check_head_size(name, shape[-1])
    heads, kv_heads = _heads(key, key.q), _heads(key, key.k)
    if heads == 0:
        raise ValueError("q: 0 heads, must have 1 at least")
    if kv_heads == 0 or heads % kv_heads:
        raise ValueError(f"k: {kv_heads} heads, which do not divide the {heads} of q")


def check_head_size(name: str, size: int) -> None:
    if not 1 <= size <= MAX_HEAD_SIZE:
        raise ValueError(f"{name}: head size {size}, must be from 1 to {MAX_HEAD_SIZE}")


def _check_dtypes(key: Key) -> None:
    if key.grad is not None:
        _arrays.check_wider("grad_dtype", key.grad, key.dtype)
    for name, shape in (("bias", key.bias), ("bias_table", key.table), ("sink", key.sink)):
        if shape is not None and key.aux is not None:
            _arrays.check_wider(name, key.aux, key.dtype)


def _check_packing(key: Key) -> None:
    if key.packing:
        for name, longest, rows in (
            ("q", key.packing.q_longest, key.q[0]),
            ("k", key.packing.k_longest, key.k[0]),
        ):
            if longest > rows:
                raise ValueError(f"{name}_packed: a sequence of {longest} rows, but {name} has {rows}")


def _heads(key: Key, shape: tuple[int, ...]) -> int:
    if key.packing:
        return shape[1]
    return shape[-3] if len(shape) > 2 else 1


def _broadcast(name: str, shape: tuple[int, ...], full: tuple[int, int, int, int]) -> str:
    """The letters of a bias or mask: b h q k where full, 1 where broadcast."""
    _check_axes(name, shape, 2, 4)
    sizes = (1,) * (4 - len(shape)) + shape
    for size, most in zip(sizes, full):
        if size not in (1, most):
            raise ValueError(f"{name}: shape {_shape(shape)}: each axis must be 1 or that of {_shape(full)}")
    return "".join("1" if size == 1 else letter for size, letter in zip(sizes, "bhqk"))


def _table(key: Key, heads: int, buckets: bytes | None) -> str:
    shape = key.table
    assert shape is not None
    _check_axes("bias_table", shape, 1, 2)
    columns = shape[-1]
    if columns == 0:
        raise ValueError("bias_table: 0 columns, must have 1 at least")
    if len(shape) == 2 and shape[0] not in (1, heads):
        raise ValueError(f"bias_table: {shape[0]} rows, must be 1 or the {heads} heads")
    radius = (len(buckets) // 4 if buckets is not None else columns) // 2
    if buckets is None and columns % 2 == 0:
        raise ValueError(
            f"bias_table: {columns} columns: without buckets it must have 2R + 1, for distances -R to R"
        )
    if buckets is not None and (most := int(np.frombuffer(buckets, np.int32).max())) >= columns:
        raise ValueError(f"buckets: {most}: must be columns of bias_table, 0 to {columns - 1}")
    shared = len(shape) == 1 or shape[0] == 1
    return f"table={radius},{columns}{',shared' if shared else ''}"


def _constant_words(c: dict[str, Any]) -> list[str]:
    words = ["causal"] if c.get("causal") else []
    if c.get("align") == "bottom-right":
        words.append("align=bottom-right")
    if "window" in c:
        words.append("window={},{}".format(*c["window"]))
    words += [f"{name}={c[name]!r}" for name in ("scale", "softcap", "dropout", "head_offset") if name in c]
    if c.get("alibi", False) is not False:
        words.append("alibi" if c["alibi"] is True else "alibi=slopes")
    return words


def _words(key: Key, c: dict[str, Any]) -> tuple[str, tuple[int, int, int, int]]:
    """The text of the problem, and the full shape of a bias."""
    p = key.packing
    heads, kv_heads = _heads(key, key.q), _heads(key, key.k)
    batch = p.batch if p else (key.q[0] if len(key.q) == 4 else 1)
    q_len, kv_len = (p.q_longest, p.k_longest) if p else (key.q[-2], key.k[-2])
    full = (batch, heads, q_len, kv_len)
    words = [f"b{batch} h{heads} kv{kv_heads} q{q_len} k{kv_len} d{key.q[-1]} dv{key.v[-1]} {key.dtype}"]
    words += [
        f"{name}={code}" for name, code in (("out", key.out), ("grad", key.grad), ("aux", key.aux)) if code
    ]
    words += _constant_words(c)
    if p:
        words.append(f"packed={key.q[0]},{key.k[0]}")
    if key.bias is not None:
        words.append("bias=" + _broadcast("bias", key.bias, full))
    if key.mask is not None:
        words.append("mask=" + _broadcast("mask", key.mask, full))
    if key.table is None and "buckets" in c:
        raise ValueError("buckets: given without bias_table")
    if key.table is not None:
        words.append(_table(key, heads, c.get("buckets")))
    if key.sink is not None:
        if key.sink != (heads,):
            raise ValueError(f"sink: shape {_shape(key.sink)}, must be {_shape((heads,))}: one per head")
        words.append("sink")
    return " ".join(words), full


def _backend(name: str | None, device: int) -> int:
    """The number of the backend: on a GPU cuda, and only there."""
    if device > 0 and name not in (None, "cuda"):
        raise ValueError(f"backend: {name!r}, but q is on a GPU")
    if device == 0 and name == "cuda":
        raise ValueError("backend: 'cuda', but q is in the processor's memory")
    return _core.BACKEND_CUDA if device > 0 else _plan.BACKENDS[name]


@functools.lru_cache(maxsize=1024)
def get(*fields: Any, **named: Any) -> Problem:
    """The problem of these shapes and constants, which are the fields of a Key; one is made only for a
    problem that is new."""
    key = Key(*fields, **named)
    _check_main(key)
    _check_dtypes(key)
    _check_packing(key)
    c = dict(key.constants)
    text, (batch, heads, q_len, kv_len) = _words(key, c)
    slopes = c.get("alibi")
    if isinstance(slopes, bytes) and len(slopes) != 8 * heads:
        raise ValueError(f"alibi: has {len(slopes) // 8} slopes, but q has {heads} heads")
    try:
        plan = _plan.get(
            text,
            backend=_backend(c.get("backend"), key.device),
            device=key.device,
            threads=c.get("threads", 0),
            flags=_core.INVARIANT if c.get("invariant") else 0,
            buckets=c.get("buckets"),
            alibi_slopes=slopes if isinstance(slopes, bytes) else None,
        )
    except ValueError as error:
        raise with_argument(error) from None
    main = _arrays.PACKED if key.packing else _arrays.MAIN
    return Problem(plan, batch, heads, q_len, kv_len, main, _tensors(key, main), {})


def _tensors(key: Key, main: int) -> dict[str, tuple[tuple[int, ...] | None, np.dtype, int]]:
    o = key.q[:-1] + key.v[-1:]
    shapes = {"q": key.q, "k": key.k, "v": key.v, "o": o, "lse": o[:-1]}
    shapes |= {"bias": key.bias, "table": key.table, "sink": key.sink}
    codes = {"main": key.dtype, "out": key.out or key.dtype, "grad": key.grad or key.dtype, "rows": "f64"}
    codes["aux"] = key.aux or key.dtype
    kinds = KINDS | {"lse": _arrays.PACKED_ROWS if key.packing else _arrays.ROWS}
    return {
        name: (shapes[of], _arrays.dtype_of(codes[number]), kinds.get(of, main))
        for name, (of, number) in _TENSORS.items()
    }
