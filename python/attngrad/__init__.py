"""Attention and its exact derivatives, fused on the CPU."""

from ._core import info, version

__version__ = version()
__all__ = ["__version__", "info"]
