"""Fixtures of the PyTorch tests."""

import pytest
import torch

from attngrad import _plan


@pytest.fixture(autouse=True)
def _seed_and_threads():
    """One thread: the tensors are small. test_torch_processes.py changes the number, so it is reset here."""
    torch.manual_seed(7)
    torch.set_num_threads(1)


@pytest.fixture(params=["cpu", "reference"])
def backend(request, monkeypatch):
    """Runs a test with each backend; the library reads the environment when it makes a plan."""
    monkeypatch.setenv("ATTNGRAD_BACKEND", request.param)
    _plan.get.cache_clear()
    yield request.param
    _plan.get.cache_clear()
