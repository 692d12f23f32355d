"""Attention and its exact derivatives, fused, on the CPU and on NVIDIA GPUs: forward, vjp, jvp, vjp_jvp and jvp_jvp on
arrays, where these are.

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
    SecondTangents,
    Tangents,
    TangentsLow,
    forward,
    jvp,
    jvp_jvp,
    vjp,
    vjp_jvp,
)
from ._merge import Merged, MergedLow, MergedSecond, merge

__version__ = version()
__all__ = [
    "Features",
    "Forward",
    "ForwardLow",
    "GradientTangents",
    "Gradients",
    "Merged",
    "MergedLow",
    "MergedSecond",
    "Residual",
    "SecondTangents",
    "Tangents",
    "TangentsLow",
    "__version__",
    "check",
    "explain",
    "forward",
    "info",
    "jvp",
    "jvp_jvp",
    "merge",
    "vjp",
    "vjp_jvp",
]
