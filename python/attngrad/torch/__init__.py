"""attngrad for PyTorch: scaled_dot_product_attention with backward, double backward, forward mode and torch.func."""

from ._attention import scaled_dot_product_attention

__all__ = ["scaled_dot_product_attention"]
