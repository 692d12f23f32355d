"""dot_product_attention: the signature of jax.nn's over the five maps, and an adapter for Flax."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from . import _features
from ._primitives import attention

_OURS = frozenset(
    "softcap sink bias_table buckets alibi align dropout seed q_packed k_packed longest q_offset k_offset q_offsets "
    "k_offsets batch_offset head_offset invariant save_low backend threads".split()
)


def dot_product_attention(
    query,
    key,
    value,
    bias=None,
    mask=None,
    *,
    scale: float | None = None,
    is_causal: bool = False,
    query_seq_lengths=None,
    key_value_seq_lengths=None,
    local_window_size: int | tuple[int | None, int | None] | None = None,
    implementation: str | None = None,
    return_residual: bool = False,
    softcap: float | None = None,
    sink=None,
    bias_table=None,
    buckets=None,
    alibi=None,
    align: str = "top-left",
    dropout: float = 0.0,
    seed=None,
    q_packed=None,
    k_packed=None,
    longest: tuple[int, int] | None = None,
    q_offset=None,
    k_offset=None,
    q_offsets=None,
    k_offsets=None,
    batch_offset=None,
    head_offset: int = 0,
    invariant: bool = False,
    save_low: bool = True,
    backend: str | None = None,
    threads: int = 0,
) -> Any:
    """Attention as jax.nn.dot_product_attention computes it, differentiable in every mode to the second order, in
    memory proportional to the sequence, on the CPU.

    The arguments up to return_residual mean what they mean there: query [B, T, N, H] or [T, N, H], key and value
    [B, S, K, H] or [S, K, H], where K divides N; bias and mask broadcast to [B, N, T, S]. What differs: value may have
    another head size; the residual has derivatives; a query that sees no key gives zeros, and -inf as its residual.
    Another implementation than None and "attngrad" is passed on to jax.nn.

    softcap      c: scores become c tanh(score / c), before any bias
    sink         [N]: one extra logit per head: it joins the softmax denominator and has no value row
    bias_table   [N, 2R + 1], [1, 2R + 1] or [2R + 1]: added by the distance of key and query, clipped to -R .. R;
                 with buckets, 2R + 1 constant column indices, distance t has column buckets[t + R]
    alibi        True, or one constant slope per head
    align        "bottom-right": the last query is at the last key, for causal, window, alibi and bias_table
    dropout      the share of weights to drop; seed: a key of jax.random, or a whole number
    q_packed, k_packed     offsets of sequences one after another in query and key [total, heads, size]; longest:
                 (most queries, most keys) of one, constant, needed if the offsets are traced
    q_offset, k_offset     positions of the first query and the first key, also traced
    q_offsets, k_offsets   [B]: the same for each sequence
    batch_offset, head_offset    indices of the first sequence and of the first head, for dropout
    invariant    True: the bits of a sequence and kv head depend neither on the others nor on padding
    save_low     float16 and bfloat16: derivatives also get what rounding took from the output, so that they do not
                 carry that error; it takes one more array of the output's size. False: without
    backend      "cpu" or "reference"
    threads      0: as many as XLA has

    >>> import jax, jax.numpy as jnp
    >>> x = jnp.ones((1, 8, 4, 16))
    >>> loss = lambda q: dot_product_attention(q, x, x, is_causal=True).sum()
    >>> jax.jvp(jax.grad(loss), (x,), (x,))[1].shape
    (1, 8, 4, 16)
    """
    features = dict(locals())
    for name in ("query", "key", "value", "implementation", "return_residual"):
        features.pop(name)
    if implementation not in (None, "attngrad"):
        return _of_jax(query, key, value, implementation, return_residual, features)
    problem, arrays = _features.build(query, key, value, features)
    o, lse = attention(problem, arrays)
    if jnp.ndim(query) == 3:
        o, lse = o[0], lse[0]
    return (o, lse.astype(o.dtype)) if return_residual else o


def _of_jax(query, key, value, implementation, return_residual, features) -> Any:
    """jax.nn's own, which has none of our features."""
    defaults = dot_product_attention.__kwdefaults__
    for name in sorted(_OURS):
        given, default = features.pop(name), defaults[name]
        if type(given) is not type(default) or given != default:
            raise ValueError(f"{name}: given beside implementation={implementation!r}, which does not have it")
    return jax.nn.dot_product_attention(
        query, key, value, implementation=implementation, return_residual=return_residual, **features
    )
