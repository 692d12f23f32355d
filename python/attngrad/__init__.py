"""Attention and its exact derivatives, fused on the CPU: forward, vjp, jvp and vjp_jvp on arrays.

`attngrad.torch` is the same for PyTorch tensors, with first and second derivatives by autograd and
torch.func."""

from ._check import Residual, check
from ._core import info, version
from ._explain import explain
from ._features import Features
from ._maps import (
    Forward,
    ForwardLow,
    Gradients,
    GradientTangents,
    Tangents,
    TangentsLow,
    forward,
    jvp,
    vjp,
    vjp_jvp,
)
from ._merge import Merged, MergedLow, merge

__version__ = version()
__all__ = [
    "Features",
    "Forward",
    "ForwardLow",
    "GradientTangents",
    "Gradients",
    "Merged",
    "MergedLow",
    "Residual",
    "Tangents",
    "TangentsLow",
    "__version__",
    "check",
    "explain",
    "forward",
    "info",
    "jvp",
    "merge",
    "vjp",
    "vjp_jvp",
]
