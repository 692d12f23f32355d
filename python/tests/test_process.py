"""Threads, forks and the end of the interpreter: no crash, no hang, no wrong result."""

import array
import gc
import multiprocessing
import os
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import attngrad

RNG = np.random.default_rng(3)
Q, K, V = (RNG.standard_normal((4, 60, 16)) for _ in range(3))
WANT = attngrad.forward(Q, K, V, causal=True)


def agrees():
    got = attngrad.forward(Q, K, V, causal=True)
    return all(np.array_equal(a, b) for a, b in zip(got, WANT))


def run_threads(work, n=8):
    """Runs work(number) on n threads; the first exception is raised here."""
    errors = []

    def guarded(number):
        try:
            work(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(number,)) for number in range(n)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive()
    if errors:
        raise errors[0]


def test_threads_at_once():
    """Also with new problems, so that plans are made and dropped meanwhile, and with errors, whose messages must
    not be mixed up."""

    def work(number):
        for n in range(40):
            assert agrees()
            x = np.ones((1 + (number * 40 + n) % 300, 8))
            np.testing.assert_allclose(attngrad.forward(x, x, x).o, 1)
            with pytest.raises(ValueError, match=f"k: head size 8, but q has {number + 9}"):
                attngrad.forward(np.ones((2, number + 9)), x, x)

    run_threads(work)


def test_the_lock_is_released():
    """Other Python threads go on while a map runs."""
    n = 3000
    x = RNG.standard_normal((n, 64))
    done = threading.Event()

    def work():
        attngrad.forward(x, x, x, backend="reference", threads=1)
        done.set()

    thread = threading.Thread(target=work)
    start = time.perf_counter()
    thread.start()
    longest = 0.0
    while not done.is_set():
        before = time.perf_counter()
        time.sleep(0.001)
        longest = max(longest, time.perf_counter() - before)
    thread.join()
    total = time.perf_counter() - start
    assert longest < 0.5 * total, f"this thread stood still for {longest:.3f} of {total:.3f} seconds"


def test_arrays_are_kept_alive():
    """Only the call refers to its arrays while the map runs; if they were freed, their memory would be reused."""
    shape = (1, 2000, 64)

    def work(number):
        rng = np.random.default_rng(number)
        for _ in range(3):
            o = attngrad.forward(*[np.full(shape, rng.standard_normal()) for _ in range(2)], np.ones(shape)).o
            np.testing.assert_allclose(o, 1)

    stop = threading.Event()

    def churn():
        while not stop.is_set():
            for _ in range(4):
                np.full(shape, np.nan)
            gc.collect(0)

    other = threading.Thread(target=churn)
    other.start()
    try:
        run_threads(work, 3)
    finally:
        stop.set()
        other.join()


def test_a_buffer_in_use_is_held():
    """An object that exports a buffer cannot be resized while the map reads it."""
    n = 3000
    held = array.array("d", [1.0]) * (n * 64)
    x = memoryview(held).cast("B").cast("d", shape=[n, 64])
    thread = threading.Thread(target=lambda: attngrad.forward(x, x, x, backend="reference", threads=1))
    thread.start()
    with pytest.raises(BufferError):
        held.append(0.0)
    thread.join()


# ---- Processes ----


def run_script(text, timeout=60):
    return subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=timeout)


EXIT = """
import threading, time, sys, os
import numpy as np, attngrad
x = np.ones((4, 700, 64), np.float32)
started = threading.Semaphore(0)
def work():
    while True:
        attngrad.forward(x, x, x)
        started.release()
for _ in range(4):
    threading.Thread(target=work, daemon=True).start()
for _ in range(4):
    started.acquire()
time.sleep({delay})
{end}
"""


@pytest.mark.parametrize("end, code", [("", 0), ("sys.exit(3)", 3), ("raise RuntimeError('the end')", 1)])
@pytest.mark.parametrize("delay", [0.0, 0.013, 0.05])
def test_exit_while_threads_run(end, code, delay):
    result = run_script(EXIT.format(end=end, delay=delay))
    assert result.returncode == code, result.stderr
    assert code != 0 or result.stderr == ""


@pytest.mark.filterwarnings("ignore:.*fork.*")
def test_fork_after_use():
    assert agrees()
    for _ in range(5):
        child = os.fork()
        if child == 0:
            os._exit(0 if agrees() and agrees() else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert agrees()


def child_check(number):
    return agrees() and attngrad.check(f"h2 q{number + 3} d4 f64 causal")["adjoint"] < 1e-12


@pytest.mark.filterwarnings("ignore:.*fork.*")
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_worker_processes(method):
    with multiprocessing.get_context(method).Pool(3) as pool:
        assert all(pool.map_async(child_check, range(12)).get(120))


@pytest.mark.filterwarnings("ignore:.*fork.*")
def test_fork_while_threads_run():
    """A fork at any moment of other threads' calls: the child computes, and ends."""
    stop = threading.Event()

    def work():
        n = 0
        while not stop.is_set():
            n += 1
            x = np.ones((1 + n % 400, 8))
            attngrad.forward(x, x, x)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(20):
            child = os.fork()
            if child == 0:
                os._exit(0 if agrees() else 1)
            deadline = time.monotonic() + 60
            while (status := os.waitpid(child, os.WNOHANG))[0] == 0:
                if time.monotonic() > deadline:
                    os.kill(child, 9)
                    os.waitpid(child, 0)
                    raise AssertionError("the child hangs")
                time.sleep(0.002)
            assert os.waitstatus_to_exitcode(status[1]) == 0
    finally:
        stop.set()
        for thread in threads:
            thread.join()


MEMORY = """
import resource, threading
import numpy as np, attngrad
x = np.ones((2, 300, 64), np.float32)
def call():
    attngrad.forward(x, x, x)
def after(n):
    for _ in range(n):
        thread = threading.Thread(target=call)
        thread.start()
        thread.join()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
first = after(50)
print(after(1000) - first)
"""


def test_a_thread_leaves_no_memory():
    """1000 threads, each of which had a workspace of about a megabyte."""
    result = run_script(MEMORY, 120)
    assert result.returncode == 0, result.stderr
    assert int(result.stdout) < 50_000, f"{result.stdout.strip()} kB more after 1000 threads"
