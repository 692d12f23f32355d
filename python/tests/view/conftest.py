"""One browser for all tests of the page, and pages that several of them open."""

import pytest
from browser import browser
from view_pages import run, seed_arrays


@pytest.fixture(scope="session")
def driver():
    with browser() as driver:
        yield driver


@pytest.fixture(scope="session")
def example(tmp_path_factory):
    path = tmp_path_factory.mktemp("view") / "example.html"
    run("--out", path)
    return path


@pytest.fixture(scope="session")
def pooled(tmp_path_factory):
    path = tmp_path_factory.mktemp("view") / "pooled.html"
    run("q1100 d4 f32 causal", "--out", path)
    return path


@pytest.fixture(autouse=True)
def _same_arrays():
    seed_arrays()
