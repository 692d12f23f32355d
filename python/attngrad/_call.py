"""A call of a map: its arrays checked against the problem, as views for _core, and memory for its results."""

from __future__ import annotations

import difflib
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from . import _arrays, _core, _device, _problem
from ._features import Features


_CALL_NUMBERS = frozenset("seed q_offset k_offset batch_offset".split())
_PER_SEQUENCE = ("q_lengths", "kv_lengths", "q_offsets", "k_offsets")
_LISTS = frozenset(("q_packed", "k_packed", *_PER_SEQUENCE))
_REQUIRED = frozenset("o lse to mu smu".split())
_LOW = frozenset("o_low to_low".split())
# keyword: tensor name
_AUX = {"bias": "bias", "bias_table": "table", "sink": "sink"}


def missing(name: str) -> TypeError:
    return TypeError(f"{name}: missing: this map needs it")


def _unknown(name: str) -> TypeError:
    similar = difflib.get_close_matches(name, Features.__annotations__, 1)
    return TypeError(f"unknown keyword {name!r}" + (f" (did you mean {similar[0]!r}?)" if similar else ""))


class _Inputs:
    """The features of a call as fields of its problem's Key, arrays by tensor name, and keywords of Plan.run.
    A feature that is None counts as absent."""

    __slots__ = ("arrays", "keywords", "key", "place")

    def __init__(self, features: dict[str, Any], place: _device.Place | None = None) -> None:
        self.place = place
        self.arrays: dict[str, tuple[Any, int]] = {}
        self.keywords: dict[str, Any] = {}
        self.key: dict[str, Any] = {}
        constants = []
        for name, value in features.items():
            if value is None and name in Features.__annotations__:
                continue
            if name in TO_CONSTANT:
                constants.append((name, TO_CONSTANT[name](value, name)))
            elif name in _CALL_NUMBERS:
                self.keywords[name] = integer(value, name)
            elif name in _AUX:
                self._take_aux(name, value)
            elif name in _LISTS:
                self.keywords[name] = _arrays.int_array(value, name)
            elif name == "mask":
                a = _arrays.mask_array(value if place is None else place.array(value, name), name)
                self.key[name] = a.shape
                self.arrays[name] = a, _arrays.LAST
            else:
                raise _unknown(name)
        self.key["constants"] = tuple(constants)
        if "q_packed" in self.keywords or "k_packed" in self.keywords:
            self.key["packing"] = self._packing()

    def _take_aux(self, name: str, value: Any) -> None:
        a, code = (self.place or _arrays).float_array(value, name)
        if self.key.setdefault("aux", code) != code:
            raise TypeError(f"{name}: {a.dtype}, but bias, bias_table and sink must have one dtype")
        self.key[_AUX[name]] = a.shape
        self.arrays[_AUX[name]] = a, _problem.KINDS[_AUX[name]]

    def _packing(self) -> _problem.Packing:
        for name, other in (("q_packed", "k_packed"), ("k_packed", "q_packed")):
            if name not in self.keywords:
                raise ValueError(f"{name}: missing, but {other} is given")
        q, k = self.keywords["q_packed"], self.keywords["k_packed"]
        if len(q) < 1:
            raise ValueError("q_packed: has no entries, must have one more than there are sequences")
        if len(k) != len(q):
            raise ValueError(f"k_packed: has {len(k)} entries, but q_packed has {len(q)}")
        return _problem.Packing(len(q) - 1, *(int(np.diff(x).max(initial=0)) for x in (q, k)))


def _scalar(value: Any) -> Any:
    """The number in an array without axes; anything else as it is."""
    return value.item() if getattr(value, "ndim", None) == 0 and hasattr(value, "item") else value


def integer(value: Any, name: str) -> int:
    """A whole number that _core can take; whether its value makes sense is for the library to say."""
    scalar = _scalar(value)
    try:
        number = operator.index(scalar)
    except TypeError:
        number = None
    if number is None or isinstance(scalar, bool):
        raise TypeError(f"{name}: {value!r} is not a whole number")
    if name == "seed":
        if not 0 <= number < 2**64:
            raise ValueError(f"seed: {number}: must be from 0 to 2^64 - 1")
        return number
    bits = 32 if name == "threads" else 64
    if not -(2 ** (bits - 1)) <= number < 2 ** (bits - 1):
        raise ValueError(f"{name}: {number} does not fit into {bits} bits with a sign")
    return number


def _real(value: Any, name: str) -> float:
    scalar = _scalar(value)
    if isinstance(scalar, (bool, str, bytes, bytearray)) or hasattr(scalar, "ndim"):
        raise TypeError(f"{name}: {value!r} is not a number")
    try:
        number = float(scalar)
    except (TypeError, ValueError):
        raise TypeError(f"{name}: {value!r} is not a number") from None
    except OverflowError:
        raise ValueError(f"{name}: a whole number too large for a float") from None
    if not math.isfinite(number):
        raise ValueError(f"{name}: {number} is not finite")
    return number


def flag(value: Any, name: str) -> bool:
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{name}: {value!r} is neither True nor False")
    return bool(value)


def _word(*words: str) -> Callable[[Any, str], str]:
    def word(value: Any, name: str) -> str:
        if not isinstance(value, str) or value not in words:
            raise ValueError(f"{name}: {value!r}: must be {' or '.join(map(repr, words))}")
        return value

    return word


def _window(value: Any, name: str) -> tuple[int, int]:
    try:
        left, right = value
    except (TypeError, ValueError):
        raise TypeError(f"{name}: {value!r} is not (left, right)") from None
    left, right = (-1 if side is None else integer(side, name) for side in (left, right))
    if left < -1 or right < -1:
        raise ValueError(f"{name}: ({left}, {right}): a side must be None, or -1 at least")
    return left, right


def _buckets(value: Any, name: str) -> bytes:
    a = _arrays.int_array(value, name)
    if len(a) % 2 == 0:
        raise ValueError(f"{name}: has {len(a)} entries, must have 2R + 1, for distances -R to R")
    if a.min() < 0 or a.max() > np.iinfo(np.int32).max:
        raise ValueError(f"{name}: {a.min()} to {a.max()}: must be columns of bias_table")
    return a.astype(np.int32).tobytes()


def _alibi(value: Any, name: str) -> bool | bytes:
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    a = _arrays.list_array(value, name)
    if a.ndim != 1 or a.dtype.kind not in "fiu" and a.dtype.name != "bfloat16":
        raise TypeError(f"{name}: must be True, or one slope per head")
    slopes = a.astype(np.float64)
    if not np.isfinite(slopes).all():
        raise ValueError(f"{name}: a slope is not finite")
    return slopes.tobytes()


TO_CONSTANT: dict[str, Callable[[Any, str], Any]] = {
    "causal": flag,
    "align": _word("top-left", "bottom-right"),
    "window": _window,
    "scale": _real,
    "softcap": _real,
    "dropout": _real,
    "buckets": _buckets,
    "alibi": _alibi,
    "head_offset": integer,
    "backend": _word(*_core.backends()),
    "threads": integer,
    "invariant": flag,
}
_NO_FEATURES = _Inputs({})


class Call:
    """One problem, and the tensors of a call so far."""

    __slots__ = ("problem", "tensors", "keywords", "place")

    def __init__(
        self,
        q: Any,
        k: Any,
        v: Any,
        features: dict[str, Any],
        out: str | None = None,
        grad: str | None = None,
        out_name: str = "out_dtype",
    ) -> None:
        self.place = place = None if type(q) is np.ndarray else _device.place_of(q, "q")
        read = (place or _arrays).float_array
        q, code = read(q, "q")
        k, k_code = read(k, "k")
        v, v_code = read(v, "v")
        if k_code != code:
            raise TypeError(f"k: {k.dtype}, but q is {q.dtype}")
        if v_code != code:
            raise TypeError(f"v: {v.dtype}, but q is {q.dtype}")
        if out is not None and out != code:
            _arrays.check_wider(out_name, out, code)
        inputs = _Inputs(features, place) if features else _NO_FEATURES
        device = {} if place is None else {"device": place.device + 1}
        problem = _problem.get(code, q.shape, k.shape, v.shape, out, grad, **inputs.key, **device)
        if inputs.keywords:
            self._check_lists(problem, inputs.keywords)
        self.problem = problem
        self.keywords = inputs.keywords
        view, main = _arrays.view, problem.main
        self.tensors: dict[str, Any] = {}
        if place is None:
            self.tensors = {"q": view(q, main), "k": view(k, main), "v": view(v, main)}
        else:
            for name, a in (("q", q), ("k", k), ("v", v)):
                self._add(name, a, main)
        for name, (a, kind) in inputs.arrays.items():
            self._add(name, a, kind)

    def _add(self, name: str, a: Any, kind: int) -> None:
        self.tensors[name] = (
            _arrays.view(a, kind) if self.place is None else _arrays.device_view(a, kind, name)
        )

    @staticmethod
    def _check_lists(problem: _problem.Problem, keywords: dict[str, Any]) -> None:
        for name in _PER_SEQUENCE:
            if name in keywords and len(keywords[name]) != problem.batch:
                raise ValueError(
                    f"{name}: has {len(keywords[name])} entries, but the batch is {problem.batch}"
                )

    def take(self, **inputs: Any) -> None:
        """Adds inputs. None is left out, unless the input is required: then it is refused as no array."""
        for name, x in inputs.items():
            if x is None:
                if name in _REQUIRED:
                    raise missing(name)
                continue
            if self.place is not None:
                a = self.place.array(x, name)
            else:
                a = x if type(x) is np.ndarray else _arrays.as_array(x, name)
            shape, dtype, kind = self.problem.tensors[name]
            if shape is None:
                raise ValueError(f"{name}: given without {_problem.argument_of(name)}")
            if name in _LOW:
                _arrays.check_has_low(name, dtype, name.removesuffix("_low"))
            if a.shape != shape:
                raise ValueError(f"{name}: shape {list(a.shape)}, must be {list(shape)}")
            if a.dtype is not dtype and a.dtype != dtype:
                raise TypeError(f"{name}: {a.dtype}, must be {dtype}")
            self._add(name, a, kind)

    def zeros(self, name: str) -> Any:
        """Zeros for an absent input that the library needs: one element, broadcast by zero strides."""
        shape, dtype, _ = self.problem.tensors[name]
        if self.place is not None:
            return self.place.zeros(shape or (), _arrays.code_of(dtype, name))
        return np.broadcast_to(np.zeros((), dtype), shape or ())

    def make(self, names: Sequence[str]) -> list[np.ndarray | None]:
        """New arrays for results; None for those of a feature that the problem lacks."""
        problem = self.problem
        results: list[np.ndarray | None] = []
        for name in names:
            shape, dtype, kind = problem.tensors[name]
            if shape is None:
                results.append(None)
                continue
            if self.place is not None:
                results.append(self._make_on_device(name, shape, dtype, kind))
                continue
            a = np.empty(shape, dtype)
            if name not in problem.dense:
                problem.dense[name] = _arrays.view(a, kind)[1]
            self.tensors[name] = (a.__array_struct__, problem.dense[name])
            results.append(a)
        return results

    def _make_on_device(self, name: str, shape: tuple[int, ...], dtype: np.dtype, kind: int) -> Any:
        assert self.place is not None
        x, _ = self.place.empty(shape, _arrays.code_of(dtype, name))
        self._add(name, self.place.array(x, name), kind)
        return x

    def result(self, x: Any, name: str) -> Any:
        """An array of the caller as a result: on a GPU as it is, else as NumPy's."""
        return x if self.place is not None else _arrays.as_array(x, name)

    def make_low(self, low: Any, names: Sequence[str]) -> list[np.ndarray | None]:
        """New arrays for low halves if `low` is True; none if it is False."""
        if not flag(low, "low"):
            return []
        _arrays.check_has_low("low", self.problem.tensors["o"][1], "o")
        return self.make(names)

    def run(self, map: int, flags: int = 0) -> None:
        plan = self.problem.plan
        try:
            if self.place is not None:
                where = self.place.workspace(plan, map)
                plan.run(map, self.tensors, flags=flags, **self.keywords, **where)
            elif self.keywords or flags:
                self.problem.plan.run(map, self.tensors, flags=flags, **self.keywords)
            else:
                self.problem.plan.run(map, self.tensors)
        except ValueError as error:
            raise _problem.with_argument(error) from None
