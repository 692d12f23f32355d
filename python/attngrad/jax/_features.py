"""From the arguments of dot_product_attention to the problem, a constant of the traced program, and its operands.
What is wrong is refused here, while JAX traces, with the argument's name; only values of traced arrays are left to
the handler."""

from __future__ import annotations

import operator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .. import _core, _plan, _problem
from .._call import TO_CONSTANT, flag
from ._types import Problem

_DTYPES = {"float64": "f64", "float32": "f32", "float16": "f16", "bfloat16": "bf16"}
_WORDS = ("scale", "softcap", "dropout", "head_offset")
# The argument that a field of the problem belongs to.
_ARGUMENTS = {
    "batch": "query",
    "heads": "query",
    "q_len": "query",
    "q_total": "query",
    "dim_qk": "query",
    "kv_heads": "key",
    "kv_len": "key",
    "kv_total": "key",
    "dim_v": "value",
    "window_left": "local_window_size",
    "window_right": "local_window_size",
    "bias_size": "bias",
    "mask_size": "mask",
    "table_heads": "bias_table",
    "table_radius": "bias_table",
    "table_buckets": "bias_table",
    "alibi_slopes": "alibi",
    "options.threads": "threads",
}


def is_traced(x: Any) -> bool:
    return isinstance(x, jax.core.Tracer)


def constant(name: str, value: Any, argument: str | None = None) -> Any:
    """A feature that is a constant of the program, checked as for arrays."""
    argument = argument or name
    if is_traced(value) or isinstance(value, (list, tuple)) and any(map(is_traced, value)):
        raise TypeError(f"{argument}: traced, must be a constant of the program (static_argnames of jax.jit)")
    return TO_CONSTANT[name](value, argument)


# ---- Arrays ----


def _is_symbolic(size: Any) -> bool:
    """Whether it is a size of jax.export that only the running program knows."""
    return not isinstance(size, int)


def _array(name: str, x: Any, n_constant: int | None = None):
    """x as an array of JAX. The sizes of its last n_constant axes must be constants, all if it is None."""
    if x is None or isinstance(x, (str, bytes)):
        raise TypeError(f"{name}: {type(x).__name__}, must be an array")
    try:
        x = jnp.asarray(x)
    except (TypeError, ValueError):
        raise TypeError(f"{name}: {type(x).__name__}, must be an array") from None
    first = 0 if n_constant is None else x.ndim - n_constant
    if any(_is_symbolic(size) for size in x.shape[first:]):
        raise NotImplementedError(
            f"{name}: shape {_shape(x)}: only the batch and lengths may be symbolic, and not of packed sequences: "
            "export a program for each size that is needed"
        )
    return x


def _shape(x) -> str:
    return str(list(x.shape))


def main_arrays(query, key, value, is_packed: bool) -> dict[str, Any]:
    """q, k and v with four axes."""
    n_constant = None if is_packed else 2
    named = {"query": query, "key": key, "value": value}
    arrays = {name: _array(name, x, n_constant) for name, x in named.items()}
    q, k, v = arrays.values()
    ranks = (3,) if is_packed else (3, 4)
    for name, x in arrays.items():
        if x.dtype.name not in _DTYPES:
            raise TypeError(f"{name}: {x.dtype}, must be float64, float32, float16 or bfloat16")
        if x.dtype != q.dtype:
            raise TypeError(f"{name}: {x.dtype}, but query is {q.dtype}")
        if x.ndim not in ranks or x.ndim != q.ndim:
            axes = "[total, heads, size]" if is_packed else "[batch, length, heads, size] or [length, heads, size]"
            raise ValueError(f"{name}: shape {_shape(x)}, must be {axes}, alike for query, key and value")
    _check_main(q, k, v)
    return {name: x if x.ndim == 4 else x[None] for name, x in zip("qkv", (q, k, v), strict=True)}


def _check_main(q, k, v) -> None:
    if k.shape[-1] != q.shape[-1]:
        raise ValueError(f"key: head size {k.shape[-1]}, but query has {q.shape[-1]}")
    if v.shape[:-1] != k.shape[:-1]:
        raise ValueError(f"value: shape {_shape(v)}, but key has {_shape(k)}: they may differ in the last axis only")
    if q.ndim == 4 and k.shape[0] != q.shape[0]:
        raise ValueError(f"key: batch {k.shape[0]}, but query has {q.shape[0]}")
    if k.shape[-2] == 0 or q.shape[-2] % k.shape[-2]:
        raise ValueError(f"key: {k.shape[-2]} heads, which do not divide the {q.shape[-2]} of query")


def _four(name: str, x):
    if x.ndim > 4:
        raise ValueError(f"{name}: {x.ndim} axes, must have at most 4")
    return x.reshape((1,) * (4 - x.ndim) + x.shape)


def _pattern(name: str, x, full: tuple[int, ...]) -> str:
    """The word of a bias or mask: a letter for an axis of full size, 1 for one that is broadcast."""
    if any(size not in (1, most) for size, most in zip(x.shape, full, strict=True)):
        raise ValueError(f"{name}: shape {_shape(x)}: each axis must be 1 or that of {list(full)}")
    letters = [letter if size == most else "1" for size, most, letter in zip(x.shape, full, "bhqk", strict=True)]
    return f"{name}={''.join(letters)}"


def _floats(named: dict[str, Any], dtype) -> tuple[dict[str, Any], bool]:
    """bias, bias_table and sink in one dtype, and whether it is wider than the query's: float32, unless each has the
    query's dtype."""
    arrays = {name: _array(name, x, 0 if name == "bias" else None) for name, x in named.items() if x is not None}
    for name, x in arrays.items():
        if not jnp.issubdtype(x.dtype, jnp.floating):
            raise TypeError(f"{name}: {x.dtype}, must be a float")
    wide = dtype.itemsize == 2 and any(x.dtype != dtype for x in arrays.values())
    return {name: x.astype(jnp.float32 if wide else dtype) for name, x in arrays.items()}, wide


def _is_wide(x: Any) -> bool:
    """Whether it has a constant whole number that 32 bits cannot hold; JAX would drop its high bits."""
    numbers = [y for y in jax.tree.leaves(x) if not is_traced(y) and np.asarray(y).dtype.kind in "iu"]
    numbers += [y for y in jax.tree.leaves(x) if isinstance(y, int)]
    return any(np.any(np.abs(y) >= 2**31) for y in numbers)


def integers(name: str, x: Any, shape: tuple[int, ...] | None = None):
    """Whole numbers as int32."""
    if _is_wide(x):
        raise ValueError(f"{name}: a number that does not fit into 32 bits")
    x = _array(name, x, None if shape is None else 0)
    if not jnp.issubdtype(x.dtype, jnp.integer):
        raise TypeError(f"{name}: {x.dtype}, must be whole numbers")
    if shape is not None and x.shape != shape:
        raise ValueError(f"{name}: shape {_shape(x)}, must be {list(shape)}")
    return x.astype(jnp.int32)


# ---- Packed sequences ----


def _ends(name: str, x: Any, rows: int):
    """The offsets of packed sequences and, unless they are traced, the rows of the longest one."""
    ends = integers(name, x)
    if ends.ndim != 1 or ends.shape[0] == 0:
        raise ValueError(f"{name}: shape {_shape(ends)}, must be [sequences + 1]")
    if is_traced(x):
        return ends, None
    numbers = np.asarray(x)
    lengths = np.diff(numbers)
    if numbers[0] != 0 or (lengths < 0).any() or numbers[-1] > rows:
        raise ValueError(f"{name}: must begin with 0, not decrease, and end within {rows} rows")
    return ends, int(lengths.max(initial=0))


def packing(q_packed, k_packed, longest, q, k) -> tuple[dict[str, Any], tuple[int, int] | None]:
    """q_packed and k_packed, and the most queries and keys of a sequence, which must be constant."""
    if q_packed is None:
        return {}, None
    q_ends, most_q = _ends("q_packed", q_packed, q.shape[1])
    k_ends, most_k = _ends("k_packed", k_packed, k.shape[1])
    if k_ends.shape != q_ends.shape:
        raise ValueError(f"k_packed: shape {_shape(k_ends)}, but q_packed has {_shape(q_ends)}")
    if longest is None and (most_q is None or most_k is None):
        raise TypeError("longest: missing: q_packed or k_packed is traced, so give (most queries, most keys) of one")
    try:
        most_q, most_k = (most_q, most_k) if longest is None else map(operator.index, longest)
    except (TypeError, ValueError):
        raise TypeError(f"longest: {longest!r} is not (queries, keys), two constant whole numbers") from None
    return {"q_packed": q_ends, "k_packed": k_ends}, (most_q, most_k)


# ---- Offsets and seed ----


def _scalar(name: str, x: Any):
    if isinstance(x, bool):
        raise TypeError(f"{name}: {x!r} is not a whole number")
    return integers(name, x, ())


def offsets(given: dict[str, Any], is_needed: bool) -> dict[str, Any]:
    """The operand of q_offset, k_offset and batch_offset, if one of them is given or it is needed."""
    if not is_needed and all(x is None for x in given.values()):
        return {}
    return {"offsets": jnp.stack([_scalar(name, 0 if x is None else x) for name, x in given.items()])}


def _halves(x: int):
    if not 0 <= x < 2**64:
        raise ValueError(f"seed: {x}: must be from 0 to 2^64 - 1")
    return jnp.array([x & 0xFFFFFFFF, x >> 32], jnp.uint32)


def _is_whole_number(x: Any) -> bool:
    """Whether it is a constant one: of Python, of NumPy, or an array without axes."""
    if isinstance(x, (bool, np.bool_)) or is_traced(x):
        return False
    return isinstance(x, int) or (getattr(x, "ndim", None) == 0 and np.dtype(x.dtype).kind in "iu")


def seed(x: Any):
    """Two halves of 64 bits: a key of jax.random, or a whole number."""
    if x is None:
        raise ValueError("seed: missing: dropout needs a key of jax.random or a whole number")
    is_key = hasattr(x, "dtype") and jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
    if not is_key and _is_whole_number(x):
        return _halves(int(x))
    x = jax.random.key_data(x) if is_key else _array("seed", x)
    if x.dtype == jnp.uint32 and x.shape in ((2,), (4,)):  # the lengths of JAX's keys
        return x[-2:]
    if x.ndim == 0 and jnp.issubdtype(x.dtype, jnp.integer):
        high = x >> 32 if x.dtype.itemsize == 8 else jnp.zeros_like(x)
        return jnp.stack([x.astype(jnp.uint32), high.astype(jnp.uint32)])
    raise TypeError(f"seed: {x.dtype} of shape {_shape(x)}, must be one key of jax.random or a whole number")


# ---- The problem ----


def _window(value: Any):
    sides = (value, value) if isinstance(value, (int, np.integer)) and not isinstance(value, bool) else value
    return constant("window", sides, "local_window_size")


def _constants(features: dict[str, Any]) -> tuple[list[str], dict[str, Any]]:
    """The words of constant features, and those that are not words."""
    words = ["causal"] if constant("causal", features["is_causal"], "is_causal") else []
    if constant("align", features["align"]) == "bottom-right":
        words.append("align=bottom-right")
    if features["local_window_size"] is not None:
        words.append("window={},{}".format(*_window(features["local_window_size"])))
    for name in _WORDS:
        value = None if features[name] is None else constant(name, features[name])
        if value or (name == "scale" and value is not None):
            words.append(f"{name}={value!r}")
    rest: dict[str, Any] = {}
    alibi = features["alibi"]
    if alibi is not None and (alibi := constant("alibi", alibi)) is not False:
        words.append("alibi" if alibi is True else "alibi=slopes")
        if alibi is not True:
            rest["slopes"] = tuple(np.frombuffer(alibi).tolist())
    if features["buckets"] is not None:
        rest["buckets"] = tuple(np.frombuffer(constant("buckets", features["buckets"]), np.int32).tolist())
    rest["threads"] = constant("threads", features["threads"])
    if features["backend"] is not None:
        rest["backend"] = _plan.BACKENDS[constant("backend", features["backend"])]
    rest["flags"] = _core.INVARIANT if constant("invariant", features["invariant"]) else 0
    rest["save_low"] = flag(features["save_low"], "save_low")
    return words, rest


def _table(table, heads: int, buckets) -> tuple[Any, str]:
    if table.ndim == 1:
        table = table[None]
    if table.ndim != 2 or table.shape[1] == 0 or table.shape[0] not in (1, heads):
        raise ValueError(f"bias_table: shape {_shape(table)}, must be [{heads}, n], [1, n] or [n]")
    columns = table.shape[1]
    if buckets is None and columns % 2 == 0:
        raise ValueError(f"bias_table: {columns} columns: without buckets it must have 2R + 1, for distances -R to R")
    if buckets is not None and max(buckets) >= columns:
        raise ValueError(f"buckets: {max(buckets)}: must be columns of bias_table, 0 to {columns - 1}")
    radius = (columns if buckets is None else len(buckets)) // 2
    return table, f"table={radius},{columns}" + (",shared" if table.shape[0] == 1 and heads != 1 else "")


def _lengths(name: str, x: Any, batch: int, rows: int):
    """Lengths of sequences; those that are constant are checked here, the others by the handler."""
    lengths = integers(name, x, (batch,))
    if not any(map(is_traced, jax.tree.leaves(x))):  # of x: inside jit even a constant becomes traced lengths
        for i, length in enumerate(np.asarray(x).tolist()):
            if not 0 <= length <= rows:
                raise ValueError(f"{name}: [{i}] is {length}: must be from 0 to {rows}")
    return lengths


def _lists(features: dict[str, Any], full: tuple[int, ...]) -> dict[str, Any]:
    """Operands with one whole number per sequence."""
    batch, _, q_len, kv_len = full
    lists = {}
    for name, slot, rows in (
        ("query_seq_lengths", "q_lengths", q_len),
        ("key_value_seq_lengths", "kv_lengths", kv_len),
    ):
        if features[name] is not None:
            lists[slot] = _lengths(name, features[name], batch, rows)
    for name in ("q_offsets", "k_offsets"):
        if features[name] is not None:
            lists[name] = integers(name, features[name], (batch,))
    return lists


def _check_together(features: dict[str, Any], is_packed: bool) -> None:
    """Features that exclude each other."""
    for name in ("q_offset", "k_offset"):
        if features[name] is not None and features[name + "s"] is not None:
            raise ValueError(f"{name}: given beside {name}s")
        if features["align"] == "bottom-right" and (features[name] is not None or features[name + "s"] is not None):
            raise ValueError(f"{name}: given beside align='bottom-right'")
    for name, other in (("q_packed", "k_packed"), ("k_packed", "q_packed")):
        if features[name] is None and features[other] is not None:
            raise ValueError(f"{name}: missing, but {other} is given")
    if features["longest"] is not None and not is_packed:
        raise ValueError("longest: given without q_packed and k_packed")
    for name in ("query_seq_lengths", "key_value_seq_lengths"):
        if is_packed and features[name] is not None:
            raise ValueError(f"{name}: given beside q_packed, which has the lengths")
    if features["buckets"] is not None and features["bias_table"] is None:
        raise ValueError("buckets: given without bias_table")


def build(query, key, value, features: dict[str, Any]) -> tuple[Problem, dict[str, Any]]:
    """The problem of a call, and its operands by their slots."""
    is_packed = features["q_packed"] is not None
    _check_together(features, is_packed)
    arrays = main_arrays(query, key, value, is_packed)
    q, k = arrays["q"], arrays["k"]
    ends, longest = packing(features["q_packed"], features["k_packed"], features["longest"], q, k)
    batch = ends["q_packed"].shape[0] - 1 if is_packed else q.shape[0]
    full = (batch, q.shape[2], *(longest or (q.shape[1], k.shape[1])))
    constants, rest = _constants(features)
    floats, is_wide = _floats({name: features[name] for name in ("bias", "bias_table", "sink")}, q.dtype)
    words = [_DTYPES[q.dtype.name], *(["aux=f32"] if is_wide else []), *constants]
    if "bias" in floats:
        arrays["bias"] = _four("bias", floats["bias"])
        words.append(_pattern("bias", arrays["bias"], full))
    if "bias_table" in floats:
        arrays["table"], word = _table(floats["bias_table"], full[1], rest.get("buckets"))
        words.append(word)
    if "sink" in floats:
        if floats["sink"].shape != full[1:2]:
            raise ValueError(f"sink: shape {_shape(floats['sink'])}, must be [{full[1]}]: one per head")
        arrays["sink"] = floats["sink"]
        words.append("sink")
    if features["mask"] is not None:
        arrays["mask"] = _four("mask", _mask(features["mask"]))
        words.append(_pattern("mask", arrays["mask"], full))
    has_dropout = any(word.startswith("dropout=") for word in constants)
    arrays |= ends | _lists(features, full)
    arrays |= offsets({name: features[name] for name in ("q_offset", "k_offset", "batch_offset")}, has_dropout)
    if has_dropout:
        arrays["seed"] = seed(features["seed"])
    problem = Problem(" ".join(words), longest=longest, **rest)
    _check_problem(problem, full, arrays)
    return problem, arrays


def _mask(mask: Any):
    mask = _array("mask", mask, 0)
    if mask.dtype != bool:
        raise TypeError(f"mask: {mask.dtype}, must be bool; what is added to the scores is a bias")
    return mask


def _check_problem(problem: Problem, full: tuple[int, ...], arrays: dict[str, Any]) -> None:
    """Makes the plan once while JAX traces, so that the library refuses what it will refuse in the handler. A
    symbolic size is taken for 1; only if it turns out to be too large to count, the handler still refuses it."""
    batch, heads, q_len, kv_len = (1 if _is_symbolic(size) else size for size in full)
    q, k, v = (arrays[name].shape for name in "qkv")
    text = f"b{batch} h{heads} kv{k[2]} q{q_len} k{kv_len} d{q[3]} dv{v[3]} {problem.words}"
    if problem.longest is not None:
        text += f" packed={q[1]},{k[1]}"
    try:
        _plan.get(
            text,
            backend=problem.backend,
            threads=problem.threads,
            flags=problem.flags,
            buckets=problem.buckets,
            alibi_slopes=problem.slopes,
        )
    except ValueError as error:
        argument = _ARGUMENTS.get(_problem.field_of(error))
        raise ValueError(str(error) if argument is None else f"{argument}: {error}") from None
