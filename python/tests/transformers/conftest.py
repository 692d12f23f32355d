"""Fixtures of the transformers tests: nothing is downloaded, and eager attention has the digits of its inputs."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"  # before transformers is imported

import pytest  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402

import attngrad.transformers  # noqa: E402

attngrad.transformers.register()
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()


def pytest_configure(config):
    config.addinivalue_line("markers", "oldest: also run with the oldest supported release of transformers")


def pytest_terminal_summary(terminalreporter):
    terminalreporter.write_line(f"tested with transformers {transformers.__version__}")


@pytest.fixture(autouse=True)
def _seed_and_threads():
    torch.manual_seed(7)
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _softmax_in_float64(monkeypatch):
    """Eager attention asks softmax for float32, also of float64 scores; here it does not narrow them."""
    softmax = torch.nn.functional.softmax

    def keep_float64(x, dim=None, _stacklevel=3, dtype=None):
        return softmax(x, dim=dim, dtype=None if x.dtype == torch.float64 else dtype)

    monkeypatch.setattr(torch.nn.functional, "softmax", keep_float64)
