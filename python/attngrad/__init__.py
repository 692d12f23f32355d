"""Attention and its exact derivatives, fused on the CPU: forward, vjp, jvp and vjp_jvp on arrays.

`attngrad.torch` is the same for PyTorch, with every derivative of it."""

from ._core import info, version
from ._maps import Forward, Gradients, GradientTangents, Tangents, forward, jvp, vjp, vjp_jvp

__version__ = version()
__all__ = [
    "Forward",
    "GradientTangents",
    "Gradients",
    "Tangents",
    "__version__",
    "forward",
    "info",
    "jvp",
    "vjp",
    "vjp_jvp",
]
