"""Fixtures of the PyTorch tests."""

import pytest
import torch

from attngrad import _plan
from attngrad.torch import _ops


@pytest.fixture(autouse=True)
def _seed_and_threads():
    """One thread: the tensors are small. test_torch_processes.py changes the number, so it is reset here."""
    torch.manual_seed(7)
    torch.set_num_threads(1)


def _clear_plans():
    _plan.get.cache_clear()
    _ops.plan_of_shapes.cache_clear()


@pytest.fixture(params=["cpu", "reference"])
def backend(request, monkeypatch):
    """Runs a test with each backend; the library reads the environment when it makes a plan."""
    monkeypatch.setenv("ATTNGRAD_BACKEND", request.param)
    _clear_plans()
    yield request.param
    _clear_plans()
