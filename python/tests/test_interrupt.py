"""Ctrl-C: a long map ends with KeyboardInterrupt, soon, and the library works on."""

import subprocess
import sys

import pytest
from interrupts import LIMIT, shortest_delay

SETUP = "x = np.ones((1, {n}, 128)); lse = np.ones((1, {n})); a = dict(threads={threads}, backend={backend!r})"
LONG = SETUP.format(n=32768, threads=2, backend=None)
FORWARD = "attngrad.forward(x, x, x, **a)"


@pytest.mark.parametrize("threads", [1, 2])
def test_forward(threads):
    assert shortest_delay(SETUP.format(n=32768, threads=threads, backend=None), FORWARD) < LIMIT


@pytest.mark.parametrize(
    "call",
    [
        "attngrad.vjp(x, x, x, x, lse, x, **a)",
        "attngrad.jvp(x, x, x, x, x, x, **a)",
        "attngrad.jvp(x, x, x, x, x, x, o=x, lse=lse, **a)",
        "attngrad.vjp_jvp(x, x, x, x, lse, x, lse, x, x, x, x, **a)",
        "attngrad.jvp_jvp(x, x, x, x, lse, lse, lse, x, x, x, x, x, x, **a)",
    ],
)
def test_derivatives(call):
    assert shortest_delay(LONG, call) < LIMIT


def test_the_reference():
    assert shortest_delay(SETUP.format(n=4000, threads=2, backend="reference"), FORWARD) < LIMIT


HANDLER = """
import signal
class Stop(Exception): pass
def stop(number, frame): raise Stop
signal.signal(signal.SIGINT, stop)
"""


def test_a_handler_that_raises():
    assert shortest_delay(HANDLER + LONG, FORWARD, "Stop") < LIMIT


HANDLER_THAT_RETURNS = """
import os, signal, threading, time
import numpy as np, attngrad
handled = []
signal.signal(signal.SIGINT, lambda number, frame: handled.append(time.monotonic()))
x = np.ones((1, 12000, 128))
threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
o = attngrad.forward(x, x, x, threads=1).o
end = time.monotonic()
np.testing.assert_allclose(o, 1)
print(len(handled), end - handled[0])
"""


def test_a_handler_that_returns():
    """It runs while the map does, and the map goes on to its right result."""
    result = subprocess.run(
        [sys.executable, "-c", HANDLER_THAT_RETURNS], capture_output=True, text=True, timeout=120
    )
    assert result.returncode == 0, result.stderr
    count, seconds_before_the_end = result.stdout.split()
    assert int(count) == 1 and float(seconds_before_the_end) > 0.1
