"""attngrad for JAX: attention with every derivative up to the second, under jit, vmap, shard_map and the rest.

>>> import jax, jax.numpy as jnp
>>> from attngrad.jax import dot_product_attention
>>> x = jnp.ones((1, 8, 4, 16))
>>> o, to = jax.jvp(lambda q: dot_product_attention(q, x, x, is_causal=True), (x,), (x,))
"""

try:
    import jax as _jax

    if _jax.__version_info__ < (0, 10):
        raise ImportError(f"attngrad.jax needs JAX 0.10 or newer, not {_jax.__version__}: pip install 'attngrad[jax]'")
    from . import _batching, _lowering, _rules
    from ._attention import dot_product_attention
    from ._lowering import register
    from ._rules import CHECKPOINT_NAME
    from ._flax import attention_fn
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] != "jax":
        raise
    raise ModuleNotFoundError("attngrad.jax needs JAX: pip install 'attngrad[jax]'", name="jax") from None

__all__ = ["CHECKPOINT_NAME", "attention_fn", "dot_product_attention", "register"]
