"""attngrad for PyTorch: attention with backward, double backward, forward mode and torch.func.

>>> import torch
>>> from attngrad.torch import scaled_dot_product_attention
>>> x = torch.randn(1, 4, 8, 16)
>>> o, to = torch.func.jvp(lambda q: scaled_dot_product_attention(q, x, x, is_causal=True), (x,), (x,))
"""

try:
    from ._attention import scaled_dot_product_attention
    from ._multihead import MultiheadAttention, replace
    from ._ring import ring_attention
    from ._shard import shard, unshard
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise ModuleNotFoundError(
        "attngrad.torch needs PyTorch: pip install torch", name="torch"
    ) from None

__all__ = ["MultiheadAttention", "replace", "ring_attention", "scaled_dot_product_attention", "shard", "unshard"]
