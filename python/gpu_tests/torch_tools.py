"""What the tests of PyTorch on a GPU share."""

import os
import unittest

import torch

DEVICE = os.environ.get("ATTNGRAD_TEST_DEVICE", "cuda")
LIMIT = {torch.float64: 1e-11, torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 2e-2}


def needs_gpu():
    """Skips the test that calls it if tensors are on the CPU."""
    if DEVICE == "cpu":
        raise unittest.SkipTest("needs a GPU")


def draw(*shape, dtype=torch.float64):
    return torch.randn(*shape, dtype=torch.float64).to(dtype)


def compare(name, got, wanted, dtype):
    a, b = got.detach().cpu().double(), wanted.detach().double()
    error = (a - b).norm() / (1e-3 + b.norm())
    assert a.shape == b.shape and error <= LIMIT[dtype], f"{name}: {error:.1e}"


def leaves(xs):
    return [x.detach().clone().requires_grad_() for x in xs]


def weight_of(o):
    """A cotangent that is the same on both devices and in every dtype."""
    return torch.sin(torch.arange(o.numel(), dtype=torch.float64)).bfloat16().reshape(o.shape).to(o)


def refuses(words, function):
    try:
        function()
    except (ValueError, RuntimeError) as error:
        assert words in str(error), f"{error} does not say {words}"
        return
    raise AssertionError(f"not refused: {words}")
