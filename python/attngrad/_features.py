"""The keywords that all maps share: their names, types and defaults, and the one description of them, which
every map's signature and docstring show."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Literal, TypedDict, TypeVar


class Features(TypedDict, total=False):
    """Keywords of every map; None counts as absent.

    causal          True: a query sees no key at a later position
    align           "top-left": the first query is at the first key; "bottom-right": the last at the last
    window          (left, right): keys this far before and after a query are seen; None or -1: all
    scale           of the scores; without it 1 / sqrt(d)
    bias            added to the scores, [queries, keys] with heads and batch before them, each axis full or
                    1; dtype as q, or float32 if q has 16 bits; minus infinity masks the pair
    mask            bool or uint8 of such a shape; True attends
    bias_table      a bias by distance, key minus query: [heads, columns], or [columns] shared by the heads;
                    dtype as bias
    buckets         2R + 1 whole numbers: column buckets[clip(distance, -R, R) + R] of bias_table serves a
                    distance; without them there are 2R + 1 columns, one per distance
    alibi           True: the bias -slope |distance| with the usual slopes; or an array of one slope per head
    softcap         c: scores become c tanh(score / c), before any bias; 0: none
    sink            [heads]: one extra logit per head: it joins the softmax denominator and has no value row;
                    dtype as bias
    dropout         the share of weights to drop, below 1
    seed            of dropout, 0 to 2^64 - 1; the same in each map of one forward
    q_lengths       whole numbers, one per sequence: queries after them are padding
    kv_lengths      the same for keys
    q_packed        offsets, one more than sequences: sequence b has rows q_packed[b] to q_packed[b + 1] of
                    q, which is then [total, heads, d]
    k_packed        the same for k and v; both or neither
    q_offset        the position of the first query, if the arrays are a shard of a longer sequence
    k_offset        the position of the first key
    q_offsets       whole numbers, one per sequence: the position of its first query, instead of q_offset
    k_offsets       the same for its first key, instead of k_offset
    batch_offset    the index of the first sequence, for dropout
    head_offset     the index of the first head, for dropout
    backend         "cpu": fused; "reference": the formulas as written; "cuda": that of arrays on a GPU, for these alone
    threads         0: ATTNGRAD_THREADS, else one per processor
    invariant       True: the bits of a sequence and kv head depend neither on the others nor on padding
    """

    causal: bool
    align: Literal["top-left", "bottom-right"]
    window: tuple[int | None, int | None] | None
    scale: float | None
    bias: Any
    mask: Any
    bias_table: Any
    buckets: Any
    alibi: Any
    softcap: float | None
    sink: Any
    dropout: float | None
    seed: int
    q_lengths: Any
    kv_lengths: Any
    q_packed: Any
    k_packed: Any
    q_offset: int
    k_offset: int
    q_offsets: Any
    k_offsets: Any
    batch_offset: int
    head_offset: int
    backend: str | None
    threads: int
    invariant: bool


_DEFAULTS = {"causal": False, "align": "top-left", "invariant": False} | dict.fromkeys(
    "seed q_offset k_offset batch_offset head_offset threads".split(), 0
)
_Function = TypeVar("_Function", bound=Callable[..., Any])


def with_features(function: _Function) -> _Function:
    """A decorator: adds the keywords that **features stands for to the signature and the docstring."""
    signature = inspect.signature(function)
    own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
    features = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=_DEFAULTS.get(name),
            annotation=getattr(kind, "__forward_arg__", kind),
        )
        for name, kind in Features.__annotations__.items()
    ]
    function.__signature__ = signature.replace(parameters=own + features)  # type: ignore[attr-defined]
    if function.__doc__ and Features.__doc__:  # both are None under python -OO
        function.__doc__ = inspect.cleandoc(function.__doc__) + "\n\n" + inspect.cleandoc(Features.__doc__)
    return function
