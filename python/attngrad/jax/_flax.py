"""attention_fn for the attention layers of Flax: those of flax.linen and of flax.nnx pass the same arguments."""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp

from ._attention import dot_product_attention


def attention_fn(
    query,
    key,
    value,
    bias=None,
    mask=None,
    broadcast_dropout: bool = True,
    dropout_rng=None,
    dropout_rate: float = 0.0,
    deterministic: bool = False,
    dtype=None,
    precision=None,
    module=None,
    force_fp32_for_softmax: bool = False,
    qk_attn_weights_einsum=None,
    attn_weights_value_einsum=None,
    **features: Any,
) -> Any:
    """dot_product_attention for flax.linen.MultiHeadDotProductAttention(attention_fn=...) and for
    flax.nnx.MultiHeadAttention(attention_fn=...). query is [..., length, heads, size]; bias and mask broadcast to
    [..., heads, queries, keys]. Features of dot_product_attention are given by functools.partial:

        flax.linen.MultiHeadDotProductAttention(8, attention_fn=functools.partial(attention_fn, softcap=30.0))

    precision and force_fp32_for_softmax change nothing: the arithmetic has float32 at least. A query that sees no key
    gives zeros, where Flax gives the mean of the values. dropout_rate needs broadcast_dropout=False: each weight is
    dropped by itself.
    """
    del precision, force_fp32_for_softmax
    _refuse(
        sow_weights=module,
        qk_attn_weights_einsum_cls=qk_attn_weights_einsum,
        attn_weights_value_einsum_cls=attn_weights_value_einsum,
    )
    if not deterministic and dropout_rate > 0:
        if broadcast_dropout:
            raise NotImplementedError(
                "broadcast_dropout: True: attngrad drops each weight by itself; give broadcast_dropout=False"
            )
        if dropout_rng is None:
            raise ValueError("dropout_rng: missing: dropout_rate needs a key, that of the layer's stream 'dropout'")
        features |= {"dropout": dropout_rate, "seed": dropout_rng}
    arrays = [jnp.asarray(x) for x in (query, key, value)]
    dtype = jnp.result_type(*arrays) if dtype is None else dtype
    query, key, value = (x.astype(dtype) for x in arrays)
    lead, full = query.shape[:-3], (*query.shape[:-3], query.shape[-2], query.shape[-3], key.shape[-3])
    o = dot_product_attention(
        *(x.reshape(math.prod(lead), *x.shape[-3:]) for x in (query, key, value)),
        _fold("bias", bias, full),
        None if mask is None else _fold("mask", jnp.asarray(mask).astype(bool), full),
        **features,
    )
    return o.reshape(*lead, *o.shape[1:])


def _refuse(**options: Any) -> None:
    for name, value in options.items():
        if value is not None and value is not False:
            raise NotImplementedError(f"{name}: attngrad never has the weights in memory")


def _fold(name: str, x, full: tuple[int, ...]):
    """A bias or mask with the leading axes folded into one, of size 1 if it has none of them."""
    if x is None:
        return None
    if x.ndim > len(full):
        raise ValueError(f"{name}: shape {list(x.shape)} does not broadcast to {list(full)}")
    x = x.reshape((1,) * (len(full) - x.ndim) + x.shape)
    lead = full[:-3]
    if all(size == 1 for size in x.shape[: len(lead)]):
        return x.reshape(1, *x.shape[-3:])
    return jnp.broadcast_to(x, (*lead, *x.shape[-3:])).reshape(math.prod(lead), *x.shape[-3:])
