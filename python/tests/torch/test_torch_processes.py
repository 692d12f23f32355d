"""Threads, forks, workers and exits: the same bits, no hang."""

import gc
import subprocess
import sys
import threading
import weakref

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from attngrad.torch import scaled_dot_product_attention


@pytest.fixture(autouse=True)
def _two_threads():
    torch.set_num_threads(2)


X = torch.linspace(-1, 1, 2 * 4 * 96 * 16).sin().view(2, 4, 96, 16)


def gradient():
    x = X.clone().requires_grad_()
    scaled_dot_product_attention(x, x, x, is_causal=True).square().sum().backward()
    return x.grad


class Gradients(Dataset):
    def __len__(self):
        return 6

    def __getitem__(self, i):
        return gradient()


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_data_loader(method):
    """Workers make calls after the parent has started its threads."""
    expected = gradient()
    loader = DataLoader(Gradients(), num_workers=2, multiprocessing_context=method, timeout=120)
    for batch in loader:
        assert torch.equal(batch[0], expected)


def test_threads_at_once():
    expected, wrong = gradient(), []

    def work():
        for _ in range(10):
            if not torch.equal(gradient(), expected):
                wrong.append(threading.get_ident())

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    assert not any(thread.is_alive() for thread in threads) and not wrong


def test_calls_use_the_threads_of_pytorch():
    """The library's own threads, which exist for the plan, sleep: only OpenMP's and the caller's have worked."""
    if "ATen parallel backend: OpenMP" not in torch.__config__.parallel_info():
        pytest.skip("this PyTorch does not use OpenMP")
    program = (
        "import pathlib, torch; from attngrad.torch import scaled_dot_product_attention as attention\n"
        "def ticks(): return {t.name: int((t / 'stat').read_text().rsplit(')', 1)[1].split()[11]) "
        "for t in pathlib.Path('/proc/self/task').iterdir()}\n"
        "torch.set_num_threads(2); x = torch.randn(1, 4, 1024, 64); x @ x.mT; before = ticks()\n"
        "for _ in range(40): attention(x, x, x)\n"
        "worked = [n for n, t in ticks().items() if t > before.get(n, 0)]\n"
        "assert len(worked) == 2 and set(worked) <= set(before), (before, ticks())"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


def test_fork_after_a_call_on_the_threads_of_pytorch():
    """The child has none of them; its call must not wait for them."""
    program = (
        "import os, torch; from attngrad.torch import scaled_dot_product_attention as attention\n"
        "torch.set_num_threads(2); x = torch.randn(1, 12, 512, 64); expected = attention(x, x, x).numpy().tobytes()\n"
        "child = os.fork()\n"
        "if child == 0: os._exit(attention(x, x, x).numpy().tobytes() != expected)\n"
        "assert os.waitpid(child, 0)[1] == 0"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


def test_number_of_threads_changes_no_bit():
    results = []
    for n in (1, 2, 5):
        torch.set_num_threads(n)
        results.append(gradient())
    assert torch.equal(results[0], results[1]) and torch.equal(results[0], results[2])


def test_freed_during_a_call():
    """Another thread drops its references to the inputs while a map runs."""
    stop, box = threading.Event(), [X.clone()]

    def drop():
        while not stop.is_set():
            box[0] = X.clone()
            gc.collect(0)

    dropper = threading.Thread(target=drop)
    dropper.start()
    expected = scaled_dot_product_attention(X, X, X)
    try:
        for _ in range(50):
            assert torch.equal(scaled_dot_product_attention(box[0], box[0], box[0]), expected)
    finally:
        stop.set()
        dropper.join()


def test_graph_is_freed():
    x = X.clone().requires_grad_()
    o = scaled_dot_product_attention(x, x, x)
    alive = weakref.ref(o)
    del o
    gc.collect()
    assert alive() is None


def run_script(code):
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], timeout=120, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("n", "more"), [(2048, ""), (64, ".sum().backward()")], ids=["long calls", "short calls"]
)
def test_exit_while_threads_run(n, more):
    code = """
import threading, torch
from attngrad.torch import scaled_dot_product_attention
started = threading.Barrier(4)
def work():
    x = torch.randn(1, 8, N, 64, requires_grad=True)
    scaled_dot_product_attention(x, x, x)MORE
    started.wait()
    while True:
        scaled_dot_product_attention(x, x, x)MORE
for _ in range(3):
    threading.Thread(target=work, daemon=True).start()
started.wait()
"""
    run_script(code.replace("N,", f"{n},").replace("MORE", more))


@pytest.mark.parametrize("when", ["first", "before", "after"])
def test_exit_handler_waits_for_a_thread(when):
    """A handler that the program registered, before all other imports, before ours or after it, sees its thread
    finish."""
    code = """
import atexit, threading
FIRST
import torch
calls = []
def work():
    for _ in range(200):
        calls.append(scaled_dot_product_attention(x, x, x).sum())
thread = threading.Thread(target=work, daemon=True)
def finish():
    thread.join()
    print(len(calls))
BEFORE
from attngrad.torch import scaled_dot_product_attention
AFTER
x = torch.randn(1, 2, 64, 16, requires_grad=True)
thread.start()
"""
    code = code.replace(when.upper(), "atexit.register(lambda: finish())")
    for other in ("FIRST", "BEFORE", "AFTER"):
        code = code.replace(other, "")
    assert run_script(code) == "200\n"
